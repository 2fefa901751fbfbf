//! Headlines.

use model::{Claim, LateRanks, LateStage, Pace, Side, StepPlace, StepSpan};

use crate::words::{are, duration, percent, slow_side, who};
use crate::{
    arrival, blocks, connection, death, function, inside, pipeline, stall, straggler, what_if,
};

/// The sentence to read first.
pub fn headline(claim: &Claim) -> String {
    match claim {
        Claim::LateRanks(late) => late_ranks(late),
        Claim::Rotating {
            stage,
            place,
            lateness_s,
            cost_share,
            steps,
        } => format!(
            "lateness in {stage} rotates: a different rank is late from step to step{}, {} a \
             step, {} of exposed step time {}",
            place_words(place.as_ref()),
            duration(*lateness_s),
            percent(*cost_share),
            since(*steps),
        ),
        Claim::InputBound {
            stage,
            group,
            lateness_s,
            cost_share,
            steps,
        } => {
            let (verb, whose) = match group.as_deref() {
                // Alone in its role: that nobody else is to blame would say nothing.
                Some([_]) => ("waits", "it has no peer to compare with"),
                _ => ("wait", "no rank in particular is to blame"),
            };
            format!(
                "{} {verb} in {stage}: {} a step, {} of exposed step time {}; {whose}",
                everyone(group.as_deref()),
                duration(*lateness_s),
                percent(*cost_share),
                since(*steps),
            )
        }
        Claim::Slower {
            stage,
            group,
            side,
            lateness_s,
            steps,
        } => {
            let whose = match side {
                Some(Side::Device) => "; all devices are slower",
                Some(Side::Host) => "; the devices wait for their hosts",
                None => "",
            };
            format!(
                "steps are {} slower than the job's best window {}, on {}, mostly in \
                 {stage}{whose}",
                duration(*lateness_s),
                since(*steps),
                everyone(group.as_deref()),
            )
        }
        Claim::UnknownRank {
            stage,
            stage_share,
            steps,
        } => format!(
            "{stage} takes {} of exposed step time {}; it contains a synchronisation, and without \
             arrival times the late rank is unknown",
            percent(*stage_share),
            since(*steps),
        ),
        Claim::StepSlowdown(found) => what_if::headline(found),
        Claim::SlowIterations(found) => pipeline::slow_iterations(found),
        Claim::PipelineHalt(found) => pipeline::halt(found),
        Claim::HeldUpSteps(found) => blocks::headline(found),
        Claim::Function(fault) => function::headline(fault),
        Claim::LateToCollective(late) => arrival::late(late),
        Claim::SlowCommunicator(slow) => arrival::slow(slow),
        Claim::SlowConnection(claim) => connection::headline(claim),
        Claim::Straggler { found, first_step } => straggler::headline(found, *first_step),
        Claim::Killed(killed) => death::headline(killed),
        Claim::Stall(claim) => stall::headline(claim),
    }
}

/// The collective that a headline is about.
pub(crate) fn collective(claim: &Claim) -> Option<String> {
    match claim {
        Claim::LateToCollective(late) => arrival::late_place(late),
        Claim::SlowCommunicator(slow) => Some(arrival::slow_place(slow)),
        Claim::Straggler { found, .. } => Some(stall::collective(&found.wait)),
        Claim::Killed(killed) => killed.wait.as_ref().map(stall::collective),
        Claim::Stall(claim) => claim.waits.first().map(stall::collective),
        _ => None,
    }
}

/// The flows or channels that it is about, where those are not all of the ranks'.
pub(crate) fn flow(claim: &Claim) -> Option<String> {
    match claim {
        Claim::SlowConnection(claim) => Some(connection::flow(claim)),
        Claim::Straggler { found, .. } => straggler::channels(found),
        Claim::Stall(claim) => claim.failure.as_ref().and_then(inside::flows),
        _ => None,
    }
}

fn late_ranks(late: &LateRanks) -> String {
    let LateRanks { ranks, stage, .. } = late;
    let place = place_words(late.place.as_ref());
    let lateness = duration(late.lateness_s);
    let cost = format!(
        "{} of exposed step time {}",
        percent(late.cost_share),
        since(late.steps)
    );
    let are_late = format!("{} late in {stage}", are(ranks, &who(ranks)));
    let (often, each) = match late.pace {
        Pace::Steady | Pace::Once { .. } => (String::new(), "a step"),
        Pace::Every { steps } => (format!(" every {steps} steps"), "each time"),
        Pace::Sporadic | Pace::Rotating => (" now and then".to_owned(), "each time"),
    };
    let mut text = match (late.pace, late.side) {
        (Pace::Once { step }, _) => format!(
            "{} stalled once in {stage}{place}: {lateness} at step {step}",
            who(ranks)
        ),
        // A host that is late now and then may hold its device up for less than that.
        (Pace::Steady, Some(side)) | (_, Some(side @ Side::Device)) => {
            format!("{} {each}, {cost}", on_device(late, side, &often))
        }
        _ => format!("{are_late}{often}{place}: {lateness} {each}, {cost}"),
    };
    if !late.other_stages.is_empty() {
        let also = late
            .other_stages
            .iter()
            .map(|LateStage { stage, lateness_s }| {
                format!("{stage} ({} of the lateness)", duration(*lateness_s))
            });
        text += &format!("; also in {}", also.collect::<Vec<_>>().join(" and "));
    }
    // It costs nothing as long as another rank is later in the same step.
    if late.hidden {
        text += "; hidden behind a later rank for now";
    }
    // Three numbers: both fixes may save more than each alone adds up to (docs/math/replay.md).
    for hidden in &late.next_in_line {
        text += &format!(
            "; next in line: {} in {} ({} a step); fixing the first alone saves {}, the second \
             alone {}, both {}",
            who(&hidden.ranks),
            hidden.stage,
            duration(hidden.lateness_s),
            duration(late.gain_alone_s),
            duration(hidden.gain_alone_s),
            duration(hidden.gain_both_s),
        );
    }
    text
}

