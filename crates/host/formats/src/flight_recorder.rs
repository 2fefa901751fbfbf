//! PyTorch Flight Recorder: the collectives a rank has issued.

use serde::Deserialize;
use serde_json::Value;

use model::CollectiveOp;

/// A collective a rank has issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCollective {
    /// Its number in the recorder, ascending.
    pub record_id: u64,
    /// Its kind.
    pub op: CollectiveOp,
    /// Name of its process group, the same on all members.
    pub group: String,
    /// How many collectives the rank has issued in the group, this one included; 0 for sends and
    /// receives, and if that was not recorded.
    pub number: u64,
    /// Bytes that the rank passed, `None` if that was not recorded.
    pub bytes: Option<u64>,
    /// Bytes of an element of its first tensor, 0 if that was not recorded.
    pub element_bytes: u64,
    /// When it was issued, in nanoseconds since the epoch.
    pub issued_unix_ns: u64,
}

/// Version of a dump, one whose fields are known.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Version;

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(version: String) -> Result<Self, Self::Error> {
        if version.split('.').next() != Some("2") {
            return Err(format!("version {version} of the dump, laggard reads 2.x"));
        }
        Ok(Self)
    }
}

/// A dump of which only the version is read.
#[derive(Deserialize)]
pub(crate) struct Versioned {
    #[serde(rename = "version")]
    _version: Version,
}

#[derive(Deserialize)]
struct ServedDump {
    #[serde(default, rename = "version")]
    _version: Version,
    #[serde(default)]
    entries: Vec<ServedEntry>,
}

#[derive(Deserialize)]
struct ServedEntry {
    record_id: u64,
    profiling_name: String,
    time_created_ns: u64,
    #[serde(default)]
    process_group: Vec<String>,
    #[serde(default)]
    collective_seq_id: u64,
    #[serde(default)]
    is_p2p: bool,
    /// Whatever stands there: a dump is worth reading without it.
    #[serde(default)]
    input_sizes: Value,
    #[serde(default)]
    input_dtypes: Value,
}

impl ServedEntry {
    /// Bytes that the rank passed, and those of an element of its first tensor.
    fn passed(&self) -> Option<(u64, u64)> {
        let sizes = Vec::<Vec<u64>>::deserialize(&self.input_sizes).ok()?;
        let types = Vec::<&str>::deserialize(&self.input_dtypes).ok()?;
        // Paired by place, they would give some tensor the type of another.
        if sizes.len() != types.len() {
            return None;
        }
        let mut bytes = 0_u64;
        for (size, kind) in sizes.iter().zip(&types) {
            let element = element_bytes(kind.as_bytes());
            let of_tensor = size
                .iter()
                .try_fold(element, |all, one| all.checked_mul(*one))?;
            bytes = bytes.checked_add(of_tensor)?;
        }
        Some((bytes, element_bytes(types.first()?.as_bytes())))
    }
}

/// Reads the collectives out of a dump in JSON, as PyTorch's worker server gives it.
///
/// # Errors
/// What the JSON parser says.
pub fn recorded_collectives(json: &[u8]) -> serde_json::Result<Vec<RecordedCollective>> {
    let dump: ServedDump = serde_json::from_slice(json)?;
    let mut collectives: Vec<_> = dump
        .entries
        .into_iter()
        .map(RecordedCollective::from)
        .collect();
    collectives.sort_by_key(|collective| collective.record_id);
    Ok(collectives)
}

impl From<ServedEntry> for RecordedCollective {
    fn from(entry: ServedEntry) -> Self {
        let op = op_of(&entry.profiling_name);
        // Either may be all that says so: coalesced sends have no name that tells, some others no
        // flag.
        let is_counted = !entry.is_p2p && !op.is_point_to_point();
        let passed = entry.passed();
        Self {
            record_id: entry.record_id,
            op,
            bytes: passed.map(|(bytes, _)| bytes),
            element_bytes: passed.map_or(0, |(_, element)| element),
            group: entry.process_group.into_iter().next().unwrap_or_default(),
            number: if is_counted {
                entry.collective_seq_id
            } else {
                0
            },
            issued_unix_ns: entry.time_created_ns,
        }
    }
}

/// The operation in `gloo:all_reduce` or `nccl:send 0->1`.
pub(crate) fn op_of(profiling_name: &str) -> CollectiveOp {
    let name = profiling_name.split(':').next_back().unwrap_or_default();
    CollectiveOp::from_name(name.split(' ').next().unwrap_or_default())
}

/// Bytes of an element, by PyTorch's name of its type.
pub(crate) fn element_bytes(kind: &[u8]) -> u64 {
    match kind {
        b"ComplexDouble" => 16,
        b"Double" | b"Long" | b"ComplexFloat" => 8,
        b"Float" | b"Int" => 4,
        b"Half" | b"BFloat16" | b"Short" => 2,
        b"" => 0,
        // Byte, Char, Bool and the floats of eight bits.
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_backends_are_understood() {
        assert_eq!(op_of("gloo:all_reduce").name(), "ALLREDUCE");
        assert_eq!(op_of("nccl:send 0->1").name(), "SEND");
        assert_eq!(op_of("nccl:_allgather_base").name(), "ALLGATHER_BASE");
        assert_eq!(op_of("something").name(), "COLLECTIVE");
    }

    #[test]
    fn what_is_sent_from_one_to_another_is_no_collective_whichever_field_says_so() {
        let json = br#"{"entries":[
            {"record_id":1,"time_created_ns":1,"is_p2p":true,"profiling_name":"nccl:coalesced",
            "collective_seq_id":7},
            {"record_id":2,"time_created_ns":2,"profiling_name":"nccl:recv 0<-1","collective_seq_id":7},
            {"record_id":3,"time_created_ns":3,"profiling_name":"nccl:all_reduce","collective_seq_id":7}]}"#;
        let numbers = recorded_collectives(json)
            .unwrap()
            .into_iter()
            .map(|it| it.number);
        assert_eq!(numbers.collect::<Vec<_>>(), [0, 0, 7]);
    }

    #[test]
    fn a_dump_is_read_and_a_broken_one_refused() {
        let json = br#"{"version":"2.10","entries":[{"record_id":1,"time_created_ns":20,
            "profiling_name":"gloo:barrier","input_sizes":[[-1]],"process_group":["0","default_pg"],"state":"x",
            "collective_seq_id":7},{"record_id":2,"time_created_ns":30,"is_p2p":true,
            "profiling_name":"nccl:send 0->1","collective_seq_id":7},
            {"record_id":0,"time_created_ns":10,"profiling_name":"gloo:all_reduce",
            "input_sizes":[[2,3],[]],"input_dtypes":["Float","Long"]}]}"#;
        let collectives = recorded_collectives(json).unwrap();
        assert_eq!(collectives[0].issued_unix_ns, 10);
        assert_eq!(
            (collectives[0].bytes, collectives[0].element_bytes),
            (Some(32), 4)
        );
        assert_eq!(
            (collectives[1].bytes, collectives[1].element_bytes),
            (None, 0)
        );
        assert_eq!(
            (collectives[1].group.as_str(), collectives[1].number),
            ("0", 7)
        );
        assert_eq!(collectives[2].number, 0, "sends are not counted");
        assert!(recorded_collectives(b"{\"entries\":[{}]}").is_err());
        let newer = recorded_collectives(b"{\"version\":\"3.0\",\"entries\":[]}");
        assert!(
            newer
                .unwrap_err()
                .to_string()
                .contains("version 3.0 of the dump")
        );
    }
}
