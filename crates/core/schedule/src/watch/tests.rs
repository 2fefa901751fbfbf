use model::{CollectiveOp, Pass, PipelineBlock, PipelineRankState, Standstill};

use super::*;
use crate::{Scheme, mark, place};

const F_NS: u64 = 10_000_000;
const RANKS: u32 = 4;
const MICROBATCHES: u32 = 8;

/// Works `iterations` of a 1F1B pipeline off in virtual time, with `extra_ns` added to the
/// blocks it says; what the watch says of each.
fn watch(
    iterations: u32,
    extra_ns: impl Fn(u32, u32, PipelineBlock) -> u64,
) -> (Watch, Vec<HeldUp>) {
    watch_waiting(iterations, |_| 1, extra_ns)
}

/// The same, where blocks begin so many times later: their input takes longer.
fn watch_waiting(
    iterations: u32,
    later: impl Fn(u32) -> u64,
    extra_ns: impl Fn(u32, u32, PipelineBlock) -> u64,
) -> (Watch, Vec<HeldUp>) {
    watch_losing(iterations, |_, _, _, _| false, later, extra_ns)
}

/// The same, where marks are lost: of a step, a rank and a block, its begin if `true`.
fn watch_losing(
    iterations: u32,
    is_lost: impl Fn(u32, u32, PipelineBlock, bool) -> bool,
    later: impl Fn(u32) -> u64,
    extra_ns: impl Fn(u32, u32, PipelineBlock) -> u64,
) -> (Watch, Vec<HeldUp>) {
    let mut watch = Watch::new(ScheduleSettings::default());
    let plan = Scheme::OneForwardOneBackward.plan(RANKS, MICROBATCHES);
    let graph = Graph::new(plan).unwrap();
    let (mut found, mut from_ns) = (Vec::new(), 0);
    for step in 0..iterations {
        let nominal_ns = |node: usize| {
            let (stage, block) = graph.block(node);
            let times = if block.pass == Pass::Forward { 1 } else { 2 };
            F_NS * times + extra_ns(step, stage as u32, block)
        };
        let timing = timing(&graph, nominal_ns);
        let mut events = Vec::new();
        for node in 0..graph.nodes() {
            let (rank, block) = graph.block(node);
            let took_ns = nominal_ns(node);
            let begin_ns = (timing.ends_s[node] * 1e9).round() as u64 - took_ns;
            let end_ns = from_ns + begin_ns * later(step) + took_ns;
            let place = place(block, rank as u32, RANKS);
            for (at, begins) in [(end_ns - took_ns, true), (end_ns, false)] {
                if !is_lost(step, rank as u32, block, begins) {
                    events.push((at, begins, rank as u32, place));
                }
            }
        }
        events.sort_by_key(|(at, begins, ..)| (*at, *begins));
        for (at, begins, rank, place) in events {
            found.extend(if begins {
                watch.mark(rank, &mark(step, at, Event::BlockBegin(place)))
            } else {
                watch.mark(rank, &mark(step, at, Event::BlockEnd(place)))
            });
        }
        let makespan_ns = (timing.makespan_s * 1e9).round() as u64;
        from_ns += makespan_ns * later(step) + F_NS;
    }
    (watch, found)
}

/// When blocks end that take so long.
fn timing(graph: &Graph, took_ns: impl Fn(usize) -> u64) -> crate::Timing {
    let durations_s: Vec<f64> = (0..graph.nodes())
        .map(|node| took_ns(node) as f64 * 1e-9)
        .collect();
    let mut timing = crate::Timing::default();
    graph.time(&durations_s, &mut timing);
    timing
}

fn is(block: PipelineBlock, pass: Pass, microbatch: u32) -> bool {
    (block.pass, block.microbatch) == (pass, microbatch)
}

#[test]
fn the_slow_block_is_named_in_its_own_iteration() {
    let (_, found) = watch(12, |step, rank, block| {
        if step == 8 && rank == 1 && is(block, Pass::Backward, 3) {
            20 * F_NS
        } else {
            0
        }
    });
    let [held] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(held.step, 8);
    let (rank, slow) = held.causes[0];
    assert_eq!((held.causes.len(), rank, slow.stage), (1, 1, 1));
    assert!(is(slow.block, Pass::Backward, 3));
    assert!((slow.excess_s() - 0.2).abs() < 1e-6);
}

