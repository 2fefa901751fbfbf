use model::PipelineBlock;
use proptest::prelude::*;

use super::*;
use crate::Scheme;

fn one_forward_one_backward(stages: u32, microbatches: u32) -> Graph {
    Graph::new(Scheme::OneForwardOneBackward.plan(stages, microbatches)).unwrap()
}

fn timed(graph: &Graph, durations_s: &[f64]) -> Timing {
    let mut timing = Timing::default();
    graph.time(durations_s, &mut timing);
    timing
}

/// The same duration for every block of a pass.
fn uniform(graph: &Graph, of: impl Fn(Pass) -> f64) -> Vec<f64> {
    (0..graph.nodes())
        .map(|node| of(graph.block(node).1.pass))
        .collect()
}

fn node(graph: &Graph, stage: usize, pass: Pass, microbatch: u32) -> usize {
    let wanted = (
        stage,
        PipelineBlock {
            pass,
            microbatch,
            chunk: 0,
        },
    );
    (0..graph.nodes())
        .find(|node| graph.block(*node) == wanted)
        .unwrap()
}

/// MT-A1, MT-P1.
#[test]
fn a_uniform_pipeline_takes_what_the_closed_form_says() {
    for (stages, microbatches) in [(4, 4), (2, 8), (8, 8), (1, 5), (6, 3), (16, 64)] {
        for scheme in [Scheme::OneForwardOneBackward, Scheme::GPipe] {
            let graph = Graph::new(scheme.plan(stages, microbatches)).unwrap();
            let durations = uniform(&graph, |p| if p == Pass::Forward { 40. } else { 80. });
            let makespan = timed(&graph, &durations).makespan_s;
            assert_eq!(makespan, f64::from(microbatches + stages - 1) * 120.0);
        }
    }
}

#[test]
fn zero_bubble_hides_the_weights_in_the_bubble() {
    for (stages, microbatches) in [(4, 8), (8, 16), (2, 4)] {
        let graph = Graph::new(Scheme::ZeroBubble.plan(stages, microbatches)).unwrap();
        let makespan = timed(&graph, &uniform(&graph, |_| 1.0)).makespan_s;
        // M (F + B + W) + (P - 1) (F + B - W).
        assert_eq!(makespan, f64::from(3 * microbatches + stages - 1));
    }
}

#[test]
fn interleaving_divides_the_bubble_by_the_chunks() {
    for (stages, microbatches, chunks) in [(4, 8, 2), (4, 4, 2), (2, 6, 3), (8, 16, 4)] {
        let plan = Scheme::Interleaved { chunks }.plan(stages, microbatches);
        let graph = Graph::new(plan).unwrap();
        // A chunk takes its part of the stage's time.
        let durations = uniform(&graph, |_| 1.0 / f64::from(chunks));
        let makespan = timed(&graph, &durations).makespan_s;
        let bubble = f64::from(stages - 1) * 2.0 / f64::from(chunks);
        assert!((makespan - f64::from(2 * microbatches) - bubble).abs() < 1e-9);
    }
}

/// MegaTrace (2026): slack in order of execution.
#[test]
fn slack_is_that_of_the_worked_example() {
    let graph = one_forward_one_backward(4, 4);
    let durations = uniform(&graph, |p| if p == Pass::Forward { 40.0 } else { 80.0 });
    let timing = timed(&graph, &durations);
    assert_eq!(timing.makespan_s, 840.0);
    let stage = |stage| &timing.slack_s[graph.nodes_of(stage)];
    assert_eq!(stage(0), [0., 80., 160., 240., 120., 80., 40., 0.]);
    assert_eq!(stage(1), [0., 80., 160., 0., 0., 80., 40., 0.]);
    assert_eq!(stage(2), [0., 80., 0., 0., 0., 0., 40., 0.]);
    assert_eq!(stage(3), [0.; 8]);
}

