//! Whatever ranks are said to do, a job gets a sound verdict, and the same one from its
//! recording.
#![no_main]

use std::collections::BTreeMap;

use formats::{JournalWriter, Limits, load};
use fuzz::{eager, judge};
use model::{Event, Input, Mark, MarkKind, RankNs, Source};
use serde_json::{Value, json};
use verdict::Job;

/// Bytes that say one thing.
const RECORD_BYTES: usize = 6;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let inputs = inputs(bytes);
    if inputs.is_empty() {
        return;
    }
    let mut job = Job::new("job", Source::Marks, eager());
    for input in &inputs {
        job.take(input.clone());
    }
    job.finish();
    judge(&job);
    assert_eq!(recorded(&inputs).verdict(), job.verdict());
});

/// A few ranks, most of whose steps and times go up a little at a time.
fn inputs(bytes: &[u8]) -> Vec<Input> {
    let mut ranks: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
    let (records, _) = bytes.as_chunks::<RECORD_BYTES>();
    let input = |record: &[u8; RECORD_BYTES]| {
        let [what, rank, a, b, c, d] = *record;
        let rank = if rank == 255 {
            u32::MAX
        } else {
            u32::from(rank % 8)
        };
        let (step, now) = ranks.entry(rank).or_default();
        if what & 7 == 7 {
            return Some(told(rank, *step, *now, a, [b, c, d]));
        }
        *step = if b == 255 {
            edge(c) as u32
        } else {
            step.saturating_add(u32::from(b & 3))
        };
        *now = now.saturating_add(u64::from(c) << (d % 56));
        let kind = MarkKind::ALL[usize::from(a) % MarkKind::ALL.len()];
        let numbers = [u64::from(d % 4), edge(c), edge(b), 0, 0];
        let mark = Mark {
            at: RankNs(*now),
            step: *step,
            on_loop_thread: what & 8 == 0,
            event: Event::decode(kind, u16::from(what >> 4), numbers)?,
        };
        Some(Input::Mark { rank, mark })
    };
    records.iter().filter_map(input).collect()
}

/// What is not a mark, as a recording has it.
fn told(rank: u32, step: u32, now: u64, what: u8, numbers: [u8; 3]) -> Input {
    let few = |number: u8| {
        if number == 255 {
            u32::MAX
        } else {
            u32::from(number % 8)
        }
    };
    let [a, b, c] = numbers.map(few);
    let role: Value = if c & 1 == 0 {
        Value::Null
    } else {
        json!("role")
    };
    let told = match what % 17 {
        0 => json!({
            "is": "rank", "rank": rank, "host": "host", "role": role,
            "first_local": a, "locals": b.min(64), "world_size": c,
        }),
        1 => json!({ "is": "name", "rank": rank, "name": format!("stage {a}") }),
        2 => {
            json!({ "is": "name", "rank": rank, "name": "model.fwd_loss_cuda_event_ms" })
        }
        3 => json!({ "is": "note", "text": "note\n" }),
        4 => json!({ "is": "lost", "rank": rank, "records": edge(numbers[0]) }),
        5 => json!({ "is": "left", "rank": rank, "step": step }),
        6 => json!({ "is": "left", "rank": rank, "step": a, "orderly": c & 1 == 0 }),
        7 => {
            json!({ "is": "group", "group": a, "name": "group", "members": [b, c, rank] })
        }
        8 => json!({ "is": "quiet", "at": now.saturating_add(edge(numbers[0]) << 28) }),
        9 => {
            let frame = json!({ "function": "step", "file": "/job/train.py", "line": -1 });
            let frames = vec![frame; usize::from(numbers[0] % 3)];
            let stack = json!({ "state": "sleeping", "frames": frames });
            json!({ "is": "stack", "rank": rank, "stack": stack })
        }
        10 => json!({ "is": "stacks_told" }),
        11 => json!({
            "is": "timed", "rank": rank, "group": a, "op": "ALLREDUCE",
            "number": c, "bytes": edge(numbers[1]), "busy_ns": edge(numbers[0]),
        }),
        12 => json!({ "is": "communicator", "rank": rank, "communicator": {
            "hash": a, "name": "ring", "rank": b, "size": c,
        } }),
        13 => json!({
            "is": "slow", "communicator": a,
            "took_ns": edge(numbers[1]) << 24, "usual_ns": edge(numbers[2]) << 20,
        }),
        14 | 15 => {
            let op = if c & 1 == 0 { "SEND" } else { "ALLREDUCE" };
            let flow = |channel: u32, direction: &str| {
                json!({
                    "channel": channel, "peer": b, "direction": direction, "total": 8,
                    "ready": numbers[1] % 9, "transmitted": numbers[2] % 9, "done": c,
                    "bytes": edge(numbers[1]), "begun_at": now / 2, "moved_at": now,
                })
            };
            let operation = json!({
                "communicator": a, "op": op, "sequence": edge(numbers[1]),
                "bytes": edge(numbers[2]), "begun_at": now, "ended_at": null,
                "flows": [flow(0, "send"), flow(0, "receive"), flow(b & 255, "send")],
            });
            json!({
                "is": "look", "rank": rank, "at": now.saturating_add(edge(numbers[0]) << 28),
                "in_progress": [operation], "ended": vec![operation.clone(); (c & 1) as usize],
                "late": [numbers[1] % 2],
            })
        }
        _ => json!({ "is": "restart" }),
    };
    serde_json::from_value(told).expect("an input")
}

/// Small numbers, and those at the ends of 32 and 64 bits.
fn edge(number: u8) -> u64 {
    match number {
        0..240 => u64::from(number),
        240..248 => u64::from(u32::MAX) - u64::from(number - 240),
        248.. => u64::MAX - u64::from(number - 248),
    }
}

fn recorded(inputs: &[Input]) -> Job {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal.jsonl");
    let mut journal = JournalWriter::create(&path, "job").expect("a file");
    for input in inputs {
        journal.write(input).expect("room");
    }
    journal.finish().expect("room");
    load(&path, Limits::default())
        .expect("a journal")
        .replay("job", eager())
}