/// Two pipelines; the ranks of a stage meet in the middle of each block.
#[test]
fn of_ranks_that_share_a_stage_the_late_one_is_named() {
    let mut watch = Watch::new(ScheduleSettings::default());
    let plan = Scheme::OneForwardOneBackward.plan(RANKS, MICROBATCHES);
    let graph = Graph::new(plan).unwrap();
    (0..RANKS).for_each(|stage| watch.join(stage, 2));
    let (mut found, mut from_ns, mut number) = (Vec::new(), 0, 0);
    for step in 0..12 {
        // How late the rank of the second pipeline is, and what comes after they have met.
        let extra_ns = |node| match (step, graph.block(node)) {
            (8, (1, block)) if is(block, Pass::Backward, 3) => (20 * F_NS, 0),
            (8, (1, block)) if is(block, Pass::Backward, 4) => (0, F_NS),
            _ => (0, 0),
        };
        let took_ns = |node| 2 * F_NS + extra_ns(node).0 + extra_ns(node).1;
        let timing = timing(&graph, took_ns);
        let end_ns = |node: &usize| from_ns + (timing.ends_s[*node] * 1e9) as u64;
        let mut nodes: Vec<usize> = (0..graph.nodes()).collect();
        nodes.sort_by_key(end_ns);
        for node in nodes {
            let (stage, block) = graph.block(node);
            let begin_ns = end_ns(&node) - took_ns(node);
            number += 1;
            for first_rank in [0, RANKS] {
                let place = BlockPlace {
                    first_rank,
                    ..place(block, stage as u32, RANKS)
                };
                let rank = first_rank + place.stage;
                let late_ns = if first_rank > 0 { extra_ns(node).0 } else { 0 };
                found.extend(watch.mark(rank, &mark(step, begin_ns, Event::BlockBegin(place))));
                let issue = CollectiveIssue::new(CollectiveOp::ALLREDUCE, place.stage, number);
                watch.meet(rank, begin_ns + F_NS + late_ns, &issue);
                found.extend(watch.mark(rank, &mark(step, end_ns(&node), Event::BlockEnd(place))));
            }
        }
        from_ns += (timing.makespan_s * 1e9) as u64 + F_NS;
    }
    let [held] = &found[..] else {
        panic!("{found:?}")
    };
    let (ranks, blocks): (Vec<u32>, Vec<PipelineBlock>) = held
        .causes
        .iter()
        .map(|(rank, slow)| (*rank, slow.block))
        .unzip();
    assert_eq!(
        (held.step, &ranks[..]),
        (8, &[RANKS + 1; 2][..]),
        "{held:?}"
    );
    assert!(is(blocks[0], Pass::Backward, 3) && is(blocks[1], Pass::Backward, 4));
}

#[test]
fn a_job_that_became_faster_is_not_one_that_scatters() {
    let (_, found) = watch(12, |step, rank, block| match (step, rank) {
        (..6, _) => F_NS / 4,
        (10, 2) if is(block, Pass::Forward, 5) => 15 * F_NS,
        _ => 0,
    });
    let [held] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((held.step, held.causes.len(), held.causes[0].0), (10, 1, 2));
}

#[test]
fn slow_iterations_of_a_start_do_not_hide_later_ones() {
    let (_, found) = watch(12, |step, rank, block| match (step, rank) {
        (1..3, _) if is(block, Pass::Forward, 0) => 30 * F_NS,
        (8, 1) if is(block, Pass::Backward, 3) => 20 * F_NS,
        _ => 0,
    });
    let [held] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((held.step, held.causes.len(), held.causes[0].0), (8, 1, 1));
}

