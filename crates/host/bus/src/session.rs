use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use async_nats::jetstream::kv::{CreateErrorKind, Store, UpdateErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Stream};
use async_nats::jetstream::{self, Context, Message};
use async_nats::{Event, datetime};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::watch;
use tracing::debug;

use crate::address::BusAddress;
use crate::names;

/// How long the bus may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long batches stay unless an operator says otherwise: a weekend, and days to notice.
const KEPT_FOR: Duration = Duration::from_hours(7 * 24);
/// How long the bus itself knows a batch that comes twice; collectors know it for ever.
const KNOWN_FOR: Duration = Duration::from_mins(2);
/// How long a collector that says nothing counts as alive.
const ALIVE_FOR: Duration = Duration::from_secs(10);
/// A collector that goes on with a job reads from so long before what it has: a batch that came
/// early is put to disk after later ones, by less than this.
const READ_AGAIN_S: u64 = 60;

/// The bus does not do what is wanted of it.
#[derive(Debug, thiserror::Error)]
#[error("failed to {wanted}: {reason}")]
pub struct BusError {
    wanted: &'static str,
    reason: String,
}

/// Says what was wanted when an error came.
trait FailedTo<T> {
    fn to(self, wanted: &'static str) -> Result<T, BusError>;
}

impl<T, E: fmt::Display> FailedTo<T> for Result<T, E> {
    fn to(self, wanted: &'static str) -> Result<T, BusError> {
        self.map_err(|error| BusError {
            wanted,
            reason: error.to_string(),
        })
    }
}

/// A collector on the bus, for as long as one connection lasts.
#[derive(Clone)]
pub struct Session {
    bus: Context,
    stream: Stream,
    collectors: Store,
    jobs: Store,
    lost: watch::Receiver<bool>,
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Session").finish_non_exhaustive()
    }
}

/// Batches of a job came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestBatch {
    /// The job.
    pub job: String,
    /// Where the newest stands in the stream.
    pub position: u64,
}

/// What is noted of a job, who keeps it above all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperNote {
    /// The job.
    pub job: String,
    /// Counts changes: a note is replaced by who has seen it as it is.
    pub revision: u64,
    /// What is noted; empty once it was deleted.
    pub text: Vec<u8>,
}

/// A batch of a host, as its agent put it into the stream.
#[derive(Clone, Debug)]
pub struct BusBatch {
    /// The host.
    pub host: String,
    /// The agent session: from the start of an agent on.
    pub session: String,
    /// Its number, from 0 on in each session.
    pub sequence: u64,
    /// The host's clock when it was sent.
    pub now_ns: u64,
    /// The batch itself.
    pub body: Bytes,
}

impl BusBatch {
    /// The batch that a message is, and its job; `None` if it is none. A client that may publish
    /// can put anything there.
    pub fn of(
        subject: &str,
        header: impl Fn(&str) -> Option<String>,
        body: Bytes,
    ) -> Option<(String, Self)> {
        let (job, host) = names::job_and_host(subject)?;
        let batch = Self {
            host,
            session: header(names::SESSION)?,
            sequence: header(names::SEQUENCE)?.parse().ok()?,
            now_ns: header(names::NOW_NS)?.parse().ok()?,
            body,
        };
        Some((job, batch))
    }
}

/// A message of the stream of a job.
#[derive(Clone, Debug)]
pub struct StreamMessage {
    /// Where it stands in the stream.
    pub position: u64,
    /// How many of the job come after it by now.
    pub pending: u64,
    /// When the bus took it, in nanoseconds since 1970.
    pub at_ns: i64,
    /// What it holds; `None` for something that no agent has put there.
    pub batch: Option<BusBatch>,
}

impl Session {
    /// Connects, and makes the stream and the buckets if they are not there. What an operator has
    /// made of them is left as it is.
    ///
    /// # Errors
    /// The bus cannot be reached, refuses us, or has no JetStream.
    pub async fn open(address: &BusAddress) -> Result<Self, BusError> {
        let (tell, lost) = watch::channel(false);
        let client = address
            .options()
            .await
            .to("read credentials")?
            .event_callback(move |event| {
                debug!(%event, "bus");
                if matches!(event, Event::Disconnected | Event::Closed) {
                    tell.send_replace(true);
                }
                async {}
            })
            .connect(address.servers())
            .await
            .to("connect")?;
        let mut bus = jetstream::new(client);
        bus.set_timeout(TIMEOUT);
        // Made by the first collector; agents only publish, and need no right to make streams.
        let config = Config {
            name: names::STREAM.to_owned(),
            description: Some("batches of laggard's agents".to_owned()),
            subjects: vec![names::BATCHES.to_owned()],
            max_age: KEPT_FOR,
            // A collector knows what it has by session and sequence; this only spares the disk of
            // the bus.
            duplicate_window: KNOWN_FOR,
            ..Config::default()
        };
        let stream = bus
            .get_or_create_stream(config)
            .await
            .to("create the stream")?;
        let collectors = bucket(&bus, names::COLLECTORS, ALIVE_FOR).await?;
        let jobs = bucket(&bus, names::JOBS, Duration::ZERO).await?;
        Ok(Self {
            bus,
            stream,
            collectors,
            jobs,
            lost,
        })
    }

