//! Facts as evidence.

use model::{CoresBusy, Death, During, Evidence, Fact, Observation, StageAccount};

use crate::words::{NOTHING, duration, its, of, percent, share, who};
use crate::{
    arrival, connection, death, device, function, headline, inside, network, pipeline, stall,
    straggler, what_if,
};

/// Label, text and numbers of what was observed.
pub(crate) struct Worded {
    pub(crate) label: String,
    pub(crate) text: String,
    pub(crate) values: Vec<(String, f64)>,
}

impl Worded {
    pub(crate) fn new(label: &str, text: String, values: &[(&str, f64)]) -> Self {
        let values = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        Self {
            label: label.to_owned(),
            text,
            values: values.collect(),
        }
    }
}

/// Words a fact.
pub fn evidence(fact: &Fact) -> Evidence {
    let Fact { ranks, stage, what } = fact;
    let Worded {
        label,
        mut text,
        values,
    } = worded(what);
    // Of other ranks than those of its incident the accounting has to say which.
    if !ranks.is_empty() {
        text = match what {
            Observation::OwnWork(_) => format!("{}: {text}", who(ranks)),
            Observation::Killed(Death {
                code: Some(code), ..
            }) => format!("{} ended {}", who(ranks), death::how(*code)),
            _ => text,
        };
    }
    Evidence {
        method: what.method(),
        label,
        text,
        values: values.into_iter().collect(),
        ranks: ranks.clone(),
        stage: stage.clone(),
        cause: what.cause(),
    }
}

fn worded(what: &Observation) -> Worded {
    match what {
        Observation::OwnWork(account) => stages(account, own_work(account)),
        Observation::StageCharged(account) => {
            let charged = percent(account.stage_share);
            stages(
                account,
                format!("{} is charged {charged} of exposed time", all(account)),
            )
        }
        Observation::StepsSlower(account) => {
            let steps = account.struck_steps;
            let text = format!("median step against the best earlier window, {steps} steps");
            stages(account, text)
        }
        Observation::LeftTogether(account) => stages(
            account,
            format!("{} leads, and all ranks leave it together", all(account)),
        ),
        Observation::Explains {
            claim,
            by: Some(by),
            ..
        } => {
            // Label and values stay those of what was observed: only the sentence names its cause.
            let by = worded(by);
            Worded {
                text: format!("{}: {}", headline(claim), by.text),
                ..by
            }
        }
        Observation::Explains {
            claim,
            by: None,
            cost_s,
        } => Worded::new("slow_blocks", headline(claim), &[("cost_s", *cost_s)]),
        Observation::NoCore {
            ranks,
            share: own,
            peers_share,
            during,
            cores,
        } => {
            let span = match during {
                During::Incident => "the time",
                During::ProfileWindow => "the profile window",
            };
            let text = format!(
                "the {} of {} waited for a core for {} of {span}, {} peers' for {}",
                of(ranks, "loop", "loops"),
                who(ranks),
                share(*own),
                its(ranks),
                share(*peers_share),
            );
            let values = [
                ("without_core_share", *own),
                ("peers_without_core_share", *peers_share),
            ];
            with_cores(Worded::new("without_core", text, &values), cores.as_ref())
        }
        Observation::CpuQuota {
            ranks,
            share: own,
            peers_share,
            cores,
        } => with_cores(cpu_quota(ranks, *own, *peers_share), cores.as_ref()),
        Observation::Cores(busy) => cores(busy),
        Observation::TooFewCores {
            share: now,
            before_share,
        } => Worded::new(
            "too_few_cores",
            format!(
                "the loops of all ranks waited for a core for {} of the time, before that for {}",
                share(*now),
                share(*before_share),
            ),
            &[
                ("without_core_share", *now),
                ("before_without_core_share", *before_share),
            ],
        ),
        Observation::Device {
            users,
            device,
            unlike,
        } => device::unlike(users, device, unlike),
        Observation::GpusInStandstill {
            unlike,
            others,
            busy,
            watts,
        } => device::in_standstill(unlike, others, *busy, *watts),
        Observation::Network { rank, fault, peer } => network::fault(*rank, fault, *peer),
        Observation::Pipeline(found) => pipeline::fact(found),
        Observation::StepSlowdown(found) => what_if::fact(found),
        Observation::Function(fault) => function::fact(fault),
        Observation::Arrival { ranks, place } => arrival::late_fact(ranks, place),
        Observation::Bandwidth(slow) => arrival::slow_fact(slow),
        Observation::Connection(slow) => connection::fact(slow),
        Observation::Path { is_broken } => connection::path(*is_broken),
        Observation::IdlePorts { ports } => connection::idle_ports(*ports),
        Observation::Straggler(found) => straggler::fact(found),
        Observation::Wait { wait, is_unseen } => stall::wait(wait, *is_unseen),
        Observation::DeviceArrival(arrival) => stall::device_arrival(arrival),
        Observation::Failure(failure) => inside::fact(failure),
        Observation::Killed(death) => death::fact(*death),
        Observation::Stack {
            ranks,
            frames,
            unread,
        } => stall::stack(ranks, frames, unread.as_ref()),
    }
}

fn stages(account: &StageAccount, text: String) -> Worded {
    let values = [
        ("struck_steps", account.struck_steps as f64),
        ("lateness_s", account.lateness_s),
        ("stage_share", account.stage_share),
        ("stage_gain", account.stage_gain),
        ("median_lag_s", account.median_lag_s),
    ];
    Worded::new(account.label.name(), text, &values)
}

