use serde::{Deserialize, Serialize};

use crate::{CollectiveOp, MarkKind, RankNs};

/// What a mark says, by its kind.
///
/// In the ring and in recordings a mark is a kind, a code and five numbers. [`Event::encode`] and
/// [`Event::decode`] alone know which number means what.
/// # Invariants
/// Decoding what was encoded gives the same event. A new fact takes a number that is zero in older
/// recordings, and zero must mean that it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The loop asks its data loader for a batch.
    DataBegin,
    /// The batch is there.
    DataEnd,
    /// The loader had no more batches.
    DataStop,
    /// The outermost wrapped module is called.
    ForwardBegin,
    /// It returned.
    ForwardEnd,
    /// The autograd engine starts (outermost call).
    BackwardBegin,
    /// It returned.
    BackwardEnd,
    /// An optimizer's step starts (outermost call).
    OptimizerBegin,
    /// It returned.
    OptimizerEnd,
    /// An explicit stage is entered.
    StageBegin {
        /// The stage, in the rank's name table.
        name: u16,
    },
    /// It is left.
    StageEnd {
        /// The stage, in the rank's name table.
        name: u16,
    },
    /// An explicit step is entered.
    StepBegin,
    /// It is left.
    StepEnd,
    /// A collective is issued.
    CollectiveIssue(CollectiveIssue),
    /// A side channel measured something on the device.
    SideSample {
        /// The side channel, in the rank's name table.
        name: u16,
        /// How long it took.
        nanoseconds: u64,
    },
    /// A side channel's event never became ready.
    SideLost {
        /// The side channel, in the rank's name table.
        name: u16,
    },
    /// A block of a pipeline begins.
    BlockBegin(BlockPlace),
    /// It is over.
    BlockEnd(BlockPlace),
    /// The loop stands still for laggard's own profiler: it starts, or stops and writes.
    ProfilerBegin,
    /// The loop goes on.
    ProfilerEnd,
    /// The rank begins to make the group of all ranks, for which all must come.
    InitBegin {
        /// The group.
        group: u32,
        /// How often the rank has begun to make it.
        number: u64,
    },
    /// It has made it, or has failed to.
    InitEnd {
        /// The group.
        group: u32,
        /// How often the rank has begun to make it.
        number: u64,
    },
    /// The host saw that its device got to what it issued at an earlier mark of a run of sampled
    /// steps. The mark's step is that of the earlier one.
    DeviceTime(DeviceTime),
    /// The host begins to read something back from its device; seen in sampled steps only.
    ReadBackBegin,
    /// It has it.
    ReadBackEnd {
        /// The line that wanted it, in the rank's name table; `u16::MAX` if it has none.
        name: u16,
    },
}

/// A collective, as the rank that issues it sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveIssue {
    /// Its kind.
    pub op: CollectiveOp,
    /// Its group.
    pub group: u32,
    /// PyTorch's id of the operation.
    pub op_id: u64,
    /// How many collectives the rank has issued in the group, this one included; zero for sends
    /// and receives, and if nobody counted.
    pub number: u64,
    /// Bytes that the rank passes, less than `u64::MAX`; `None` if unknown.
    pub bytes: Option<u64>,
    /// Bytes of an element of its first tensor; zero if unknown.
    pub element_bytes: u64,
}

impl CollectiveIssue {
    /// The `number`th collective of a rank in a group, of unknown size.
    pub fn new(op: CollectiveOp, group: u32, number: u64) -> Self {
        Self {
            op,
            group,
            op_id: 0,
            number,
            bytes: None,
            element_bytes: 0,
        }
    }
}

/// What a block of a pipeline computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// The forward pass.
    Forward,
    /// The backward pass; with [`Pass::Weight`] beside it, its part for the inputs only.
    Backward,
    /// The part of the backward pass that is for the weights, which nobody waits for.
    Weight,
}

impl Pass {
    /// All passes, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Backward, Self::Weight];

    /// The pass behind a number, `None` if this build knows none.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its name in sentences.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Weight => "weight",
        }
    }
}

