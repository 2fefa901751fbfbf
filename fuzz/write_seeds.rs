//! Writes the seeds anew: small recordings of a job whose last rank is late, in every format but reports
//! of Nsight Systems: `seeds/nsys` was made with `sqlite3`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use formats::{JournalWriter, Limits, load_bytes};
use model::{
    CollectiveIssue, CollectiveOp, Direction, Event, Input, Mark, MarkKind, Pass, PipelineBlock,
    RankNs,
};
use ring::{
    Bytes, Identity, LiveSize, LiveSource, LiveWriter, NameKind, Reached, RequestWriter,
    RingDirectory, RingWriter, Route,
};
use schedule::Scheme;
use serde_json::{Value, json};
use sim::{CalledJob, Delay, Drag, Pipeline, Spot, log_text};
use verdict::Settings;

/// What one rank does in one step, its name in an event list, and the milliseconds before it.
const STEP: [(MarkKind, &str, u64); 8] = [
    (MarkKind::DataBegin, "D0", 1),
    (MarkKind::DataEnd, "D1", 4),
    (MarkKind::BackwardBegin, "B0", 9),
    (MarkKind::CollectiveIssue, "K:ALLREDUCE", 6),
    (MarkKind::BackwardEnd, "B1", 5),
    (MarkKind::OptimizerBegin, "O0", 1),
    (MarkKind::OptimizerEnd, "O1", 2),
    (MarkKind::SideSample, "", 0),
];
/// The first line of a batch.
const BATCH_HEAD: &[u8] =
    b"{\"schema\":\"laggard.batch/1\",\"boot\":\"b\",\"until_ns\":1000000000,\"last\":false}\n";
/// What is asked of a collector, but for batches.
const REQUESTS: [(&str, &[u8]); 6] = [
    ("jobs", b"GET /api/v1/jobs"),
    ("verdict", b"GET /api/v1/jobs/job/verdict"),
    (
        "incidents",
        b"GET /api/v1/incidents?since=1&before=9e9&job=job&rank=1&host=h",
    ),
    ("trace", b"GET /api/v1/jobs/job/incidents/i1/trace"),
    (
        "silence",
        b"POST /api/v1/silences\n{\"job\":null,\"until_s\":99999999999,\"reason\":\"r\"}",
    ),
    (
        "head",
        b"DELETE /api/v1/silences/1 HTTP/1.1\r\nhost: [::1]:1\r\nauthorization: Basic dTpw\r\n\r\n",
    ),
];
/// The ring's header with room for two names, and where its slots begin.
const HEAD_BYTES: usize = 1024;
const SLOTS_AT: usize = 36_864;
/// A live table's head with room for two communicators, where its operations begin, and as
/// many of them as are kept; then where its flows begin.
const LIVE_HEAD_BYTES: usize = 896;
const OPERATIONS_AT: usize = 12_800;
const OPERATION_BYTES: usize = 8 * 64;
const FLOWS_AT: usize = OPERATIONS_AT + 64 * 64;

