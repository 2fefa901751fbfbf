//! What methods say differently of one finding, and whom to trust first.

use std::collections::BTreeMap;

use model::{Cause, Disagreement, Fact, Finding, Method, Position, Question, Trust};

/// What a fact answers to a question, and how much that is to be trusted.
type Answers = fn(&Finding, &Fact) -> Option<(Trust, Position)>;

/// Finds what the facts of a finding disagree about: ranks, stage, cause; the method to trust
/// first stands in front.
///
/// A fact that names nothing itself stands for what the finding names. Stacks and hosts are asked
/// about ranks that others name, so they name none.
///
/// # Properties
/// The order of the facts changes nothing. What only one method says of a question, or all alike,
/// is no disagreement.
pub fn disagreements(finding: &Finding) -> Vec<Disagreement> {
    let asked = [
        (Question::Ranks, ranks as Answers),
        (Question::Stage, stage),
        (Question::Cause, cause),
    ];
    let found = asked.into_iter().filter_map(|(about, answer)| {
        // Of all that say the same, the one to trust most speaks.
        let mut said: BTreeMap<Position, (Trust, Method)> = BTreeMap::new();
        for fact in &finding.facts {
            let Some((trust, position)) = answer(finding, fact) else {
                continue;
            };
            let method = fact.what.method();
            let known = said.entry(position).or_insert((trust, method));
            *known = (*known).min((trust, method));
        }
        let mut said: Vec<(Trust, Method, Position)> = said
            .into_iter()
            .map(|(position, (trust, method))| (trust, method, position))
            .collect();
        said.sort();
        let (trust, first, _) = said.first()?.clone();
        // A method that says two things saw two things: only several contradict each other.
        if said.iter().all(|(_, method, _)| *method == first) {
            return None;
        }
        let answers = said
            .into_iter()
            .map(|(_, method, position)| (method, position));
        Some(Disagreement {
            about,
            answers: answers.collect(),
            trust,
        })
    });
    found.collect()
}

fn ranks(finding: &Finding, fact: &Fact) -> Option<(Trust, Position)> {
    let method = fact.what.method();
    let trust = match method {
        // They are asked about ranks that others name, so they do not say which it is.
        Method::Stack | Method::Host => return None,
        Method::Collective if fact.what.is_of_arrival() => Trust::LastToArrive,
        Method::Collective => Trust::Counters,
        Method::Schedule => Trust::OwnBlocks,
        Method::Frontier => Trust::OwnWork,
        Method::Pattern => Trust::TimeSpent,
    };
    let subject = &finding.subject.ranks;
    let named = if fact.ranks.is_empty() {
        subject
    } else {
        &fact.ranks
    };
    // The rank whose link it is, of a link's two ends.
    let is_part = named != subject && named.iter().all(|rank| subject.contains(rank));
    if method == Method::Pattern && is_part {
        return None;
    }
    (!named.is_empty()).then(|| (trust, Position::Ranks(named.clone())))
}

fn stage(finding: &Finding, fact: &Fact) -> Option<(Trust, Position)> {
    let method = fact.what.method();
    let trust = match method {
        Method::Frontier => Trust::AllSteps,
        Method::Pattern => Trust::FewSteps,
        _ => return None,
    };
    let of_finding = finding.subject.stage.as_ref();
    // The stage of a finding is named by the accounting; a function has that of its callers.
    let of_finding = of_finding.filter(|_| method == Method::Frontier);
    let named = fact.stage.as_ref().or(of_finding)?;
    // Of another rank it is another question.
    fact.ranks
        .is_empty()
        .then(|| (trust, Position::Stage(named.clone())))
}

fn cause(_: &Finding, fact: &Fact) -> Option<(Trust, Position)> {
    // A fact with ranks of its own is about others than those of the finding.
    let cause = fact.what.cause().filter(|_| fact.ranks.is_empty())?;
    let trust = match (cause, fact.what.method()) {
        (Cause::Cores, _) => Trust::LackOfCores,
        (_, Method::Collective) => Trust::Counters,
        (Cause::Code, _) => Trust::TakesTime,
        (Cause::Network, _) => Trust::LosesBytes,
        (Cause::Gpu, _) => Trust::HoldsDevice,
    };
    Some((trust, Position::Cause(cause)))
}

