//! What ranks did in the steps around an incident, read again from what is kept.

use std::fs::File;
use std::io::{self, BufReader};

use formats::{IncidentTrace, StoredError, StoredJob};
use model::Verdict;

use crate::collector::Inner;
use crate::store;

/// How long before an incident is said to have begun the steps before it may have been.
const BEFORE_S: f64 = 120.0;

/// The trace of an incident of a job; `None` if the verdict has no such incident.
pub(crate) fn trace(
    inner: &Inner,
    verdict: &Verdict,
    incident: &str,
) -> Option<io::Result<Vec<u8>>> {
    let mut moment = IncidentTrace::of(verdict, incident)?;
    let job = &verdict.job.id;
    let begun_s = inner
        .catalogue
        .as_ref()
        .and_then(|it| it.begun_s(job, incident).ok());
    // Batches come after what they tell of.
    let from_s = begun_s
        .flatten()
        .map_or(0, |begun_s| (begun_s - BEFORE_S) as u64);
    let file = File::open(store::batches(&inner.options.data, job));
    let taken = file.and_then(|file| take_all(file, from_s, &mut moment).map_err(io::Error::other));
    Some(taken.and_then(|()| {
        let mut trace = Vec::new();
        moment.write(&mut trace)?;
        Ok(trace)
    }))
}

fn take_all(file: File, from_s: u64, moment: &mut IncidentTrace) -> Result<(), StoredError> {
    let reader = BufReader::with_capacity(1 << 16, file);
    let (mut stored, _) = StoredJob::open(reader)?;
    while !moment.is_whole() {
        let batch = match stored.next_with(|head| head.at_s >= from_s) {
            Ok(Some((_, batch))) => batch,
            // The last entry is being written.
            Ok(None) | Err(StoredError::Torn) => break,
            Err(error) => return Err(error),
        };
        let Some(batch) = batch else { continue };
        batch
            .inputs
            .iter()
            .for_each(|input| moment.take(input, batch.shift_ns));
    }
    Ok(())
}
