//! Ways to a collector: straight to one, or through a bus that several read.

use std::fmt;
use std::io;
use std::time::Duration;

#[cfg(feature = "bus")]
use bus::{NotPublished, Publisher};
#[cfg(feature = "bus")]
use protocol::Command;
use protocol::{BatchAddress, CLOCK_HEADER, HostOrders, KeptReply, Reply};
use ureq::tls::TlsConfig;

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
    Bus(bus::BusAddress),
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
#[derive(Debug)]
pub(crate) enum BatchAnswer {
    /// It is kept.
    Taken {
        /// What is asked of this host.
        wanted: HostOrders,
        /// The agent session of which something was lost on the bus.
        lost: Option<String>,
    },
    /// The collector has seen all up to `next`.
    Next(u64),
    /// It will never be taken.
    Refused(String),
    /// It is not taken now.
    Later {
        reason: String,
        wait: Option<Duration>,
    },
}

/// The way there.
#[derive(Debug)]
pub(crate) enum CollectorLink {
    Collector {
        http: ureq::Agent,
        url: String,
        token: Option<String>,
    },
    /// What is refused over a bus is heard after it was sent.
    #[cfg(feature = "bus")]
    Bus {
        publisher: Box<Publisher>,
        refused: Option<(String, String)>,
    },
}

impl CollectorLink {
    /// # Errors
    /// What the bus needs cannot be had: a file of credentials, a thread.
    #[cfg_attr(
        not(feature = "bus"),
        expect(
            unused_variables,
            reason = "only messages of a bus are named by job and host"
        )
    )]
    pub(crate) fn to(receiver: &Receiver, job: &str, host: &str) -> io::Result<Self> {
        match receiver {
            Receiver::Collector { url, tls, token } => {
                let config = ureq::Agent::config_builder()
                    .timeout_global(Some(TIMEOUT))
                    // A refusal has a body that says why, and what comes next.
                    .http_status_as_error(false)
                    .proxy(None)
                    .tls_config(tls.clone())
                    // Nobody is to lead batches and the token elsewhere.
                    .max_redirects(0)
                    .user_agent(concat!("laggard/", env!("CARGO_PKG_VERSION")))
                    .build();
                // Paths begin with a slash of their own.
                let url = url.trim_end_matches('/').to_owned();
                Ok(Self::Collector {
                    http: config.into(),
                    url,
                    token: token.clone(),
                })
            }
            #[cfg(feature = "bus")]
            Receiver::Bus(address) => {
                let publisher = Box::new(Publisher::start(address, job, host)?);
                Ok(Self::Bus {
                    publisher,
                    refused: None,
                })
            }
        }
    }

    /// Sends a batch.
    pub(crate) fn send(&mut self, address: &BatchAddress<'_>, body: Vec<u8>) -> BatchAnswer {
        match self {
            Self::Collector { http, url, token } => {
                post(http, url, token.as_deref(), address, &body)
            }
            #[cfg(feature = "bus")]
            Self::Bus { publisher, refused } => publish(publisher, refused, address, body),
        }
    }
}

#[cfg(feature = "bus")]
fn publish(
    publisher: &mut Publisher,
    refused: &mut Option<(String, String)>,
    address: &BatchAddress<'_>,
    body: Vec<u8>,
) -> BatchAnswer {
    // A refusal is of the whole session: what follows would be refused too.
    if let Some((session, reason)) = refused
        && session == address.session
    {
        return BatchAnswer::Refused(reason.clone());
    }
    let now_ns = monotonic_now().0;
    match publisher.publish(address.session, address.sequence, now_ns, body) {
        Ok(()) => {}
        Err(error @ NotPublished::TooLarge { .. }) => {
            return BatchAnswer::Refused(error.to_string());
        }
        Err(error) => {
            let wait = Some(BUS_AGAIN_AFTER);
            return BatchAnswer::Later {
                reason: error.to_string(),
                wait,
            };
        }
    }
    let (mut wanted, mut lost) = (HostOrders::default(), None);
    for command in publisher
        .orders()
        .iter()
        .filter_map(|json| Command::read(json))
    {
        match command {
            Command::Wanted(HostOrders {
                stacks,
                profile,
                device_steps,
            }) => {
                // The newest list counts. A window or steps, which are asked for once, must not be
                // lost to it.
                wanted.stacks = stacks;
                wanted.profile = profile.or(wanted.profile);
                wanted.device_steps = device_steps.or(wanted.device_steps);
            }
            Command::Lost { lost: session } => lost = Some(session),
            // What was said to an agent before this one is none of its business.
            Command::Refused { refused: said } if said.0 == address.session => {
                *refused = Some(said);
            }
            Command::Refused { .. } => {}
        }
    }
    BatchAnswer::Taken { wanted, lost }
}

fn post(
    http: &ureq::Agent,
    url: &str,
    token: Option<&str>,
    address: &BatchAddress<'_>,
    body: &[u8],
) -> BatchAnswer {
    let url = format!("{url}{}", address.path());
    let mut request = http.post(url).header("content-type", "application/zstd");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    // As late as may be: the collector takes the time on the way for a difference of clocks.
    let request = request.header(CLOCK_HEADER, monotonic_now().0.to_string());
    let mut response = match request.send(body) {
        Ok(response) => response,
        Err(error) => {
            return BatchAnswer::Later {
                reason: error.to_string(),
                wait: None,
            };
        }
    };
    let status = response.status();
    let wait = response
        .headers()
        .get("retry-after")
        .and_then(|wait| wait.to_str().ok()?.parse().ok().map(Duration::from_secs));
    // Half an answer is judged by its status.
    let reply = response
        .body_mut()
        .with_config()
        .limit(LONGEST_ANSWER_BYTES)
        .read_to_vec()
        .unwrap_or_default();
    match Reply::read(status.as_u16(), &reply) {
        Reply::Kept(KeptReply { wanted, .. }) => BatchAnswer::Taken { wanted, lost: None },
        Reply::Resume { next } => BatchAnswer::Next(next),
        Reply::Refused(error) => BatchAnswer::Refused(format!("{status} {error}")),
        Reply::Later(error) => BatchAnswer::Later {
            reason: format!("{status} {error}"),
            wait,
        },
    }
}
