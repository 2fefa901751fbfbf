//! Stages and windows as tables.

use model::{Label, StageNames, Verdict, WindowSummary, fold_ranks};

use crate::escape::Text;
use crate::incident::plain_name;
use crate::labels;
use crate::palette::Paint;
use crate::words;

/// Rows of the table of windows; a page should open at once.
const MAX_ROWS: usize = 1000;

/// Rows of the stage table, in schema order.
pub(crate) fn stage_rows(verdict: &Verdict, paints: &[Paint], names: &StageNames) -> String {
    let mut rows = String::new();
    for (stage, paint) in verdict.stages.iter().zip(paints) {
        let plain = plain_name(&stage.name, names)
            .map_or(String::new(), |plain| format!(" <small>{plain}</small>"));
        let nobody = if verdict.job.ranks > 1 {
            "in turns"
        } else {
            "-"
        };
        let last = words::ranks(&stage.lead_ranks)
            .unwrap_or(format!(r#"<span class="quiet">{nobody}</span>"#));
        rows += &format!(
            r#"<tr><th scope="row">{}<code>{}</code>{plain}</th><td class="n">{}</td><td class="n">{}</td><td class="wide">{}</td><td class="n">{}</td><td>{last}</td></tr>"#,
            swatch(*paint),
            Text(&stage.name),
            words::duration(stage.advance_s),
            words::percent(stage.share),
            bar(&[(*paint, stage.share)]),
            words::percent(stage.gain),
        );
    }
    rows
}

/// Entries of the picture's legend: every stage with its total.
pub(crate) fn legend(verdict: &Verdict, paints: &[Paint]) -> String {
    let (mut shared, mut seconds, mut share) = (0, 0.0, 0.0);
    let mut entries = String::new();
    for (stage, paint) in verdict.stages.iter().zip(paints) {
        if *paint == Paint::Shared {
            shared += 1;
            seconds += stage.advance_s;
            share += stage.share;
        } else {
            let name = Text(&stage.name).to_string();
            entries += &legend_entry(*paint, &name, stage.advance_s, stage.share);
        }
    }
    // The picture does not distinguish stages of one colour: they are one entry.
    if shared > 0 {
        let name = words::count(shared, "further stage");
        entries += &legend_entry(Paint::Shared, &name, seconds, share);
    }
    entries
}

fn legend_entry(paint: Paint, name: &str, seconds: f64, share: f64) -> String {
    format!(
        r#"<li data-paint="{}">{}<span>{name}</span> <b>{}</b> <i>{}</i></li>"#,
        paint.class(),
        swatch(paint),
        words::duration(seconds),
        words::percent(share)
    )
}

fn swatch(paint: Paint) -> String {
    format!(
        r#"<svg class="swatch" viewBox="0 0 1 1" aria-hidden="true"><rect class="{}" width="1" height="1"/></svg>"#,
        paint.class()
    )
}

/// Shares side by side.
fn bar(shares: &[(Paint, f64)]) -> String {
    let mut begin = 0.0;
    let mut parts = Vec::new();
    for (paint, share) in shares {
        let width = (share * 100.0).clamp(0.0, 100.0);
        // Less is written as a width of 0.0.
        if width >= 0.05 {
            let class = paint.class();
            parts.push(format!(
                r#"<rect class="{class}" x="{begin:.1}" width="{width:.1}" height="6"/>"#
            ));
        }
        begin += width;
    }
    format!(
        r#"<svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="6"/>{}</svg>"#,
        parts.concat()
    )
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

    fn row(&self, paints: &[Paint]) -> String {
        let [first, ..] = self.0.as_slice() else {
            return String::new();
        };
        let last = self.0.last().unwrap_or(first);
        let steps = words::steps(
            first.first_step,
            last.first_step + last.steps.saturating_sub(1),
        );
        let windows = match self.0.len() {
            1 => String::new(),
            several => format!(" <small>{several} windows</small>"),
        };
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
        let chips: String = first.labels.iter().map(|label| chip(*label)).collect();
        format!(
            r#"<tr><th scope="row">{steps}{windows}</th><td class="n">{}</td><td class="wide">{}</td><td>{}</td><td>{chips}</td><td>{}</td></tr>"#,
            words::duration(self.mean(|window| window.step_s)),
            bar(&shares),
            stages(first),
            weakened(first),
        )
    }
}

fn chip(label: Label) -> String {
    let class = match label {
        label if label.is_strong() => "chip strong",
        Label::TelemetryLimited
        | Label::RoleAwareNeeded
        | Label::GradientAccumulationAmbiguous
        | Label::CoCritical => "chip weak",
        _ => "chip",
    };
    format!(
        r##"<a class="{class}" href="#{}">{label}</a>"##,
        labels::anchor(label)
    )
}

fn stages(window: &WindowSummary) -> String {
    let candidates = codes(&window.candidates);
    let tied = &window.co_critical_stages;
    if tied.is_empty() || *tied == window.candidates {
        return candidates;
    }
    format!(
        "{candidates} <small>not distinguished: {}</small>",
        codes(tied)
    )
}

fn codes(names: &[String]) -> String {
    let codes: Vec<String> = names
        .iter()
        .map(|name| format!("<code>{}</code>", Text(name)))
        .collect();
    codes.join(", ")
}

fn weakened(window: &WindowSummary) -> String {
    let mut reasons: Vec<String> = window
        .downgrades
        .iter()
        .map(|reason| Text(reason).to_string())
        .collect();
    if let Some(missing) = words::ranks(&window.missing_ranks) {
        // A downgrade may have named them.
        let folded = fold_ranks(&window.missing_ranks);
        if !reasons
            .iter()
            .any(|reason| reason.ends_with(&format!("rank {folded}")))
        {
            reasons.push(format!("missing: {missing}"));
        }
    }
    if reasons.is_empty() {
        "-".to_owned()
    } else {
        reasons.join("; ")
    }
}

/// The windows, neighbours of which the same is to be said in one row: (summary, rows).
pub(crate) fn windows(verdict: &Verdict, paints: &[Paint]) -> (String, String) {
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
    let rows = groups[left_out..]
        .iter()
        .map(|group| group.row(paints))
        .collect();
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
        let rows = stage_rows(&verdict, &paints(&verdict.stages, job.names()), job.names());
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
        assert_eq!(rows.matches("<tr>").count(), 2);
        assert!(rows.contains("missing: rank 2"), "{rows}");
    }

    #[test]
    fn stages_without_a_colour_of_their_own_share_a_line_of_the_legend() {
        let job = sample::healthy();
        let text = legend(
            &job.verdict(),
            &[Paint::Own(0), Paint::Shared, Paint::Shared],
        );
        assert_eq!(text.matches("<li").count(), 2);
        assert!(text.contains("2 further stages"), "{text}");
    }
}
