use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use formats::JournalWriter;
use model::{Input, Source, SourceNote};
use ring::{JobReader, ProfileController, RankState, RingDirectory};
use verdict::{Job, MAX_WINDOW_S, Settings};

use crate::asked::ProfileRequest;
use crate::deaths::{Deaths, ProcessEnd, SIGKILL};
use crate::flight::{FlightFeed, monotonic_now};
use crate::live::{LiveFeed, READ_CLOSELY_EVERY};
use crate::ports::Ports;
use crate::probes::Probes;
use crate::processes::of_ranks;
use crate::profiles::Profiles;
use crate::ras::{Own, Ras};
use crate::rdma::RdmaFeed;
use crate::sockets::stuck_sockets;
use crate::stacks::stack_of;
use crate::tcp_links::LinkFeed;
use crate::uplink::{Farewell, Uplink};

/// How often rings are read.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Quiet of a job that is worth telling the analysis about.
const QUIET_S: f64 = 1.0;
/// How often it is looked where ranks are at most, and of how many.
const STACKS_EVERY: Duration = Duration::from_secs(1);
const MOST_STACKS: usize = 64;
/// Time that an order of a profile window takes to reach all ranks of this host.
const ORDER_AHEAD_S: f64 = 0.2;
/// How long the end of a job waits for its collector.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How often new rings and dead processes are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Who is sent what the analysis is given.
#[derive(Debug, Default)]
struct Listeners {
    journal: Option<JournalWriter>,
    uplink: Option<Uplink>,
}

/// Reads the rings of one job on this host and analyses them on the spot.
#[derive(Debug)]
pub struct Agent {
    reader: JobReader,
    job: Job,
    listeners: Listeners,
    flight: FlightFeed,
    live: LiveFeed,
    rdma: RdmaFeed,
    ports: Ports,
    links: LinkFeed,
    ras: Ras,
    deaths: Deaths,
    probes: Probes,
    profiles: Profiles,
    /// Whether somebody waits for what the window shows.
    asked: bool,
    settings: Settings,
    looked: Option<Instant>,
    /// When it was last looked where ranks are.
    stacked: Option<Instant>,
    /// Whether the job was asked to end: a rank that is killed from then on is killed by its
    /// launcher.
    ending: bool,
}

impl Agent {
    /// An agent for the job whose rings stand in `directory`.
    pub fn new(directory: RingDirectory, id: &str, settings: Settings) -> Self {
        let job = Job::new(id, Source::Run, settings.clone());
        Self {
            reader: JobReader::new(directory),
            job,
            listeners: Listeners::default(),
            flight: FlightFeed::default(),
            live: LiveFeed::new(settings.arrival.clone()),
            rdma: RdmaFeed::default(),
            ports: Ports::default(),
            links: LinkFeed::default(),
            ras: Ras::default(),
            deaths: Deaths::default(),
            probes: Probes::default(),
            profiles: Profiles::default(),
            asked: false,
            settings,
            looked: None,
            stacked: None,
            ending: false,
        }
    }

    /// Records what the analysis is given.
    pub fn record(&mut self, journal: JournalWriter) {
        self.listeners.journal = Some(journal);
    }

    /// Sends a collector what the analysis is given.
    pub fn tell_collector(&mut self, uplink: Uplink) {
        self.listeners.uplink = Some(uplink);
    }

    /// Says that the job was asked to end.
    pub fn expect_the_end(&mut self) {
        if std::mem::replace(&mut self.ending, true) {
            return;
        }
        // What ranks did before.
        self.read(JobReader::look);
        let at = self.flight.known_until(monotonic_now());
        self.tell(Input::EndAsked { at });
    }

