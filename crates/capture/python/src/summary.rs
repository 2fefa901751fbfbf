//! The verdict on demand, from the rings of this host.

use model::Source;
use std::path::PathBuf;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use ring::{JobReader, RingDirectory};
use verdict::{Job, Settings};

/// The verdict over the steps that are still in the rings of a job's ranks on this host.
///
/// :param directory: Where rings stand; ``None`` for the default.
/// :param job: The job's id.
/// :returns: The verdict document as JSON.
/// :raises OSError: if the rings cannot be read.
#[pyfunction]
#[pyo3(signature = (*, directory, job))]
#[expect(clippy::needless_pass_by_value, reason = "Python passes values")]
pub(crate) fn job_verdict(
    py: Python<'_>,
    directory: Option<PathBuf>,
    job: String,
) -> PyResult<String> {
    py.detach(|| {
        let root = directory.unwrap_or_else(RingDirectory::default_root);
        let directory = RingDirectory::create(&root, &job)
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        let mut analysis = Job::new(&job, Source::Summary, Settings::default());
        let mut reader = JobReader::new(directory);
        let mut take = |input| analysis.take(input);
        reader.look(&mut take);
        reader.drain(&mut take);
        analysis.finish();
        serde_json::to_string(&analysis.verdict())
            .map_err(|error| PyOSError::new_err(error.to_string()))
    })
}
