//! What profiles say, as text.

use std::collections::BTreeMap;

use model::ProfileSummary;
use narrate::who;

use crate::render::{percent, seconds};

/// Ranks and functions of a profile that a screen has room for.
const SCREEN_RANKS: usize = 16;
const SCREEN_FUNCTIONS: usize = 8;
/// Characters of a function's name on the screen.
const SCREEN_NAME: usize = 60;

/// Where each rank's time goes, and the functions that cost most.
pub(crate) fn profile_text(profile: &ProfileSummary) -> String {
    let mut text = format!(
        "{:>5}  {:>8}  {:>7}  {:>6}  {:>13}  {:>5}  {:>5}  {:>11}  {:>9}\n",
        "rank",
        "profiled",
        "compute",
        "memory",
        "exposed comm.",
        "host",
        "idle",
        "last to ops",
        "waited"
    );
    let arrivals: BTreeMap<u32, _> = profile
        .collectives
        .iter()
        .flat_map(|times| &times.ranks)
        .map(|times| (times.rank, times))
        .collect();
    for rank in profile.ranks.iter().take(SCREEN_RANKS) {
        let times = arrivals.get(&rank.rank);
        text += &format!(
            "{:>5}  {:>8}  {:>7}  {:>6}  {:>13}  {:>5}  {:>5}  {:>11}  {:>9}\n",
            rank.rank,
            seconds(rank.span_s),
            percent(rank.compute_share),
            percent(rank.memory_share),
            percent(rank.exposed_communication_share),
            percent(rank.host_share),
            percent(rank.idle_share),
            times.map_or("-".to_owned(), |t| format!(
                "{} of {}",
                t.last, t.collectives
            )),
            times.map_or("-".to_owned(), |t| seconds(t.waited_s)),
        );
    }
    if profile.ranks.len() > SCREEN_RANKS {
        text += &format!("      … and {} more\n", profile.ranks.len() - SCREEN_RANKS);
    }
    text += &format!(
        "\n{:>7}  {:11}  {:SCREEN_NAME$}  unlike\n",
        "share", "class", "function"
    );
    for function in profile.functions.iter().take(SCREEN_FUNCTIONS) {
        let mut ranks: Vec<u32> = function.abnormal.iter().map(|a| a.rank).collect();
        ranks.sort_unstable();
        // Where some ranks are unlike the others it is theirs that costs.
        let largest = function
            .abnormal
            .iter()
            .map(|abnormal| abnormal.beta)
            .fold(function.beta, f64::max);
        let (share, unlike) = match function.problem.as_deref() {
            // `beta` is the median. What most ranks lose is not shown by one rank far above them.
            Some("common") => (function.beta, "expected, on most ranks".to_owned()),
            Some(_) => {
                // The median is one of those that ran it: these may be all that there are.
                let others_ran_it = function.ranks != ranks.len();
                let usual = if others_ran_it { function.beta } else { 0.0 };
                let usual = usual * 100.0;
                (largest, format!("{}, usual {usual:.1} %", who(&ranks)))
            }
            None => (function.beta, "-".to_owned()),
        };
        let mut name: String = function.name.chars().take(SCREEN_NAME).collect();
        if name.len() < function.name.len() {
            name.pop();
            name.push('…');
        }
        text += &format!(
            "{:>5.1} %  {:11}  {name:SCREEN_NAME$}  {unlike}\n",
            share * 100.0,
            function.class,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use model::{AbnormalRank, FunctionSummary};

    use super::*;

    #[test]
    fn a_function_that_is_unlike_is_reported_with_the_share_that_makes_it_so() {
        let of_rank = |rank, beta| AbnormalRank {
            rank,
            beta,
            ..AbnormalRank::default()
        };
        let function = |problem: &str, abnormal| FunctionSummary {
            name: "recv_into".to_owned(),
            class: "python".to_owned(),
            beta: 0.003,
            problem: Some(problem.to_owned()),
            abnormal,
            ..FunctionSummary::default()
        };
        let last_line = |function| {
            let functions = vec![function];
            let text = profile_text(&ProfileSummary {
                functions,
                ..Default::default()
            });
            let line = text.lines().last().unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let unlike = vec![of_rank(5, 0.2), of_rank(2, 0.41)];
        assert_eq!(
            last_line(function("partial", unlike)),
            "41.0 % python recv_into ranks 2,5, usual 0.3 %"
        );
        let alone = FunctionSummary {
            ranks: 1,
            ..function("partial", vec![of_rank(5, 0.4)])
        };
        assert_eq!(
            last_line(alone),
            "40.0 % python recv_into rank 5, usual 0.0 %"
        );
        assert_eq!(
            last_line(function("common", vec![of_rank(5, 0.4)])),
            "0.3 % python recv_into expected, on most ranks"
        );
    }
}