    /// Reads what is there; returns lines about the windows that closed.
    pub fn poll(&mut self, now: Instant) -> Vec<String> {
        if self
            .looked
            .is_none_or(|looked| now.duration_since(looked) >= LOOK_EVERY)
        {
            self.looked = Some(now);
            self.read(JobReader::look);
            let Self {
                reader,
                live,
                rdma,
                listeners,
                job,
                ..
            } = self;
            live.look(reader, &mut |input| keep(listeners, job, input));
            let directory = reader.directory();
            rdma.look(directory, &mut |input| keep(listeners, job, input));
            // A process that only inherited a rank's environment has no step: its end says nothing.
            for rank in self.reader.ranks().filter(|rank| rank.step.is_some()) {
                self.flight.look_at(rank.rank, &rank.ring);
                // A process that has ended cannot be waited for any more; its number may be
                // another's by now.
                if rank.alive {
                    self.deaths.look_at(rank.pid);
                }
            }
            // What was read so far survives a kill of this process.
            end_if_failed(
                &mut self.listeners.journal,
                &mut self.job,
                JournalWriter::flush,
            );
        }
        // Before the rings are drained: until then all marks are at hand, and collectives may be
        // given out between them.
        let read = monotonic_now();
        self.read(JobReader::drain);
        self.tell_deaths();
        self.read_flight(|flight, take| flight.poll(read, take));
        let Self {
            live,
            rdma,
            listeners,
            job,
            ..
        } = self;
        live.poll(now, monotonic_now(), &mut |input| {
            keep(listeners, job, input);
        });
        rdma.poll(now, monotonic_now(), &mut |input| {
            keep(listeners, job, input);
        });
        let Self {
            reader,
            links,
            listeners,
            job,
            ..
        } = self;
        let ranks = reader
            .ranks()
            .filter(|rank| rank.alive)
            .map(|rank| (rank.rank, rank.pid));
        links.poll(now, monotonic_now(), ranks, &mut |input| {
            keep(listeners, job, input);
        });
        self.look_for_hang(now);
        let Self {
            reader,
            probes,
            profiles,
            listeners,
            job,
            ..
        } = self;
        probes.poll(now, profiles.is_busy(), reader, &mut |input| {
            keep(listeners, job, input);
        });
        self.profile(now);
        self.mark_devices();
        let Self {
            ras,
            settings,
            listeners,
            job,
            ..
        } = self;
        ras.poll(settings, &mut |input| keep(listeners, job, input));
        // After all inputs of this look, so that a window that closes with one of them is in these
        // lines.
        let announcements = self.job.take_announcements();
        let mut lines: Vec<_> = announcements
            .iter()
            .flat_map(narrate::announcement)
            .collect();
        if let Some(uplink) = &self.listeners.uplink {
            uplink.advance_watermark(self.flight.watermark(monotonic_now()));
            lines.extend(uplink.take_lines());
        }
        lines
    }

    /// How long the next [`Self::poll`] may wait.
    pub fn patience(&self, now: Instant) -> Duration {
        let closely = self.live.is_close(now) || self.profiles.is_busy();
        if closely {
            READ_CLOSELY_EVERY
        } else {
            POLL_EVERY
        }
    }

    /// Has the devices of ranks marked in more steps, if that is asked for.
    fn mark_devices(&mut self) {
        // Ranks of all hosts mark the same steps: who hears of all of them says which.
        let wanted = match &self.listeners.uplink {
            Some(uplink) => uplink.wanted_device_steps(),
            None => self.job.wanted_device_steps(monotonic_now(), ORDER_AHEAD_S),
        };
        let Some(Range { start, end }) = wanted else {
            return;
        };
        // Those who ask.
        let steps = start..end.min(start.saturating_add(steps::MAX_ASKED_STEPS));
        for rank in self.reader.ranks().filter(|rank| rank.alive) {
            if let Ok(controller) = ProfileController::open(&rank.ring.with_extension("desk")) {
                controller.ask_for_device(&steps);
            }
        }
    }

