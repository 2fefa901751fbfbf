use crate::{Event, Input, RankNs};

/// Ranks a job may have, as hosts may claim them: numbers from here on are refused.
// What an analysis keeps grows with the highest rank: one forged line must not fill memory.
pub const MAX_RANKS: u32 = 1 << 17;

/// What one host tells of a job in one go.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The host.
    pub host: String,
    /// The agent session: each agent that watches the job on this host has one of its own.
    pub session: String,
    /// Place among the batches of the session, from 0.
    pub sequence: u64,
    /// What leads from the host's clock to the job's, in nanoseconds.
    pub shift_ns: i64,
    /// The host's time up to which everything was sent with this batch.
    pub watermark: RankNs,
    /// Whether the session ends with it.
    pub last: bool,
    /// What is sent, in order; times are the host's.
    pub inputs: Vec<Input>,
}

impl Input {
    /// When it was sent, if it says so.
    pub fn at(&self) -> Option<RankNs> {
        match self {
            Self::Mark { mark, .. } => Some(mark.at),
            Self::NoProgress { at } | Self::EndAsked { at } | Self::InFlightSnapshot { at, .. } => {
                Some(*at)
            }
            _ => None,
        }
    }

    /// Puts its times on another clock.
    pub fn shift(&mut self, by_ns: i64) {
        match self {
            Self::Mark { mark, .. } => {
                mark.at.shift(by_ns);
                // It is compared with the mark's own time, and tells which mark it was.
                if let Event::DeviceTime(time) = &mut mark.event {
                    time.made_at.shift(by_ns);
                }
            }
            Self::NoProgress { at } | Self::EndAsked { at } => at.shift(by_ns),
            Self::InFlightSnapshot {
                at,
                in_progress,
                ended,
                ..
            } => {
                at.shift(by_ns);
                for operation in in_progress.iter_mut().chain(ended) {
                    operation.begun_at.shift(by_ns);
                    if let Some(ended_at) = &mut operation.ended_at {
                        ended_at.shift(by_ns);
                    }
                    for flow in &mut operation.flows {
                        flow.begun_at.shift(by_ns);
                        flow.moved_at.shift(by_ns);
                    }
                }
            }
            // Without a time of its own an input keeps its place in the batch.
            _ => {}
        }
    }

    /// The highest rank it speaks of.
    pub fn highest_rank(&self) -> Option<u32> {
        match self {
            Self::Rank { rank, .. }
            | Self::Name { rank, .. }
            | Self::Mark { rank, .. }
            | Self::Lost { rank, .. }
            | Self::Left { rank, .. }
            | Self::Failed { rank, .. }
            | Self::Killed { rank, .. }
            | Self::Stack { rank, .. }
            | Self::Entered { rank, .. }
            | Self::Timed { rank, .. }
            | Self::Communicator { rank, .. }
            | Self::Slow { rank, .. }
            | Self::InFlightSnapshot { rank, .. }
            | Self::Profiled { rank, .. }
            | Self::Usage { rank, .. }
            | Self::Network { rank, .. } => Some(*rank),
            // They ascend.
            Self::Group { members, .. } => members.iter().last(),
            Self::ProfileOrdered { ranks, .. }
            | Self::ProfileEnded { ranks }
            | Self::Device { ranks, .. } => ranks.iter().max().copied(),
            // No wildcard: an input that names a rank must not escape the limit of ranks. Those of a
            // note are worded, and nothing is kept for each.
            Self::Note(_)
            | Self::Restart { .. }
            | Self::NoProgress { .. }
            | Self::EndAsked { .. }
            | Self::SnapshotComplete
            | Self::StacksComplete => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceReached, DeviceTime, Mark};

    #[test]
    fn both_times_of_a_device_mark_are_put_on_the_clock_of_the_job() {
        let time = DeviceTime {
            reached: DeviceReached::END,
            made_at: RankNs(10),
            device_ns: 7,
            first_step: 0,
            place: 0,
            seen_within_us: 0,
        };
        let mark = Mark {
            at: RankNs(30),
            step: 0,
            on_loop_thread: true,
            event: Event::DeviceTime(time),
        };
        let mut input = Input::Mark { rank: 0, mark };
        input.shift(100);
        let shifted = Mark {
            at: RankNs(130),
            event: Event::DeviceTime(DeviceTime {
                made_at: RankNs(110),
                ..time
            }),
            ..mark
        };
        let expected = Input::Mark {
            rank: 0,
            mark: shifted,
        };
        assert_eq!(input, expected);
    }
}