#[cfg(test)]
mod tests {
    use model::{
        Claim, CollectiveOp, CoresBusy, Device, During, Failure, FunctionClass, FunctionFault,
        HoldUp, Label, LateIn, NetworkFault, Observation, Origin, Slowness, StageAccount, StepSpan,
        Straggler, Subject, Unlike, Wait,
    };
    use proptest::prelude::*;

    use super::*;

    const BACKWARD: &str = "model.backward_cpu_wall";

    fn finding(ranks: &[u32], facts: Vec<Fact>) -> Finding {
        let claim = Claim::UnknownRank {
            stage: BACKWARD.to_owned(),
            stage_share: 0.5,
            steps: StepSpan {
                first: 0,
                last: 0,
                open: false,
            },
        };
        Finding {
            subject: Subject {
                ranks: ranks.to_vec(),
                stage: Some(BACKWARD.to_owned()),
                ..Subject::default()
            },
            facts,
            ..Finding::new(Origin::Stages, String::new(), claim)
        }
    }

    fn of(ranks: &[u32], what: Observation) -> Fact {
        Fact {
            ranks: ranks.to_vec(),
            ..Fact::from(what)
        }
    }

    fn own_work() -> Observation {
        Observation::OwnWork(StageAccount {
            label: Label::CoCritical,
            stages: Vec::new(),
            struck_steps: 9,
            lateness_s: 0.1,
            gain_alone_s: 1.0,
            stage_share: 0.5,
            stage_gain: 0.5,
            median_lag_s: 0.1,
        })
    }

    /// A function that is code of the host, or works for its device.
    fn function(class: FunctionClass) -> Observation {
        Observation::Function(Box::new(FunctionFault {
            name: "work".to_owned(),
            class,
            kind: None,
            callers: Vec::new(),
            ranks: Vec::new(),
            beta: 0.5,
            peers_beta: 0.1,
            excess_share: 0.4,
            cost_s: 1.0,
            mu: (None, None),
            rate: (None, None),
            unexpected: Vec::new(),
            others: Vec::new(),
            steps: (0, 9),
            number: 0,
        }))
    }

    /// What is not delivered to ranks that do not move.
    fn failure() -> Observation {
        Observation::Failure(Box::new(Failure {
            cause: HoldUp::NotDelivered,
            ranks: vec![1],
            links: Vec::new(),
            waits: vec![Wait::default()],
            still_s: 2.0,
            in_flight: 1,
        }))
    }

    fn straggler(cause: HoldUp) -> Observation {
        Observation::Straggler(Box::new(Straggler {
            cause,
            ranks: vec![1],
            either: false,
            channels: Vec::new(),
            wait: Wait::default(),
            slow: Slowness {
                took_s: 0.2,
                usual_s: 0.1,
                of_channels: false,
            },
            blamed_share: 1.0,
            cost_s: 1.0,
        }))
    }

    fn arrival() -> Observation {
        Observation::Arrival {
            ranks: vec![1],
            place: LateIn {
                group: "default".to_owned(),
                op: CollectiveOp::ALLREDUCE,
                first: 1,
                struck: 9,
                operations: 9,
                lateness_s: 0.1,
                cost_s: 0.9,
            },
        }
    }

    fn slow_link() -> Observation {
        let (peer, bytes_per_s, usual_bytes_per_s) = ("10.0.0.2".to_owned(), 1, 4);
        let fault = NetworkFault::SlowerLink {
            peer,
            bytes_per_s,
            usual_bytes_per_s,
        };
        Observation::Network {
            rank: 1,
            fault,
            peer: None,
        }
    }

    fn no_core() -> Observation {
        Observation::NoCore {
            ranks: vec![1],
            share: 0.5,
            peers_share: 0.0,
            during: During::Incident,
            cores: None,
        }
    }

