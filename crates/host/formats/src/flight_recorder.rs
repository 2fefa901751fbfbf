//! PyTorch Flight Recorder: the collectives a rank has issued.

use serde::Deserialize;

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
        let is_known = version.split('.').next() == Some("2");
        let refused = || format!("version {version} of the dump, laggard reads 2.x");
        is_known.then_some(Self).ok_or_else(refused)
    }
}

#[derive(Deserialize)]
struct Dump {
    #[serde(default, rename = "version")]
    _version: Version,
    #[serde(default)]
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    record_id: u64,
    profiling_name: String,
    time_created_ns: u64,
    #[serde(default)]
    process_group: Vec<String>,
    #[serde(default)]
    collective_seq_id: u64,
    #[serde(default)]
    is_p2p: bool,
}

/// Reads the collectives out of a dump in JSON, as PyTorch's worker server gives it.
///
/// # Errors
/// What the JSON parser says.
pub fn recorded_collectives(json: &[u8]) -> serde_json::Result<Vec<RecordedCollective>> {
    let dump: Dump = serde_json::from_slice(json)?;
    let collective = |entry: Entry| {
        let op = op_of(&entry.profiling_name);
        let is_counted = !entry.is_p2p && !op.is_point_to_point();
        RecordedCollective {
            record_id: entry.record_id,
            op,
            group: entry.process_group.into_iter().next().unwrap_or_default(),
            number: if is_counted { entry.collective_seq_id } else { 0 },
            issued_unix_ns: entry.time_created_ns,
        }
    };
    let mut collectives: Vec<_> = dump.entries.into_iter().map(collective).collect();
    collectives.sort_by_key(|collective| collective.record_id);
    Ok(collectives)
}

/// The operation in `gloo:all_reduce` or `nccl:send 0->1`.
pub(crate) fn op_of(profiling_name: &str) -> CollectiveOp {
    let name = profiling_name.split(':').next_back().unwrap_or_default();
    CollectiveOp::from_name(name.split(' ').next().unwrap_or_default())
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
    fn a_dump_is_read_and_a_broken_one_refused() {
        let json = br#"{"version":"2.10","entries":[{"record_id":1,"time_created_ns":20,
            "profiling_name":"gloo:barrier","process_group":["0","default_pg"],"state":"x",
            "collective_seq_id":7},{"record_id":2,"time_created_ns":30,"is_p2p":true,
            "profiling_name":"nccl:send 0->1","collective_seq_id":7},
            {"record_id":0,"time_created_ns":10,"profiling_name":"gloo:all_reduce"}]}"#;
        let collectives = recorded_collectives(json).unwrap();
        assert_eq!(collectives[0].issued_unix_ns, 10);
        assert_eq!((collectives[1].group.as_str(), collectives[1].number), ("0", 7));
        assert_eq!(collectives[2].number, 0, "sends are not counted");
        assert!(recorded_collectives(b"{\"entries\":[{}]}").is_err());
        let newer = recorded_collectives(b"{\"version\":\"3.0\",\"entries\":[]}");
        assert!(newer.unwrap_err().to_string().contains("version 3.0 of the dump"));
    }
}
