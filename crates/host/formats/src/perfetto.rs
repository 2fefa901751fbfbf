//! Annotated traces for ui.perfetto.dev and chrome://tracing: steps, stages, collectives, who was
//! late to them, the functions that count, incidents.

mod incident_trace;
mod spans;

use std::collections::BTreeMap;
use std::io::{self, Write};

use model::{Dictionary, FunctionId, FunctionSummary, Verdict};
use serde_json::json;
use trace::{Clocks, Matches, Trace, executions, match_collectives};

use crate::TraceSet;
pub use incident_trace::IncidentTrace;
use spans::{SpanTrack, TraceSpan, add_steps, write_spans};

/// Executions shorter than this part of a rank's recording are left out: nobody would see them.
const SHORT: i64 = 20_000;

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
pub fn write_perfetto(set: &TraceSet, verdict: &Verdict, out: &mut impl Write) -> io::Result<()> {
    let traces = set
        .traces()
        .map(|(rank, _, trace, _)| (rank, trace))
        .collect();
    let matches = match_collectives(&traces);
    let mut spans = Vec::new();
    for (rank, kept, _, profiled) in set.traces() {
        let offset_ns = matches.clocks.offsets_ns.get(&rank).copied().unwrap_or(0);
        // From the rank's own clock to the one that collectives have set for all.
        let origin_ns = kept.origin_ns() - offset_ns;
        add_steps(
            rank,
            &profiled.steps,
            &profiled.names,
            origin_ns,
            &mut spans,
        );
        let functions = verdict
            .profile
            .as_ref()
            .map_or(&[][..], |found| &found.functions);
        // Read again: of all traces at once there is only what verdicts are made of.
        if let Some(trace) = kept.whole().map_err(io::Error::other)? {
            add_functions(rank, &trace, functions, offset_ns, &mut spans);
        }
    }
    add_collectives(&matches, &mut spans);
    // Last: an incident lies over all that the spans before it show of its ranks.
    add_incidents(verdict, &mut spans);
    let processes = set.traces().map(|(rank, _, _, profiled)| {
        let host = profiled.host.as_deref().map(|host| format!(" on {host}"));
        (rank, format!("rank {rank}{}", host.unwrap_or_default()))
    });
    write_spans(processes, spans, out)
}

/// Collectives with how long each rank waited in them, and by how much the last to come was late.
fn add_collectives(matches: &Matches, spans: &mut Vec<TraceSpan>) {
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
            let args = json!({
                "number": collective.number, "bytes": collective.bytes,
                "waited_for_rank": last.map(|last| last.rank), "waited_s": waited_ns as f64 * 1e-9,
            });
            let (start_ns, end_ns) = (arrival.start_ns, arrival.end_ns);
            spans.push(TraceSpan {
                rank: arrival.rank,
                track: SpanTrack::Collectives,
                name,
                start_ns,
                end_ns,
                args,
            });
        }
        let before = collective
            .arrivals
            .iter()
            .map(|arrival| arrival.start_ns)
            .min();
        if let Some((last, start_ns)) = last.zip(before) {
            let waiting: Vec<u32> = collective
                .arrivals
                .iter()
                .map(|arrival| arrival.rank)
                .filter(|rank| *rank != last.rank)
                .collect();
            let name = format!("late to {}", collective.op);
            let args = json!({ "number": collective.number, "waited_for_by_ranks": waiting });
            let (rank, end_ns) = (last.rank, last.start_ns);
            spans.push(TraceSpan {
                rank,
                track: SpanTrack::Late,
                name,
                start_ns,
                end_ns,
                args,
            });
        }
    }
}

/// When the functions of the verdict ran.
fn add_functions(
    rank: u32,
    trace: &Trace,
    functions: &[FunctionSummary],
    offset_ns: i64,
    spans: &mut Vec<TraceSpan>,
) {
    let (events, dictionary) = executions(trace);
    let mut known: BTreeMap<FunctionId, Option<&FunctionSummary>> = BTreeMap::new();
    let span_ns = trace
        .span_ns()
        .map_or(0, |(from_ns, to_ns)| to_ns - from_ns);
    for event in events
        .iter()
        .filter(|event| event.end_ns - event.start_ns > span_ns / SHORT)
    {
        // Executions are many and functions few: each is looked for once.
        let found = *known.entry(event.function).or_insert_with(|| {
            functions
                .iter()
                .find(|function| is_called(function, event.function, &dictionary))
        });
        let Some(function) = found else { continue };
        let here = function
            .abnormal
            .iter()
            .find(|abnormal| abnormal.rank == rank);
        let args = json!({
            "class": function.class, "callers": function.callers, "problem": function.problem,
            "beta_here": here.map(|here| here.beta), "usual_beta": function.beta,
        });
        let unlike = if here.is_some() { " (unlike)" } else { "" };
        spans.push(TraceSpan {
            rank,
            track: SpanTrack::Functions,
            name: format!("{}{unlike}", function.name),
            start_ns: event.start_ns - offset_ns,
            end_ns: event.end_ns - offset_ns,
            args,
        });
    }
}

fn is_called(function: &FunctionSummary, id: FunctionId, dictionary: &Dictionary) -> bool {
    let mut stack = dictionary.stack(id);
    stack
        .next()
        .is_some_and(|own| own.class.name() == function.class && own.name == function.name)
        && stack
            .map(|caller| &caller.name)
            // The verdict keeps only the nearest callers; behind them any stack will do.
            .take(function.callers.len())
            .eq(&function.callers)
}

/// Incidents lie over all that was recorded of their ranks.
fn add_incidents(verdict: &Verdict, spans: &mut Vec<TraceSpan>) {
    let mut recorded: BTreeMap<u32, (i64, i64)> = BTreeMap::new();
    for TraceSpan {
        rank,
        start_ns,
        end_ns,
        ..
    } in &*spans
    {
        let whole = recorded.entry(*rank).or_insert((*start_ns, *end_ns));
        *whole = (whole.0.min(*start_ns), whole.1.max(*end_ns));
    }
    for incident in &verdict.incidents {
        let ranks = &incident.subject.ranks;
        for (rank, (start_ns, end_ns)) in &recorded {
            if ranks.is_empty() || ranks.contains(rank) {
                let args = json!({"advice": incident.advice, "cost_s": incident.cost_s});
                let (name, start_ns, end_ns) = (incident.text.clone(), *start_ns, *end_ns);
                spans.push(TraceSpan {
                    rank: *rank,
                    track: SpanTrack::Incidents,
                    name,
                    start_ns,
                    end_ns,
                    args,
                });
            }
        }
    }
}
