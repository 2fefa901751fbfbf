use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use model::{CoreUsage, Device, DeviceUsage};

/// Tellings of a rank that are kept: some ten minutes, as agents tell them.
const KEPT: usize = 64;
/// The same of a device, of which more is told: some three minutes.
const KEPT_OF_DEVICE: usize = 16;
/// Devices of a job, far above what its ranks can use.
const MAX_DEVICES: usize = 1 << 18;

/// What was told of some steps, the latest last.
type Told<T> = VecDeque<(RangeInclusive<u64>, T)>;

/// What ranks' processes did with cores, and devices for them, lately.
#[derive(Debug, Default)]
pub(crate) struct Usages {
    ranks: BTreeMap<u32, Told<CoreUsage>>,
    /// By the ranks that use them.
    devices: BTreeMap<(Vec<u32>, Device), Told<DeviceUsage>>,
}

impl Usages {
    /// Takes what a rank's process did in these steps.
    pub(crate) fn take(
        &mut self,
        rank: u32,
        steps: RangeInclusive<u64>,
        usage: CoreUsage,
    ) {
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
        if usage.is_sound() && has_room && !place.0.is_empty() {
            let told = self.devices.entry(place).or_default();
            keep(told, steps, usage, KEPT_OF_DEVICE);
        }
    }

    /// What each rank's process did in these steps, as far as it was told.
    pub(crate) fn during(&self, steps: &RangeInclusive<u64>) -> BTreeMap<u32, CoreUsage> {
        let of_rank = |told| of_steps(told, steps).copied().reduce(CoreUsage::and);
        let ranks = self.ranks.iter();
        ranks.filter_map(|(rank, told)| Some((*rank, of_rank(told)?))).collect()
    }

    /// What each device did in these steps, with the ranks that use it.
    pub(crate) fn devices_during(
        &self,
        steps: &RangeInclusive<u64>,
    ) -> Vec<(Vec<u32>, DeviceUsage)> {
        let devices = self.devices.iter().filter_map(|((ranks, _), told)| {
            let mut told = of_steps(told, steps);
            let mut sum = told.next()?.clone();
            told.for_each(|usage| sum.add(usage));
            Some((ranks.clone(), sum))
        });
        devices.collect()
    }
}

fn keep<T>(told: &mut Told<T>, steps: RangeInclusive<u64>, usage: T, most: usize) {
    told.push_back((steps, usage));
    if told.len() > most {
        told.pop_front();
    }
}

fn of_steps<'a, T>(
    told: &'a Told<T>,
    steps: &RangeInclusive<u64>,
) -> impl Iterator<Item = &'a T> {
    let (first, last) = (*steps.start(), *steps.end());
    let told = told.iter();
    let told =
        told.filter(move |(told, _)| *told.start() <= last && first <= *told.end());
    told.map(|(_, usage)| usage)
}