/// MT-A2: six delays of 60, of which three are absorbed. MT-P4 as well: S4
/// would matter alone where S3, S5 and S6 are.
#[test]
fn delays_that_fit_into_the_bubble_are_absorbed() {
    let graph = one_forward_one_backward(4, 4);
    let at = |stage, pass, microbatch| node(&graph, stage, pass, microbatch);
    let [s1, s2, s3, s4, s5, s6] = [
        at(0, Pass::Forward, 2),
        at(0, Pass::Forward, 3),
        at(3, Pass::Forward, 1),
        at(1, Pass::Backward, 1),
        at(2, Pass::Backward, 3),
        at(3, Pass::Backward, 2),
    ];
    let delayed = |nodes: &[usize]| {
        let mut durations = uniform(&graph, |p| if p == Pass::Forward { 40.0 } else { 80.0 });
        for node in nodes {
            durations[*node] += 60.0;
        }
        timed(&graph, &durations)
    };
    let all = delayed(&[s1, s2, s3, s4, s5, s6]);
    assert_eq!(all.makespan_s, 1020.0);
    let critical = [s1, s2, s3, s4, s5, s6].map(|node| all.is_critical(node));
    assert_eq!(critical, [false, false, true, false, true, true]);
    assert_eq!(
        [s1, s2, s4].map(|node| all.slack_s[node]),
        [160.0, 240.0, 140.0]
    );
    assert_eq!(delayed(&[s1, s2, s4]).makespan_s, 840.0);
    assert_eq!(delayed(&[s3, s5, s6]).makespan_s, 1020.0);
    let f4 = at(1, Pass::Forward, 3);
    assert_eq!(delayed(&[f4]).makespan_s, 900.0);
    let absorbed = delayed(&[f4, s3, s5, s6]);
    assert_eq!((absorbed.makespan_s, absorbed.slack_s[f4]), (1020.0, 60.0));
}

/// MT-A3: durations in microseconds, in order of execution.
#[test]
fn the_published_slowdown_has_the_published_path() {
    let durations = [
        [
            38239., 34726., 35513., 35323., 45455., 47105., 40592., 40456.,
        ],
        [
            36069., 36157., 36441., 47862., 2_043_546., 47732., 42763., 42817.,
        ],
        [
            36317., 35954., 48215., 36305., 63064., 38154., 52403., 47530.,
        ],
        [
            45301., 47300., 41790., 46769., 40439., 47497., 40489., 47322.,
        ],
    ];
    let graph = one_forward_one_backward(4, 4);
    let timing = timed(&graph, durations.as_flattened());
    assert_eq!(timing.makespan_s, 2_599_617.0);
    let mut critical: Vec<usize> = (0..graph.nodes())
        .filter(|node| timing.is_critical(*node))
        .collect();
    critical.sort_by(|a, b| timing.ends_s[*a].total_cmp(&timing.ends_s[*b]));
    let path = critical.into_iter().map(|node| {
        let (stage, block) = graph.block(node);
        format!(
            "{}{}@{stage}",
            &block.pass.name()[..1],
            block.microbatch + 1
        )
    });
    assert_eq!(
        path.collect::<Vec<_>>().join(" "),
        "f1@0 f1@1 f1@2 f1@3 b1@3 b1@2 b1@1 f4@1 f4@2 f4@3 b4@3 b4@2 b4@1 b4@0"
    );
    let absorbed = node(&graph, 2, Pass::Backward, 1);
    assert!((timing.slack_s[absorbed] - 1_988_000.0).abs() < 500.0);
}

/// MT-A3.
#[test]
fn the_published_hang_has_one_halt_point() {
    let graph = one_forward_one_backward(4, 4);
    let finished: Vec<bool> = (0..graph.nodes())
        .map(|node| node >= graph.nodes_of(0).end || node < 5)
        .collect();
    let halts: Vec<_> = graph
        .halts(&finished)
        .into_iter()
        .map(|node| graph.block(node))
        .collect();
    let block = PipelineBlock {
        pass: Pass::Backward,
        microbatch: 1,
        chunk: 0,
    };
    assert_eq!(halts, [(0, block)]);
}

