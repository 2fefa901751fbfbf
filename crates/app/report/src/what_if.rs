//! What steps would take without their stragglers: the heat map, and what slows.

use model::{PartSlowdown, RankSlowdown, Removal, WhatIf};

use crate::escape::Text;
use crate::words;

/// Data-parallel ranks of the heat map; a page should open at once.
const MAX_ROWS: usize = 128;
/// Slowdown at which the heat map is at its darkest; it is empty at 1.
///
/// # Source
/// Heat maps of StragglerAnalysis.
const DARKEST: f64 = 1.5;
/// Side of a cell of the heat map, and room for the names of rows and columns.
const CELL: usize = 22;
const MARGIN: usize = 44;

/// The panels of a what-if trace.
pub(crate) fn panels(what_if: &WhatIf) -> String {
    let numbers = numbers(what_if);
    let Some(parts) = &what_if.stragglers else {
        return numbers;
    };
    let lists = [
        ("operations", &parts.op_types, ""),
        ("pipeline stages", &parts.stages, "stage "),
        ("data-parallel ranks", &parts.dp_ranks, "dp "),
    ];
    let lists: String = lists
        .into_iter()
        .map(|(title, parts, noun)| list(title, parts, noun))
        .collect();
    let shown = shown(&what_if.ranks);
    let left_out = what_if.ranks.len() - shown.len();
    let remark = if left_out == 0 {
        String::new()
    } else {
        format!(" {left_out} further ranks are in the document below.")
    };
    format!(
        r#"{numbers}<section class="panel" id="heat"><header><h2>Which rank slows the job</h2></header>
<p class="caption">How slow each recorded rank alone would make the job: a row is a data-parallel rank, a column a pipeline stage, dark from 1.0 to {DARKEST}.{remark}</p>
<div class="scroll">{}</div></section>
<section class="panel" id="slowdowns"><header><h2>What slows the job</h2></header>
<p class="caption">Slowdown if only these operations took their recorded time and all others what their kind usually takes. The parts do not add up.</p>
{lists}</section>
"#,
        heat_map(shown)
    )
}

fn numbers(what_if: &WhatIf) -> String {
    let mut rows = row(
        "S",
        &format!("{:.3}", what_if.slowdown),
        &format!(
            "a step takes {}, without stragglers {}",
            words::duration(what_if.mean_simulated_s()),
            words::duration(what_if.ideal_s)
        ),
    );
    for (name, removal) in [
        ("M_W", &what_if.slowest_ranks),
        ("M_S", &what_if.last_stage),
    ] {
        if let Some(removal) = removal {
            rows += &row(
                name,
                &format!("{:.3}", removal.removed_share),
                &vanishes(removal),
            );
        }
    }
    rows += &row(
        "model error",
        &format!("{:.1} %", (what_if.launch_slowdown - 1.0).abs() * 100.0),
        "recorded over simulated steps: delays between operations",
    );
    format!(
        r#"<section class="panel" id="what-if"><header><h2>What if there were no stragglers</h2></header>
<div class="scroll"><table><tbody>{rows}</tbody></table></div></section>
"#
    )
}

