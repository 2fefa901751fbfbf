use std::collections::{BTreeMap, VecDeque};

use model::{CollectiveOp, Operation, RankNs, Slowness};

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

/// Channels from which on most of them tell what the others should take, and operations among the
/// last ones in which one must lag behind: lateness is constant from 3 of 5 on, as published.
const MIN_CHANNELS: usize = 3;
const UNEVEN_OF_LAST: usize = 3;

/// Times the usual from which an operation in progress is looked at closely. Our choice.
const SUSPECT_RATIO: f64 = 1.5;

/// Notices that operations of a rank take much longer than they used to.
///
/// # Properties
/// Operations of different communicators, kinds and sizes are never compared: another mix of
/// messages is no slowdown. An operation counts from when its device gets to it, however long before
/// that its host enqueues it. Slow operations do not become usual; a decay so slow that none of them
/// is does.
/// # Source
/// Mycroft (2025), trigger: throughput below half of normal, per class of operation.
#[derive(Clone, Debug)]
pub struct OperationTrigger {
    settings: ArrivalSettings,
    classes: BTreeMap<(u64, CollectiveOp, u32), OperationClass>,
}

#[derive(Clone, Debug, Default)]
struct OperationClass {
    usual_s: VecDeque<f64>,
    slow: VecDeque<bool>,
    /// Whether a channel lagged behind the others, and what most took when one did last.
    uneven: VecDeque<bool>,
    siblings_s: f64,
}

impl OperationClass {
    fn is_uneven(&self) -> bool {
        self.uneven.iter().filter(|uneven| **uneven).count() >= UNEVEN_OF_LAST
    }
}

impl OperationTrigger {
    /// Nothing is usual yet.
    pub fn new(settings: ArrivalSettings) -> Self {
        Self {
            settings,
            classes: BTreeMap::new(),
        }
    }

    /// Takes an operation that ended; tells if operations like it have become slow. If only its
    /// call was seen, its time is none.
    pub fn ended(&mut self, operation: &Operation) -> Option<Slowness> {
        if operation.may_have_ended {
            return None;
        }
        let since = operation.under_way_since()?;
        let took_s = operation.ended_at?.seconds_since(since);
        let is_slow = self.slow(operation, took_s);
        let uneven = self.uneven(operation, since);
        let class = self.classes.entry(class_of(operation)).or_default();
        push(&mut class.uneven, uneven.is_some(), LAST_OPS);
        class.siblings_s = uneven.map_or(class.siblings_s, |uneven| uneven.usual_s);
        push(&mut class.slow, is_slow.is_some(), LAST_OPS);
        if is_slow.is_none() {
            push(&mut class.usual_s, took_s, USUAL_OPS);
        }
        let often = class.slow.iter().filter(|slow| **slow).count() >= SLOW_OF_LAST;
        is_slow
            .filter(|slow| often || slow.took_s - slow.usual_s >= STALL_S)
            .or(uneven.filter(|_| class.is_uneven()))
    }

    /// Whether an operation in progress already takes longer than it should: worth a closer
    /// look, and not yet a word.
    pub fn is_suspect(&self, operation: &Operation, now: RankNs) -> bool {
        let Some(since) = operation.under_way_since() else {
            return false;
        };
        let took_s = now.seconds_since(since);
        let is_behind = self
            .classes
            .get(&class_of(operation))
            .is_some_and(|class| class.is_uneven() && took_s > SUSPECT_RATIO * class.siblings_s);
        is_behind || self.beyond(operation, took_s, SUSPECT_RATIO).is_some()
    }

    /// What the slowest channel of an operation took and what most took, if it is more than twice
    /// as long. Channels with fewer transfers count as if they had as many.
    ///
    /// # Source
    /// Mycroft (2025): similar flows take similar time.
    fn uneven(&self, operation: &Operation, since: RankNs) -> Option<Slowness> {
        let most = operation.flows.iter().map(|flow| flow.total).max()?;
        let mut of_channel: BTreeMap<u8, f64> = BTreeMap::new();
        for flow in &operation.flows {
            // What a few transfers take says little of what as many as the others have would take.
            if 2 * u64::from(flow.total) <= u64::from(most) {
                continue;
            }
            let took_s = flow.moved_at.seconds_since(since);
            // Channels share the work unevenly: what counts is what a full share would take.
            let whole_s = took_s * f64::from(most) / f64::from(flow.total);
            let slowest_s = of_channel.entry(flow.channel).or_default();
            *slowest_s = slowest_s.max(whole_s);
        }
        if of_channel.len() < MIN_CHANNELS {
            return None;
        }
        let usual_s = median(of_channel.values().copied().collect());
        let took_s = of_channel.into_values().fold(0.0, f64::max);
        let is_slow = took_s * self.settings.bandwidth_ratio > usual_s
            && took_s - usual_s > self.settings.late_min_s;
        is_slow.then_some(Slowness {
            took_s,
            usual_s,
            of_channels: true,
        })
    }