/// A block of a pipeline, as the rank that works on it names it.
///
/// A rank that does not know its place says that the model has no stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// What it computes.
    pub pass: Pass,
    /// Which stage of the model.
    pub stage: u32,
    /// Which microbatch.
    pub microbatch: u32,
    /// Stages of the model.
    pub stages: u32,
    /// The lowest rank of the pipeline.
    pub first_rank: u32,
}

/// When a device got to a mark of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTime {
    /// What it got to.
    pub reached: DeviceReached,
    /// When the host made that mark, on the clock of the marks.
    pub made_at: RankNs,
    /// When the device got there, since it got to the run's first mark.
    pub device_ns: u64,
    /// The first step of the run of sampled steps.
    pub first_step: u32,
    /// The mark's place in the run, from 0.
    pub place: u64,
    /// The device got there at most so many microseconds before the host saw it: then the host had looked, and
    /// it was not there. Zero if the host had not looked.
    pub seen_within_us: u32,
}

/// What a device got to: the end of a run of sampled steps, or a mark in it.
///
/// Of the mark so much is kept as segments of steps need: its name, the pass of its block, the
/// operation and the group of its collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceReached {
    kind: Option<MarkKind>,
    code: u16,
    group: u32,
}

impl DeviceReached {
    /// The end of the run.
    pub const END: Self = Self {
        kind: None,
        code: 0,
        group: 0,
    };

    /// The mark of an event.
    pub fn mark(event: &Event) -> Self {
        // The code holds a name, a pass or an operation; of the numbers only the group is needed.
        let (code, _) = event.encode();
        let group = match event {
            Event::CollectiveIssue(issue) => issue.group,
            _ => 0,
        };
        Self {
            kind: Some(event.kind()),
            code,
            group,
        }
    }

    /// What the mark said, as far as it was kept; `None` at the end of the run.
    pub fn event(self) -> Option<Event> {
        Event::decode(self.kind?, self.code, [self.group.into(), 0, 0, 0, 0])
    }
}

impl From<MarkKind> for Event {
    /// An event of a kind of which no more is known.
    #[inline]
    fn from(kind: MarkKind) -> Self {
        let place = BlockPlace {
            pass: Pass::Forward,
            stage: 0,
            microbatch: 0,
            stages: 0,
            first_rank: 0,
        };
        match kind {
            MarkKind::DataBegin => Self::DataBegin,
            MarkKind::DataEnd => Self::DataEnd,
            MarkKind::DataStop => Self::DataStop,
            MarkKind::ForwardBegin => Self::ForwardBegin,
            MarkKind::ForwardEnd => Self::ForwardEnd,
            MarkKind::BackwardBegin => Self::BackwardBegin,
            MarkKind::BackwardEnd => Self::BackwardEnd,
            MarkKind::OptimizerBegin => Self::OptimizerBegin,
            MarkKind::OptimizerEnd => Self::OptimizerEnd,
            MarkKind::StageBegin => Self::StageBegin { name: 0 },
            MarkKind::StageEnd => Self::StageEnd { name: 0 },
            MarkKind::StepBegin => Self::StepBegin,
            MarkKind::StepEnd => Self::StepEnd,
            MarkKind::CollectiveIssue => {
                Self::CollectiveIssue(CollectiveIssue::new(CollectiveOp::UNKNOWN, 0, 0))
            }
            MarkKind::SideSample => Self::SideSample {
                name: 0,
                nanoseconds: 0,
            },
            MarkKind::SideLost => Self::SideLost { name: 0 },
            MarkKind::BlockBegin => Self::BlockBegin(place),
            MarkKind::BlockEnd => Self::BlockEnd(place),
            MarkKind::ProfilerBegin => Self::ProfilerBegin,
            MarkKind::ProfilerEnd => Self::ProfilerEnd,
            MarkKind::InitBegin => Self::InitBegin {
                group: 0,
                number: 0,
            },
            MarkKind::InitEnd => Self::InitEnd {
                group: 0,
                number: 0,
            },
            MarkKind::DeviceTime => Self::DeviceTime(DeviceTime {
                reached: DeviceReached::END,
                made_at: RankNs(0),
                device_ns: 0,
                first_step: 0,
                place: 0,
                seen_within_us: 0,
            }),
            MarkKind::ReadBackBegin => Self::ReadBackBegin,
            MarkKind::ReadBackEnd => Self::ReadBackEnd { name: 0 },
        }
    }
}

