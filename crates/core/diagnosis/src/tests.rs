//! The laws of docs/math/fusion.md, and the rules one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use model::{
    Action, Announcement, Cause, Claim, Cost, Fact, Finding, FunctionClass, FunctionFault,
    IncidentKind, Input, JobContext, Label, LinkEnd, Method, NetworkFault, Observation, Origin,
    Position, Ranks, Side, StageAccount, StepSpan, Subject,
};
use proptest::prelude::*;

use crate::rules::{Apply, Kept, Merge};
use crate::{Detector, FusionRule, OwnBlocks, RULES, SlowLink, Witnesses, disagreements};

/// What is known beside the findings of a test.
#[derive(Clone, Debug, Default)]
struct Known {
    window: Option<(u64, u64)>,
    common_share_min: f64,
    /// Seconds each rank worked in its blocks, where its copies worked one.
    own_s: BTreeMap<u32, f64>,
    links: Vec<SlowLink>,
    /// Ranks that lacked cores.
    lacking: Vec<u32>,
}

impl Witnesses for Known {
    fn profile_window(&self) -> Option<(u64, u64)> {
        self.window
    }

    fn common_share_min(&self) -> f64 {
        self.common_share_min
    }

    fn hosts(&self, finding: &Finding, is_seen: bool) -> Vec<(Observation, Option<Action>)> {
        let lacks = finding
            .subject
            .ranks
            .iter()
            .any(|rank| self.lacking.contains(rank));
        let ranks = finding.subject.ranks.clone();
        let found = Observation::CpuQuota {
            ranks: ranks.clone(),
            share: 0.9,
            peers_share: Some(0.0),
            cores: None,
        };
        let found = (found, Some(Action::RaiseQuota { ranks }));
        (lacks && !is_seen).then_some(found).into_iter().collect()
    }

    fn own_blocks(&self, ranks: &[u32], _: &RangeInclusive<u64>) -> Option<OwnBlocks> {
        let own_s = ranks.iter().map(|rank| self.own_s.get(rank).copied());
        let own_s: f64 = own_s.sum::<Option<f64>>()?;
        let fact = fact(1000 + u64::from(*ranks.first()?));
        let copies_s = ranks.len() as f64;
        Some(OwnBlocks {
            pipeline: vec![0, 1, 2, 3],
            own_s,
            copies_s,
            fact,
        })
    }

    fn slow_links(&self) -> Vec<SlowLink> {
        self.links.clone()
    }
}

fn fuse(findings: Vec<Finding>, known: &Known) -> Vec<Finding> {
    crate::fuse(findings, &RULES, known)
}

/// A fact that is known by its number.
fn fact(number: u64) -> Fact {
    Fact::from(Observation::OwnWork(StageAccount {
        label: Label::FrontierAccounting,
        stages: Vec::new(),
        struck_steps: number,
        lateness_s: 1.0 / (number + 1) as f64,
        gain_alone_s: 1.0,
        stage_share: 0.5,
        stage_gain: 0.5,
        median_lag_s: 0.1,
    }))
}

/// The numbers of facts, those of explained findings included.
fn numbers(facts: &[Fact]) -> Vec<u64> {
    let number = |what: &Observation| match what {
        Observation::Explains { by: Some(by), .. } => by.account().map(|it| it.struck_steps),
        what => what.account().map(|it| it.struck_steps),
    };
    facts.iter().filter_map(|fact| number(&fact.what)).collect()
}

fn claim(number: u64) -> Claim {
    Claim::Slower {
        stage: "model.backward_cpu_wall".to_owned(),
        group: None,
        side: None,
        lateness_s: number as f64,
        steps: StepSpan {
            first: 0,
            last: 0,
            open: false,
        },
    }
}

/// A finding about ranks in steps.
fn finding(origin: Origin, number: usize, ranks: &[u32], steps: (u64, u64)) -> Finding {
    Finding {
        number,
        kind: match origin {
            Origin::Death | Origin::Hang => IncidentKind::Hang,
            Origin::Stages if ranks.is_empty() => IncidentKind::Degraded,
            _ => IncidentKind::Slow,
        },
        open: false,
        subject: Subject {
            ranks: ranks.to_vec(),
            stage: Some("model.backward_cpu_wall".to_owned()),
            block: (origin == Origin::Blocks).then(|| "forward".to_owned()),
            ..Subject::default()
        },
        first_step: steps.0,
        last_step: steps.1,
        victims: (0..4).collect::<Ranks>(),
        cost: Cost::saved_whole(1.0, 0.5),
        facts: vec![fact(number as u64)],
        ..Finding::new(origin, format!("{origin:?}{number}"), claim(number as u64))
    }
}

