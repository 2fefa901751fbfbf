//! What is hidden in a simulated pipeline is what the analysis names, and its identities hold.

use laggard_sim::{Drag, Pipeline};
use model::SlowdownCause;
use proptest::prelude::*;
use whatif::{Findings, OpKind, PipelineTrace, Row, TraceError, analyse};

const HEALTHY: Pipeline = Pipeline {
    dp: 4,
    pp: 4,
    tp: 1,
    microbatches: 8,
    steps: 12,
    drags: Vec::new(),
    seed: 1,
};

fn find(pipeline: &Pipeline, rows: &[Row]) -> Result<Findings, TraceError> {
    analyse(&PipelineTrace::new(pipeline.layout(), rows)?)
}

fn findings(pipeline: &Pipeline) -> Findings {
    find(pipeline, &pipeline.rows()).expect("findings")
}

#[test]
fn a_healthy_pipeline_has_no_cause() {
    for seed in 0..5 {
        let found = findings(&Pipeline { seed, ..HEALTHY });
        assert_eq!(found.causes, []);
        assert!(found.what_if.slowdown < 1.03, "{}", found.what_if.slowdown);
    }
}

#[test]
fn recorded_steps_are_simulated_to_the_microsecond() {
    let what_if = findings(&Pipeline {
        drags: vec![Drag::Data { times: 2.0 }],
        ..HEALTHY
    })
    .what_if;
    for (recorded, simulated) in what_if.recorded_s.iter().zip(&what_if.simulated_s) {
        assert!(
            (recorded - simulated).abs() < 1e-6,
            "{recorded} {simulated}"
        );
    }
}

#[test]
fn a_slow_rank_is_named_wherever_it_is() {
    for dp_rank in 0..4 {
        for stage in 0..4 {
            let drag = Drag::Rank {
                dp_rank,
                stage,
                times: 1.6,
            };
            let found = findings(&Pipeline {
                drags: vec![drag],
                tp: 2,
                ..HEALTHY
            });
            let [SlowdownCause::Rank { rank, passes, .. }] = found.causes[..] else {
                panic!("{:?}", found.causes);
            };
            assert_eq!(rank, (stage * 4 + dp_rank) * 2);
            assert!((passes.forward - 1.6).abs() < 0.1, "{passes:?}");
        }
    }
}

#[test]
fn a_heavy_stage_is_named_wherever_it_is() {
    for heavy in 0..4 {
        let drag = Drag::Stage {
            stage: heavy,
            times: 1.5,
        };
        let found = findings(&Pipeline {
            drags: vec![drag],
            ..HEALTHY
        });
        let [SlowdownCause::Stage { stage, passes }] = found.causes[..] else {
            panic!("{:?}", found.causes);
        };
        assert_eq!(stage, heavy);
        assert!((passes.backward - 1.5).abs() < 0.1, "{passes:?}");
    }
}

#[test]
fn of_uneven_sequences_no_rank_is_to_blame() {
    for seed in 0..5 {
        let drag = Drag::Data { times: 3.0 };
        let found = findings(&Pipeline {
            drags: vec![drag],
            dp: 8,
            steps: 20,
            seed,
            ..HEALTHY
        });
        let [
            SlowdownCause::Data {
                spread,
                top_dp_ranks,
                ..
            },
        ] = found.causes[..]
        else {
            panic!("{:?}", found.causes);
        };
        assert!(spread.correlation > 0.95 && top_dp_ranks > 3, "{spread:?}");
    }
}

#[test]
fn a_heavy_stage_is_reported_after_uneven_sequences() {
    let drags = vec![
        Drag::Data { times: 3.0 },
        Drag::Stage {
            stage: 3,
            times: 1.8,
        },
    ];
    let found = findings(&Pipeline {
        drags,
        dp: 8,
        steps: 20,
        ..HEALTHY
    });
    let [
        SlowdownCause::Data { .. },
        SlowdownCause::Stage { stage: 3, .. },
    ] = found.causes[..]
    else {
        panic!("{:?}", found.causes);
    };
}

#[test]
fn one_pipeline_cannot_tell_a_slow_rank_from_a_heavy_stage() {
    let drag = Drag::Rank {
        dp_rank: 0,
        stage: 1,
        times: 1.6,
    };
    let found = findings(&Pipeline {
        drags: vec![drag],
        dp: 1,
        ..HEALTHY
    });
    assert!(matches!(
        found.causes[..],
        [SlowdownCause::Stage { stage: 1, .. }]
    ));
}

