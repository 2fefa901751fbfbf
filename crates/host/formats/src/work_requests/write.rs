//! What NCCL's flows did while a recording looked at them, as MegaTrace's telemetry has it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use collective::{Connection, Counted};
use model::{CollectiveOp, Communicator, Direction, Input, Operation, RankNs};

use super::{HEADER, UNIT_BYTES_PER_S};
use crate::Journal;

/// A flow of an operation: communicator, kind, number, channel and peer.
type FlowOf = (u64, CollectiveOp, u64, u8, u32);

/// One rank's file.
#[derive(Default)]
struct RankRequestLog {
    host: String,
    text: String,
    rows: u64,
    /// Its rank in each communicator.
    own: BTreeMap<u64, u32>,
    flows: BTreeMap<FlowOf, Connection>,
}

/// Writes what ranks' flows had sent at each look at them, from the 50th transfer of an operation
/// on: a file `<host>_nccl<rank>_Port0_A.log` for each rank in a folder, which is made if need be;
/// how many rows there are.
///
/// A rank stands for a port. Looks are recorded while something stands still or is slow. Times are
/// those of the marks. Of a job that was restarted the last start is written.
///
/// # Errors
/// What the operating system says.
pub fn write_work_requests(journal: &Journal, folder: &Path) -> io::Result<u64> {
    let mut logs: BTreeMap<u32, RankRequestLog> = BTreeMap::new();
    for input in journal.inputs() {
        match input {
            Input::Rank { rank, host, .. } => {
                logs.entry(*rank).or_default().host.clone_from(host);
            }
            Input::Communicator { rank, communicator } => {
                let Communicator {
                    hash, rank: own, ..
                } = communicator;
                logs.entry(*rank).or_default().own.insert(*hash, *own);
            }
            Input::InFlightSnapshot {
                rank,
                at,
                in_progress,
                ended,
                ..
            } => {
                logs.entry(*rank).or_default().look(*at, ended, in_progress);
            }
            Input::Restart { .. } => logs.clear(),
            _ => {}
        }
    }
    logs.retain(|_, log| log.rows > 0);
    fs::create_dir_all(folder)?;
    for (rank, log) in &logs {
        let name = format!("{}_nccl{rank}_Port0_A.log", log.host);
        // What a recording calls a host must not lead out of the folder.
        let name = Path::new(&name).file_name().unwrap_or_default();
        fs::write(folder.join(name), format!("{HEADER}\n{}", log.text))?;
    }
    Ok(logs.values().map(|log| log.rows).sum())
}

impl RankRequestLog {
    fn look(&mut self, at: RankNs, ended: &[Operation], in_progress: &[Operation]) {
        let mut looked = std::mem::take(&mut self.flows);
        let sent: Vec<_> = ended
            .iter()
            .chain(in_progress)
            .flat_map(|of| of.flows.iter().map(move |flow| (of, flow)))
            .filter(|(_, flow)| flow.direction == Direction::Send)
            .collect();
        let in_flight: u64 = sent
            .iter()
            .map(|(_, flow)| Counted::of_flow(flow, at).in_flight())
            .sum();
        for (of, flow) in sent {
            let Operation {
                communicator,
                op,
                sequence,
                ..
            } = of;
            let known = (*communicator, *op, *sequence, flow.channel, flow.peer);
            let mut connection = looked.remove(&known).unwrap_or_else(|| {
                // From where it began: a flow is a connection of its own.
                let mut connection = Connection::default();
                connection.read(Counted {
                    at: flow.begun_at,
                    ..Counted::default()
                });
                connection
            });
            connection.read(Counted::of_flow(flow, at));
            if let Some(bytes_per_s) = connection.bandwidth() {
                let from = self.own.get(communicator).copied().unwrap_or_default();
                let (to, func, times) = (flow.peer, op.0, sequence.saturating_add(1));
                let units = (bytes_per_s / UNIT_BYTES_PER_S) as u64;
                let to_come = u64::from(flow.total.saturating_sub(flow.done));
                let left = flow.bytes.saturating_mul(to_come) / u64::from(flow.transmitted.max(1));
                let (seconds, ns) = (at.0 / 1_000_000_000, at.0);
                let row = writeln!(
                    self.text,
                    "{seconds},{communicator},{from},{to},0,{func},{times},,,{units},{in_flight},\
                     {left},{ns}"
                );
                self.rows += u64::from(row.is_ok());
            }
            self.flows.insert(known, connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Flow;

    use super::super::read;
    use super::*;
    use crate::{JournalWriter, Limits};

    const MS: u64 = 1_000_000;

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.jsonl");
        let mut writer = JournalWriter::create(&path, "job").unwrap();
        let mut write = |input: Input| writer.write(&input).unwrap();
        let (host, role) = ("../node3".to_owned(), None);
        let (first_local, locals, world_size) = (4, 4, 8);
        write(Input::Rank {
            rank: 6,
            host,
            role,
            first_local,
            locals,
            world_size,
        });
        let (hash, name) = (u64::MAX - 7, "dp".to_owned());
        let communicator = Communicator {
            hash,
            name,
            rank: 2,
            size: 4,
        };
        write(Input::Communicator {
            rank: 6,
            communicator,
        });
        // A transfer of a megabyte each millisecond, and none after the 120th.
        for look in 0..30_u64 {
            let done = (look * 10).min(120) as u32;
            let flow = Flow {
                channel: 1,
                peer: 3,
                direction: Direction::Send,
                total: 400,
                ready: done + 8,
                transmitted: done + 8,
                done,
                bytes: u64::from(done + 8) * 1_000_000,
                begun_at: RankNs(1000 * MS),
                moved_at: RankNs(1000 * MS),
            };
            let operation = Operation {
                communicator: hash,
                op: CollectiveOp::ALLREDUCE,
                sequence: 41,
                bytes: 400_000_000,
                begun_at: RankNs(999 * MS),
                ended_at: None,
                may_have_ended: false,
                flows: vec![flow],
            };
            write(Input::InFlightSnapshot {
                rank: 6,
                at: RankNs((1000 + look * 10) * MS),
                in_progress: vec![operation],
                ended: Vec::new(),
                late: Vec::new(),
            });
        }
        writer.finish().unwrap();
        let bytes = fs::read(&path).unwrap();
        let journal = Journal::read(&path, &bytes[..]).unwrap();
        let to = folder.path().join("requests");
        assert_eq!(write_work_requests(&journal, &to).unwrap(), 25);
        let written = to.join("node3_nccl6_Port0_A.log");
        let text = fs::read(&written).unwrap();
        let log = read(&written, &text[..], Limits::default()).unwrap();
        let [(ends, returned)] = &log.into_iter().collect::<Vec<_>>()[..] else {
            panic!()
        };
        assert_eq!((ends.communicator, ends.from, ends.to), (hash, 2, 3));
        assert_eq!(ends.port, "node3_nccl6_Port0");
        assert!(
            returned
                .iter()
                .all(|it| (it.operation, it.in_flight) == (42, 8))
        );
        let [first, .., last] = &returned[..] else {
            panic!()
        };
        assert_eq!((first.at_ns, last.at_ns), (1050 * MS, 1290 * MS));
        assert!((first.bytes_per_s - 1e9).abs() <= first.rounded_bytes_per_s);
    }
}