    /// Has ranks profiled if that is asked for, and tells what came of it.
    fn profile(&mut self, now: Instant) {
        let Self {
            profiles,
            probes,
            reader,
            settings,
            listeners,
            job,
            ..
        } = self;
        if profiles.is_busy() {
            let alive: BTreeSet<u32> = reader
                .ranks()
                .filter(|rank| rank.alive)
                .map(|rank| rank.pid)
                .collect();
            profiles.poll(
                now,
                settings,
                probes,
                |pid| alive.contains(&pid),
                &mut |input| {
                    keep(listeners, job, input);
                },
            );
        }
        if profiles.is_busy() {
            return;
        }
        let directory = reader.directory();
        if std::mem::take(&mut self.asked) {
            // The one who asked may have gone.
            drop(ProfileRequest::tell(directory, &Ok(job.verdict())));
        }
        let ranks: Vec<RankState> = reader.ranks().filter(|rank| rank.alive).collect();
        let here: Vec<u32> = ranks.iter().map(|rank| rank.rank).collect();
        let mut asked = ProfileRequest::take(directory);
        if let Some(why) = asked.as_ref().and_then(|asked| asked.refusal(&here)) {
            drop(ProfileRequest::tell(directory, &Err(why)));
            asked = None;
        }
        self.asked = asked.is_some();
        // The furthest: a window that begins before a rank is there would be missed by it.
        let step = ranks.iter().filter_map(|rank| rank.step).max().unwrap_or(0);
        let usual_s = job.usual_step_s();
        let mut settings = settings.profile.clone();
        let wanted = match (asked, &listeners.uplink) {
            (Some(ProfileRequest { mut ranks, seconds }), _) => {
                if let Some(seconds) = seconds {
                    settings.max_s = seconds.min(MAX_WINDOW_S);
                    // A person asks for a time: the usual count of steps must not end it first.
                    settings.max_steps = u32::MAX;
                }
                if ranks.is_empty() {
                    ranks = job.ranks_to_profile();
                }
                Some(settings.window(ranks, step, usual_s, ORDER_AHEAD_S))
            }
            // Ranks of all hosts record the same steps: who hears of all of them says which.
            (None, Some(uplink)) => {
                let wanted = uplink.wanted_profile().filter(|wanted| {
                    settings.enabled && wanted.ranks.iter().any(|it| here.contains(it))
                });
                match wanted
                    .map(|it| profiles.allow(it, &settings, step, usual_s, now))
                    .transpose()
                {
                    Ok(wanted) => wanted,
                    Err(refused) => {
                        let refused = Input::Note(SourceNote::Profile(refused));
                        return keep(listeners, job, refused);
                    }
                }
            }
            (None, None) => job
                .wanted_profile(monotonic_now())
                .map(|ranks| settings.window(ranks, step, usual_s, ORDER_AHEAD_S)),
        };
        let Some(wanted) = wanted else { return };
        let input = profiles.order(directory, &ranks, &wanted, usual_s);
        keep(listeners, job, input);
    }

    /// Says how long the job has been quiet, and looks where its ranks are if that is asked
    /// for: only of a job that does not move.
    fn look_for_hang(&mut self, asked: Instant) {
        // Nobody is accused of what is not known yet.
        self.flight.hurry(monotonic_now(), self.job.patience_s());
        let now = self.flight.known_until(monotonic_now());
        let last_at = self.job.last_at();
        // Before the first mark only live tables show whether anything moves.
        let is_quiet = match last_at {
            Some(last_at) => now.seconds_since(last_at) >= QUIET_S || self.job.is_repeating(now),
            None => self.live.is_still(),
        };
        if is_quiet {
            self.tell(Input::NoProgress { at: now });
        } else if last_at.is_some() {
            return;
        }
        // Of a host whose ranks have not begun only the collector can know that others wait.
        // Ranks stand still while they are looked at, and a caller may ask all the time.
        if self
            .stacked
            .is_some_and(|at| asked.duration_since(at) < STACKS_EVERY)
        {
            return;
        }
        let mut wanted = self.job.wanted_stacks();
        if let Some(uplink) = &self.listeners.uplink {
            wanted.extend(uplink.wanted_stacks());
        }
        if wanted.is_empty() {
            return;
        }
        let mut pids: BTreeMap<u32, u32> = self.live.processes().collect();
        let mut silent: BTreeSet<u32> = wanted.iter().copied().collect();
        silent.retain(|rank| !pids.contains_key(rank));
        for RankState {
            rank, pid, alive, ..
        } in self.reader.ranks()
        {
            silent.remove(&rank);
            pids.extend(alive.then_some((rank, pid)));
        }
        // Ranks that hang before their first mark have neither ring nor table.
        let job = self.reader.directory().path().file_name();
        pids.extend(of_ranks(job.unwrap_or_default(), &silent));
        self.stacked = Some(asked);
        let hashes = self.live.communicators().collect();
        self.ras.ask(
            asked,
            Own {
                pids: pids.values().copied().collect(),
                hashes,
            },
        );
        let here = pids.keys().next().copied();
        for (rank, pid) in pids
            .into_iter()
            .filter(|(rank, _)| wanted.contains(rank))
            .take(MOST_STACKS)
        {
            self.tell(Input::Stack {
                rank,
                stack: stack_of(pid),
            });
            for fault in self
                .rdma
                .stalled(rank)
                .into_iter()
                .chain(stuck_sockets(pid))
            {
                self.tell(Input::Network { rank, fault });
            }
        }
        // A port is of all ranks of its host.
        if let Some(rank) = here {
            for fault in self.ports.faults() {
                self.tell(Input::Network { rank, fault });
            }
        }
        self.tell(Input::StacksComplete);
    }

