use std::io::Cursor;

use trace::SliceKind::{Annotation, Collective, Kernel, Memory, Step, Wait};

use super::*;

fn trace_of(document: &str) -> Trace {
    read(document.as_bytes()).unwrap()
}

fn events(count: usize) -> Vec<String> {
    (0..count)
        .map(|at| {
            format!(
                "  {{\n    \"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"aten::op{at}\", \
                 \"pid\": 7, \"tid\": 7,\n    \"ts\": {}.125, \"dur\": 1.5,\n    \
                 \"args\": {{\n      \"Input Dims\": [[1, 2], []]\n    }}\n  }}",
                1000 + at * 10
            )
        })
        .collect()
}

fn document(events: &[String]) -> String {
    format!(
        "{{\n  \"schemaVersion\": 1,\n  \"traceEvents\": [\n{}\n  ],\n  \
         \"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": 3, \"world_size\": 8}},\n  \
         \"baseTimeNanoseconds\": 1790857026000000000,\n  \"traceName\": \"a.json\"\n}}",
        events.join(",\n")
    )
}

fn names(trace: &Trace) -> Vec<&str> {
    trace.slices.iter().map(|slice| trace.name(slice)).collect()
}

#[test]
fn a_whole_document_is_read_with_what_stands_behind_its_events() {
    let trace = trace_of(&document(&events(3)));
    assert_eq!(names(&trace), ["aten::op0", "aten::op1", "aten::op2"]);
    assert_eq!((trace.rank, trace.world_size), (Some(3), Some(8)));
    assert_eq!(
        trace.slices[0].start_ns,
        1_790_857_026_000_000_000 + 1_000_125
    );
    assert_eq!(trace.slices[0].duration_ns(), 1500);
    assert!(
        trace.absolute && trace.losses.is_empty(),
        "{:?}",
        trace.losses
    );
}

#[test]
fn the_list_alone_is_a_document_too() {
    let trace = trace_of(&format!("[{}]", events(2).join(",")));
    assert_eq!(trace.slices.len(), 2);
    assert!(!trace.absolute && trace.losses.is_empty());
}

#[test]
fn what_follows_a_damaged_event_is_read() {
    let mut all = events(5);
    for damage in [
        "aten::\"op1",
        "aten::op\"1\"",
        "aten::op1\",",
        "aten::\u{1}op1\\",
    ] {
        all[1] = events(2)[1].replace("aten::op1", damage);
        let trace = trace_of(&document(&all));
        let rest = ["aten::op0", "aten::op2", "aten::op3", "aten::op4"];
        assert_eq!(names(&trace), rest, "{damage}");
        assert!(
            trace.losses[0].starts_with("1 events are not JSON"),
            "{:?}",
            trace.losses
        );
        assert_eq!(trace.rank, Some(3));
    }
}

#[test]
fn what_is_only_unusual_is_read() {
    let mut all = events(3);
    all[0] = all[0].replace("\"dur\": 1.5", "\"dur\": NaN");
    all[1] = all[1]
        .replace("aten::op1", "aten::\u{1}op\n1")
        .replace("[[1, 2]", "[[1e400, 2,]");
    all[2] = all[2].replace("\"tid\": 7", "\"id\": 99999999999999999999999, \"tid\": 7");
    let mut text = document(&all)
        .replace("],\n  \"dist", ",],\n  \"dist")
        .into_bytes();
    let at = text.windows(3).position(|w| w == b"op2").unwrap();
    text[at + 2] = 0xff;
    let trace = read(text.as_slice()).unwrap();
    assert_eq!(names(&trace), ["aten::\u{1}op\n1", "aten::op\u{fffd}"]);
    assert_eq!(
        trace.losses,
        ["1 events whose time or value is not a number"]
    );
}

#[test]
fn a_file_that_is_cut_off_gives_what_it_had() {
    let text = document(&events(3));
    let end = text.find("aten::op2").unwrap();
    let trace = trace_of(&text[..end]);
    assert_eq!(trace.slices.len(), 2);
    assert!(trace.losses[0].contains("cut off"), "{:?}", trace.losses);
    for end in 0..text.len() {
        let trace = trace_of(&text[..end]);
        assert!(trace.slices.len() <= 3);
    }
}

