//! An annotated trace for ui.perfetto.dev and chrome://tracing: steps, stages, collectives, who was
//! late to them, the functions that count, incidents.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use model::{Dictionary, Ending, FunctionId, FunctionSummary, Verdict};
use serde_json::{Value, json};
use trace::{Clocks, Matches, Trace, executions, match_collectives};
use verdict::ProfiledRank;

use crate::TraceSet;

/// What the tracks of a rank are called, in the order they are shown in.
const TRACKS: [&str; 6] =
    ["steps", "stages", "collectives", "late", "functions", "incidents"];
const STEPS: usize = 0;
const STAGES: usize = 1;
const COLLECTIVES: usize = 2;
const LATE: usize = 3;
const FUNCTIONS: usize = 4;
const INCIDENTS: usize = 5;
/// Lanes of a track: what runs at the same time lies side by side, as far as there is room.
const LANES: usize = 16;
/// Executions shorter than this part of a rank's recording are left out: nobody would see them.
const SHORT: i64 = 20_000;

/// Something that lasted.
struct Span {
    rank: u32,
    track: usize,
    name: String,
    start_ns: i64,
    end_ns: i64,
    told: Value,
}

/// Writes the traces of a job as Chrome trace events, with what was found in them.
///
/// Every rank is a process. Times are microseconds since the first step of any rank; where clocks
/// were set by collectives, set ones. The functions are those of the verdict; for when they ran the
/// files are read again, one by one.
/// # Properties
/// Events are in the order of their times; those of one thread follow each other or nest; each
/// process and thread has a name.
/// # Errors
/// What the writer says; a file that cannot be read any more.
pub fn write_perfetto(
    set: &TraceSet,
    verdict: &Verdict,
    out: &mut impl Write,
) -> io::Result<()> {
    let traces = set.traces().map(|(rank, _, trace, _)| (rank, trace)).collect();
    let matches = match_collectives(&traces);
    let offset = |rank: u32| matches.clocks.offsets_ns.get(&rank).copied().unwrap_or(0);
    let mut spans = Vec::new();
    for (rank, kept, _, profiled) in set.traces() {
        let origin_ns = kept.origin_ns() - offset(rank);
        add_steps(rank, profiled, origin_ns, &mut spans);
        let functions =
            verdict.profile.as_ref().map_or(&[][..], |found| &found.functions);
        if let Some(trace) = kept.whole().map_err(io::Error::other)? {
            add_functions(rank, &trace, functions, offset(rank), &mut spans);
        }
    }
    add_collectives(&matches, &mut spans);
    add_incidents(verdict, &mut spans);
    spans.sort_by_key(|span| (span.start_ns, std::cmp::Reverse(span.end_ns)));
    let spans: Vec<(usize, Span)> = lanes(spans).collect();
    write!(out, "{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [")?;
    let mut before = "\n";
    let mut put = |event: Value| {
        write!(out, "{before}{event}")?;
        before = ",\n";
        io::Result::Ok(())
    };
    for (rank, _, _, profiled) in set.traces() {
        let host = profiled.host.as_deref().map(|host| format!(" on {host}"));
        let name = format!("rank {rank}{}", host.unwrap_or_default());
        put(
            json!({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}),
        )?;
    }
    let used: BTreeSet<(u32, usize)> =
        spans.iter().map(|(lane, span)| (span.rank, *lane)).collect();
    for (rank, lane) in used {
        let name = TRACKS[lane / LANES];
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
        put(json!({"ph": "X", "name": name, "pid": rank, "tid": lane + 1,
                   "ts": microseconds(start_ns - first_ns),
                   "dur": microseconds(end_ns - start_ns), "args": told}))?;
    }
    writeln!(out, "\n]}}")
}

fn add_steps(rank: u32, profiled: &ProfiledRank, origin_ns: i64, spans: &mut Vec<Span>) {
    let at = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX).saturating_add(origin_ns);
    let mut add = |track, name, start_ns, end_ns| {
        spans.push(Span { rank, track, name, start_ns, end_ns, told: json!({}) });
    };
    for step in &profiled.steps {
        let mut from = step.start;
        for segment in &step.segments {
            // Issues of collectives split a stage and do not end it.
            if matches!(segment.ending, Ending::Mark(_)) {
                if segment.end > from {
                    let name = profiled.names.name(segment.stage).to_owned();
                    add(STAGES, name, at(from.0), at(segment.end.0));
                }
                from = segment.end;
            }
        }
        add(STEPS, format!("step {}", step.step), at(step.start.0), at(from.0));
    }
}

