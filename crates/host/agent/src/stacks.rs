use std::fs;

use model::{Frame, ProcessState, Stack};
use py_spy::{Config, PythonSpy};

use crate::processes::fields;

/// What the kernel says where the right to trace is missing.
const REFUSALS: [&str; 2] = ["(os error 1)", "(os error 13)"];
/// Whether the kernel restricts tracing beyond users and capabilities.
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Where the main thread of a process is. Does not stop it: a process that hangs stands
/// still by itself, and one that does not must not be held up.
///
/// Of a process that we may not trace, the kernel says at least whether it runs and what it
/// waits in.
pub fn stack_of(pid: u32) -> Stack {
    let (frames, holds_gil, unread) = match frames_of(pid) {
        Ok((frames, holds_gil)) => (frames, Some(holds_gil), None),
        Err(reason) => (Vec::new(), None, Some(reason)),
    };
    let waits_in = unread.as_ref().and_then(|_| kernel_function(pid));
    Stack { state: state_of(pid), holds_gil, frames, unread, waits_in }
}

/// The frames, and whether the thread holds the interpreter's lock; or why they cannot be read.
fn frames_of(pid: u32) -> Result<(Vec<Frame>, bool), String> {
    let id = i32::try_from(pid).map_err(|error| error.to_string())?;
    let config = Config {
        blocking: py_spy::config::LockingStrategy::NonBlocking,
        ..Config::default()
    };
    let read = PythonSpy::new(id, &config).and_then(|mut spy| spy.get_stack_traces());
    let threads = read.map_err(|error| reason(&format!("{error:#}")))?;
    let is_main = |thread: &&py_spy::StackTrace| {
        thread.os_thread_id == Some(u64::from(pid))
            || thread.thread_name.as_deref() == Some("MainThread")
    };
    let Some(main) = threads.iter().find(is_main).or(threads.first()) else {
        return Err("it has no Python thread".to_owned());
    };
    let frames = main.frames.iter().map(|frame| Frame {
        function: frame.name.clone(),
        file: frame.filename.clone(),
        line: frame.line,
    });
    Ok((frames.collect(), main.owns_gil))
}

/// Why a stack cannot be read, from py-spy's error.
fn reason(error: &str) -> String {
    if !REFUSALS.iter().any(|refusal| error.contains(refusal)) {
        return error.to_owned();
    }
    let scope = fs::read_to_string(YAMA).unwrap_or_default();
    match scope.trim() {
        "" | "0" => "laggard may not trace its process".to_owned(),
        scope => {
            format!(
                "laggard may not trace its process (kernel.yama.ptrace_scope is {scope})"
            )
        }
    }
}

/// The function of the kernel that a process waits in, where the kernel tells.
fn kernel_function(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/wchan")).ok()?;
    (!name.is_empty() && name != "0").then_some(name)
}

fn state_of(pid: u32) -> ProcessState {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    match fields(&stat).and_then(|mut fields| fields.next()) {
        Some("R") => ProcessState::Running,
        Some("S" | "I") => ProcessState::Sleeping,
        Some("D") => ProcessState::Uninterruptible,
        Some("T" | "t") => ProcessState::Stopped,
        _ => ProcessState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_without_python_says_why_it_has_no_stack() {
        let mut sleeping =
            Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let stack = stack_of(sleeping.id());
        sleeping.kill().unwrap();
        sleeping.wait().unwrap();
        let why = stack.unread.unwrap_or_default();
        assert!(why.to_lowercase().contains("python"), "{why:?}");
        assert_eq!((stack.holds_gil, stack.frames.len()), (None, 0));
    }

    #[test]
    fn who_may_not_trace_says_so() {
        let refused = "Failed to open process: Operation not permitted (os error 1)";
        assert!(reason(refused).starts_with("laggard may not trace its process"));
        assert_eq!(reason("python 2.1 is not known"), "python 2.1 is not known");
    }
}
