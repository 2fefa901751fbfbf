use crate::{Input, RankNs};

/// Ranks a job may have, as hosts may claim them: numbers from here on are refused.
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
    /// The host's time up to which everything was told with this batch.
    pub watermark: RankNs,
    /// Whether the session ends with it.
    pub last: bool,
    /// What is told, in order; times are the host's.
    pub inputs: Vec<Input>,
}

impl Input {
    /// When it was told, if it says so.
    pub fn at(&self) -> Option<RankNs> {
        match self {
            Self::Mark { mark, .. } => Some(mark.at),
            Self::NoProgress { at } | Self::InFlightSnapshot { at, .. } => Some(*at),
            _ => None,
        }
    }

    /// Puts its times on another clock.
    pub fn shift(&mut self, by_ns: i64) {
        let shift = |at: &mut RankNs| at.0 = at.0.saturating_add_signed(by_ns);
        match self {
            Self::Mark { mark, .. } => shift(&mut mark.at),
            Self::NoProgress { at } => shift(at),
            Self::InFlightSnapshot {
                at,
                in_progress,
                ended,
                ..
            } => {
                shift(at);
                for operation in in_progress.iter_mut().chain(ended) {
                    shift(&mut operation.begun_at);
                    operation.ended_at.iter_mut().for_each(shift);
                    for flow in &mut operation.flows {
                        shift(&mut flow.begun_at);
                        shift(&mut flow.moved_at);
                    }
                }
            }
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
            Self::Group { members, .. } => members.iter().last(),
            Self::ProfileOrdered { ranks, .. }
            | Self::ProfileEnded { ranks }
            | Self::Device { ranks, .. } => ranks.iter().max().copied(),
            Self::Note { .. }
            | Self::Restart { .. }
            | Self::NoProgress { .. }
            | Self::SnapshotComplete
            | Self::StacksComplete => None,
        }
    }
}
