//! Where the ranks of a hang are, and how far they came, as pictures that need no script.

use model::{Direction, FoldedStack, Incident, LastEntered, Progress};

use crate::escape::Text;
use crate::words;

/// Cells in a row of the grid of ranks, and their size.
const COLUMNS: usize = 32;
const CELL: usize = 20;
/// Ranks that are drawn; more are only counted.
const MAX_CELLS: usize = 2048;
/// Colours that tell stacks apart; further ones share one.
const COLOURS: usize = 7;
/// Files of the libraries that a job waits in, not its own.
const LIBRARIES: [&str; 3] = ["distributed_c10d.py", "c10d_logger.py", "_attach.py"];

/// The grid of ranks by their stacks, and the progress of their collectives; empty for an incident
/// that has neither.
pub(crate) fn panels(incident: &Incident) -> String {
    stacks(incident) + &progress(&incident.progress)
}

/// The class of the colour of a fold.
fn paint(fold: usize) -> String {
    if fold < COLOURS {
        format!("s{fold}")
    } else {
        "sr".to_owned()
    }
}

/// What a fold is called: the innermost frame that is not of a library.
fn place(fold: &FoldedStack) -> &str {
    let frames = &fold.frames;
    frames
        .iter()
        .find(|frame| !LIBRARIES.iter().any(|file| frame.contains(file)))
        .or(frames.first())
        .map_or("no Python frame", String::as_str)
}

fn stacks(incident: &Incident) -> String {
    let folds = &incident.stacks;
    if folds.is_empty() {
        return String::new();
    }
    let mut ranks: Vec<(u32, usize)> = folds
        .iter()
        .enumerate()
        .flat_map(|(at, fold)| {
            fold.ranks
                .iter()
                // A fold may name a hundred thousand ranks; no more than this are drawn.
                .take(MAX_CELLS)
                .map(move |rank| (rank, at))
        })
        .collect();
    ranks.sort_unstable();
    let left_out = ranks.len().saturating_sub(MAX_CELLS);
    ranks.truncate(MAX_CELLS);
    let mut cells = String::new();
    for (at, (rank, fold)) in ranks.iter().enumerate() {
        let (x, y) = (at % COLUMNS * CELL, at / COLUMNS * CELL);
        let named = if incident.subject.ranks.contains(rank) {
            " named"
        } else {
            ""
        };
        let size = CELL - 3;
        cells += &format!(
            r#"<rect class="{}{named}" x="{x}" y="{y}" width="{size}" height="{size}"><title>rank {rank}: {}</title></rect>"#,
            paint(*fold),
            Text(place(&folds[*fold])),
        );
    }
    let (width, height) = (
        ranks.len().min(COLUMNS) * CELL,
        ranks.len().div_ceil(COLUMNS) * CELL,
    );
    let mut legend = String::new();
    for (at, fold) in folds.iter().enumerate() {
        // The name that the document has for it.
        let state = match serde_json::to_value(fold.state) {
            Ok(serde_json::Value::String(state)) => state,
            _ => String::new(),
        };
        let mut frames = String::new();
        for frame in &fold.frames {
            frames += &format!("<li>{}</li>", Text(frame));
        }
        let noun = if fold.ranks.len() == 1 {
            "rank"
        } else {
            "ranks"
        };
        legend += &format!(
            r#"<li><details><summary><svg class="swatch" viewBox="0 0 1 1" aria-hidden="true"><rect class="{}" width="1" height="1"/></svg> <b>{noun} {}</b> <code>{}</code> <small>{state}</small></summary><ol class="frames">{frames}</ol></details></li>"#,
            paint(at),
            fold.ranks,
            Text(place(fold)),
        );
    }
    let more = if left_out > 0 {
        format!(" {left_out} further ranks are not drawn.")
    } else {
        String::new()
    };
    format!(
        r#"<div class="line stacks"><h3>Where the ranks are <small>a cell for each that was looked at, a colour for each stack, those this incident names with a frame.{more}</small></h3>
<svg class="ranks" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="Ranks by the stack they are in">{cells}</svg>
<ul class="folds">{legend}</ul></div>
"#
    )
}

fn progress(groups: &[Progress]) -> String {
    if groups.is_empty() {
        return String::new();
    }
    let tables: String = groups
        .iter()
        .map(|group| table(group) + &flows(group))
        .collect();
    format!(
        r#"<div class="line progress"><h3>How far the ranks came <small>the last collective that each entered, when nothing moved any more</small></h3>
{tables}</div>
"#
    )
}

