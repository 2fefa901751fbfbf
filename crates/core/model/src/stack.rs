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
        self.frames
            .iter()
            // What waits below it is C++, of which there are no frames here.
            .any(|frame| frame.file.contains("torch/distributed/"))
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
        const OTHERS: [&str; 6] = [
            "/site-packages/",
            "/dist-packages/",
            "/lib/python",
            // Code without a file: that of imports, and what libraries generate.
            "<frozen",
            "<string>",
            // All but the demo, which is a job.
            "/laggard/_",
        ];
        !OTHERS.iter().any(|place| self.file.contains(place))
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
}
