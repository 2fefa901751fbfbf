use rustc_hash::FxHashMap;

/// Index of a name in [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// Names of a trace, each kept once.
#[derive(Clone, Debug, Default)]
pub struct Names {
    texts: Vec<Box<str>>,
    ids: FxHashMap<Box<str>, NameId>,
}

impl Names {
    /// Gives a name an id, the one it already has if it was seen before.
    pub fn intern(&mut self, name: &str) -> NameId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = NameId(self.texts.len() as u32);
        self.texts.push(name.into());
        self.ids.insert(name.into(), id);
        id
    }

    /// The name behind an id, empty for an id this table never gave.
    pub fn text(&self, id: NameId) -> &str {
        self.texts.get(id.0 as usize).map_or("", |text| text)
    }

    /// All names.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(|text| &**text)
    }
}

/// What a slice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SliceKind {
    /// A step of the training loop, as the profiler was told of it.
    Step,
    /// A range the program, PyTorch or a library named.
    Annotation,
    /// An operator on the host.
    Op,
    /// A Python function.
    Python,
    /// A runtime call in which the host waits for the device.
    Wait,
    /// A kernel that computes.
    Kernel,
    /// A copy or a fill of device memory.
    Memory,
    /// A collective: its kernel on a device, its execution by gloo on the host.
    Collective,
}

impl SliceKind {
    /// Whether it is work of a device.
    pub fn is_device(self) -> bool {
        matches!(self, Self::Kernel | Self::Memory)
    }
}

/// A span of time on one track.
///
/// # Units
/// Nanoseconds; whose clock, [`Trace::absolute`] says.
/// # Invariants
/// `start_ns <= end_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// When it starts.
    pub start_ns: i64,
    /// When it ends.
    pub end_ns: i64,
    /// Its name.
    pub name: NameId,
    /// Place of what else is known of it: in [`Trace::frames`] for Python, in
    /// [`Trace::transfers`] for collectives.
    pub detail: u32,
    /// Its track.
    pub track: u16,
    /// What it is about.
    pub kind: SliceKind,
}

impl Slice {
    /// How long it takes.
    pub fn duration_ns(&self) -> i64 {
        self.end_ns - self.start_ns
    }
}

/// Where slices lie one behind the other: a thread, or a stream of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The process, or the device.
    pub process: String,
    /// The thread, or the stream.
    pub thread: String,
    /// What the thread is called.
    pub name: Option<String>,
}

/// What is known of a Python slice beside its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonFrame {
    /// The profiler's number of the call.
    pub id: u32,
    /// That of its caller.
    pub parent: Option<u32>,
}

/// What is known of a collective beside its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Name of its process group.
    pub group: Option<String>,
    /// Members of the group, ascending; empty if not recorded.
    pub members: Vec<u32>,
    /// Which operation.
    pub op: String,
    /// Elements, type and split, as far as recorded: equal on ranks that are in the same
    /// operation.
    pub shape: String,
    /// Its number in the group.
    pub sequence: Option<u64>,
    /// Bytes of the message, zero if not recorded.
    pub bytes: u64,
    /// Whether it joins two ranks only.
    pub is_point_to_point: bool,
}

/// Utilisation of one resource over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    /// Which resource.
    pub resource: pattern::Resource,
    /// Time in nanoseconds and utilisation from 0 to 1, in time order.
    pub samples: Vec<(i64, f32)>,
}

/// What a profiler recorded of one rank.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Global rank.
    pub rank: Option<u32>,
    /// Whether that is only its place among the processes of its host.
    pub is_rank_of_host: bool,
    /// Ranks of the job.
    pub world_size: Option<u32>,
    /// The host.
    pub host: Option<String>,
    /// Whether times are nanoseconds since the epoch rather than since an origin of the
    /// file's own.
    pub absolute: bool,
    /// Process groups with their members.
    pub groups: Vec<(String, Vec<u32>)>,
    /// Names of slices.
    pub names: Names,
    /// Tracks of slices.
    pub tracks: Vec<Track>,
    /// Slices by start; of those that start together the longest first.
    pub slices: Vec<Slice>,
    /// Python calls.
    pub frames: Vec<PythonFrame>,
    /// Collectives.
    pub transfers: Vec<Transfer>,
    /// Counters of devices.
    pub counters: Vec<Counter>,
    /// What was lost while it was read, in words.
    pub losses: Vec<String>,
    /// Whether kernels that the host launched are missing: what the device did is unknown.
    pub lacks_kernels: bool,
}

