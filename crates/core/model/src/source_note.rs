//! What a source of inputs says of itself.

use serde::{Deserialize, Deserializer, Serialize};

use crate::CollectiveOp;

/// What agents and recordings say of themselves: what they left out, guessed or could not read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
// In the order in which a verdict lists notes.
pub enum SourceNote {
    /// The files of one rank, or of one communicator, that an error speaks of are left out.
    LeftOut(String),
    /// A table in shared memory cannot be read.
    UnreadTable {
        /// Which.
        table: SharedTable,
        /// Where it lies, and why it cannot be read.
        error: String,
    },
    /// Probes counted so many faults of their own.
    ProbeFaults(u64),
    /// The collector did not take everything in time.
    Undelivered,
    /// The recording ends before the job, because of this error.
    RecordingEnds(String),
    /// The Flight Recorder of this rank did not answer in time.
    RecorderLate(u32),
    /// Of a profile window.
    Profile(ProfileNote),
    /// No communicator has all processes: their order was taken for that of the ranks.
    RanksGuessed,
    /// Of NCCL's RAS.
    Ras(RasNote),
    /// Of logs of NCCL Inspector.
    Inspector(InspectorNote),
    /// Of Flight Recorder dumps.
    Dumps(DumpNote),
    /// Of traces of a profiler.
    Traces(TraceNote),
    /// Of the log of NCCL calls of a rank.
    CallLog {
        /// Which.
        rank: u32,
        /// What.
        defect: LogDefect,
    },
    /// Work requests that came back were reported.
    WorkRequests {
        /// How many.
        requests: u64,
        /// Of how many connections.
        connections: u64,
    },
    /// Of what a dead job has printed.
    Printed(PrintedNote),
    /// Where ranks are of which nothing but stacks is known.
    Stacks {
        /// The ranks.
        ranks: Vec<u32>,
        /// The innermost frames, as they are read.
        frames: Vec<String>,
    },
    /// In words that come from outside: those of a hook in Python, or of another version.
    Text(String),
}

impl SourceNote {
    /// Whether it is in words from outside.
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// Whether ranks with it cannot all be said to be in the same collectives: something is wrong that
    /// names nobody, or some were not seen.
    pub fn leaves_open(&self) -> bool {
        match self {
            Self::LeftOut(_) => true,
            Self::Ras(note) => matches!(
                note,
                RasNote::MoreFaults { .. }
                    | RasNote::Trouble { .. }
                    | RasNote::Unlisted { .. }
                    | RasNote::Elsewhere { .. }
                    | RasNote::Alike
                    | RasNote::Unreachable { .. }
                    | RasNote::Incomplete { .. }
                    | RasNote::Dead { .. }
                    | RasNote::Failed(_)
            ),
            Self::Dumps(note) => matches!(
                note,
                DumpNote::Missing(_) | DumpNote::TimedOut(_) | DumpNote::InTransfers(_)
            ),
            _ => false,
        }
    }

    /// Reads a note of any version, which is in words as well: one of a kind that this version does
    /// not know keeps these.
    pub(crate) fn recorded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        // The first that fits counts: a note of this version has words, too.
        #[serde(untagged)]
        enum Recorded {
            Known { note: SourceNote },
            Worded { text: String },
        }
        Ok(match Recorded::deserialize(deserializer)? {
            Recorded::Known { note } => note,
            Recorded::Worded { text } => Self::Text(text),
        })
    }
}

/// A table in shared memory, by what is lost without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedTable {
    /// The ring of a rank.
    Ring,
    /// The live table: what a rank communicates.
    Live,
    /// The table of work requests: what a rank sends.
    Requests,
}

/// Why a profile window is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProfileNote {
    /// An order came only so many seconds after the last one.
    TooSoon(u64),
    /// An order begins with this step, which is far ahead.
    TooFar(u32),
    /// There is no folder for traces, because of this error.
    NoFolder(String),
    /// No rank has a mailbox.
    NoMailbox,
    /// A rank recorded nothing.
    Unrecorded {
        /// Which.
        rank: u32,
        /// Why.
        why: Unrecorded,
    },
    /// These ranks ended before their windows did.
    Ended(Vec<u32>),
    /// The trace of a rank cannot be read.
    Unread {
        /// Which rank.
        rank: u32,
        /// Why.
        error: String,
    },
}

