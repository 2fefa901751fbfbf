//! The advice of incidents is what docs/incidents.md says it is.

use std::collections::BTreeMap;

use collective::Stall;
use model::{
    CollectiveOp, Desync, DeviceProgress, Failure, Frame, HoldUp, ProcessState, RankNs,
    Slowness, Stack, StallKind, Straggler, Wait, Worker,
};

/// The pages of the catalogue that give advice.
const DOCS: [&str; 15] = [
    include_str!("../../../../docs/incidents/degraded.md"),
    include_str!("../../../../docs/incidents/function.md"),
    include_str!("../../../../docs/incidents/hang.md"),
    include_str!("../../../../docs/incidents/host.md"),
    include_str!("../../../../docs/incidents/input-bound.md"),
    include_str!("../../../../docs/incidents/killed.md"),
    include_str!("../../../../docs/incidents/late-ranks.md"),
    include_str!("../../../../docs/incidents/late-to-collective.md"),
    include_str!("../../../../docs/incidents/pipeline-block.md"),
    include_str!("../../../../docs/incidents/pipeline-calls.md"),
    include_str!("../../../../docs/incidents/rank-unknown.md"),
    include_str!("../../../../docs/incidents/rotating.md"),
    include_str!("../../../../docs/incidents/slow-collective.md"),
    include_str!("../../../../docs/incidents/slow-communicator.md"),
    include_str!("../../../../docs/incidents/stuck-collective.md"),
];

/// Asserts that a sentence stands in the documentation, whatever lines it is broken into.
fn assert_documented(advice: &str) {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let advice = plain(advice);
    let documented = DOCS.iter().any(|page| plain(page).contains(&advice));
    assert!(documented, "not in docs/incidents: {advice}");
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

#[test]
fn advice_about_hangs_is_documented() {
    let odd = |op| Desync { rank: 2, op, detail: String::new() };
    let entered = |op| Wait { desyncs: vec![odd(op)], ..wait() };
    let none = BTreeMap::new();
    let open = |not_started| {
        let under_way = vec![0, 1, 2, 3];
        let open = Some(DeviceProgress { under_way, not_started, ended: Vec::new() });
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
        HoldUp::NotEntered,
        HoldUp::DeadlockCycle,
        HoldUp::GpuNotStarted,
        HoldUp::GpuNotReady,
        HoldUp::GpuNotTaking,
        HoldUp::ReceiverNotReady,
        HoldUp::NotTransmitted,
        HoldUp::ProxyStill,
        HoldUp::NotDelivered,
        HoldUp::Unknown,
    ] {
        // Only of two ends of a link that cannot be told apart is something else said.
        let two = (cause == HoldUp::NotDelivered).then(|| vec![1, 2]);
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
                slow: Slowness { took_s: 0.2, usual_s: 0.02, of_channels: false },
                blamed_share: 1.0,
                cost_s: 1.0,
            }));
        }
    }
}
