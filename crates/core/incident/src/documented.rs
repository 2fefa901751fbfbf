//! The advice of incidents is what docs/incidents.md says it is.

use std::collections::BTreeMap;

use collective::{Cause, Failure, Odd, Open, Slow, Stall, StallKind, Straggler, Wait};
use model::{
    CollectiveOp, Frame, FunctionClass, Pace, ProcessState, RankNs, Stack, StageId,
    StageNames, Worker,
};
use schedule::Cause as CallCause;

use crate::words::Telling;
use crate::{Fault, FaultKind, FunctionFault, words};

const DOCS: &str = include_str!("../../../../docs/incidents.md");

/// Asserts that a sentence stands in the documentation, whatever lines it is broken into.
pub(crate) fn assert_documented(advice: &str) {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain(DOCS).contains(&plain(advice)), "not in docs/incidents.md: {advice}");
}

fn fault(kind: FaultKind, stage: StageId) -> Fault {
    Fault {
        kind,
        ranks: if kind == FaultKind::LateRanks { vec![2] } else { Vec::new() },
        stage,
        other_stages: Vec::new(),
        place: None,
        side: None,
        level_s: 0.0,
        strikes: Vec::new(),
        lateness_s: 0.1,
        cost_s: 0.1,
        gain_alone_s: 0.1,
        victims: model::Ranks::default(),
        hides: Vec::new(),
        hidden: false,
        notable: true,
    }
}

fn wait() -> Wait {
    Wait {
        group: "default".to_owned(),
        number: 46,
        op: CollectiveOp(3),
        entered: vec![0, 1, 3],
        missing: vec![2],
        ..Wait::default()
    }
}

fn stall(kind: StallKind, wait: Wait) -> Stall {
    Stall {
        kind,
        culprits: vec![2],
        gone: Vec::new(),
        waits: vec![wait],
        waiting: vec![0, 1, 3],
        last_kinds: BTreeMap::new(),
        step: 40,
        since: RankNs(0),
        failure: None,
        reason: None,
    }
}

fn telling<'a>(fault: &'a Fault, names: &'a StageNames) -> Telling<'a> {
    Telling {
        fault,
        names,
        pace: Pace::Steady,
        first_step: 0,
        last_step: 9,
        open: true,
        lateness_s: 0.1,
        cost_s: 0.1,
        cost_share: 0.1,
        share: 0.1,
        hides: &[],
        gain_alone_s: 0.1,
        group: None,
    }
}

/// The only rank of a pipeline's stage waits for data.
#[test]
fn a_rank_without_peers_waits_alone() {
    let (fault, names) =
        (fault(FaultKind::InputBound, StageId::DATA), StageNames::default());
    let of_group = |group| words::sentence(&Telling { group, ..telling(&fault, &names) });
    let alone = of_group(Some(&[2]));
    assert!(
        alone.starts_with("rank 2 waits in data.next_wait: 100.0 ms a step"),
        "{alone}"
    );
    assert!(alone.ends_with("; it has no other to be compared with"), "{alone}");
    let all = of_group(None);
    assert!(all.starts_with("all ranks wait in data.next_wait"), "{all}");
}

#[test]
fn advice_about_stages_is_documented() {
    let mut names = StageNames::default();
    let tokenise = names.intern("tokenise");
    let told = |kind, stage, pace| {
        words::advice(&Telling { pace, ..telling(&fault(kind, stage), &names) })
    };
    let stages = [
        StageId::DATA,
        StageId::DATA_GAP,
        StageId::FORWARD,
        StageId::BACKWARD,
        StageId::CALLBACKS,
        StageId::OPTIMIZER,
        StageId::OTHER,
        tokenise,
    ];
    for stage in stages {
        assert_documented(&told(FaultKind::LateRanks, stage, Pace::Steady));
    }
    for kind in [
        FaultKind::Rotating,
        FaultKind::InputBound,
        FaultKind::Degraded,
        FaultKind::UnknownRank,
    ] {
        assert_documented(&told(kind, StageId::DATA, Pace::Steady));
    }
    let pace = Pace::Every { steps: 10 };
    let periodic = told(FaultKind::LateRanks, StageId::DATA, pace);
    let (_, added) = periodic.split_once("; ").unwrap();
    assert_documented(&format!("; {added}"));
}

