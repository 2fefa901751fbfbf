use model::{CollectiveOp, Cut, MarkKind, Meeting, Sync};
use proptest::prelude::*;

use super::*;
use crate::testkit::steps;

fn settings() -> WindowSettings {
    let defaults = WindowSettings::default();
    WindowSettings {
        warmup_steps: 0,
        steps: 10,
        min_s: 0.0,
        ..defaults
    }
}

/// Windows of ranks that each go through the loop given for them.
fn windows(ranks: &[String], settings: WindowSettings) -> Vec<Window> {
    let mut aligner = Aligner::new(settings);
    let ranks: Vec<Vec<RankStep>> = ranks.iter().map(|rank| steps(rank)).collect();
    for rank in 0..ranks.len() {
        aligner.expect(rank as u32, None);
    }
    for at in 0..ranks.iter().map(Vec::len).max().unwrap_or(0) {
        for (rank, steps) in ranks.iter().enumerate() {
            if let Some(step) = steps.get(at) {
                aligner.push(rank as u32, step.clone());
            }
        }
    }
    aligner.finish();
    aligner.take_windows()
}

const PLAIN: &str = "D0 D1 B0 K B1 O0 O1 ";

fn spans(windows: &[Window]) -> Vec<(u64, u64)> {
    windows
        .iter()
        .map(|window| (window.first_step, window.steps))
        .collect()
}

#[test]
fn windows_hold_each_step_once_and_in_order() {
    let ranks = [PLAIN.repeat(31), PLAIN.repeat(31)];
    let windows = windows(&ranks, settings());
    assert_eq!(spans(&windows), [(0, 10), (10, 10), (20, 10)]);
    let rows: Vec<u64> = windows
        .iter()
        .flat_map(|w| w.blocks[0].steps.iter().copied())
        .collect();
    // The first step's beginning was not seen: it lies before the first cut.
    assert_eq!(rows, (1..30).collect::<Vec<_>>());
    assert!(windows.iter().all(|window| window.incomplete_steps == 0));
}

#[test]
fn windows_end_with_an_iteration_once_it_is_known() {
    // Every third step accumulates a second batch.
    let iteration = format!("{PLAIN}{PLAIN}D0 D1 B0 B1 {PLAIN}");
    let ranks = [iteration.repeat(40), iteration.repeat(40)];
    let spans = spans(&windows(&ranks, settings()));
    let known = &spans[2..];
    assert!(known.iter().all(|(_, steps)| *steps == 12), "{spans:?}");
}

#[test]
fn what_follows_a_step_that_nobody_delivered_has_no_beginning() {
    let mut aligner = Aligner::new(settings());
    aligner.expect(0, None);
    aligner.expect(1, None);
    for step in steps(&PLAIN.repeat(11))
        .into_iter()
        .filter(|step| step.step != 5)
    {
        aligner.push(0, step.clone());
        aligner.push(1, step);
    }
    aligner.finish();
    let windows = aligner.take_windows();
    assert_eq!(windows[0].blocks[0].steps[..], [1, 2, 3, 4, 7, 8, 9, 10]);
}

#[test]
fn the_cut_follows_the_last_regular_collective() {
    let cut = |step: &str| {
        let ranks = [step.repeat(12), step.repeat(12)];
        windows(&ranks, settings())[0].cut
    };
    assert_eq!(cut(PLAIN), Cut::After(MarkKind::BackwardEnd));
    assert_eq!(
        cut("D0 D1 B0 K B1 O0 K O1 "),
        Cut::After(MarkKind::OptimizerEnd)
    );
    assert_eq!(cut("D0 D1 B0 K B1 O0 O1 K "), Cut::Data);
    assert_eq!(
        cut("D0 D1 B0 K B1 K O0 O1 "),
        Cut::After(MarkKind::OptimizerBegin)
    );
    assert_eq!(cut("D0 D1 B0 B1 O0 O1 "), Cut::After(MarkKind::BackwardEnd));
    assert_eq!(cut("S0 E0:20 E1:20 E0:21 E1:21 S1 "), Cut::Data);
    let published = WindowSettings {
        published_cut: true,
        ..settings()
    };
    let ranks = [PLAIN.repeat(12), PLAIN.repeat(12)];
    assert_eq!(windows(&ranks, published)[0].cut, Cut::Data);
}