    fn slow(&self, operation: &Operation, took_s: f64) -> Option<Slowness> {
        self.beyond(operation, took_s, 1.0 / self.settings.bandwidth_ratio)
    }

    fn beyond(&self, operation: &Operation, took_s: f64, ratio: f64) -> Option<Slowness> {
        let class = self.classes.get(&class_of(operation))?;
        if class.usual_s.len() < MIN_USUAL_OPS {
            return None;
        }
        let usual_s = median(class.usual_s.iter().copied().collect());
        // Of an operation of microseconds noise alone makes a multiple: it must also lose real
        // time.
        let slow = took_s > ratio * usual_s && took_s - usual_s > self.settings.late_min_s;
        slow.then_some(Slowness {
            took_s,
            usual_s,
            of_channels: false,
        })
    }
}

fn class_of(operation: &Operation) -> (u64, CollectiveOp, u32) {
    (
        operation.communicator,
        operation.op,
        operation.bytes.checked_ilog2().unwrap_or(0),
    )
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
        let mut trigger = OperationTrigger::new(ArrivalSettings::default());
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

    /// Enqueued by a host that runs ahead of its device, further and further, and sent within 10 ms
    /// once that got there.
    #[test]
    fn what_waits_for_its_own_device_is_not_slow() {
        let enqueued = |sequence: u64, ready: u32| {
            let mut operation = operation(sequence, 1 << 20, 10 + 7 * sequence);
            let ended = operation.ended_at.expect("it ended");
            let begun_at = match ready {
                0 => operation.begun_at,
                _ => RankNs(ended.0 - 10_000_000),
            };
            operation.flows.push(model::Flow {
                channel: 0,
                peer: 1,
                direction: model::Direction::Send,
                total: 4,
                ready,
                transmitted: ready,
                done: ready,
                bytes: 0,
                begun_at,
                moved_at: ended,
            });
            (operation, ended)
        };
        let mut trigger = OperationTrigger::new(ArrivalSettings::default());
        for sequence in 0..20 {
            assert_eq!(trigger.ended(&enqueued(sequence, 4).0), None);
        }
        let (waits, now) = enqueued(20, 0);
        assert!(!trigger.is_suspect(&waits, now));
        let (sends, ended) = enqueued(20, 4);
        assert!(!trigger.is_suspect(&sends, ended));
        assert!(trigger.is_suspect(&sends, RankNs(ended.0 + 10_000_000)));
    }

    /// Four channels of 30 ms, one of which takes longer, from the first operation on: MY-A9.
    #[test]
    fn a_channel_that_is_always_slower_than_the_others_is_slow() {
        let with_slowest = |sequence: u64, took_ms: u64| {
            let mut operation = operation(sequence, 1 << 20, took_ms);
            let flow = |channel: u8| {
                let took_ms = if channel == 2 { took_ms } else { 30 };
                model::Flow {
                    channel,
                    peer: 1,
                    direction: model::Direction::Send,
                    total: 32,
                    ready: 32,
                    transmitted: 32,
                    done: 32,
                    bytes: 0,
                    begun_at: operation.begun_at,
                    moved_at: RankNs(operation.begun_at.0 + took_ms * 1_000_000),
                }
            };
            operation.flows = (0..4).map(flow).collect();
            operation
        };
        let found = |took_ms: u64| {
            let mut trigger = OperationTrigger::new(ArrivalSettings::default());
            let ended = |sequence| trigger.ended(&with_slowest(sequence, took_ms));
            let found: Vec<Option<Slowness>> = (0..9).map(ended).collect();
            let running = with_slowest(9, took_ms);
            (
                found,
                trigger.is_suspect(&running, RankNs(running.begun_at.0 + 50_000_000)),
            )
        };
        let (slow, is_suspect) = found(75);
        assert_eq!(slow[..2], [None; 2], "twice may be chance");
        assert!(
            is_suspect && slow[2..].iter().all(Option::is_some),
            "{slow:?}"
        );
        let slow = slow[2].expect("three in a row");
        assert!(slow.of_channels && (slow.took_s / slow.usual_s - 2.5).abs() < 1e-9);
        assert_eq!(found(59), (vec![None; 9], false));
    }

    #[test]
    fn a_single_long_stall_is_slow() {
        let mut trigger = OperationTrigger::new(ArrivalSettings::default());
        for sequence in 0..20 {
            assert_eq!(trigger.ended(&operation(sequence, 1 << 20, 10)), None);
        }
        assert!(trigger.ended(&operation(20, 1 << 20, 900)).is_some());
    }

    #[test]
    fn another_size_or_a_single_slow_one_is_not() {
        let mut trigger = OperationTrigger::new(ArrivalSettings::default());
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
