use serde::{Deserialize, Serialize};

use crate::{
    CollectiveOp, Communicator, CoreUsage, DeviceUsage, Mark, NetworkFault, Operation,
    ProfileWindow, RankNs, Ranks, SourceNote, Stack,
};

/// One thing a job's analysis is given. All of them, in order, are the job: the same inputs
/// give the same verdict, live or from a recording.
///
/// A variant that was renamed keeps the name of the first version in recordings and batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Input {
    /// A rank has come, or more is known of it.
    Rank {
        /// Global rank.
        rank: u32,
        /// Its host.
        host: String,
        /// Coordinates that make ranks incomparable, such as the pipeline stage.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// First rank of its host.
        first_local: u32,
        /// Ranks of its host.
        locals: u32,
        /// Ranks of the job.
        world_size: u32,
    },
    /// The next code of a rank's name table stands for this stage or side channel.
    Name {
        /// The rank.
        rank: u32,
        /// The name.
        name: String,
    },
    /// Something that should stand beside the verdict.
    // The writer adds the sentence, for versions that do not know the kind of note.
    #[serde(skip_serializing)]
    Note(#[serde(deserialize_with = "SourceNote::recorded")] SourceNote),
    /// A rank did something.
    // Recordings are mostly marks: there they are short lists of numbers, and no objects.
    #[serde(skip)]
    Mark {
        /// The rank.
        rank: u32,
        /// What, and when.
        mark: Mark,
    },
    /// Records of a rank were lost before they could be read.
    Lost {
        /// The rank.
        rank: u32,
        /// How many.
        records: u64,
    },
    /// A rank's process has ended.
    Left {
        /// The rank.
        rank: u32,
        /// The last step it was in.
        step: u32,
        /// Whether it ended in good order: not killed, not crashed.
        #[serde(default)]
        orderly: bool,
    },
    /// A rank's process ended by itself, and not as one that is done.
    Failed {
        /// The rank.
        rank: u32,
        /// Its exit code.
        code: i32,
    },
    /// A rank's process was killed.
    Killed {
        /// The rank.
        rank: u32,
        /// By which signal, if that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// All ranks start over.
    Restart {
        /// Restarts of the launcher so far; 0 if that is not known.
        #[serde(default)]
        attempt: u32,
    },
    /// A rank belongs to a group of ranks that meet in collectives.
    Group {
        /// The group's number, as marks have it.
        group: u32,
        /// Its name.
        name: String,
        /// Its members.
        members: Ranks,
    },
    /// Nobody has done anything until now, or anything but what they had done before in their step:
    /// looked for only while the job is quiet.
    // Recordings and batches of older versions have this name, as with the other renames.
    #[serde(rename = "quiet")]
    NoProgress {
        /// The time, on the clock of the marks.
        at: RankNs,
    },
    /// The job was asked to end, by a signal: what its ranks do from now on they do for that.
    EndAsked {
        /// The time, on the clock of the marks.
        at: RankNs,
    },
    /// Where a rank is, asked for because it is suspected or for comparison.
    Stack {
        /// The rank.
        rank: u32,
        /// Its stack.
        stack: Stack,
    },
    /// A rank entered a collective, as another tool recorded it.
    Entered {
        /// The rank.
        rank: u32,
        /// The group's number.
        group: u32,
        /// How many collectives were issued in the group, this one included; 0 if that is not
        /// known.
        number: u64,
        /// Which collective.
        op: String,
        /// What must be the same on all ranks beside it, such as sizes and types.
        detail: String,
        /// Whether it is known to have ended on this rank.
        completed: bool,
        /// What is known of it if it has not.
        #[serde(default, skip_serializing_if = "InFlight::is_unknown")]
        in_flight: InFlight,
    },
    /// A rank was in a collective for so long, and it is complete, as another tool timed it.
    Timed {
        /// The rank.
        rank: u32,
        /// The group's number.
        group: u32,
        /// Which collective.
        op: CollectiveOp,
        /// How many collectives of this kind were issued in the group before.
        number: u64,
        /// Bytes of the message.
        bytes: u64,
        /// Time from the rank's arrival to the end.
        busy_ns: u64,
    },
    /// A rank has a communicator.
    Communicator {
        /// The rank.
        rank: u32,
        /// What it knows of it.
        communicator: Communicator,
    },
    /// Operations of a rank in a communicator have become slow.
    Slow {
        /// The rank; zero in recordings that do not say it.
        #[serde(default)]
        rank: u32,
        /// [`Communicator::hash`].
        communicator: u64,
        /// What the last one took.
        took_ns: u64,
        /// What they usually take.
        usual_ns: u64,
        /// Whether these are one of its channels and most of them.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        of_channels: bool,
    },
    /// What a rank is in, looked at while something stands still or is slow.
    #[serde(rename = "look")]
    InFlightSnapshot {
        /// The rank.
        rank: u32,
        /// When, on the clock of the operations' times.
        at: RankNs,
        /// Operations in progress, oldest first.
        in_progress: Vec<Operation>,
        /// Of each kind the last that ended since the look before.
        ended: Vec<Operation>,
        /// Places in `in_progress` of what already takes longer than it should.
        #[serde(default)]
        late: Vec<usize>,
    },
    /// What does not get on in the network of a rank.
    Network {
        /// The rank.
        rank: u32,
        /// What.
        fault: NetworkFault,
    },
    /// Ranks are about to be profiled in these steps: they and the next one are slow for that.
    ProfileOrdered {
        /// The ranks.
        ranks: Vec<u32>,
        /// The first step.
        first_step: u32,
        /// How many.
        steps: u32,
    },
    /// What a profile window showed of a rank.
    Profiled {
        /// The rank.
        rank: u32,
        /// What.
        window: Box<ProfileWindow>,
    },
    /// All that came of the profile window of these ranks was sent.
    ProfileEnded {
        /// The ranks it was ordered of, on this host; all if none is named.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ranks: Vec<u32>,
    },
    /// What a rank's process did with cores while it was in these steps.
    Usage {
        /// The rank.
        rank: u32,
        /// The step it was in at first.
        first_step: u32,
        /// The step it was in at last.
        last_step: u32,
        /// What.
        usage: CoreUsage,
    },
    /// What a device of a host did while ranks were in these steps.
    Device {
        /// The ranks that use it.
        ranks: Vec<u32>,
        /// The step they were in at first.
        first_step: u32,
        /// The step they were in at last.
        last_step: u32,
        /// What.
        usage: Box<DeviceUsage>,
    },
    /// What is not complete now has been so for long: what was given is one moment of a job.
    #[serde(rename = "stuck")]
    SnapshotComplete,
    /// All stacks that were asked for, and could be had, have come.
    #[serde(rename = "stacks_told")]
    StacksComplete,
}

/// Whether a collective that a rank has issued is still under way on the rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InFlight {
    /// Nothing is known.
    #[default]
    Unknown,
    /// It is under way; whether the device has begun it is not known.
    Issued,
    /// The device has not begun it.
    NotStarted,
    /// The device has begun it and has not finished it.
    Started,
}

impl InFlight {
    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::Unknown
    }
}