fn main() -> io::Result<()> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let write = |name: &str, bytes: &[u8]| {
        let path = seeds.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&seeds))?;
        fs::write(path, bytes)
    };
    write("events/late_in_data.json", events(3, 12).as_bytes())?;
    write("events/small.json", events(2, 4).as_bytes())?;
    write("verdict/late_in_data.json", &verdict()?)?;
    write("matrix/matrix.json", matrix().as_bytes())?;
    write("matrix/micro.json", micro_matrix().as_bytes())?;
    write("flight_recorder/dump.json", flight_recorder().as_bytes())?;
    let journal = journal(Some("pp=1"))?;
    write("journal/roles.jsonl", &journal)?;
    write("journal/peers.jsonl", &self::journal(None)?)?;
    let mut batch = BATCH_HEAD.to_vec();
    batch.extend(
        journal
            .split_inclusive(|byte| *byte == b'\n')
            .skip(1)
            .flatten(),
    );
    write("batch/batch.jsonl", &batch)?;
    let told = b"POST /api/v1/jobs/job/hosts/h/epochs/e/batches/0\n";
    write("http/batch", &[told, batch.as_slice()].concat())?;
    for (name, request) in REQUESTS {
        write(&format!("http/{name}"), request)?;
    }
    write(
        "messages/batch",
        &[b"laggard.batches.job.h\ne\n0\n1000\n", batch.as_slice()].concat(),
    )?;
    let order = json!({
        "stacks": [1], "lost": "e",
        "profile": { "ranks": [0, 1], "first_step": 120, "steps": 10, "limit_ms": 20_000 },
    });
    write("messages/order", order.to_string().as_bytes())?;
    write("packed/plain.json", matrix().as_bytes())?;
    write("packed/events.json.gz", &gzip(events(2, 4).as_bytes())?)?;
    write("packed/matrix.json.xz", &xz(matrix().as_bytes())?)?;
    write(
        "packed/journal.jsonl.zst",
        &zstd::encode_all(journal.as_slice(), 3)?,
    )?;
    write("calls/slow.log", called(vec![(4, 0.4)]).as_bytes())?;
    write("calls/healthy.log", called(Vec::new()).as_bytes())?;
    write("work_requests/slow.csv", returned().as_bytes())?;
    write("kineto/events", kineto_events().as_bytes())?;
    write("inputs/inputs", &inputs())?;
    write("ring/ring", &ring()?)?;
    write("live/live", &live()?)?;
    write("requests/requests", &requests()?)?;
    let pipeline = Pipeline {
        dp: 2,
        pp: 2,
        tp: 1,
        microbatches: 2,
        steps: 2,
        drags: vec![Drag::Rank {
            dp_rank: 1,
            stage: 0,
            times: 2.0,
        }],
        seed: 1,
    };
    write("what_if/trace.parquet", &pipeline.trace())?;
    write("what_if/meta.yaml", pipeline.meta().as_bytes())?;
    let settings = toml::to_string(&Settings::default()).map_err(io::Error::other)?;
    write(
        "settings/settings.toml",
        (settings + "\"data.next_wait\" = 0.1\n").as_bytes(),
    )
}

/// What is said of a job long enough to be compared.
fn verdict() -> io::Result<Vec<u8>> {
    let job = load_bytes("job", events(3, 60).as_bytes(), Limits::default());
    let job = job.map_err(io::Error::other)?.replay("job", fuzz::eager());
    Ok(serde_json::to_vec(&job.verdict())?)
}

/// The log of a rank in the middle of a pipeline, with microbatches delayed in these iterations.
fn called(delays: Vec<(u64, f64)>) -> String {
    let block = PipelineBlock {
        pass: Pass::Forward,
        microbatch: 1,
        chunk: 0,
    };
    let delay = |(iteration, extra_s)| Delay {
        at: Spot {
            iteration,
            rank: 3,
            block,
        },
        extra_s,
    };
    let job = CalledJob {
        tp: 2,
        dp: 1,
        pp: 3,
        microbatches: 3,
        scheme: Scheme::OneForwardOneBackward,
        pipeline_first: false,
        iterations: 6,
        noise: 0.02,
        delays: delays.into_iter().map(delay).collect(),
        stop: None,
        hashes: true,
        seed: 1,
    };
    log_text(&job.logs()[3])
}

/// Telemetry of two connections, one of which becomes slow and stands still, behind the head that
/// the target writes.
fn returned() -> String {
    let row = |at: u64| {
        let (link, at) = (at % 2, at / 2);
        let slow = link == 1 && at > 14;
        let (gibit, at_ms) = (
            if slow { 90 } else { 186 },
            at * 100 + u64::from(at > 18) * 900,
        );
        format!(
            "20260101120000,77,{link},2,0,6,{at},10.0.0.1,10.0.0.2,{gibit},{},4096,{at_ms}000000\n",
            at % 3
        )
    };
    (0..40).map(row).collect()
}

