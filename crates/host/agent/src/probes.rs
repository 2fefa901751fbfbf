//! What the kernel says of ranks' processes, always: how many cores they keep busy, and how long
//! their loops stand ready without one; and of the devices they use. Closer while a profile window
//! lasts.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use model::{CoreUsage, Input};
use pattern::Resource;
use ring::{JobReader, RankState};
use trace::Counter;

use crate::devices::HostDevices;
use crate::live::READ_CLOSELY_EVERY;
use crate::quota::Quota;

/// How often processes are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same in nanoseconds, less what a poll may come early.
const LOOK_NS: u64 = 95_000_000;
/// How often the analysis is given what they did. Taste: an incident lasts longer.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How long samples are kept: longer than the longest window with what it takes to begin and end.
pub(crate) const KEPT_NS: u64 = 180_000_000_000;
/// Ticks a second of `/proc/PID/stat`, the same on every Linux.
const TICK_NS: f64 = 1e7;

/// The processes of a host's ranks, and its devices once there are any.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    processes: BTreeMap<u32, ProbedProcess>,
    devices: Option<HostDevices>,
    looked: Option<Instant>,
    reported_at: Option<Instant>,
}

/// One rank's process.
#[derive(Debug)]
struct ProbedProcess {
    rank: u32,
    /// `/proc/PID/schedstat` and `/proc/PID/stat`: they stay open, for to find them costs more than
    /// to read them.
    schedule: File,
    state: File,
    quota: Option<Quota>,
    loops: VecDeque<LoopSample>,
    last_loop: Option<Scheduled>,
    last: Option<(Scheduled, u64)>,
    /// What the analysis was not given yet, and since which step.
    usage: CoreUsage,
    first_step: u32,
    step: u32,
}

/// `/proc/PID/schedstat`: the main thread's nanoseconds on a core, and ready without one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::struct_field_names, reason = "the unit belongs to the name")]
struct Scheduled {
    at_ns: u64,
    ran_ns: u64,
    waited_ns: u64,
}

/// What a loop did from one look to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::struct_field_names, reason = "the unit belongs to the name")]
struct LoopSample {
    at_ns: u64,
    lasted_ns: u64,
    ran_ns: u64,
    waited_ns: u64,
}

/// What a rank used in a profile window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used {
    /// Utilisation of what its functions use, by the wall clock: of a core by its loop, and of
    /// devices.
    pub(crate) counters: Vec<Counter>,
    /// Share of the time in which its loop stood ready and had no core; `None` without samples.
    pub(crate) without_core_share: Option<f64>,
}

impl Probes {
    /// Looks at the processes of ranks if it is time, and tells what they did.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        closely: bool,
        rings: &JobReader,
        take: &mut dyn FnMut(Input),
    ) {
        let every = if closely {
            READ_CLOSELY_EVERY
        } else {
            LOOK_EVERY
        };
        if self
            .looked
            .is_some_and(|looked| now.duration_since(looked) < every)
        {
            return;
        }
        self.looked = Some(now);
        let ranks: Vec<RankState> = rings.ranks().filter(|rank| rank.alive).collect();
        for rank in &ranks {
            let Some(step) = rank.step else { continue };
            let known = self.processes.contains_key(&rank.pid);
            if !known && let Some(process) = ProbedProcess::open(rank.rank, rank.pid, step) {
                self.processes.insert(rank.pid, process);
            }
            if let Some(process) = self.processes.get_mut(&rank.pid) {
                process.step = step;
            }
        }
        let ended = self
            .processes
            // By the wall clock, in which PyTorch writes the traces that these samples are put
            // beside.
            .extract_if(.., |_, process| process.look(wall_ns()).is_none());
        for (_, mut process) in ended {
            process.tell(take);
        }
        if !self.processes.is_empty() {
            self.devices
                .get_or_insert_default()
                .look(wall_ns(), closely, &ranks);
        }
        if now.duration_since(*self.reported_at.get_or_insert(now)) >= TELL_EVERY {
            self.reported_at = Some(now);
            self.tell(take);
        }
    }

    /// Reports what was not reported yet.
    pub(crate) fn tell(&mut self, take: &mut dyn FnMut(Input)) {
        self.processes
            .values_mut()
            .for_each(|process| process.tell(take));
        self.devices
            .iter_mut()
            .for_each(|devices| devices.tell(take));
    }

    /// What the rank of a process used since then.
    pub(crate) fn since(&self, pid: u32, at_ns: u64) -> Used {
        let Some(process) = self.processes.get(&pid) else {
            return Used::default();
        };
        let (mut busy, mut lasted_ns, mut waited_ns) = (Vec::new(), 0, 0);
        for sample in process.loops.iter().filter(|sample| sample.at_ns >= at_ns) {
            let share = sample.ran_ns as f64 / sample.lasted_ns.max(1) as f64;
            let at_ns = i64::try_from(sample.at_ns).unwrap_or(i64::MAX);
            busy.push((at_ns, share.min(1.0) as f32));
            lasted_ns += sample.lasted_ns;
            waited_ns += sample.waited_ns;
        }
        let mut counters = vec![Counter {
            resource: Resource::Cpu,
            samples: busy,
        }];
        if let Some(devices) = &self.devices {
            counters.extend(devices.since(process.rank, at_ns));
        }
        let without_core_share =
            (lasted_ns > 0).then(|| (waited_ns as f64 / lasted_ns as f64).min(1.0));
        Used {
            counters,
            without_core_share,
        }
    }
}

