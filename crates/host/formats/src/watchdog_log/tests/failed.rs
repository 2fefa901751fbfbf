//! Ranks that failed by themselves, and those that waited for them in gloo.

use model::{Input, PrintedNote, SourceNote};

use super::inputs;

/// As torchrun's summary has them: a rank and its exit code, the first that failed last.
fn ended(all: &[(u32, i32)]) -> String {
    let mut text =
        "E1129 api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 10)\nFailures:\n".to_owned();
    for (at, (rank, code)) in all.iter().enumerate() {
        if at + 1 == all.len() {
            text.push_str("Root Cause (first observed failure):\n");
        }
        text.push_str(&format!(
            "[{at}]:\n  time      : 2026-11-29_06:44:04\n  rank      : {rank} (local_rank: {rank})\n  \
             exitcode  : {code} (pid: 1{rank})\n"
        ));
    }
    text
}

fn dead(text: &str) -> Option<u32> {
    inputs(text).into_iter().find_map(|input| match input {
        Input::Killed { rank, .. } => Some(rank),
        _ => None,
    })
}

fn gave_up(rank: u32) -> String {
    format!(
        "[rank{rank}]: RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms \
         for recv operation to complete\n"
    )
}

fn lost(rank: u32) -> String {
    format!(
        "[rank{rank}]: RuntimeError: [/gloo/pair.cc:561] Connection closed by peer [127.0.0.1]:5.\n"
    )
}

#[test]
fn ranks_that_gave_up_are_victims_and_the_one_that_printed_nothing_is_noted() {
    let summary = ended(&[(1, 1), (3, 1), (2, -15), (0, 1)]);
    let text = [gave_up(0), gave_up(3), gave_up(1), summary].concat();
    assert_eq!(dead(&text), None);
    let noted = Input::Note(SourceNote::Printed(PrintedNote::GaveUpInGloo {
        ranks: vec![0, 1, 3],
        silent: vec![2],
        places: Vec::new(),
    }));
    assert!(inputs(&text).contains(&noted));
}

#[test]
fn ranks_that_wait_in_gloo_at_different_lines_are_sides() {
    let waited = |rank: u32, line: u32| {
        let frame = format!("[rank{rank}]:   File \"/job/train.py\", line {line}, in <module>\n");
        [frame, gave_up(rank)].concat()
    };
    let noted = |text: &str| {
        let noted = inputs(text).into_iter().find_map(|input| match input {
            Input::Note(SourceNote::Printed(PrintedNote::GaveUpInGloo { places, .. })) => {
                Some(places)
            }
            _ => None,
        });
        noted.unwrap()
    };
    let apart = [waited(0, 34), waited(1, 38), waited(3, 34)].concat();
    let sides = [
        (vec![0, 3], "train.py:34".to_owned()),
        (vec![1], "train.py:38".to_owned()),
    ];
    assert_eq!(noted(&apart), sides);
    assert_eq!(noted(&[waited(0, 34), waited(1, 34)].concat()), []);
}

#[test]
fn who_exits_with_a_code_of_its_own_has_ended_for_itself() {
    let others = |code| ended(&[(0, -15), (2, -15), (1, code)]);
    assert_eq!(dead(&[lost(0), lost(2), others(3)].concat()), Some(1));
    // Its peers say that it was the first, and an exception of its own would stand here.
    assert_eq!(dead(&[lost(0), lost(2), others(1)].concat()), Some(1));
    assert_eq!(dead(&[lost(0), lost(1), others(1)].concat()), None);
    // An exception that was not printed here may be of another rank's end, and all misread arguments.
    assert_eq!(dead(&others(1)), None);
    assert_eq!(dead(&others(2)), None);
    assert_eq!(dead(&[lost(1), others(3)].concat()), None);
    assert_eq!(dead(&ended(&[(0, 3), (2, -15), (1, 3)])), None);
    // Of another host than the first.
    assert_eq!(dead(&ended(&[(4, -15), (5, 3)])), None);
}

#[test]
fn an_error_before_a_rank_knows_its_number_is_of_the_one_that_failed() {
    let traceback = "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    \
         import flash\nModuleNotFoundError: No module named 'flash'\n";
    let launcher = "Traceback (most recent call last):\n  File \"torchrun\", line 8, in <module>\n    \
         main()\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";
    let text = [traceback, &ended(&[(0, -15), (1, 1)]), launcher].concat();
    assert_eq!(dead(&text), Some(1));
    let raised = Input::Note(SourceNote::Printed(PrintedNote::Raised {
        rank: 1,
        error: "ModuleNotFoundError: No module named 'flash', at a.py:3".to_owned(),
    }));
    assert!(inputs(&text).contains(&raised));
    // Two have failed, and nobody knows whose it is.
    assert_eq!(dead(&[traceback, &ended(&[(0, 1), (1, 1)])].concat()), None);
}

#[test]
fn an_error_of_a_loaders_worker_is_quoted_with_what_it_says() {
    let text = "[rank2]: Traceback (most recent call last):\n[rank2]:   File \"a.py\", line 44, in <module>\n\
         [rank2]: ValueError: Caught ValueError in DataLoader worker process 0.\n\
         [rank2]: Original Traceback (most recent call last):\n[rank2]:   File \"a.py\", line 14, in __getitem__\n\
         [rank2]:   File \"/v/site-packages/tar.py\", line 9, in read\n\
         [rank2]: ValueError: corrupt sample 80 in shard-0007.tar\n";
    assert_eq!(dead(text), Some(2));
    let raised = Input::Note(SourceNote::Printed(PrintedNote::Raised {
        rank: 2,
        error: "ValueError: corrupt sample 80 in shard-0007.tar, in DataLoader worker process 0, at a.py:14"
            .to_owned(),
    }));
    assert!(inputs(text).contains(&raised));
}
