//! What methods say differently of one incident, and whom to trust first.

use std::collections::BTreeMap;

use model::{Cause, Claim, Contradiction, Evidence, Incident, Method, Question};

use crate::words::who;

/// How much a claim is to be trusted, the least first, and why. The table stands in
/// docs/incidents.md.
type Trust = (u8, &'static str);

/// Finds what the evidence of an incident disagrees about: ranks, stage, cause; who is to be
/// trusted first stands in front.
///
/// Evidence that names nothing itself stands for what the incident names. Stacks and hosts are
/// asked about ranks that others name, so they name none.
///
/// # Properties
/// The order of the evidence changes nothing. What only one method says of a question, or all
/// alike, is no contradiction.
pub fn contradictions(incident: &Incident) -> Vec<Contradiction> {
    let asked = [
        (Question::Ranks, ranks as fn(&Incident, &Evidence) -> Option<(Trust, String)>),
        (Question::Stage, stage),
        (Question::Cause, cause),
    ];
    let found = asked.into_iter().filter_map(|(about, claim)| {
        // Of all that say the same, the one to trust most speaks.
        let mut claims: BTreeMap<String, (Trust, Method)> = BTreeMap::new();
        for evidence in &incident.evidence {
            let Some((trust, says)) = claim(incident, evidence) else { continue };
            let told = claims.entry(says).or_insert((trust, evidence.method));
            *told = (*told).min((trust, evidence.method));
        }
        let mut claims: Vec<_> = claims
            .into_iter()
            .map(|(says, (trust, method))| (trust, method, says))
            .collect();
        claims.sort();
        let (trust, first, _) = claims.first()?.clone();
        if claims.iter().all(|(_, method, _)| *method == first) {
            return None;
        }
        let claims = claims.into_iter().map(|(_, method, says)| Claim { method, says });
        let claims: Vec<Claim> = claims.collect();
        let said = claims
            .iter()
            .map(|claim| format!("{} says {}", claim.method.name(), claim.says));
        let text = format!(
            "{}: trust {} first, because {}",
            said.collect::<Vec<_>>().join(", "),
            first.name(),
            trust.1
        );
        Some(Contradiction { about, claims, text })
    });
    found.collect()
}

fn ranks(incident: &Incident, evidence: &Evidence) -> Option<(Trust, String)> {
    let trust = match (evidence.method, evidence.label.as_str()) {
        (Method::Stack | Method::Host, _) => return None,
        (Method::Collective, "arrival" | "min_op" | "circle") => {
            (3, "it knows who came last, whatever for")
        }
        (Method::Collective, _) => {
            (0, "its counters tell who is waited for at each moment")
        }
        (Method::Schedule, _) => {
            (1, "it tells a rank's own work from its waits for other stages")
        }
        (Method::Frontier, _) => (2, "it compares all own work in all steps"),
        (Method::Pattern, _) => (4, "it knows who spends time, also in waits"),
    };
    let subject = &incident.subject.ranks;
    let named = if evidence.ranks.is_empty() { subject } else { &evidence.ranks };
    // The rank whose link it is, of a link's two ends.
    let is_part = named != subject && named.iter().all(|rank| subject.contains(rank));
    if evidence.method == Method::Pattern && is_part {
        return None;
    }
    (!named.is_empty()).then(|| (trust, who(named)))
}

fn stage(incident: &Incident, evidence: &Evidence) -> Option<(Trust, String)> {
    let trust = match evidence.method {
        Method::Frontier => (0, "it accounts all time of all steps"),
        Method::Pattern => (1, "its steps are few"),
        _ => return None,
    };
    let own = evidence.stage.as_ref();
    let of_incident = incident.subject.stage.as_ref();
    let named = own.or(of_incident.filter(|_| evidence.method == Method::Frontier))?;
    // Of another rank it is another question.
    evidence.ranks.is_empty().then(|| (trust, named.clone()))
}

fn cause(_: &Incident, evidence: &Evidence) -> Option<(Trust, String)> {
    let cause = evidence.cause.filter(|_| evidence.ranks.is_empty())?;
    let trust = match (cause, evidence.method) {
        (Cause::Cores, _) => {
            (0, "whatever a process without a core does takes longer for it")
        }
        (_, Method::Collective) => {
            (1, "its counters tell who is waited for at each moment")
        }
        (Cause::Code, _) => (2, "it saw what takes the time"),
        (Cause::Network, _) => (3, "it saw what is lost, and where"),
        (Cause::Gpu, _) => (4, "it saw what holds the device back"),
    };
    Some((trust, cause.name().to_owned()))
}

#[cfg(test)]
mod tests {
    use model::{IncidentKind, Pace, Ranks, Severity, Subject};
    use proptest::prelude::*;

    use super::*;

    fn incident(ranks: &[u32], evidence: Vec<Evidence>) -> Incident {
        Incident {
            id: String::new(),
            kind: IncidentKind::Slow,
            severity: Severity::Warning,
            open: true,
            subject: Subject {
                ranks: ranks.to_vec(),
                stage: Some("model.backward_cpu_wall".to_owned()),
                ..Subject::default()
            },
            pace: Pace::Steady,
            first_step: 0,
            last_step: 9,
            victims: Ranks::default(),
            cost_s: 1.0,
            cost_gpu_s: 0.0,
            cost_share: 0.5,
            gain_alone_s: 1.0,
            next_in_line: Vec::new(),
            contradictions: Vec::new(),
            stacks: Vec::new(),
            progress: Vec::new(),
            text: String::new(),
            evidence,
            advice: String::new(),
        }
    }

    fn evidence(
        method: Method,
        label: &str,
        ranks: &[u32],
        cause: Option<Cause>,
    ) -> Evidence {
        let evidence = Evidence::new(method, label, "", &[]);
        Evidence { ranks: ranks.to_vec(), cause, ..evidence }
    }

    fn texts(incident: &Incident) -> Vec<String> {
        contradictions(incident).into_iter().map(|found| found.text).collect()
    }

    #[test]
    fn counters_inside_collectives_beat_who_arrives_last() {
        let flow = evidence(Method::Collective, "not_delivered", &[], None);
        let own_work = evidence(Method::Frontier, "co_critical", &[2], None);
        assert_eq!(
            texts(&incident(&[1], vec![own_work, flow])),
            [
                "collective says rank 1, frontier says rank 2: trust collective first, because its \
              counters tell who is waited for at each moment"
            ]
        );
    }

    #[test]
    fn code_that_takes_the_time_beats_a_slow_link_and_a_missing_core_beats_both() {
        let code = evidence(Method::Pattern, "common", &[], Some(Cause::Code));
        let link = evidence(Method::Host, "link_slower", &[], Some(Cause::Network));
        let cores = evidence(Method::Host, "without_core", &[], Some(Cause::Cores));
        let first = |all: &[&Evidence]| {
            let all = all.iter().map(|it| (*it).clone()).collect();
            contradictions(&incident(&[1], all))[0].claims[0].says.clone()
        };
        assert_eq!(first(&[&link, &code]), "code");
        assert_eq!(first(&[&link, &code, &cores]), "cores");
        // What is said of another rank's time is no word on this one's.
        let of_other = Evidence { ranks: vec![2], ..code.clone() };
        let found = contradictions(&incident(&[1], vec![of_other, cores.clone()]));
        assert!(found.iter().all(|found| found.about == Question::Ranks));
        // Two things that hosts saw are two things, and no two methods.
        assert!(texts(&incident(&[1], vec![link, cores])).is_empty());
    }

    #[test]
    fn the_accounting_of_all_steps_beats_the_stack_of_a_function() {
        let own_work = evidence(Method::Frontier, "co_critical", &[], None);
        let stack = Evidence {
            stage: Some("data.next_wait".to_owned()),
            ..evidence(Method::Pattern, "partial", &[], None)
        };
        let found = contradictions(&incident(&[1], vec![stack, own_work]));
        assert_eq!(found[0].about, Question::Stage);
        assert_eq!(found[0].claims[0].says, "model.backward_cpu_wall");
    }

    prop_compose! {
        fn any_evidence()(
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
        ) -> Evidence {
            let stage = stage.map(str::to_owned);
            Evidence { stage, ..evidence(method, label, &ranks, cause) }
        }
    }

    proptest! {
        /// Whoever speaks first, the same is said; methods that agree do not contradict.
        #[test]
        fn the_order_of_the_evidence_changes_nothing(
            (told, shuffled) in prop::collection::vec(any_evidence(), 0..8)
                .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        ) {
            let found = contradictions(&incident(&[0], told));
            prop_assert_eq!(&found, &contradictions(&incident(&[0], shuffled)));
            for Contradiction { claims, .. } in found {
                let says: std::collections::BTreeSet<&str> =
                    claims.iter().map(|claim| claim.says.as_str()).collect();
                prop_assert_eq!(says.len(), claims.len());
                prop_assert!(claims.iter().any(|claim| claim.method != claims[0].method));
            }
        }
    }
}
