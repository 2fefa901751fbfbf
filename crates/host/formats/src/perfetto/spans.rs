//! What lasted, as Chrome trace events.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use model::{Ending, RankStep, StageNames};
use serde_json::{Value, json};

/// A track of a rank, in the order they are shown in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Track {
    Steps,
    Stages,
    Blocks,
    Collectives,
    Late,
    Functions,
    Incidents,
}

impl Track {
    /// In the order of the variants.
    const NAMES: [&str; 7] =
        ["steps", "stages", "blocks", "collectives", "late", "functions", "incidents"];
}

/// Lanes of a track: what runs at the same time lies side by side, as far as there is room.
const LANES: usize = 16;

/// Something that lasted, or happened at once.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) rank: u32,
    pub(super) track: Track,
    pub(super) name: String,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    pub(super) told: Value,
}

/// Writes spans; `processes` are the ranks and what they are called.
///
/// # Properties
/// Events are in the order of their times; those of one thread follow each other or nest; each
/// process and thread has a name. Times are microseconds since the first.
pub(super) fn write_spans(
    processes: impl Iterator<Item = (u32, String)>,
    mut spans: Vec<Span>,
    out: &mut impl Write,
) -> io::Result<()> {
    spans.sort_by_key(|span| (span.start_ns, std::cmp::Reverse(span.end_ns)));
    let spans: Vec<(usize, Span)> = lanes(spans).collect();
    write!(out, "{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [")?;
    let mut before = "\n";
    let mut put = |event: Value| {
        write!(out, "{before}{event}")?;
        before = ",\n";
        io::Result::Ok(())
    };
    for (rank, name) in processes {
        put(
            json!({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}),
        )?;
    }
    let used: BTreeSet<(u32, usize)> =
        spans.iter().map(|(lane, span)| (span.rank, *lane)).collect();
    for (rank, lane) in used {
        let name = Track::NAMES[lane / LANES];
        put(json!({"ph": "M", "name": "thread_name", "pid": rank, "tid": lane + 1,
                   "args": {"name": name}}))?;
        put(
            json!({"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": lane + 1,
                   "args": {"sort_index": lane}}),
        )?;
    }
    let first_ns = spans.first().map_or(0, |(_, span)| span.start_ns);
    for (lane, Span { rank, name, start_ns, end_ns, told, .. }) in spans {
        let microseconds = |ns: i64| ns as f64 * 1e-3;
        let mut event = json!({"name": name, "pid": rank, "tid": lane + 1,
                               "ts": microseconds(start_ns - first_ns), "args": told});
        if end_ns > start_ns {
            event["ph"] = json!("X");
            event["dur"] = json!(microseconds(end_ns - start_ns));
        } else {
            // An instant, of its thread.
            event["ph"] = json!("i");
            event["s"] = json!("t");
        }
        put(event)?;
    }
    writeln!(out, "\n]}}")
}

/// Adds the steps of a rank and the stages in them; `origin_ns` is where its clock begins.
pub(super) fn add_steps(
    rank: u32,
    steps: &[RankStep],
    names: &StageNames,
    origin_ns: i64,
    spans: &mut Vec<Span>,
) {
    let at = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX).saturating_add(origin_ns);
    let mut add = |track, name, start_ns, end_ns| {
        spans.push(Span { rank, track, name, start_ns, end_ns, told: json!({}) });
    };
    for step in steps {
        let mut from = step.start;
        for segment in &step.segments {
            // Issues of collectives split a stage and do not end it.
            if matches!(segment.ending, Ending::Mark(_)) {
                if segment.end > from {
                    let name = names.name(segment.stage).to_owned();
                    add(Track::Stages, name, at(from.0), at(segment.end.0));
                }
                from = segment.end;
            }
        }
        add(Track::Steps, format!("step {}", step.step), at(step.start.0), at(from.0));
    }
}

/// Gives each span a lane of its track, so that those of one lane nest or follow each other; `spans`
/// are in the order of their times. What finds no room is left out.
fn lanes(spans: Vec<Span>) -> impl Iterator<Item = (usize, Span)> {
    // The ends of what is open in each lane, outermost first.
    let mut open: BTreeMap<(u32, usize), Vec<i64>> = BTreeMap::new();
    spans.into_iter().filter_map(move |span| {
        let first = span.track as usize * LANES;
        let fits = |lane: &usize| {
            let open = open.entry((span.rank, *lane)).or_default();
            while open.last().is_some_and(|end_ns| *end_ns <= span.start_ns) {
                open.pop();
            }
            let fits = open.last().is_none_or(|end_ns| span.end_ns <= *end_ns);
            if fits {
                open.push(span.end_ns);
            }
            fits
        };
        Some(((first..first + LANES).find(fits)?, span))
    })
}
