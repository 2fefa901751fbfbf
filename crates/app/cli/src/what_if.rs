//! What-if numbers as text.

use model::{PartSlowdown, RankSlowdown, Removal, WhatIf, fold_ranks};

use crate::render::seconds;

/// Lines of each table; the JSON document has them all.
const MAX_SHOWN: usize = 5;
/// Data-parallel ranks of the heat map.
const HEAT_ROWS: usize = 32;
/// Shades of the heat map, for slowdowns of 1.0, 1.1 and so on; the last one from 1.5 on.
///
/// # Source
/// The range 1 to 1.5 is that of the heat maps of StragglerAnalysis.
const SHADES: [char; 6] = ['.', ':', '-', '+', '*', '#'];

/// How slow the job is, and what makes it so.
pub(crate) fn what_if_text(what_if: &WhatIf) -> String {
    let recorded = &what_if.recorded_s;
    let recorded_s = recorded.iter().sum::<f64>() / recorded.len().max(1) as f64;
    let mut text = format!(
        "what if      S {:.3}: a step takes {}, without stragglers {}\n\
         model error  {:.1} %: as recorded a step takes {}\n",
        what_if.slowdown,
        seconds(what_if.mean_simulated_s()),
        seconds(what_if.ideal_s),
        (what_if.launch_slowdown - 1.0).abs() * 100.0,
        seconds(recorded_s),
    );
    for (name, removal) in [
        ("M_W", &what_if.slowest_ranks),
        ("M_S", &what_if.last_stage),
    ] {
        if let Some(removal) = removal {
            text += &removal_line(name, removal);
        }
    }
    let Some(parts) = &what_if.stragglers else {
        return text;
    };
    for (title, parts) in [
        ("operation alone", &parts.op_types),
        ("stage alone", &parts.stages),
        ("dp rank alone", &parts.dp_ranks),
    ] {
        text += &format!("\n{title:28}      S\n");
        for part in slowest(parts) {
            text += &format!("{:28}  {:.3}\n", part.name, part.slowdown);
        }
    }
    text += &rank_table(&what_if.ranks);
    text + &heat_map(&what_if.ranks)
}

fn removal_line(name: &str, removal: &Removal) -> String {
    format!(
        "{name}          {:.3} of the slowdown vanishes with {} ideal; alone that brings {:.3}\n",
        removal.removed_share,
        format_args!(
            "rank{} {}",
            if removal.ranks.len() == 1 { "" } else { "s" },
            fold_ranks(&removal.ranks)
        ),
        removal.added_share
    )
}

/// The slowest, worst first.
fn slowest(parts: &[PartSlowdown]) -> Vec<&PartSlowdown> {
    let mut parts: Vec<&PartSlowdown> = parts.iter().collect();
    parts.sort_by(|a, b| b.slowdown.total_cmp(&a.slowdown));
    parts.truncate(MAX_SHOWN);
    parts
}

fn rank_table(ranks: &[RankSlowdown]) -> String {
    let mut order: Vec<&RankSlowdown> = ranks.iter().collect();
    // 0 is less than any slowdown: ranks without one stand last.
    order.sort_by(|a, b| {
        b.slowdown
            .unwrap_or(0.0)
            .total_cmp(&a.slowdown.unwrap_or(0.0))
    });
    let mut text = format!("\n{:28}      S\n", "rank alone");
    for rank in order.iter().take(MAX_SHOWN) {
        let name = format!("{} (dp {}, stage {})", rank.rank, rank.dp_rank, rank.stage);
        text += &format!("{name:28}  {:.3}\n", rank.slowdown.unwrap_or(1.0));
    }
    text
}

/// A row for each data-parallel rank, a column for each stage.
fn heat_map(ranks: &[RankSlowdown]) -> String {
    let stages = ranks.iter().map(|rank| rank.stage + 1).max().unwrap_or(1) as usize;
    // Ranks come by data-parallel rank and within it by stage, and none is missing.
    let rows = ranks.chunks(stages);
    let left_out = rows.len().saturating_sub(HEAT_ROWS);
    let mut text = "\nheat map: a row is a data-parallel rank, a column a stage; . 1.0  : 1.1  - 1.2  + 1.3  * 1.4  # 1.5 and more\n".to_owned();
    for row in rows.take(HEAT_ROWS) {
        let cells: Vec<String> = row
            .iter()
            .map(|rank| shade(rank.slowdown.unwrap_or(1.0)).to_string())
            .collect();
        // `chunks` gives no empty row.
        text += &format!("{:>4}  {}\n", row[0].dp_rank, cells.join(" "));
    }
    if left_out > 0 {
        text += &format!("      {left_out} further rows are in the JSON document\n");
    }
    text
}

fn shade(slowdown: f64) -> char {
    let tenths = ((slowdown - 1.0) * 10.0).floor().max(0.0) as usize;
    SHADES[tenths.min(SHADES.len() - 1)]
}
