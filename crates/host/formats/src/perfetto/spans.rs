//! What lasted, as Chrome trace events.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use model::{Ending, RankNs, RankStep, StageNames};
use serde_json::{Value, json};

/// A track of a rank, in the order they are shown in.
#[derive(Clone, Copy, Debug)]
pub(super) enum SpanTrack {
    Steps,
    Stages,
    Blocks,
    Collectives,
    Late,
    Functions,
    Incidents,
}

impl SpanTrack {
    /// In the order of the variants.
    const NAMES: [&str; 7] = [
        "steps",
        "stages",
        "blocks",
        "collectives",
        "late",
        "functions",
        "incidents",
    ];
}

/// Lanes of a track: what runs at the same time lies side by side, as far as there is room.
const LANES: usize = 16;

/// Something that lasted, or happened at once.
#[derive(Clone, Debug)]
pub(super) struct TraceSpan {
    pub(super) rank: u32,
    pub(super) track: SpanTrack,
    pub(super) name: String,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    pub(super) args: Value,
}

impl TraceSpan {
    pub(super) fn new(
        rank: u32,
        track: SpanTrack,
        name: String,
        (start_ns, end_ns): (i64, i64),
        args: Value,
    ) -> Self {
        Self {
            rank,
            track,
            name,
            start_ns,
            end_ns,
            args,
        }
    }
}

/// Writes spans; `processes` are the ranks and what they are called.
///
/// # Properties
/// Events are in the order of their times; those of one thread follow each other or nest; each
/// process and thread has a name. Times are microseconds since the first.
pub(super) fn write_spans(
    processes: impl Iterator<Item = (u32, String)>,
    mut spans: Vec<TraceSpan>,
    out: &mut impl Write,
) -> io::Result<()> {
    // Of those that begin together the longest first: the others nest in it.
    spans.sort_by_key(|span| (span.start_ns, std::cmp::Reverse(span.end_ns)));
    let spans: Vec<(usize, TraceSpan)> = lanes(spans).collect();
    let mut names: Vec<Value> = processes
        .map(|(rank, name)| {
            json!({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}})
        })
        .collect();
    let used: BTreeSet<(u32, usize)> = spans
        .iter()
        .map(|(lane, span)| (span.rank, *lane))
        .collect();
    for (rank, lane) in used {
        let name = SpanTrack::NAMES[lane / LANES];
        names.push(
            json!({"ph": "M", "name": "thread_name", "pid": rank, "tid": lane + 1,
                          "args": {"name": name}}),
        );
        names.push(json!({"ph": "M", "name": "thread_sort_index", "pid": rank,
                          "tid": lane + 1, "args": {"sort_index": lane}}));
    }
    // They are sorted by start.
    let first_ns = spans.first().map_or(0, |(_, span)| span.start_ns);
    let events = spans
        .into_iter()
        .map(|(lane, span)| span.event(lane, first_ns));
    write!(out, "{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [")?;
    for (at, event) in names.into_iter().chain(events).enumerate() {
        let before = if at == 0 { "\n" } else { ",\n" };
        write!(out, "{before}{event}")?;
    }
    writeln!(out, "\n]}}")
}

impl TraceSpan {
    /// The event that shows it, its time counted from `first_ns`.
    fn event(self, lane: usize, first_ns: i64) -> Value {
        let Self {
            rank,
            name,
            start_ns,
            end_ns,
            args,
            ..
        } = self;
        let mut event = json!({"name": name, "pid": rank, "tid": lane + 1,
                               "ts": microseconds(start_ns - first_ns), "args": args});
        if end_ns > start_ns {
            event["ph"] = json!("X");
            event["dur"] = json!(microseconds(end_ns - start_ns));
        } else {
            // An instant, of its thread.
            event["ph"] = json!("i");
            event["s"] = json!("t");
        }
        event
    }
}

fn microseconds(ns: i64) -> f64 {
    ns as f64 * 1e-3
}

/// Adds the steps of a rank and the stages in them; `origin_ns` is where its clock begins.
pub(super) fn add_steps(
    rank: u32,
    steps: &[RankStep],
    names: &StageNames,
    origin_ns: i64,
    spans: &mut Vec<TraceSpan>,
) {
    let on_clock = |at: RankNs| {
        i64::try_from(at.0)
            .unwrap_or(i64::MAX)
            .saturating_add(origin_ns)
    };
    for step in steps {
        let mut from = step.start;
        for segment in &step.segments {
            // Issues of collectives split a stage and do not end it.
            if matches!(segment.ending, Ending::Mark(_)) {
                if segment.end > from {
                    let name = names.name(segment.stage).to_owned();
                    let span_ns = (on_clock(from), on_clock(segment.end));
                    spans.push(TraceSpan::new(
                        rank,
                        SpanTrack::Stages,
                        name,
                        span_ns,
                        json!({}),
                    ));
                }
                from = segment.end;
            }
        }
        let name = format!("step {}", step.step);
        let span_ns = (on_clock(step.start), on_clock(from));
        spans.push(TraceSpan::new(
            rank,
            SpanTrack::Steps,
            name,
            span_ns,
            json!({}),
        ));
    }
}

/// Gives each span a lane of its track, so that those of one lane nest or follow each other; `spans`
/// are in the order of their times. What finds no room is left out.
fn lanes(spans: Vec<TraceSpan>) -> impl Iterator<Item = (usize, TraceSpan)> {
    // The ends of what is open in each lane, outermost first.
    let mut open: BTreeMap<(u32, usize), Vec<i64>> = BTreeMap::new();
    spans.into_iter().filter_map(move |span| {
        let first = span.track as usize * LANES;
        for lane in first..first + LANES {
            let open = open.entry((span.rank, lane)).or_default();
            while open.last().is_some_and(|end_ns| *end_ns <= span.start_ns) {
                open.pop();
            }
            if open.last().is_none_or(|end_ns| span.end_ns <= *end_ns) {
                open.push(span.end_ns);
                return Some((lane, span));
            }
        }
        None
    })
}
