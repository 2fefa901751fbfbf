//! Stages and windows as tables.

use maud::{Markup, html};
use model::{Label, StageNames, Verdict, WindowSummary};

use crate::escape::Text;
use crate::incident::plain_name;
use crate::labels;
use crate::palette::Paint;
use crate::svg::{bar, swatch};
use crate::words;

/// Rows of the table of windows; a page should open at once.
const MAX_ROWS: usize = 1000;

/// Rows of the stage table, in schema order.
pub(crate) fn stage_rows(verdict: &Verdict, paints: &[Paint], names: &StageNames) -> Markup {
    let nobody = if verdict.job.ranks > 1 {
        "in turns"
    } else {
        "-"
    };
    html! {
        @for (stage, paint) in verdict.stages.iter().zip(paints) {
            tr {
                th scope="row" {
                    (swatch(paint.class())) code { (Text(&stage.name)) }
                    @if let Some(plain) = plain_name(&stage.name, names) {
                        " " small { (plain) }
                    }
                }
                td.n { (words::duration(stage.advance_s)) }
                td.n { (words::percent(stage.share)) }
                td.wide { (bar(&[(*paint, stage.share)])) }
                td.n { (words::percent(stage.gain)) }
                td {
                    @match words::ranks(&stage.lead_ranks) {
                        Some(ranks) => (ranks),
                        None => span.quiet { (nobody) },
                    }
                }
            }
        }
    }
}

/// Entries of the picture's legend: every stage with its total.
pub(crate) fn legend(verdict: &Verdict, paints: &[Paint]) -> Markup {
    let stages = verdict.stages.iter().zip(paints);
    let (shared, own): (Vec<_>, Vec<_>) = stages.partition(|(_, paint)| **paint == Paint::Shared);
    let seconds = shared.iter().map(|(stage, _)| stage.advance_s).sum();
    let share = shared.iter().map(|(stage, _)| stage.share).sum();
    html! {
        @for (stage, paint) in own {
            (legend_entry(*paint, &stage.name, stage.advance_s, stage.share))
        }
        // The picture does not distinguish stages of one colour: they are one entry.
        @if !shared.is_empty() {
            @let name = words::count(shared.len() as u64, "further stage");
            (legend_entry(Paint::Shared, &name, seconds, share))
        }
    }
}

fn legend_entry(paint: Paint, name: &str, seconds: f64, share: f64) -> Markup {
    html! {
        li data-paint=(paint.class()) {
            (swatch(paint.class()))
            span { (Text(name)) }
            " " b { (words::duration(seconds)) }
            " " i { (words::percent(share)) }
        }
    }
}

/// Neighbouring windows of which the same is to be said.
struct Alike<'a>(Vec<&'a WindowSummary>);

impl Alike<'_> {
    fn holds(&self, window: &WindowSummary) -> bool {
        self.0.last().is_some_and(|last| {
            // A restart counts steps anew: a row must not span it.
            window.first_step >= last.first_step
                && window.labels == last.labels
                && window.candidates == last.candidates
                && window.co_critical_stages == last.co_critical_stages
                && window.downgrades == last.downgrades
                && window.missing_ranks == last.missing_ranks
        })
    }

    /// A mean over the windows by their steps.
    fn mean(&self, value: impl Fn(&WindowSummary) -> f64) -> f64 {
        let steps: u64 = self.0.iter().map(|window| window.steps).sum();
        let sum: f64 = self
            .0
            .iter()
            .map(|window| value(window) * window.steps as f64)
            .sum();
        sum / steps.max(1) as f64
    }

    fn row(&self, paints: &[Paint]) -> Markup {
        let [first, ..] = self.0.as_slice() else {
            return Markup::default();
        };
        let last = self.0.last().unwrap_or(first);
        let last_step = last.first_step + last.steps.saturating_sub(1);
        let shares: Vec<(Paint, f64)> = paints
            .iter()
            .enumerate()
            .map(|(at, paint)| {
                (
                    *paint,
                    self.mean(|w| w.shares.get(at).copied().unwrap_or(0.0)),
                )
            })
            .collect();
        html! {
            tr {
                th scope="row" {
                    (words::steps(first.first_step, last_step))
                    @if self.0.len() > 1 { " " small { (self.0.len()) " windows" } }
                }
                td.n { (words::duration(self.mean(|window| window.step_s))) }
                td.wide { (bar(&shares)) }
                td { (stages(first)) }
                td { @for label in &first.labels { (chip(*label)) } }
                td { (weakened(first)) }
            }
        }
    }
}