#[test]
fn a_damaged_archive_gives_what_stands_before_its_damage() {
    struct Damaged<'a>(&'a [u8]);
    impl Read for Damaged<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "corrupt deflate stream",
                )),
                read => Ok(read),
            }
        }
    }
    let text = document(&events(3));
    let end = text.find("aten::op2").unwrap();
    let trace = read(Damaged(&text.as_bytes()[..end])).unwrap();
    assert_eq!(trace.slices.len(), 2);
    assert!(
        trace.losses[0].ends_with("corrupt deflate stream"),
        "{:?}",
        trace.losses
    );
    assert!(read(Damaged(b"")).is_err());
}

/// Gives a few bytes at a time.
struct SlowReader<'a>(Cursor<&'a [u8]>);

impl Read for SlowReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(7);
        self.0.read(&mut buffer[..most])
    }
}

#[test]
fn what_is_read_does_not_depend_on_how_it_comes() {
    let many = document(&events(20_000));
    let at_once = trace_of(&many);
    let slowly = read(SlowReader(Cursor::new(many.as_bytes()))).unwrap();
    assert_eq!(at_once.slices, slowly.slices);
    assert_eq!(at_once.slices.len(), 20_000);
    assert!(many.len() > 2 * BLOCK_BYTES);
}

#[test]
fn old_and_new_names_of_things_mean_the_same() {
    let event = |category: &str, name: &str, rest: &str| {
        format!(
            "{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":\"{name}\",\"pid\":1,\
             \"tid\":\"stream 7\",\"ts\":5,\"dur\":2{rest}}}"
        )
    };
    let events = [
        event("Operator", "ProfilerStep#5", ""),
        event("user_annotation", "ProfilerStep#5", ""),
        event("gpu_user_annotation", "ProfilerStep#5", ""),
        event("Kernel", "gemm", ""),
        event("Memcpy", "Memcpy HtoD", ""),
        event("Operator", "enumerate(DataLoader)#_Iter.__next__", ""),
        event("Runtime", "cudaLaunchKernel", ""),
        event("cuda_runtime", "cudaDeviceSynchronize", ""),
        event(
            "kernel",
            "ncclDevKernel_AllReduce_Sum_f16_RING_LL(x)",
            ",\"args\":{\"Collective name\":\"allreduce\",\"In msg nelems\":4,\
             \"dtype\":\"Half\",\"Process Group Name\":\"1\",\"Seq\":9}",
        ),
        event("user_annotation", "gloo:all_reduce", ""),
        event("kernel", "gone", "")
            .replace(":5,", ":0,")
            .replace(":2}", ":0}"),
    ];
    let trace = trace_of(&format!("[{}]", events.join(",")));
    let mut kinds: Vec<_> = trace.slices.iter().map(|slice| slice.kind).collect();
    kinds.sort_unstable();
    assert_eq!(
        kinds,
        [
            Step, Step, Annotation, Wait, Kernel, Memory, Collective, Collective
        ]
    );
    assert_eq!(trace.transfers[0].bytes, 8);
    assert_eq!(trace.transfers[0].sequence, Some(9));
    assert_eq!(trace.transfers[1].op, "all_reduce");
}

/// Whatever spelling, with a member that is damaged before the events.
fn damaged_before_events(spelling: impl Fn(&str) -> String) {
    let members = [
        "\"deviceProperties\": [\n    {\n      \"name\": \"a\"b\",\n      \"id\": 0\n    }\n  ]",
        "\"deviceProperties\": [\n    {\n      \"name\": \"a\"\n    }",
        "\"LOG\": [\"one\"two\", \"three\"]",
        "\"LOG\": {\"one\": [1, 2}",
        "\"LOG\" 7",
    ];
    for member in members {
        let text = document(&events(3)).replace("\"schemaVersion\": 1", member);
        let trace = trace_of(&spelling(&text));
        assert_eq!(
            names(&trace),
            ["aten::op0", "aten::op1", "aten::op2"],
            "{member}"
        );
        assert_eq!((trace.rank, trace.absolute), (Some(3), true), "{member}");
        assert!(trace.losses[0].contains("not JSON"), "{:?}", trace.losses);
    }
}

#[test]
fn a_damaged_member_leaves_the_events() {
    damaged_before_events(str::to_owned);
}

#[test]
fn a_damaged_member_leaves_the_events_on_the_same_line() {
    damaged_before_events(|text| text.replace('\n', " "));
}

#[test]
fn a_damaged_member_behind_the_events_leaves_the_others() {
    let text = document(&events(3)).replace("\"rank\": 3", "\"rank\": \"3");
    for text in [text.clone(), text.replace('\n', " ")] {
        let trace = trace_of(&text);
        assert_eq!(
            (trace.slices.len(), trace.rank, trace.absolute),
            (3, None, true)
        );
    }
}

