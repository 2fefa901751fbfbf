//! What `py-spy dump` prints of a process, as text or in JSON: its threads, each with its frames.

use std::path::Path;

use model::{Frame, ProcessState, Stack};
use serde::Deserialize;

use crate::FormatError;

/// A thread, by the keys of JSON.
#[derive(Default, Deserialize)]
pub(crate) struct Thread {
    #[serde(default, rename = "thread_name")]
    name: Option<String>,
    #[serde(default)]
    pid: u64,
    #[serde(default)]
    os_thread_id: Option<u64>,
    #[serde(default)]
    active: bool,
    #[serde(default)]
    owns_gil: Option<bool>,
    frames: Vec<SpyFrame>,
}

#[derive(Deserialize)]
struct SpyFrame {
    name: String,
    filename: String,
    line: i32,
}

/// The stack of a process's main thread.
pub(crate) fn main_stack(mut threads: Vec<Thread>) -> Stack {
    // The training loop runs on the main thread; the first is better than none.
    let main = threads.iter().position(|thread| {
        // On Linux the main thread has the number of its process, whatever its name.
        thread.os_thread_id == Some(thread.pid) || thread.name.as_deref() == Some("MainThread")
    });
    let main = if threads.is_empty() {
        Thread::default()
    } else {
        threads.swap_remove(main.unwrap_or(0))
    };
    let frames = main.frames.into_iter().map(|frame| Frame {
        function: frame.name,
        file: frame.filename,
        line: frame.line,
    });
    // py-spy distinguishes no more: whether a process is stopped stays unknown.
    let state = if main.active {
        ProcessState::Running
    } else {
        ProcessState::Sleeping
    };
    Stack::new(state, main.owns_gil, frames.collect())
}

/// Packages whose files py-spy writes without the place where they are installed, and modules of Python
/// in which threads wait.
const PACKAGES: [&str; 24] = [
    "accelerate/",
    "apex/",
    "deepspeed/",
    "fairseq/",
    "lightning/",
    "lightning_fabric/",
    "megatron/",
    "nemo/",
    "numpy/",
    "pytorch_lightning/",
    "ray/",
    "sglang/",
    "torch/",
    "torchdata/",
    "torchvision/",
    "transformers/",
    "trl/",
    "vllm/",
    "concurrent/",
    "multiprocessing/",
    "contextlib.py",
    "queue.py",
    "selectors.py",
    "threading.py",
];

/// Whether a text is what py-spy prints: `Process 42: python train.py`, or without it
/// `Thread 42 (idle): "MainThread"`.
pub(crate) fn begins(start: &[u8]) -> bool {
    let start = String::from_utf8_lossy(&start[..start.len().min(1 << 12)]);
    let first = start.lines().next().unwrap_or_default();
    process(first).is_some() && start.contains("\nPython v") || thread(first).is_some()
}

/// Reads the threads of a process.
pub(crate) fn read(path: &Path, text: &str) -> Result<Vec<Thread>, FormatError> {
    let mut pid = None;
    let mut threads: Vec<Thread> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(number) = process(line) {
            if pid.is_some() {
                let reason = "a second process begins: write one file for each rank";
                let place = format!("line {}", at + 1);
                return Err(FormatError::content(path, place, reason));
            }
            pid = Some(number);
        } else if let Some(thread) = thread(line) {
            threads.push(Thread {
                pid: pid.unwrap_or_default(),
                ..thread
            });
        } else if let (Some(thread), Some(frame)) = (threads.last_mut(), frame(line)) {
            thread.frames.push(frame);
        }
    }
    if threads.is_empty() {
        return Err(FormatError::content(path, "its end", "no thread is listed"));
    }
    Ok(threads)
}

/// `Process 42: python train.py`.
fn process(line: &str) -> Option<u64> {
    line.strip_prefix("Process ")?
        .split_once(':')?
        .0
        .parse()
        .ok()
}

/// `Thread 42 (active+gil): "MainThread"`, or a number in hexadecimal digits.
fn thread(line: &str) -> Option<Thread> {
    let (id, rest) = line.strip_prefix("Thread ")?.split_once(" (")?;
    let (state, name) = rest.split_once(')')?;
    let active = state.starts_with("active");
    (active || state.starts_with("idle")).then(|| Thread {
        name: name
            .contains("\"MainThread\"")
            .then(|| "MainThread".to_owned()),
        os_thread_id: id.parse().ok(),
        active,
        owns_gil: state.contains("gil").then_some(true),
        ..Thread::default()
    })
}

/// `    forward (model.py:12)`; frames of C have no line, and are left out.
fn frame(line: &str) -> Option<SpyFrame> {
    let (name, place) = line.strip_prefix("    ")?.trim_end().rsplit_once(" (")?;
    let (file, line) = place.strip_suffix(')')?.rsplit_once(':')?;
    let is_of_package = PACKAGES.iter().any(|it| file.starts_with(it));
    Some(SpyFrame {
        name: name.trim_start().to_owned(),
        filename: if is_of_package {
            format!("/site-packages/{file}")
        } else {
            file.to_owned()
        },
        line: line.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "Process 42: python train.py --lr (1)\nPython v3.11.2 (/usr/bin/python3.11)\n\n\
        Thread 99 (idle): \"Thread-1\"\n    wait (threading.py:324)\nThread 42 (active+gil): \
        \"MainThread\"\n    0x7f12 (libc.so.6)\n    read (data set.py:7)\n        Arguments:\n            \
        it: 1\n    __next__ (torch/utils/data/dataloader.py:633)\n    <module> (train.py:9)\n";

    #[test]
    fn the_main_thread_is_read() {
        assert!(begins(DUMP.as_bytes()));
        let stack = main_stack(read(Path::new("rank0.txt"), DUMP).unwrap());
        assert_eq!(
            (stack.state, stack.holds_gil),
            (ProcessState::Running, Some(true))
        );
        let frames: Vec<String> = stack.frames.iter().map(Frame::text).collect();
        let expected = [
            "read (data set.py:7)",
            "__next__ (dataloader.py:633)",
            "<module> (train.py:9)",
        ];
        assert_eq!(frames, expected);
        let own: Vec<bool> = stack.frames.iter().map(Frame::is_own).collect();
        assert_eq!(own, [true, false, true]);
    }

    #[test]
    fn processes_of_several_ranks_need_a_file_each() {
        let refused = read(Path::new("all.txt"), &DUMP.repeat(2)).err().unwrap();
        assert!(
            refused.to_string().contains("one file for each rank"),
            "{refused}"
        );
    }

    #[test]
    fn other_texts_are_none() {
        for text in [
            "Process 42: x\n",
            "Thread safety\n",
            "Thread 1 (dead): x\n",
            "",
        ] {
            assert!(!begins(text.as_bytes()), "{text}");
        }
    }
}
