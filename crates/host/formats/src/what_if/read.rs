use std::fmt;
use std::path::{Path, PathBuf};

use whatif::{Findings, JobLayout, OpKind, PipelineTrace, Row, analyse};

use super::parquet::{Contents, Stopped};
use crate::{FormatError, Limits};

/// Rows read at most, about 2 GB: a few bytes of Parquet can say "the same, a billion times".
const MAX_ROWS: u64 = 1 << 25;

/// A value of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Whole(i64),
    Float(f64),
    Text(&'a [u8]),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => write!(formatter, "{value}"),
            Self::Float(value) => write!(formatter, "{value}"),
            Self::Text(text) => write!(formatter, "{:?}", String::from_utf8_lossy(text)),
        }
    }
}

/// A column: its name, what stands in it, and how that is put into a row.
type RowColumn = (
    &'static str,
    &'static str,
    fn(&mut Row, Value<'_>) -> Option<()>,
);

const NUMBER: &str = "a whole number from 0";
const MAYBE: &str = "a whole number from -1";
const SECONDS: &str = "seconds as a float";

const COLUMNS: [RowColumn; 11] = [
    ("dp_rank", NUMBER, |row, value| {
        set(&mut row.dp_rank, number(value))
    }),
    ("stage", NUMBER, |row, value| {
        set(&mut row.stage, number(value))
    }),
    ("rank", NUMBER, |row, value| {
        set(&mut row.rank, number(value))
    }),
    ("step", NUMBER, |row, value| {
        set(&mut row.step, number(value))
    }),
    ("optype", "the name of an operation", |row, value| {
        set(&mut row.kind, kind(value))
    }),
    ("start_ts", SECONDS, |row, value| {
        set(&mut row.start_s, seconds(value))
    }),
    ("duration", SECONDS, |row, value| {
        set(&mut row.duration_s, seconds(value))
    }),
    ("seq_id", NUMBER, |row, value| {
        set(&mut row.number, number(value))
    }),
    ("mc", MAYBE, |row, value| set(&mut row.chunk, maybe(value))),
    ("mb_id", MAYBE, |row, value| {
        set(&mut row.microbatch, maybe(value))
    }),
    ("gmc", MAYBE, |row, value| {
        set(&mut row.global_chunk, maybe(value))
    }),
];

fn set<T>(slot: &mut T, value: Option<T>) -> Option<()> {
    *slot = value?;
    Some(())
}

fn number<T: TryFrom<i64>>(value: Value<'_>) -> Option<T> {
    let Value::Whole(value) = value else {
        return None;
    };
    T::try_from(value).ok()
}

fn maybe(value: Value<'_>) -> Option<i32> {
    number(value).filter(|number| *number >= -1)
}

fn seconds(value: Value<'_>) -> Option<f64> {
    let Value::Float(value) = value else {
        return None;
    };
    Some(value)
}

fn kind(value: Value<'_>) -> Option<OpKind> {
    let Value::Text(name) = value else {
        return None;
    };
    OpKind::from_name(name)
}

/// Adds two times in their own precision. Transfers are differences of such sums, and the
/// published numbers were computed from sums in f32.
fn sum(left: f64, right: f64) -> f64 {
    if [left, right]
        .iter()
        .all(|value| f64::from(*value as f32) == *value)
    {
        f64::from(left as f32 + right as f32)
    } else {
        left + right
    }
}

/// Reads the rows of a trace from the bytes of its Parquet file.
///
/// # Errors
/// [`FormatError::Content`] with the column and row that are wrong,
/// [`FormatError::TooLarge`].
pub fn read_rows(path: &Path, bytes: &[u8], limits: Limits) -> Result<Vec<Row>, FormatError> {
    RowReader { path, limits }.rows(bytes)
}

/// Reads a trace and analyses it.
///
/// # Errors
/// As [`read_rows`]; rows that make no sense as [`FormatError::Content`].
pub fn read_what_if(
    path: &Path,
    bytes: &[u8],
    layout: JobLayout,
    limits: Limits,
) -> Result<Findings, FormatError> {
    let rows = read_rows(path, bytes, limits)?;
    let trace = PipelineTrace::new(layout, &rows);
    // They may be gigabytes, and the analysis does not need them.
    drop(rows);
    trace
        .and_then(|trace| analyse(&trace))
        .map_err(|error| FormatError::content(path, error.place, error.reason))
}

/// Reads the layout of a job from YAML.
///
/// # Errors
/// [`FormatError::Content`] with the line that is wrong.
pub fn read_layout(path: &Path, text: &str) -> Result<JobLayout, FormatError> {
    yaml_serde::from_str(text).map_err(|error| {
        let place = error
            .location()
            .map_or("its beginning".to_owned(), |place| {
                format!("line {}, column {}", place.line(), place.column())
            });
        FormatError::content(path, place, error.to_string())
    })
}

/// The metadata of a trace, if it lies beside it: for `trace-A.parquet` that is
/// `trace-A.yaml`, `meta-A.yaml` or `meta.yaml`.
pub(crate) fn layout_beside(path: &Path) -> Result<PathBuf, FormatError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Not the extension: the trace may be packed, as `trace-A.parquet.zst` is.
    let stem = name.split(".parquet").next().unwrap_or_default();
    let stems = [
        stem.to_owned(),
        stem.replacen("trace", "meta", 1),
        "meta".to_owned(),
    ];
    let mut names: Vec<String> = stems.iter().map(|stem| format!("{stem}.yaml")).collect();
    // Without "trace" in its name the second is the first.
    names.dedup();
    names
        .iter()
        .map(|name| path.with_file_name(name))
        .find(|path| path.is_file())
        .ok_or_else(|| FormatError::NoLayout {
            path: path.to_owned(),
            names: names.join(", "),
        })
}

