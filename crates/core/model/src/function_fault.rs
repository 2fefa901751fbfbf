//! Functions that cost more than they should.

use serde::{Deserialize, Serialize};

use crate::{Cause, FunctionClass, FunctionFaultKind, FunctionNeed, StageId};

/// Callers that say what a function is for.
const NEAR_CALLERS: usize = 3;

/// A dimension of a function's pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dimension {
    /// Share of the critical path.
    Beta,
    /// Utilisation.
    Mu,
    /// Its standard deviation.
    Sigma,
}

/// A function that costs some ranks, or all, more than it should.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionFault {
    /// Its name.
    pub name: String,
    /// What it does.
    pub class: FunctionClass,
    /// What its pattern looks like on these ranks, if it looks alike on all of them.
    pub kind: Option<FunctionFaultKind>,
    /// Its callers, innermost first.
    pub callers: Vec<String>,
    /// The ranks it costs so much; empty if it is all of them.
    pub ranks: Vec<u32>,
    /// Its share of their critical path, the worst rank's.
    pub beta: f64,
    /// The median share of the others.
    pub peers_beta: f64,
    /// Share it costs more than it should.
    pub excess_share: f64,
    /// Seconds of that.
    pub cost_s: f64,
    /// Its mean utilisation there, and on the others that ran it; `None` if it was not measured.
    pub mu: (Option<f64>, Option<f64>),
    /// Likewise its utilisation while it is in use.
    pub rate: (Option<f64>, Option<f64>),
    /// In what it is not as somebody has said that it should be: dimension, value and range.
    pub unexpected: Vec<(Dimension, f64, [f64; 2])>,
    /// Further functions that cost the same ranks more: name and excess.
    pub others: Vec<(String, f64)>,
    /// First and last step of the profile.
    pub steps: (u64, u64),
    /// The how many-th of its job it is; zero until that is known.
    pub number: u64,
}

/// What functions are called that read from storage or a network.
const READS: [&str; 6] = [
    "recv_into",
    "socket",
    "urlopen",
    "readinto",
    "read_bytes",
    "ssl.",
];
/// What functions are called in which the host waits for its device.
// Without its first letter, which is large in CUDA and small in PyTorch.
const WAITS_FOR_DEVICE: [&str; 3] = ["ynchronize", "item of Tensor", ".item"];
/// What the interpreter's collection of garbage is called.
const GARBAGE_COLLECTION: [&str; 3] = ["gc.collect", "garbage", "Python GC"];

/// Whether a function of this name collects garbage, which is work that no step asks for.
pub fn is_garbage_collection(name: &str) -> bool {
    GARBAGE_COLLECTION.iter().any(|word| name.contains(word))
}

impl FunctionFault {
    /// Whether a link of these ranks is to blame.
    pub fn is_of_link(&self) -> bool {
        self.kind.is_some_and(FunctionFaultKind::is_of_link)
    }

    /// What it blames: code of the host, unless it reads from a network or waits for a device; a
    /// device that works at less than others. Why else work of a device takes longer it does not
    /// say.
    pub fn cause(&self) -> Option<Cause> {
        match self.class {
            // Measured counters come before what a name suggests.
            _ if self.kind == Some(FunctionFaultKind::Throttled) => Some(Cause::Gpu),
            FunctionClass::Python | FunctionClass::OtherCpu if self.is_called(&READS) => {
                Some(Cause::Network)
            }
            FunctionClass::Python | FunctionClass::OtherCpu
                // Code that waits for its device is not what is slow.
                if !self.is_called(&WAITS_FOR_DEVICE) =>
            {
                Some(Cause::Code)
            }
            _ => None,
        }
    }

    /// What its kind, or else what the innermost functions are known to do, says to look at.
    pub fn need(&self) -> Option<FunctionNeed> {
        // The first that matches counts: for a loader that reads, storage is the better advice.
        const KNOWN: [(&[&str], FunctionNeed); 5] = [
            (&READS, FunctionNeed::Reads),
            (
                &["DataLoader", "data.next_wait", "dataloader"],
                FunctionNeed::Loader,
            ),
            (&GARBAGE_COLLECTION, FunctionNeed::GarbageCollection),
            (&["sleep"], FunctionNeed::Sleep),
            (&WAITS_FOR_DEVICE, FunctionNeed::DeviceWait),
        ];
        match self.kind {
            Some(FunctionFaultKind::Throttled) => Some(FunctionNeed::GpuHealth),
            Some(FunctionFaultKind::SlowLink | FunctionFaultKind::Detour) => {
                Some(FunctionNeed::Links)
            }
            _ => {
                let known = KNOWN.iter().find(|(words, _)| self.is_called(words));
                known.map(|(_, need)| *need)
            }
        }
    }

    /// The stage that its stack lies in, where a frame tells.
    pub fn stage(&self) -> Option<StageId> {
        const FRAMES: [(&str, StageId); 4] = [
            ("DataLoader", StageId::DATA),
            ("data.next_wait", StageId::DATA),
            ("run_backward", StageId::BACKWARD),
            ("Optimizer.step", StageId::OPTIMIZER),
        ];
        // What it is called from, outermost first: a backward pass may run a forward again.
        let frames = self.callers.iter().rev().chain([&self.name]);
        frames
            .filter_map(|name| FRAMES.iter().find(|(frame, _)| name.contains(frame)))
            .map(|(_, stage)| *stage)
            .next()
    }

    /// The function and its nearest callers, innermost first.
    pub fn near(&self) -> impl Iterator<Item = &str> {
        let callers = self.callers.iter().take(NEAR_CALLERS).map(String::as_str);
        std::iter::once(self.name.as_str()).chain(callers)
    }

    /// Whether it or one of its nearest callers has one of these words in its name.
    fn is_called(&self, words: &[&str]) -> bool {
        self.near()
            .any(|name| words.iter().any(|word| name.contains(word)))
    }
}