fn function_fault(name: &str, ranks: &[u32], share: f64) -> FunctionFault {
    FunctionFault {
        name: name.to_owned(),
        class: FunctionClass::Python,
        kind: None,
        callers: Vec::new(),
        ranks: ranks.to_vec(),
        beta: share,
        peers_beta: 0.0,
        excess_share: share,
        cost_s: share,
        mu: (None, None),
        rate: (None, None),
        unexpected: Vec::new(),
        others: Vec::new(),
        steps: (1, 9),
        number: 1,
    }
}

fn function(number: usize, fault: &FunctionFault) -> Finding {
    Finding {
        claim: Claim::Function(Box::new(fault.clone())),
        cost: Cost::saved_whole(fault.cost_s, fault.excess_share),
        subject: Subject {
            ranks: fault.ranks.clone(),
            function: Some(fault.name.clone()),
            ..Subject::default()
        },
        actions: vec![Action::LookAtFunction {
            ranks: Vec::new(),
            at: fault.need(),
        }],
        ..finding(Origin::Profile, number, &fault.ranks, fault.steps)
    }
}

prop_compose! {
    fn any_finding()(
        origin in prop::sample::select(&Origin::ALL[..]),
        ranks in prop::collection::btree_set(0_u32..4, 0..3),
        first in 0_u64..12,
        length in 0_u64..6,
        cost_s in 0.0..4.0_f64,
        open in any::<bool>(),
        is_degraded in any::<bool>(),
        supports_only in any::<bool>(),
        name in prop::sample::select(vec!["read", "gc.collect"]),
    ) -> Finding {
        let ranks: Vec<u32> = ranks.into_iter().collect();
        let made = if origin == Origin::Profile {
            function(0, &function_fault(name, &ranks, cost_s / 4.0))
        } else {
            finding(origin, 0, &ranks, (first, first + length))
        };
        let kind = match made.kind {
            IncidentKind::Slow if ranks.is_empty() && is_degraded => {
                IncidentKind::Degraded
            }
            kind => kind,
        };
        let (open, supports_only) = (open, supports_only && origin == Origin::Arrivals);
        let cost = Cost::saved_whole(cost_s, 0.5);
        Finding { kind, open, supports_only, cost, ..made }
    }
}

fn any_findings() -> impl Strategy<Value = Vec<Finding>> {
    prop::collection::vec(any_finding(), 0..9).prop_map(|mut all| {
        for (number, finding) in all.iter_mut().enumerate() {
            finding.number = number;
            finding.id = format!("{number}");
            finding.facts = vec![fact(number as u64)];
        }
        all
    })
}

fn any_known() -> impl Strategy<Value = Known> {
    let window = prop::option::of((0_u64..6, 6_u64..12));
    let own_s = prop::collection::btree_map(0_u32..4, 0.0..3.0_f64, 0..4);
    let links = prop::collection::vec((0_u32..4, 0_u64..16), 0..3);
    let lacking = prop::collection::vec(0_u32..4, 0..2);
    (window, own_s, links, lacking).prop_map(|(window, own_s, links, lacking)| Known {
        window,
        common_share_min: 0.1,
        own_s,
        links: links
            .into_iter()
            .map(|(rank, step)| link(rank, step))
            .collect(),
        lacking,
    })
}

fn link(rank: u32, step: u64) -> SlowLink {
    let (bytes_per_s, usual_bytes_per_s) = (1, 9);
    let fault = NetworkFault::SlowerLink {
        peer: "b".to_owned(),
        bytes_per_s,
        usual_bytes_per_s,
    };
    SlowLink {
        ends: (LinkEnd::Rank(rank), LinkEnd::Rank(rank + 1)),
        step,
        left_share: 1.0 / (f64::from(rank) + 2.0),
        fact: Observation::Network {
            rank,
            fault,
            peer: None,
        }
        .into(),
    }
}

