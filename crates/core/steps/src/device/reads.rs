//! Where a host waits for its device.

use std::collections::{BTreeMap, VecDeque};

use model::{CollectiveOp, Event, RankNs, RankStep, ReadBacks, ReadBacksOfLine, StageId, median};

use super::{DevicePoint, LAUNCH_S, RunAhead};

/// Run-ahead from which a host that has lost it in a segment, and took as long, is taken to have waited
/// for its device, and how much of it may be off. Ours: a copy from memory that is not pinned waits
/// without being a read-back.
const WAIT_LEAST_S: f64 = 1e-3;
const WAIT_SHARE: f64 = 0.05;
/// Run-ahead that a host may have again at the mark behind a barrier, in which it waits for its device
/// whatever comes then, or [`WAIT_SHARE`] of what it was ahead by. Ours: a crowded machine takes longer
/// to launch than [`LAUNCH_S`].
const BEHIND_BARRIER_S: f64 = 5e-4;
/// Share of the times that it was ahead there in which this must be so: now and then a host works for
/// just as long.
const ALWAYS_SHARE: f64 = 0.8;

/// Share of the longest wait of a segment from which a later read-back is the one that counts. Ours: what is
/// read behind one that drained the queue waits for next to nothing.
const LONG_SHARE: f64 = 0.5;

/// Times that a host was not ahead of which it is known what it takes by itself.
const OWN_TIMES: usize = 3;

/// Between which marks, by the numbers of their kinds and the name of the second, a host waits for its
/// device without reading back: what it does always.
#[derive(Debug, Default)]
pub(super) struct Waits(BTreeMap<(u8, u8, StageId), Place>);

/// What a host does from one mark to another.
#[derive(Clone, Debug, Default)]
struct Place {
    /// How often it was ahead at the first, and waited as it seems until the second.
    ahead: u32,
    waited: u32,
    /// What it took lately where it was not ahead and had nothing to wait for, in seconds.
    own_s: VecDeque<f64>,
}

impl Place {
    fn own_s(&self) -> Option<f64> {
        median(&mut self.own_s.iter().copied().collect::<Vec<_>>())
    }

    fn take(&mut self, ahead: RunAhead, host_s: f64, seems_to_wait: bool) {
        if ahead.most_s < WAIT_LEAST_S {
            if self.own_s.is_empty() {
                // Until now it was not known what of its time was work.
                (self.ahead, self.waited) = (0, 0);
            }
            self.own_s.push_back(host_s);
            if self.own_s.len() > OWN_TIMES {
                self.own_s.pop_front();
            }
        }
        if ahead.least_s < WAIT_LEAST_S {
            return;
        }
        let waited = match self.own_s() {
            Some(own_s) => ahead.is_caught_up_in(host_s - own_s),
            None => seems_to_wait,
        };
        self.ahead = self.ahead.saturating_add(1);
        self.waited = self.waited.saturating_add(u32::from(waited));
    }

    /// How long a host waited that was ahead by so much, if it did.
    fn waited_s(&self, ahead: RunAhead, host_s: f64, seems_to_wait: bool) -> Option<f64> {
        // Nothing is known of a place at which it was never ahead.
        let always =
            self.ahead > 0 && f64::from(self.waited) >= ALWAYS_SHARE * f64::from(self.ahead);
        if !always || ahead.least_s < WAIT_LEAST_S {
            return None;
        }
        match self.own_s() {
            // It may have worked for longer than usual, but waits until its device has caught up.
            Some(own_s) => Some(
                (host_s - own_s)
                    .max(ahead.least_s)
                    .min(ahead.most_s)
                    .min(host_s),
            ),
            None => seems_to_wait.then_some(host_s.min(ahead.caught_up_s())),
        }
    }
}

impl Waits {
    fn place(from: &DevicePoint, to: &DevicePoint) -> (u8, u8, StageId) {
        (from.mark.kind() as u8, to.mark.kind() as u8, to.stage)
    }

    /// Takes what a run shows.
    pub(super) fn take(&mut self, points: &[DevicePoint], offset_ns: [i128; 2]) {
        for pair in points.windows(2) {
            let [from, to] = pair else { continue };
            // Nobody waits for its device in its data loader, and a read-back is marked.
            let may_wait =
                from.mark.event != Event::ReadBackBegin && to.mark.event != Event::DataEnd;
            if !may_wait {
                continue;
            }
            let [ahead, then] = [from, to].map(|point| point.run_ahead(offset_ns));
            let host_s = to.host.seconds_since(from.host);
            let place = self.0.entry(Self::place(from, to)).or_default();
            place.take(ahead, host_s, seems_to_wait(from, [ahead, then], host_s));
        }
    }

