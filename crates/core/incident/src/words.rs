//! The sentences of an incident. docs/incidents.md shows them all.

use model::{Pace, ReadBackSummary, Side, StageId, StageNames, fold_ranks};

use crate::Fault;
use crate::fault::{FaultKind, Hidden};
use crate::tracker::all_stages;

/// What a sentence is made of.
pub(crate) struct Telling<'a> {
    pub(crate) fault: &'a Fault,
    pub(crate) names: &'a StageNames,
    pub(crate) pace: Pace,
    pub(crate) first_step: u64,
    pub(crate) last_step: u64,
    pub(crate) open: bool,
    pub(crate) lateness_s: f64,
    pub(crate) cost_s: f64,
    pub(crate) cost_share: f64,
    pub(crate) share: f64,
    pub(crate) hides: &'a [Hidden],
    pub(crate) gain_alone_s: f64,
    /// The ranks that are compared, if they are not all the job has.
    pub(crate) group: Option<&'a [u32]>,
}

impl Telling<'_> {
    fn stage(&self) -> String {
        stage_words(self.names, self.fault.stage)
    }

    fn since(&self) -> String {
        if self.open {
            format!("since step {}", self.first_step)
        } else {
            format!("in steps {}-{}", self.first_step, self.last_step)
        }
    }

    fn everyone(&self) -> String {
        self.group.map_or("all ranks".to_owned(), |group| match group {
            [_] => who(group),
            _ => format!("all of {}", who(group)),
        })
    }

    fn place(&self) -> String {
        self.fault.place.as_ref().map_or(String::new(), |place| format!(", {place}"))
    }
}

/// The sentence to read first.
pub(crate) fn sentence(telling: &Telling<'_>) -> String {
    let stage = telling.stage();
    let since = telling.since();
    let lateness = duration(telling.lateness_s);
    let percent = percent(telling.cost_share);
    let place = telling.place();
    match telling.fault.kind {
        FaultKind::LateRanks => {
            let who = who(&telling.fault.ranks);
            let mut text = match telling.pace {
                Pace::Steady if telling.fault.side.is_some() => {
                    let lateness = on_device(telling);
                    format!("{lateness} a step, {percent} of exposed step time {since}")
                }
                Pace::Once { step } => {
                    format!(
                        "{who} stalled once in {stage}{place}: {lateness} at step {step}"
                    )
                }
                Pace::Every { steps } => format!(
                    "{who} late in {stage} every {steps} steps{place}: {lateness} each time, \
                     {percent} of exposed step time {since}",
                    who = are(&telling.fault.ranks, &who),
                ),
                Pace::Steady => format!(
                    "{who} late in {stage}{place}: {lateness} a step, {percent} of exposed \
                     step time {since}",
                    who = are(&telling.fault.ranks, &who),
                ),
                Pace::Sporadic | Pace::Rotating => format!(
                    "{who} late in {stage} now and then{place}: {lateness} each time, \
                     {percent} of exposed step time {since}",
                    who = are(&telling.fault.ranks, &who),
                ),
            };
            let also: Vec<String> = all_stages(telling.fault)
                .skip(1)
                .map(|stage| stage_words(telling.names, stage))
                .collect();
            if !also.is_empty() {
                text += &format!("; also in {}", also.join(" and "));
            }
            if telling.fault.hidden {
                text += "; hidden behind a later rank for now";
            }
            for hidden in telling.hides {
                text += &format!(
                    "; next in line: {} in {} ({} a step); mending the first alone saves {}, \
                     the second alone {}, both {}",
                    self::who(&hidden.ranks),
                    stage_words(telling.names, hidden.stage),
                    duration(hidden.lateness_s),
                    duration(telling.gain_alone_s),
                    duration(hidden.gain_alone_s),
                    duration(hidden.gain_both_s),
                );
            }
            text
        }
        FaultKind::Rotating => format!(
            "lateness in {stage} rotates: a different rank is late from step to step{place}, \
             {lateness} a step, {percent} of exposed step time {since}"
        ),
        FaultKind::InputBound => {
            let (verb, whose) = match telling.group {
                Some([_]) => ("waits", "it has no other to be compared with"),
                _ => ("wait", "no rank in particular is to blame"),
            };
            format!(
                "{} {verb} in {stage}: {lateness} a step, {percent} of exposed step time \
                 {since}; {whose}",
                telling.everyone()
            )
        }
        FaultKind::Degraded => {
            let whose = match telling.fault.side {
                Some(Side::Device) => "; all devices are slower",
                Some(Side::Host) => "; the devices wait for their hosts",
                None => "",
            };
            format!(
                "steps are {lateness} slower than the job's best window {since}, on {}, \
                 mostly in {stage}{whose}",
                telling.everyone()
            )
        }
        FaultKind::UnknownRank => format!(
            "{stage} takes {} of exposed step time {since}; it holds a synchronisation and \
             nobody recorded when each rank arrived: rank unknown, arrival times needed",
            self::percent(telling.share)
        ),
    }
}

/// What of late ranks is slow, and by how much: their devices, or their hosts that these wait for.
fn on_device(telling: &Telling<'_>) -> String {
    let Telling { fault, lateness_s, .. } = telling;
    let (stage, place) = (telling.stage(), telling.place());
    let lateness = duration(*lateness_s);
    let (devices, are, their) = match &fault.ranks[..] {
        [rank] => (format!("rank {rank}'s device"), "is", "its host"),
        ranks => (format!("the devices of {}", who(ranks)), "are", "their hosts"),
    };
    if fault.side == Some(Side::Device) {
        let usual = duration(fault.level_s);
        let own = duration(fault.level_s + lateness_s);
        return format!(
            "{devices} {are} slow in {stage}{place}: {own} instead of {usual}"
        );
    }
    let waits = if are == "is" { "waits" } else { "wait" };
    format!("{devices} {waits} for {their} in {stage}{place}: {lateness}")
}

