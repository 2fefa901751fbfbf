use std::io::BufRead;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use model::{SCHEMA, Verdict};

use crate::open::{open, open_bytes};
use crate::recording::{begins_with, parse};
use crate::{FormatError, Limits};

/// Keys of a verdict: what it is says so at its beginning.
const KEYS: [&str; 1] = ["\"laggard.verdict"];

/// Reads a verdict document, plain or packed; `None` if the file is something else.
///
/// # Errors
/// [`FormatError::Io`], [`FormatError::TooLarge`]; [`FormatError::Json`] and
/// [`FormatError::Content`] for a verdict that is damaged or of another version.
pub fn load_verdict(path: &Path, limits: Limits) -> Result<Option<Verdict>, FormatError> {
    let unwatched = AtomicU64::new(0);
    let mut reader = open(path, limits, &unwatched)?;
    // By the name without its version: a verdict of another version is refused as one, and not
    // taken for something else.
    if !begins_with(&mut reader, &KEYS) {
        return Ok(None);
    }
    read(path, reader, limits).map(Some)
}

/// The same from memory; `name` stands for the file in errors.
///
/// # Errors
/// As [`load_verdict`].
pub fn parse_verdict(name: &str, bytes: &[u8], limits: Limits) -> Result<Verdict, FormatError> {
    let path = Path::new(name);
    let reader = open_bytes(bytes, limits).map_err(|source| FormatError::Io {
        path: path.to_owned(),
        source,
    })?;
    read(path, reader, limits)
}

fn read(path: &Path, reader: impl BufRead, limits: Limits) -> Result<Verdict, FormatError> {
    let verdict: Verdict = parse(path, reader, limits)?;
    if verdict.schema == SCHEMA {
        return Ok(verdict);
    }
    let reason = format!("{:?} is not {SCHEMA:?}", verdict.schema);
    Err(FormatError::Content {
        path: path.to_owned(),
        place: "schema".into(),
        reason,
    })
}
