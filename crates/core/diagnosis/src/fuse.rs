use model::{Finding, Origin};

use crate::rules::{Apply, Kept, Merge};
use crate::{FusionRule, Witnesses, disagreements};

/// Puts findings about one cause together by rules in their order, each kept one with the facts of
/// those it took in. Deaths and hangs come first, then findings in the order of their origins and
/// numbers.
///
/// # Properties
/// The order of the findings changes nothing. To fuse what is fused changes nothing. Nobody is
/// culprit and victim of one finding. No cost grows beyond that of the findings it is made of.
pub fn fuse(
    mut findings: Vec<Finding>,
    rules: &[FusionRule],
    witnesses: &dyn Witnesses,
) -> Vec<Finding> {
    // From here on the order in which they came has no say (FU-P1).
    findings.sort_by_key(|finding| (finding.origin, finding.number));
    for rule in rules {
        match &rule.apply {
            Apply::Merge(merge) => merge_all(&mut findings, merge, witnesses),
            Apply::Drop(is_nothing) => {
                // All are judged by what was there before any of them was dropped: else the first
                // to go would change what is said of the next.
                let before = findings.clone();
                findings
                    .retain(|finding| finding.is_fused || !is_nothing(finding, &before, witnesses));
            }
            Apply::Ask(ask) => {
                for finding in findings.iter_mut().filter(|finding| !finding.is_fused) {
                    ask(finding, witnesses);
                }
            }
        }
    }
    for finding in &mut findings {
        // What was put together once is not judged again (FU-P2).
        finding.is_fused = true;
        // Who was named by one of the findings may have waited in another (FU-P4).
        finding.victims = finding.victims.without(&finding.subject.ranks);
        finding.disagreements = disagreements(finding);
    }
    findings.sort_by_key(|finding| {
        // A reader of one line must read that the job stands still.
        let is_halt = matches!(finding.origin, Origin::Death | Origin::Hang);
        (!is_halt, finding.origin, finding.number)
    });
    findings
}

/// Judges each finding in turn by one rule.
fn merge_all(findings: &mut Vec<Finding>, merge: &Merge, witnesses: &dyn Witnesses) {
    // Most rules have nothing to judge, and a copy of all findings is what a rule costs.
    if !findings.iter().any(|it| merge.judges(it, witnesses)) {
        return;
    }
    // The rule sees all findings as they were, also those it has taken in meanwhile (FU-P1).
    let before = findings.clone();
    // Who is taken in leaves a gap, so the places of the others stay.
    let mut slots: Vec<Option<Finding>> = findings.drain(..).map(Some).collect();
    for at in 0..slots.len() {
        let Some(new) = slots[at]
            .as_ref()
            .filter(|new| merge.judges(new, witnesses))
        else {
            continue;
        };
        let same = slots.iter().enumerate().filter(|(known_at, known)| {
            *known_at != at
                && known
                    .as_ref()
                    .is_some_and(|known| (merge.same)(known, new, &before, witnesses))
        });
        let same: Vec<usize> = same.map(|(known_at, _)| known_at).collect();
        let taken = if merge.takes_all { same.len() } else { 1 };
        for known_at in same.into_iter().take(taken) {
            let (kept_at, other_at) = match merge.keeps {
                Kept::Known => (known_at, at),
                Kept::New => (at, known_at),
            };
            let other = slots[other_at].take();
            if let Some((kept, other)) = slots[kept_at].as_mut().zip(other) {
                (merge.give)(kept, other, witnesses);
            }
        }
    }
    findings.extend(slots.into_iter().flatten());
}

impl Merge {
    /// Whether a finding is new, and one that the rule is about.
    fn judges(&self, finding: &Finding, witnesses: &dyn Witnesses) -> bool {
        !finding.is_fused && (self.of)(finding, witnesses)
    }
}
