use std::fs;

use model::{Frame, ProcessState, Stack, Worker};
use py_spy::{Config, PythonSpy, StackTrace};

use crate::processes::fields;

/// What the kernel says where the right to trace is missing.
const REFUSALS: [&str; 2] = ["(os error 1)", "(os error 13)"];
/// Whether the kernel restricts tracing beyond users and capabilities.
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Workers of one rank that are named. Taste: one that is stopped explains why nothing comes.
const MOST_WORKERS: usize = 4;

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
    // Only then: with frames at hand the function of the kernel says nothing more.
    let waits_in = unread.as_ref().and_then(|_| kernel_function(pid));
    let (state, workers) = (state_of(pid), idle_workers(pid));
    Stack {
        state,
        holds_gil,
        frames,
        unread,
        waits_in,
        workers,
    }
}

/// Processes that one has started and that do nothing for it any more: they were stopped, or have
/// ended and it has not noticed yet.
fn idle_workers(pid: u32) -> Vec<Worker> {
    // The kernel lists children by the thread that made them; a DataLoader is made by the main one.
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .map(|pid| Worker {
            pid,
            state: state_of(pid),
        })
        .filter(|it| matches!(it.state, ProcessState::Stopped | ProcessState::Ended))
        .take(MOST_WORKERS)
        .collect()
}

/// The frames, and whether the thread holds the interpreter's lock; or why they cannot be read.
fn frames_of(pid: u32) -> Result<(Vec<Frame>, bool), String> {
    let id = i32::try_from(pid).map_err(|error| error.to_string())?;
    let config = Config {
        // The other strategies stop the process while it is read.
        blocking: py_spy::config::LockingStrategy::NonBlocking,
        ..Config::default()
    };
    let threads = PythonSpy::new(id, &config)
        .and_then(|mut spy| spy.get_stack_traces())
        .map_err(|error| reason(&format!("{error:#}")))?;
    let main = main_thread(&threads, pid).ok_or_else(|| "it has no Python thread".to_owned())?;
    let frames = main
        .frames
        .iter()
        .map(|frame| Frame {
            function: frame.name.clone(),
            file: frame.filename.clone(),
            line: frame.line,
        })
        .collect();
    Ok((frames, main.owns_gil))
}

/// The thread that the process began with, which runs the script. Depending on the version of
/// Python, py-spy knows its number, its name, or neither.
fn main_thread(threads: &[StackTrace], pid: u32) -> Option<&StackTrace> {
    threads
        .iter()
        .find(|thread| {
            thread.os_thread_id == Some(u64::from(pid))
                || thread.thread_name.as_deref() == Some("MainThread")
        })
        .or(threads.first())
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
            format!("laggard may not trace its process (kernel.yama.ptrace_scope is {scope})")
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
        Some("Z" | "X") => ProcessState::Ended,
        _ => ProcessState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_without_python_says_why_it_has_no_stack() {
        let mut sleeping = Command::new("sleep")
            .arg("60")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let stack = stack_of(sleeping.id());
        sleeping.kill().unwrap();
        sleeping.wait().unwrap();
        let why = stack.unread.unwrap_or_default();
        assert!(why.to_lowercase().contains("python"), "{why:?}");
        assert_eq!((stack.holds_gil, stack.frames.len()), (None, 0));
    }

    #[test]
    fn the_stack_is_that_of_the_main_thread() {
        let thread = |os_thread_id: Option<u64>, name: Option<&str>| StackTrace {
            pid: 7,
            thread_id: 1,
            thread_name: name.map(str::to_owned),
            os_thread_id,
            active: true,
            owns_gil: false,
            frames: Vec::new(),
            process_info: None,
        };
        let by_number = [thread(Some(8), None), thread(Some(7), None)];
        let by_name = [
            thread(None, Some("Thread-1")),
            thread(None, Some("MainThread")),
        ];
        let unknown = [thread(None, None), thread(None, Some("Thread-1"))];
        for (threads, expected) in [(&by_number, 1), (&by_name, 1), (&unknown, 0)] {
            let main = main_thread(threads, 7).unwrap();
            assert!(
                std::ptr::eq(main, &raw const threads[expected]),
                "{threads:?}"
            );
        }
        assert!(main_thread(&[], 7).is_none());
    }

    #[test]
    fn what_a_process_has_started_and_somebody_stopped_is_reported() {
        let script = "sleep 60 & echo $!; wait";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = shell.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let pid: u32 = line.trim().parse().unwrap();
        let signal = |name: &str| {
            Command::new("kill")
                .args([name, line.trim()])
                .status()
                .unwrap();
        };
        assert_eq!(idle_workers(shell.id()), []);
        signal("-STOP");
        while state_of(pid) != ProcessState::Stopped {
            std::thread::yield_now();
        }
        let stopped = Worker {
            pid,
            state: ProcessState::Stopped,
        };
        assert_eq!(idle_workers(shell.id()), [stopped]);
        signal("-KILL");
        shell.wait().unwrap();
    }

    #[test]
    fn who_may_not_trace_says_so() {
        let refused = "Failed to open process: Operation not permitted (os error 1)";
        assert!(reason(refused).starts_with("laggard may not trace its process"));
        assert_eq!(reason("python 2.1 is not known"), "python 2.1 is not known");
    }
}