#[test]
fn blocks_are_not_named_for_an_iteration_that_is_slow_for_another_reason() {
    let reported = |times: u64| {
        let later = |step| if step == 8 { times } else { 1 };
        let (_, found) = watch_waiting(12, later, |step, rank, block| {
            if step == 8 && rank == 1 && is(block, Pass::Backward, 3) {
                20 * F_NS
            } else {
                0
            }
        });
        let named = found.into_iter().filter(|held| !held.causes.is_empty());
        named
            .map(|held| (held.step, held.lost_s))
            .collect::<Vec<_>>()
    };
    assert_eq!(reported(2), []);
    let [(8, lost_s)] = reported(1)[..] else {
        panic!("it is named")
    };
    assert!((lost_s - 0.2).abs() < 1e-6, "{lost_s}");
}

#[test]
fn what_the_bubble_takes_is_reported_with_its_slack_and_costs_nothing() {
    // The first stage waits for the first backward: its last forwards have time.
    let (_, found) = watch(10, |step, rank, block| {
        if step == 7 && rank == 0 && is(block, Pass::Forward, 3) {
            5 * F_NS
        } else {
            0
        }
    });
    let [held] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(held.causes, []);
    let (rank, slow) = held.absorbed[0];
    assert_eq!((rank, slow.block.microbatch), (0, 3));
    assert!(slow.slack_s > 0.0);
}

/// What is slow in the step that follows the lost marks by a few.
fn slow_after(
    iterations: u32,
    is_lost: impl Fn(u32, u32, PipelineBlock, bool) -> bool,
) -> Vec<(u32, u32)> {
    let slow = iterations - 2;
    let extra_ns = |step, rank, block| {
        let is_it = step == slow && rank == 1 && is(block, Pass::Backward, 3);
        20 * F_NS * u64::from(is_it)
    };
    let (_, found) = watch_losing(iterations, is_lost, |_| 1, extra_ns);
    let causes = found.iter().flat_map(|held| {
        let causes = held.causes.iter();
        causes.map(|(rank, _)| (held.step, *rank))
    });
    causes.collect()
}

#[test]
fn a_lost_mark_costs_the_iterations_beside_it_only() {
    use Pass::{Backward, Forward};
    // In the middle, of the first block, of the last: begin or end.
    for block in [(Forward, 3), (Forward, 0), (Backward, 7)] {
        for at in 0..RANKS {
            for begin in [true, false] {
                let is_lost = |step, rank, it, begins| {
                    (step, rank, begins) == (6, at, begin) && is(it, block.0, block.1)
                };
                assert_eq!(slow_after(14, is_lost), [(12, 1)], "{block:?} of rank {at}");
            }
        }
    }
}

#[test]
fn iterations_are_found_again_behind_an_evaluation_of_fewer_blocks() {
    let is_evaluation = |step| (6..10).contains(&step);
    let found = slow_after(16, |step, _, block, _| {
        is_evaluation(step) && block.pass == Pass::Backward
    });
    assert_eq!(found, [(14, 1)]);
}

/// One rank has lost all marks of an iteration, one joins late. Then rank 1 stands still in the next
/// block of the last iteration.
#[test]
fn a_rank_that_missed_iterations_holds_nobody_up() {
    for (missed, by) in [(4..5, 2), (0..6, 3), (4..7, 0)] {
        let is_lost = |step, rank, block, begins: bool| {
            let misses = rank == by && missed.contains(&step);
            // Of the last step rank 0 works one block, and rank 1 begins it.
            let stands = step == 9
                && match rank {
                    0 => !is(block, Pass::Forward, 0),
                    1 => !is(block, Pass::Forward, 0) || !begins,
                    _ => true,
                };
            misses || stands
        };
        let (watch, _) = watch_losing(10, is_lost, |_| 1, |_, _, _| 0);
        let halts = holding_up(watch.standing());
        let ranks: Vec<u32> = halts.iter().map(|halt| halt.rank).collect();
        assert_eq!(ranks, [1], "rank {by} missed {missed:?}: {halts:?}");
    }
}

