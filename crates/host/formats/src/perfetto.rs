//! An annotated trace for ui.perfetto.dev and chrome://tracing: steps, stages, collectives with who
//! was late, incidents.

use std::collections::BTreeMap;
use std::io::{self, Write};

use model::{Ending, Verdict};
use serde_json::{Value, json};
use trace::match_collectives;

use crate::TraceSet;

/// Tracks of a rank, in the order they are shown in.
const STEPS: u32 = 1;
const STAGES: u32 = 2;
const COLLECTIVES: u32 = 3;
const INCIDENTS: u32 = 4;

/// Writes the traces of a job as Chrome trace events, with what was found in them.
///
/// Every rank is a process. Times are microseconds since the first step of any rank; where clocks
/// were set by collectives, set ones.
/// # Errors
/// What the writer says.
pub fn write_perfetto(
    set: &TraceSet,
    verdict: &Verdict,
    out: &mut impl Write,
) -> io::Result<()> {
    let traces = set.traces().map(|(rank, trace, _)| (rank, trace)).collect();
    let matches = match_collectives(&traces);
    let offset = |rank: u32| matches.clocks.offsets_ns.get(&rank).copied().unwrap_or(0);
    let mut events: Vec<(u32, u32, String, i64, i64, Value)> = Vec::new();
    for (rank, _, profiled) in set.traces() {
        let at = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX) - offset(rank);
        for step in &profiled.steps {
            let mut from = step.start;
            let start = at(from.0);
            for segment in &step.segments {
                // Issues of collectives split a stage and do not end it.
                if matches!(segment.ending, Ending::Mark(_)) {
                    if segment.end > from {
                        let name = profiled.names.name(segment.stage).to_owned();
                        let (start, end) = (at(from.0), at(segment.end.0));
                        events.push((rank, STAGES, name, start, end, json!({})));
                    }
                    from = segment.end;
                }
            }
            let name = format!("step {}", step.step);
            events.push((rank, STEPS, name, start, at(from.0), json!({})));
        }
    }
    for collective in &matches.collectives {
        let last = collective.last(&matches.clocks).map(|last| last.rank);
        for arrival in &collective.arrivals {
            let waited_ns = collective.waited_ns(*arrival, &matches.clocks);
            let name = if last == Some(arrival.rank) {
                format!("{} (last to come)", collective.op)
            } else {
                collective.op.clone()
            };
            let told = json!({
                "number": collective.number, "bytes": collective.bytes,
                "waited_for_rank": last, "waited_s": waited_ns as f64 * 1e-9,
            });
            let (start, end) = (arrival.start_ns, arrival.end_ns);
            events.push((arrival.rank, COLLECTIVES, name, start, end, told));
        }
    }
    let first = events.iter().map(|(_, _, _, start, ..)| *start).min().unwrap_or(0);
    let mut spans: BTreeMap<u32, (i64, i64)> = BTreeMap::new();
    for (rank, _, _, start, end, _) in &events {
        let span = spans.entry(*rank).or_insert((*start, *end));
        *span = (span.0.min(*start), span.1.max(*end));
    }
    for incident in &verdict.incidents {
        let everywhere = incident.subject.ranks.is_empty();
        for (rank, (start, end)) in &spans {
            if everywhere || incident.subject.ranks.contains(rank) {
                let told = json!({"advice": incident.advice, "cost_s": incident.cost_s});
                let name = incident.text.clone();
                events.push((*rank, INCIDENTS, name, *start, *end, told));
            }
        }
    }
    write!(out, "{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [")?;
    let mut before = "\n";
    let mut put = |event: Value| {
        write!(out, "{before}{event}")?;
        before = ",\n";
        io::Result::Ok(())
    };
    for (rank, _, profiled) in set.traces() {
        let host = profiled.host.as_deref().map(|host| format!(" on {host}"));
        let name = format!("rank {rank}{}", host.unwrap_or_default());
        put(
            json!({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}}),
        )?;
        let lanes = [
            (STEPS, "steps"),
            (STAGES, "stages"),
            (COLLECTIVES, "collectives"),
            (INCIDENTS, "incidents"),
        ];
        for (lane, name) in lanes {
            put(json!({"ph": "M", "name": "thread_name", "pid": rank, "tid": lane,
                       "args": {"name": name}}))?;
        }
    }
    for (rank, track, name, start, end, told) in events {
        let microseconds = |ns: i64| ns as f64 * 1e-3;
        put(json!({"ph": "X", "name": name, "pid": rank, "tid": track,
                   "ts": microseconds(start - first), "dur": microseconds(end - start),
                   "args": told}))?;
    }
    writeln!(out, "\n]}}")
}