/// What of late ranks is slow, how often and by how much: their devices, or their hosts that these
/// wait for.
fn on_device(late: &LateRanks, side: Side, often: &str) -> String {
    let (stage, place) = (&late.stage, place_words(late.place.as_ref()));
    // No "instead of" for a host: its device waits, and would read as the slow one.
    let lateness = match side {
        Side::Device => {
            let own = duration(late.usual_s + late.lateness_s);
            format!("{own} instead of {}", duration(late.usual_s))
        }
        Side::Host => duration(late.lateness_s),
    };
    format!(
        "{} in {stage}{often}{place}: {lateness}",
        slow_side(&late.ranks, side)
    )
}

pub(crate) fn since(steps: StepSpan) -> String {
    if steps.open {
        format!("since step {}", steps.first)
    } else {
        format!("in steps {}-{}", steps.first, steps.last)
    }
}

fn everyone(group: Option<&[u32]>) -> String {
    group.map_or("all ranks".to_owned(), |group| match group {
        [_] => who(group),
        _ => format!("all of {}", who(group)),
    })
}

fn place_words(place: Option<&StepPlace>) -> String {
    match place {
        None => String::new(),
        Some(StepPlace::BeforeIssue(op)) => format!(", before it issues {op}"),
        Some(StepPlace::BetweenForwardAndBackward) => ", between forward and backward".to_owned(),
        Some(StepPlace::BetweenBackwardAndOptimizer) => {
            ", between backward and optimizer".to_owned()
        }
        Some(StepPlace::AfterOptimizer) => ", between optimizer and the next batch".to_owned(),
        Some(StepPlace::BeforeBackward) => ", anywhere before backward".to_owned(),
        Some(StepPlace::BetweenStages) => ", between two stages".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow_device() -> LateRanks {
        LateRanks {
            ranks: vec![2],
            stage: "model.backward_cpu_wall".to_owned(),
            other_stages: Vec::new(),
            place: None,
            pace: Pace::Sporadic,
            side: Some(Side::Device),
            usual_s: 0.027,
            lateness_s: 0.014,
            cost_share: 0.33,
            steps: StepSpan {
                first: 20,
                last: 90,
                open: true,
            },
            hidden: false,
            gain_alone_s: 1.0,
            next_in_line: Vec::new(),
        }
    }

    #[test]
    fn of_each_further_stage_its_part_is_said() {
        let late = LateRanks {
            side: None,
            pace: Pace::Steady,
            other_stages: vec![LateStage {
                stage: "callbacks.cpu_wall".to_owned(),
                lateness_s: 0.004,
            }],
            ..slow_device()
        };
        assert_eq!(
            headline(&Claim::LateRanks(late)),
            "rank 2 is late in model.backward_cpu_wall: 14.0 ms a step, 33 % of exposed step time since \
             step 20; also in callbacks.cpu_wall (4.0 ms of the lateness)"
        );
    }

    #[test]
    fn a_device_that_is_slow_now_and_then_is_called_a_device() {
        let of_pace = |pace| {
            headline(&Claim::LateRanks(LateRanks {
                pace,
                ..slow_device()
            }))
        };
        let cost = "33 % of exposed step time since step 20";
        let of_device = "rank 2's device is slow in model.backward_cpu_wall";
        assert_eq!(
            of_pace(Pace::Sporadic),
            format!("{of_device} now and then: 41.0 ms instead of 27.0 ms each time, {cost}")
        );
        assert_eq!(
            of_pace(Pace::Every { steps: 25 }),
            format!("{of_device} every 25 steps: 41.0 ms instead of 27.0 ms each time, {cost}")
        );
    }

    /// The only rank of a pipeline's stage waits for data.
    #[test]
    fn a_rank_without_peers_waits_alone() {
        let of_group = |group| {
            headline(&Claim::InputBound {
                stage: "data.next_wait".to_owned(),
                group,
                lateness_s: 0.1,
                cost_share: 0.1,
                steps: StepSpan {
                    first: 0,
                    last: 9,
                    open: true,
                },
            })
        };
        let alone = of_group(Some(vec![2]));
        assert!(
            alone.starts_with("rank 2 waits in data.next_wait: 100.0 ms a step"),
            "{alone}"
        );
        assert!(
            alone.ends_with("; it has no peer to compare with"),
            "{alone}"
        );
        let all = of_group(None);
        assert!(all.starts_with("all ranks wait in data.next_wait"), "{all}");
    }
}