    /// Says which ranks were killed.
    fn tell_deaths(&mut self) {
        let ended: Vec<(u32, ProcessEnd)> = self.deaths.take().filter(|_| !self.ending).collect();
        for (pid, end) in ended {
            let Some(RankState { rank, closed, .. }) = self.ranks().find(|rank| rank.pid == pid)
            else {
                continue;
            };
            // Launchers kill what is left of ranks that are done, and ask how they ended before
            // we can.
            match end {
                ProcessEnd::Calm => {}
                ProcessEnd::Failed(code) => self.tell(Input::Failed { rank, code }),
                ProcessEnd::Unknown | ProcessEnd::Signal(SIGKILL) if closed => {}
                ProcessEnd::Unknown => self.tell(Input::Killed { rank, signal: None }),
                ProcessEnd::Signal(signal) => {
                    self.tell(Input::Killed {
                        rank,
                        signal: Some(signal),
                    });
                }
            }
        }
    }

    fn tell(&mut self, input: Input) {
        keep(&mut self.listeners, &mut self.job, input);
    }

    fn read(&mut self, how: impl FnOnce(&mut JobReader, &mut dyn FnMut(Input))) {
        let Self {
            reader,
            job,
            listeners,
            flight,
            ..
        } = self;
        how(reader, &mut |input| {
            flight.pass(input, &mut |input| keep(listeners, job, input));
        });
    }

    fn read_flight(&mut self, how: impl FnOnce(&mut FlightFeed, &mut dyn FnMut(Input))) {
        let Self {
            job,
            listeners,
            flight,
            ..
        } = self;
        how(flight, &mut |input| keep(listeners, job, input));
    }

    /// Whether no process of the job runs here any more.
    pub fn is_over(&self) -> bool {
        self.reader.ranks().all(|rank| !rank.alive) && self.live.processes().next().is_none()
    }

    /// Whether there is a collector that does not take what it is sent.
    pub fn is_behind(&self) -> bool {
        self.listeners
            .uplink
            .as_ref()
            .is_some_and(Uplink::is_behind)
    }

    /// Each process that has a ring.
    pub fn ranks(&self) -> impl Iterator<Item = RankState> {
        self.reader.ranks()
    }

    /// Tells the collector the rest of what is there; the job goes on, and the agent that reads its
    /// rings next tells of it.
    pub fn pause(mut self) {
        self.read_rest();
        if let Some(uplink) = self.listeners.uplink {
            uplink.advance_watermark(monotonic_now());
            // What is not taken is still in the rings.
            uplink.finish(Farewell::Pause, LAST_WORDS);
        }
    }

    fn read_rest(&mut self) {
        self.read(JobReader::look);
        self.read(JobReader::drain);
        self.tell_deaths();
        self.read_flight(FlightFeed::release_all);
    }