impl Event {
    /// The kind of mark that says it.
    #[inline]
    pub fn kind(&self) -> MarkKind {
        match self {
            Self::DataBegin => MarkKind::DataBegin,
            Self::DataEnd => MarkKind::DataEnd,
            Self::DataStop => MarkKind::DataStop,
            Self::ForwardBegin => MarkKind::ForwardBegin,
            Self::ForwardEnd => MarkKind::ForwardEnd,
            Self::BackwardBegin => MarkKind::BackwardBegin,
            Self::BackwardEnd => MarkKind::BackwardEnd,
            Self::OptimizerBegin => MarkKind::OptimizerBegin,
            Self::OptimizerEnd => MarkKind::OptimizerEnd,
            Self::StageBegin { .. } => MarkKind::StageBegin,
            Self::StageEnd { .. } => MarkKind::StageEnd,
            Self::StepBegin => MarkKind::StepBegin,
            Self::StepEnd => MarkKind::StepEnd,
            Self::CollectiveIssue(_) => MarkKind::CollectiveIssue,
            Self::SideSample { .. } => MarkKind::SideSample,
            Self::SideLost { .. } => MarkKind::SideLost,
            Self::BlockBegin(_) => MarkKind::BlockBegin,
            Self::BlockEnd(_) => MarkKind::BlockEnd,
            Self::ProfilerBegin => MarkKind::ProfilerBegin,
            Self::ProfilerEnd => MarkKind::ProfilerEnd,
            Self::InitBegin { .. } => MarkKind::InitBegin,
            Self::InitEnd { .. } => MarkKind::InitEnd,
            Self::DeviceTime(_) => MarkKind::DeviceTime,
            Self::ReadBackBegin => MarkKind::ReadBackBegin,
            Self::ReadBackEnd { .. } => MarkKind::ReadBackEnd,
        }
    }

    /// The name it gives, in the rank's name table.
    pub fn name(&self) -> Option<u16> {
        match self {
            Self::StageBegin { name }
            | Self::StageEnd { name }
            | Self::SideSample { name, .. }
            | Self::SideLost { name }
            | Self::ReadBackEnd { name } => Some(*name),
            _ => None,
        }
    }

    /// The code and the numbers that stand for it beside its kind.
    #[inline]
    pub fn encode(&self) -> (u16, [u64; 5]) {
        // A number's place is part of the format: a new one takes the next free place.
        const NO_NUMBERS: [u64; 5] = [0; 5];
        match *self {
            Self::DataBegin
            | Self::DataEnd
            | Self::DataStop
            | Self::ForwardBegin
            | Self::ForwardEnd
            | Self::BackwardBegin
            | Self::BackwardEnd
            | Self::OptimizerBegin
            | Self::OptimizerEnd
            | Self::StepBegin
            | Self::StepEnd
            | Self::ProfilerBegin
            | Self::ProfilerEnd
            | Self::ReadBackBegin => (0, NO_NUMBERS),
            Self::StageBegin { name }
            | Self::StageEnd { name }
            | Self::SideLost { name }
            | Self::ReadBackEnd { name } => (name, NO_NUMBERS),
            Self::SideSample { name, nanoseconds } => (name, [nanoseconds, 0, 0, 0, 0]),
            Self::CollectiveIssue(issue) => {
                // One more than the bytes: older probes wrote nothing.
                let bytes_and_1 = issue.bytes.map_or(0, |bytes| bytes.saturating_add(1));
                let CollectiveIssue {
                    op,
                    group,
                    op_id,
                    number,
                    element_bytes,
                    ..
                } = issue;
                (
                    op.0,
                    [group.into(), op_id, number, bytes_and_1, element_bytes],
                )
            }
            Self::BlockBegin(place) | Self::BlockEnd(place) => {
                let BlockPlace {
                    pass,
                    stage,
                    microbatch,
                    stages,
                    first_rank,
                } = place;
                let numbers = [stage, microbatch, stages, first_rank, 0];
                // Declared in the order of [`Pass::ALL`], from which it is read back.
                (pass as u16, numbers.map(u64::from))
            }
            Self::InitBegin { group, number } | Self::InitEnd { group, number } => {
                (0, [group.into(), number, 0, 0, 0])
            }
            Self::DeviceTime(time) => {
                let DeviceTime {
                    reached,
                    made_at,
                    device_ns,
                    first_step,
                    place,
                    seen_within_us,
                } = time;
                // Kinds begin at 1, so 0 is free for the end of a run.
                let kind = reached.kind.map_or(0, |kind| kind as u16);
                let what = u64::from(reached.code) << 32 | u64::from(reached.group);
                let run = u64::from(seen_within_us) << 32 | u64::from(first_step);
                (kind, [made_at.0, device_ns, what, run, place])
            }
        }
    }