/// What supports the sentence.
pub(crate) fn evidence(telling: &Telling<'_>, struck_steps: u64) -> String {
    let stages: Vec<&str> =
        all_stages(telling.fault).map(|stage| telling.names.name(stage)).collect();
    let stage = stages.join(" and ");
    match telling.fault.kind {
        FaultKind::LateRanks | FaultKind::Rotating => {
            let gain = match duration(telling.cost_s) {
                cost if cost == NOTHING => "no".to_owned(),
                cost => cost,
            };
            let steps = if struck_steps == 1 { "step" } else { "steps" };
            format!(
                "own work in {stage} exceeded the other ranks' by {} in {struck_steps} \
                 {steps}; with it at their level the job would have been {gain} faster",
                duration(telling.lateness_s),
            )
        }
        FaultKind::InputBound => {
            format!("{stage} is charged {} of exposed time", percent(telling.share))
        }
        FaultKind::Degraded => {
            format!("median step against the best earlier window, {struck_steps} steps")
        }
        FaultKind::UnknownRank => {
            format!("{stage} leads, and all ranks leave it together")
        }
    }
}

/// What to look at next. The table stands in docs/incidents.md.
pub(crate) fn advice(telling: &Telling<'_>) -> String {
    let fault = telling.fault;
    let whose = if fault.ranks.is_empty() {
        "the ranks'".to_owned()
    } else {
        format!("{}'s", who(&fault.ranks))
    };
    let mut text = match fault.kind {
        FaultKind::Rotating => {
            "look at what the ranks share rather than at one of them: storage, network, CPU \
             cores, garbage collection"
                .to_owned()
        }
        FaultKind::InputBound => {
            "look at the input pipeline: more loader workers, prefetching, faster storage, \
             cheaper decoding"
                .to_owned()
        }
        FaultKind::Degraded => {
            "look at what changed then on all hosts: clocks, other jobs, storage, input sizes"
                .to_owned()
        }
        FaultKind::UnknownRank => {
            "run it under `laggard run` with PyTorch 2.15 or later, which records when each \
             rank issues each collective"
                .to_owned()
        }
        FaultKind::LateRanks if fault.side == Some(Side::Device) => format!(
            "compare the clocks, power, temperature and links of {whose} devices with those of \
             their peers, and the sizes of their inputs"
        ),
        FaultKind::LateRanks => match fault.stage {
            StageId::DATA | StageId::DATA_GAP => format!(
                "look at {whose} data loader: storage, decoding, worker processes, CPU cores"
            ),
            StageId::FORWARD => format!(
                "compare {whose} device clocks, CPU cores and input sizes with its peers' and \
                 profile its forward pass"
            ),
            StageId::BACKWARD => format!(
                "compare {whose} device clocks and CPU cores with its peers' and look for \
                 gradient hooks only it runs"
            ),
            StageId::CALLBACKS => format!(
                "look at what only {} does between steps: logging, checkpoints, evaluation",
                who(&fault.ranks)
            ),
            StageId::OPTIMIZER => {
                format!("look at {whose} optimizer step: state size, offloading, CPU cores")
            }
            StageId::OTHER => "no stage covers this code: wrap it in \
                               `laggard.stage(\"name\")` to see it by name"
                .to_owned(),
            _ => format!(
                "look at {whose} code inside the stage {}",
                telling.names.name(fault.stage)
            ),
        },
    };
    if let Pace::Every { steps } = telling.pace {
        text += &format!("; look for what happens every {steps} steps");
    }
    text
}

/// What a line that reads back from the device does.
pub fn read_back(of_line: &ReadBackSummary) -> String {
    let line = of_line.line.as_deref().unwrap_or("other lines");
    let often = match of_line.per_step.round() as u64 {
        0 => format!("a read-back in {} of the steps", percent(of_line.per_step)),
        1 => "1 read-back a step".to_owned(),
        many => format!("{many} read-backs a step"),
    };
    let idle = percent(of_line.idle_share_max);
    format!("{often} at {line} may leave the device idle for up to {idle} of the step")
}

fn stage_words(names: &StageNames, stage: StageId) -> String {
    names.name(stage).to_owned()
}

pub(crate) fn who(ranks: &[u32]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", fold_ranks(ranks))
}

pub(crate) fn are(ranks: &[u32], who: &str) -> String {
    format!("{who} {}", if ranks.len() == 1 { "is" } else { "are" })
}

/// What less than a microsecond is called.
const NOTHING: &str = "nothing";

/// Seconds for reading: "50.1 ms", "2.40 s".
pub(crate) fn duration(seconds: f64) -> String {
    if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 1e-3 {
        format!("{:.1} ms", seconds * 1e3)
    } else if seconds >= 1e-6 {
        format!("{:.0} µs", seconds * 1e6)
    } else {
        NOTHING.to_owned()
    }
}

/// A share for reading: small ones with a decimal.
pub(crate) fn share(share: f64) -> String {
    if share < 0.0995 { format!("{:.1} %", share * 100.0) } else { percent(share) }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