/// Events of a profiler, as they stand behind the head that the target writes.
fn kineto_events() -> String {
    let mut events = String::new();
    let mut event = |category: &str,
                     name: &str,
                     thread: u32,
                     (at, took): (u32, u32),
                     args: &str| {
        events += &format!(
            "\n  {{\n    \"ph\": \"X\", \"cat\": \"{category}\", \"name\": \"{name}\", \"pid\": 7, \
             \"tid\": {thread},\n    \"ts\": {at}.125, \"dur\": {took}, \"args\": {{{args}}}\n  }},"
        );
    };
    for step in 0..3u32 {
        let at = step * 1000;
        event(
            "user_annotation",
            &format!("ProfilerStep#{step}"),
            7,
            (at, 990),
            "",
        );
        event("user_annotation", "data.next_wait", 7, (at + 5, 200), "");
        event(
            "python_function",
            "a.py(1): f",
            7,
            (at + 1, 500),
            "\"Python id\": 1",
        );
        let child = "\"Python id\": 2, \"Python parent id\": 1";
        event(
            "python_function",
            "<built-in recv_into>",
            7,
            (at + 9, 150),
            child,
        );
        event("cpu_op", "c10d::allreduce_", 7, (at + 600, 5), "");
        event("kernel", "gemm", 9, (at + 300, 250), "\"stream\": 7");
        let collective = "\"Collective name\": \"allreduce\", \"In msg nelems\": 8, \
                          \"Process Group Ranks\": \"[0, 1]\", \"Seq\": 3";
        event(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_f16",
            10,
            (at + 600, 200),
            collective,
        );
    }
    events += "{}], \"distributedInfo\": {\"rank\": 1, \"world_size\": 2}, \
               \"baseTimeNanoseconds\": 1790857026000000000}";
    events
}

/// The marks of a rank, in order.
fn marks(rank: u32, last_rank: u32, steps: u32) -> Vec<(Mark, &'static str)> {
    let mut now = u64::from(rank) * 1000;
    let mut marks = Vec::new();
    for step in 0..steps {
        for (kind, name, ms) in STEP {
            let late = kind == MarkKind::DataEnd && rank == last_rank;
            // Everybody else waits for the last rank in the backward pass.
            let waits = kind == MarkKind::BackwardEnd && rank != last_rank;
            now += (ms + u64::from(late || waits) * 40) * 1_000_000 + 17_000;
            let event = match kind {
                MarkKind::CollectiveIssue => Event::CollectiveIssue(CollectiveIssue {
                    op_id: step.into(),
                    ..CollectiveIssue::new(CollectiveOp::ALLREDUCE, 7, 0)
                }),
                MarkKind::SideSample => Event::SideSample {
                    name: 0,
                    nanoseconds: 8_000_000,
                },
                kind => kind.into(),
            };
            let mark = Mark {
                at: RankNs(now),
                step,
                on_loop_thread: true,
                event,
            };
            marks.push((mark, name));
        }
    }
    marks
}

fn events(ranks: u32, steps: u32) -> String {
    let of_rank = |rank| {
        let named = marks(rank, ranks - 1, steps).into_iter();
        let named = named.filter(|(_, name)| !name.is_empty());
        json!(
            named
                .map(|(mark, name)| json!([mark.at.0, name]))
                .collect::<Vec<_>>()
        )
    };
    json!((0..ranks).map(of_rank).collect::<Vec<_>>()).to_string()
}

fn matrix() -> String {
    let row = |rank: u32| {
        if rank == 2 {
            [0.05, 0.01, 0.02, 0.001]
        } else {
            [0.01, 0.01, 0.06, 0.001]
        }
    };
    let cells = vec![[row(0), row(1), row(2)]; 6];
    let mut cells = json!(cells);
    cells[5][0] = json!(null);
    json!({
        "schema": "stage-matrix/1",
        "scenario": "seed",
        "stages": [
            "data.next_wait", "model.fwd_loss_cpu_wall", "model.backward_cpu_wall",
            "step.other_cpu_wall",
        ],
        "unit": "s",
        "matrix": cells,
        "wall": vec![[0.081; 3]; 6],
        "python_collective_time": vec![[[0.0, 0.0, 0.005, 0.0]; 3]; 6],
        "grad_accum": 2,
        "roles": ["first", "last", "last"],
    })
    .to_string()
}