proptest! {
    /// FU-P1.
    #[test]
    fn the_order_of_findings_changes_nothing(
        (findings, shuffled) in any_findings()
            .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        known in any_known(),
    ) {
        prop_assert_eq!(fuse(findings, &known), fuse(shuffled, &known));
    }

    /// FU-P2.
    #[test]
    fn to_fuse_what_is_fused_changes_nothing(
        findings in any_findings(),
        known in any_known(),
    ) {
        let once = fuse(findings, &known);
        prop_assert_eq!(&once, &fuse(once.clone(), &known));
    }

    /// FU-P3.
    #[test]
    fn fusion_adds_no_cost(findings in any_findings(), known in any_known()) {
        let sum = |all: &[Finding]| -> f64 { all.iter().map(|it| it.cost.exposed_s).sum() };
        let before_s = sum(&findings);
        let largest = findings.iter().map(|it| it.cost.exposed_s).fold(0.0, f64::max);
        let fused = fuse(findings, &known);
        prop_assert!(sum(&fused) <= before_s + 1e-9);
        prop_assert!(fused.iter().all(|it| it.cost.exposed_s <= largest));
    }

    /// FU-P4.
    #[test]
    fn nobody_is_culprit_and_victim_of_one_finding(
        findings in any_findings(),
        known in any_known(),
    ) {
        for finding in fuse(findings, &known) {
            let ranks = &finding.subject.ranks;
            prop_assert_eq!(finding.victims.without(ranks), finding.victims.clone());
        }
    }

    /// FU-P5. A finding that is dropped takes its facts with it; any other fact stays.
    #[test]
    fn no_fact_is_lost_or_said_twice(findings in any_findings(), known in any_known()) {
        let may_be_dropped = |finding: &Finding| {
            finding.supports_only
                || matches!(
                    finding.origin,
                    Origin::Profile | Origin::Hang | Origin::Flows
                )
        };
        let kept: BTreeSet<u64> = findings
            .iter()
            .filter(|finding| !may_be_dropped(finding))
            .flat_map(|finding| numbers(&finding.facts))
            .collect();
        let fused = fuse(findings, &known);
        let mut said: Vec<u64> =
            fused.iter().flat_map(|finding| numbers(&finding.facts)).collect();
        // What blocks say of ranks may be said of the cause as well as of those that wait for it.
        said.retain(|number| *number < 1000);
        let once: BTreeSet<u64> = said.iter().copied().collect();
        prop_assert_eq!(once.len(), said.len());
        prop_assert!(kept.is_subset(&once), "{:?} of {:?}", once, kept);
    }

    /// FU-P6. Of any part of the findings, fusion names nobody whom no method named.
    #[test]
    fn less_evidence_accuses_nobody_else(
        part in any_findings()
            .prop_flat_map(|all| prop::sample::subsequence(all.clone(), 0..=all.len())),
        known in any_known(),
    ) {
        let named: BTreeSet<Vec<u32>> =
            part.iter().map(|finding| finding.subject.ranks.clone()).collect();
        for finding in fuse(part, &known) {
            prop_assert!(named.contains(&finding.subject.ranks));
        }
    }
}

/// Ids of what is left, and how many facts each has.
fn fused(findings: Vec<Finding>, known: &Known) -> Vec<(String, usize)> {
    let all = fuse(findings, known).into_iter();
    all.map(|finding| (finding.id, finding.facts.len()))
        .collect()
}

fn left(ids: &[(&str, usize)]) -> Vec<(String, usize)> {
    ids.iter()
        .map(|(id, facts)| ((*id).to_owned(), *facts))
        .collect()
}

fn costing(finding: Finding, exposed_s: f64) -> Finding {
    Finding {
        cost: Cost {
            exposed_s,
            ..finding.cost
        },
        ..finding
    }
}