fn all(account: &StageAccount) -> String {
    let stages = account.stages.iter().map(|it| &*it.stage);
    stages.collect::<Vec<_>>().join(" and ")
}

fn own_work(account: &StageAccount) -> String {
    let gain = match duration(account.gain_alone_s) {
        // A fault behind a later rank may cost nothing: "no faster".
        cost if cost == NOTHING => "no".to_owned(),
        cost => cost,
    };
    let (each, steps) = if account.struck_steps == 1 {
        ("", "step")
    } else {
        (" a step", "steps")
    };
    format!(
        "own work in {} exceeded the other ranks' by {}{each} in {} {steps}; without this excess \
         the job would have been {gain} faster",
        all(account),
        duration(account.lateness_s),
        account.struck_steps,
    )
}

fn cpu_quota(ranks: &[u32], own: f64, peers_share: Option<f64>) -> Worded {
    let mut values = vec![("throttled_share", own)];
    let text = match peers_share {
        None => format!(
            "the control groups of all ranks had used up their CPU quota in {} of the periods",
            share(own)
        ),
        Some(peers) => {
            values.push(("peers_throttled_share", peers));
            let its = its(ranks);
            format!(
                "the control {} of {} had used up {its} CPU quota in {} of the periods, {its} peers' in {}",
                of(ranks, "group", "groups"),
                who(ranks),
                share(own),
                share(peers),
            )
        }
    };
    Worded::new("cpu_quota", text, &values)
}

fn cores(busy: &CoresBusy) -> Worded {
    let CoresBusy {
        ranks,
        cores,
        deviation,
        peers,
    } = busy;
    let text = format!(
        "the {} of {} kept {cores:.2} cores busy (deviation {deviation:.2}), {} peers' {peers:.2}",
        of(ranks, "process", "processes"),
        who(ranks),
        its(ranks),
    );
    let values = [
        ("cores", *cores),
        ("cores_deviation", *deviation),
        ("peers_cores", *peers),
    ];
    Worded::new("cores", text, &values)
}

fn with_cores(mut worded: Worded, busy: Option<&CoresBusy>) -> Worded {
    if let Some(busy) = busy {
        // How busy it was distinguishes a process that computed from one that waited.
        let cores = cores(busy);
        worded.text = format!("{}; {}", worded.text, cores.text);
        worded.values.extend(cores.values);
    }
    worded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(cores: f64, peers: f64) -> CoresBusy {
        CoresBusy {
            ranks: vec![2],
            cores,
            deviation: 0.05,
            peers,
        }
    }

    fn text(what: Observation) -> String {
        evidence(&Fact::from(what)).text
    }

    #[test]
    fn what_processes_get_of_cores_is_worded() {
        let found = Observation::NoCore {
            ranks: vec![2],
            share: 0.69,
            peers_share: 0.02,
            during: During::Incident,
            cores: Some(busy(0.31, 0.98)),
        };
        let Evidence {
            label,
            text: said,
            values,
            ..
        } = evidence(&found.into());
        assert_eq!(
            said,
            "the loop of rank 2 waited for a core for 69 % of the time, its peers' for 2.0 %; the \
             process of rank 2 kept 0.31 cores busy (deviation 0.05), its peers' 0.98"
        );
        assert_eq!((label.as_str(), values.len()), ("without_core", 5));
        let quota = Observation::CpuQuota {
            ranks: vec![2],
            share: 0.93,
            peers_share: Some(0.02),
            cores: Some(busy(0.5, 0.5)),
        };
        assert_eq!(
            text(quota),
            "the control group of rank 2 had used up its CPU quota in 93 % of the periods, its \
             peers' in 2.0 %; the process of rank 2 kept 0.50 cores busy (deviation 0.05), its \
             peers' 0.50"
        );
        let (ranks, share) = (Vec::new(), 0.61);
        let of_all = Observation::CpuQuota {
            ranks,
            share,
            peers_share: None,
            cores: None,
        };
        assert_eq!(
            text(of_all),
            "the control groups of all ranks had used up their CPU quota in 61 % of the periods"
        );
        assert_eq!(
            text(Observation::TooFewCores {
                share: 0.43,
                before_share: 0.05
            }),
            "the loops of all ranks waited for a core for 43 % of the time, before that for 5.0 %"
        );
    }

    #[test]
    fn own_work_of_other_ranks_than_the_incidents_says_whose_it_is() {
        let account = StageAccount {
            label: model::Label::CoCritical,
            stages: vec![model::LateStage {
                stage: "data.next_wait".to_owned(),
                lateness_s: 0.05,
            }],
            struck_steps: 1,
            lateness_s: 0.05,
            gain_alone_s: 0.0,
            stage_share: 0.5,
            stage_gain: 0.5,
            median_lag_s: 0.05,
        };
        let own = Fact::from(Observation::OwnWork(account));
        let said = "own work in data.next_wait exceeded the other ranks' by 50.0 ms in 1 step; \
                    without this excess the job would have been no faster";
        assert_eq!(evidence(&own).text, said);
        let other = Fact {
            ranks: vec![2],
            ..own
        };
        assert_eq!(evidence(&other).text, format!("rank 2: {said}"));
    }
}