#[test]
fn a_single_rank_is_cut_as_published() {
    assert_eq!(
        windows(&[PLAIN.repeat(12)], settings())[0].cut,
        Cut::After(MarkKind::BackwardEnd)
    );
    let lone = "D0 D1 B0 B1 O0 O1 ".repeat(12);
    assert_eq!(windows(&[lone], settings())[0].cut, Cut::Data);
}

#[test]
fn a_delay_after_the_last_collective_belongs_to_the_next_step() {
    let late = "D0 D1 B0 K B1 O0 O1 ".to_owned() + &"D0+40 D1 B0 K B1 O0 O1 ".repeat(11);
    let waits = PLAIN.to_owned() + &"D0 D1 B0 K B1+40 O0 O1 ".repeat(11);
    let windows = windows(&[waits, late], settings());
    assert_eq!(windows[0].meeting, Meeting::Issued);
    let block = &windows[0].blocks[0];
    let stages: Vec<StageId> = block.boundaries.iter().map(|b| b.stage).collect();
    assert_eq!(stages[0], StageId::CALLBACKS);
    assert_eq!(stages.last(), Some(&StageId::BACKWARD));
    let slow = block
        .boundaries
        .iter()
        .position(|b| b.after == MarkKind::OptimizerEnd);
    assert!((block.row(0)[slow.unwrap() * 2 + 1] - 0.040).abs() < 1e-9);
}

/// Cut and meeting of two ranks that go through these steps, after a first plain one.
fn meeting(steps: [&str; 2]) -> (Cut, Meeting) {
    let ranks = steps.map(|step| PLAIN.to_owned() + &step.repeat(12));
    let window = &windows(&ranks, settings())[0];
    (window.cut, window.meeting)
}

#[test]
fn ranks_that_wait_behind_where_they_issue_are_cut_there() {
    let late = "D0 D1+40 B0 K B1 O0 O1 ";
    for (waits, cut) in [
        (
            "D0 D1 B0 K B1 O0+40 O1 ",
            Cut::After(MarkKind::OptimizerBegin),
        ),
        (
            "D0 D1 B0 K B1 O0 O1+40 ",
            Cut::After(MarkKind::OptimizerEnd),
        ),
        ("D0+40 D1 B0 K B1 O0 O1 ", Cut::Data),
    ] {
        assert_eq!(meeting([waits, late]), (cut, Meeting::Seen));
    }
}

#[test]
fn ranks_that_never_wait_are_cut_as_published() {
    let late = "D0 D1+40 B0 K B1 O0 O1 ";
    assert_eq!(meeting([PLAIN, late]), (Cut::Data, Meeting::Unseen));
}

#[test]
fn where_ranks_never_get_apart_nothing_speaks_against_where_they_issue() {
    let issued = (Cut::After(MarkKind::BackwardEnd), Meeting::Issued);
    assert_eq!(meeting([PLAIN, PLAIN]), issued);
}

proptest! {
    /// Wherever the host reads back, and however far it runs ahead until then.
    #[test]
    fn moving_the_read_back_moves_no_lateness(
        place in 0usize..3, late_ms in 5u32..200, device_ms in 0u32..200,
    ) {
        let step = |data_ms, wait_ms| {
            let mut words =
                ["D0", "D1", "B0", "K", "B1", "O0", "O1"].map(|word| (word, 1));
            words[1].1 += data_ms;
            words[[5, 6, 0][place]].1 += device_ms + wait_ms;
            words.map(|(word, ms)| format!("{word}+{ms} ")).concat()
        };
        let (late, waits) = (step(late_ms, 0), step(0, late_ms));
        let ranks = [waits, late].map(|step| step.repeat(13));
        let window = &windows(&ranks, settings())[0];
        prop_assert_eq!(window.meeting, Meeting::Seen);
        let block = &window.blocks[0];
        let data =
            block.boundaries.iter().position(|b| b.stage == StageId::DATA).unwrap();
        let row = block.row(2);
        let [waiting, culprit] = [row[2 * data], row[2 * data + 1]];
        prop_assert!((culprit - waiting - f64::from(late_ms) * 1e-3).abs() < 1e-9);
        let total = |rank| row.iter().skip(rank).step_by(2).sum::<f64>();
        prop_assert!((total(0) - total(1)).abs() < 1e-9, "they meet at the cut");
        let apart = row.chunks(2).scan([0.0; 2], |ends, cells| {
            ends[0] += cells[0];
            ends[1] += cells[1];
            Some(ends[1] - ends[0])
        });
        // Nobody but the culprit is ever the later one.
        prop_assert!(apart.fold(f64::INFINITY, f64::min) > -1e-9);
    }
}

