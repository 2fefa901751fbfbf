//! What steps would take without their stragglers: the heat map, and what slows.

use maud::{Markup, html};
use model::{PartSlowdown, RankSlowdown, Removal, WhatIf};

use crate::escape::Text;
use crate::svg::{meter, part};
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
pub(crate) fn panels(what_if: &WhatIf) -> Markup {
    let shown = shown(&what_if.ranks);
    let left_out = what_if.ranks.len() - shown.len();
    html! {
        (numbers(what_if))
        @if let Some(parts) = &what_if.stragglers {
            section.panel #heat {
                header { h2 { "Which rank slows the job" } }
                p.caption {
                    "How slow each recorded rank alone would make the job: a row is a \
                     data-parallel rank, a column a pipeline stage, dark from 1.0 to " (DARKEST) "."
                    @if left_out > 0 {
                        " " (left_out) " further ranks are in the document below."
                    }
                }
                div.scroll { (heat_map(shown)) }
            }
            section.panel #slowdowns {
                header { h2 { "What slows the job" } }
                p.caption {
                    "Slowdown if only these operations took their recorded time and all others \
                     what their kind usually takes. The parts do not add up."
                }
                (list("operations", &parts.op_types, ""))
                (list("pipeline stages", &parts.stages, "stage "))
                (list("data-parallel ranks", &parts.dp_ranks, "dp "))
            }
        }
    }
}

fn numbers(what_if: &WhatIf) -> Markup {
    let removals = [
        ("M_W", &what_if.slowest_ranks),
        ("M_S", &what_if.last_stage),
    ];
    let slowdown = format!(
        "a step takes {}, without stragglers {}",
        words::duration(what_if.mean_simulated_s()),
        words::duration(what_if.ideal_s)
    );
    let error = (what_if.launch_slowdown - 1.0).abs() * 100.0;
    html! {
        section.panel #what-if {
            header { h2 { "What if there were no stragglers" } }
            div.scroll {
                table {
                    tbody {
                        (row("S", &format!("{:.3}", what_if.slowdown), &slowdown))
                        @for (name, removal) in removals {
                            @if let Some(removal) = removal {
                                @let share = format!("{:.3}", removal.removed_share);
                                (row(name, &share, &vanishes(removal)))
                            }
                        }
                        (row(
                            "model error",
                            &format!("{error:.1} %"),
                            "recorded over simulated steps: delays between operations",
                        ))
                    }
                }
            }
        }
    }
}

fn row(name: &str, value: &str, meaning: &str) -> Markup {
    html! {
        tr { th scope="row" { (name) } td.n { (value) } td { (meaning) } }
    }
}

fn vanishes(removal: &Removal) -> String {
    format!(
        "of the slowdown vanishes with {} ideal; alone that brings {:.3} of it",
        words::ranks(&removal.ranks).unwrap_or_default(),
        removal.added_share
    )
}

/// Parts by their slowdown, with bars from 1 to the slowest.
fn list(title: &str, parts: &[PartSlowdown], noun: &str) -> Markup {
    let mut order: Vec<&PartSlowdown> = parts.iter().collect();
    order.sort_by(|a, b| b.slowdown.total_cmp(&a.slowdown));
    let slowest = order.first().map_or(1.0, |part| part.slowdown);
    html! {
        div.scroll {
            table {
                thead { tr { th { (title) } th.n { "slowdown" } th {} } }
                tbody {
                    @for PartSlowdown { name, slowdown, .. } in order.into_iter().take(MAX_ROWS) {
                        // Where nothing is slower than usual, the divisor would be 0 or less.
                        @let length = (slowdown - 1.0) / (slowest - 1.0).max(f64::EPSILON) * 100.0;
                        tr {
                            th scope="row" { (noun) (Text(name)) }
                            td.n { (format_args!("{slowdown:.3}")) }
                            td.wide { (meter(None, &part("s5", 0.0, length.clamp(0.0, 100.0)))) }
                        }
                    }
                }
            }
        }
    }
}

fn columns(ranks: &[RankSlowdown]) -> usize {
    ranks
        .iter()
        .map(|rank| rank.stage as usize + 1)
        .max()
        .unwrap_or(1)
}

fn shown(ranks: &[RankSlowdown]) -> &[RankSlowdown] {
    // Whole rows only: the heat map takes its columns from them.
    &ranks[..ranks.len().min(columns(ranks) * MAX_ROWS)]
}

/// Cells of one hue: the fuller, the slower.
fn heat_map(ranks: &[RankSlowdown]) -> Markup {
    let columns = columns(ranks);
    // Ranks come by data-parallel rank, then by stage: each row is whole.
    let rows = ranks.len() / columns;
    let (width, height) = (MARGIN + columns * CELL, MARGIN + rows * CELL);
    let edge = MARGIN - 8;
    html! {
        svg.heat
            width=(width)
            height=(height)
            viewBox={ "0 0 " (width) " " (height) }
            role="img"
            aria-label="Slowdown by each rank"
        {
            text x=(MARGIN) y="14" { "stage" }
            text x="0" y=(edge) { "dp" }
            @for at in 0..columns {
                text x=(middle(at)) y=(edge) text-anchor="middle" { (at) }
            }
            @for at in 0..rows {
                // Text stands on its line: a little below the middle it looks centred.
                text x=(edge) y=(middle(at) + 4) text-anchor="end" { (at) }
            }
            @for (at, rank) in ranks.iter().enumerate() {
                (cell(rank, MARGIN + at % columns * CELL, MARGIN + at / columns * CELL))
            }
        }
    }
}

fn cell(of: &RankSlowdown, x: usize, y: usize) -> Markup {
    let RankSlowdown {
        rank,
        dp_rank,
        stage,
        slowdown,
    } = of;
    let slowdown = slowdown.unwrap_or(1.0);
    let fill = ((slowdown - 1.0) / (DARKEST - 1.0)).clamp(0.0, 1.0);
    let side = CELL - 2;
    html! {
        g {
            title {
                "rank " (rank) " (dp " (dp_rank) ", stage " (stage) "): "
                (format_args!("{slowdown:.3}"))
            }
            rect.cold x=(x) y=(y) width=(side) height=(side) {}
            rect.s5
                fill-opacity=(format_args!("{fill:.2}"))
                x=(x) y=(y) width=(side) height=(side) {}
        }
    }
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
        let map = heat_map(&ranks(3)).0;
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
