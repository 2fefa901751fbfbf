//! What methods find, as values. The words for it are those of `narrate`.

use std::ops::RangeInclusive;

use crate::listed::listed;
use crate::{
    Action, Cause, Claim, Disagreement, Fact, FoldedStack, IncidentKind, LinkEnd, Method,
    NextInLine, Pace, Progress, Ranks, Severity, Subject,
};

listed! {
    /// The method that a [`Finding`] comes from; fusion takes findings in this order, which
    /// docs/math/fusion.md states too.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Origin {
        /// Stages of steps, compared over ranks and with the job's own past.
        Stages,
        /// A stall that passed.
        PassedStall,
        /// Ranks that arrive late in timed collectives.
        Arrivals,
        /// Communicators that became slow in timed collectives.
        Bandwidth,
        /// Connections that work requests show.
        Connections,
        /// Iterations of a pipeline, by calls of NCCL.
        Calls,
        /// Functions of a profile.
        Profile,
        /// A what-if trace.
        WhatIf,
        /// Blocks of a pipeline, by marks.
        Blocks,
        /// A process that ended abruptly.
        Death,
        /// A job that does not move.
        Hang,
        /// Flows inside collectives.
        Flows,
    }
}

/// What something costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Exposed seconds it added, waits of the victims included.
    pub exposed_s: f64,
    /// The same as a share of exposed time from its first step on.
    pub share: f64,
    /// Exposed seconds saved if only this were fixed.
    pub gain_alone_s: f64,
}

impl Cost {
    /// A cost that would be saved whole by fixing its cause.
    ///
    /// # Units
    /// `exposed_s` in seconds.
    pub fn saved_whole(exposed_s: f64, share: f64) -> Self {
        Self {
            exposed_s,
            share,
            gain_alone_s: exposed_s,
        }
    }

    /// The larger of each part.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            exposed_s: self.exposed_s.max(other.exposed_s),
            share: self.share.max(other.share),
            gain_alone_s: self.gain_alone_s.max(other.gain_alone_s),
        }
    }
}

/// Something that holds a job back, as one method found it or as several did that fusion put
/// together. [`Incident`](crate::Incident) is the same in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Stable within the job.
    pub id: String,
    /// The method it comes from.
    pub origin: Origin,
    /// Its place among the findings of its method.
    pub number: usize,
    /// Whether it is fused already, so that no rule judges it again.
    pub is_fused: bool,
    /// Whether it only supports what another method finds, and is nothing by itself.
    pub supports_only: bool,
    /// Its kind.
    pub kind: IncidentKind,
    /// How much it matters.
    pub severity: Severity,
    /// Whether it still goes on at the end of what was seen.
    pub open: bool,
    /// Who and where.
    pub subject: Subject,
    /// The slow link behind it, if that is no flow of the subject's.
    pub link: Option<(LinkEnd, LinkEnd)>,
    /// When it strikes.
    pub pace: Pace,
    /// First step that suffered.
    pub first_step: u64,
    /// Last step that suffered.
    pub last_step: u64,
    /// Ranks that lost time to it through no fault of their own.
    pub victims: Ranks,
    /// What it costs.
    pub cost: Cost,
    /// What it hides.
    pub next_in_line: Vec<NextInLine>,
    /// What its headline says.
    pub claim: Claim,
    /// What supports the claim, the method's own fact first.
    pub facts: Vec<Fact>,
    /// What to do next, in this order.
    pub actions: Vec<Action>,
    /// What methods say differently of it; empty until findings are fused.
    pub disagreements: Vec<Disagreement>,
    /// Of a hang: where the ranks that were looked at are.
    pub stacks: Vec<FoldedStack>,
    /// Of a hang: how far ranks had come in their collectives.
    pub progress: Vec<Progress>,
}

impl Finding {
    /// A finding about a claim of which nothing else is known.
    pub fn new(origin: Origin, id: String, claim: Claim) -> Self {
        Self {
            id,
            origin,
            number: 0,
            is_fused: false,
            supports_only: false,
            kind: IncidentKind::Slow,
            severity: Severity::Info,
            open: true,
            subject: Subject::default(),
            link: None,
            pace: Pace::Steady,
            first_step: 0,
            last_step: 0,
            victims: Ranks::default(),
            cost: Cost::default(),
            next_in_line: Vec::new(),
            claim,
            facts: Vec::new(),
            actions: Vec::new(),
            disagreements: Vec::new(),
            stacks: Vec::new(),
            progress: Vec::new(),
        }
    }

    /// Whether it went on in one of these steps; an open one goes on.
    pub fn went_on_in(&self, steps: RangeInclusive<u64>) -> bool {
        self.first_step <= *steps.end() && (self.open || *steps.start() <= self.last_step)
    }

    /// Whether one of its facts comes from this method.
    pub fn is_seen_by(&self, method: Method) -> bool {
        self.facts.iter().any(|fact| fact.what.method() == method)
    }

    /// Whether one of its facts blames this.
    pub fn blames(&self, cause: Cause) -> bool {
        self.facts
            .iter()
            .any(|fact| fact.what.cause() == Some(cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StepSpan;

    #[test]
    fn what_is_over_went_on_until_its_last_step() {
        let steps = StepSpan {
            first: 10,
            last: 20,
            open: false,
        };
        let stage = "any".to_owned();
        let claim = Claim::UnknownRank {
            stage,
            stage_share: 0.0,
            steps,
        };
        let finding = Finding::new(Origin::Stages, "s1".to_owned(), claim);
        let over = Finding {
            open: false,
            first_step: 10,
            last_step: 20,
            ..finding.clone()
        };
        let open = Finding {
            open: true,
            ..over.clone()
        };
        for (first, last, is_over_in, is_open_in) in [
            (0, 9, false, false),
            (0, 10, true, true),
            (12, 15, true, true),
            (20, 30, true, true),
            (21, 30, false, true),
        ] {
            assert_eq!(
                over.went_on_in(first..=last),
                is_over_in,
                "{first} to {last}"
            );
            assert_eq!(
                open.went_on_in(first..=last),
                is_open_in,
                "{first} to {last}"
            );
        }
    }
}
