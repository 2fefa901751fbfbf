//! What supports claims.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Cause, Claim, Death, Device, DeviceArrival, Failure, FunctionFault, Label, LateIn, Method,
    NetworkFault, PipelineFact, SlowCommunicator, SlowConnection, StepSlowdown, Straggler,
    UnreadStack, Wait,
};

/// Something that a method observed. [`Evidence`](crate::Evidence) is the same in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// The ranks it names itself, where those are not the incident's; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// The stage it names itself, where that is not the incident's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// What was observed.
    pub what: Observation,
}

impl From<Observation> for Fact {
    /// A fact about the ranks and the stage that its incident names.
    fn from(what: Observation) -> Self {
        Self {
            ranks: Vec::new(),
            stage: None,
            what,
        }
    }
}

/// What was observed, in numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "fact")]
pub enum Observation {
    /// Ranks did more work of their own in a stage than the others.
    OwnWork(StageAccount),
    /// A stage is charged much of the exposed time of all ranks.
    StageCharged(StageAccount),
    /// Steps take longer than in the job's best window.
    StepsSlower(StageAccount),
    /// A stage leads, and all ranks leave it together.
    LeftTogether(StageAccount),
    /// What another finding says that this one explains.
    Explains {
        /// What it said.
        claim: Box<Claim>,
        /// What it was said by.
        by: Option<Box<Observation>>,
        /// What it cost, in exposed seconds.
        cost_s: f64,
    },
    /// Ranks stood ready and had no core.
    NoCore {
        /// Which.
        ranks: Vec<u32>,
        /// Share of the time.
        share: f64,
        /// The same of their peers.
        peers_share: f64,
        /// The time.
        during: During,
        /// What their processes got of cores, where that is known.
        cores: Option<CoresBusy>,
    },
    /// Control groups had used up their CPU quota.
    CpuQuota {
        /// Whose; empty if those of all ranks.
        ranks: Vec<u32>,
        /// Share of the periods.
        share: f64,
        /// The same of their peers.
        peers_share: Option<f64>,
        /// What their processes got of cores, where that is known.
        cores: Option<CoresBusy>,
    },
    /// Processes kept other cores busy than their peers did.
    Cores(CoresBusy),
    /// All ranks stood ready and had no core for more of the time than before.
    TooFewCores {
        /// Share of the time.
        share: f64,
        /// The same before.
        before_share: f64,
    },
    /// The device of ranks is unlike those of their peers.
    Device {
        /// The ranks that use it.
        users: Vec<u32>,
        /// The device.
        device: Device,
        /// In what.
        unlike: Unlike,
    },
    /// What GPUs did while nothing moved.
    GpusInStandstill {
        /// Ranks whose GPUs do something else than the others'; none if all do alike.
        unlike: Vec<u32>,
        /// The other ranks whose GPUs are known.
        others: Vec<u32>,
        /// Share of the time for which they ran something; of the others, where all do alike.
        busy: Beside,
        /// Power that they drew, in watts, where it is known.
        watts: Option<Beside>,
    },
    /// A host saw something in its network.
    Network {
        /// A rank of the host.
        rank: u32,
        /// What it saw.
        fault: NetworkFault,
        /// The rank of the job that a flow goes to, if that is known.
        peer: Option<u32>,
    },
    /// Something was seen of a pipeline's blocks.
    Pipeline(Box<PipelineFact>),
    /// How much of a slowdown vanishes without its cause.
    StepSlowdown(Box<StepSlowdown>),
    /// A function takes more of the critical path than it should.
    Function(Box<FunctionFault>),
    /// Ranks arrive late in collectives of one kind.
    Arrival {
        /// Which.
        ranks: Vec<u32>,
        /// Where, and how often.
        place: LateIn,
    },
    /// A communicator moves fewer bytes a second than before.
    Bandwidth(Box<SlowCommunicator>),
    /// A connection was slow or still.
    Connection(Box<SlowConnection>),
    /// Whether its path carries anything, by the rule of probes.
    Path {
        /// Whether what is sent does not come back.
        is_broken: bool,
    },
    /// Nothing was in flight on any port when a job stood still.
    IdlePorts {
        /// How many are known.
        ports: usize,
    },
    /// Slow operations waited for ranks.
    Straggler(Box<Straggler>),
    /// Ranks are in a collective that does not end.
    Wait {
        /// The collective.
        wait: Box<Wait>,
        /// Whether nothing is seen of those that are missing.
        is_unseen: bool,
    },
    /// Devices of some ranks were seen to get to a collective, and those of others were not.
    DeviceArrival(Box<DeviceArrival>),
    /// No counter of operations moves.
    Failure(Box<Failure>),
    /// A process ended without closing its ring.
    Killed(Death),
    /// Where main threads are.
    Stack {
        /// Of which ranks.
        ranks: Vec<u32>,
        /// Frames of Python, innermost first.
        frames: Vec<String>,
        /// Why there are none.
        unread: Option<UnreadStack>,
    },
}