fn micro_matrix() -> String {
    json!({
        "schema": "stage-matrix/1",
        "stages": ["model.backward_cpu_wall"],
        "unit": "ms",
        "matrix": vec![[[20.0]; 2]; 6],
        "grad_accum": 2,
        "micro_stages": ["model.backward_cpu_wall@0", "model.backward_cpu_wall@1"],
        "micro_matrix": vec![[[8.0, 12.0], [18.0, 2.0]]; 6],
    })
    .to_string()
}

fn flight_recorder() -> String {
    json!({
        "version": "2.10",
        "entries": [
            {
                "record_id": 1, "time_created_ns": 20_000, "state": "completed",
                "profiling_name": "gloo:barrier", "process_group": ["0", "default_pg"],
            },
            {
                "record_id": 0, "time_created_ns": 10_000,
                "profiling_name": "nccl:send 0->1",
            },
        ],
    })
    .to_string()
}

fn journal(role: Option<&str>) -> io::Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("journal.jsonl");
    let mut journal = JournalWriter::create(&path, "seed")?;
    for rank in 0..2 {
        let role = role.filter(|_| rank == 1);
        journal.write(&told(json!({
            "is": "rank", "rank": rank, "host": "host", "role": role,
            "first_local": 0, "locals": 2, "world_size": 4,
        }))?)?;
        let name = "model.fwd_loss_cuda_event_ms";
        journal.write(&told(json!({ "is": "name", "rank": rank, "name": name }))?)?;
    }
    let ranks = [0, 1].map(|rank| marks(rank, 1, 4));
    for step in 0..4 {
        for (rank, marks) in (0..).zip(&ranks) {
            for (mark, _) in marks.iter().filter(|(mark, _)| mark.step == step) {
                journal.write(&Input::Mark { rank, mark: *mark })?;
            }
        }
    }
    let usage = json!({ "lasted_s": 10.0, "cores": 0.3, "cores_deviation": 0.05,
        "without_core_share": 0.7 });
    let usage = json!({ "is": "usage", "rank": 0, "first_step": 1, "last_step": 3,
        "usage": usage });
    journal.write(&told(usage)?)?;
    let mean = |value: f64| json!({ "value": value, "over_s": 10.0 });
    let gauges = json!({ "heat_share": mean(0.8), "clock_mhz": mean(1005.0) });
    let usage = json!({ "device": { "gpu": 1 }, "gauges": gauges,
        "errors": { "nvlink_replay": 3 } });
    let device = json!({ "is": "device", "ranks": [1], "first_step": 1, "last_step": 3,
        "usage": usage });
    journal.write(&told(device)?)?;
    journal.write(&told(json!({ "is": "lost", "rank": 0, "records": 3 }))?)?;
    journal.write(&told(json!({ "is": "note", "text": "a note" }))?)?;
    journal.write(&told(json!({ "is": "left", "rank": 1, "step": 3 }))?)?;
    journal.write(&told(json!({ "is": "restart" }))?)?;
    journal.finish()?;
    fs::read(path)
}

fn told(told: Value) -> io::Result<Input> {
    Ok(serde_json::from_value(told)?)
}

/// Six steps of two ranks as the target `inputs` reads them: rank, kind, step, time.
fn inputs() -> Vec<u8> {
    let ranks = [0u8, 1].map(|rank| marks(rank.into(), 1, 6));
    let mut bytes = Vec::new();
    for at in 0..ranks[0].len() {
        for (rank, marks) in (0u8..).zip(&ranks) {
            let mark = marks[at].0;
            let before = at.checked_sub(1).map_or(mark, |before| marks[before].0);
            let kind = MarkKind::ALL.iter().position(|kind| *kind == mark.kind());
            let kind = kind.and_then(|kind| u8::try_from(kind).ok()).unwrap_or(0);
            let step = u8::from(mark.step > before.step);
            let ms = (mark.at.0 - before.at.0) / 1_000_000;
            let ms = u8::try_from(ms).unwrap_or(u8::MAX);
            // 2^20 ns are about a millisecond.
            bytes.extend([3 << 4, rank, kind, step, ms, 20]);
        }
    }
    bytes
}

