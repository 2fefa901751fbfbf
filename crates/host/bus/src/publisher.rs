use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, Event, Subscriber};
use futures_util::{FutureExt, StreamExt};
use tokio::runtime::{Builder, Runtime};
use tracing::debug;

use crate::address::BusAddress;
use crate::names;

/// How long the bus may take to say that it keeps a batch.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a batch waits for a connection before it is called away.
const CONNECTED_WITHIN: Duration = Duration::from_secs(2);

/// Puts the batches of one host of a job into the stream, and hears what is wanted of it.
pub struct Publisher {
    bus: Context,
    job: String,
    host: String,
    orders: Subscriber,
    /// What went wrong last.
    trouble: Arc<Mutex<String>>,
    /// Ends after those that need it.
    runtime: Runtime,
}

/// Why a batch is not in the stream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotPublished {
    /// The bus takes no message of this length, ever.
    #[error("the bus takes messages of up to {most_bytes} bytes")]
    TooLarge {
        /// What it takes.
        most_bytes: usize,
    },
    /// Not now, or not so that we would know; sent again it counts once.
    #[error("{0}")]
    Away(String),
}

impl fmt::Debug for Publisher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Publisher")
            .field("job", &self.job)
            .finish_non_exhaustive()
    }
}

impl Publisher {
    /// Begins to connect, and goes on with that until it succeeds.
    ///
    /// # Errors
    /// Credentials cannot be read, or there can be no thread.
    pub fn start(address: &BusAddress, job: &str, host: &str) -> io::Result<Self> {
        // With a thread of its own: the connection must be served between calls too, and a runtime
        // of the current thread stands still outside of `block_on`.
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("laggard-bus")
            .enable_all()
            .build()?;
        let trouble = Arc::new(Mutex::new("not connected yet".to_owned()));
        let seen = Arc::clone(&trouble);
        let (client, orders) = runtime.block_on(async {
            let client = address
                .options()
                .await?
                // A job may begin before its bus does.
                .retry_on_initial_connect()
                .event_callback(move |event| {
                    debug!(%event, "bus");
                    if let Some(text) = trouble_of(&event) {
                        *seen.lock().unwrap_or_else(PoisonError::into_inner) = text;
                    }
                    async {}
                })
                .connect(address.servers())
                .await
                .map_err(io::Error::other)?;
            let orders = client.subscribe(names::orders(job, host)).await;
            Ok::<_, io::Error>((client, orders.map_err(io::Error::other)?))
        })?;
        let mut bus = {
            // The context starts tasks, and may do so only where there is a runtime.
            let _inside = runtime.enter();
            jetstream::new(client)
        };
        bus.set_timeout(TIMEOUT);
        let (job, host) = (job.to_owned(), host.to_owned());
        Ok(Self {
            bus,
            job,
            host,
            orders,
            trouble,
            runtime,
        })
    }

    /// Puts a batch into the stream. Once it returns the bus keeps it.
    ///
    /// # Errors
    /// [`NotPublished`].
    pub fn publish(
        &self,
        session: &str,
        sequence: u64,
        now_ns: u64,
        body: Vec<u8>,
    ) -> Result<(), NotPublished> {
        let client = self.bus.client();
        if !is_connected(&client) {
            let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
            return Err(NotPublished::Away(trouble.clone()));
        }
        let (job, host) = (names::token(&self.job), names::token(&self.host));
        // By the id the bus knows a batch that is sent again, and keeps it once.
        let message = PublishMessage::build()
            .payload(body.into())
            .message_id(format!("{job}/{host}/{session}/{sequence}"))
            .header(names::SESSION, session)
            .header(names::SEQUENCE, sequence.to_string().as_str())
            .header(names::NOW_NS, now_ns.to_string().as_str());
        let subject = names::batches(&self.job, &self.host);
        let published = self.runtime.block_on(async {
            let kept = self.bus.send_publish(subject, message).await?;
            // The client itself would wait on for as long as it connects anew.
            tokio::time::timeout(TIMEOUT, kept.into_future())
                .await
                .unwrap_or_else(|_| Err(PublishErrorKind::TimedOut.into()))
        });
        match published {
            Ok(_) => Ok(()),
            Err(error) => Err(match error.kind() {
                PublishErrorKind::MaxPayloadExceeded => NotPublished::TooLarge {
                    most_bytes: client.max_payload(),
                },
                PublishErrorKind::StreamNotFound => NotPublished::Away(
                    "it has no stream for batches: no collector has created it yet".to_owned(),
                ),
                _ => NotPublished::Away(error.to_string()),
            }),
        }
    }

    /// What was wanted of this host since the last call, oldest first.
    pub fn orders(&mut self) -> Vec<Vec<u8>> {
        // Without waiting: what is yet to come is heard with the next batch.
        std::iter::from_fn(|| self.orders.next().now_or_never().flatten())
            .map(|message| message.payload.to_vec())
            .collect()
    }
}

/// Whether there is a connection, now or within the time it takes to make one.
fn is_connected(client: &Client) -> bool {
    let begun = Instant::now();
    // One that is being made may be there in a moment; the agent keeps the batch if not.
    while client.connection_state() != State::Connected {
        if begun.elapsed() >= CONNECTED_WITHIN {
            return false;
        }
        thread::sleep(CONNECTED_WITHIN / 100);
    }
    true
}

/// What an event says of why there is no connection.
fn trouble_of(event: &Event) -> Option<String> {
    match event {
        Event::Disconnected | Event::ServerError(_) | Event::ClientError(_) => {
            Some(event.to_string())
        }
        _ => None,
    }
}
