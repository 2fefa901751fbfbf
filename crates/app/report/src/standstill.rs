//! Where the ranks of a hang are, and how far they came, as pictures that need no script.

use maud::{Markup, html};
use model::{Direction, FlowProgress, FoldedStack, Incident, LastEntered, Progress};

use crate::escape::Text;
use crate::svg::{meter, part, swatch};
use crate::words;

/// Cells in a row of the grid of ranks, and their size.
const COLUMNS: usize = 32;
const CELL: usize = 20;
/// Ranks that are drawn; more are only counted.
const MAX_CELLS: usize = 2048;
/// Colours that tell stacks apart; further ones share one.
// As many as page.css has, `s0` to `s6`.
const COLOURS: usize = 7;
/// Files of the libraries that a job waits in, not its own.
const LIBRARIES: [&str; 3] = ["distributed_c10d.py", "c10d_logger.py", "_attach.py"];

/// The grid of ranks by their stacks, and the progress of their collectives; empty for an incident
/// that has neither.
pub(crate) fn panels(incident: &Incident) -> Markup {
    html! {
        (stacks(incident))
        (progress(&incident.progress))
    }
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

fn stacks(incident: &Incident) -> Markup {
    let folds = &incident.stacks;
    if folds.is_empty() {
        return Markup::default();
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
    // Folds come by what they have in common; a reader looks for a rank where its number is.
    ranks.sort_unstable();
    ranks.truncate(MAX_CELLS);
    // Of all ranks: of a fold only as many as have room were taken.
    let all: usize = folds.iter().map(|fold| fold.ranks.len()).sum();
    let left_out = all - ranks.len();
    let width = ranks.len().min(COLUMNS) * CELL;
    let height = ranks.len().div_ceil(COLUMNS) * CELL;
    html! {
        div.line.stacks {
            h3 {
                "Where the ranks are "
                small {
                    "a cell for each rank with a stack, a colour for each stack, a frame for ranks \
                     that this incident names."
                    @if left_out > 0 { " " (left_out) " further ranks are not drawn." }
                }
            }
            svg.ranks
                viewBox={ "0 0 " (width) " " (height) }
                width=(width)
                height=(height)
                role="img"
                aria-label="Ranks by the stack they are in"
            {
                @for (at, (rank, fold)) in ranks.iter().enumerate() {
                    rect.(paint(*fold)).named[incident.subject.ranks.contains(rank)]
                        x=(at % COLUMNS * CELL)
                        y=(at / COLUMNS * CELL)
                        width=(CELL - 3)
                        height=(CELL - 3)
                    {
                        title { "rank " (rank) ": " (Text(place(&folds[*fold]))) }
                    }
                }
            }
            ul.folds {
                @for (at, fold) in folds.iter().enumerate() { (legend_entry(at, fold)) }
            }
        }
    }
}

fn legend_entry(at: usize, fold: &FoldedStack) -> Markup {
    // The name that the document has for it.
    let state = match serde_json::to_value(fold.state) {
        Ok(serde_json::Value::String(state)) => state,
        _ => String::new(),
    };
    let noun = if fold.ranks.len() == 1 {
        "rank"
    } else {
        "ranks"
    };
    html! {
        li {
            details {
                summary {
                    (swatch(&paint(at))) " " b { (noun) " " (fold.ranks) } " "
                    code { (Text(place(fold))) } " " small { (state) }
                }
                ol.frames { @for frame in &fold.frames { li { (Text(frame)) } } }
            }
        }
    }
}

fn progress(groups: &[Progress]) -> Markup {
    if groups.is_empty() {
        return Markup::default();
    }
    html! {
        div.line.progress {
            h3 {
                "How far the ranks got "
                small { "the last collective that each rank entered before progress stopped" }
            }
            @for group in groups {
                @if !group.entered.is_empty() { (table(group)) }
                @if !group.flows.is_empty() { (flows(group)) }
            }
        }
    }
}

fn table(group: &Progress) -> Markup {
    let numbers = group.entered.iter().map(|row| row.number);
    let furthest = numbers.max().unwrap_or(0);
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        th { "ranks of group " (Text(&group.group)) }
                        th { "last entered" }
                        th {}
                        th.n {}
                    }
                }
                tbody { @for row in &group.entered { (entered(row, furthest)) } }
            }
        }
    }
}

