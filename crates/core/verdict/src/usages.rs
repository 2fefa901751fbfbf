use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use model::{CoreUsage, Device, DeviceUsage};

/// Tellings of a rank that are kept: some ten minutes, as agents tell them.
const KEPT: usize = 64;
/// The same of a device, of which more is sent: some three minutes.
const KEPT_OF_DEVICE: usize = 16;
/// Devices of a job, far above what its ranks can use.
const MAX_DEVICES: usize = 1 << 18;
/// Ranks that use one device; no host has more.
const MAX_USERS: usize = 4096;

/// Devices of a kind that others are compared with: their median changes little with more.
const PEERS: usize = 200;

/// What was sent of some steps, the latest last.
type UsageHistory<T> = VecDeque<(RangeInclusive<u64>, T)>;

/// What ranks' processes did with cores, and devices for them, lately.
#[derive(Debug, Default)]
pub(crate) struct Usages {
    ranks: BTreeMap<u32, UsageHistory<CoreUsage>>,
    /// By the ranks that use them.
    devices: BTreeMap<(Vec<u32>, Device), UsageHistory<DeviceUsage>>,
}

impl Usages {
    /// Takes what a rank's process did in these steps.
    pub(crate) fn take(&mut self, rank: u32, steps: RangeInclusive<u64>, usage: CoreUsage) {
        // From a file or the network: a number beyond all hosts would decide each mean that it is
        // in.
        if usage.is_sound() {
            keep(self.ranks.entry(rank).or_default(), steps, usage, KEPT);
        }
    }

    /// Takes what a device did while the ranks that use it were in these steps.
    pub(crate) fn take_device(
        &mut self,
        ranks: Vec<u32>,
        steps: RangeInclusive<u64>,
        usage: DeviceUsage,
    ) {
        let place = (ranks, usage.device.clone());
        let is_known = self.devices.contains_key(&place);
        let has_room = is_known || self.devices.len() < MAX_DEVICES;
        if usage.is_sound() && has_room && (1..=MAX_USERS).contains(&place.0.len()) {
            let history = self.devices.entry(place).or_default();
            keep(history, steps, usage, KEPT_OF_DEVICE);
        }
    }

    /// What each rank's process did in these steps, as far as it was sent.
    pub(crate) fn during(&self, steps: &RangeInclusive<u64>) -> BTreeMap<u32, CoreUsage> {
        self.ranks
            .iter()
            .filter_map(|(rank, reported)| {
                let usage = of_steps(reported, steps).copied().reduce(CoreUsage::and)?;
                Some((*rank, usage))
            })
            .collect()
    }

    /// What each device of these ranks did in these steps, or of all if there are none, and some
    /// others to compare it with; each with the ranks that use it.
    pub(crate) fn devices_during(
        &self,
        ranks: &[u32],
        steps: &RangeInclusive<u64>,
    ) -> Vec<(Vec<u32>, DeviceUsage)> {
        let is_own =
            |users: &[u32]| ranks.is_empty() || users.iter().any(|rank| ranks.contains(rank));
        let (own, others): (Vec<_>, Vec<_>) = self
            .devices
            .iter()
            .partition(|((users, _), _)| is_own(users));
        let (gpus, cards): (Vec<_>, Vec<_>) = others
            .into_iter()
            .partition(|((_, device), _)| matches!(device, Device::Gpu(_)));
        let some = [gpus, cards].map(|alike| {
            // From all over the job: neighbours share a host, and what is wrong with it.
            let every = alike.len() / PEERS + 1;
            alike.into_iter().step_by(every)
        });
        let devices = own.into_iter().chain(some.into_iter().flatten());
        let summed = devices.filter_map(|((users, _), history)| {
            let mut history = of_steps(history, steps);
            let mut sum = history.next()?.clone();
            history.for_each(|usage| sum.add(usage));
            Some((users.clone(), sum))
        });
        summed.collect()
    }

    /// What each device did lately, if its ranks were in this step all the while.
    pub(crate) fn devices_at(&self, step: u64) -> Vec<(Vec<u32>, DeviceUsage)> {
        let of_step = self.devices.iter().filter_map(|((users, _), history)| {
            let (steps, usage) = history.back()?;
            (*steps == (step..=step)).then(|| (users.clone(), usage.clone()))
        });
        of_step.collect()
    }
}

fn keep<T>(history: &mut UsageHistory<T>, steps: RangeInclusive<u64>, usage: T, most: usize) {
    history.push_back((steps, usage));
    if history.len() > most {
        history.pop_front();
    }
}

fn of_steps<'a, T>(
    history: &'a UsageHistory<T>,
    steps: &RangeInclusive<u64>,
) -> impl Iterator<Item = &'a T> {
    let (first, last) = (*steps.start(), *steps.end());
    let history = history.iter();
    let history =
        history.filter(move |(history, _)| *history.start() <= last && first <= *history.end());
    history.map(|(_, usage)| usage)
}

#[cfg(test)]
mod tests {
    use model::Gauge;

    use super::*;

    #[test]
    fn devices_of_some_ranks_are_summed_with_some_others_of_each_kind() {
        let mut usages = Usages::default();
        for step in [10, 20, 900] {
            for rank in 0..1000 {
                let mut usage = DeviceUsage::new(Device::Gpu(rank % 8));
                usage.measure(Gauge::ClockMhz, step as f64, 10.0);
                usages.take_device(vec![rank], step..=step + 9, usage);
                let card = DeviceUsage::new(Device::Card("eth0".into()));
                if rank % 8 == 0 {
                    let users = (rank..rank + 8).collect();
                    usages.take_device(users, step..=step + 9, card);
                }
            }
        }
        let found = usages.devices_during(&[500], &(0..=99));
        let (gpus, cards): (Vec<_>, Vec<_>) = found
            .iter()
            .partition(|(_, usage)| matches!(usage.device, Device::Gpu(_)));
        assert_eq!(gpus[0].0, [500]);
        let clocks = |wanted| {
            gpus.iter()
                .all(|(_, gpu)| gpu.gauge(Gauge::ClockMhz) == wanted)
        };
        assert!(clocks(Some(15.0)), "steps 900 and later are left out");
        assert!((100..=250).contains(&gpus.len()) && (100..=125).contains(&cards.len()));
        assert_eq!(usages.devices_during(&[], &(0..=99)).len(), 1125);
    }

    #[test]
    fn what_no_host_tells_is_not_kept() {
        let mut usages = Usages::default();
        let usage = DeviceUsage::new(Device::Gpu(0));
        usages.take_device(Vec::new(), 0..=9, usage.clone());
        usages.take_device((0..=MAX_USERS as u32).collect(), 0..=9, usage);
        assert!(usages.devices.is_empty());
    }
}
