use model::{Answer, Contradiction, Disagreement, Position, Trust};

use crate::words::who;

/// Words what methods say differently.
pub fn contradiction(found: &Disagreement) -> Contradiction {
    let claims = found.answers.iter().map(|(method, position)| Answer {
        method: *method,
        says: match position {
            Position::Ranks(ranks) => who(ranks),
            Position::Stage(name) => name.clone(),
            Position::Cause(cause) => cause.name().to_owned(),
        },
    });
    let claims: Vec<Answer> = claims.collect();
    let said = claims
        .iter()
        .map(|claim| format!("{} says {}", claim.method.name(), claim.says));
    let said = said.collect::<Vec<_>>().join(", ");
    let first = claims.first().map_or("", |claim| claim.method.name());
    let text = format!("{said}: trust {first} first, because {}", why(found.trust));
    Contradiction {
        about: found.about,
        claims,
        text,
    }
}

fn why(trust: Trust) -> &'static str {
    match trust {
        Trust::LackOfCores => "a process without a core is slower in everything it does",
        Trust::Counters => "its counters show at each moment which rank the others wait for",
        Trust::OwnBlocks => "it distinguishes a rank's own work from its waits for other stages",
        Trust::OwnWork => "it compares all own work in all steps",
        Trust::LastToArrive => "it observed which rank arrived last, although not why",
        Trust::TimeSpent => "it knows which rank spends time, waits included",
        Trust::AllSteps => "it accounts all time of all steps",
        // Never the first: the accounting, the only other that names stages, is trusted more.
        Trust::FewSteps => "its steps are few",
        Trust::TakesTime => "it observed what takes the time",
        Trust::LosesBytes => "it observed what is lost, and where",
        Trust::HoldsDevice => "it observed what holds the device back",
    }
}

#[cfg(test)]
mod tests {
    use model::{Method, Question};

    use super::*;

    #[test]
    fn a_disagreement_says_whom_to_trust_first_and_why() {
        let found = Disagreement {
            about: Question::Ranks,
            answers: vec![
                (Method::Collective, Position::Ranks(vec![1])),
                (Method::Frontier, Position::Ranks(vec![2])),
            ],
            trust: Trust::Counters,
        };
        assert_eq!(
            contradiction(&found).text,
            "collective says rank 1, frontier says rank 2: trust collective first, because its \
             counters show at each moment which rank the others wait for"
        );
    }
}
