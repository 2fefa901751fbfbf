//! MegaTrace's telemetry of work requests: CSV, a pair of files for each port of a network card.

mod write;

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

use collective::Returned;
use model::ConnectionEnds;

use crate::recording::io_error;
use crate::{FormatError, Limits};

pub use write::write_work_requests;

/// The first line.
pub(crate) const HEADER: &str = "Time,Group,FromRank,ToRank,DevIndex,Func,FuncTimes,SrcIP,\
    DstIP,Bandwidth,SendWrCounter,RemainWrDataSize,Timestamp";

/// Bytes a second of one unit of bandwidth: the writer takes 0.93 of its bits in a nanosecond, for
/// Gibit/s, and drops what is behind the point.
const UNIT_BYTES_PER_S: f64 = 1e9 / 8.0 / 0.93;

/// What one file tells: connections, and the requests that came back.
pub(crate) type RequestLog = BTreeMap<ConnectionEnds, Vec<Returned>>;

/// Reads a file; one that is being written may end within a line.
pub(crate) fn read(
    path: &Path,
    reader: impl BufRead,
    limits: Limits,
) -> Result<RequestLog, FormatError> {
    let port = port(path);
    let mut log = RequestLog::new();
    // The first line is the header that the file was known by.
    let mut lines = reader.split(b'\n').zip(1u64..).skip(1).peekable();
    while let Some((line, number)) = lines.next() {
        let line = line.map_err(|error| io_error(path, error, limits))?;
        let text = String::from_utf8_lossy(line.trim_ascii());
        if text.is_empty() {
            continue;
        }
        match row(&text, &port) {
            Ok((ends, returned)) => log.entry(ends).or_default().push(returned),
            // It is being written.
            Err(_) if lines.peek().is_none() => break,
            Err((column, reason)) => {
                return Err(FormatError::Content {
                    path: path.to_owned(),
                    place: format!("line {number}, {column}"),
                    reason,
                });
            }
        }
    }
    Ok(log)
}

/// A column, and why it is wrong.
type BadColumn = (&'static str, String);

/// One line, or the column that is wrong and why.
fn row(text: &str, port: &str) -> Result<(ConnectionEnds, Returned), BadColumn> {
    let names: Vec<&'static str> = HEADER.split(',').collect();
    let values: Vec<&str> = text.split(',').map(str::trim).collect();
    if values.len() != names.len() {
        let reason = format!("{} values instead of {}", values.len(), names.len());
        return Err(("its end", reason));
    }
    // As many as the header has columns, so the indices below are in bounds.
    let cells: Vec<(&'static str, &str)> = names.into_iter().zip(values).collect();
    let bandwidth = number(cells[9])? as f64;
    let ends = ConnectionEnds {
        communicator: number(cells[1])?,
        from: rank(cells[2])?,
        to: rank(cells[3])?,
        port: match number(cells[4])? {
            0 => port.to_owned(),
            _ => format!("{port}, second port"),
        },
    };
    let returned = Returned {
        at_ns: number(cells[12])?,
        operation: number(cells[6])?,
        bytes_per_s: bandwidth * UNIT_BYTES_PER_S,
        rounded_bytes_per_s: UNIT_BYTES_PER_S,
        in_flight: number(cells[10])?,
    };
    Ok((ends, returned))
}

fn number((column, value): (&'static str, &str)) -> Result<u64, BadColumn> {
    value
        .parse()
        .map_err(|_bad| (column, format!("{value:?} is not a whole number")))
}

fn rank((column, value): (&'static str, &str)) -> Result<u32, BadColumn> {
    value
        .parse()
        .map_err(|_bad| (column, format!("{value:?} is not a rank")))
}

/// Host, card and port by the file's name, `<host>_<nic>_Port<0|1>_A.log`; its two files are one.
fn port(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // As an extension only: a host may be called `node.login1`.
    let stem = match name.rsplit_once(".log") {
        Some((stem, rest)) if rest.is_empty() || rest.starts_with('.') => stem,
        _ => &name,
    };
    stem.trim_end_matches("_A")
        .trim_end_matches("_B")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "20260101120000,12490458094610964311,1,2,0,4,17,10.0.0.1,10.0.0.2,186,\
                       5,4096,1755590104254021144";

    fn parse(rows: &str) -> Result<RequestLog, FormatError> {
        let text = format!("{HEADER}\n{rows}");
        read(
            Path::new("node7_mlx5_0_Port1_A.log"),
            text.as_bytes(),
            Limits::default(),
        )
    }

    #[test]
    fn a_row_is_a_request_that_came_back() {
        let log = parse(&format!("{ROW}\n{}", &ROW[..40])).unwrap();
        let [(ends, returned)] = &log.into_iter().collect::<Vec<_>>()[..] else {
            panic!()
        };
        assert_eq!(
            (ends.communicator, ends.from, ends.to),
            (12_490_458_094_610_964_311, 1, 2)
        );
        assert_eq!(ends.port, "node7_mlx5_0_Port1");
        let [returned] = returned[..] else { panic!() };
        assert_eq!((returned.operation, returned.in_flight), (17, 5));
        assert_eq!(returned.at_ns, 1_755_590_104_254_021_144);
        assert!((returned.bytes_per_s - 25e9).abs() < 1.0, "200 Gbit/s");
    }

    #[test]
    fn a_host_may_have_a_dot_in_its_name() {
        for (name, of) in [
            ("node.login1_mlx5_0_Port1_A.log", "node.login1_mlx5_0_Port1"),
            (
                "node.login1_mlx5_0_Port1_B.log.gz",
                "node.login1_mlx5_0_Port1",
            ),
            ("node.login1_mlx5_0_Port1", "node.login1_mlx5_0_Port1"),
        ] {
            assert_eq!(port(Path::new(name)), of);
        }
    }

    #[test]
    fn what_is_wrong_is_reported_with_line_and_column() {
        let bad = format!("{ROW}\n{}\n{ROW}\n", ROW.replace(",17,", ",x,"));
        let refused = parse(&bad).unwrap_err().to_string();
        let file = "node7_mlx5_0_Port1_A.log";
        assert_eq!(
            refused,
            format!("{file}, at line 3, FuncTimes: \"x\" is not a whole number")
        );
        let short = parse(&format!("1,2\n{ROW}\n")).unwrap_err().to_string();
        assert_eq!(
            short,
            format!("{file}, at line 2, its end: 2 values instead of 13")
        );
    }
}
