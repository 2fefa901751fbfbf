//! From findings about windows to incidents a person can act on.
//!
//! [`find_faults`] looks at one accounted window: which ranks did more work of their own
//! than their peers, in which stage, in which steps, and what would be gained by fixing
//! it. [`Tracker`] follows the faults from window to window.
//!
//! [`hang()`], [`late`] and [`slowed`] say what was found in collectives, [`death()`] what was
//! seen of a process, [`function()`] what was found in profiles, [`cores`] and
//! [`devices`] what hosts say of processes and hardware, [`what_if()`] what holds a pipeline back,
//! [`pipeline_slowed`] and [`pipeline_halted`] what calls of NCCL say of one. Findings of
//! several of them about one cause are put together by the crate `diagnosis`.
//!
//! Pure: the same windows give the same incidents, byte for byte.
//!
//! # Example
//! A fault that costs less than 5 % of the exposed time is no incident; from 30 % on it is
//! critical:
//! ```
//! use laggard_incident::IncidentSettings;
//!
//! let settings = IncidentSettings::default();
//! assert_eq!(settings.steady_share_min, 0.05);
//! assert_eq!(settings.critical_share, 0.30);
//! ```

mod across;
mod alike;
mod arrival;
mod behind;
mod blocks;
mod cause;
mod connection;
mod costs;
mod death;
mod device;
mod fault;
mod function;
mod hang;
mod host;
mod lateness;
mod onset;
mod pace;
mod pause;
mod pipeline;
mod queued;
mod read_backs;
mod settings;
mod sides;
mod straggler;
mod struck;
#[cfg(test)]
mod testkit;
mod tracker;
mod vouch;
mod what_if;

pub use across::{AcrossRoles, id_in_start};
pub use arrival::{late, slowed};
pub use blocks::{Looked, SlowBlocks, absorbed, halted, own_blocks};
pub use connection::link_slowed;
pub use death::{death, failures};
pub use device::{devices, gpus_in_standstill};
pub use fault::{Fault, FaultKind, Hidden, LateShare, Turns, find_faults};
pub use function::function;
pub use hang::{folded, hang};
pub use host::{cores, cpu_quota, too_few_cores, without_core};
pub use pipeline::{pipeline_absorbed, pipeline_halted, pipeline_slowed};
pub use settings::IncidentSettings;
pub use sides::{DeviceAccount, Devices};
pub use straggler::straggler;
pub use tracker::Tracker;
pub use what_if::what_if;
