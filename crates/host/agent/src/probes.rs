//! What the kernel says of a rank's loop while its profile window lasts: how busy it keeps a
//! core, and how long it stood ready without one.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Main threads of some processes, sampled.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    loops: BTreeMap<u32, Loop>,
}

/// One process's main thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Loop {
    /// Wall clock in nanoseconds, and the share of a core it kept busy until the next sample.
    pub(crate) busy: Vec<(i64, f32)>,
    last: Option<Reading>,
    ran_ns: u64,
    waited_ns: u64,
    lasted_ns: u64,
}

/// `/proc/PID/schedstat`: the main thread's nanoseconds on a core, and ready without one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::struct_field_names, reason = "the unit belongs to the name")]
struct Reading {
    at_ns: u64,
    ran_ns: u64,
    waited_ns: u64,
}

impl Probes {
    /// Samples these processes; others are forgotten.
    pub(crate) fn sample(&mut self, pids: impl IntoIterator<Item = u32>) {
        for pid in pids {
            let text = fs::read_to_string(format!("/proc/{pid}/schedstat"));
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let Some(reading) = read(&text.unwrap_or_default(), now.as_nanos() as u64)
            else {
                continue;
            };
            self.loops.entry(pid).or_default().add(reading);
        }
    }

    /// What was sampled of a process.
    pub(crate) fn take(&mut self, pid: u32) -> Loop {
        self.loops.remove(&pid).unwrap_or_default()
    }
}

impl Loop {
    fn add(&mut self, now: Reading) {
        if let Some(before) = self.last {
            let lasted_ns = now.at_ns.saturating_sub(before.at_ns);
            let ran_ns = now.ran_ns.saturating_sub(before.ran_ns);
            let share = ran_ns as f64 / lasted_ns.max(1) as f64;
            let at_ns = i64::try_from(before.at_ns).unwrap_or(i64::MAX);
            self.busy.push((at_ns, share.min(1.0) as f32));
            self.ran_ns += ran_ns;
            self.waited_ns += now.waited_ns.saturating_sub(before.waited_ns);
            self.lasted_ns += lasted_ns;
        }
        self.last = Some(now);
    }

    /// Share of the time in which it stood ready and had no core; `None` without samples.
    pub(crate) fn without_core_share(&self) -> Option<f64> {
        (self.lasted_ns > 0)
            .then(|| (self.waited_ns as f64 / self.lasted_ns as f64).min(1.0))
    }
}

fn read(text: &str, at_ns: u64) -> Option<Reading> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let (ran_ns, waited_ns) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(Reading { at_ns, ran_ns, waited_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_between_two_samples() {
        let mut found = Loop::default();
        for (at_ns, text) in [(100, "1000 50 7"), (200, "1080 70 9"), (300, "1080 150 9")]
        {
            found.add(read(text, at_ns).unwrap());
        }
        assert_eq!(found.busy, [(100, 0.8), (200, 0.0)]);
        assert_eq!(found.without_core_share(), Some(0.5));
        assert_eq!(Loop::default().without_core_share(), None);
        assert_eq!(read("", 0), None);
        assert_eq!(read("one two", 0), None);
    }

    #[test]
    fn this_thread_has_a_schedule() {
        let mut probes = Probes::default();
        probes.sample([std::process::id(), u32::MAX]);
        probes.sample([std::process::id()]);
        assert_eq!(probes.take(std::process::id()).busy.len(), 1);
        assert_eq!(probes.take(u32::MAX), Loop::default());
    }
}