/// Why a rank recorded nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unrecorded {
    /// A profiler runs in it.
    Busy,
    /// Its profiler failed, or another was started.
    Failed,
    /// It was past the first step.
    Late,
    /// It did not come to the first step.
    NotBegun,
    /// It did not come to the end of the window.
    NotEnded,
}

/// Of NCCL's RAS.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RasNote {
    /// What a live job's RAS says, as the verdict on its reply words it.
    Replied(String),
    /// A process of another job answers at this address.
    OtherJob(String),
    /// Ranks are numbered as in this communicator.
    NumberedBy(String),
    /// More communicators have faults, which only replies in JSON tell ranks of.
    MoreFaults {
        /// How many.
        others: u64,
        /// The name of one.
        name: String,
        /// Its fault, as RAS calls it.
        fault: String,
    },
    /// Ranks say that something is wrong with their communicator.
    Trouble {
        /// Its name.
        communicator: String,
        /// Their numbers in it.
        ranks: Vec<u32>,
        /// What is wrong.
        trouble: RankTrouble,
    },
    /// A report counts the ranks that launched a function, and does not list them.
    Unlisted {
        /// The communicator.
        communicator: String,
        /// The function.
        function: String,
    },
    /// Ranks answer, and are not in their communicator.
    Elsewhere {
        /// Its name.
        communicator: String,
        /// Their numbers in it.
        ranks: Vec<u32>,
    },
    /// Ranks of this communicator are apart, and moved between the replies.
    Moving(String),
    /// Ranks are apart at one moment, as those of a healthy job may be.
    OneMoment,
    /// All ranks have launched the same number of collectives, and no reply shows that they go on.
    Alike,
    /// Ranks of a communicator did not answer, and the report does not list them.
    Incomplete {
        /// The communicator.
        communicator: String,
        /// How many.
        ranks: u64,
    },
    /// RAS considers a process dead.
    Dead {
        /// The number of the process.
        pid: i64,
        /// Its host.
        host: String,
    },
    /// What the table of communicators calls wrong, and nothing else describes.
    Failed(String),
    /// A rank cannot be reached.
    Unreachable {
        /// Which.
        rank: u32,
        /// The number of its process and its host, if they are known.
        process: Option<(i64, String)>,
        /// Whether RAS considers it dead.
        is_dead: bool,
    },
    /// Of so many replies the latest is read.
    Replies(u64),
}

/// What is wrong with a rank of a communicator, by its own account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankTrouble {
    /// It aborts.
    Aborts,
    /// It has not joined yet.
    NotJoined,
    /// It could not join: the result of NCCL.
    CouldNotJoin(i64),
    /// It reports an error: the result of NCCL.
    Error(i64),
    /// It has this status, in the words of RAS.
    Status(String),
    /// It reported this, in the words of RAS.
    Reported(String),
}

/// Of logs of NCCL Inspector.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InspectorNote {
    /// Two processes say that they are one rank of a communicator.
    TwoProcesses {
        /// Its hash.
        communicator: String,
        /// The rank.
        rank: u32,
    },
    /// Communicators lack the logs of some ranks.
    Lacking {
        /// How many do.
        lacking: u64,
        /// Of how many.
        communicators: u64,
        /// The hash of one.
        communicator: String,
        /// How many logs it lacks.
        logs: u64,
        /// Its ranks.
        size: u32,
    },
    /// So many collectives were timed by the host, which says nothing of arrivals.
    HostTimed(u64),
    /// The last line of so many logs is cut off.
    CutOff(u64),
}