fn row(name: &str, value: &str, meaning: &str) -> String {
    format!(r#"<tr><th scope="row">{name}</th><td class="n">{value}</td><td>{meaning}</td></tr>"#)
}

fn vanishes(removal: &Removal) -> String {
    format!(
        "of the slowdown vanishes with {} ideal; alone that brings {:.3} of it",
        words::ranks(&removal.ranks).unwrap_or_default(),
        removal.added_share
    )
}

/// Parts by their slowdown, with bars from 1 to the slowest.
fn list(title: &str, parts: &[PartSlowdown], noun: &str) -> String {
    let mut order: Vec<&PartSlowdown> = parts.iter().collect();
    order.sort_by(|a, b| b.slowdown.total_cmp(&a.slowdown));
    let slowest = order.first().map_or(1.0, |part| part.slowdown);
    let mut rows = String::new();
    for part in order.into_iter().take(MAX_ROWS) {
        let length = (part.slowdown - 1.0) / (slowest - 1.0).max(f64::EPSILON) * 100.0;
        rows += &format!(
            r#"<tr><th scope="row">{noun}{}</th><td class="n">{:.3}</td><td class="wide"><svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="6"/><rect class="s5" width="{:.1}" height="6"/></svg></td></tr>"#,
            Text(&part.name),
            part.slowdown,
            length.clamp(0.0, 100.0)
        );
    }
    format!(
        r#"<div class="scroll"><table><thead><tr><th>{title}</th><th class="n">slowdown</th><th></th></tr></thead><tbody>{rows}</tbody></table></div>"#
    )
}

fn columns(ranks: &[RankSlowdown]) -> usize {
    ranks
        .iter()
        .map(|rank| rank.stage as usize + 1)
        .max()
        .unwrap_or(1)
}

fn shown(ranks: &[RankSlowdown]) -> &[RankSlowdown] {
    &ranks[..ranks.len().min(columns(ranks) * MAX_ROWS)]
}

/// Cells of one hue: the fuller, the slower.
fn heat_map(ranks: &[RankSlowdown]) -> String {
    let columns = columns(ranks);
    let rows = ranks.len() / columns;
    let (width, height) = (MARGIN + columns * CELL, MARGIN + rows * CELL);
    let mut cells = String::new();
    for (at, rank) in ranks.iter().enumerate() {
        let slowdown = rank.slowdown.unwrap_or(1.0);
        let fill = ((slowdown - 1.0) / (DARKEST - 1.0)).clamp(0.0, 1.0);
        cells += &format!(
            r#"<g><title>rank {} (dp {}, stage {}): {slowdown:.3}</title><rect class="cold" x="{x}" y="{y}" width="{side}" height="{side}"/><rect class="s5" fill-opacity="{fill:.2}" x="{x}" y="{y}" width="{side}" height="{side}"/></g>"#,
            rank.rank,
            rank.dp_rank,
            rank.stage,
            x = MARGIN + at % columns * CELL,
            y = MARGIN + at / columns * CELL,
            side = CELL - 2,
        );
    }
    let edge = MARGIN - 8;
    let mut names = String::new();
    for at in 0..columns {
        let x = middle(at);
        names += &format!(r#"<text x="{x}" y="{edge}" text-anchor="middle">{at}</text>"#);
    }
    for at in 0..rows {
        // Text stands on its line: a little below the middle it looks centred.
        let y = middle(at) + 4;
        names += &format!(r#"<text x="{edge}" y="{y}" text-anchor="end">{at}</text>"#);
    }
    format!(
        r#"<svg class="heat" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="Slowdown by each rank"><text x="{MARGIN}" y="14">stage</text><text x="0" y="{y}">dp</text>{names}{cells}</svg>"#,
        y = MARGIN - 8,
    )
}

/// The middle of a row or a column.
fn middle(at: usize) -> usize {
    MARGIN + at * CELL + CELL / 2 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(rows: u32) -> Vec<RankSlowdown> {
        let cells = (0..rows).flat_map(|dp_rank| (0..2).map(move |stage| (dp_rank, stage)));
        let rank = |(dp_rank, stage)| RankSlowdown {
            rank: stage * rows + dp_rank,
            dp_rank,
            stage,
            slowdown: Some(if (dp_rank, stage) == (1, 0) {
                1.4
            } else {
                0.99
            }),
        };
        cells.map(rank).collect()
    }

    #[test]
    fn the_slow_rank_is_the_one_that_is_filled() {
        let map = heat_map(&ranks(3));
        assert_eq!(map.matches(r#"fill-opacity="0.00""#).count(), 5);
        let (_, slow) = map.split_once("rank 1 (dp 1, stage 0): 1.400").unwrap();
        assert!(
            slow.split("</g>")
                .next()
                .unwrap()
                .contains(r#"fill-opacity="0.80""#)
        );
    }

    #[test]
    fn a_page_draws_no_more_ranks_than_it_can_hold() {
        assert_eq!(shown(&ranks(1000)).len(), 2 * MAX_ROWS);
        assert_eq!(shown(&ranks(3)).len(), 6);
    }
}