#[test]
fn a_lasting_change_of_accumulation_closes_the_window() {
    let four = "D0 D1 B0 B1 D0 D1 B0 B1 D0 D1 B0 B1 D0 D1 B0 K B1 O0 O1 ";
    let rank = PLAIN.repeat(7) + &four.repeat(8);
    let windows = windows(&[rank.clone(), rank], settings());
    assert_eq!(spans(&windows)[0], (0, 7));
    assert_eq!(windows[1].first_step, 7);
}

#[test]
fn a_lasting_change_of_the_collectives_closes_the_window() {
    let rank = PLAIN.repeat(7) + &"D0 D1 B0 K B1 O0 K O1 ".repeat(8);
    let windows = windows(&[rank.clone(), rank], settings());
    assert_eq!(spans(&windows)[0], (0, 7));
    assert_eq!(windows[1].cut, Cut::After(MarkKind::OptimizerEnd));
}

#[test]
fn a_step_that_differs_once_stays_in_its_window() {
    let logs = "D0 D1 B0 K B1 O0 O1 K ";
    let rank = PLAIN.repeat(5) + logs + &PLAIN.repeat(5);
    let windows = windows(&[rank.clone(), rank], settings());
    assert_eq!(spans(&windows), [(0, 10)]);
    assert_eq!(windows[0].rows(), 9);
    assert_eq!(windows[0].blocks.len(), 2);
}

#[test]
fn batches_that_other_steps_use_are_distinguished_from_batches_read_one_step_ahead() {
    let unsafe_prefetch = |first: &str, loop_: &str| {
        let rank = first.to_owned() + &loop_.repeat(12);
        windows(&[rank.clone(), rank], settings())[0].unsafe_prefetch
    };
    let bursts = "S0 D0 D1 D0 D1 B0 K B1 O0 O1 S1 S0 B0 K B1 O0 O1 S1 ";
    assert!(unsafe_prefetch("", bursts));
    assert!(
        !unsafe_prefetch("D0 D1 ", PLAIN),
        "one batch ahead throughout"
    );
    let evaluates = PLAIN.repeat(4) + "D0 D1 D0 D1 D0 D1 ";
    assert!(!unsafe_prefetch("", &evaluates));
}

#[test]
fn a_rank_that_joins_closes_the_window() {
    let all = steps(&PLAIN.repeat(20));
    for announced in [true, false] {
        let mut aligner = Aligner::new(settings());
        (0..2).for_each(|rank| aligner.expect(rank, None));
        for (at, step) in all.iter().enumerate() {
            if at == 7 && announced {
                aligner.expect(2, None);
            }
            // The newcomer first: what comes before it would be settled without it.
            let ranks = if at < 7 { 0..2 } else { 0..3 };
            ranks
                .rev()
                .for_each(|rank| aligner.push(rank, step.clone()));
        }
        aligner.finish();
        let windows = aligner.take_windows();
        assert_eq!(spans(&windows), [(0, 7), (7, 10)], "announced: {announced}");
        assert_eq!(
            (&windows[0].ranks[..], &windows[1].ranks[..]),
            (&[0, 1][..], &[0, 1, 2][..])
        );
        assert!(windows.iter().all(|window| window.missing_ranks.is_empty()));
    }
}

#[test]
fn a_lasting_change_of_the_stages_closes_the_window() {
    let named = "D0 D1 E0:20 E1:20 B0 K B1 O0 O1 ";
    let rank = PLAIN.repeat(7) + &named.repeat(8);
    let windows = windows(&[rank.clone(), rank], settings());
    assert_eq!(spans(&windows), [(0, 7), (7, 8)]);
    assert!(!windows[0].stages().contains(&StageId(20)));
    assert!(windows[1].stages().contains(&StageId(20)));
}