/// Of Flight Recorder dumps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DumpNote {
    /// The dumps of these ranks are copies of one.
    Copies(Vec<u32>),
    /// The dump of a rank lacks a collective that has ended on another.
    Old {
        /// The rank.
        rank: u32,
        /// The collective.
        op: CollectiveOp,
        /// Its number.
        number: u64,
        /// Its group.
        group: String,
        /// The other rank.
        ended_on: u32,
    },
    /// On a rank a collective has ended that most dumps lack.
    Further {
        /// The rank.
        rank: u32,
        /// The collective.
        op: CollectiveOp,
        /// Its number.
        number: u64,
        /// Its group.
        group: String,
    },
    /// There is no dump of these ranks.
    Missing(Vec<u32>),
    /// So many dumps are of an earlier run.
    EarlierRun(u64),
    /// Collectives of these ranks timed out, by what they printed, and there is no dump of them.
    TimedOut(Vec<u32>),
    /// Devices of these ranks are in sends or receives, as the dumps were written.
    InTransfers(Vec<u32>),
}

/// Of traces of a profiler.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceNote {
    /// A file does not say which rank it is of.
    RankGuessed {
        /// The file.
        file: String,
        /// What it was taken for.
        rank: u32,
    },
    /// Something was lost while a file was read.
    Lost {
        /// The file.
        file: String,
        /// What and where, in the words of its reader.
        loss: String,
    },
    /// There is no trace of these ranks.
    Missing(Vec<u32>),
    /// One of so many ranks has a trace.
    Alone(u32),
    /// No steps were recorded on these ranks.
    NoSteps(Vec<u32>),
}

/// What a log of NCCL calls suffers from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogDefect {
    /// Lines are damaged.
    Damaged {
        /// How many.
        lines: u64,
        /// The first.
        first: u64,
    },
    /// The last line is cut off.
    CutOff,
    /// It has so many runs.
    Runs(u64),
    /// The rank has two logs.
    Twice,
}

/// Of what NCCL itself warned of: it names hosts, not ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NcclNote {
    /// The link of a port of a network card went down.
    LinkDown {
        /// The host of the card.
        host: String,
        /// The card and the number of its port, `mlx5_0:1`, if NCCL names them.
        port: Option<String>,
        /// Whether it came back.
        came_back: bool,
    },
    /// A call to the driver of a GPU failed.
    Device {
        /// The host.
        host: String,
        /// The number of the GPU in its process.
        device: u32,
        /// The error.
        error: String,
    },
    /// Hosts could not connect to a process at this address.
    NotConnected {
        /// The address.
        peer: String,
        /// The hosts.
        hosts: Vec<String>,
    },
    /// Requests over RDMA failed.
    FailedRequest {
        /// Address of the other end.
        peer: String,
        /// How (`ibv_wc_status`).
        status: u32,
        /// The hosts that had sent them; none if no line names one.
        hosts: Vec<String>,
    },
}

