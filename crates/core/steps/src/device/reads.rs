//! Where a host waits for its device.

use std::collections::BTreeMap;

use model::{Event, RankNs, RankStep, ReadBacks, ReadBacksOfLine, StageId};

use super::{DevicePoint, LAUNCH_S, RunAhead};

/// Run-ahead from which a host that has lost it in a segment, and took as long, is taken to have waited
/// for its device, and how much of it may be off. Ours: a copy from memory that is not pinned waits
/// without being a read-back.
const WAIT_LEAST_S: f64 = 1e-3;
const WAIT_SHARE: f64 = 0.05;
/// Share of the times that it was ahead there in which this must be so: now and then a host works for
/// just as long.
const ALWAYS_SHARE: f64 = 0.8;

/// Between which marks, by the numbers of their kinds and the name of the second, a host waits for its
/// device without reading back: what it does always.
#[derive(Debug, Default)]
pub(super) struct Waits(BTreeMap<(u8, u8, StageId), Often>);

/// How often a host was ahead at the first of two marks, and waited as it seems until the second.
#[derive(Clone, Copy, Debug, Default)]
struct Often {
    ahead: u32,
    waited: u32,
}

impl Waits {
    fn place(from: &DevicePoint, to: &DevicePoint) -> (u8, u8, StageId) {
        (from.mark.kind() as u8, to.mark.kind() as u8, to.stage)
    }

    /// Takes what a run shows.
    pub(super) fn take(&mut self, points: &[DevicePoint], offset_ns: [i128; 2]) {
        for pair in points.windows(2) {
            let [from, to] = pair else { continue };
            let ahead = from.run_ahead(offset_ns);
            // Nobody waits for its device in its data loader, and a read-back is marked.
            let may_wait =
                from.mark.event != Event::ReadBackBegin && to.mark.event != Event::DataEnd;
            if ahead.least_s < WAIT_LEAST_S || !may_wait {
                continue;
            }
            let host_s = to.host.seconds_since(from.host);
            let waits = ahead.is_waited_for(host_s, to.run_ahead(offset_ns));
            let often = self.0.entry(Self::place(from, to)).or_default();
            often.ahead = often.ahead.saturating_add(1);
            often.waited = often.waited.saturating_add(u32::from(waits));
        }
    }

    pub(super) fn has(&self, from: &DevicePoint, to: &DevicePoint) -> bool {
        self.0
            .get(&Self::place(from, to))
            .is_some_and(|often| f64::from(often.waited) >= ALWAYS_SHARE * f64::from(often.ahead))
    }
}

impl RunAhead {
    /// Whether a host that was ahead by this much waited for its device in the `host_s` seconds behind
    /// which it is ahead by `then`: until that had caught up, and no longer.
    pub(super) fn is_waited_for(self, host_s: f64, then: Self) -> bool {
        let least_s = (1.0 - WAIT_SHARE) * self.least_s;
        let most_s = (1.0 + WAIT_SHARE) * self.most_s + LAUNCH_S;
        self.least_s >= WAIT_LEAST_S
            && then.least_s <= LAUNCH_S
            && (least_s..=most_s).contains(&host_s)
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
    /// Of the segment that is under way, in seconds: what the device has taken so far and up to where
    /// something was last read back, and what the host has taken since then.
    device_s: f64,
    before_s: f64,
    after_s: f64,
    has_read: bool,
    /// Whether the host waits for its device from one mark to the next without reading back.
    waits: bool,
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
    pub(super) fn wait(&mut self, host_s: f64, at: RankNs) {
        (self.before_s, self.after_s, self.has_read) = (self.device_s, 0.0, true);
        self.waits = true;
        self.begin(DrainedBy::Silent, host_s, at);
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
    /// segment, what the host took in it after its last read-back, and the device before.
    pub(super) fn split(&mut self, from: &DevicePoint, to: &DevicePoint) -> [f64; 3] {
        let host_s = to.host.seconds_since(from.host);
        self.device_s += to.device.seconds_since(from.device);
        let reads = matches!(from.mark.event, Event::ReadBackBegin);
        let waits = std::mem::take(&mut self.waits);
        let reading_s = if waits { host_s } else { 0.0 };
        match to.mark.event {
            Event::ReadBackBegin => {
                (self.before_s, self.after_s, self.has_read) = (self.device_s, 0.0, true);
                [reading_s, 0.0, 0.0]
            }
            Event::ReadBackEnd { .. } if reads => [host_s, 0.0, 0.0],
            event => {
                self.after_s += if self.has_read && !waits { host_s } else { 0.0 };
                // No segment ends at a block: what was read before it still counts.
                if matches!(event, Event::BlockBegin(_) | Event::BlockEnd(_)) {
                    return [reading_s, 0.0, 0.0];
                }
                let [after_s, before_s] = [self.after_s, self.before_s];
                (self.device_s, self.before_s) = (0.0, 0.0);
                (self.after_s, self.has_read) = (0.0, false);
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