/// Collectives with how long each rank waited in them, and by how much the last to come was late.
fn add_collectives(matches: &Matches, spans: &mut Vec<Span>) {
    let clocks: &Clocks = &matches.clocks;
    for collective in &matches.collectives {
        let last = collective.last(clocks);
        for arrival in &collective.arrivals {
            let is_last = last.is_some_and(|last| last.rank == arrival.rank);
            let waited_ns = collective.waited_ns(*arrival, clocks);
            let name = if is_last {
                format!("{} (last to come)", collective.op)
            } else {
                collective.op.clone()
            };
            let told = json!({
                "number": collective.number, "bytes": collective.bytes,
                "waited_for_rank": last.map(|last| last.rank), "waited_s": waited_ns as f64 * 1e-9,
            });
            let (start_ns, end_ns) = (arrival.start_ns, arrival.end_ns);
            spans.push(Span {
                rank: arrival.rank,
                track: COLLECTIVES,
                name,
                start_ns,
                end_ns,
                told,
            });
        }
        let before = collective.arrivals.iter().map(|arrival| arrival.start_ns).min();
        if let Some((last, start_ns)) = last.zip(before) {
            let waiting = collective.arrivals.iter().map(|arrival| arrival.rank);
            let waiting: Vec<u32> = waiting.filter(|rank| *rank != last.rank).collect();
            let name = format!("late to {}", collective.op);
            let told =
                json!({ "number": collective.number, "waited_for_by_ranks": waiting });
            let (rank, end_ns) = (last.rank, last.start_ns);
            spans.push(Span { rank, track: LATE, name, start_ns, end_ns, told });
        }
    }
}

/// When the functions of the verdict ran.
fn add_functions(
    rank: u32,
    trace: &Trace,
    functions: &[FunctionSummary],
    offset_ns: i64,
    spans: &mut Vec<Span>,
) {
    let (events, dictionary) = executions(trace);
    let mut known: BTreeMap<FunctionId, Option<&FunctionSummary>> = BTreeMap::new();
    let span_ns = trace.span_ns().map_or(0, |(from_ns, to_ns)| to_ns - from_ns);
    for event in
        events.iter().filter(|event| event.end_ns - event.start_ns > span_ns / SHORT)
    {
        let found = *known.entry(event.function).or_insert_with(|| {
            functions.iter().find(|told| is_called(told, event.function, &dictionary))
        });
        let Some(function) = found else { continue };
        let here = function.abnormal.iter().find(|abnormal| abnormal.rank == rank);
        let told = json!({
            "class": function.class, "callers": function.callers, "problem": function.problem,
            "beta_here": here.map(|here| here.beta), "usual_beta": function.beta,
        });
        let unlike = if here.is_some() { " (unlike)" } else { "" };
        spans.push(Span {
            rank,
            track: FUNCTIONS,
            name: format!("{}{unlike}", function.name),
            start_ns: event.start_ns - offset_ns,
            end_ns: event.end_ns - offset_ns,
            told,
        });
    }
}

fn is_called(told: &FunctionSummary, id: FunctionId, dictionary: &Dictionary) -> bool {
    let mut stack = dictionary.stack(id);
    stack
        .next()
        .is_some_and(|own| own.class.name() == told.class && own.name == told.name)
        && stack.map(|caller| &caller.name).take(told.callers.len()).eq(&told.callers)
}

/// Incidents lie over all that was recorded of their ranks.
fn add_incidents(verdict: &Verdict, spans: &mut Vec<Span>) {
    let mut recorded: BTreeMap<u32, (i64, i64)> = BTreeMap::new();
    for Span { rank, start_ns, end_ns, .. } in &*spans {
        let whole = recorded.entry(*rank).or_insert((*start_ns, *end_ns));
        *whole = (whole.0.min(*start_ns), whole.1.max(*end_ns));
    }
    for incident in &verdict.incidents {
        let ranks = &incident.subject.ranks;
        for (rank, (start_ns, end_ns)) in &recorded {
            if ranks.is_empty() || ranks.contains(rank) {
                let told = json!({"advice": incident.advice, "cost_s": incident.cost_s});
                let (name, start_ns, end_ns) =
                    (incident.text.clone(), *start_ns, *end_ns);
                spans.push(Span {
                    rank: *rank,
                    track: INCIDENTS,
                    name,
                    start_ns,
                    end_ns,
                    told,
                });
            }
        }
    }
}

/// Gives each span a lane of its track, so that those of one lane nest or follow each other; `spans`
/// are in the order of their times. What finds no room is left out.
fn lanes(spans: Vec<Span>) -> impl Iterator<Item = (usize, Span)> {
    // The ends of what is open in each lane, outermost first.
    let mut open: BTreeMap<(u32, usize), Vec<i64>> = BTreeMap::new();
    spans.into_iter().filter_map(move |span| {
        let first = span.track * LANES;
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