/// A stage in which ranks are late.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LateStage {
    /// The stage.
    pub stage: String,
    /// Mean lateness of a struck step there, in seconds.
    pub lateness_s: f64,
}

/// What the accounting of steps says of stages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageAccount {
    /// The strongest label of the windows that showed it.
    pub label: Label,
    /// The stages, the one with most of the lateness first.
    pub stages: Vec<LateStage>,
    /// Steps it struck.
    pub struck_steps: u64,
    /// Mean lateness of a struck step, in seconds, in all of them.
    pub lateness_s: f64,
    /// Exposed seconds that fixing it alone saves.
    pub gain_alone_s: f64,
    /// Share of exposed time that the first stage is charged with.
    pub stage_share: f64,
    /// Share of exposed time that would vanish with the first stage at its baseline.
    pub stage_gain: f64,
    /// Median lag behind the first rank in the first stage, in seconds.
    pub median_lag_s: f64,
}

/// Which stretch of time shares are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum During {
    /// While the incident went on.
    Incident,
    /// A profile window.
    ProfileWindow,
}

/// Cores that processes kept busy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoresBusy {
    /// Whose processes.
    pub ranks: Vec<u32>,
    /// How many.
    pub cores: f64,
    /// Standard deviation over time.
    pub deviation: f64,
    /// The median of their peers.
    pub peers: f64,
}

/// What a device is, beside the median of its peers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// Its own.
    pub own: f64,
    /// The median of its peers, where that is known.
    pub peers: Option<f64>,
}

/// In what a device is unlike those of other ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unlike {
    /// Its clock is held down.
    Slowed {
        /// By what, and for which share of the time; unknown where only the clock shows it.
        brake: Option<(Brake, Beside)>,
        /// Its clock in MHz, where it is below those of its peers.
        clock_mhz: Option<Beside>,
    },
    /// It has fewer or slower lanes of its host's bus than it could use.
    Pcie {
        /// Lanes in use.
        lanes: Beside,
        /// Lanes it could use.
        lanes_most: f64,
        /// GT/s of a lane, where they are below those of its peers.
        speed: Option<Beside>,
    },
    /// Fewer links to other GPUs are up.
    Nvlinks(Beside),
    /// Its link is slower, in bytes a second.
    LinkSpeed(Beside),
    /// Its link takes no more.
    Full {
        /// Share of the time.
        share: Beside,
        /// Bytes a second that it sends.
        sent_bytes_per_s: f64,
        /// Bytes a second that it receives.
        received_bytes_per_s: f64,
    },
    /// It works for another share of the time.
    Busy(Beside),
    /// It has counted errors: how many, by counter.
    Errors(BTreeMap<String, u64>),
}

/// What holds the clock of a GPU down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Brake {
    /// Heat.
    Heat,
    /// The power brake of its board or host.
    PowerBrake,
    /// Its power limit.
    PowerLimit,
}

impl Observation {
    /// What the accounting of steps says, where it is that.
    pub fn account(&self) -> Option<&StageAccount> {
        match self {
            Self::OwnWork(account)
            | Self::StageCharged(account)
            | Self::StepsSlower(account)
            | Self::LeftTogether(account) => Some(account),
            _ => None,
        }
    }

