use model::RankNs;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};

const SCHEMA: &str = "laggard.batch/1";

/// The header that holds the host's monotonic clock at sending, in nanoseconds. The collector
/// aligns the clocks of hosts by when it arrives.
pub const CLOCK_HEADER: &str = "laggard-now-ns";
/// The path of [`BatchAddress`], as routers write it. An agent session is an `epoch` there: that
/// is what the first version called it.
pub const BATCH_ROUTE: &str = "/api/v1/jobs/{job}/hosts/{host}/epochs/{epoch}/batches/{sequence}";

/// Where a batch belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchAddress<'a> {
    /// The job, named the same on all its hosts.
    pub job: &'a str,
    /// The host.
    pub host: &'a str,
    /// The agent session: each agent that watches the job on this host has one of its own.
    pub session: &'a str,
    /// The place among the batches of the session, from 0.
    pub sequence: u64,
}

impl BatchAddress<'_> {
    /// The path that the batch is posted to.
    pub fn path(&self) -> String {
        let Self {
            job,
            host,
            session,
            sequence,
        } = self;
        let (job, host) = (url_segment(job), url_segment(host));
        format!("/api/v1/jobs/{job}/hosts/{host}/epochs/{session}/batches/{sequence}")
    }
}

/// Bytes that are escaped in a path.
const ODD: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// The name of a job or a host as one segment of a URL's path.
pub fn url_segment(name: &str) -> String {
    utf8_percent_encode(name, ODD).to_string()
}

/// The first line of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchHead {
    schema: String,
    /// The boot of the host: clocks of one boot go on.
    pub boot: String,
    /// The host's time up to which everything is sent with this batch.
    #[serde(rename = "until_ns")]
    pub watermark: RankNs,
    /// Whether the agent tells nothing more.
    #[serde(default)]
    pub last: bool,
}

impl BatchHead {
    /// The head of a batch.
    pub fn new(boot: &str, watermark: RankNs, last: bool) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            boot: boot.to_owned(),
            watermark,
            last,
        }
    }

    /// Reads the first line of a batch.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn read(line: &[u8]) -> Result<Self, String> {
        let head: Self = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        if head.schema != SCHEMA {
            return Err(format!("the schema is not {SCHEMA:?}"));
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_written_as_in_the_first_version() {
        let head = BatchHead::new("b", RankNs(7), false);
        let line = r#"{"schema":"laggard.batch/1","boot":"b","until_ns":7,"last":false}"#;
        assert_eq!(serde_json::to_string(&head).unwrap(), line);
        assert_eq!(BatchHead::read(line.as_bytes()), Ok(head));
        let other = line.replace("batch/1", "batch/2");
        assert_eq!(
            BatchHead::read(other.as_bytes()).unwrap_err(),
            "the schema is not \"laggard.batch/1\""
        );
    }

    #[test]
    fn an_address_follows_the_route() {
        let address = BatchAddress {
            job: "j",
            host: "h.0",
            session: "5-1.2",
            sequence: 9,
        };
        let (job, host) = ("{job}", "{host}");
        let route = BATCH_ROUTE.replace(job, "j").replace(host, "h%2E0");
        let route = route.replace("{epoch}", "5-1.2").replace("{sequence}", "9");
        assert_eq!(address.path(), route);
    }
}
