use serde::{Deserialize, Serialize};

use crate::FunctionId;

/// What kind of work a function does.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
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

/// What a function uses while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Multiprocessors of the device.
    Sm,
    /// Memory of the device.
    Dram,
    /// The host's bus.
    Pcie,
    /// Links between devices of a host.
    NvLink,
    /// Links between hosts.
    Network,
    /// Cores of the host.
    Cpu,
}

/// One execution of a function.
///
/// # Units
/// Nanoseconds of the worker's own clock: patterns do not change if it is set differently
/// (PT-P3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it starts.
    pub start_ns: i64,
    /// When it ends.
    pub end_ns: i64,
    /// Which function.
    pub function: FunctionId,
    /// What kind of work it does.
    pub class: FunctionClass,
}