fn entered(row: &LastEntered, furthest: u64) -> Markup {
    let LastEntered {
        number,
        op,
        left,
        ranks,
    } = row;
    let (last, state) = match (number, left) {
        (0, _) => ("none".to_owned(), "has entered no collective"),
        (_, true) => (format!("{op} #{number}"), "left it"),
        (_, false) => (format!("{op} #{number}"), "in it"),
    };
    // `furthest` is the largest of these numbers.
    let behind = furthest - number;
    html! {
        tr class=[(behind > 0).then_some("behind")] {
            td { (ranks) }
            td { code { (Text(last)) } }
            td { (state) }
            td.n { @if behind > 0 { (behind) " behind" } }
        }
    }
}

fn flows(group: &Progress) -> Markup {
    html! {
        details {
            summary {
                (words::count(group.flows.len() as u64, "flow")) " of group " (Text(&group.group))
            }
            div.scroll {
                table {
                    thead {
                        tr {
                            th { "ranks" }
                            th { "reported by" }
                            th.n { "channel" }
                            th {}
                            th.n { "ready" }
                            th.n { "sent" }
                            th.n { "done" }
                            th.n { "of" }
                        }
                    }
                    tbody { @for flow in &group.flows { (flow_row(flow)) } }
                }
            }
        }
    }
}

fn flow_row(flow: &FlowProgress) -> Markup {
    let (from, to, says) = match flow.direction {
        Direction::Send => (flow.rank, flow.peer, "sender"),
        Direction::Receive => (flow.peer, flow.rank, "receiver"),
    };
    let counts = [flow.ready, flow.transmitted, flow.done];
    // A flow without transfers has a total of 0.
    let total = f64::from(flow.total.max(1));
    // One bar over the other: what is done was transmitted, and what was transmitted was ready.
    let parts = html! {
        @for (class, count) in ["s5", "s3", "s1"].into_iter().zip(counts) {
            (part(class, 0.0, f64::from(count) / total * 100.0))
        }
    };
    html! {
        tr {
            td { (from) " to " (to) }
            td { (says) }
            td.n { (flow.channel) }
            td.wide { (meter(None, &parts)) }
            @for count in counts { td.n { (count) } }
            td.n { (flow.total) }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{ProcessState, Ranks};

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
        let page = panels(&hang()).0;
        let cell = r#"<rect class="s0 named" x="60""#;
        assert!(page.contains(cell), "{page}");
        assert_eq!(
            page.matches(": main (train.py:30)</title>").count(),
            3,
            "{page}"
        );
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
    fn ranks_that_are_not_drawn_are_all_counted() {
        let mut hang = hang();
        hang.stacks[1].ranks = (0..MAX_CELLS as u32 + 7).collect();
        let page = panels(&hang).0;
        assert!(page.contains(" 8 further ranks are not drawn."), "{page}");
    }

    #[test]
    fn who_is_behind_in_its_collectives_is_reported_with_by_how_much() {
        let page = panels(&hang()).0;
        for words in [
            "ALLREDUCE #47",
            "in it",
            "left it",
            "1 behind",
            "has entered no collective",
        ] {
            assert!(page.contains(words), "{words} is not in {page}");
        }
        assert!(page.contains("<td>2 to 1</td><td>receiver</td>"), "{page}");
    }

    #[test]
    fn an_incident_without_stacks_has_no_panel() {
        let incident = sample::late_in_data(4, 120).verdict().incidents.remove(0);
        assert_eq!(panels(&incident).0, "");
    }
}
