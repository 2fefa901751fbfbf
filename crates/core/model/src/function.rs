use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What kind of work a function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FunctionClass {
    /// A kernel that computes.
    GpuCompute,
    /// An operator that computes on the host, in a job without devices.
    CpuCompute,
    /// A copy or a fill of device memory.
    Memory,
    /// A collective operation.
    Collective,
    /// A Python function of the training thread.
    Python,
    /// Anything else on the training thread.
    OtherCpu,
}

impl FunctionClass {
    /// All classes.
    pub const ALL: [Self; 6] = [
        Self::GpuCompute,
        Self::CpuCompute,
        Self::Memory,
        Self::Collective,
        Self::Python,
        Self::OtherCpu,
    ];

    /// Its place on the critical path: work of a lower number hides work of a higher one.
    ///
    /// # Source
    /// PerfTracker; the host's operators take the kernels' place where there is no device.
    pub fn priority(self) -> usize {
        match self {
            Self::GpuCompute | Self::CpuCompute => 0,
            Self::Memory => 1,
            Self::Collective => 2,
            Self::Python | Self::OtherCpu => 3,
        }
    }

    /// Whether it runs on the device.
    pub fn is_of_device(self) -> bool {
        matches!(self, Self::GpuCompute | Self::Memory | Self::Collective)
    }

    /// The class as it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::GpuCompute => "gpu_compute",
            Self::CpuCompute => "cpu_compute",
            Self::Memory => "memory",
            Self::Collective => "collective",
            Self::Python => "python",
            Self::OtherCpu => "other_cpu",
        }
    }
}

/// A function, on every worker the same: a hash of its class, its name and its callers. In text
/// 16 hexadecimal digits, which stand in any place of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
// A string is a valid key in JSON, and JavaScript rounds numbers above 2^53.
pub struct FunctionId(pub u64);

impl From<FunctionId> for String {
    fn from(id: FunctionId) -> Self {
        format!("{:016x}", id.0)
    }
}

impl TryFrom<String> for FunctionId {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u64::from_str_radix(&text, 16).map(Self)
    }
}

/// What stands behind a [`FunctionId`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// What kind of work it does.
    pub class: FunctionClass,
    /// Its name.
    pub name: String,
    /// Its caller, if its call stack was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<FunctionId>,
}

/// Functions by id. Workers' dictionaries merge by union.
///
/// # Invariants
/// A function's caller is in the dictionary; callers never form a circle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Dictionary {
    functions: BTreeMap<FunctionId, Function>,
}

impl Dictionary {
    /// Gives a function its id, and keeps what stands behind it.
    pub fn intern(
        &mut self,
        class: FunctionClass,
        name: &str,
        caller: Option<FunctionId>,
    ) -> FunctionId {
        let id = id_of(class, name, caller);
        self.functions.entry(id).or_insert_with(|| Function {
            class,
            name: name.to_owned(),
            caller,
        });
        id
    }

    /// What stands behind an id.
    pub fn get(&self, id: FunctionId) -> Option<&Function> {
        self.functions.get(&id)
    }

    /// The function and its callers, innermost first.
    pub fn stack(&self, id: FunctionId) -> impl Iterator<Item = &Function> {
        self.stack_with_ids(id).map(|(_, function)| function)
    }

    /// The same, with their ids.
    pub fn stack_with_ids(&self, id: FunctionId) -> impl Iterator<Item = (FunctionId, &Function)> {
        std::iter::successors(self.with_id(id), move |(_, function)| {
            self.with_id(function.caller?)
        })
    }

    fn with_id(&self, id: FunctionId) -> Option<(FunctionId, &Function)> {
        Some((id, self.functions.get(&id)?))
    }

    /// Adds what another worker knows.
    pub fn merge(&mut self, other: &Self) {
        for (id, function) in &other.functions {
            self.functions
                .entry(*id)
                // Equal ids come from equal content, so it does not matter whose is kept.
                .or_insert_with(|| function.clone());
        }
    }

