use model::Announcement;

use crate::{evidence, headline};

/// Words what is said of a job while it runs, a line each.
pub fn announcement(announcement: &Announcement) -> Vec<String> {
    match announcement {
        Announcement::Found(claim) => vec![headline(claim)],
        Announcement::InWindow {
            first_step,
            last_step,
            claim,
        } => {
            vec![format!(
                "steps {first_step}-{last_step}: {}",
                headline(claim)
            )]
        }
        Announcement::Hang { claim, stacks } => {
            let stacks = stacks
                .iter()
                .map(|stack| format!("  {}", evidence(stack).text));
            std::iter::once(headline(claim)).chain(stacks).collect()
        }
        Announcement::MovesAgain { after_s } => {
            vec![format!("the job moves again after {after_s:.1} s")]
        }
        Announcement::Profiled(fact) => vec![evidence(fact).text],
    }
}

#[cfg(test)]
mod tests {
    use model::{Claim, StepSpan};

    use super::*;

    #[test]
    fn what_a_window_shows_begins_with_its_steps() {
        let steps = StepSpan {
            first: 3,
            last: 9,
            open: true,
        };
        let stage = "model.backward".to_owned();
        let claim = Claim::UnknownRank {
            stage,
            stage_share: 0.5,
            steps,
        };
        let said = headline(&claim);
        let in_window = Announcement::InWindow {
            first_step: 1,
            last_step: 50,
            claim,
        };
        assert_eq!(announcement(&in_window), [format!("steps 1-50: {said}")]);
        let moves = Announcement::MovesAgain { after_s: 61.04 };
        assert_eq!(announcement(&moves), ["the job moves again after 61.0 s"]);
    }
}