    /// Whether it only knows who came last to collectives, and not what for.
    pub fn is_of_arrival(&self) -> bool {
        match self {
            Self::Arrival { .. } | Self::Wait { .. } | Self::DeviceArrival(_) => true,
            Self::Straggler(found) => found.cause.is_of_arrival(),
            Self::Failure(found) => found.cause.is_of_arrival(),
            _ => false,
        }
    }

    /// Whose it is.
    pub fn method(&self) -> Method {
        match self {
            Self::OwnWork(_)
            | Self::StageCharged(_)
            | Self::StepsSlower(_)
            | Self::LeftTogether(_) => Method::Frontier,
            // Blocks that a network explains are those of a schedule.
            Self::Explains { by, .. } => by.as_ref().map_or(Method::Schedule, |by| by.method()),
            Self::NoCore { .. }
            | Self::CpuQuota { .. }
            | Self::Cores(_)
            | Self::TooFewCores { .. }
            | Self::Device { .. }
            | Self::GpusInStandstill { .. }
            | Self::Network { .. }
            | Self::Killed(_) => Method::Host,
            Self::Arrival { .. }
            | Self::Bandwidth(_)
            | Self::Straggler(_)
            | Self::Wait { .. }
            | Self::DeviceArrival(_)
            | Self::Failure(_) => Method::Collective,
            Self::Pipeline(_)
            | Self::StepSlowdown(_)
            | Self::Connection(_)
            | Self::Path { .. }
            | Self::IdlePorts { .. } => Method::Schedule,
            Self::Stack { .. } => Method::Stack,
            Self::Function(_) => Method::Pattern,
        }
    }

