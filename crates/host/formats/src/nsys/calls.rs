//! What NCCL writes of its calls into NVTX ranges: which communicator, how many bytes.
//!
//! # Source
//! `src/init.cc`, `src/collectives.cc` and `nccl_nvtx.h` of NCCL name the fields; where exports keep them is
//! from the tables of one and from the notes of nsys-ai (GitHub), which decoded such events of
//! Nsight Systems 2026. No export with such events was at hand.

use std::collections::{BTreeMap, HashMap};

use rusqlite::types::ValueRef;
use trace::Transfer;

use super::tables::Tables;
use super::{number, text};

/// Bytes before the fields of a payload; the number of its schema is at 8.
const HEADER: usize = 32;
const SCHEMA_AT: usize = 8;
/// Calls of one report that wait for their kernels.
const MAX_CALLS: usize = 1 << 24;

/// Where fields of a payload are, by their names.
#[derive(Clone, Copy, Debug, Default)]
struct Schema {
    communicator: Option<usize>,
    bytes: Option<usize>,
    size: Option<usize>,
    rank: Option<usize>,
    peer: Option<usize>,
}

/// One call of NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NvtxCall {
    start_ns: i64,
    op: String,
    communicator: u64,
    bytes: u64,
    is_point_to_point: bool,
}

/// The launch of a collective's kernel: when, and which transfer of its process it is.
type Launch = (i64, usize);

/// The calls of a report.
#[derive(Debug, Default)]
pub(super) struct NvtxCalls {
    schemas: HashMap<u32, Schema>,
    /// By thread.
    waiting: BTreeMap<i64, Vec<NvtxCall>>,
    launches: BTreeMap<i64, Vec<Launch>>,
    /// Size of each communicator and the rank in it, by process.
    seats: HashMap<i64, BTreeMap<u64, (u32, u32)>>,
    kept: usize,
}

impl NvtxCalls {
    /// The calls that ranges of these tables may tell of.
    pub(super) fn of(tables: &Tables) -> Self {
        let mut calls = Self::default();
        let columns = ["schemaId", "name", "offset"];
        tables.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns, |row| {
            let id = number(row[0]).and_then(|id| u32::try_from(id).ok());
            let Some((id, name)) = id.zip(text(row[1])) else {
                return;
            };
            // The first field has no offset.
            let offset = number(row[2]).unwrap_or(0);
            let at = usize::try_from(offset)
                .ok()
                .and_then(|at| at.checked_add(HEADER));
            let schema = calls.schemas.entry(id).or_default();
            match &*name {
                "NCCL communicator ID" => schema.communicator = at,
                "Message size [bytes]" => schema.bytes = at,
                "No. of ranks" => schema.size = at,
                "Rank" => schema.rank = at,
                "Peer rank" => schema.peer = at,
                _ => {}
            }
        });
        calls
    }

    /// Takes a range of a thread, with the payload it has.
    pub(super) fn range(
        &mut self,
        (process, thread): (i64, i64),
        name: &str,
        start: ValueRef<'_>,
        payload: ValueRef<'_>,
    ) {
        let Some((op, start_ns)) = name.strip_prefix("nccl").zip(number(start)) else {
            return;
        };
        let Some(payload) = bytes(payload) else {
            return;
        };
        let Some(schema) = word(&payload, Some(SCHEMA_AT))
            .and_then(|id| self.schemas.get(&u32::from_le_bytes(id)))
        else {
            return;
        };
        let communicator = word(&payload, schema.communicator).map(u64::from_le_bytes);
        let Some(communicator) = communicator else {
            return;
        };
        let size = word(&payload, schema.size).map(u32::from_le_bytes);
        let rank = word(&payload, schema.rank).map(u32::from_le_bytes);
        let bytes = word(&payload, schema.bytes).map(u64::from_le_bytes);
        // Only the calls that make a communicator have its size and the rank; the others count.
        if let Some(seat) = size.zip(rank) {
            self.seats
                .entry(process)
                .or_default()
                .insert(communicator, seat);
        } else if let Some(bytes) = bytes.filter(|_| self.kept < MAX_CALLS) {
            self.kept += 1;
            // Of NCCL's calls only sends and receives have a peer.
            let (op, is_point_to_point) = (op.to_owned(), schema.peer.is_some());
            let call = NvtxCall {
                start_ns,
                op,
                communicator,
                bytes,
                is_point_to_point,
            };
            self.waiting.entry(thread).or_default().push(call);
        }
    }

    /// Takes the launch of a collective's kernel by a thread.
    pub(super) fn launch(&mut self, thread: i64, at_ns: i64, transfer: usize) {
        self.launches
            .entry(thread)
            .or_default()
            .push((at_ns, transfer));
    }

    /// Hands out what each transfer is, by the thread that launched it: the calls of the thread since
    /// its last launch. A group of calls is launched at its end.
    pub(super) fn transfers(&mut self, mut take: impl FnMut(i64, usize, Transfer)) {
        for (thread, mut launches) in std::mem::take(&mut self.launches) {
            let mut calls = self.waiting.remove(&thread).unwrap_or_default();
            calls.sort_by_key(|call| call.start_ns);
            launches.sort_unstable();
            let mut calls = calls.into_iter().peekable();
            for (at_ns, transfer) in launches {
                let mut group = Vec::new();
                while let Some(call) = calls.next_if(|call| call.start_ns <= at_ns) {
                    group.push(call);
                }
                if let Some(found) = transfer_of(&group) {
                    take(thread, transfer, found);
                }
            }
        }
    }

    /// The size of the largest communicator of a process, and its rank in it.
    pub(super) fn seat(&self, process: i64) -> Option<(u32, u32)> {
        self.seats
            .get(&process)?
            .values()
            .copied()
            // A payload that is laid out otherwise than its schema says gives any numbers.
            .filter(|(size, rank)| rank < size)
            // All ranks of the job are in the largest one; the others are its parts.
            .max_by_key(|(size, _)| *size)
    }
}