fn chip(label: Label) -> Markup {
    let weak = matches!(
        label,
        Label::TelemetryLimited
            | Label::RoleAwareNeeded
            | Label::GradientAccumulationAmbiguous
            | Label::CoCritical
    );
    html! {
        a.chip.strong[label.is_strong()].weak[weak] href={ "#" (labels::anchor(label)) } {
            (label)
        }
    }
}

fn stages(window: &WindowSummary) -> Markup {
    let tied = &window.co_critical_stages;
    html! {
        (codes(&window.candidates))
        @if !tied.is_empty() && *tied != window.candidates {
            " " small { "not distinguished: " (codes(tied)) }
        }
    }
}

fn codes(names: &[String]) -> Markup {
    html! {
        @for (at, name) in names.iter().enumerate() {
            @if at > 0 { ", " }
            code { (Text(name)) }
        }
    }
}

fn weakened(window: &WindowSummary) -> Markup {
    let mut reasons = window.downgrades.clone();
    if let Some(missing) = words::ranks(&window.missing_ranks) {
        // A downgrade may have named them.
        if !reasons.iter().any(|reason| reason.ends_with(&missing)) {
            reasons.push(format!("missing: {missing}"));
        }
    }
    html! {
        @if reasons.is_empty() { "-" } @else { (Text(reasons.join("; "))) }
    }
}

/// The windows, neighbours of which the same is to be said in one row: (summary, rows).
pub(crate) fn windows(verdict: &Verdict, paints: &[Paint]) -> (String, Markup) {
    let mut groups: Vec<Alike<'_>> = Vec::new();
    for window in &verdict.windows {
        match groups.last_mut() {
            Some(group) if group.holds(window) => group.0.push(window),
            _ => groups.push(Alike(vec![window])),
        }
    }
    let all = words::count(verdict.windows.len() as u64, "window");
    let joined = if groups.len() < verdict.windows.len() {
        format!(", neighbours alike in one row: {}", groups.len())
    } else {
        String::new()
    };
    let left_out = groups.len().saturating_sub(MAX_ROWS);
    let cut = if left_out > 0 {
        format!(", the last {MAX_ROWS} rows shown")
    } else {
        String::new()
    };
    let rows = html! { @for group in &groups[left_out..] { (group.row(paints)) } };
    (format!("{all}{joined}{cut}"), rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::palette::paints;
    use crate::sample;

    #[test]
    fn the_stage_table_says_where_the_time_went() {
        let job = sample::late_in_data(4, 120);
        let verdict = job.verdict();
        let rows = stage_rows(&verdict, &paints(&verdict.stages, job.names()), job.names()).0;
        assert_eq!(rows.matches("<tr>").count(), verdict.stages.len());
        assert!(
            rows.contains(&words::duration(verdict.stages[0].advance_s)),
            "{rows}"
        );
    }

    #[test]
    fn windows_that_say_the_same_share_a_row() {
        let mut verdict = sample::healthy().verdict();
        let window = verdict.windows[0].clone();
        let other = WindowSummary {
            missing_ranks: vec![2],
            ..window.clone()
        };
        verdict.windows = vec![
            window.clone(),
            WindowSummary {
                first_step: window.first_step + window.steps,
                ..window
            },
            other,
        ];
        let (summary, rows) = windows(&verdict, &[Paint::Residual]);
        assert_eq!(summary, "3 windows, neighbours alike in one row: 2");
        assert_eq!(rows.0.matches("<tr>").count(), 2);
        assert!(rows.0.contains("missing: rank 2"), "{rows:?}");
    }

    #[test]
    fn ranks_that_a_downgrade_names_are_not_named_twice() {
        let mut window = sample::healthy().verdict().windows.remove(0);
        window.missing_ranks = vec![2, 3];
        window.downgrades = vec!["no records of ranks 2-3".to_owned()];
        assert_eq!(weakened(&window).0, "no records of ranks 2-3");
    }

    #[test]
    fn stages_without_a_colour_of_their_own_share_a_line_of_the_legend() {
        let job = sample::healthy();
        let text = legend(
            &job.verdict(),
            &[Paint::Own(0), Paint::Shared, Paint::Shared],
        )
        .0;
        assert_eq!(text.matches("<li").count(), 2);
        assert!(text.contains("2 further stages"), "{text}");
    }
}
