//! What things are called on the bus; docs/formats.md lists it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The stream that batches stand in.
pub(crate) const STREAM: &str = "LAGGARD";
/// All batches: a subject for each job and host.
pub(crate) const BATCHES: &str = "laggard.batches.*.*";
/// Collectors that live, by their address.
pub(crate) const COLLECTORS: &str = "laggard_collectors";
/// Who keeps a job, by its name.
pub(crate) const JOBS: &str = "laggard_jobs";

/// Headers of a batch. An agent session is an epoch there: that is what the first version called it.
pub(crate) const SESSION: &str = "Laggard-Epoch";
pub(crate) const SEQUENCE: &str = "Laggard-Sequence";
pub(crate) const NOW_NS: &str = "Laggard-Now-Ns";

/// Where batches of a job's host are put.
pub(crate) fn batches(job: &str, host: &str) -> String {
    format!("laggard.batches.{}.{}", token(job), token(host))
}

/// Where batches of all hosts of a job are.
pub(crate) fn batches_of(job: &str) -> String {
    format!("laggard.batches.{}.*", token(job))
}

/// Where a job's host hears what is wanted of it.
pub(crate) fn orders(job: &str, host: &str) -> String {
    format!("laggard.orders.{}.{}", token(job), token(host))
}

/// Job and host of a subject that batches are put to.
pub(crate) fn job_and_host(subject: &str) -> Option<(String, String)> {
    let (job, host) = subject.strip_prefix("laggard.batches.")?.split_once('.')?;
    Some((name(job)?, name(host)?))
}

/// Bytes that are escaped in a token: a dot would begin another, and keys take few letters.
const ODD: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// A name as one token of a subject, or as a key: letters, digits, `-` and `_` stand for
/// themselves, every other byte is written as `=XX`.
pub(crate) fn token(name: &str) -> String {
    // `=`, as keys of a bucket may not hold `%`.
    utf8_percent_encode(name, ODD).to_string().replace('%', "=")
}

/// The name behind a token; `None` if no name is written like that.
pub(crate) fn name(written: &str) -> Option<String> {
    let escaped = written.replace('=', "%");
    let name = percent_decode_str(&escaped)
        .decode_utf8()
        .ok()?
        .into_owned();
    // Of all ways to write it only ours is its own.
    (!name.is_empty() && token(&name) == written).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever jobs and hosts are called, no two share a subject, and none leaves its token.
        #[test]
        fn names_come_back_from_their_subject(job in ".{1,40}", host in "\\PC{1,40}") {
            let subject = batches(&job, &host);
            prop_assert_eq!(subject.split('.').count(), 4);
            prop_assert!(!subject.contains(['*', '>', ' ']));
            prop_assert_eq!(job_and_host(&subject), Some((job, host)));
        }

        /// What others write there is a name written our way, or none.
        #[test]
        fn a_token_that_is_no_name_is_none(written in ".{0,40}") {
            if let Some(name) = name(&written) {
                prop_assert_eq!(token(&name), written);
            }
        }
    }
}
