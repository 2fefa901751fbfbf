//! The page of the table, docs/acceptance.md.

use super::AcceptanceRow;

/// What stands above the table.
const INTRO: &str = "\
# Acceptance

What `make acceptance` measured, on a virtual machine with two cores. It writes this page: each run replaces the rows it measured.
[Notes](acceptance-notes.md) say what each part shows, and hold what tests measure.

- **Target** is the value of the paper, or our own. *Fitted fixture* rows were calibrated to the tables of StageFrontier (2026): they
  are regression tests, no independent evidence.
- **SF**: StageFrontier (2026). **MY**: Mycroft (2025). **PT**: PerfTracker (2025). **WI**: what-if analysis (OSDI 2025).
  **MT**: MegaTrace (2026). Other rows are ours.
- Not run: SF-A16, FSDP and ZeRO-1 on 8 to 32 GPUs.

";
const HEAD: &str = "| id | claim | value | target | pass | command |\n|---|---|---|---|---|---|\n";

/// The page with measured rows in place of those with their ids. Rows stand in the order of `ids`;
/// those whose id is in none of them are dropped. Of an id that was not measured to its end a row
/// takes the place of the one that claims the same, and the others stay.
pub(super) fn page(
    before: &str,
    measured: &[AcceptanceRow],
    ids: &[&str],
    unfinished: Option<&str>,
) -> String {
    let mut rows: Vec<(usize, String)> = Vec::new();
    for line in before.lines() {
        let mut cells = line.trim_start_matches("| ").split(" | ");
        let (Some(id), Some(claim)) = (cells.next(), cells.next()) else {
            continue;
        };
        let replaces =
            |row: &AcceptanceRow| row.id == id && (unfinished != Some(id) || row.scenario == claim);
        if let Some(at) = place(id, ids)
            && !measured.iter().any(replaces)
        {
            rows.push((at, line.to_owned()));
        }
    }
    rows.extend(
        measured
            .iter()
            .filter_map(|row| Some((place(&row.id, ids)?, row.to_string()))),
    );
    // The sort is stable: rows of one id keep the order in which they were measured.
    rows.sort_by_key(|(at, _)| *at);
    let mut page = INTRO.to_owned() + HEAD;
    for (_, line) in rows {
        page += &line;
        page.push('\n');
    }
    page
}

/// The first place of an id.
fn place(id: &str, ids: &[&str]) -> Option<usize> {
    ids.iter().position(|it| *it == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_failed_half_way_keeps_its_other_rows() {
        let row = |claim: &str, value: &str| AcceptanceRow::new("A", claim, value, "1", true);
        let ids = ["A"];
        let first = page(
            "",
            &[row("it holds", "1"), row("it grows", "2")],
            &ids,
            None,
        );
        let second = page(&first, &[row("it holds", "3")], &ids, Some("A"));
        for line in ["| A | it holds | 3 |", "| A | it grows | 2 |"] {
            assert!(second.contains(line), "{second}");
        }
        assert!(!second.contains("| A | it holds | 1 |"), "{second}");
        let third = page(&second, &[row("it holds", "4")], &ids, None);
        assert!(!third.contains("it grows"), "{third}");
    }

    #[test]
    fn a_row_that_was_measured_again_replaces_the_old_one() {
        let row = |id: &str, value: &str| AcceptanceRow::new(id, "it holds", value, "1", true);
        let ids = ["A", "B", "C"];
        let first = page(
            "",
            &[row("C", "3"), row("A", "1"), row("A", "2")],
            &ids,
            None,
        );
        let second = page(&first, &[row("B", "4"), row("A", "5")], &ids, None);
        let rows: Vec<&str> = second
            .lines()
            .filter(|line| line.contains("holds"))
            .collect();
        assert_eq!(
            rows,
            [
                "| A | it holds | 5 | 1 | yes | `make acceptance ONLY=A` |",
                "| B | it holds | 4 | 1 | yes | `make acceptance ONLY=B` |",
                "| C | it holds | 3 | 1 | yes | `make acceptance ONLY=C` |",
            ]
        );
    }
}