#[test]
fn of_two_slow_ranks_none_is_named_wrongly() {
    let slow = |dp_rank, stage| Drag::Rank {
        dp_rank,
        stage,
        times: 1.6,
    };
    let drags = vec![slow(0, 1), slow(2, 3)];
    let found = findings(&Pipeline { drags, ..HEALTHY });
    assert!(
        matches!(found.causes[..], [SlowdownCause::Unexplained { .. }]),
        "{:?}",
        found.causes
    );
}

#[test]
fn time_before_the_first_pass_is_a_delay_and_no_straggler() {
    let mut rows = HEALTHY.rows();
    for row in rows
        .iter_mut()
        .filter(|row| row.kind != OpKind::ParamsAllGather)
    {
        row.start_s += 0.3;
        row.end_s += 0.3;
    }
    let found = find(&HEALTHY, &rows).unwrap();
    assert_eq!(found.causes, []);
    let launch = found.what_if.launch.expect("delays");
    let mut names: Vec<&str> = launch.op_types.iter().map(|part| &part.name[..]).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), launch.op_types.len(), "{names:?}");
    let first = &launch
        .op_types
        .iter()
        .find(|part| part.name == "first-op")
        .unwrap();
    assert!(
        (first.slowdown - found.what_if.launch_slowdown).abs() < 1e-9,
        "{first:?}"
    );
    let rest = launch
        .op_types
        .iter()
        .filter(|part| part.name != "first-op");
    for part in rest {
        assert!((part.slowdown - 1.0).abs() < 1e-9, "{part:?}");
    }
}

#[test]
fn reductions_that_overlap_with_passes_are_waited_for() {
    let mut rows = HEALTHY.rows();
    let mut reduces = Vec::new();
    let ends = rows.iter().filter(|row| row.kind == OpKind::Gc);
    let ends: Vec<Row> = ends.copied().collect();
    for (row, end) in rows
        .iter_mut()
        .filter(|row| row.kind == OpKind::GradsReduceScatter)
        .zip(&ends)
    {
        row.kind = OpKind::SeparateAllReduce;
        let (kind, chunk) = (OpKind::GradsReduceScatter, 0);
        reduces.push(Row {
            kind,
            chunk,
            duration_s: 0.0005,
            end_s: end.end_s + 0.0005,
            ..*end
        });
    }
    rows.extend(reduces);
    let found = find(&HEALTHY, &rows).unwrap().what_if;
    for (recorded, simulated) in found.recorded_s.iter().zip(&found.simulated_s) {
        // The layer norms come after the last of them.
        assert!(
            (simulated - recorded - 0.0005).abs() < 1e-6,
            "{recorded} {simulated}"
        );
    }
}

#[test]
fn steps_with_a_hole_are_left_out_and_counted() {
    let mut rows = HEALTHY.rows();
    let whole = find(&HEALTHY, &rows).unwrap();
    let hole = rows
        .iter()
        .position(|row| row.step == 13 && row.dp_rank == 2)
        .unwrap();
    rows.remove(hole);
    let found = find(&HEALTHY, &rows).unwrap();
    assert_eq!(found.left_out_steps, 1);
    assert_eq!(
        found.what_if.steps,
        [&whole.what_if.steps[..1], &whole.what_if.steps[2..]].concat()
    );
    assert_eq!(found.what_if.recorded_s[1..], whole.what_if.recorded_s[2..]);
}

