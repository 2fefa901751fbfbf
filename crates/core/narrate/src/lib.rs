//! The sentences of incidents: headline, evidence and advice from typed findings.
//!
//! [`incident`] words a whole [`Finding`], [`headline`] its claim alone, [`evidence`] one of its
//! facts, [`advice`] its actions, [`announcement`] what is said of a job that runs. docs/incidents.md shows what they say.
//!
//! ```
//! use model::{Claim, LateRanks, Pace, StepSpan};
//!
//! let late = Claim::LateRanks(LateRanks {
//!     ranks: vec![2],
//!     stage: "data.next_wait".to_owned(),
//!     other_stages: Vec::new(),
//!     place: None,
//!     side: None,
//!     usual_s: 0.0,
//!     lateness_s: 0.05,
//!     pace: Pace::Steady,
//!     steps: StepSpan { first: 5, last: 99, open: true },
//!     cost_share: 0.58,
//!     gain_alone_s: 5.1,
//!     hidden: false,
//!     next_in_line: Vec::new(),
//! });
//! assert_eq!(
//!     laggard_narrate::headline(&late),
//!     "rank 2 is late in data.next_wait: 50.0 ms a step, 58 % of exposed step time since step 5"
//! );
//! ```
//!
//! Pure: the same finding gives the same words, and no word depends on anything else.

mod accounting;
mod advice;
mod announcement;
mod arrival;
mod blocks;
mod claim;
mod comparison;
mod conclusion;
mod connection;
mod death;
mod device;
mod disagreement;
mod fact;
mod function;
mod inside;
mod network;
mod note;
mod pipeline;
mod rank_part;
mod source_note;
mod stall;
mod straggler;
mod what_if;
mod words;

use model::{Finding, Incident};

pub use accounting::{cut, downgrade, plain_name};
pub use advice::advice;
use advice::link;
pub use announcement::announcement;
pub use claim::headline;
pub use comparison::comparison_note;
pub use conclusion::conclusion;
pub use disagreement::contradiction;
pub use fact::evidence;
pub use note::note;
pub use pipeline::absorbed;
pub use source_note::source_note;
pub use words::who;

/// Words a finding.
pub fn incident(finding: Finding) -> Incident {
    let victims = finding.victims.len() as f64;
    let mut subject = finding.subject;
    let link = finding.link.as_ref().map(|(from, to)| link(from, to));
    // The flow of the claim itself comes before a link that was slow meanwhile.
    subject.flow = subject.flow.or(claim::flow(&finding.claim)).or(link);
    subject.collective = subject.collective.or(claim::collective(&finding.claim));
    Incident {
        text: headline(&finding.claim),
        evidence: finding.facts.iter().map(evidence).collect(),
        advice: advice(&finding.actions),
        id: finding.id,
        kind: finding.kind,
        severity: finding.severity,
        open: finding.open,
        subject,
        pace: finding.pace,
        first_step: finding.first_step,
        last_step: finding.last_step,
        victims: finding.victims,
        cost_s: finding.cost.exposed_s,
        // Each rank that waits has a GPU with nothing to do.
        cost_gpu_s: finding.cost.exposed_s * victims,
        cost_share: finding.cost.share,
        gain_alone_s: finding.cost.gain_alone_s,
        next_in_line: finding.next_in_line,
        contradictions: finding.disagreements.iter().map(contradiction).collect(),
        stacks: finding.stacks,
        progress: finding.progress,
        facts: finding.facts,
        actions: finding.actions,
    }
}
