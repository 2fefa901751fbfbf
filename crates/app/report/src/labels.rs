//! What the labels mean and what to do next.

use maud::{Markup, html};
use model::{Label, Verdict};

/// A label in words.
struct Meaning {
    says: &'static str,
    next: &'static str,
}

fn meaning(label: Label) -> Meaning {
    let (says, next) = match label {
        Label::FrontierAccounting => (
            "The books balance: each exposed second is charged to one stage, and the charges \
             add up to the steps' time. No cause is claimed yet.",
            "Start with the window's candidates: together they explain most of it.",
        ),
        Label::LikelySyncWait => (
            "One rank reaches the end of the leading stage well after the others; their time at \
             the next synchronisation is likely a wait for it.",
            "Look at that rank's own work in the stage, not at the waits of its peers.",
        ),
        Label::SyncWaitDependent => (
            "The leading stage costs time through a synchronisation further on: with the \
             waits left as they are, a faster stage alone would not shorten the step.",
            "Make the late ranks arrive with the others; the waits shrink with their lateness.",
        ),
        Label::DirectExposure => (
            "The leading stage stands in the way itself: at its baseline the step would be \
             shorter even if every wait stayed as it is.",
            "Make the stage faster; its gain says how much of the exposed time is at stake.",
        ),
        Label::ForwardDeviceSupported => (
            "Times taken on the device agree that the forward pass fills much of the step.",
            "Profile the forward pass on the device: kernels, input shapes, clocks.",
        ),
        Label::ForwardSpilloverSuspected => (
            "The device is busy with the forward pass for much of the step, but a later stage \
             is charged: the host probably met the unfinished work there.",
            "Look at the forward pass on the device before you tune the stage that is charged.",
        ),
        Label::ForwardHostOverheadSuspected => (
            "The forward pass is long on the host and short on the device.",
            "Look at the host's side of it: Python, kernel launches, values read back from the \
             device.",
        ),
        Label::ForwardEventScopeLimited => (
            "Too few times came back from the device to say anything about it.",
            "Take the host's times as they are, or let windows be longer (`window.steps` in \
             the settings).",
        ),
        Label::CoCritical => (
            "Several stages explain the window about equally well, and no record distinguishes \
             them.",
            "Treat the stages named as one suspect. Arrival times at the collectives, or a \
             short run with one of the stages taken out, will tell.",
        ),
        Label::GradientAccumulationAmbiguous => (
            "Micro-steps of gradient accumulation were summed, or their number changed from \
             step to step, so time cannot be given to one of them.",
            "Record micro-steps one by one and keep their number the same.",
        ),
        Label::RoleAwareNeeded => (
            "Ranks with different roles, such as pipeline stages, were compared as if they did \
             the same work; some lateness may be by design.",
            "Name the process groups of your parallel dimensions (`pp`, `ep`), or give a \
             stage matrix its `roles`, so that only ranks with the same work are compared.",
        ),
        Label::TelemetryLimited => (
            "Something was not recorded: a rank, records, or too much of the step outside every \
             stage. Stronger labels are withheld.",
            "The window's last column says what was missing; fix that and read again.",
        ),
    };
    Meaning { says, next }
}

/// The id of a label's explanation on the page.
pub(crate) fn anchor(label: Label) -> String {
    format!("label-{label}")
}

/// Explanations of the labels that occur, in their fixed order.
pub(crate) fn explained(verdict: &Verdict) -> Markup {
    let windows = &verdict.windows;
    let mut labels = Label::ALL.to_vec();
    labels.retain(|label| windows.iter().any(|window| window.labels.contains(label)));
    html! {
        @for label in labels {
            @let Meaning { says, next } = meaning(label);
            div id=(anchor(label)) {
                dt { code { (label) } }
                dd { (says) " " span.next { b { "Next:" } " " (next) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn only_labels_that_occur_are_explained() {
        let mut verdict = sample::late_in_data(4, 60).verdict();
        verdict.windows.truncate(1);
        verdict.windows[0].labels = vec![Label::CoCritical];
        let text = explained(&verdict).0;
        assert!(text.contains("label-co_critical"), "{text}");
        assert_eq!(text.matches("<dt>").count(), 1);
    }

    #[test]
    fn every_label_has_words_of_its_own() {
        let mut says: Vec<_> = Label::ALL.map(|label| meaning(label).says).into();
        says.sort_unstable();
        says.dedup();
        assert_eq!(says.len(), Label::ALL.len());
    }
}