/// As on the first of two hosts that share a pipeline.
#[test]
fn half_of_a_pipeline_is_not_judged_as_a_whole_one() {
    let mut watch = Watch::new(ScheduleSettings::default());
    let plan = Scheme::OneForwardOneBackward.plan(RANKS, MICROBATCHES);
    let work = |watch: &mut Watch, rank: u32, step: u32| {
        let mut found = Vec::new();
        for (block, at) in plan.order(rank as usize).iter().zip(1..) {
            let place = place(*block, rank, RANKS);
            let extra = if step == 9 && at == 5 { 99 } else { 0 };
            let begin_ns = (u64::from(step) * 1000 + at * 10) * F_NS;
            found.extend(watch.mark(rank, &mark(step, begin_ns, Event::BlockBegin(place))));
            let end_ns = begin_ns + (2 + extra) * F_NS;
            found.extend(watch.mark(rank, &mark(step, end_ns, Event::BlockEnd(place))));
        }
        found
    };
    for step in 0..12 {
        for rank in 0..2 {
            assert_eq!(work(&mut watch, rank, step), []);
        }
    }
    assert_eq!((watch.pipelines(), watch.standing()), (vec![], vec![]));
    assert!(watch.own_work(0, &(0..=11)).is_none());
}

#[test]
fn a_healthy_pipeline_is_left_alone_and_halts_where_a_rank_stops() {
    let (mut watch, found) = watch(6, |_, _, _| 0);
    assert_eq!((found, watch.standing()), (vec![], vec![]));
    watch.receive(3);
    let halts = holding_up(watch.standing());
    assert_eq!(
        (halts.len(), halts[0].rank, halts[0].state),
        (1, 0, PipelineRankState::Idles)
    );
    // The next iteration: rank 0 works three forwards off, rank 1 begins and never ends one.
    let place = |stage, microbatch| BlockPlace {
        pass: Pass::Forward,
        stage,
        microbatch,
        stages: RANKS,
        first_rank: 0,
    };
    for microbatch in 0..3 {
        watch.mark(
            0,
            &mark(6, 1 << 40, Event::BlockBegin(place(0, microbatch))),
        );
        watch.mark(
            0,
            &mark(6, (1 << 40) + F_NS, Event::BlockEnd(place(0, microbatch))),
        );
    }
    watch.mark(1, &mark(6, 1 << 40, Event::BlockBegin(place(1, 0))));
    // Rank 0 has a fourth to do before it waits, but has not begun it.
    let block = PipelineBlock {
        pass: Pass::Forward,
        microbatch: 0,
        chunk: 0,
    };
    let begun = Standstill {
        rank: 1,
        stage: 1,
        block,
        state: PipelineRankState::Works,
    };
    assert_eq!(holding_up(watch.standing()), [begun]);
    watch.mark(1, &mark(6, 1 << 41, Event::BlockEnd(place(1, 0))));
    let halts = holding_up(watch.standing());
    assert_eq!(
        halts.iter().map(|halt| halt.rank).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    // Rank 2 asks for what rank 1 has not sent, or what is on its way; rank 0 goes on.
    watch.receive(2);
    watch.mark(0, &mark(6, 1 << 41, Event::BlockBegin(place(0, 3))));
    watch.mark(0, &mark(6, (1 << 41) + F_NS, Event::BlockEnd(place(0, 3))));
    let halts = holding_up(watch.standing());
    assert_eq!(halts.iter().map(|halt| halt.rank).collect::<Vec<_>>(), [1]);
    watch.receive(1);
    let halts = holding_up(watch.standing());
    assert_eq!(
        halts.iter().map(|halt| halt.rank).collect::<Vec<_>>(),
        [1, 2]
    );
    // Of ranks that are known to send.
    for rank in 0..3 {
        watch.send(rank);
    }
    watch.mark(1, &mark(6, 1 << 42, Event::BlockBegin(place(1, 1))));
    watch.mark(1, &mark(6, 1 << 43, Event::BlockEnd(place(1, 1))));
    let block = PipelineBlock {
        microbatch: 1,
        ..block
    };
    let owes = Standstill {
        rank: 1,
        stage: 1,
        block,
        state: PipelineRankState::Owes,
    };
    assert_eq!(holding_up(watch.standing()), [owes]);
}