    /// How long a host that is ahead at the first of two marks waits for its device until the second,
    /// in seconds; nothing if it does not.
    pub(super) fn waited_s(
        &self,
        [from, to]: [&DevicePoint; 2],
        [ahead, then]: [RunAhead; 2],
    ) -> Option<f64> {
        let host_s = to.host.seconds_since(from.host);
        let place = self.0.get(&Self::place(from, to))?;
        place.waited_s(ahead, host_s, seems_to_wait(from, [ahead, then], host_s))
    }
}

/// Whether a host loses all its lead from one mark to the next, by waiting for its device. It takes
/// exactly as long as its lead was, except in a barrier: there it waits in any case, and then for the
/// others.
fn seems_to_wait(from: &DevicePoint, [ahead, then]: [RunAhead; 2], host_s: f64) -> bool {
    let is_barrier = matches!(&from.mark.event, Event::CollectiveIssue(issue)
        if issue.op == CollectiveOp::BARRIER);
    if is_barrier {
        let left_s = BEHIND_BARRIER_S.max(WAIT_SHARE * ahead.least_s);
        return ahead.least_s >= WAIT_LEAST_S && then.least_s <= left_s;
    }
    then.least_s <= LAUNCH_S && ahead.is_caught_up_in(host_s)
}

impl RunAhead {
    /// Whether a device takes so many seconds to catch up with a host that was ahead by this much.
    fn is_caught_up_in(self, seconds: f64) -> bool {
        let least_s = (1.0 - WAIT_SHARE) * self.least_s;
        self.least_s >= WAIT_LEAST_S && (least_s..=self.caught_up_s()).contains(&seconds)
    }

    /// How long that takes at most, in seconds.
    fn caught_up_s(self) -> f64 {
        (1.0 + WAIT_SHARE) * self.most_s + LAUNCH_S
    }
}

/// What a rank reads back as it goes through a run.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Of the step that is under way.
    read_backs: ReadBacks,
    /// When something was read back in it, on the device's clock.
    at: Vec<RankNs>,
    /// What the host last waited for its device for, until it is ahead again.
    drained_by: Option<DrainedBy>,
    /// Of the segment that is under way, in seconds: what the device has taken so far and up to where the
    /// host began to wait for it, how long it waited, and what the host has taken since then.
    device_s: f64,
    before_s: f64,
    waited_s: Option<f64>,
    after_s: f64,
    /// How long the host waits for its device from one mark to the next without reading back.
    waits_s: f64,
}

/// For what a host waits until its device has nothing left to do.
#[derive(Clone, Copy, Debug)]
enum DrainedBy {
    Line(StageId),
    Silent,
}

impl Reads {
    /// The host is found to wait for its device up to the next mark, for so long; `at` is the device's
    /// clock.
    pub(super) fn wait(&mut self, waits_s: f64, at: RankNs) {
        self.wait_behind(self.device_s, waits_s);
        self.waits_s = waits_s;
        self.begin(DrainedBy::Silent, waits_s, at);
    }

    /// The host has waited for what its device had done after `before_s`: the last long wait counts.
    fn wait_behind(&mut self, before_s: f64, waited_s: f64) {
        if self
            .waited_s
            .is_none_or(|known_s| waited_s >= LONG_SHARE * known_s)
        {
            (self.before_s, self.after_s) = (before_s, 0.0);
            self.waited_s = Some(waited_s);
        }
    }

    fn begin(&mut self, by: DrainedBy, host_s: f64, at: RankNs) {
        let waited = self.waited(by);
        waited.count += 1;
        waited.wait_s += host_s;
        self.drained_by = Some(by);
        self.at.push(at);
    }

    fn waited(&mut self, by: DrainedBy) -> &mut ReadBacksOfLine {
        match by {
            DrainedBy::Line(line) => self.read_backs.lines.entry(line).or_default(),
            DrainedBy::Silent => &mut self.read_backs.silent,
        }
    }

    /// Goes from one mark to the next, at which the host is ahead by `ahead_s` at least. It may have
    /// held its device up for `held_up_s` meanwhile; `at` is the device's clock before.
    pub(super) fn pass(
        &mut self,
        from: &DevicePoint,
        to: &DevicePoint,
        ahead_s: f64,
        held_up_s: f64,
        at: RankNs,
    ) {
        if let Some(by) = self.drained_by {
            self.waited(by).idle_most_s += held_up_s;
        }
        // The queue is full again: what the device waits for from here on is not the read-back.
        if ahead_s > LAUNCH_S {
            self.drained_by = None;
        }
        let both = (from.mark.event, to.mark.event);
        if matches!(both, (Event::ReadBackBegin, Event::ReadBackEnd { .. })) {
            self.begin(
                DrainedBy::Line(to.stage),
                to.host.seconds_since(from.host),
                at,
            );
        }
    }