#[test]
fn a_stall_that_passed_supports_the_incident_of_its_step() {
    let late = finding(Origin::Stages, 0, &[2], (5, 9));
    let stall = |ranks: &[u32], step| finding(Origin::PassedStall, 1, ranks, (step, step));
    let known = Known::default();
    let with = |stall| fused(vec![stall, late.clone()], &known);
    assert_eq!(with(stall(&[1, 2], 10)), left(&[("Stages0", 2)]));
    let apart = left(&[("Stages0", 1), ("PassedStall1", 1)]);
    assert_eq!(with(stall(&[1], 10)), apart);
    assert_eq!(with(stall(&[2], 12)), apart);
}

#[test]
fn ranks_of_other_roles_are_slower_because_of_a_late_rank() {
    let slower = Finding {
        victims: [0, 1, 3].into_iter().collect(),
        ..costing(finding(Origin::Stages, 0, &[], (40, 60)), 21.0)
    };
    let fused = |late: &[u32], first_step, cost_s| {
        let mut late = finding(Origin::Stages, 1, late, (first_step, first_step + 29));
        late.kind = IncidentKind::Slow;
        fuse(
            vec![slower.clone(), costing(late, cost_s)],
            &Known::default(),
        )
    };
    let [it] = &fused(&[2], 42, 30.0)[..] else {
        panic!("one")
    };
    assert_eq!((&it.subject.ranks[..], it.facts.len()), (&[2][..], 2));
    assert_eq!(fused(&[2], 42, 10.0).len(), 2, "it costs too little");
    assert_eq!(fused(&[1], 42, 30.0).len(), 2, "it is of the same role");
}

#[test]
fn all_ranks_are_slower_because_of_what_is_slow_inside_a_collective() {
    let slower = costing(finding(Origin::Stages, 0, &[], (40, 60)), 21.0);
    let flows = |first_step, cost_s| {
        let flows = finding(Origin::Flows, 1, &[1], (first_step, first_step + 29));
        let subject = Subject {
            stage: None,
            ..flows.subject.clone()
        };
        costing(Finding { subject, ..flows }, cost_s)
    };
    let fused = |flows| fuse(vec![slower.clone(), flows], &Known::default());
    let [it] = &fused(flows(35, 30.0))[..] else {
        panic!("one")
    };
    assert_eq!(
        (it.origin, it.subject.ranks.as_slice()),
        (Origin::Flows, &[1][..])
    );
    assert_eq!((it.first_step, it.last_step), (35, 64));
    assert_eq!(
        (it.cost.exposed_s, &it.subject.stage),
        (30.0, &slower.subject.stage)
    );
    assert!(matches!(
        it.facts[1].what,
        Observation::Explains { by: Some(_), .. }
    ));
    assert_eq!(fused(flows(35, 10.0)).len(), 2, "it costs too little");
    assert_eq!(fused(flows(5, 30.0)).len(), 2, "it was before");
}

#[test]
fn blocks_and_stages_of_the_same_ranks_are_one_and_the_larger_cost_is_reported() {
    let stages = |cost_s| costing(finding(Origin::Stages, 0, &[2], (5, 9)), cost_s);
    let blocks = finding(Origin::Blocks, 1, &[2], (6, 9));
    let known = Known::default();
    let cost_s = |stages: Finding| {
        let [it] = &fuse(vec![stages, blocks.clone()], &known)[..] else {
            panic!("one")
        };
        assert_eq!((it.id.as_str(), it.facts.len()), ("Blocks1", 2));
        assert_eq!(it.subject.block.as_deref(), Some("forward"));
        it.cost.exposed_s
    };
    assert_eq!(cost_s(stages(1.9)), 1.0);
    assert_eq!(cost_s(stages(2.1)), 2.1);
    let mut data = stages(1.0);
    data.subject.stage = Some("data.next_wait".to_owned());
    assert_eq!(fused(vec![data, blocks.clone()], &known).len(), 2);
}

#[test]
fn a_rank_that_waits_for_another_stage_is_a_victim_of_it() {
    let late = |number: usize, rank: u32| {
        let facts = vec![fact(9)];
        Finding {
            facts,
            ..finding(Origin::Stages, number, &[rank], (5, 9))
        }
    };
    let known = |own_s: [f64; 2]| Known {
        own_s: (0..).zip(own_s).collect(),
        ..Known::default()
    };
    let findings = vec![late(0, 0), late(1, 1)];
    let [it] = &fuse(findings.clone(), &known([1.0, 1.9]))[..] else {
        panic!("one")
    };
    assert_eq!(it.subject.ranks, [1]);
    assert_eq!(it.victims, [0, 2, 3].into_iter().collect::<Ranks>());
    assert_eq!(it.facts[1].ranks, [0], "what stages said of the other");
    let both = fuse(findings, &known([1.9, 1.9]));
    assert_eq!(both.len(), 2, "each worked longer itself");
}