/// Each of them would be read up to the end of the file.
#[test]
fn open_brackets_cost_no_more_than_what_they_stand_in() {
    let open = "{\"ph\": \"X\", \"args\": [},\n";
    let list = format!("[{}{}]", open.repeat(20_000), events(1)[0]);
    let trace = trace_of(&list);
    assert_eq!(names(&trace), ["aten::op0"]);
    assert!(
        trace.losses[0].starts_with("20000 events"),
        "{:?}",
        trace.losses
    );
    let members = format!("{{{}", "\n\"a\": [".repeat(20_000));
    assert!(trace_of(&members).slices.is_empty());
    let hidden = format!("{{{}", "\"traceEvents\": {".repeat(2000));
    assert!(trace_of(&hidden).slices.is_empty());
}

fn slice(category: &str, thread: u32, at: &str, took: &str, args: &str) -> String {
    format!(
        "{{\"ph\": \"X\", \"cat\": \"{category}\", \"name\": \"a\", \"pid\": 1, \"tid\": {thread}, \
         \"ts\": {at}, \"dur\": {took}, \"args\": {{{args}}}}}"
    )
}

fn times(trace: &Trace) -> Vec<(i64, i64)> {
    trace
        .slices
        .iter()
        .map(|slice| (slice.start_ns, slice.end_ns))
        .collect()
}

/// The base lies up to three months before the recording.
#[test]
fn times_that_were_clamped_to_zero_are_no_times() {
    let mut all = vec![
        slice("kernel", 7, "0", "0", ""),
        slice("kernel", 7, "0", "5", ""),
        slice("cpu_op", 8, "0.000", "5", ""),
    ];
    all.extend(events(1));
    let base = 1_790_857_026_000_000_000;
    let kept = [(base + 1_000_125, base + 1_001_625)];
    let relative = trace_of(&document(&all));
    assert_eq!(times(&relative), kept);
    assert_eq!(
        relative.losses,
        ["3 slices without a time that can be true"]
    );
    all[3] = all[3].replace("1000.125", "1790857026001000.125");
    let absolute = trace_of(&format!("[{}]", all.join(",")));
    assert_eq!((times(&absolute), absolute.absolute), (kept.to_vec(), true));
    // A list that counts from its own beginning has one.
    let own = [
        slice("kernel", 7, "0", "5", ""),
        slice("kernel", 7, "0", "0", ""),
    ];
    assert_eq!(
        times(&trace_of(&format!("[{}]", own.join(",")))),
        [(0, 5000)]
    );
}

#[test]
fn durations_of_weeks_and_what_reaches_into_the_next_of_a_stream_are_mended() {
    let week_us = (7_u64 * 86_400 * 1_000_000 + 1).to_string();
    let all = [
        slice("kernel", 7, "10", "50", ""),
        slice("kernel", 7, "20", &week_us, ""),
        slice("kernel", 7, "30", "10", ""),
        slice("kernel", 8, "35", "10", ""),
    ];
    let trace = trace_of(&format!("[{}]", all.join(",")));
    assert_eq!(
        times(&trace),
        [(10_000, 30_000), (30_000, 40_000), (35_000, 45_000)]
    );
    assert_eq!(trace.losses, ["1 slices without a time that can be true"]);
}

/// Events name 30 ranks at most, on-demand traces write lists as text.
#[test]
fn members_of_a_group_are_those_the_group_has() {
    let collective = |group: &str, ranks: &str| {
        let args = format!(
            "\"Collective name\": \"allreduce\", \"Process Group Name\": \"{group}\", \
             \"Process Group Ranks\": \"{ranks}\""
        );
        slice("kernel", 7, "10", "5", &args).replace("\"a\"", "\"ncclDevKernel_AllReduce\"")
    };
    let all = [
        collective("0", "[0, 1, ...]"),
        collective("1", "[4, 5, ...]"),
        collective("2", "[0, 7]"),
        collective("3", "[0, 1, ...]"),
    ];
    let groups = "\"pg_config\": [{\"pg_name\": \"0\", \"ranks\": [0, 1, 2, 3]}, \
                  {\"pg_name\": \"1\", \"ranks\": \"[4, 5, 6]\"}], \"rank\": 3";
    let text = document(&all).replace("\"rank\": 3", groups);
    let members: Vec<Vec<u32>> = trace_of(&text)
        .transfers
        .into_iter()
        .map(|t| t.members)
        .collect();
    assert_eq!(
        members,
        [vec![0, 1, 2, 3], vec![4, 5, 6], vec![0, 7], vec![]]
    );
}