    /// What the host reads from one mark to the next, in seconds; and at the mark that ends a
    /// segment, what the host took in it after its last long read-back, and the device before.
    pub(super) fn split(&mut self, from: &DevicePoint, to: &DevicePoint) -> [f64; 3] {
        let host_s = to.host.seconds_since(from.host);
        let before_s = self.device_s;
        self.device_s += to.device.seconds_since(from.device);
        let reading_s = std::mem::take(&mut self.waits_s);
        match (from.mark.event, to.mark.event) {
            (Event::ReadBackBegin, Event::ReadBackEnd { .. }) => {
                self.wait_behind(before_s, host_s);
                [host_s, 0.0, 0.0]
            }
            (_, event) => {
                if self.waited_s.is_some() {
                    self.after_s += host_s - reading_s;
                }
                if event == Event::ReadBackBegin {
                    return [reading_s, 0.0, 0.0];
                }
                // No segment ends at a block: what was read before it still counts.
                if matches!(event, Event::BlockBegin(_) | Event::BlockEnd(_)) {
                    return [reading_s, 0.0, 0.0];
                }
                let [after_s, before_s] = [self.after_s, self.before_s];
                (self.device_s, self.before_s) = (0.0, 0.0);
                (self.after_s, self.waited_s) = (0.0, None);
                [reading_s, after_s, before_s]
            }
        }
    }

    /// What was read back in a step, once that is over.
    pub(super) fn take(&mut self, step: &RankStep) -> ReadBacks {
        let mut read_backs = std::mem::take(&mut self.read_backs);
        for at in self.at.drain(..) {
            let of_read = step.segments.iter().find(|segment| segment.end > at);
            read_backs
                .stages
                .extend(of_read.map(|segment| segment.stage));
        }
        let end = step.segments.last().map_or(step.start, |last| last.end);
        (read_backs.steps, read_backs.step_s) = (1, end.seconds_since(step.start));
        read_backs
    }
}

#[cfg(test)]
mod tests {
    use model::{CollectiveIssue, Mark};

    use super::*;

    fn ahead(seconds: f64) -> RunAhead {
        RunAhead {
            least_s: seconds,
            most_s: seconds + 1e-4,
        }
    }

    /// A place where a host took so long each time that it was ahead by so much, in seconds; it ends
    /// ahead, as it launched work after it had waited.
    fn place(times: &[(f64, f64)]) -> Place {
        let mut place = Place::default();
        for (lead_s, host_s) in times {
            place.take(ahead(*lead_s), *host_s, false);
        }
        place
    }

    fn waited_s(place: &Place, lead_s: f64, host_s: f64) -> Option<f64> {
        place.waited_s(ahead(lead_s), host_s, false)
    }

    #[test]
    fn a_host_that_waits_and_then_works_is_known_by_its_time_without_a_wait() {
        let waits = place(&[(0.017, 0.073), (0.0, 0.056), (0.014, 0.070)]);
        let waited = waited_s(&waits, 0.017, 0.073).expect("it waits");
        assert!((waited - 0.017).abs() < 1e-3, "{waited}");
        // It pauses meanwhile, and waits no longer for that.
        let waited = waited_s(&waits, 0.017, 0.473).expect("it waits");
        assert!((waited - 0.017).abs() < 1e-3, "{waited}");
        assert_eq!(waited_s(&waits, 0.0, 0.056), None, "it was not ahead");
    }

    #[test]
    fn a_host_that_works_for_as_long_however_far_it_is_ahead_does_not_wait() {
        let works = place(&[(0.017, 0.056), (0.0, 0.056), (0.056, 0.056)]);
        assert_eq!(waited_s(&works, 0.056, 0.056), None);
        let unknown = place(&[(0.017, 0.056), (0.0, 0.056)]);
        assert_eq!(waited_s(&unknown, 0.017, 0.056), None);
    }

    #[test]
    fn a_host_waits_in_a_barrier_though_it_is_a_launch_ahead_again_behind_it() {
        let mark = |op| Mark {
            at: RankNs(0),
            step: 1,
            on_loop_thread: true,
            event: Event::CollectiveIssue(CollectiveIssue {
                op,
                group: 1,
                op_id: 0,
                number: 0,
                bytes: None,
                element_bytes: 0,
            }),
        };
        let point = |op| DevicePoint {
            mark: mark(op),
            stage: StageId(0),
            host: RankNs(0),
            device: RankNs(0),
        };
        let waits =
            |op, then_s, host_s| seems_to_wait(&point(op), [ahead(0.040), ahead(then_s)], host_s);
        assert!(waits(CollectiveOp::BARRIER, 3e-4, 0.040));
        assert!(!waits(CollectiveOp::ALLREDUCE, 3e-4, 0.040));
        assert!(!waits(CollectiveOp::BARRIER, 4e-3, 0.040));
        // The others are later than its device is.
        assert!(waits(CollectiveOp::BARRIER, 1e-4, 0.048));
        assert!(!waits(CollectiveOp::ALLREDUCE, 1e-4, 0.048));
    }

    #[test]
    fn what_a_host_takes_by_itself_is_not_known_where_it_is_always_ahead() {
        assert_eq!(waited_s(&place(&[(0.017, 0.073); 9]), 0.017, 0.073), None);
    }
}