struct RowReader<'a> {
    path: &'a Path,
    limits: Limits,
}

impl RowReader<'_> {
    fn damaged(&self, place: impl Into<String>, reason: &str) -> FormatError {
        let (path, place, reason) = (self.path.to_owned(), place.into(), reason.to_owned());
        FormatError::Damaged {
            path,
            place,
            reason,
        }
    }

    fn rows(&self, bytes: &[u8]) -> Result<Vec<Row>, FormatError> {
        let file =
            Contents::new(bytes).map_err(|refused| self.damaged("the end of the file", refused))?;
        let mut rows = Vec::new();
        for group in 0..file.groups() {
            let first = rows.len();
            for (name, wanted, put) in COLUMNS {
                let mut row = first;
                file.values(group, name, &mut |value| {
                    // Columns come one after the other: the first makes the rows, the others
                    // fill them.
                    if name == COLUMNS[0].0 {
                        self.begin_row(&mut rows)?;
                    }
                    let is_put = rows.get_mut(row).and_then(|row| put(row, value));
                    row += 1;
                    is_put.ok_or_else(|| {
                        let place = format!("column {name}, row {}", row - 1);
                        let reason = format!("{value} is not {wanted}");
                        FormatError::content(self.path, place, reason)
                    })
                })
                .map_err(|stopped| self.stopped(&file, name, stopped))?;
                if row != rows.len() {
                    let place = format!("column {name}");
                    let reason = format!("it has {row} rows, others have {}", rows.len());
                    return Err(FormatError::content(self.path, place, reason));
                }
            }
        }
        for row in &mut rows {
            row.end_s = sum(row.start_s, row.duration_s);
        }
        Ok(rows)
    }

    fn begin_row(&self, rows: &mut Vec<Row>) -> Result<(), FormatError> {
        let limit_bytes = self
            .limits
            .unpacked_bytes
            .min(MAX_ROWS * size_of::<Row>() as u64);
        if (rows.len() as u64 + 1) * size_of::<Row>() as u64 > limit_bytes {
            return Err(FormatError::TooLarge {
                path: self.path.to_owned(),
                limit_bytes,
            });
        }
        // Values that the other columns replace: without one of them the file is refused.
        rows.push(Row {
            dp_rank: 0,
            stage: 0,
            rank: 0,
            step: 0,
            kind: OpKind::Gc,
            start_s: 0.0,
            duration_s: 0.0,
            end_s: 0.0,
            number: 0,
            chunk: -1,
            microbatch: -1,
            global_chunk: -1,
        });
        Ok(())
    }

    fn stopped(
        &self,
        file: &Contents<'_>,
        name: &str,
        stopped: Stopped<FormatError>,
    ) -> FormatError {
        let place = format!("column {name}");
        match stopped {
            Stopped::Refused(error) => error,
            Stopped::Damaged(refused) => self.damaged(place, refused),
            Stopped::Missing => {
                let names = file.names().join(", ");
                let reason = format!("it is missing; single values are in {names}");
                FormatError::content(self.path, place, reason)
            }
        }
    }
}
