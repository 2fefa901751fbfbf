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
            let Some((trust, position)) = answer(finding, fact) else { continue };
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
        if said.iter().all(|(_, method, _)| *method == first) {
            return None;
        }
        let answers = said.into_iter().map(|(_, method, position)| (method, position));
        Some(Disagreement { about, answers: answers.collect(), trust })
    });
    found.collect()
}

fn ranks(finding: &Finding, fact: &Fact) -> Option<(Trust, Position)> {
    let method = fact.what.method();
    let trust = match method {
        Method::Stack | Method::Host => return None,
        Method::Collective if fact.what.is_of_arrival() => Trust::LastToArrive,
        Method::Collective => Trust::Counters,
        Method::Schedule => Trust::OwnBlocks,
        Method::Frontier => Trust::OwnWork,
        Method::Pattern => Trust::TimeSpent,
    };
    let subject = &finding.subject.ranks;
    let named = if fact.ranks.is_empty() { subject } else { &fact.ranks };
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
    let of_finding = of_finding.filter(|_| method == Method::Frontier);
    let named = fact.stage.as_ref().or(of_finding)?;
    // Of another rank it is another question.
    fact.ranks.is_empty().then(|| (trust, Position::Stage(named.clone())))
}

fn cause(_: &Finding, fact: &Fact) -> Option<(Trust, Position)> {
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
    use model::{Claim, Observation, Origin, Subject};
    use proptest::prelude::*;

    use super::*;

    fn finding(ranks: &[u32], facts: Vec<Fact>) -> Finding {
        let claim = Claim::Worded { text: String::new() };
        Finding {
            subject: Subject {
                ranks: ranks.to_vec(),
                stage: Some("model.backward_cpu_wall".to_owned()),
                ..Subject::default()
            },
            facts,
            ..Finding::new(Origin::Stages, String::new(), claim)
        }
    }

    fn fact(method: Method, label: &str, ranks: &[u32], cause: Option<Cause>) -> Fact {
        let what = Observation::Worded {
            method,
            label: label.to_owned(),
            text: String::new(),
            values: BTreeMap::new(),
            cause,
        };
        Fact { ranks: ranks.to_vec(), ..Fact::from(what) }
    }

    #[test]
    fn counters_inside_collectives_beat_who_arrives_last() {
        let flow = fact(Method::Collective, "not_delivered", &[], None);
        let own_work = fact(Method::Frontier, "co_critical", &[2], None);
        let answers = vec![
            (Method::Collective, Position::Ranks(vec![1])),
            (Method::Frontier, Position::Ranks(vec![2])),
        ];
        let (about, trust) = (Question::Ranks, Trust::Counters);
        assert_eq!(
            disagreements(&finding(&[1], vec![own_work, flow])),
            [Disagreement { about, answers, trust }]
        );
    }

    #[test]
    fn code_that_takes_the_time_beats_a_slow_link_and_a_missing_core_beats_both() {
        let code = fact(Method::Pattern, "common", &[], Some(Cause::Code));
        let link = fact(Method::Host, "link_slower", &[], Some(Cause::Network));
        let cores = fact(Method::Host, "without_core", &[], Some(Cause::Cores));
        let first = |all: &[&Fact]| {
            let all = all.iter().map(|it| (*it).clone()).collect();
            disagreements(&finding(&[1], all))[0].answers[0].1.clone()
        };
        assert_eq!(first(&[&link, &code]), Position::Cause(Cause::Code));
        assert_eq!(first(&[&link, &code, &cores]), Position::Cause(Cause::Cores));
        // What is said of another rank's time is no word on this one's.
        let of_other = Fact { ranks: vec![2], ..code.clone() };
        let found = disagreements(&finding(&[1], vec![of_other, cores.clone()]));
        assert!(found.iter().all(|found| found.about == Question::Ranks));
        // Two things that hosts saw are two things, and no two methods.
        assert_eq!(disagreements(&finding(&[1], vec![link, cores])), []);
    }

    #[test]
    fn the_accounting_of_all_steps_beats_the_stack_of_a_function() {
        let own_work = fact(Method::Frontier, "co_critical", &[], None);
        let stack = Fact {
            stage: Some("data.next_wait".to_owned()),
            ..fact(Method::Pattern, "partial", &[], None)
        };
        let found = disagreements(&finding(&[1], vec![stack, own_work]));
        assert_eq!(found[0].about, Question::Stage);
        let backward = Position::Stage("model.backward_cpu_wall".to_owned());
        assert_eq!(found[0].answers[0].1, backward);
    }

    prop_compose! {
        fn any_fact()(
            (method, label) in prop::sample::select(vec![
                (Method::Frontier, "co_critical"),
                (Method::Collective, "arrival"),
                (Method::Collective, "not_delivered"),
                (Method::Schedule, "critical_path"),
                (Method::Pattern, "partial"),
                (Method::Stack, "stack"),
                (Method::Host, "cores"),
            ]),
            ranks in prop::collection::vec(0_u32..4, 0..2),
            stage in prop::option::of(prop::sample::select(vec!["a", "b"])),
            cause in prop::option::of(prop::sample::select(vec![
                Cause::Code, Cause::Cores, Cause::Gpu, Cause::Network,
            ])),
        ) -> Fact {
            let stage = stage.map(str::to_owned);
            Fact { stage, ..fact(method, label, &ranks, cause) }
        }
    }

    proptest! {
        /// Whoever speaks first, the same is said; methods that agree do not contradict.
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