#[test]
fn a_rank_that_changes_its_role_closes_the_window() {
    let mut aligner = Aligner::new(settings());
    let all = steps(&PLAIN.repeat(20));
    aligner.expect(0, None);
    aligner.expect(1, None);
    for step in &all[..7] {
        aligner.push(0, step.clone());
        aligner.push(1, step.clone());
    }
    aligner.expect(1, Some("pp=1".into()));
    for step in &all[7..] {
        aligner.push(0, step.clone());
        aligner.push(1, step.clone());
    }
    aligner.finish();
    let windows = aligner.take_windows();
    assert_eq!(spans(&windows)[..3], [(0, 7), (7, 10), (7, 10)]);
    assert_eq!((&windows[1].ranks, &windows[2].ranks), (&vec![0], &vec![1]));
}

#[test]
fn a_rank_that_delivers_nothing_is_missing_and_not_guessed() {
    let mut aligner = Aligner::new(settings());
    for rank in 0..3 {
        aligner.expect(rank, None);
    }
    for step in steps(&PLAIN.repeat(21)) {
        aligner.push(0, step.clone());
        aligner.push(1, step);
    }
    assert!(aligner.take_windows().is_empty(), "rank 2 may still come");
    aligner.leave(2);
    aligner.finish();
    for window in aligner.take_windows() {
        assert_eq!(window.ranks, [0, 1]);
        assert_eq!(window.missing_ranks, [2]);
    }
}

#[test]
fn a_rank_that_never_comes_is_given_up_after_a_while() {
    let mut aligner = Aligner::new(settings());
    (0..2).for_each(|rank| aligner.expect(rank, None));
    for step in steps(&PLAIN.repeat(UNSEEN_STEPS + 20)) {
        aligner.push(0, step);
    }
    assert!(!aligner.take_windows().is_empty());
}

#[test]
fn different_collectives_over_the_ranks_are_a_finding_and_no_boundary() {
    let more = "D0 D1 B0 K K B1 O0 O1 ".repeat(12);
    let windows = windows(&[PLAIN.repeat(12), more], settings());
    assert_eq!(windows[0].mismatched_steps, 9);
    let mut boundaries = windows[0].blocks.iter().flat_map(|b| b.boundaries.iter());
    assert!(boundaries.all(|boundary| boundary.sync == Sync::None));
}

#[test]
fn what_ranks_that_run_ahead_did_meanwhile_is_left_out_too() {
    let mut aligner = Aligner::new(settings());
    let all = steps(&"D0 D1 B0 B1 O0 O1 ".repeat(40));
    aligner.expect(0, None);
    aligner.expect(1, None);
    aligner.leave_out(17..=21);
    // Rank 1 is ten steps ahead.
    all.iter()
        .take(31)
        .for_each(|step| aligner.push(1, step.clone()));
    all.iter()
        .take(21)
        .for_each(|step| aligner.push(0, step.clone()));
    aligner.leave_out_also(21..=31);
    all.iter()
        .skip(21)
        .for_each(|step| aligner.push(0, step.clone()));
    all.iter()
        .skip(31)
        .for_each(|step| aligner.push(1, step.clone()));
    aligner.finish();
    let windows = aligner.take_windows();
    let analysed = windows.iter().flat_map(|window| &window.blocks);
    let steps: Vec<u64> = analysed.flat_map(|block| block.steps.clone()).collect();
    assert!(
        steps.iter().all(|step| !(17..=31).contains(step)),
        "{steps:?}"
    );
    assert!(steps.iter().any(|step| *step > 32));
}

/// A rank that says of every other step that a profiler stops in it must not use up memory.
#[test]
fn what_is_left_out_has_few_parts() {
    let mut aligner = Aligner::new(settings());
    aligner.leave_out(17..=21);
    for step in (30..1000).step_by(2) {
        aligner.leave_out_also(step..=step);
    }
    assert!(aligner.left_out().len() <= 4, "{:?}", aligner.left_out());
    assert!(aligner.is_left_out(17) && aligner.is_left_out(998));
    assert!(!aligner.is_left_out(25));
}

#[test]
fn no_window_reaches_over_steps_that_are_left_out() {
    let mut aligner = Aligner::new(settings());
    (0..2).for_each(|rank| aligner.expect(rank, None));
    aligner.leave_out(17..=21);
    for step in steps(&PLAIN.repeat(41)) {
        (0..2).for_each(|rank| aligner.push(rank, step.clone()));
    }
    aligner.finish();
    assert_eq!(aligner.steps(), 41);
    let windows = aligner.take_windows();
    assert_eq!(spans(&windows), [(0, 10), (10, 7), (22, 10), (32, 9)]);
    assert!(windows.iter().all(|window| window.incomplete_steps == 0));
}

