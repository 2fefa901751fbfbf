//! What `py-spy dump` prints of a process: its threads, each with its frames.

use std::path::Path;

use model::{Frame, ProcessState, Stack};

use crate::FormatError;

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

/// Reads the stack of its main thread.
pub(crate) fn read(path: &Path, text: &str) -> Result<Stack, FormatError> {
    let mut pid = None;
    let mut threads: Vec<SpyThread> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if let Some(number) = process(line) {
            if pid.is_some() {
                let reason = "a second process begins: write one file for each rank";
                return Err(FormatError::content(
                    path,
                    format!("line {}", at + 1),
                    reason,
                ));
            }
            pid = Some(number);
        } else if let Some(thread) = thread(line) {
            threads.push(thread);
        } else if let (Some(thread), Some(frame)) = (threads.last_mut(), frame(line)) {
            thread.frames.push(frame);
        }
    }
    // The training loop runs on the main thread; the first is better than none.
    let main = threads
        .iter()
        .position(|thread| thread.is_main || pid.is_some() && thread.id == pid)
        .unwrap_or_default();
    let Some(main) = threads.into_iter().nth(main) else {
        let reason = "no thread is listed";
        return Err(FormatError::content(path, "its end", reason));
    };
    Ok(Stack::new(main.state, main.holds_gil, main.frames))
}

struct SpyThread {
    id: Option<u64>,
    is_main: bool,
    state: ProcessState,
    holds_gil: Option<bool>,
    frames: Vec<Frame>,
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
fn thread(line: &str) -> Option<SpyThread> {
    let (id, rest) = line.strip_prefix("Thread ")?.split_once(" (")?;
    let (state, name) = rest.split_once(')')?;
    let is_active = state.starts_with("active");
    (is_active || state.starts_with("idle")).then(|| SpyThread {
        id: id.parse().ok(),
        is_main: name.contains("\"MainThread\""),
        state: if is_active {
            ProcessState::Running
        } else {
            ProcessState::Sleeping
        },
        holds_gil: state.contains("gil").then_some(true),
        frames: Vec::new(),
    })
}

/// `    forward (model.py:12)`; frames of C have no line, and are left out.
fn frame(line: &str) -> Option<Frame> {
    let (function, place) = line.strip_prefix("    ")?.trim_end().rsplit_once(" (")?;
    let (file, line) = place.strip_suffix(')')?.rsplit_once(':')?;
    let is_of_package = PACKAGES.iter().any(|it| file.starts_with(it));
    Some(Frame {
        function: function.trim_start().to_owned(),
        file: if is_of_package {
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
        let stack = read(Path::new("rank0.txt"), DUMP).unwrap();
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
        let refused = read(Path::new("all.txt"), &DUMP.repeat(2)).unwrap_err();
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