#[test]
fn what_all_ranks_of_a_running_job_do_is_an_incident_only_where_its_steps_show_one() {
    let known = Known {
        window: Some((1, 9)),
        ..Known::default()
    };
    let common = || function(1, &function_fault("read", &[], 0.5));
    let facts = |before: Vec<Finding>| -> Vec<usize> {
        let all = before.into_iter().chain([common()]).collect();
        fused(all, &known)
            .into_iter()
            .map(|(_, facts)| facts)
            .collect()
    };
    let slower = |steps| Finding {
        kind: IncidentKind::Slow,
        ..finding(Origin::Stages, 0, &[], steps)
    };
    assert_eq!(facts(Vec::new()), [0; 0]);
    assert_eq!(facts(vec![finding(Origin::Stages, 0, &[1], (1, 9))]), [1]);
    assert_eq!(facts(vec![slower((1, 9))]), [2]);
    assert_eq!(
        facts(vec![slower((10, 20))]),
        [1],
        "the window was before it began"
    );
    assert_eq!(
        facts(vec![slower((0, 0))]),
        [1],
        "the window was after it ended"
    );
    let degraded = |cost_s| costing(finding(Origin::Stages, 0, &[], (1, 9)), cost_s);
    // The function takes half a second of the window's nine steps.
    assert_eq!(facts(vec![degraded(0.9)]), [2]);
    assert_eq!(facts(vec![degraded(1.1)]), [1]);
}

/// Collected by turns, garbage costs the job much and each rank little.
#[test]
fn little_garbage_collection_joins_what_it_is_large_enough_for() {
    let window = Some((1, 10));
    let known = Known {
        window,
        common_share_min: 0.25,
        ..Known::default()
    };
    let garbage = || function(1, &function_fault("gc.collect", &[], 0.1));
    let by_turns = |cost_s| {
        let rotating = finding(Origin::Stages, 0, &[], (1, 9));
        costing(
            Finding {
                kind: IncidentKind::Slow,
                ..rotating
            },
            cost_s,
        )
    };
    assert_eq!(
        fused(vec![by_turns(0.15), garbage()], &known),
        left(&[("Stages0", 2)])
    );
    assert_eq!(
        fused(vec![by_turns(0.5), garbage()], &known),
        left(&[("Stages0", 1)])
    );
    assert_eq!(fused(vec![garbage()], &known), []);
}

#[test]
fn of_a_slow_host_and_a_slow_device_each_has_its_own_function() {
    let slow = |number, side| {
        let mut it = finding(Origin::Stages, number, &[2], (1, 9));
        it.subject.side = Some(side);
        it
    };
    let known = Known {
        window: Some((1, 9)),
        ..Known::default()
    };
    let read = || function(2, &function_fault("recv_into", &[2], 0.5));
    let kernel = FunctionFault {
        class: FunctionClass::GpuCompute,
        ..function_fault("gemm", &[2], 0.4)
    };
    let functions = |found: Vec<Finding>| -> Vec<_> {
        let of = |it: Finding| (it.subject.side, it.subject.function);
        found.into_iter().map(of).collect()
    };
    let both = vec![
        slow(0, Side::Device),
        slow(1, Side::Host),
        read(),
        function(3, &kernel),
    ];
    let mut found = functions(fuse(both, &known));
    found.sort_by_key(|(_, name)| name.clone());
    let named = |side, name: &str| (Some(side), Some(name.to_owned()));
    assert_eq!(
        found,
        [named(Side::Device, "gemm"), named(Side::Host, "recv_into")]
    );
    // Of one of a host it is evidence wherever it runs: its kernels may be what it waits for.
    let alone = |side, function| functions(fuse(vec![slow(0, side), function], &known));
    let host = alone(Side::Host, function(3, &kernel));
    assert_eq!(host, [named(Side::Host, "gemm")]);
    assert_eq!(alone(Side::Device, read()), [(Some(Side::Device), None)]);
}