    /// Only these functions and their callers.
    #[must_use]
    pub fn only(&self, ids: impl IntoIterator<Item = FunctionId>) -> Self {
        let mut functions = BTreeMap::new();
        for id in ids {
            let mut next = Some(id);
            // Where one is in, so are its callers.
            while let Some(id) = next.filter(|id| !functions.contains_key(id)) {
                let Some(function) = self.functions.get(&id) else {
                    break;
                };
                functions.insert(id, function.clone());
                next = function.caller;
            }
        }
        Self { functions }
    }
}

/// How one function behaves on one worker.
///
/// # Invariants
/// beta, mu and sigma lie in 0 to 1 (PT-P2); mu and sigma are 0 where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pattern {
    /// Share of the time it is critical.
    pub beta: f32,
    /// Mean utilisation of its resource while it does its work.
    pub mu: f32,
    /// Standard deviation of that.
    pub sigma: f32,
    /// Executions.
    pub events: u32,
    /// Executions whose resource was measured.
    pub measured: u32,
}

impl Pattern {
    /// Beta, mu and sigma.
    pub fn values(&self) -> [f32; 3] {
        [self.beta, self.mu, self.sigma]
    }

    /// Whether mu and sigma say anything; if not, the worker had no counters for it.
    pub fn is_measured(&self) -> bool {
        self.measured > 0
    }
}

/// What travels of one worker's profile instead of its trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerPatterns {
    /// The worker.
    pub worker: u32,
    /// A pattern for each of its costliest functions.
    pub patterns: BTreeMap<FunctionId, Pattern>,
    /// What stands behind their ids; empty if the reader knows them.
    pub functions: Dictionary,
}

/// FNV-1a over class, caller and name: stable over workers and versions, no secret needed.
fn id_of(class: FunctionClass, name: &str, caller: Option<FunctionId>) -> FunctionId {
    let caller = caller.map_or(0, |caller| caller.0);
    // Ids are compared between workers and recordings: neither order nor numbers may change.
    let bytes = [class as u8]
        .into_iter()
        .chain(caller.to_le_bytes())
        .chain(name.bytes());
    FunctionId(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Input, ProfileWindow};

    #[test]
    fn the_same_stack_has_the_same_id_on_every_worker() {
        let (mut one, mut other) = (Dictionary::default(), Dictionary::default());
        let python = FunctionClass::Python;
        let read = |dictionary: &mut Dictionary| {
            let caller = dictionary.intern(python, "read_shard", None);
            dictionary.intern(python, "recv_into", Some(caller))
        };
        other.intern(python, "something first", None);
        let id = read(&mut one);
        assert_eq!(read(&mut other), id);
        assert_ne!(one.intern(python, "recv_into", None), id);
        let stack: Vec<_> = other.stack(id).map(|f| f.name.as_str()).collect();
        assert_eq!(stack, ["recv_into", "read_shard"]);
        one.merge(&other);
        assert_eq!(one.only([id]).stack(id).count(), 2);
    }

    #[test]
    fn a_profile_window_survives_its_recording() {
        let mut patterns = WorkerPatterns {
            worker: 3,
            ..WorkerPatterns::default()
        };
        let caller = patterns
            .functions
            .intern(FunctionClass::Python, "train", None);
        let id = patterns
            .functions
            .intern(FunctionClass::CpuCompute, "mm", Some(caller));
        patterns.patterns.insert(
            id,
            Pattern {
                beta: 0.25,
                ..Pattern::default()
            },
        );
        let window = Box::new(ProfileWindow {
            patterns,
            ..ProfileWindow::default()
        });
        let reported = Input::Profiled { rank: 3, window };
        let text = serde_json::to_string(&reported).unwrap();
        assert_eq!(
            serde_json::from_str::<Input>(&text).unwrap(),
            reported,
            "{text}"
        );
    }
}