impl Trace {
    /// Puts slices onto their clock, `shift_ns` later than they were read, and into their order.
    /// Drops what cannot be true: kernels without a time, which profilers write as zeros,
    /// durations of weeks, device slices that reach into the next one of their stream.
    pub fn settle(&mut self, shift_ns: i64) {
        const WEEK_NS: i64 = 7 * 86_400 * 1_000_000_000;
        let before = self.slices.len();
        // Before the shift, after which a time that was never written is no longer 0.
        self.slices.retain(|slice| {
            let never = slice.start_ns == 0 && slice.end_ns == 0;
            !never && slice.duration_ns() <= WEEK_NS
        });
        let dropped = before - self.slices.len();
        if dropped > 0 {
            self.losses
                .push(format!("{dropped} slices without a time that can be true"));
        }
        for slice in &mut self.slices {
            slice.start_ns = slice.start_ns.saturating_add(shift_ns);
            slice.end_ns = slice.end_ns.saturating_add(shift_ns);
        }
        self.slices
            // What encloses others may start with them, and is to stand before them.
            .sort_by_key(|slice| (slice.start_ns, std::cmp::Reverse(slice.end_ns), slice.track));
        let mut next = vec![i64::MAX; self.tracks.len()];
        // From behind: on a device one slice runs after the other, so each ends by the next.
        for slice in self.slices.iter_mut().rev() {
            let Some(next) = next.get_mut(usize::from(slice.track)) else {
                continue;
            };
            if slice.kind.is_device() || slice.kind == SliceKind::Collective {
                // Not before its own start: the next may start at the same instant.
                slice.end_ns = slice.end_ns.min((*next).max(slice.start_ns));
                *next = slice.start_ns;
            }
        }
        for counter in &mut self.counters {
            for (at, _) in &mut counter.samples {
                *at = at.saturating_add(shift_ns);
            }
            counter.samples.sort_by_key(|(at, _)| *at);
        }
    }

    /// The name of a slice.
    pub fn name(&self, slice: &Slice) -> &str {
        self.names.text(slice.name)
    }

    /// Whether anything ran on a device.
    pub fn has_device(&self) -> bool {
        self.slices.iter().any(|slice| slice.kind.is_device())
    }

    /// The thread the training loop runs on: the one of the steps, else the one with most
    /// host slices that are not collectives.
    pub fn loop_track(&self) -> Option<u16> {
        let step = self
            .slices
            .iter()
            .find(|slice| slice.kind == SliceKind::Step);
        step.map(|slice| slice.track).or_else(|| {
            let mut counts = vec![0u64; self.tracks.len()];
            for slice in &self.slices {
                if !slice.kind.is_device()
                    && slice.kind != SliceKind::Collective
                    && let Some(count) = counts.get_mut(usize::from(slice.track))
                {
                    *count += 1;
                }
            }
            // The first of equals: `max_by_key` alone would give the last.
            let busiest = (0..counts.len()).max_by_key(|at| (counts[*at], usize::MAX - at));
            busiest
                .filter(|at| counts[*at] > 0)
                .and_then(|at| u16::try_from(at).ok())
        })
    }

    /// The time that is analysed: from the first step to the end of the last, or all of it if
    /// no step was recorded.
    pub fn span_ns(&self) -> Option<(i64, i64)> {
        span_ns_of(
            self.slices
                .iter()
                .filter(|slice| slice.kind == SliceKind::Step),
        )
        .or_else(|| span_ns_of(self.slices.iter()))
        .filter(|(from, to)| from < to)
    }
}

/// From the first start to the last end.
fn span_ns_of<'a>(slices: impl Iterator<Item = &'a Slice>) -> Option<(i64, i64)> {
    slices
        .map(|slice| (slice.start_ns, slice.end_ns))
        .reduce(|span, slice| (span.0.min(slice.0), span.1.max(slice.1)))
}