impl ProbedProcess {
    fn open(rank: u32, pid: u32, step: u32) -> Option<Self> {
        Some(Self {
            rank,
            schedule: File::open(format!("/proc/{pid}/schedstat")).ok()?,
            state: File::open(format!("/proc/{pid}/stat")).ok()?,
            quota: Quota::of(pid),
            loops: VecDeque::new(),
            last_loop: None,
            last: None,
            usage: CoreUsage::default(),
            first_step: step,
            step,
        })
    }

    /// Looks at it; `None` once it has ended.
    fn look(&mut self, at_ns: u64) -> Option<()> {
        // Reading fails once the process is gone, even if another has its number: the file is its
        // own.
        let now = scheduled(&text(&self.schedule)?, at_ns)?;
        if let Some(before) = self.last_loop.replace(now) {
            self.loops.push_back(LoopSample {
                at_ns: before.at_ns,
                lasted_ns: now.at_ns.saturating_sub(before.at_ns),
                ran_ns: now.ran_ns.saturating_sub(before.ran_ns),
                waited_ns: now.waited_ns.saturating_sub(before.waited_ns),
            });
            while self
                .loops
                .pop_front_if(|oldest| at_ns.saturating_sub(oldest.at_ns) > KEPT_NS)
                .is_some()
            {}
        }
        // The rest costs more, and ticks of 10 ms are too coarse for looks that are closer.
        if let Some((before, _)) = self.last
            && at_ns.saturating_sub(before.at_ns) < LOOK_NS
        {
            return Some(());
        }
        let ticks = ticks(&text(&self.state)?)?;
        if let Some((before, ticks_before)) = self.last.replace((now, ticks)) {
            let lasted_ns = now.at_ns.saturating_sub(before.at_ns).max(1) as f64;
            let waited_ns = now.waited_ns.saturating_sub(before.waited_ns) as f64;
            let busy_ns = ticks.saturating_sub(ticks_before) as f64 * TICK_NS;
            let throttled_share = self.quota.as_mut().map_or(0.0, Quota::throttled_share);
            self.usage = self.usage.and(CoreUsage {
                lasted_s: lasted_ns * 1e-9,
                cores: busy_ns / lasted_ns,
                cores_deviation: 0.0,
                without_core_share: (waited_ns / lasted_ns).min(1.0),
                throttled_share,
            });
        }
        Some(())
    }

    fn tell(&mut self, take: &mut dyn FnMut(Input)) {
        let usage = std::mem::take(&mut self.usage);
        // The step it is in now is in both reports: part of it was spent in each.
        let first_step = std::mem::replace(&mut self.first_step, self.step);
        if usage.lasted_s > 0.0 {
            let (rank, last_step) = (self.rank, self.step);
            take(Input::Usage {
                rank,
                first_step,
                last_step,
                usage,
            });
        }
    }
}