/// Of what a dead job has printed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrintedNote {
    /// A rank raised an error of its own.
    Raised {
        /// Which.
        rank: u32,
        /// The error.
        error: String,
    },
    /// The launcher saw a rank end first.
    FirstEnded {
        /// Which.
        rank: u32,
        /// Its exit code; below zero a signal.
        code: i32,
        /// Those that ended in the same second.
        with_it: Vec<u32>,
    },
    /// torchrun saw a process of a host end first, and which rank that is is unknown.
    FirstOfHost {
        /// Its number on the host.
        local_rank: u32,
        /// Its exit code; below zero a signal.
        code: i32,
    },
    /// Ranks gave up waiting for others in gloo.
    GaveUpInGloo {
        /// Which.
        ranks: Vec<u32>,
        /// Those that ended as well, and printed no error.
        silent: Vec<u32>,
        /// The lines of the script that they waited in, with the ranks, if there are several.
        places: Vec<(Vec<u32>, String)>,
    },
    /// torchrun saw these ranks end, and which was the first is unknown.
    Ended(Vec<u32>),
    /// The launcher of a host saw a process end with this exit code, and does not say which.
    EndedSomewhere(i32),
    /// Slurm ended the job, for this reason if it says so.
    Cancelled(String),
    /// torchrun itself received this signal, and ended its processes.
    ToLauncher(i32),
    /// Slurm saw tasks end.
    SlurmTasks {
        /// As Slurm lists them.
        tasks: String,
        /// Their host.
        host: String,
        /// How, in Slurm's words.
        how: String,
    },
    /// `torch.multiprocessing` saw this process end first, by its number there.
    FirstSpawned {
        /// The number.
        process: u32,
        /// Its exit code; below zero a signal.
        code: i32,
    },
    /// A rank that no line names raised an error.
    RaisedSomewhere(String),
    /// Ray leaves out lines that several processes printed.
    LeavesOut,
    /// The watchdog of this rank got stuck itself.
    StuckWatchdog(u32),
    /// NCCL itself warned of a fault.
    Nccl(NcclNote),
    /// Ranks waited in vain for what one of a group must give to make a communicator.
    AwaitedId {
        /// Which, as the group counts them.
        ranks: Vec<u32>,
        /// Whom the text names.
        of: u32,
    },
    /// Two processes use one GPU, which NCCL refuses.
    SharedGpu {
        /// Their ranks, as a communicator counts them.
        ranks: [u32; 2],
        /// The bus address of the GPU, as NCCL prints it.
        device: String,
    },
    /// DDP found that the models of two ranks, as its group counts them, have these numbers of parameters,
    /// and refuses to start.
    UnlikeModels([(u32, u64); 2]),
    /// A rank lost the connection to a process at this address.
    LostPeer(String),
    /// PyTorch found that these ranks call different collectives.
    Differ([u32; 2]),
    /// NCCL found different collectives near these ranks, as a communicator counts them.
    Mismatched(Vec<u32>),
    /// These ranks, as some group counts them, did not come to its `monitored_barrier`.
    MissedBarrier(Vec<u32>),
    /// PyTorch's report of a desync names these ranks, as their group counts them.
    NeverJoined(Vec<u32>),
    /// Ranks by the collective that they were last about to call, the least number first; which
    /// groups these are of is unknown.
    LastCalls(Vec<(Vec<u32>, String)>),
    /// Collectives of these ranks timed out, and have no numbers.
    Unnumbered(Vec<u32>),
    /// Collectives of these ranks timed out, and no line names their group.
    Ungrouped(Vec<u32>),
    /// A collective timed out on a rank that no line names.
    SomeTimeout,
    /// Timeouts of one number and unlike kinds, which may be of one group.
    UnlikeTimeouts {
        /// The number.
        number: u64,
        /// Ranks, with what timed out on them.
        sides: Vec<(Vec<u32>, String)>,
    },
    /// The log has so many starts of the job.
    Starts(u64),
    /// Ranks waited in a collective when another rank ended.
    Waiting {
        /// The collective, if a line names it.
        op: Option<String>,
        /// Its number.
        number: u64,
        /// Its group.
        group: String,
        /// The ranks.
        ranks: Vec<u32>,
    },
    /// Of a group only these ranks printed anything, and others may not have entered a collective.
    PartOfGroup {
        /// The group.
        group: String,
        /// The ranks.
        ranks: Vec<u32>,
        /// The collective's number.
        number: u64,
    },
    /// How far these ranks came was not printed.
    Uncounted(Vec<u32>),
    /// What ranks of a group count does not tell which of them is behind.
    Incomparable {
        /// The group.
        group: String,
        /// Why.
        why: UnlikeCounts,
    },
}

/// Why counts of ranks cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnlikeCounts {
    /// Sends and receives are among what they count.
    PointToPoint {
        /// Ranks of the group.
        ranks: Vec<u32>,
        /// What timed out.
        op: String,
        /// Its number.
        number: u64,
    },
    /// Several groups of these ranks have one number.
    SharedNumber(Vec<u32>),
    /// Ranks completed what others have not entered, although all must enter it.
    Apart {
        /// Ranks that wait, with what they wait in: the kind, if a line names it, and the number.
        waiting: Vec<(u32, Option<String>, u64)>,
        /// Ranks that completed later ones.
        ahead: Vec<u32>,
    },
}