#[test]
fn ranks_that_do_different_things_need_roles() {
    let other = "F0 F1 B0 K B1 O0 O1 ".repeat(12);
    let windows = windows(&[PLAIN.repeat(12), other], settings());
    assert_eq!(windows[0].roles, 2);
}

/// One rank has a micro-batch more. What it takes for that before it issues the all-reduce is its own.
#[test]
fn ranks_with_unlike_numbers_of_micro_batches_meet_at_their_first_collective() {
    let step = |micro_batches: usize, wait_ms: u64| {
        let before = "F0 F1+4 B0 B1+9 ".repeat(micro_batches - 1);
        format!("D0 D1 {before}F0 F1+4 B0 K+7 B1+{wait_ms} O0 O1 ").repeat(12)
    };
    let windows = windows(&[step(2, 17), step(3, 2)], settings());
    let block = &windows[0].blocks[0];
    let at = |sync| block.boundaries.iter().position(|it| it.sync == sync);
    let issue = at(Sync::Issue(CollectiveOp::ALLREDUCE)).expect("an issue");
    assert_eq!(block.boundaries[issue].stage, StageId::BACKWARD);
    let cells_ms: Vec<u64> = block
        .row(0)
        .iter()
        .map(|s| (s * 1e3).round() as u64)
        .collect();
    let took_ms: Vec<&[u64]> = cells_ms.chunks(2).collect();
    assert_eq!(took_ms[issue], [16, 25]);
    let prefix_ms = |rank: usize| took_ms[..=issue].iter().map(|row| row[rank]).sum::<u64>();
    assert_eq!(prefix_ms(1) - prefix_ms(0), 15);
    let behind = block.boundaries[issue + 1..]
        .iter()
        .position(|it| it.stage == StageId::BACKWARD);
    assert_eq!(behind.map(|at| took_ms[issue + 1 + at]), Some(&[17, 2][..]));
}

#[test]
fn communicators_of_some_ranks_are_kept_apart() {
    let mut ranks: Vec<Vec<RankStep>> = (0..2).map(|_| steps(&PLAIN.repeat(12))).collect();
    for segment in ranks[1].iter_mut().flat_map(|step| &mut step.segments) {
        if let Ending::Issue { group, .. } = &mut segment.ending {
            *group = 5;
        }
    }
    let mut aligner = Aligner::new(settings());
    (0..2).for_each(|rank| aligner.expect(rank, None));
    for (rank, steps) in (0..).zip(ranks) {
        for step in steps {
            aligner.push(rank, step);
        }
    }
    aligner.finish();
    let windows = aligner.take_windows();
    let groups = windows[0].blocks[0].groups.as_ref().unwrap();
    assert!(groups.chunks(2).any(|pair| pair == [0, 5]));
}

#[test]
fn a_rank_that_joins_behind_the_others_is_waited_for() {
    let mut aligner = Aligner::new(settings());
    (1..3).for_each(|rank| aligner.expect(rank, None));
    let all = steps(&PLAIN.repeat(31));
    for step in &all[..25] {
        (1..3).for_each(|rank| aligner.push(rank, step.clone()));
    }
    // Unannounced, and with a step that is settled already.
    aligner.push(0, all[20].clone());
    let settled = aligner.steps();
    for step in &all[25..] {
        (1..3).for_each(|rank| aligner.push(rank, step.clone()));
    }
    assert_eq!(aligner.steps(), settled);
}

/// Each look-up that grows with the ranks shows here as minutes.
#[test]
fn twenty_thousand_ranks_are_aligned_in_passing() {
    let mut aligner = Aligner::new(settings());
    (0..20_000).for_each(|rank| aligner.expect(rank, None));
    let all = steps(&"D0 B1 O1 ".repeat(5));
    for step in &all {
        (0..20_000).for_each(|rank| aligner.push(rank, step.clone()));
    }
    aligner.finish();
    assert_eq!(aligner.steps(), all.len() as u64);
}

