//! The probe inside the training process.
//!
//! Everything on the path of a training step is here and ends in one write to the ring;
//! `python/laggard` only decides where to hook in. No call of this module waits, prints or
//! raises into user code: a fault is counted, and the probe switches itself off.
#![expect(
    unsafe_code,
    reason = "fork handler, state owned by one thread, a method of C"
)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod calls;
mod contexts;
mod cuda;
mod device;
mod errors;
mod hooks;
mod probe;
mod profile;
mod read_backs;
mod summary;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::calls::CallRecorder;
    #[pymodule_export]
    use crate::contexts::{SideChannel, Stage, Step, side_channel, stage, step};
    #[pymodule_export]
    use crate::device::set_accelerator;
    #[pymodule_export]
    use crate::hooks::{
        CollectiveHook, EngineProxy, OptimizerHook, block, hook_next, init, issued_on_device, mark,
        records_device, side_lost, side_sample,
    };
    #[pymodule_export]
    use crate::probe::{
        activate, close, current_step, group, group_number, is_active, keep, note, ring_path,
        set_closed, set_role,
    };
    #[pymodule_export]
    use crate::profile::set_recorder;
    #[pymodule_export]
    use crate::read_backs::{begin_read_back, end_read_back, hook_read_backs};
    #[pymodule_export]
    use crate::summary::job_verdict;
}