/// A ring file of process zero, without the room between its header and its slots.
fn ring() -> io::Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let directory = RingDirectory::create(folder.path(), "job").map_err(io::Error::other)?;
    let identity = Identity {
        job: "job".to_owned(),
        host: "host".to_owned(),
        world_size: 2,
        local_world_size: 2,
        ..Identity::default()
    };
    let ring = RingWriter::create(&directory, &identity, 64).map_err(io::Error::other)?;
    ring.name(NameKind::Stage, "model.fwd_loss_cuda_event_ms");
    ring.name(NameKind::Role, "pp=1");
    for (mark, _) in marks(0, 0, 9) {
        ring.write(mark);
    }
    ring.set_stepped(9);
    let file = fs::read(ring.path())?;
    Ok([&file[..HEAD_BYTES], &file[SLOTS_AT..]].concat())
}

/// A live table of 64 operations, of which the first eight and their flows are kept: three
/// that ended, one that is stuck, one that waits behind it.
fn live() -> io::Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let directory = RingDirectory::create(folder.path(), "job").map_err(io::Error::other)?;
    let size = LiveSize::new(64).map_err(io::Error::other)?;
    let table = LiveWriter::create(&directory, &Identity::default(), size, LiveSource::Plugin);
    let table = table.map_err(io::Error::other)?;
    let full = || io::Error::other("a table that is full");
    let communicator = table.communicator(77, b"dp", 1, 4).ok_or_else(full)?;
    for sequence in 0..5 {
        let at = RankNs(1000 * (sequence + 1));
        let op = CollectiveOp::ALLREDUCE;
        let begun = table.begin_operation(communicator, op, sequence, 4096, at);
        let begun = begun.ok_or_else(full)?;
        table.enqueued(begun, at);
        for direction in [Direction::Send, Direction::Receive] {
            let route = Route {
                channel: 0,
                peer: 2,
                direction,
            };
            let flow = table.announce_flow(begun, route, 2).ok_or_else(full)?;
            let transfers = [2, 2, 2, 1, 0][sequence as usize];
            for step in 0..transfers {
                let step = Reached::Step(step);
                table.ready(flow, step, |_| at);
                table.transmitted(flow, step, Bytes::More(2048), || at);
                table.done(flow, step, || at);
            }
        }
    }
    let file = fs::read(table.path())?;
    let operations = &file[OPERATIONS_AT..][..OPERATION_BYTES];
    let flows = &file[FLOWS_AT..][..10 * 64];
    Ok([&file[..LIVE_HEAD_BYTES], operations, flows].concat())
}

/// A table of work requests up to its second queue pair.
fn requests() -> io::Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let directory = RingDirectory::create(folder.path(), "job").map_err(io::Error::other)?;
    let table = RequestWriter::create(&directory, &Identity::default());
    let table = table.map_err(io::Error::other)?;
    for number in [77, 78] {
        let pair = table
            .open(b"mlx5_0", number)
            .ok_or_else(|| io::Error::other("full"))?;
        table.connect(pair, 1, [1; 16], 88);
        let (posted, bytes) = table.posted(pair, 3, 300, || RankNs(1000));
        table.completed(pair, posted - 1, bytes - 100, || RankNs(2000));
        table.failed(pair, 12);
    }
    Ok(fs::read(table.path())?[..384 + 2 * 128].to_vec())
}

fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(bytes)?;
    packer.finish()
}

fn xz(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut packer = liblzma::write::XzEncoder::new(Vec::new(), 6);
    packer.write_all(bytes)?;
    packer.finish()
}
