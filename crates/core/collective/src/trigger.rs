use std::collections::{BTreeMap, VecDeque};

use model::{CollectiveOp, Operation, RankNs};

use crate::ArrivalSettings;
use crate::arrival::median;

/// Healthy operations of a class that its usual time is the median of, and the fewest.
///
/// Mycroft (2025) takes windows of 10 s; operations of one class are its windows of ours.
const USUAL_OPS: usize = 30;
const MIN_USUAL_OPS: usize = 6;
/// Slow operations among the last ones that make a class slow. Lateness takes 3 of 5; what is
/// slow by a factor of 2 needs less.
const LAST_OPS: usize = 5;
const SLOW_OF_LAST: usize = 2;

/// Seconds more than usual that a single operation must take. Mycroft (2025) asks for 1 s; of
/// a delay of 1 s this is what falls into the operation it strikes.
const STALL_S: f64 = 0.75;

/// Times the usual from which an operation in progress is looked at closely. Our choice.
const SUSPECT_RATIO: f64 = 1.5;

/// Notices that operations of a rank take much longer than they used to.
///
/// # Properties
/// Operations of different communicators, kinds and sizes are never compared: another mix of
/// messages is no slowdown. Slow operations do not become usual; a decay so slow that none of
/// them is does.
/// # Source
/// Mycroft (2025), trigger: throughput below half of normal, per class of operation.
#[derive(Clone, Debug)]
pub struct Trigger {
    settings: ArrivalSettings,
    classes: BTreeMap<(u64, CollectiveOp, u32), Class>,
}

#[derive(Clone, Debug, Default)]
struct Class {
    usual_s: VecDeque<f64>,
    slow: VecDeque<bool>,
}

/// An operation that took much longer than usual, as others before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// Seconds it took, or has taken until now.
    pub took_s: f64,
    /// Seconds it usually takes.
    pub usual_s: f64,
}

impl Trigger {
    /// Nothing is usual yet.
    pub fn new(settings: ArrivalSettings) -> Self {
        Self { settings, classes: BTreeMap::new() }
    }

    /// Takes an operation that ended; tells if operations like it have become slow. If only its
    /// call was seen, its time is none.
    pub fn ended(&mut self, operation: &Operation) -> Option<Slow> {
        if operation.may_have_ended {
            return None;
        }
        let took_s = operation.ended_at?.seconds_since(operation.begun_at);
        let is_slow = self.slow(operation, took_s);
        let class = self.classes.entry(class_of(operation)).or_default();
        push(&mut class.slow, is_slow.is_some(), LAST_OPS);
        if is_slow.is_none() {
            push(&mut class.usual_s, took_s, USUAL_OPS);
        }
        let often = class.slow.iter().filter(|slow| **slow).count() >= SLOW_OF_LAST;
        is_slow.filter(|slow| often || slow.took_s - slow.usual_s >= STALL_S)
    }

    /// Whether an operation in progress already takes longer than it should: worth a closer
    /// look, and not yet a word.
    pub fn is_suspect(&self, operation: &Operation, now: RankNs) -> bool {
        let took_s = now.seconds_since(operation.begun_at);
        self.beyond(operation, took_s, SUSPECT_RATIO).is_some()
    }

    fn slow(&self, operation: &Operation, took_s: f64) -> Option<Slow> {
        self.beyond(operation, took_s, 1.0 / self.settings.bandwidth_ratio)
    }

    fn beyond(&self, operation: &Operation, took_s: f64, ratio: f64) -> Option<Slow> {
        let class = self.classes.get(&class_of(operation))?;
        if class.usual_s.len() < MIN_USUAL_OPS {
            return None;
        }
        let usual_s = median(class.usual_s.iter().copied().collect());
        let slow =
            took_s > ratio * usual_s && took_s - usual_s > self.settings.late_min_s;
        slow.then_some(Slow { took_s, usual_s })
    }
}

fn class_of(operation: &Operation) -> (u64, CollectiveOp, u32) {
    (operation.communicator, operation.op, operation.bytes.checked_ilog2().unwrap_or(0))
}

fn push<T>(last: &mut VecDeque<T>, value: T, most: usize) {
    last.push_back(value);
    if last.len() > most {
        last.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(sequence: u64, bytes: u64, took_ms: u64) -> Operation {
        let begun_at = RankNs(sequence * 1_000_000_000);
        Operation {
            communicator: 1,
            op: CollectiveOp(3),
            sequence,
            bytes,
            begun_at,
            ended_at: Some(RankNs(begun_at.0 + took_ms * 1_000_000)),
            may_have_ended: false,
            flows: Vec::new(),
        }
    }

    #[test]
    fn what_takes_more_than_twice_as_long_again_and_again_is_slow() {
        let mut trigger = Trigger::new(ArrivalSettings::default());
        for sequence in 0..20 {
            assert_eq!(trigger.ended(&operation(sequence, 1 << 20, 10)), None);
        }
        assert_eq!(trigger.ended(&operation(20, 1 << 20, 30)), None);
        let running = operation(21, 1 << 20, 30);
        let now = running.ended_at.expect("it ended");
        assert!(trigger.is_suspect(&running, now));
        let slow = trigger.ended(&running).expect("two in a row");
        assert!((slow.took_s / slow.usual_s - 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_single_long_stall_is_slow() {
        let mut trigger = Trigger::new(ArrivalSettings::default());
        for sequence in 0..20 {
            assert_eq!(trigger.ended(&operation(sequence, 1 << 20, 10)), None);
        }
        assert!(trigger.ended(&operation(20, 1 << 20, 900)).is_some());
    }

    #[test]
    fn another_size_or_a_single_slow_one_is_not() {
        let mut trigger = Trigger::new(ArrivalSettings::default());
        for sequence in 0..60 {
            let (bytes, took_ms) = match sequence {
                0..20 => (1 << 20, 10),
                20..40 => (1 << 26, 400),
                _ => (1 << 20, if sequence % 7 == 0 { 50 } else { 10 }),
            };
            assert_eq!(trigger.ended(&operation(sequence, bytes, took_ms)), None);
        }
    }
}