/// A window in which the fault did not strike shows other functions.
#[test]
fn a_function_that_costs_far_less_than_its_ranks_are_late_is_not_why() {
    let known = Known {
        window: Some((1, 9)),
        ..Known::default()
    };
    let late = || costing(finding(Origin::Stages, 0, &[2], (1, 9)), 1.0);
    for (share, facts) in [(0.05, 1), (0.2, 2)] {
        let function = function(1, &function_fault("aten::copy_", &[2], share));
        assert_eq!(
            fused(vec![late(), function], &known),
            left(&[("Stages0", facts)])
        );
    }
}

/// A link alone opens no incident of a running job; where all became slower it is why.
#[test]
fn a_slow_link_of_a_profile_joins_what_made_all_ranks_slower() {
    let known = Known {
        window: Some((1, 9)),
        ..Known::default()
    };
    let kind = Some(model::FunctionFaultKind::SlowLink);
    let link = || {
        function(
            1,
            &FunctionFault {
                kind,
                ..function_fault("AllReduce", &[2], 0.5)
            },
        )
    };
    assert_eq!(fused(vec![link()], &known), []);
    let slower = costing(finding(Origin::Stages, 0, &[], (1, 9)), 0.5);
    let [it] = &fuse(vec![link(), slower], &known)[..] else {
        panic!("one")
    };
    assert_eq!(it.subject.function.as_deref(), Some("AllReduce"));
    assert_eq!(it.facts[1].ranks, [2]);
}

#[test]
fn a_link_that_was_slow_meanwhile_is_why_all_are_slower() {
    let known = Known {
        links: vec![link(0, 50), link(1, 50)],
        ..Known::default()
    };
    let asked = |finding: Finding| {
        let [it] = &fuse(vec![finding], &known)[..] else {
            panic!("one")
        };
        (it.facts.len() - 1, it.link.clone())
    };
    let slower = |steps, open| Finding {
        open,
        ..finding(Origin::Stages, 0, &[], steps)
    };
    // The one that lost most is the one to look at.
    let worst = Some((LinkEnd::Rank(1), LinkEnd::Rank(2)));
    assert_eq!(asked(slower((40, 60), false)), (2, worst.clone()));
    assert_eq!(asked(slower((40, 45), false)), (0, None));
    assert_eq!(asked(slower((40, 45), true)), (2, worst));
    assert_eq!(asked(slower((51, 60), true)), (0, None));
    assert_eq!(asked(finding(Origin::Stages, 0, &[1], (40, 60))), (0, None));
    assert_eq!(fuse(Vec::new(), &known), [], "a slow link alone is none");
}

#[test]
fn code_that_takes_the_time_comes_before_a_slow_link() {
    let known = Known {
        links: vec![link(0, 5)],
        ..Known::default()
    };
    let slower = finding(Origin::Stages, 0, &[], (1, 9));
    let read = function(1, &function_fault("decode", &[], 0.9));
    let code = read.actions[0].clone();
    let mut slower = Finding {
        actions: vec![code.clone()],
        ..slower
    };
    slower
        .facts
        .push(Observation::Function(Box::new(function_fault("decode", &[], 0.9))).into());
    let [it] = &fuse(vec![slower], &known)[..] else {
        panic!("one")
    };
    let (from, to) = (LinkEnd::Rank(0), LinkEnd::Rank(1));
    assert_eq!(it.actions[..], [code, Action::LookAtNetwork { from, to }]);
    let answers = [
        (Method::Pattern, Position::Cause(Cause::Code)),
        (Method::Host, Position::Cause(Cause::Network)),
    ];
    assert_eq!(disagreements(it)[0].answers, answers);
}

