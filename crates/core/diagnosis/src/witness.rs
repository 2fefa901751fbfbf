use std::ops::RangeInclusive;

use model::{Action, Fact, Finding, LinkEnd, Observation, Subject};

/// What a rank worked in its blocks of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnBlocks {
    /// The ranks of its pipeline.
    pub pipeline: Vec<u32>,
    /// Seconds that the ranks worked.
    pub own_s: f64,
    /// Seconds that the same stages of other pipelines did, the median.
    pub copies_s: f64,
    /// The same as a fact.
    pub fact: Fact,
}

/// A link that carried less than it used to.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowLink {
    /// Its ends; a host names itself and the address it sends to.
    pub ends: (LinkEnd, LinkEnd),
    /// The last step in which it was slow.
    pub step: u64,
    /// What it carries, as a part of what it used to.
    pub left_share: f64,
    /// The same as a fact.
    pub fact: Fact,
}

impl SlowLink {
    /// Whether one of its ends is the subject's: either end of a flow may be the slow one, a host
    /// measures what it sends.
    pub(crate) fn is_at_end_of(&self, subject: &Subject) -> bool {
        let (from, to) = &self.ends;
        match from {
            LinkEnd::Host(from) => subject.hosts.contains(from),
            LinkEnd::Rank(_) => subject.ranks.iter().any(|rank| {
                let rank = LinkEnd::Rank(*rank);
                rank == *from || rank == *to
            }),
        }
    }
}

/// What is known beside the findings. It is asked about one finding at a time, and names nobody
/// itself. Each answer is empty where nothing is known.
pub trait Witnesses {
    /// First and last step of the profile window, of a job whose stages are accounted; nothing
    /// without a profile, or where a recording is all there is.
    fn profile_window(&self) -> Option<(u64, u64)> {
        None
    }

    /// Share that a function must cost all ranks, to be an incident by itself.
    fn common_share_min(&self) -> f64 {
        0.0
    }

    /// What the profile window shows of the cores that ranks got.
    fn cores_in_profile(&self, _ranks: &[u32]) -> Option<(Observation, Action)> {
        None
    }

    /// What hosts saw of ranks while a finding went on. `is_seen` says whether a profile has
    /// looked at their cores already.
    fn hosts(&self, _finding: &Finding, _is_seen: bool) -> Vec<(Observation, Option<Action>)> {
        Vec::new()
    }

    /// What ranks worked in their blocks in these steps.
    fn own_blocks(&self, _ranks: &[u32], _steps: &RangeInclusive<u64>) -> Option<OwnBlocks> {
        None
    }

    /// Where the pipelines of ranks stand still.
    fn halts(&self, _ranks: &[u32]) -> Vec<Fact> {
        Vec::new()
    }

    /// Links that were slow.
    fn slow_links(&self) -> Vec<SlowLink> {
        Vec::new()
    }
}
