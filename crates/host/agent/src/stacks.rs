use std::fs;

use model::{Frame, ProcessState, Stack};
use py_spy::{Config, PythonSpy};

/// Where the main thread of a process is. Does not stop it: a process that hangs stands
/// still by itself, and one that does not must not be held up.
///
/// What cannot be read is left out: the stack of a process that we may not trace, or that
/// has just ended.
pub(crate) fn stack_of(pid: u32) -> Stack {
    let (frames, holds_gil) = frames_of(pid).unzip();
    Stack { state: state_of(pid), holds_gil, frames: frames.unwrap_or_default() }
}

/// The frames, and whether the thread holds the interpreter's lock.
fn frames_of(pid: u32) -> Option<(Vec<Frame>, bool)> {
    let id = i32::try_from(pid).ok()?;
    let config = Config {
        blocking: py_spy::config::LockingStrategy::NonBlocking,
        ..Config::default()
    };
    let mut spy = PythonSpy::new(id, &config).ok()?;
    let threads = spy.get_stack_traces().ok()?;
    let is_main = |thread: &&py_spy::StackTrace| {
        thread.os_thread_id == Some(u64::from(pid))
            || thread.thread_name.as_deref() == Some("MainThread")
    };
    let main = threads.iter().find(is_main).or(threads.first())?;
    let frames = main.frames.iter().map(|frame| Frame {
        function: frame.name.clone(),
        file: frame.filename.clone(),
        line: frame.line,
    });
    Some((frames.collect(), main.owns_gil))
}

fn state_of(pid: u32) -> ProcessState {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command name may hold spaces and parentheses; the last ")" ends it.
    let state = stat.rfind(')').and_then(|end| stat[end..].split_whitespace().nth(1));
    match state {
        Some("R") => ProcessState::Running,
        Some("S" | "I") => ProcessState::Sleeping,
        Some("D") => ProcessState::Uninterruptible,
        Some("T" | "t") => ProcessState::Stopped,
        _ => ProcessState::Unknown,
    }
}
