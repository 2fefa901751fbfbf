use model::{FunctionClass, FunctionId};

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
pub struct FunctionCall {
    /// When it starts.
    pub start_ns: i64,
    /// When it ends.
    pub end_ns: i64,
    /// Which function.
    pub function: FunctionId,
    /// What kind of work it does.
    pub class: FunctionClass,
}