#[test]
fn a_window_of_more_steps_than_can_be_counted_closes_at_the_end() {
    let endless = WindowSettings {
        steps: usize::MAX,
        ..settings()
    };
    assert_eq!(spans(&windows(&[PLAIN.repeat(31)], endless)).len(), 1);
}

#[test]
fn steps_that_take_long_close_windows_by_age() {
    let slow = "D0 D1+9000 B0 K B1 O0 O1 ".repeat(12);
    let windows = windows(&[slow.clone(), slow], settings());
    assert_eq!(windows[0].steps, 5);
}

/// The loop of a rank that goes through some steps of an epoch of `of`, each with a collective that has a
/// number. Behind its last one it takes part in the collectives of those that it has not.
fn epochs(epochs: usize, of: usize, through: usize, data_ms: impl Fn(usize) -> usize) -> String {
    let step = |at: usize| {
        let others = at + 1..at + 1 + of - through;
        let shadows: Vec<String> = others
            .filter(|_| at % of + 1 == through)
            .map(|at| format!("K:{} ", at + 1))
            .collect();
        let shadows = shadows.concat();
        format!("D0 D1+{} B0 K:{} B1 O0 O1 {shadows}", data_ms(at), at + 1)
    };
    (0..epochs * of)
        .filter(|at| at % of < through)
        .map(step)
        .collect()
}

/// Steps and milliseconds of each rank in its loader.
fn data_ms(windows: &[Window]) -> Vec<(u64, Vec<u64>)> {
    let rows = windows
        .iter()
        .flat_map(|window| &window.blocks)
        .flat_map(|block| {
            let data = block
                .boundaries
                .iter()
                .position(|it| it.stage == StageId::DATA);
            let at = data.expect("a loader") * block.ranks;
            block.rows().map(move |(step, row)| {
                let ms = row[at..at + block.ranks]
                    .iter()
                    .map(|s| (s * 1e3).round() as u64);
                (step, ms.collect())
            })
        });
    rows.collect()
}

#[test]
fn a_rank_with_fewer_batches_in_an_epoch_is_compared_step_by_step() {
    let ranks = [5, 6].map(|through| epochs(6, 6, through, |at| 10 + at % 6));
    let rows = data_ms(&windows(&ranks, settings()));
    assert!(rows.len() > 20, "{rows:?}");
    for (step, ms) in rows {
        assert_eq!(ms, [10 + step % 6; 2], "step {step}");
    }
}

proptest! {
    /// However many batches each rank has in an epoch, what is compared are the same collectives.
    #[test]
    fn steps_are_aligned_by_their_collectives(
        of in 3..9_usize,
        fewer in prop::collection::vec(0..3_usize, 2..5),
    ) {
        let ranks: Vec<String> = fewer
            .iter()
            .chain([&0])
            .map(|fewer| epochs(8, of, of - fewer.min(&(of - 1)), |at| 10 + at % 50))
            .collect();
        for (step, ms) in data_ms(&windows(&ranks, settings())) {
            prop_assert_eq!(&ms, &vec![10 + step % 50; ms.len()]);
        }
    }
}

#[test]
fn a_rank_whose_collectives_were_not_all_counted_keeps_the_numbers_of_its_steps() {
    let rank = |missed: usize| -> String {
        let step = |at: usize| {
            format!(
                "D0 D1+{} B0 K:{} K B1 O0 O1 ",
                10 + at % 50,
                2 * at + 1 - missed
            )
        };
        (1..40).map(step).collect()
    };
    let plain = data_ms(&windows(&[rank(0), rank(0)], settings()));
    assert_eq!(data_ms(&windows(&[rank(0), rank(1)], settings())), plain);
    assert!(plain.len() > 30);
}

#[test]
fn steps_wait_no_longer_for_a_rank_that_is_gone_to_show_their_numbers() {
    let mut aligner = Aligner::new(settings());
    let [behind, ahead] = [epochs(1, 30, 30, |_| 1), epochs(1, 31, 31, |_| 1)];
    for (step, other) in steps(&behind)
        .into_iter()
        .zip(steps(&ahead).into_iter().skip(1))
    {
        let step = RankStep {
            step: other.step,
            ..step
        };
        aligner.push(0, step);
        aligner.push(1, other);
    }
    let before = aligner.steps();
    aligner.leave(0);
    aligner.leave(1);
    assert!(aligner.steps() > before);
}