    /// Waits until the connection is lost, and with it the session.
    pub async fn lost(&self) {
        let mut lost = self.lost.clone();
        // The sender lives as long as the connection.
        drop(lost.wait_for(|lost| *lost).await);
    }

    /// Says that a collector is alive, and something of it that others should know.
    ///
    /// # Errors
    /// [`BusError`].
    pub async fn announce(&self, collector: &str, text: Vec<u8>) -> Result<(), BusError> {
        self.collectors
            .put(names::token(collector), text.into())
            .await
            .map(drop)
            .to("announce this collector")
    }

    /// Collectors that are alive by the clock of the bus, each with what it said.
    ///
    /// # Errors
    /// [`BusError`].
    pub async fn alive(&self) -> Result<BTreeMap<String, Vec<u8>>, BusError> {
        let wanted = "list the collectors";
        let keys: Vec<String> = self
            .collectors
            .keys()
            .await
            .to(wanted)?
            .try_collect()
            .await
            .to(wanted)?;
        let mut alive = BTreeMap::new();
        for key in keys {
            // One may be forgotten between the two requests: it is not alive then.
            if let Some(name) = names::name(&key)
                && let Some(text) = self.collectors.get(key).await.to(wanted)?
            {
                alive.insert(name, text.to_vec());
            }
        }
        Ok(alive)
    }

    /// The newest batch of each job in the stream, and then each batch that comes.
    ///
    /// # Errors
    /// [`BusError`].
    pub async fn newest_batches(&self) -> Result<(Vec<NewestBatch>, Feed<NewestBatch>), BusError> {
        // Headers only: each collector hears of all jobs, and needs the batches of its own.
        let subject = names::BATCHES;
        feed(
            &self.stream,
            self.inbox(),
            subject,
            true,
            |message, position| {
                let (job, _) = names::job_and_host(&message.subject)?;
                Some(NewestBatch { job, position })
            },
        )
        .await
    }

    /// What is noted of all jobs, and then each change.
    ///
    /// # Errors
    /// [`BusError`].
    pub async fn notes(&self) -> Result<(Vec<KeeperNote>, Feed<KeeperNote>), BusError> {
        let prefix = self.jobs.prefix.clone();
        let subject = format!("{prefix}>");
        feed(
            &self.jobs.stream,
            self.inbox(),
            &subject,
            false,
            move |message, revision| {
                let job = names::name(message.subject.strip_prefix(&prefix)?)?;
                Some(KeeperNote {
                    job,
                    revision,
                    text: message.payload.to_vec(),
                })
            },
        )
        .await
    }

    /// Notes something of a job if nobody has since `revision`, 0 if there is no note; the new
    /// revision, `None` if somebody has.
    ///
    /// # Errors
    /// [`BusError`].
    pub async fn note(
        &self,
        job: &str,
        revision: u64,
        text: Vec<u8>,
    ) -> Result<Option<u64>, BusError> {
        let (key, wanted) = (names::token(job), "record the keeper of a job");
        // Not an update from 0: of a job that was deleted the bucket still has a marker, with a
        // revision.
        if revision == 0 {
            return match self.jobs.create(key, text.into()).await {
                Err(error) if error.kind() == CreateErrorKind::AlreadyExists => Ok(None),
                noted => noted.map(Some).to(wanted),
            };
        }
        match self.jobs.update(key, text.into(), revision).await {
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(None),
            noted => noted.map(Some).to(wanted),
        }
    }

    /// Forgets a job: its batches, and what is noted of it.
    ///
    /// # Errors
    /// [`BusError`].
    pub async fn forget(&self, job: &str) -> Result<(), BusError> {
        // The batches first: with the note gone and batches there others would take the job up.
        self.stream
            .purge()
            .filter(names::batches_of(job))
            .await
            .to("delete the batches of a job")?;
        self.jobs
            // Not deleted: a purge removes what is older too, so that of the note only a marker is
            // left.
            .purge(names::token(job))
            .await
            .to("delete the keeper record of a job")
    }