#[test]
fn advice_about_hangs_is_documented() {
    let odd = |op| Odd { rank: 2, op, detail: String::new() };
    let entered = |op| Wait { odd: vec![odd(op)], ..wait() };
    let none = BTreeMap::new();
    let open = |not_started| {
        let under_way = vec![0, 1, 2, 3];
        let open = Some(Open { under_way, not_started, ended: Vec::new() });
        Wait { open, ..wait() }
    };
    for stall in [
        stall(StallKind::Missing, wait()),
        Stall { gone: vec![2], ..stall(StallKind::Missing, wait()) },
        stall(StallKind::Unseen, wait()),
        stall(StallKind::Mismatch, entered(CollectiveOp(3))),
        stall(StallKind::Mismatch, entered(CollectiveOp(5))),
        stall(
            StallKind::Mismatch,
            Wait { op: CollectiveOp(5), ..entered(CollectiveOp(5)) },
        ),
        stall(StallKind::Deadlock, wait()),
        stall(StallKind::Inside, Wait { op: CollectiveOp::INIT, ..wait() }),
        stall(StallKind::Inside, open(Vec::new())),
        stall(StallKind::Inside, open(vec![2])),
        stall(StallKind::Nowhere, wait()),
    ] {
        assert_documented(&crate::hang::advice(&stall, &none, None));
    }
    let missing = stall(StallKind::Missing, wait());
    assert_documented(&crate::hang::advice(&missing, &none, Some("evaluates")));
    let worker = Worker { pid: 1234, state: ProcessState::Stopped };
    let stack = Stack::new(ProcessState::Sleeping, None, Vec::new());
    let stack = Stack { workers: vec![worker], ..stack };
    assert_documented(&crate::hang::advice(&missing, &[(2, stack)].into(), None));
    let inside = Frame {
        function: "all_reduce".to_owned(),
        file: "torch/distributed/distributed_c10d.py".to_owned(),
        line: 1,
    };
    let frames = vec![inside];
    let stack = Stack::new(ProcessState::Sleeping, None, frames);
    let stays = stall(StallKind::Missing, Wait { still_before: vec![2], ..wait() });
    assert_documented(&crate::hang::advice(&stays, &[(2, stack)].into(), None));
    for signal in [None, Some(7), Some(9)] {
        assert_documented(&crate::death::advice(2, signal));
    }
}

#[test]
fn advice_about_the_inside_of_collectives_is_documented() {
    for cause in [
        Cause::NotEntered,
        Cause::Circle,
        Cause::GpuNotStarted,
        Cause::GpuNotReady,
        Cause::GpuNotTaking,
        Cause::ReceiverNotReady,
        Cause::NotTransmitted,
        Cause::ProxyStill,
        Cause::NotDelivered,
        Cause::Unknown,
    ] {
        // Only of two ends of a link that cannot be told apart is something else said.
        let two = (cause == Cause::NotDelivered).then(|| vec![1, 2]);
        for ranks in std::iter::once(vec![2]).chain(two) {
            assert_documented(&crate::inside::advice(&Failure {
                cause,
                ranks: ranks.clone(),
                links: Vec::new(),
                waits: vec![wait()],
                still_s: 1.7,
                in_flight: 0,
            }));
            assert_documented(&crate::straggler::advice(&Straggler {
                cause,
                either: ranks.len() == 2,
                ranks,
                channels: Vec::new(),
                wait: wait(),
                slow: Slow { took_s: 0.2, usual_s: 0.02, of_channels: false },
                blamed_share: 1.0,
                cost_s: 1.0,
            }));
        }
    }
}

#[test]
fn advice_about_functions_is_documented() {
    use model::FaultKind::{Computes, Detour, SlowLink, Throttled, Waits};
    let names = ["recv_into", "DataLoader", "gc.collect", "sleep", ".item", "decode"];
    let kinds = [Computes, Detour, SlowLink, Throttled, Waits].map(Some);
    for name in names {
        for kind in kinds.into_iter().chain([None]) {
            for ranks in [vec![2], Vec::new()] {
                let advice = crate::function::advice(&FunctionFault {
                    name: name.to_owned(),
                    class: FunctionClass::Python,
                    kind,
                    callers: Vec::new(),
                    ranks,
                    beta: 0.5,
                    peers_beta: 0.0,
                    excess_share: 0.5,
                    cost_s: 1.0,
                    mu: (None, None),
                    rate: (None, None),
                    unexpected: Vec::new(),
                    others: Vec::new(),
                    steps: (0, 9),
                    number: 1,
                });
                assert_documented(advice.strip_prefix("on rank 2, ").unwrap_or(&advice));
            }
        }
    }
}

#[test]
fn advice_about_calls_of_pipelines_is_documented() {
    for cause in
        [CallCause::Compute, CallCause::Host, CallCause::Transfer, CallCause::Outside]
    {
        assert_documented(&crate::pipeline::advice_of(cause, &[2], &[]));
    }
    assert_documented(&crate::pipeline::advice_of(CallCause::Unseen, &[], &[]));
    assert_documented(&crate::pipeline::advice_of(CallCause::Unseen, &[], &[2]));
}