    /// The event behind a kind, a code and numbers; `None` if a number is too large for its place
    /// or stands for something that this build does not know.
    pub fn decode(kind: MarkKind, code: u16, numbers: [u64; 5]) -> Option<Self> {
        let [first, second, third, fourth, fifth] = numbers;
        // By variant: what has no numbers is complete as `From` makes it, and needs no arm.
        Some(match Self::from(kind) {
            Self::StageBegin { .. } => Self::StageBegin { name: code },
            Self::StageEnd { .. } => Self::StageEnd { name: code },
            Self::SideLost { .. } => Self::SideLost { name: code },
            Self::ReadBackEnd { .. } => Self::ReadBackEnd { name: code },
            Self::SideSample { .. } => Self::SideSample {
                name: code,
                nanoseconds: first,
            },
            Self::CollectiveIssue(_) => Self::CollectiveIssue(CollectiveIssue {
                op: CollectiveOp(code),
                group: small(first)?,
                op_id: second,
                number: third,
                // One was added: 0 is unknown, as in recordings that had no bytes.
                bytes: fourth.checked_sub(1),
                element_bytes: fifth,
            }),
            Self::BlockBegin(_) => Self::BlockBegin(BlockPlace::decode(code, numbers)?),
            Self::BlockEnd(_) => Self::BlockEnd(BlockPlace::decode(code, numbers)?),
            Self::InitBegin { .. } => Self::InitBegin {
                group: small(first)?,
                number: second,
            },
            Self::InitEnd { .. } => Self::InitEnd {
                group: small(first)?,
                number: second,
            },
            Self::DeviceTime(_) => Self::DeviceTime(DeviceTime {
                reached: DeviceReached::decode(code, third)?,
                made_at: RankNs(first),
                device_ns: second,
                first_step: fourth as u32,
                place: fifth,
                seen_within_us: (fourth >> 32) as u32,
            }),
            bare => bare,
        })
    }
}

fn small(number: u64) -> Option<u32> {
    // Refused, not cut off: that would be another rank or group.
    u32::try_from(number).ok()
}

impl BlockPlace {
    fn decode(pass: u16, [stage, microbatch, stages, first_rank, _]: [u64; 5]) -> Option<Self> {
        Some(Self {
            pass: Pass::from_number(pass)?,
            stage: small(stage)?,
            microbatch: small(microbatch)?,
            stages: small(stages)?,
            first_rank: small(first_rank)?,
        })
    }
}