    #[test]
    fn counters_inside_collectives_beat_who_arrives_last() {
        let answers = vec![
            (Method::Collective, Position::Ranks(vec![1])),
            (Method::Frontier, Position::Ranks(vec![2])),
        ];
        let (about, trust) = (Question::Ranks, Trust::Counters);
        assert_eq!(
            disagreements(&finding(
                &[1],
                vec![of(&[2], own_work()), of(&[], failure())]
            )),
            [Disagreement {
                about,
                answers,
                trust
            }]
        );
    }

    #[test]
    fn code_that_takes_the_time_beats_a_slow_link_and_a_missing_core_beats_both() {
        let code = of(&[], function(FunctionClass::Python));
        let (link, cores) = (of(&[], slow_link()), of(&[], no_core()));
        let first = |all: &[&Fact]| {
            let all = all.iter().map(|it| (*it).clone()).collect();
            disagreements(&finding(&[1], all))[0].answers[0].1.clone()
        };
        assert_eq!(first(&[&link, &code]), Position::Cause(Cause::Code));
        assert_eq!(
            first(&[&link, &code, &cores]),
            Position::Cause(Cause::Cores)
        );
        // What is said of another rank's time is no word on this one's.
        let of_other = Fact {
            ranks: vec![2],
            ..code.clone()
        };
        let found = disagreements(&finding(&[1], vec![of_other, cores.clone()]));
        assert!(found.iter().all(|found| found.about == Question::Ranks));
        // Two things that hosts saw are two things, and no two methods.
        assert_eq!(disagreements(&finding(&[1], vec![link, cores])), []);
    }

    #[test]
    fn the_accounting_of_all_steps_beats_the_stack_of_a_function() {
        let stack = Fact {
            stage: Some("data.next_wait".to_owned()),
            ..of(&[], function(FunctionClass::GpuCompute))
        };
        let found = disagreements(&finding(&[1], vec![stack, of(&[], own_work())]));
        assert_eq!(found[0].about, Question::Stage);
        let backward = Position::Stage(BACKWARD.to_owned());
        assert_eq!(found[0].answers[0].1, backward);
    }

    prop_compose! {
        fn any_fact()(
            what in prop::sample::select(vec![
                own_work(),
                arrival(),
                failure(),
                straggler(HoldUp::NotDelivered),
                straggler(HoldUp::GpuNotReady),
                straggler(HoldUp::NotEntered),
                Observation::Path { is_broken: false },
                function(FunctionClass::Python),
                function(FunctionClass::GpuCompute),
                Observation::Stack { ranks: vec![1], frames: Vec::new(), unread: None },
                Observation::Cores(CoresBusy {
                    ranks: vec![1],
                    cores: 0.5,
                    deviation: 0.1,
                    peers: 1.0,
                }),
                no_core(),
                slow_link(),
                Observation::Device {
                    users: vec![1],
                    device: Device::Gpu(0),
                    unlike: Unlike::Slowed { brake: None, clock_mhz: None },
                },
            ]),
            ranks in prop::collection::vec(0_u32..4, 0..2),
            stage in prop::option::of(prop::sample::select(vec!["a", "b"])),
        ) -> Fact {
            Fact { ranks, stage: stage.map(str::to_owned), what }
        }
    }

    proptest! {
        /// Whichever method speaks first, the same is said; methods that agree do not contradict.
        #[test]
        fn the_order_of_the_facts_changes_nothing(
            (facts, shuffled) in prop::collection::vec(any_fact(), 0..8)
                .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        ) {
            let found = disagreements(&finding(&[0], facts));
            prop_assert_eq!(&found, &disagreements(&finding(&[0], shuffled)));
            for Disagreement { answers, .. } in found {
                let positions: std::collections::BTreeSet<&Position> =
                    answers.iter().map(|(_, position)| position).collect();
                prop_assert_eq!(positions.len(), answers.len());
                prop_assert!(answers.iter().any(|(method, _)| *method != answers[0].0));
            }
        }
    }
}