/// The wall clock in nanoseconds, as PyTorch's traces have it.
pub(crate) fn wall_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos() as u64
}

/// A file of `/proc` or `/sys` from its beginning; `None` if what it tells of has ended.
pub(crate) fn text(file: &File) -> Option<String> {
    // Longer than any of these files, and read at 0: the kernel makes its text anew for that.
    let mut bytes = [0; 1024];
    let length = file.read_at(&mut bytes, 0).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

fn scheduled(text: &str, at_ns: u64) -> Option<Scheduled> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let (ran_ns, waited_ns) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(Scheduled {
        at_ns,
        ran_ns,
        waited_ns,
    })
}

/// Ticks that all threads of a process ran, by itself and in the kernel.
fn ticks(text: &str) -> Option<u64> {
    // The name before may have spaces and brackets of its own.
    let (_, fields) = text.rsplit_once(')')?;
    // Fields 14 and 15 of proc(5), `utime` and `stime`; the bracket ends field 2.
    let mut fields = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    fields.next()?.ok()?.checked_add(fields.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn process() -> ProbedProcess {
        ProbedProcess::open(3, std::process::id(), 40).expect("this process runs")
    }

    #[test]
    fn what_proc_says_is_read_whatever_the_name_of_the_process() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 31 0 0 20 0 1 0 5";
        assert_eq!(ticks(stat), Some(281));
        assert_eq!(ticks("7 (a"), None);
        let found = Scheduled {
            at_ns: 5,
            ran_ns: 1000,
            waited_ns: 50,
        };
        assert_eq!(scheduled("1000 50 7", 5), Some(found));
        assert_eq!(scheduled("one two", 5), None);
    }

    #[test]
    fn this_process_is_seen_with_the_steps_it_was_in() {
        let mut process = process();
        for at_s in 0..3 {
            assert_eq!(process.look(at_s * SECOND), Some(()));
            process.step += 1;
        }
        let mut reported = Vec::new();
        process.tell(&mut |input| reported.push(input));
        process.tell(&mut |input| reported.push(input));
        let [
            Input::Usage {
                rank: 3,
                first_step: 40,
                last_step: 43,
                usage,
            },
        ] = reported[..]
        else {
            panic!("{reported:?}")
        };
        assert!(
            usage.is_sound() && (usage.lasted_s - 2.0).abs() < 1e-9,
            "{usage:?}"
        );
    }

    #[test]
    fn the_longest_window_sees_its_beginning_however_closely_it_is_looked() {
        const LOOK: u64 = SECOND / 50;
        let mut process = process();
        let longest_ns = (verdict::MAX_WINDOW_S * 1e9) as u64;
        for look in 0..=(2 * KEPT_NS / LOOK) {
            process.look(look * LOOK);
        }
        let kept_ns = 2 * KEPT_NS - process.loops[0].at_ns;
        assert!((longest_ns..=KEPT_NS).contains(&kept_ns), "{kept_ns}");
    }

    #[test]
    fn a_window_sees_the_samples_since_its_beginning() {
        let mut process = process();
        for at_s in 0..4 {
            process.look(at_s * SECOND);
        }
        let mut probes = Probes::default();
        probes.processes.insert(7, process);
        let times = |used: Used| {
            let of_core = used.counters.iter().filter(|c| c.resource == Resource::Cpu);
            let samples = of_core.flat_map(|counter| &counter.samples);
            samples.map(|(at_ns, _)| *at_ns).collect::<Vec<_>>()
        };
        assert_eq!(
            times(probes.since(7, SECOND)),
            [1_000_000_000, 2_000_000_000]
        );
        assert!(probes.since(7, 0).without_core_share.is_some());
        assert_eq!(probes.since(7, 9 * SECOND).without_core_share, None);
        assert_eq!(times(probes.since(8, 0)), [0; 0]);
    }
}
