use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Counters of one device that are taken from a host; none has more.
// The most that an agent sends is ten: seven of a GPU and three of its place on the bus.
const MAX_ERRORS: usize = 16;
/// Bytes of a name.
// As long as the kernel's names of cards.
const MAX_NAME: usize = 64;

/// A device that ranks use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// A GPU, by its number on its host.
    Gpu(u32),
    /// A port of a network card, by its name: `eth0`, `mlx5_0/1`.
    Card(String),
}

/// What is measured of a device, while time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gauge {
    /// Share of the multiprocessors that work; where the GPU does not tell, share of the time in
    /// which a kernel runs.
    BusyShare,
    /// Share of the bandwidth of the GPU's memory that is used; where it does not tell, share of
    /// the time in which any is.
    MemoryShare,
    /// Clock of the multiprocessors while they work, in MHz.
    ClockMhz,
    /// Power that the GPU draws, in watts.
    Watts,
    /// Share of the time in which heat slows the GPU down.
    HeatShare,
    /// Share of the time in which its power limit does.
    PowerLimitShare,
    /// Share of the time in which its board or the host's power supply does.
    PowerBrakeShare,
    /// Bytes a second over the host's bus, both ways.
    PcieBytesPerS,
    /// Lanes of the host's bus that are in use.
    PcieLanes,
    /// Lanes it could use.
    PcieLanesMost,
    /// Transfers a second of a lane while the device works, in GT/s.
    PcieGtPerS,
    /// Bytes a second over links to other GPUs, both ways.
    NvlinkBytesPerS,
    /// Links to other GPUs that are up.
    Nvlinks,
    /// Bytes a second that a card sends.
    SentBytesPerS,
    /// Bytes a second that it receives.
    ReceivedBytesPerS,
    /// Bytes a second that its link takes, each way.
    LinkBytesPerS,
    /// Share of the time in which its link takes no more, one way or the other.
    FullShare,
}

/// The mean of a gauge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// Seconds it is the mean of.
    pub over_s: f64,
}

/// What a device did for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceUsage {
    /// Which device.
    pub device: Device,
    /// What was measured.
    #[serde(default)]
    pub gauges: BTreeMap<Gauge, Mean>,
    /// Errors it counted meanwhile, by counter.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
}

impl DeviceUsage {
    /// Nothing is known of it yet.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            gauges: BTreeMap::new(),
            errors: BTreeMap::new(),
        }
    }

    /// The mean of a gauge, if it was measured.
    pub fn gauge(&self, gauge: Gauge) -> Option<f64> {
        self.gauges.get(&gauge).map(|mean| mean.value)
    }

    /// Takes what a gauge was for so long. What is not a number says nothing: a GPU that measures
    /// itself has none for a moment in which it did not look.
    pub fn measure(&mut self, gauge: Gauge, value: f64, over_s: f64) {
        if over_s > 0.0 && value.is_finite() {
            let mean = self.gauges.entry(gauge).or_default();
            // A running mean: over_s is positive, so the quotient is a number.
            mean.over_s += over_s;
            mean.value += (value - mean.value) * over_s / mean.over_s;
        }
    }

    /// Adds what the same device did before or after.
    ///
    /// # Properties
    /// Neither order nor grouping matters, but for rounding.
    pub fn add(&mut self, other: &Self) {
        for (gauge, mean) in &other.gauges {
            self.measure(*gauge, mean.value, mean.over_s);
        }
        for (name, count) in &other.errors {
            let errors = self.errors.entry(name.clone()).or_default();
            // Hosts send the counts: no sum of them may overflow.
            *errors = errors.saturating_add(*count);
        }
    }

    /// Whether a host may have sent this.
    pub fn is_sound(&self) -> bool {
        let card = match &self.device {
            Device::Card(name) => Some(name),
            Device::Gpu(_) => None,
        };
        let mut names = self.errors.keys().chain(card);
        self.gauges.values().all(Mean::is_sound)
            && self.errors.len() <= MAX_ERRORS
            && names.all(|name| name.len() <= MAX_NAME)
    }
}

impl Mean {
    fn is_sound(&self) -> bool {
        // Far above any device and any run.
        // NaN lies in no range.
        [self.value, self.over_s]
            .iter()
            .all(|number| (0.0..1e15).contains(number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn usage(parts: &[(f64, f64)]) -> DeviceUsage {
        let mut usage = DeviceUsage::new(Device::Gpu(0));
        for (at, (value, over_s)) in parts.iter().enumerate() {
            let gauge = [Gauge::BusyShare, Gauge::ClockMhz][at % 2];
            usage.measure(gauge, *value, *over_s);
            *usage.errors.entry("replay".to_owned()).or_default() += at as u64;
        }
        usage
    }

    #[test]
    fn a_gauge_that_was_not_always_measured_is_the_mean_of_when_it_was() {
        let mut whole = usage(&[(0.2, 1.0), (1980.0, 1.0), (0.6, 3.0)]);
        whole.add(&usage(&[(0.5, 4.0)]));
        assert_eq!(whole.gauge(Gauge::BusyShare), Some(0.5));
        assert_eq!(whole.gauge(Gauge::ClockMhz), Some(1980.0));
        assert_eq!(whole.gauge(Gauge::FullShare), None);
    }

    #[test]
    fn a_moment_without_a_number_says_nothing_of_the_others() {
        let mut usage = usage(&[(0.2, 1.0)]);
        usage.measure(Gauge::BusyShare, f64::NAN, 1.0);
        usage.measure(Gauge::PcieLanes, f64::INFINITY, 1.0);
        assert_eq!(usage.gauge(Gauge::BusyShare), Some(0.2));
        assert_eq!(usage.gauge(Gauge::PcieLanes), None);
    }

    #[test]
    fn what_no_device_does_is_not_sound() {
        assert!(usage(&[(0.2, 1.0)]).is_sound());
        let mut sent = usage(&[(0.2, 1.0)]);
        sent.gauges.entry(Gauge::BusyShare).or_default().value = f64::NAN;
        assert!(!sent.is_sound());
        assert!(!usage(&[(-1.0, 1.0)]).is_sound());
        assert!(!DeviceUsage::new(Device::Card("e".repeat(65))).is_sound());
    }

    proptest! {
        #[test]
        fn usages_add_up_in_any_order_and_grouping(
            parts in proptest::collection::vec((0.0..1e3, 0.0..10.0), 0..12),
            cut in 0_usize..12,
        ) {
            let (first, second) = parts.split_at(cut.min(parts.len()) / 2 * 2);
            let sum = |first: &[_], second: &[_]| {
                let mut sum = usage(first);
                sum.add(&usage(second));
                sum
            };
            let (one, other) = (sum(first, second), sum(second, first));
            prop_assert_eq!(&one.errors, &other.errors);
            let whole = usage(&parts);
            for (gauge, mean) in &whole.gauges {
                for sum in [&one, &other] {
                    let found = sum.gauges[gauge];
                    prop_assert!((found.value - mean.value).abs() < 1e-6);
                    prop_assert!((found.over_s - mean.over_s).abs() < 1e-6);
                }
            }
            prop_assert!(whole.is_sound());
        }
    }
}