/// What a kernel carries that was launched for these calls, if they are all of one communicator
/// and kind.
fn transfer_of(calls: &[NvtxCall]) -> Option<Transfer> {
    let first = calls.first()?;
    // A group of unlike calls shares kernels: whose bytes are in which is unknown.
    if calls
        .iter()
        .any(|call| (call.communicator, &call.op) != (first.communicator, &first.op))
    {
        return None;
    }
    let bytes = calls
        .iter()
        .map(|call| call.bytes)
        .fold(0, u64::saturating_add);
    Some(Transfer {
        group: Some(format!("comm {:#018x}", first.communicator)),
        op: first.op.clone(),
        shape: bytes.to_string(),
        bytes,
        is_point_to_point: first.is_point_to_point,
        ..Transfer::default()
    })
}

/// The bytes of a payload, which some exports keep as hexadecimal digits.
fn bytes(value: ValueRef<'_>) -> Option<Vec<u8>> {
    match value {
        ValueRef::Blob(bytes) => Some(bytes.to_vec()),
        ValueRef::Text(digits) => digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect(),
        _ => None,
    }
}

/// The bytes of a field, if the schema has it and the payload is long enough.
fn word<const BYTES: usize>(payload: &[u8], at: Option<usize>) -> Option<[u8; BYTES]> {
    let at = at?;
    payload.get(at..at.checked_add(BYTES)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const COLLECTIVE: u32 = 100;
    const INIT: u32 = 200;

    /// A payload of a schema as an export keeps it.
    fn payload(schema: u32, fields: &[&[u8]]) -> Vec<u8> {
        let fields = fields.concat();
        let (length, whole) = (fields.len() as u64, (HEADER + fields.len()) as u64);
        let head = [1, 0, schema, 0].map(u32::to_le_bytes).concat();
        [
            head,
            length.to_le_bytes().to_vec(),
            whole.to_le_bytes().to_vec(),
            fields,
        ]
        .concat()
    }

    fn call(communicator: u64, bytes: u64) -> Vec<u8> {
        payload(
            COLLECTIVE,
            &[&communicator.to_le_bytes(), &bytes.to_le_bytes()],
        )
    }

    fn schemas() -> NvtxCalls {
        let mut made = rusqlite::Connection::open_in_memory().unwrap();
        made.execute_batch(
            "CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (schemaId, name, offset);
             INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES
                (100, 'NCCL communicator ID', NULL), (100, 'Message size [bytes]', 8),
                (200, 'NCCL communicator ID', NULL), (200, 'No. of ranks', 8),
                (200, 'Rank', 12);",
        )
        .unwrap();
        let file = made.serialize(rusqlite::MAIN_DB).unwrap();
        NvtxCalls::of(&Tables::of_bytes(Path::new("f"), &file).unwrap())
    }

    fn ranges(calls: &mut NvtxCalls, thread: i64, reported: &[(i64, &str, Vec<u8>)]) {
        for (start_ns, name, payload) in reported {
            let start = ValueRef::Integer(*start_ns);
            calls.range((7, thread), name, start, ValueRef::Blob(payload));
        }
    }

    #[test]
    fn a_kernel_is_what_its_thread_has_called_for_since_the_last_one() {
        let mut calls = schemas();
        let grouped = [
            (40, "ncclAllGather", call(0xb, 10)),
            (41, "ncclAllGather", call(0xb, 20)),
            (60, "ncclAllReduce", call(0xa, 1)),
            (61, "ncclBroadcast", call(0xa, 1)),
            (90, "ncclAllReduce", call(0xa, 5)),
        ];
        ranges(&mut calls, 70, &[(10, "ncclAllReduce", call(0xa, 4096))]);
        ranges(&mut calls, 70, &grouped);
        ranges(&mut calls, 71, &[(5, "ncclReduce", call(0xc, 8))]);
        // One launched by a call that was not recorded, two grouped, two that cannot be one.
        for (thread, at_ns, transfer) in [
            (70, 5, 0),
            (70, 12, 1),
            (70, 45, 2),
            (70, 65, 3),
            (71, 6, 9),
        ] {
            calls.launch(thread, at_ns, transfer);
        }
        let mut found = Vec::new();
        calls.transfers(|thread, at, transfer| {
            found.push((
                thread,
                at,
                transfer.op,
                transfer.group.unwrap(),
                transfer.bytes,
            ));
        });
        let row = |thread, at, op: &str, group: &str, bytes| {
            (
                thread,
                at,
                op.to_owned(),
                format!("comm 0x000000000000000{group}"),
                bytes,
            )
        };
        let expected = [
            row(70, 1, "AllReduce", "a", 4096),
            row(70, 2, "AllGather", "b", 30),
            row(71, 9, "Reduce", "c", 8),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_seat_in_the_largest_communicator_is_that_in_the_job() {
        let mut calls = schemas();
        let init = |communicator: u64, size: u32, rank: u32| {
            let seat = [size.to_le_bytes(), rank.to_le_bytes()].concat();
            payload(INIT, &[&communicator.to_le_bytes(), &seat])
        };
        let reported = [
            (1, "ncclCommInitRank", init(0xb, 2, 1)),
            (2, "ncclCommInitRank", init(0xa, 16, 9)),
            (3, "ncclCommInitRank", init(0xc, 64, 64)),
        ];
        ranges(&mut calls, 70, &reported);
        assert_eq!((calls.seat(7), calls.seat(8)), (Some((16, 9)), None));
    }

    #[test]
    fn payloads_that_are_short_or_of_no_schema_say_nothing() {
        let mut calls = schemas();
        let short = call(0xa, 1)[..HEADER + 9].to_vec();
        let reported = [
            (1, "ncclAllReduce", short),
            (2, "ncclAllReduce", payload(300, &[&[0; 16]])),
        ];
        ranges(&mut calls, 70, &reported);
        let digits: Vec<String> = call(0xa, 7)
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect();
        let digits = digits.concat();
        let start = ValueRef::Integer(3);
        calls.range(
            (7, 70),
            "ncclAllReduce",
            start,
            ValueRef::Text(digits.as_bytes()),
        );
        calls.range(
            (7, 70),
            "ncclAllReduce",
            start,
            ValueRef::Text("é0".as_bytes()),
        );
        let waiting: Vec<u64> = calls.waiting[&70].iter().map(|call| call.bytes).collect();
        assert_eq!(waiting, [7], "digits are read, too");
    }
}