    /// What it blames for lost time, if it says why something is slow and not only that it is.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::NoCore { .. } | Self::CpuQuota { .. } | Self::TooFewCores { .. } => {
                Some(Cause::Cores)
            }
            Self::Device { unlike, .. } => match unlike {
                Unlike::Slowed { .. } | Unlike::Pcie { .. } | Unlike::Nvlinks(_) => {
                    Some(Cause::Gpu)
                }
                Unlike::LinkSpeed(_) | Unlike::Full { .. } => Some(Cause::Network),
                // A device may be idle because it waits, and errors need not have cost time.
                Unlike::Busy(_) | Unlike::Errors(_) => None,
            },
            Self::Network { fault, .. } => matches!(
                fault,
                NetworkFault::SlowerLink { .. } | NetworkFault::SlowerFlow { .. }
            )
            .then_some(Cause::Network),
            Self::Function(fault) => fault.cause(),
            Self::Straggler(found) => found.blames(),
            Self::Explains { by, .. } => by.as_ref().and_then(|by| by.cause()),
            // No wildcard: of a new observation somebody has to say what it blames.
            Self::OwnWork(_)
            | Self::StageCharged(_)
            | Self::StepsSlower(_)
            | Self::LeftTogether(_)
            | Self::Cores(_)
            | Self::GpusInStandstill { .. }
            | Self::Pipeline(_)
            | Self::StepSlowdown(_)
            | Self::Arrival { .. }
            | Self::Bandwidth(_)
            | Self::Connection(_)
            | Self::Path { .. }
            | Self::IdlePorts { .. }
            | Self::Wait { .. }
            | Self::DeviceArrival(_)
            | Self::Failure(_)
            | Self::Killed(_)
            | Self::Stack { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CollectiveOp, ConnectionEnds, Desync, DeviceProgress, HoldUp, LinkFault, ProcessState,
        RankChannel, Slowness,
    };

    fn wait() -> Wait {
        let open = DeviceProgress {
            under_way: vec![0, 1],
            not_started: vec![1],
            ended: vec![3],
        };
        Wait {
            group: "default".to_owned(),
            number: 46,
            op: CollectiveOp::INIT,
            entered: vec![0, 1, 3],
            missing: vec![2],
            desyncs: vec![Desync {
                rank: 1,
                op: CollectiveOp::BARRIER,
                detail: String::new(),
            }],
            open: Some(open),
            ..Wait::default()
        }
    }

    fn straggler() -> Straggler {
        Straggler {
            cause: HoldUp::NotDelivered,
            ranks: vec![2, 3],
            either: true,
            channels: vec![1],
            wait: wait(),
            slow: Slowness {
                took_s: 0.2,
                usual_s: 0.1,
                of_channels: false,
            },
            blamed_share: 0.75,
            cost_s: 1.5,
        }
    }

    fn failure() -> Failure {
        Failure {
            cause: HoldUp::DeadlockCycle,
            ranks: vec![2, 3],
            links: vec![RankChannel {
                from: 2,
                to: 3,
                channel: 1,
            }],
            waits: vec![wait()],
            still_s: 1.5,
            in_flight: 3,
        }
    }

    fn connection() -> SlowConnection {
        let (from, to, port) = (1, 2, "host mlx5_0".to_owned());
        SlowConnection {
            ends: ConnectionEnds {
                communicator: 7,
                from,
                to,
                port,
            },
            span_ns: (5, 9),
            open: true,
            fault: LinkFault::Slower {
                bytes_per_s: 1.5,
                usual_bytes_per_s: 2.5,
            },
        }
    }

    #[test]
    fn who_comes_last_says_nothing_of_what_for() {
        let of_flows = |cause| {
            Observation::Straggler(Box::new(Straggler {
                cause,
                ..straggler()
            }))
        };
        assert!(of_flows(HoldUp::NotEntered).is_of_arrival());
        assert!(Observation::Failure(Box::new(failure())).is_of_arrival());
        let wait = Observation::Wait {
            wait: Box::new(wait()),
            is_unseen: true,
        };
        assert!(wait.is_of_arrival());
        for (cause, blamed) in [
            (HoldUp::NotDelivered, Some(Cause::Network)),
            (HoldUp::GpuNotReady, Some(Cause::Gpu)),
            (HoldUp::ProxyStill, None),
        ] {
            let what = of_flows(cause);
            assert_eq!((what.is_of_arrival(), what.cause()), (false, blamed));
        }
    }

    /// A fact has ranks of its own beside those of what was observed.
    #[test]
    fn facts_are_read_back_from_json() {
        let busy = CoresBusy {
            ranks: vec![2],
            cores: 0.5,
            deviation: 0.1,
            peers: 1.0,
        };
        let fault = NetworkFault::Idle { pairs: 8 };
        for what in [
            Observation::Cores(busy.clone()),
            Observation::NoCore {
                ranks: vec![2, 3],
                share: 0.5,
                peers_share: 0.1,
                during: During::ProfileWindow,
                cores: Some(busy),
            },
            Observation::Network {
                rank: 1,
                fault,
                peer: None,
            },
            Observation::Straggler(Box::new(straggler())),
            Observation::Wait {
                wait: Box::new(wait()),
                is_unseen: true,
            },
            Observation::DeviceArrival(Box::new(DeviceArrival {
                wait: wait(),
                later_s: Some(0.5),
            })),
            Observation::Failure(Box::new(failure())),
            Observation::Connection(Box::new(connection())),
            Observation::Path { is_broken: true },
            Observation::Killed(Death {
                signal: Some(9),
                code: None,
            }),
            Observation::Stack {
                ranks: vec![2],
                frames: Vec::new(),
                unread: Some(UnreadStack {
                    why: "no right".to_owned(),
                    state: ProcessState::Running,
                    waits_in: None,
                }),
            },
            Observation::Device {
                users: vec![1],
                device: Device::Gpu(0),
                unlike: Unlike::Nvlinks(Beside {
                    own: 12.0,
                    peers: Some(18.0),
                }),
            },
        ] {
            for ranks in [vec![], vec![1]] {
                let stage = Some("data.next_wait".to_owned());
                let fact = Fact {
                    ranks,
                    stage,
                    what: what.clone(),
                };
                let json = serde_json::to_string(&fact).unwrap();
                assert_eq!(serde_json::from_str::<Fact>(&json).unwrap(), fact, "{json}");
            }
        }
    }
}
