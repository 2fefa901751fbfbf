//! `laggard analyze` on traces of profilers, as a user reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use insta::assert_snapshot;

const SOCKET: &str = "<built-in method recv_into of _socket.socket object at 0x7f00aa55cc11>";

/// Four steps of a rank with a device: its loader reads for so long, the collective ends in all
/// ranks together.
fn trace(rank: u32, reads_us: u32, world: u32) -> String {
    let mut events = String::new();
    let mut event = |category: &str, name: &str, thread: u32, at: (u32, u32), args: &str| {
        let (start, end) = at;
        write!(
            events,
            "{}  {{\n    \"ph\": \"X\", \"cat\": \"{category}\", \"name\": \"{name}\", \"pid\": 7, \
             \"tid\": {thread},\n    \"ts\": {start}.5, \"dur\": {},\n    \"args\": {{{args}}}\n  }}",
            if events.is_empty() { "" } else { ",\n" },
            end - start,
        )
        .expect("a string");
    };
    for step in 0..4u32 {
        let at = 1000 + step * 100_000;
        let read = at + reads_us;
        event(
            "user_annotation",
            &format!("ProfilerStep#{step}"),
            7,
            (at, at + 99_900),
            "",
        );
        event("user_annotation", "## load ##", 7, (at, read), "");
        event(
            "user_annotation",
            "## forward ##",
            7,
            (read, read + 5000),
            "",
        );
        event(
            "user_annotation",
            "## backward ##",
            7,
            (read + 5000, at + 90_000),
            "",
        );
        let id = 10 * step;
        let own =
            |id: u32, parent: u32| format!("\"Python id\": {id}, \"Python parent id\": {parent}");
        event(
            "python_function",
            "train.py(9): main",
            7,
            (at, at + 99_900),
            &own(id + 1, 0),
        );
        event(
            "python_function",
            "data.py(77): read_shard",
            7,
            (at, read),
            &own(id + 2, id + 1),
        );
        event(
            "python_function",
            SOCKET,
            7,
            (at + 10, read),
            &own(id + 3, id + 2),
        );
        event(
            "kernel",
            "gemm",
            8,
            (read + 100, read + 30_000),
            "\"stream\": 8",
        );
        event(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_f16_RING_LL(x)",
            9,
            (read + 30_000, at + 90_000),
            "\"Collective name\": \"allreduce\", \"In msg nelems\": 1024, \"dtype\": \"Half\", \
               \"Process Group Name\": \"0\"",
        );
        event(
            "kernel",
            "adam",
            8,
            (at + 90_000, at + 99_900),
            "\"stream\": 8",
        );
    }
    format!(
        "{{\n  \"schemaVersion\": 1,\n  \"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {rank}, \
         \"world_size\": {world}}},\n  \"host_name\": \"node{}\",\n  \
         \"baseTimeNanoseconds\": 1790857026000000000,\n  \"traceEvents\": [\n{events}\n  ]\n}}\n",
        rank / 2
    )
}

