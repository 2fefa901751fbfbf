use serde::{Deserialize, Serialize};

/// What a process does, as its operating system says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It runs, or could.
    Running,
    /// It waits for something.
    Sleeping,
    /// It waits for a device or file system and cannot be interrupted.
    Uninterruptible,
    /// Somebody stopped it.
    Stopped,
    /// It has ended.
    Ended,
    /// Nothing could be learned of it.
    Unknown,
}

/// Where the main thread of a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// What its process does.
    pub state: ProcessState,
    /// Whether it holds the interpreter's lock (GIL), without which no other thread of its process
    /// runs Python; `None` if nobody could look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds_gil: Option<bool>,
    /// Python frames, innermost first; empty if they could not be read.
    pub frames: Vec<Frame>,
    /// Why they could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
    /// The function of the kernel it waits in; asked for only where frames could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_in: Option<String>,
    /// Processes that it has started and that were stopped or have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<Worker>,
}

/// A process that a rank has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its number on its host.
    pub pid: u32,
    /// What it does.
    pub state: ProcessState,
}

impl Stack {
    /// A stack that was read.
    pub fn new(state: ProcessState, holds_gil: Option<bool>, frames: Vec<Frame>) -> Self {
        Self {
            state,
            holds_gil,
            frames,
            unread: None,
            waits_in: None,
            workers: Vec::new(),
        }
    }

    /// Whether it is in PyTorch's part of a collective, or in making a group.
    pub fn is_in_collective(&self) -> bool {
        self.frames.iter().any(Frame::is_for_other_ranks)
    }

    /// Whether its innermost call is one of PyTorch for other ranks: a collective, a send or a receive.
    pub fn calls_other_ranks(&self) -> bool {
        self.frames.first().is_some_and(Frame::is_for_other_ranks)
    }

    /// Whether its host waits for its device, in a call of PyTorch that nothing but that makes long.
    pub fn waits_for_device(&self) -> bool {
        self.frames.first().is_some_and(|frame| {
            let is_read_back = frame.is_laggards() && frame.file.ends_with("/_device.py");
            is_read_back || frame.function == "synchronize" && frame.file.contains("/torch/")
        })
    }

    /// Whether it certainly waits for no other rank: it was stopped, or it is in a library that knows of
    /// none. What is below a line of the script itself may be anything.
    pub fn is_elsewhere(&self) -> bool {
        let in_library = |frame: &Frame| {
            let is_any = ["/torch/", "/laggard/", "<"]
                .iter()
                .any(|place| frame.file.contains(place));
            !frame.is_own() && !is_any
        };
        self.state == ProcessState::Stopped || self.frames.first().is_some_and(in_library)
    }
}

/// One Python function call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The function.
    pub function: String,
    /// The file, as the interpreter knows it.
    pub file: String,
    /// The line in it.
    pub line: i32,
}

impl Frame {
    /// Whether it is code of the job itself rather than of an installed package, of Python, or
    /// of laggard, which need not be installed.
    pub fn is_own(&self) -> bool {
        const OTHERS: [&str; 5] = [
            "/site-packages/",
            "/dist-packages/",
            "/lib/python",
            // Code without a file: that of imports, and what libraries generate.
            "<frozen",
            "<string>",
        ];
        !self.is_laggards() && !OTHERS.iter().any(|place| self.file.contains(place))
    }

    /// Whether it is in PyTorch's part of a collective, a send or a receive, or in making a group. What waits
    /// below it is C++, of which there are no frames.
    fn is_for_other_ranks(&self) -> bool {
        self.file.contains("torch/distributed/")
    }

    /// Whether it is laggard's own, around a function that it watches: all but the demo, which is a job.
    pub fn is_laggards(&self) -> bool {
        self.file.contains("/laggard/_")
    }

    /// The frame for reading: `read_shard (dataset.py:77)`.
    pub fn text(&self) -> String {
        let file = self.file.rsplit('/').next().unwrap_or_default();
        format!("{} ({file}:{})", self.function, self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_laggard_only_the_demo_is_code_of_the_job() {
        let is_own = |file: &str| {
            let frame = Frame {
                function: "step".to_owned(),
                file: file.to_owned(),
                line: 1,
            };
            frame.is_own()
        };
        let files = [
            "_attach",
            "_device",
            "_events",
            "_megatron",
            "_profile",
            "__init__",
        ];
        for file in files.map(|name| format!("/src/python/laggard/{name}.py")) {
            assert!(!is_own(&file), "{file}");
        }
        assert!(is_own("/src/python/laggard/demo/train.py") && is_own("/home/me/train.py"));
    }

    #[test]
    fn the_innermost_call_says_what_a_rank_waits_for() {
        let stack = |function: &str, file: &str| {
            let frame = |function: &str, file: &str| Frame {
                function: function.to_owned(),
                file: file.to_owned(),
                line: 1,
            };
            let script = frame("main", "/home/me/train.py");
            Stack::new(
                ProcessState::Sleeping,
                Some(false),
                vec![frame(function, file), script],
            )
        };
        let says = |stack: &Stack| {
            [
                stack.calls_other_ranks(),
                stack.waits_for_device(),
                stack.is_elsewhere(),
            ]
        };
        let packages = "/usr/lib/python3.11/site-packages";
        let recv = stack("recv", &format!("{packages}/torch/distributed/c10d.py"));
        assert_eq!(says(&recv), [true, false, false]);
        for (function, file) in [
            ("waiting", "laggard/_device.py"),
            ("synchronize", "torch/cuda/__init__.py"),
        ] {
            let device = stack(function, &format!("{packages}/{file}"));
            assert_eq!(says(&device), [false, true, false]);
        }
        let lock = stack("wait", "/usr/lib/python3.11/threading.py");
        assert_eq!(says(&lock), [false, false, true]);
        // Below a line of the script there may be anything, as in a backward pass.
        let script = stack("step", "/home/me/model.py");
        let backward = stack("backward", &format!("{packages}/torch/autograd/graph.py"));
        for unknown in [script, backward] {
            assert_eq!(says(&unknown), [false; 3]);
        }
    }
}