#[test]
fn rows_that_make_no_sense_are_refused_with_their_place() {
    type Spoil = fn(&mut Vec<Row>);
    let cases: [(Spoil, &str); 10] = [
        (Vec::clear, "rows: there are none"),
        (
            |rows| rows.retain(|row| row.dp_rank < 3),
            "column dp_rank: it goes from 0 to 2 in the trace, but dp_size is 4 in the metadata",
        ),
        (
            |rows| rows.push(rows[0]),
            "step 10, dp rank 0: params-all-gather 0 of stage 0 appears there twice",
        ),
        (
            |rows| rows.push(*rows.last().unwrap()),
            "step 43, rank 15: optimizer 0 of stage 3 appears there twice",
        ),
        (
            |rows| {
                rows.push(Row {
                    number: u32::MAX,
                    ..rows[0]
                });
            },
            "step 10, dp rank 0: params-all-gather 4294967295 of stage 0 follows 1 of its kind: \
             seq_id must count from 0",
        ),
        (
            |rows| rows[5].rank = 16,
            "step 10, rank 16: the job has 16 ranks",
        ),
        (
            |rows| rows[5].rank = 3,
            "step 10, rank 3: dp rank 0 of stage 0 is rank 0 elsewhere",
        ),
        (
            |rows| rows[1].duration_s = -1.0,
            "step 10, rank 0: forward-send 0 starts at 0",
        ),
        (
            |rows| rows.retain(|row| row.kind.name() != "forward-recv" || row.stage != 2),
            "forward-send of stage 1: there are 8 of them and 0 forward-recv of stage 2",
        ),
        (
            |rows| rows.iter_mut().for_each(|row| row.number += 1),
            "step 10, dp rank 0: forward-compute 1 of stage 0 follows 0 of its kind",
        ),
    ];
    for (spoil, said) in cases {
        let mut rows = HEALTHY.rows();
        spoil(&mut rows);
        let error = find(&HEALTHY, &rows).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
    }
}

fn pipelines() -> impl Strategy<Value = Pipeline> {
    let drag = prop_oneof![
        (0..2u32, 0..2u32, 1.2..3.0).prop_map(|(dp_rank, stage, times)| Drag::Rank {
            dp_rank,
            stage,
            times
        }),
        (0..2u32, 1.2..3.0).prop_map(|(stage, times)| Drag::Stage { stage, times }),
        (1.2..4.0).prop_map(|times| Drag::Data { times }),
    ];
    let drags = prop::collection::vec(drag, 0..3);
    (2..5u32, 2..5u32, 1..9u32, 1..4u64, drags, any::<u64>()).prop_map(
        |(dp, pp, microbatches, steps, drags, seed)| Pipeline {
            dp,
            pp,
            tp: 1,
            microbatches,
            steps,
            drags,
            seed,
        },
    )
}

fn close(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-9 * right.abs()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn names_of_data_parallel_ranks_do_not_matter(pipeline in pipelines()) {
        let rows = pipeline.rows();
        let mut renamed = rows.clone();
        for row in &mut renamed {
            row.dp_rank = pipeline.dp - 1 - row.dp_rank;
        }
        let (one, other) = (find(&pipeline, &rows).unwrap(), find(&pipeline, &renamed).unwrap());
        prop_assert!(close(one.what_if.slowdown, other.what_if.slowdown));
        if let (Some(one), Some(other)) = (one.what_if.stragglers, other.what_if.stragglers) {
            for (part, renamed) in one.dp_ranks.iter().zip(other.dp_ranks.iter().rev()) {
                prop_assert!(close(part.slowdown, renamed.slowdown));
            }
        }
    }

    #[test]
    fn when_a_step_began_does_not_matter(pipeline in pipelines(), later_s in 0.0..1e4) {
        let rows = pipeline.rows();
        let mut later = rows.clone();
        for row in &mut later {
            row.start_s += later_s;
            row.end_s += later_s;
        }
        let (one, other) = (find(&pipeline, &rows).unwrap(), find(&pipeline, &later).unwrap());
        prop_assert!((one.what_if.slowdown - other.what_if.slowdown).abs() < 1e-6);
        prop_assert!((one.what_if.ideal_s - other.what_if.ideal_s).abs() < 1e-6);
    }

    #[test]
    fn the_order_of_rows_does_not_matter(pipeline in pipelines()) {
        let mut rows = pipeline.rows();
        let found = find(&pipeline, &rows).unwrap();
        rows.reverse();
        prop_assert_eq!(find(&pipeline, &rows).unwrap(), found);
    }

    #[test]
    fn no_rank_slows_more_than_the_one_that_is_slow(
        pipeline in pipelines(),
        times in 1.5..4.0,
    ) {
        let drag = Drag::Rank { dp_rank: 1, stage: 1, times };
        let what_if = findings(&Pipeline { drags: vec![drag], ..pipeline }).what_if;
        let of_slow = |rank: &&model::RankSlowdown| (rank.dp_rank, rank.stage) == (1, 1);
        let slow = what_if.ranks.iter().find(of_slow).unwrap().slowdown;
        prop_assert!(what_if.ranks.iter().all(|rank| rank.slowdown <= slow));
    }
}