#[test]
fn the_network_comes_before_slow_blocks_at_its_ends() {
    let known = Known {
        links: vec![link(0, 50)],
        ..Known::default()
    };
    let blocks = |number, rank| Finding {
        actions: vec![Action::CompareDevices { ranks: vec![rank] }],
        ..finding(Origin::Blocks, number, &[rank], (0, 60))
    };
    let alone = |rank| fuse(vec![blocks(0, rank)], &known).remove(0);
    assert_eq!(alone(2).facts.len(), 1, "it is at no end of it");
    let at_end = alone(1);
    let (from, to) = (LinkEnd::Rank(0), LinkEnd::Rank(1));
    let network = Action::LookAtNetwork { from, to };
    let devices = Action::CompareDevices { ranks: vec![1] };
    assert_eq!(at_end.actions[..], [network, devices]);
    let slower = finding(Origin::Stages, 0, &[], (0, 60));
    let little = costing(blocks(1, 2), 0.1);
    let later = Finding {
        first_step: 70,
        last_step: 80,
        ..costing(blocks(3, 0), 0.1)
    };
    // Blocks account for too little of it to be why.
    let slower = costing(slower, 3.0);
    let all = fuse(vec![slower, little, later], &known);
    let [slower, later] = &all[..] else {
        panic!("{all:?}")
    };
    assert_eq!((slower.kind, later.number), (IncidentKind::Degraded, 3));
    assert_eq!(
        slower.facts.len(),
        4,
        "its own, the link, the blocks' claim and fact"
    );
}

#[test]
fn a_quota_that_is_used_up_comes_first_where_a_function_is_known() {
    let known = Known {
        lacking: vec![2],
        ..Known::default()
    };
    let late = finding(Origin::Stages, 0, &[2], (1, 9));
    let quota = Action::RaiseQuota { ranks: vec![2] };
    let fused = |findings| fuse(findings, &known).remove(0).actions;
    assert_eq!(fused(vec![late.clone()]), std::slice::from_ref(&quota));
    let read = function(1, &function_fault("recv_into", &[2], 0.5));
    let look = read.actions[0].clone();
    assert_eq!(fused(vec![late, read]), [quota, look]);
}

/// A fifth method: who is behind a switch that loses packets.
#[derive(Debug, Default)]
struct LossySwitch {
    behind: Vec<u32>,
}

impl Detector for LossySwitch {
    fn observe(&mut self, input: &Input, _: JobContext<'_>) -> Vec<Announcement> {
        if let Input::Network {
            rank,
            fault: NetworkFault::Socket { .. },
        } = input
        {
            self.behind.push(*rank);
        }
        Vec::new()
    }

    fn findings(&self, _: JobContext<'_>) -> Vec<Finding> {
        let ranks = (!self.behind.is_empty()).then_some(&self.behind);
        ranks
            .map(|ranks| finding(Origin::Bandwidth, 1, ranks, (0, 9)))
            .into_iter()
            .collect()
    }

    fn restart(&mut self) {
        self.behind.clear();
    }
}

/// What a fifth method needs: one implementation, and a row.
#[test]
fn another_method_is_another_detector_and_another_row() {
    const LOSSY_SWITCH: FusionRule = FusionRule {
        name: "lossy switch",
        when: "a switch loses packets while all ranks are slower",
        keeps: "the finding of all ranks; the switch supports it",
        source: "this test",
        apply: Apply::Merge(Merge {
            of: |new, _| new.origin == Origin::Bandwidth,
            same: |known, _, _, _| known.kind == IncidentKind::Degraded,
            keeps: Kept::Known,
            takes_all: false,
            give: |known, switch, _| known.facts.extend(switch.facts),
        }),
    };
    let (names, hosts, seen) = Default::default();
    let context = JobContext::new(&names, &hosts, &seen);
    let mut method: Box<dyn Detector> = Box::<LossySwitch>::default();
    let peer = "10.0.0.2".to_owned();
    let fault = NetworkFault::Socket {
        peer,
        bytes: 1,
        resent: 4,
        refused: false,
    };
    assert!(
        method
            .observe(&Input::Network { rank: 7, fault }, context)
            .is_empty()
    );
    let mut findings = method.findings(context);
    findings.push(finding(Origin::Stages, 0, &[], (0, 9)));
    let known = Known::default();
    assert_eq!(fuse(findings.clone(), &known).len(), 2);
    let [it] = &crate::fuse(findings, &[LOSSY_SWITCH], &known)[..] else {
        panic!("one")
    };
    assert_eq!((it.origin, it.facts.len()), (Origin::Stages, 2));
    method.restart();
    assert_eq!(method.findings(context), []);
}