fn table(group: &Progress) -> String {
    let furthest = group
        .entered
        .iter()
        .map(|row| row.number)
        .max()
        .unwrap_or(0);
    let mut rows = String::new();
    for LastEntered {
        number,
        op,
        left,
        ranks,
    } in &group.entered
    {
        let (last, state) = match (number, left) {
            (0, _) => ("none".to_owned(), "has entered none"),
            (_, true) => (format!("{op} #{number}"), "left it"),
            (_, false) => (format!("{op} #{number}"), "in it"),
        };
        let behind = match furthest - number {
            0 => String::new(),
            behind => format!("{behind} behind"),
        };
        let class = if furthest > *number {
            " class=\"behind\""
        } else {
            ""
        };
        rows += &format!(
            r#"<tr{class}><td>{ranks}</td><td><code>{}</code></td><td>{state}</td><td class="n">{behind}</td></tr>"#,
            Text(last),
        );
    }
    if rows.is_empty() {
        return String::new();
    }
    format!(
        r#"<div class="scroll"><table><thead><tr><th>ranks of group {}</th><th>last entered</th><th></th><th class="n"></th></tr></thead><tbody>{rows}</tbody></table></div>
"#,
        Text(&group.group)
    )
}

fn flows(group: &Progress) -> String {
    if group.flows.is_empty() {
        return String::new();
    }
    let mut rows = String::new();
    for flow in &group.flows {
        let (from, to) = match flow.direction {
            Direction::Send => (flow.rank, flow.peer),
            Direction::Receive => (flow.peer, flow.rank),
        };
        let says = if flow.direction == Direction::Send {
            "sender"
        } else {
            "receiver"
        };
        let [ready, transmitted, done] = [flow.ready, flow.transmitted, flow.done]
            .map(|count| f64::from(count) / f64::from(flow.total.max(1)) * 100.0);
        // One bar over the other: what is done was transmitted, and what was transmitted was ready.
        rows += &format!(
            r#"<tr><td>{from} to {to}</td><td>{says}</td><td class="n">{}</td><td class="wide"><svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="6"/><rect class="s5" width="{ready:.1}" height="6"/><rect class="s3" width="{transmitted:.1}" height="6"/><rect class="s1" width="{done:.1}" height="6"/></svg></td><td class="n">{}</td><td class="n">{}</td><td class="n">{}</td><td class="n">{}</td></tr>"#,
            flow.channel, flow.ready, flow.transmitted, flow.done, flow.total,
        );
    }
    let flows = words::count(group.flows.len() as u64, "flow");
    format!(
        r#"<details><summary>{flows} of group {}</summary><div class="scroll"><table><thead><tr><th>ranks</th><th>reported by</th><th class="n">channel</th><th></th><th class="n">ready</th><th class="n">sent</th><th class="n">done</th><th class="n">of</th></tr></thead><tbody>{rows}</tbody></table></div></details>
"#,
        Text(&group.group)
    )
}

#[cfg(test)]
mod tests {
    use model::{FlowProgress, ProcessState, Ranks};

    use super::*;
    use crate::sample;

    fn hang() -> Incident {
        let incidents = sample::late_in_data(4, 120).verdict().incidents;
        let incident = incidents
            .into_iter()
            .next()
            .expect("the sample has an incident");
        let ranks = |range: std::ops::Range<u32>| range.collect::<Ranks>();
        let fold = |ranks, frame: &str| FoldedStack {
            ranks,
            state: ProcessState::Sleeping,
            frames: vec![
                "all_reduce (distributed_c10d.py:1)".to_owned(),
                frame.to_owned(),
            ],
        };
        let rows = [(47, false, 0..3), (46, true, 3..4), (0, false, 4..5)];
        let entered = rows.map(|(number, left, range)| LastEntered {
            number,
            op: "ALLREDUCE".to_owned(),
            left,
            ranks: ranks(range),
        });
        let flow = FlowProgress {
            rank: 1,
            peer: 2,
            direction: Direction::Receive,
            channel: 3,
            total: 8,
            ready: 8,
            transmitted: 4,
            done: 2,
        };
        Incident {
            stacks: vec![
                fold(ranks(3..4), "read_shard (<img src=x>:7)"),
                fold(ranks(0..3), "main (train.py:30)"),
            ],
            progress: vec![Progress {
                group: "default".to_owned(),
                entered: entered.into(),
                flows: vec![flow],
            }],
            ..incident
        }
    }

    #[test]
    fn ranks_in_the_same_place_have_one_colour_and_the_named_one_a_frame() {
        let page = panels(&hang());
        let cell = r#"<rect class="s0 named" x="60""#;
        assert!(page.contains(cell), "{page}");
        assert_eq!(page.matches(r#"<rect class="s1" x="#).count(), 3, "{page}");
        assert!(
            page.contains("<b>ranks 0-2</b> <code>main (train.py:30)</code>"),
            "{page}"
        );
        assert!(
            page.contains("<small>sleeping</small>") && !page.contains("<img"),
            "{page}"
        );
    }

    #[test]
    fn who_is_behind_in_its_collectives_is_reported_with_by_how_much() {
        let page = panels(&hang());
        for words in [
            "ALLREDUCE #47",
            "in it",
            "left it",
            "1 behind",
            "has entered none",
        ] {
            assert!(page.contains(words), "{words} is not in {page}");
        }
        assert!(page.contains("<td>2 to 1</td><td>receiver</td>"), "{page}");
    }

    #[test]
    fn an_incident_without_stacks_has_no_panel() {
        let incident = sample::late_in_data(4, 120).verdict().incidents.remove(0);
        assert_eq!(panels(&incident), "");
    }
}
