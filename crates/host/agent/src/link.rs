//! Ways to a collector: straight to one, or through a bus that several read.

use std::fmt;
use std::io;
use std::ops::Range;
use std::time::Duration;

#[cfg(feature = "bus")]
use bus::{NotPublished, Publisher};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use ureq::tls::TlsConfig;
use verdict::WantedProfile;

use crate::flight::monotonic_now;

/// How long one sending may take.
const TIMEOUT: Duration = Duration::from_secs(10);
#[cfg(feature = "bus")]
/// Wait before a bus is tried again: while there is no connection that costs nothing.
const BUS_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// Far above the longest answer.
const LONGEST_ANSWER_BYTES: u64 = 1 << 20;

/// Where batches are taken.
#[derive(Clone, Debug)]
pub enum Receiver {
    /// A collector.
    Collector {
        /// Its address: `https://host:port`, or `http://host:port`.
        url: String,
        /// Whom to trust if it is an address with TLS.
        tls: TlsConfig,
        /// What proves that we may.
        token: Option<String>,
    },
    /// A bus that collectors read.
    #[cfg(feature = "bus")]
    Bus(bus::Address),
}

impl fmt::Display for Receiver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collector { url, .. } => write!(formatter, "the collector at {url}"),
            #[cfg(feature = "bus")]
            Self::Bus(address) => write!(formatter, "the bus at {address}"),
        }
    }
}

/// What is answered to a batch.
pub(crate) enum Answer {
    /// It is kept.
    Taken(Orders),
    /// The collector has seen all up to `next`.
    Next(u64),
    /// It will never be taken.
    Refused(String),
    /// It is not taken now.
    Later { reason: String, wait: Option<Duration> },
}

/// What is wanted of this host. Nothing of it is done that the host's own settings do not allow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Orders {
    /// Ranks whose stacks would help.
    pub(crate) stacks: Vec<u32>,
    pub(crate) profile: Option<WantedProfile>,
    /// Steps in which devices should be marked.
    pub(crate) device_steps: Option<Range<u32>>,
    /// The epoch of which nothing more is of use, as some of it was lost on the bus.
    pub(crate) lost: Option<String>,
    /// The epoch of which nothing more is taken, and why.
    pub(crate) refused: Option<(String, String)>,
}

impl Orders {
    /// Reads orders as they come over a bus; `None` if they are none.
    pub fn read(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Reply {
    next: u64,
    #[serde(flatten)]
    orders: Orders,
    error: String,
}

/// Where a batch belongs.
pub(crate) struct Place<'a> {
    pub(crate) job: &'a str,
    pub(crate) host: &'a str,
    pub(crate) epoch: &'a str,
    pub(crate) sequence: u64,
}

/// The way there.
#[derive(Debug)]
pub(crate) enum Link {
    Collector {
        http: ureq::Agent,
        url: String,
        token: Option<String>,
    },
    /// What is refused over a bus is heard after it was told.
    #[cfg(feature = "bus")]
    Bus {
        publisher: Box<Publisher>,
        refused: Option<(String, String)>,
    },
}

impl Link {
    /// # Errors
    /// What the bus needs cannot be had: a file of credentials, a thread.
    pub(crate) fn to(receiver: &Receiver, job: &str, host: &str) -> io::Result<Self> {
        match receiver {
            Receiver::Collector { url, tls, token } => {
                let config = ureq::Agent::config_builder()
                    .timeout_global(Some(TIMEOUT))
                    .http_status_as_error(false)
                    .proxy(None)
                    .tls_config(tls.clone())
                    .max_redirects(0)
                    .user_agent(concat!("laggard/", env!("CARGO_PKG_VERSION")))
                    .build();
                let url = url.trim_end_matches('/').to_owned();
                Ok(Self::Collector { http: config.into(), url, token: token.clone() })
            }
            #[cfg(feature = "bus")]
            Receiver::Bus(address) => {
                let publisher = Box::new(Publisher::start(address, job, host)?);
                Ok(Self::Bus { publisher, refused: None })
            }
        }
    }

    /// Sends a batch.
    pub(crate) fn send(&mut self, place: &Place<'_>, body: Vec<u8>) -> Answer {
        match self {
            Self::Collector { http, url, token } => {
                post(http, url, token.as_deref(), place, &body)
            }
            #[cfg(feature = "bus")]
            Self::Bus { publisher, refused } => publish(publisher, refused, place, body),
        }
    }
}

#[cfg(feature = "bus")]
fn publish(
    publisher: &mut Publisher,
    refused: &mut Option<(String, String)>,
    place: &Place<'_>,
    body: Vec<u8>,
) -> Answer {
    if let Some((epoch, reason)) = refused
        && epoch == place.epoch
    {
        return Answer::Refused(reason.clone());
    }
    let now_ns = monotonic_now().0;
    match publisher.publish(place.epoch, place.sequence, now_ns, body) {
        Ok(()) => {}
        Err(error @ NotPublished::TooLarge { .. }) => {
            return Answer::Refused(error.to_string());
        }
        Err(error) => {
            let wait = Some(BUS_AGAIN_AFTER);
            return Answer::Later { reason: error.to_string(), wait };
        }
    }
    let mut all = Orders::default();
    for order in publisher.orders() {
        let Some(order) = Orders::read(&order) else { continue };
        all.stacks = order.stacks;
        all.profile = order.profile.or(all.profile);
        all.device_steps = order.device_steps.or(all.device_steps);
        all.lost = order.lost.or(all.lost);
        // What was said to an agent before this one is none of its business.
        *refused =
            order.refused.filter(|(epoch, _)| epoch == place.epoch).or(refused.take());
    }
    Answer::Taken(all)
}

fn post(
    http: &ureq::Agent,
    url: &str,
    token: Option<&str>,
    Place { job, host, epoch, sequence }: &Place<'_>,
    body: &[u8],
) -> Answer {
    let (job, host) = (in_address(job), in_address(host));
    let url =
        format!("{url}/api/v1/jobs/{job}/hosts/{host}/epochs/{epoch}/batches/{sequence}");
    let mut request = http.post(url).header("content-type", "application/zstd");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    // Clocks of hosts are told apart by when this arrives.
    let request = request.header("laggard-now-ns", monotonic_now().0.to_string());
    let mut response = match request.send(body) {
        Ok(response) => response,
        Err(error) => return Answer::Later { reason: error.to_string(), wait: None },
    };
    let status = response.status();
    let wait = response
        .headers()
        .get("retry-after")
        .and_then(|wait| wait.to_str().ok()?.parse().ok().map(Duration::from_secs));
    let reply = response.body_mut().with_config().limit(LONGEST_ANSWER_BYTES);
    let reply = reply.read_to_vec().unwrap_or_default();
    let reply: Reply = serde_json::from_slice(&reply).unwrap_or_default();
    let reason = || format!("{status} {}", reply.error);
    match status.as_u16() {
        200 => Answer::Taken(reply.orders),
        409 => Answer::Next(reply.next),
        400 | 413 | 422 => Answer::Refused(reason()),
        _ => Answer::Later { reason: reason(), wait },
    }
}

/// Bytes that are escaped in an address.
const ODD: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// The name of a job or a host as it may stand in an address.
pub fn in_address(name: &str) -> String {
    utf8_percent_encode(name, ODD).to_string()
}