impl DeviceReached {
    fn decode(kind: u16, what: u64) -> Option<Self> {
        if kind == 0 {
            return Some(Self::END);
        }
        // Only 0 is the end of a run. A kind of a newer probe has no event, and is refused below.
        let kind = MarkKind::from_number(u8::try_from(kind).ok()?);
        let reached = Self {
            kind,
            code: u16::try_from(what >> 32).ok()?,
            // The low half; the code is the high one.
            group: what as u32,
        };
        reached.event().map(|_| reached)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = BlockPlace> {
        (prop::sample::select(&Pass::ALL[..]), any::<[u32; 4]>()).prop_map(
            |(pass, [stage, microbatch, stages, first_rank])| BlockPlace {
                pass,
                stage,
                microbatch,
                stages,
                first_rank,
            },
        )
    }

    fn issue() -> impl Strategy<Value = CollectiveIssue> {
        (
            any::<u16>(),
            any::<u32>(),
            any::<[u64; 3]>(),
            prop::option::of(0..u64::MAX),
        )
            .prop_map(|(op, group, [op_id, number, element_bytes], bytes)| {
                let op = CollectiveOp(op);
                CollectiveIssue {
                    op,
                    group,
                    op_id,
                    number,
                    bytes,
                    element_bytes,
                }
            })
    }

    fn on_host() -> impl Strategy<Value = Event> {
        let kinds = prop::sample::select(&MarkKind::ALL[..]);
        (
            kinds,
            any::<u16>(),
            any::<u32>(),
            any::<u64>(),
            place(),
            issue(),
        )
            .prop_map(|(kind, name, group, number, place, issue)| {
                match Event::from(kind) {
                    Event::StageBegin { .. } => Event::StageBegin { name },
                    Event::StageEnd { .. } => Event::StageEnd { name },
                    Event::SideSample { .. } => Event::SideSample {
                        name,
                        nanoseconds: number,
                    },
                    Event::SideLost { .. } => Event::SideLost { name },
                    Event::CollectiveIssue(_) => Event::CollectiveIssue(issue),
                    Event::BlockBegin(_) => Event::BlockBegin(place),
                    Event::BlockEnd(_) => Event::BlockEnd(place),
                    Event::InitBegin { .. } => Event::InitBegin { group, number },
                    Event::InitEnd { .. } => Event::InitEnd { group, number },
                    Event::ReadBackEnd { .. } => Event::ReadBackEnd { name },
                    bare => bare,
                }
            })
    }

    pub(crate) fn any_event() -> impl Strategy<Value = Event> {
        let time = (
            prop::option::of(on_host()),
            any::<[u64; 3]>(),
            any::<[u32; 2]>(),
        );
        prop_oneof![
            8 => on_host(),
            1 => time.prop_map(|(event, [made_at, device_ns, place], [first_step, seen_within_us])| {
                let reached = event.map_or(DeviceReached::END, |of| DeviceReached::mark(&of));
                let made_at = RankNs(made_at);
                Event::DeviceTime(DeviceTime {
                    reached, made_at, device_ns, first_step, place, seen_within_us,
                })
            }),
        ]
    }

    proptest! {
        #[test]
        fn an_event_survives_its_encoding(event in any_event()) {
            let (code, numbers) = event.encode();
            prop_assert_eq!(Event::decode(event.kind(), code, numbers), Some(event));
        }

        #[test]
        fn what_decodes_is_what_the_numbers_say(
            kind in prop::sample::select(&MarkKind::ALL[..]), code: u16, numbers: [u64; 5],
        ) {
            let Some(event) = Event::decode(kind, code, numbers) else { return Ok(()) };
            prop_assert_eq!(event.kind(), kind);
            let (code, numbers) = event.encode();
            prop_assert_eq!(Event::decode(kind, code, numbers), Some(event));
        }

        /// What segments of a step are made of is the same on the device's clock.
        #[test]
        fn a_device_reaches_what_its_host_did(event in on_host()) {
            let Some(reached) = DeviceReached::mark(&event).event() else {
                panic!("{event:?} is nothing")
            };
            prop_assert_eq!((reached.kind(), reached.name()), (event.kind(), event.name()));
            let joins = |event: &Event| match event {
                Event::CollectiveIssue(issue) => Some((issue.op, issue.group)),
                _ => None,
            };
            prop_assert_eq!(joins(&reached), joins(&event));
        }
    }
}