fn analyze(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command
        .arg("analyze")
        .args(arguments)
        .arg(".")
        .current_dir(folder);
    command
        .env_remove("LAGGARD_CONFIG")
        .output()
        .expect("laggard runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Rank 2 of four reads through a slow socket.
fn job() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for rank in 0..4 {
        let reads_us = if rank == 2 { 41_000 } else { 300 };
        fs::write(
            folder.path().join(format!("rank{rank}.json")),
            trace(rank, reads_us, 4),
        )
        .expect("a file");
    }
    folder
}

#[test]
fn a_slow_socket_is_named_with_its_callers() {
    let folder = job();
    let output = analyze(folder.path(), &["--perfetto", "annotated.txt"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    assert_snapshot!(text(&output.stdout));
    let spans = spans_of(&folder.path().join("annotated.txt"));
    let reported = |track: &str, name: &str, rank: u64| {
        let spans = spans
            .iter()
            .filter(|span| span.track == track && span.rank == rank);
        let named = spans.filter(|span| span.name == name);
        named
            .map(|span| (span.end_ns - span.start_ns) / 1_000_000)
            .collect::<Vec<_>>()
    };
    assert_eq!(reported("steps", "step 3", 0), [99]);
    assert_eq!(
        reported("collectives", "allreduce (last to come)", 2),
        [19; 4]
    );
    // Ranks 0, 1 and 3 come after 300 µs of reading, rank 2 after 41 ms.
    assert_eq!(reported("late", "late to allreduce", 2), [40; 4]);
    assert_eq!(reported("late", "late to allreduce", 0), [0; 0]);
    let read = "<built-in method recv_into of _socket.socket object at 0x…> (unlike)";
    assert_eq!(reported("functions", read, 2), [40; 4]);
    assert_eq!(reported("functions", "gemm", 1).len(), 4);
    assert!(
        spans
            .iter()
            .any(|span| span.track == "incidents" && span.rank == 2)
    );
}

/// A span of an annotated trace.
struct Span {
    rank: u64,
    track: String,
    name: String,
    start_ns: i64,
    end_ns: i64,
}

/// The spans of an annotated trace, which must keep the rules of trace events: what begins ends, times
/// do not go back, spans of a thread nest or follow each other, each process and thread has a name.
/// Our own scanner reads it to its end, and takes it for no recording where it lies beside some.
fn spans_of(path: &Path) -> Vec<Span> {
    let read = formats::load(path, formats::Limits::default()).expect_err("no recording");
    assert!(
        read.to_string()
            .contains("it is a trace of which nothing can be used"),
        "{read}"
    );
    let document = fs::read(path).expect("a trace");
    let document: serde_json::Value = serde_json::from_slice(&document).expect("JSON");
    let events = document["traceEvents"].as_array().expect("events");
    let mut tracks = BTreeMap::new();
    let mut processes = BTreeSet::new();
    let mut open: BTreeMap<(u64, u64), Vec<i64>> = BTreeMap::new();
    let (mut spans, mut now_ns) = (Vec::new(), 0);
    for event in events {
        let number = |key: &str| event[key].as_u64().expect("a number");
        let ns = |key: &str| (event[key].as_f64().expect("a time") * 1e3).round() as i64;
        let name = event["name"].as_str().expect("a name").to_owned();
        let rank = number("pid");
        match event["ph"].as_str() {
            Some("M") => {
                let given = event["args"]["name"].as_str().map(str::to_owned);
                match name.as_str() {
                    "process_name" => assert!(processes.insert(rank), "two names"),
                    "thread_name" => {
                        let before = tracks.insert((rank, number("tid")), given);
                        assert_eq!(before, None, "two names");
                    }
                    _ => {}
                }
            }
            Some("X") => {
                let place = (rank, number("tid"));
                let (start_ns, length_ns) = (ns("ts"), ns("dur"));
                assert!(start_ns >= now_ns && length_ns >= 0, "{event}");
                now_ns = start_ns;
                let end_ns = start_ns + length_ns;
                let open = open.entry(place).or_default();
                open.retain(|end_ns| *end_ns > start_ns);
                assert!(open.iter().all(|outer_ns| end_ns <= *outer_ns), "{event}");
                open.push(end_ns);
                assert!(processes.contains(&rank), "{event}");
                let track = tracks
                    .get(&place)
                    .cloned()
                    .flatten()
                    .expect("a thread's name");
                spans.push(Span {
                    rank,
                    track,
                    name,
                    start_ns,
                    end_ns,
                });
            }
            other => panic!("{other:?}: nothing else is written"),
        }
    }
    spans
}

/// Overlapping collectives of two groups lie beside each other, not across each other.
#[test]
fn an_annotated_trace_of_a_real_job_keeps_the_rules() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../../shared/data/kineto_gloo_torch215/data4");
    if !traces.exists() {
        println!("skipped: {} is not there", traces.display());
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("annotated.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command
        .arg("analyze")
        .arg(&traces)
        .arg("--perfetto")
        .arg(&path);
    let output = command
        .env_remove("LAGGARD_CONFIG")
        .output()
        .expect("laggard runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let spans = spans_of(&path);
    let late = spans
        .iter()
        .filter(|span| span.track == "late" && span.rank == 3);
    assert!(late.count() >= 17);
    let slow = spans
        .iter()
        .filter(|span| span.name == "data.next_wait (unlike)");
    assert!(slow.count() > 0 && spans.len() > 500, "{}", spans.len());
}

/// With two ranks neither differs from most, but what only one of them does is unexpected.
#[test]
fn folders_that_are_numbered_as_the_ranks_of_their_traces_are_one_job() {
    let jobs = |rank_of: fn(u32) -> u32| {
        let folder = tempfile::tempdir().expect("a folder");
        for number in 0..4 {
            let own = folder.path().join(number.to_string());
            fs::create_dir(&own).expect("a folder");
            let recorded = trace(rank_of(number), 300, 4);
            fs::write(own.join("trace.json"), recorded).expect("a file");
        }
        let printed = text(&analyze(folder.path(), &[]).stdout);
        printed
            .lines()
            .filter(|line| line.starts_with("laggard "))
            .count()
    };
    assert_eq!(jobs(|number| number), 1);
    // Runs have numbers as well.
    assert_eq!(jobs(|number| 3 - number), 4);
}

#[test]
fn what_only_one_of_two_ranks_does_is_its_own_problem() {
    let folder = tempfile::tempdir().expect("a folder");
    let slow = trace(1, 41_000, 2).replace("recv_into of _socket.socket object", "sleep");
    fs::write(folder.path().join("a.json"), trace(0, 300, 2)).expect("a file");
    fs::write(folder.path().join("b.json"), slow).expect("a file");
    let output = analyze(folder.path(), &["--json"]);
    let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let incidents = verdict["incidents"].as_array().expect("incidents");
    let mut subjects = incidents.iter().map(|incident| &incident["subject"]);
    let subject = subjects.find(|subject| subject["function"].is_string());
    let subject = subject.expect("a function");
    assert_eq!(subject["ranks"], serde_json::json!([1]));
    assert_eq!(subject["function"], "<built-in method sleep at 0x…>");
}

#[test]
fn a_trace_that_is_cut_off_gives_what_it_has_and_says_so() {
    let folder = job();
    let whole = trace(1, 300, 4);
    let cut = whole.rfind("ProfilerStep#3").expect("a step");
    fs::write(folder.path().join("rank1.json"), &whole[..cut]).expect("a file");
    fs::write(folder.path().join("rank9.json"), "{\"traceEvents\": []}").expect("a file");
    let output = analyze(folder.path(), &["--json"]);
    let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let notes = verdict["notes"].to_string();
    assert!(
        notes.contains("rank1.json: the file is cut off, at byte"),
        "{notes}"
    );
    assert_eq!(verdict["incidents"][0]["subject"]["ranks"][0], 2);
    assert!(text(&output.stderr).contains("rank9.json is not a recording laggard knows"));
}

#[test]
fn a_damaged_file_of_a_folder_is_left_out_and_named() {
    let folder = job();
    fs::remove_file(folder.path().join("rank1.json")).expect("a file");
    let damaged: [(&str, &[u8]); 2] = [
        ("rank1.json.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03nonsense"),
        ("report.sqlite", b"SQLite format 3\0and no more"),
    ];
    for (name, bytes) in damaged {
        fs::write(folder.path().join(name), bytes).expect("a file");
    }
    let output = analyze(folder.path(), &["--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(verdict["incidents"][0]["subject"]["ranks"][0], 2);
    let (notes, said) = (verdict["notes"].to_string(), text(&output.stderr));
    for (name, _) in damaged {
        assert!(said.contains("left out") && said.contains(name), "{said}");
        assert!(notes.contains(name), "{notes}");
    }
    // A folder where nothing can be read is refused.
    for rank in [0, 2, 3] {
        let file = folder.path().join(format!("rank{rank}.json"));
        fs::remove_file(file).expect("a file");
    }
    let output = analyze(folder.path(), &["--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("rank1.json.gz"),
        "{}",
        text(&output.stderr)
    );
}

/// Each sample of a millisecond says that a third of the multiprocessors work.
#[test]
fn a_kernel_that_is_slow_on_all_ranks_is_named_by_what_the_settings_expect_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut counters = String::new();
    for at_us in (1000..401_000).step_by(1000) {
        write!(
            counters,
            ",\n  {{\n    \"ph\": \"C\", \"cat\": \"hardware_counters\", \"name\": \
             \"sm__throughput.avg.pct_of_peak_sustained_elapsed\", \"pid\": \"GPU 0 Counters\", \
             \"ts\": {at_us}.5, \"args\": {{\"\": 33}}\n  }}"
        )
        .expect("a string");
    }
    for rank in 0..4 {
        let text = trace(rank, 300, 4).replace("\n  ]\n}", &format!("{counters}\n  ]\n}}"));
        fs::write(folder.path().join(format!("rank{rank}.json")), text).expect("a file");
    }
    let settings = tempfile::tempdir().expect("a folder");
    let path = settings.path().join("laggard.toml");
    let config = path.to_str().expect("a name");
    let functions = |of: &str| {
        fs::write(&path, of).expect("a file");
        let output = analyze(folder.path(), &["--json", "--config", config]);
        let verdict = serde_json::from_slice::<serde_json::Value>(&output.stdout);
        let said = text(&output.stderr);
        let Ok(verdict) = verdict else {
            return Err(said);
        };
        let gemm = verdict["profile"]["functions"]
            .as_array()
            .expect("functions");
        let gemm = gemm.iter().find(|function| function["name"] == "gemm");
        assert!((gemm.expect("gemm")["mu"].as_f64().expect("mu") - 0.33).abs() < 1e-3);
        let incidents = verdict["incidents"].as_array().expect("incidents").iter();
        let named = incidents.filter(|incident| incident["subject"]["function"] == "gemm");
        Ok(named
            .map(|incident| incident["text"].clone())
            .collect::<Vec<_>>())
    };
    assert_eq!(functions("").expect("a verdict"), [""; 0]);
    let of_gemm = |mu: &str| {
        format!("[[pattern.expected]]\nfunction = \"gemm\"\nclass = \"gpu_compute\"\nmu = {mu}\n")
    };
    assert_eq!(
        functions(&of_gemm("[0.66, 1.0]")).expect("a verdict"),
        [
            "all ranks spend 30 % of the time in gemm at 33 % utilisation, where 66 to 100 % is \
          expected"
        ]
    );
    let refused = functions(&of_gemm("[1.0, 0.7]")).expect_err("no range");
    assert!(
        refused.contains("expected [low, high] from 0 to 1"),
        "{refused}"
    );
}