    /// The messages of a job, from about `since_s` on, in seconds since 1970, from the first one on
    /// if that is 0; and how many are there.
    ///
    /// # Errors
    /// [`BusError`].
    pub async fn arrivals(
        &self,
        job: &str,
        since_s: u64,
    ) -> Result<(u64, StreamMessages), BusError> {
        let wanted = "read the batches of a job";
        let since_s = since_s.saturating_sub(READ_AGAIN_S);
        let deliver_policy = if since_s == 0 {
            DeliverPolicy::All
        } else {
            let start_time = datetime::from_nanos(i128::from(since_s) * 1_000_000_000);
            DeliverPolicy::ByStartTime {
                start_time: start_time.to(wanted)?,
            }
        };
        let subject = names::batches_of(job);
        let consumer =
            consumer(&self.stream, self.inbox(), &subject, false, deliver_policy).await?;
        let pending = consumer.cached_info().num_pending;
        let arrivals = consumer
            .messages()
            .await
            .to(wanted)?
            .map(move |message| arrival(&message.to(wanted)?));
        Ok((pending, endless(arrivals)))
    }

    fn inbox(&self) -> String {
        self.bus.client().new_inbox()
    }

    /// Tells a host of a job what is wanted of it. An agent that is not there does not hear it.
    ///
    /// # Errors
    /// [`BusError`].
    pub async fn order(&self, job: &str, host: &str, text: Vec<u8>) -> Result<(), BusError> {
        self.bus
            .client()
            .publish(names::orders(job, host), text.into())
            .await
            .to("send orders to a host")
    }
}

/// What comes on and on, until the session is over.
pub type Feed<T> = futures_util::stream::BoxStream<'static, Result<T, BusError>>;
/// The messages of a job.
pub type StreamMessages = Feed<StreamMessage>;

/// A bucket as NATS defines it, on top of a stream. The client's own way to make one asks for what
/// servers before 2.10 do not tell.
async fn bucket(bus: &Context, name: &str, max_age: Duration) -> Result<Store, BusError> {
    let config = Config {
        name: format!("KV_{name}"),
        subjects: vec![format!("$KV.{name}.>")],
        max_messages_per_subject: 1,
        max_age,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..Config::default()
    };
    bus.get_or_create_stream(config)
        .await
        .to("create a bucket")?;
    bus.get_key_value(name).await.to("open a bucket")
}

async fn consumer(
    stream: &Stream,
    inbox: String,
    subject: &str,
    headers_only: bool,
    deliver_policy: DeliverPolicy,
) -> Result<jetstream::consumer::Consumer<OrderedConfig>, BusError> {
    let config = OrderedConfig {
        deliver_subject: inbox,
        filter_subject: subject.to_owned(),
        headers_only,
        deliver_policy,
        ..OrderedConfig::default()
    };
    stream.create_consumer(config).await.to("read a stream")
}

/// The newest message of each subject, and then each that comes.
async fn feed<T: Send + 'static>(
    stream: &Stream,
    inbox: String,
    subject: &str,
    headers_only: bool,
    read: impl Fn(&Message, u64) -> Option<T> + Send + 'static,
) -> Result<(Vec<T>, Feed<T>), BusError> {
    let wanted = "read a stream";
    // Batches have a subject for each host: a job comes once for each, and callers take the newest.
    let policy = DeliverPolicy::LastPerSubject;
    let consumer = consumer(stream, inbox, subject, headers_only, policy).await?;
    let mut pending = consumer.cached_info().num_pending;
    let mut messages: Ordered = consumer.messages().await.to(wanted)?;
    let mut there = Vec::new();
    while pending > 0 {
        let message = tokio::time::timeout(TIMEOUT, messages.next())
            .await
            .to(wanted)?;
        let Some(message) = message else { break };
        let message = message.to(wanted)?;
        let info = message.info().to(wanted)?;
        pending = info.pending;
        there.extend(read(&message, info.stream_sequence));
    }
    let rest = messages
        .map(move |message| {
            let message = message.to(wanted)?;
            let position = message.info().to(wanted)?.stream_sequence;
            Ok(read(&message, position))
        })
        // What cannot be read is left out: a client that may publish can put anything there.
        .try_filter_map(|item| std::future::ready(Ok(item)));
    Ok((there, endless(rest)))
}

/// A feed whose end is a failure.
fn endless<T: Send + 'static>(
    feed: impl futures_util::Stream<Item = Result<T, BusError>> + Send + 'static,
) -> Feed<T> {
    let reason = "it has ended".to_owned();
    let end = BusError {
        wanted: "read a stream",
        reason,
    };
    feed.chain(futures_util::stream::once(std::future::ready(Err(end))))
        .boxed()
}

fn arrival(message: &Message) -> Result<StreamMessage, BusError> {
    let info = message.info().to("read the position of a message")?;
    let (position, pending) = (info.stream_sequence, info.pending);
    let at_ns = i64::try_from(info.published.unix_timestamp_nanos()).unwrap_or(i64::MAX);
    let batch = BusBatch::of(
        &message.subject,
        |name| Some(message.headers.as_ref()?.get(name)?.as_str().to_owned()),
        message.payload.clone(),
    )
    .map(|(_, batch)| batch);
    Ok(StreamMessage {
        position,
        pending,
        at_ns,
        batch,
    })
}