/// MT-A10: one stage 24 times slower.
#[test]
fn every_critical_path_goes_through_a_weak_stage() {
    let graph = one_forward_one_backward(8, 16);
    for weak in 0..8 {
        let durations: Vec<f64> = (0..graph.nodes())
            .map(|node| {
                if graph.nodes_of(weak).contains(&node) {
                    24.0
                } else {
                    1.0
                }
            })
            .collect();
        let timing = timed(&graph, &durations);
        let on_path = graph
            .nodes_of(weak)
            .filter(|node| timing.is_critical(*node));
        assert_eq!(on_path.count(), 32, "stage {weak}");
    }
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let scheme = prop_oneof![
        Just(Scheme::GPipe),
        Just(Scheme::OneForwardOneBackward),
        Just(Scheme::ZeroBubble),
        (2u32..4).prop_map(|chunks| Scheme::Interleaved { chunks }),
    ];
    (scheme, 1u32..7, 1u32..10).prop_map(|(scheme, stages, microbatches)| match scheme {
        // Whole groups, as Megatron-LM demands.
        Scheme::Interleaved { .. } => scheme.plan(stages, stages * microbatches.min(4)),
        _ => scheme.plan(stages, microbatches),
    })
}

fn any_timed() -> impl Strategy<Value = (Graph, Vec<f64>)> {
    any_plan().prop_flat_map(|plan| {
        let graph = Graph::new(plan).unwrap();
        let nodes = graph.nodes();
        // Whole numbers, so that sums are exact.
        let durations = proptest::collection::vec((1u32..1000).prop_map(f64::from), nodes);
        (Just(graph), durations)
    })
}

proptest! {
    /// MT-P2.
    #[test]
    fn some_path_has_no_slack_and_none_has_less((graph, durations) in any_timed()) {
        let timing = timed(&graph, &durations);
        prop_assert!(timing.slack_s.iter().all(|slack| *slack >= 0.0));
        let mut node = (0..graph.nodes())
            .find(|node| timing.ends_s[*node] == timing.makespan_s)
            .unwrap();
        loop {
            prop_assert!(timing.is_critical(node));
            let begin = timing.ends_s[node] - durations[node];
            if begin == 0.0 {
                break;
            }
            let before = graph.predecessors(node).into_iter().flatten();
            node = before.into_iter().find(|node| timing.ends_s[*node] == begin).unwrap();
        }
    }

    /// MT-P3.
    #[test]
    fn a_delay_costs_what_exceeds_its_slack(
        (graph, mut durations) in any_timed(),
        at: proptest::sample::Index,
        delay in (1u32..5000).prop_map(f64::from),
    ) {
        let before = timed(&graph, &durations);
        let node = at.index(graph.nodes());
        durations[node] += delay;
        let after = timed(&graph, &durations);
        let cost = (delay - before.slack_s[node]).max(0.0);
        prop_assert_eq!(after.makespan_s - before.makespan_s, cost);
    }

    /// MT-P5: whatever could still run has run, and the halt point is the stuck block.
    #[test]
    fn one_stuck_block_is_the_only_halt_point(
        plan in any_plan(), at: proptest::sample::Index,
    ) {
        let graph = Graph::new(plan).unwrap();
        let stuck = at.index(graph.nodes());
        let mut finished = vec![true; graph.nodes()];
        finished[stuck] = false;
        for node in graph.order.iter().map(|node| *node as usize) {
            let mut before = graph.predecessors(node).into_iter().flatten();
            finished[node] &= before.all(|node| finished[node]);
        }
        prop_assert_eq!(graph.halts(&finished), [stuck]);
    }
}
