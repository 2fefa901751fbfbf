use std::ops::Range;

use serde::{Deserialize, Serialize};
use verdict::WantedProfile;

/// What a collector asks of a host. An agent does nothing of it that the host's own settings do
/// not allow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostOrders {
    /// Ranks whose stacks would help.
    pub stacks: Vec<u32>,
    /// The profile window to record; repeated until the job has come to it.
    pub profile: Option<WantedProfile>,
    /// Steps in which devices should be marked.
    pub device_steps: Option<Range<u32>>,
}

/// The answer to a batch that is on disk: status 200.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptReply {
    /// The sequence that the collector expects next.
    pub next: u64,
    /// What it asks of the host.
    #[serde(flatten)]
    pub wanted: HostOrders,
}

/// The answer to every request that is refused, whichever it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// Why, for people.
    pub error: String,
    /// With status 409, the sequence that the collector expects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// The answer to a batch, as an agent acts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The batch is on disk.
    Kept(KeptReply),
    /// The collector expects this sequence instead.
    Resume {
        /// The sequence.
        next: u64,
    },
    /// The batch will never be taken, and why.
    Refused(String),
    /// The batch is not taken now, and why.
    Later(String),
}

impl Reply {
    /// Reads an answer over HTTP. One without the expected body counts by its status alone.
    pub fn read(status: u16, body: &[u8]) -> Self {
        match status {
            200 => Self::Kept(serde_json::from_slice(body).unwrap_or_default()),
            status => {
                let refusal: Refusal = serde_json::from_slice(body).unwrap_or_default();
                match status {
                    // Without a number nothing is known of the session: it begins anew.
                    409 => Self::Resume {
                        next: refusal.next.unwrap_or_default(),
                    },
                    // The batch itself is wrong, and would be so again. Anything else may be put
                    // right while it waits, such as a token.
                    400 | 413 | 422 => Self::Refused(refusal.error),
                    _ => Self::Later(refusal.error),
                }
            }
        }
    }
}

/// What collectors tell the agents of a host over a bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Command {
    /// A batch of this agent session was lost on the bus: the session must begin anew.
    Lost {
        /// The session.
        lost: String,
    },
    /// Nothing more is taken of an agent session.
    Refused {
        /// The session, and why.
        refused: (String, String),
    },
    // Last: all of its fields may be missing, so that any object is one.
    /// What a collector asks of the host.
    Wanted(HostOrders),
}

impl Command {
    /// Reads a command; `None` if it is none.
    pub fn read(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// The command as it is sent, with its keys in the order of the alphabet.
    pub fn to_json(&self) -> String {
        // A document holds its keys in order; a command has no key that is no text.
        serde_json::to_value(self).unwrap_or_default().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(answer: &impl Serialize) -> String {
        serde_json::to_string(answer).unwrap()
    }

    fn wanted() -> HostOrders {
        let profile = WantedProfile {
            ranks: vec![1, 2],
            first_step: 30,
            steps: 10,
            limit_ms: 900,
        };
        HostOrders {
            stacks: vec![3],
            profile: Some(profile),
            device_steps: Some(5..7),
        }
    }

    /// Agents and collectors of different versions meet: these bytes are a contract.
    #[test]
    fn answers_are_written_as_in_the_first_version() {
        assert_eq!(
            json(&KeptReply {
                next: 4,
                wanted: HostOrders::default()
            }),
            r#"{"next":4,"stacks":[],"profile":null,"device_steps":null}"#
        );
        assert_eq!(
            json(&KeptReply {
                next: 4,
                wanted: wanted()
            }),
            r#"{"next":4,"stacks":[3],"profile":{"ranks":[1,2],"first_step":30,"steps":10,"limit_ms":900},"device_steps":{"start":5,"end":7}}"#
        );
        let refusal = |next| Refusal {
            error: "why".to_owned(),
            next,
        };
        assert_eq!(json(&refusal(None)), r#"{"error":"why"}"#);
        assert_eq!(json(&refusal(Some(2))), r#"{"error":"why","next":2}"#);
    }

    #[test]
    fn commands_are_written_as_in_the_first_version_and_come_back() {
        let of = |session: &str| session.to_owned();
        let written = [
            (
                Command::Wanted(wanted()),
                r#"{"device_steps":{"end":7,"start":5},"profile":{"first_step":30,"limit_ms":900,"ranks":[1,2],"steps":10},"stacks":[3]}"#,
            ),
            (Command::Lost { lost: of("5-1") }, r#"{"lost":"5-1"}"#),
            (
                Command::Refused {
                    refused: (of("5-1"), of("why")),
                },
                r#"{"refused":["5-1","why"]}"#,
            ),
        ];
        for (command, json) in written {
            assert_eq!(command.to_json(), json);
            assert_eq!(Command::read(json.as_bytes()), Some(command));
        }
        assert_eq!(Command::read(b"[1]"), None);
    }

    #[test]
    fn an_answer_counts_by_its_status_where_its_body_says_nothing() {
        assert_eq!(Reply::read(200, b""), Reply::Kept(KeptReply::default()));
        assert_eq!(
            Reply::read(409, br#"{"next":3}"#),
            Reply::Resume { next: 3 }
        );
        assert_eq!(Reply::read(413, b"<html>"), Reply::Refused(String::new()));
        let why = || "why".to_owned();
        assert_eq!(
            Reply::read(400, br#"{"error":"why"}"#),
            Reply::Refused(why())
        );
        assert_eq!(Reply::read(503, br#"{"error":"why"}"#), Reply::Later(why()));
    }
}
