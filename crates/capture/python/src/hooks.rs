//! What `python/laggard` hooks into PyTorch.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use model::{CollectiveOp, MarkKind};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use ring::NameKind;

use crate::probe::{is_active, with_probe};

/// Takes note of something the loop did; ``kind`` is a number of ``MarkKind``.
#[pyfunction]
pub(crate) fn mark(kind: u8) {
    let Some(kind) = MarkKind::from_number(kind).filter(|kind| kind.is_hook()) else {
        return;
    };
    with_probe(|probe| probe.hook(kind));
}

/// Takes note of a measurement on the device.
#[pyfunction]
pub(crate) fn side_sample(name: &str, seconds: f64) {
    with_probe(|probe| {
        let code = probe.name_once(NameKind::Stage, name);
        probe.side(MarkKind::SideSample, code, (seconds * 1e9) as u64);
    });
}

/// Takes note of a device event that never became ready.
#[pyfunction]
pub(crate) fn side_lost(name: &str) {
    with_probe(|probe| {
        let code = probe.name_once(NameKind::Stage, name);
        probe.side(MarkKind::SideLost, code, 0);
    });
}

/// A global optimizer hook.
#[pyclass(frozen, module = "laggard")]
#[derive(Debug)]
pub(crate) struct OptimizerHook {
    kind: MarkKind,
    become_rank: Option<Py<PyAny>>,
}

#[pymethods]
impl OptimizerHook {
    /// :param become_rank: Called while the process is no rank: an optimizer runs in it, so
    ///     it may be one.
    #[new]
    #[pyo3(signature = (kind, become_rank = None))]
    fn new(kind: u8, become_rank: Option<Py<PyAny>>) -> Self {
        let begin = kind == MarkKind::OptimizerBegin as u8;
        let kind = if begin { MarkKind::OptimizerBegin } else { MarkKind::OptimizerEnd };
        Self { kind, become_rank }
    }

    #[expect(unused_variables, reason = "PyTorch passes optimizer, args and kwargs")]
    fn __call__(
        &self,
        optimizer: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
    ) {
        if let Some(become_rank) = &self.become_rank
            && !is_active()
        {
            // It reports its own faults and must not stop the optimizer.
            drop(become_rank.call0(optimizer.py()));
        }
        with_probe(|probe| probe.hook(self.kind));
    }
}

/// A pre-hook of a process group: called as each collective is issued.
#[pyclass(frozen, module = "laggard")]
#[derive(Debug)]
pub(crate) struct CollectiveHook {
    group: u32,
    /// Collectives of the whole group that were issued so far: all members count alike.
    issued: AtomicU64,
}

#[pymethods]
impl CollectiveHook {
    /// :param group: The same number on all members of the group, another for any other.
    #[new]
    fn new(group: u32) -> Self {
        Self { group, issued: AtomicU64::new(0) }
    }

    fn __call__(&self, args: &Bound<'_, PyAny>) {
        with_probe(|probe| {
            let py = args.py();
            let op =
                args.getattr(intern!(py, "name")).and_then(|name| name.extract::<u16>());
            let op_id =
                args.getattr(intern!(py, "op_id")).and_then(|id| id.extract::<u64>());
            // An unknown kind of arguments still says when a collective was issued.
            let op = op.unwrap_or(CollectiveOp::UNKNOWN.0);
            let number = if CollectiveOp(op).is_point_to_point() {
                0
            } else {
                self.issued.fetch_add(1, Relaxed) + 1
            };
            probe.collective(op, self.group, op_id.unwrap_or(0), number);
        });
    }
}