    /// Reads the rest and ends the job; whether its collector, if it has one, has taken all.
    pub fn finish(mut self) -> (Job, bool) {
        self.read_rest();
        let Self {
            profiles,
            probes,
            settings,
            listeners,
            job,
            reader,
            ..
        } = &mut self;
        let profiles = std::mem::take(profiles);
        profiles.finish(settings, probes, &mut |input| keep(listeners, job, input));
        probes.tell(&mut |input| keep(listeners, job, input));
        let faults = reader.faults();
        if faults > 0 {
            keep(listeners, job, Input::Note(SourceNote::ProbeFaults(faults)));
        }
        let mut is_delivered = true;
        if let Some(uplink) = self.listeners.uplink {
            uplink.advance_watermark(monotonic_now());
            is_delivered = uplink.finish(Farewell::Leave, LAST_WORDS);
            if !is_delivered {
                self.job.take(Input::Note(SourceNote::Undelivered));
            }
        }
        if let Some(Err(error)) = self.listeners.journal.map(JournalWriter::finish) {
            self.job.take(recording_ends(&error));
        }
        self.job.finish();
        (self.job, is_delivered)
    }
}

/// Records an input and takes it.
fn keep(listeners: &mut Listeners, job: &mut Job, input: Input) {
    end_if_failed(&mut listeners.journal, job, |journal| journal.write(&input));
    if let Some(uplink) = &listeners.uplink {
        uplink.tell(&input);
    }
    job.take(input);
}

/// Does something with the recording. A full disk ends it, not the watching.
fn end_if_failed(
    journal: &mut Option<JournalWriter>,
    job: &mut Job,
    what: impl FnOnce(&mut JournalWriter) -> io::Result<()>,
) {
    if let Some(Err(error)) = journal.as_mut().map(what) {
        *journal = None;
        job.take(recording_ends(&error));
    }
}

fn recording_ends(error: &io::Error) -> Input {
    Input::Note(SourceNote::RecordingEnds(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use model::{CollectiveIssue, CollectiveOp, Event, Mark, RankNs};
    use ring::{Identity, NameKind, RingWriter, process_started};

    use super::*;

    /// Processes in the place of ranks.
    struct Ranks([Child; 3]);

    impl Drop for Ranks {
        fn drop(&mut self) {
            for process in &mut self.0 {
                process.kill().unwrap();
                process.wait().unwrap();
            }
        }
    }

    #[test]
    fn a_hang_of_ranks_that_have_long_been_quiet_is_reported() {
        let root = tempfile::tempdir().unwrap();
        let directory = RingDirectory::create(root.path(), "job").unwrap();
        let ranks = Ranks([(); 3].map(|()| Command::new("sleep").arg("600").spawn().unwrap()));
        let long_ago = RankNs(monotonic_now().0.saturating_sub(60_000_000_000));
        for (rank, (process, number)) in ranks.0.iter().zip([47, 46, 47]).enumerate() {
            let identity = Identity {
                rank: rank as u32,
                world_size: 3,
                pid: process.id(),
                started: process_started(process.id()).unwrap(),
                ..Identity::default()
            };
            let ring = RingWriter::create(&directory, &identity, 64).unwrap();
            ring.name(NameKind::Group, "1 default 0-2").unwrap();
            ring.set_stepped(40);
            let sum = CollectiveIssue::new(CollectiveOp::ALLREDUCE, 1, number);
            ring.write(Mark {
                at: long_ago,
                step: 40,
                on_loop_thread: true,
                event: Event::CollectiveIssue(sum),
            });
        }
        let mut agent = Agent::new(directory, "job", Settings::default());
        let lines = agent.poll(Instant::now());
        let hang = "hang since step 40: rank 1 never entered ALLREDUCE #47 of group default \
                    (ranks 0,2 wait in it)";
        assert!(lines.iter().any(|line| line.contains(hang)), "{lines:?}");
    }

    #[test]
    fn a_recording_says_that_probes_failed_as_the_verdict_does() {
        let root = tempfile::tempdir().unwrap();
        let directory = RingDirectory::create(root.path(), "job").unwrap();
        let ring = RingWriter::create(&directory, &Identity::default(), 64).unwrap();
        ring.count_fault();
        ring.count_fault();
        let recording = root.path().join("job.jsonl");
        let mut agent = Agent::new(directory, "job", Settings::default());
        agent.record(JournalWriter::create(&recording, "job").unwrap());
        agent.poll(Instant::now());
        let (job, _) = agent.finish();
        let said = "the probes counted 2 internal faults";
        assert!(job.verdict().notes.iter().any(|note| note == said));
        let recorded = std::fs::read_to_string(recording).unwrap();
        assert!(recorded.contains(said), "{recorded}");
    }
}
