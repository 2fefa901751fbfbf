//! From raw events to a trace.

use std::collections::BTreeMap;
use std::str::FromStr;

use memchr::memmem;
use pattern::Resource;
use rustc_hash::FxHashMap;
use serde_json::Value;
use trace::{Counter, NameId, PythonFrame, Slice, SliceKind, Trace, Track, Transfer};

use super::scan::{RawEvent, members, nanoseconds, text};
use crate::flight_recorder::element_bytes;
use crate::names::{
    collective_of_kernel, is_point_to_point, without_addresses, without_generated_path,
};

/// Slices of one trace that are kept, 32 bytes each.
const MAX_SLICES: usize = 1 << 25;
/// Tracks of one trace.
const MAX_TRACKS: usize = 1 << 15;

/// Part of the launched kernels from which on they are taken for all. Ours.
const KERNELS_MIN: f64 = 0.9;
/// A collective of which the name and the arguments of the kernel do not tell the operation.
const UNNAMED: &str = "collective";

/// Times from here on count from the epoch.
pub(super) const YEAR_2000_NS: i64 = 946_684_800 * 1_000_000_000;

/// What a category of events becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Category {
    Slices(SliceKind),
    /// Calls of the device's runtime: kept where the host waits in them.
    Runtime,
    /// Annotations of the host, repeated where the device works them off.
    OfDevice,
    Counters,
    Nothing,
}

/// Categories of all versions, without their case.
const CATEGORIES: [(&[u8], Category); 24] = [
    (b"cpu_op", Category::Slices(SliceKind::Op)),
    (b"python_function", Category::Slices(SliceKind::Python)),
    (b"kernel", Category::Slices(SliceKind::Kernel)),
    (b"user_annotation", Category::Slices(SliceKind::Annotation)),
    (b"cuda_runtime", Category::Runtime),
    (b"cuda_driver", Category::Runtime),
    (b"gpu_memcpy", Category::Slices(SliceKind::Memory)),
    (b"gpu_memset", Category::Slices(SliceKind::Memory)),
    (b"hardware_counters", Category::Counters),
    (b"operator", Category::Slices(SliceKind::Op)),
    (b"memcpy", Category::Slices(SliceKind::Memory)),
    (b"memset", Category::Slices(SliceKind::Memory)),
    (b"runtime", Category::Runtime),
    (b"xpu_runtime", Category::Runtime),
    (b"xpu_driver", Category::Runtime),
    (b"privateuse1_runtime", Category::Runtime),
    (b"privateuse1_driver", Category::Runtime),
    (b"mtia_runtime", Category::Runtime),
    (b"glow_runtime", Category::Runtime),
    (b"mtia_ccp_events", Category::Slices(SliceKind::Kernel)),
    (b"hpu_op", Category::Slices(SliceKind::Kernel)),
    (b"collective_comm", Category::Slices(SliceKind::Collective)),
    // No slices: each `ProfilerStep#` would count twice.
    (b"gpu_user_annotation", Category::OfDevice),
    (b"overhead", Category::Nothing),
];

/// Operators that are ranges the profiler named, in traces from before there were annotations.
const RANGES: [&str; 3] = ["enumerate(DataLoader)#", "Optimizer.", "## "];

#[derive(Debug, Default)]
pub(super) struct TraceBuilder {
    pub(super) trace: Trace,
    tracks: FxHashMap<Box<[u8]>, u16>,
    /// Process and thread of the last event, and their track.
    last_track: (Vec<u8>, u16),
    /// Bytes of a name as they stand in the file, and the name they are.
    names: FxHashMap<Box<[u8]>, (NameId, SliceKind)>,
    counters: BTreeMap<Resource, Vec<(i64, f32)>>,
    /// Kernels, and launches of them by the runtime and by the driver.
    kernels: u64,
    launches: [u64; 2],
    /// Operations of NCCL's by annotations, of a device's streams: track, begin, end, name.
    on_streams: Vec<(u16, i64, i64, String)>,
    /// The same of the host, as it issues them.
    issued: Vec<(i64, String)>,
    /// Events of which nothing is used.
    unused: u64,
    pub(super) no_time: u64,
    pub(super) too_many: u64,
    scratch: Vec<u8>,
}

impl TraceBuilder {
    pub(super) fn take(&mut self, event: &RawEvent<'_>) {
        match event.phase {
            b"X" => self.slice(event),
            b"M" if event.name == b"thread_name" => self.name_thread(event),
            b"C" => self.counter(event),
            b"B" | b"E" => self.unused += 1,
            _ => {}
        }
    }

    fn slice(&mut self, event: &RawEvent<'_>) {
        let kind = match category(event.category) {
            Category::Slices(kind) => kind,
            Category::Runtime if is_wait(event.name) => SliceKind::Wait,
            Category::Runtime => {
                let is_of_driver = event.category.ends_with(b"driver");
                self.launches[usize::from(is_of_driver)] += u64::from(is_launch(event.name));
                return;
            }
            Category::OfDevice => return self.annotate(event),
            _ => {
                self.unused += 1;
                return;
            }
        };
        let times = nanoseconds(event.at).zip(nanoseconds(event.took));
        let Some((start_ns, took_ns)) = times else {
            self.no_time += 1;
            return;
        };
        if self.trace.slices.len() >= MAX_SLICES {
            self.too_many += 1;
            return;
        }
        let Some(track) = self.track(event.process, event.thread) else {
            self.too_many += 1;
            return;
        };
        self.kernels += u64::from(kind == SliceKind::Kernel);
        if let SliceKind::Annotation | SliceKind::Op = kind
            && let Some(op) = annotated(event.name)
        {
            self.issued.push((start_ns, op));
        }
        // After the limits: names of events that are not kept take no memory.
        let (name, kind) = self.name(event.name, kind);
        let detail = match kind {
            SliceKind::Python => self.frame(event.args),
            SliceKind::Collective => self.transfer(event.name, event.args),
            _ => 0,
        };
        let end_ns = start_ns.saturating_add(took_ns.max(0));
        self.trace.slices.push(Slice {
            start_ns,
            end_ns,
            name,
            detail,
            track,
            kind,
        });
    }

    /// Keeps which operation of NCCL's runs on a stream.
    fn annotate(&mut self, event: &RawEvent<'_>) {
        let times = nanoseconds(event.at).zip(nanoseconds(event.took));
        if let (Some(op), Some((start_ns, took_ns))) = (annotated(event.name), times)
            && self.on_streams.len() < MAX_SLICES
            && let Some(track) = self.track(event.process, event.thread)
        {
            let end_ns = start_ns.saturating_add(took_ns.max(0));
            self.on_streams.push((track, start_ns, end_ns, op));
        }
    }

    /// Names collectives of which neither kernel nor arguments tell the operation: by what is written
    /// over them on their stream, else by what the host issued, one after the other.
    fn name_by_annotations(&mut self) {
        let Trace {
            slices, transfers, ..
        } = &mut self.trace;
        let collectives = slices.iter().filter(|it| it.kind == SliceKind::Collective);
        let mut unnamed: Vec<&Slice> = collectives
            .filter(|it| {
                transfers
                    .get(it.detail as usize)
                    .is_some_and(|it| it.op == UNNAMED)
            })
            .collect();
        unnamed.sort_by_key(|slice| slice.start_ns);
        self.on_streams.sort();
        self.issued.sort();
        let one = self.issued.iter().all(|it| it.1 == self.issued[0].1);
        let in_order = one || self.issued.len() == unnamed.len();
        for (place, slice) in unnamed.into_iter().enumerate() {
            let place = if one { 0 } else { place };
            let issued = self.issued.get(place).filter(|_| in_order);
            let before = self.on_streams.partition_point(|(track, start_ns, ..)| {
                (*track, *start_ns) <= (slice.track, slice.start_ns)
            });
            let over = self.on_streams[..before]
                .last()
                .filter(|(track, _, end_ns, _)| *track == slice.track && slice.start_ns < *end_ns);
            if let Some(op) = over.map(|it| &it.3).or(issued.map(|it| &it.1)) {
                let transfer = &mut transfers[slice.detail as usize];
                transfer.is_point_to_point = is_point_to_point(op);
                transfer.op.clone_from(op);
            }
        }
    }

    /// The id of a name and what the slice is about, which the name can tell better than its
    /// category.
    fn name(&mut self, raw: &[u8], kind: SliceKind) -> (NameId, SliceKind) {
        // One buffer for all look-ups: nearly every event has a name that is known.
        self.scratch.clear();
        // With the kind, since one text may name an operator and an annotation.
        self.scratch.push(kind as u8);
        self.scratch.extend_from_slice(raw);
        if let Some(known) = self.names.get(self.scratch.as_slice()) {
            return *known;
        }
        let name = text(raw);
        let kind = match kind {
            // Steps were operators in 2021.
            SliceKind::Op | SliceKind::Annotation if name.starts_with("ProfilerStep#") => {
                SliceKind::Step
            }
            SliceKind::Op if RANGES.iter().any(|range| name.starts_with(range)) => {
                SliceKind::Annotation
            }
            // Gloo has no kernels: this annotation, of its own thread, lasts as long as the
            // transfer.
            SliceKind::Op | SliceKind::Annotation if name.starts_with("gloo:") => {
                SliceKind::Collective
            }
            SliceKind::Kernel if collective_of_kernel(&name).is_some() => SliceKind::Collective,
            kind => kind,
        };
        let known = match kind {
            SliceKind::Python => {
                let name = without_generated_path(&name);
                self.trace.names.intern(&without_addresses(&name))
            }
            _ => self.trace.names.intern(&name),
        };
        self.names
            .insert(self.scratch.as_slice().into(), (known, kind));
        (known, kind)
    }

    fn track(&mut self, process: &[u8], thread: &[u8]) -> Option<u16> {
        // Events of one thread mostly follow each other, so the last track is tried first.
        self.scratch.clear();
        self.scratch.extend_from_slice(process);
        self.scratch.push(0);
        self.scratch.extend_from_slice(thread);
        if self.scratch == self.last_track.0 {
            return Some(self.last_track.1);
        }
        let track = match self.tracks.get(self.scratch.as_slice()) {
            Some(known) => *known,
            // A slice has 16 bits for its track.
            None if self.tracks.len() >= MAX_TRACKS => return None,
            None => {
                let track = self.trace.tracks.len() as u16;
                self.trace.tracks.push(Track {
                    process: text(process).into_owned(),
                    thread: text(thread).into_owned(),
                    name: None,
                });
                self.tracks.insert(self.scratch.as_slice().into(), track);
                track
            }
        };
        self.last_track.0.clone_from(&self.scratch);
        self.last_track.1 = track;
        Some(track)
    }

    fn name_thread(&mut self, event: &RawEvent<'_>) {
        let mut name = None;
        let read = members(event.args, |key, value| {
            if key == b"name" {
                name = Some(text(value).into_owned());
            }
        });
        if read.is_ok()
            && let Some(track) = self.track(event.process, event.thread)
        {
            self.trace.tracks[usize::from(track)].name = name;
        }
    }

    fn frame(&mut self, args: &[u8]) -> u32 {
        let (mut id, mut parent) = (None, None);
        let read = members(args, |key, value| match key {
            b"Python id" => id = parsed(value),
            b"Python parent id" => parent = parsed(value),
            _ => {}
        });
        let frame = match read.ok().and(id) {
            Some(id) => PythonFrame { id, parent },
            // Nobody's parent, and nobody's child.
            None => PythonFrame {
                id: u32::MAX,
                parent: None,
            },
        };
        self.trace.frames.push(frame);
        self.trace.frames.len() as u32 - 1
    }

    fn transfer(&mut self, name: &[u8], args: &[u8]) -> u32 {
        let name = text(name);
        // Traces name the collective in their arguments since October 2023, and before only in the
        // name of the kernel.
        let op = name
            .strip_prefix("gloo:")
            .map(str::to_owned)
            .or_else(|| collective_of_kernel(&name))
            .filter(|op| !op.is_empty())
            .unwrap_or_else(|| UNNAMED.to_owned());
        let mut transfer = Transfer {
            op,
            ..Transfer::default()
        };
        let mut shape = Vec::new();
        let (mut elements, mut kind) = (0u64, Vec::new());
        // What cannot be read was not recorded.
        let _is_read = members(args, |key, value| match key {
            b"Collective name" => transfer.op = text(value).into_owned(),
            b"Process Group Name" => transfer.group = Some(text(value).into_owned()),
            b"Process Group Ranks" => transfer.members = ranks(value),
            // Collectives of a group by their order: what they are matched by across ranks.
            b"Seq" => transfer.sequence = parsed(value),
            b"dtype" => kind = value.to_vec(),
            b"In msg nelems" | b"Out msg nelems" => {
                // One of the two is a part of the other in gathers and scatters: the larger is the
                // whole.
                elements = elements.max(parsed(value).unwrap_or(0));
                shape.push((key, value));
            }
            b"In split size" | b"Out split size" | b"Input Dims" => {
                shape.push((key, value));
            }
            _ => {}
        });
        transfer.bytes = elements.saturating_mul(element_bytes(&kind));
        transfer.is_point_to_point = is_point_to_point(&transfer.op);
        // Splits differ over the ranks of an all-to-all, and sizes over those of a gather.
        let dense = [
            "all_reduce",
            "allreduce",
            "AllReduce",
            "broadcast",
            "Broadcast",
        ];
        if dense.contains(&transfer.op.as_str()) {
            transfer.shape = shape
                .iter()
                .map(|(_, value)| String::from_utf8_lossy(value))
                .collect::<Vec<_>>()
                .join(" ");
        }
        self.trace.transfers.push(transfer);
        self.trace.transfers.len() as u32 - 1
    }

    fn counter(&mut self, event: &RawEvent<'_>) {
        if category(event.category) != Category::Counters {
            return;
        }
        let name = text(event.name);
        let Some(resource) = resource_of(&name) else {
            return;
        };
        let mut value = None;
        // The value is the only argument, and its key is empty.
        let read = members(event.args, |_, raw| {
            value = parsed::<f32>(raw);
        });
        let sample = read.ok().and(nanoseconds(event.at).zip(value));
        let Some((at, value)) = sample.filter(|(_, value)| value.is_finite()) else {
            self.no_time += 1;
            return;
        };
        let samples = self.counters.entry(resource).or_default();
        if samples.len() < MAX_SLICES {
            samples.push((at, (value / 100.0).clamp(0.0, 1.0)));
        }
    }

    /// What stands beside the events.
    pub(super) fn describe(&mut self, key: &[u8], raw: &[u8], shift_ns: &mut i64) {
        match key {
            b"distributedInfo" => match serde_json::from_slice::<Value>(raw) {
                Ok(info) => self.identify(&info),
                Err(error) => self.trace.losses.push(format!("distributedInfo: {error}")),
            },
            b"baseTimeNanoseconds" => {
                // Each process has a base of its own: without it ranks of one job would be apart by
                // it.
                *shift_ns = parsed::<u64>(raw)
                    .and_then(|base| i64::try_from(base).ok())
                    .unwrap_or(0);
            }
            b"host_name" => self.trace.host = Some(text(raw).into_owned()),
            _ => {}
        }
    }

    fn identify(&mut self, info: &Value) {
        self.trace.rank = as_u32(&info["rank"]).or(self.trace.rank);
        self.trace.world_size = as_u32(&info["world_size"]).or(self.trace.world_size);
        for group in info["pg_config"].as_array().into_iter().flatten() {
            let Some(name) = group["pg_name"].as_str() else {
                continue;
            };
            let members = match &group["ranks"] {
                Value::Array(list) => list.iter().filter_map(as_u32).collect(),
                // On-demand traces have it in a string.
                Value::String(list) => ranks(list.as_bytes()),
                _ => Vec::new(),
            };
            self.trace.groups.push((name.to_owned(), members));
        }
    }

    pub(super) fn finish(mut self, shift_ns: i64) -> Trace {
        self.name_by_annotations();
        let mut trace = self.trace;
        // NCCL runs an all-to-all in the kernels of sends, which the host alone may name.
        let is_exchange = |name: &str| {
            let calls = ["c10d::alltoall", "nccl:all_to_all"];
            calls.iter().any(|call| name.starts_with(call))
        };
        if trace.names.texts().any(is_exchange) {
            for transfer in &mut trace.transfers {
                transfer.is_point_to_point &= transfer.op != "SendRecv";
            }
        }
        if trace.slices.is_empty() && self.unused > 0 {
            trace.losses.push(format!(
                "{} events, none of them of a category of PyTorch's profiler",
                self.unused
            ));
        }
        let launched = self.launches.into_iter().max().unwrap_or(0);
        // Some are launched at the end, and run when nothing is recorded any more.
        if launched > 0 && (self.kernels as f64) < KERNELS_MIN * launched as f64 {
            trace.lacks_kernels = true;
            let lost = launched - self.kernels;
            trace.losses.push(format!(
                "{lost} of {launched} kernels that the host launched"
            ));
        }
        // The writer clamps times before its base to zero, and what is without a time has zero
        // too: where times count from long ago, nothing was recorded then.
        if shift_ns != 0
            || trace
                .slices
                .iter()
                .any(|slice| slice.start_ns > YEAR_2000_NS)
        {
            for slice in trace.slices.iter_mut().filter(|slice| slice.start_ns == 0) {
                slice.end_ns = 0;
            }
        }
        trace.counters = std::mem::take(&mut self.counters)
            .into_iter()
            .map(|(resource, samples)| Counter { resource, samples })
            .collect();
        if self.no_time > 0 {
            let lost = format!(
                "{} events whose time or value is not a number",
                self.no_time
            );
            trace.losses.push(lost);
        }
        if self.too_many > 0 {
            trace
                .losses
                .push(format!("{} events beyond the limit", self.too_many));
        }
        // Lists in events are cut at 30 ranks; the groups' own lists are whole.
        for transfer in &mut trace.transfers {
            let group = transfer
                .group
                .as_ref()
                .and_then(|name| trace.groups.iter().find(|(known, _)| known == name));
            if let Some((_, members)) = group
                && !members.is_empty()
            {
                transfer.members.clone_from(members);
            }
        }
        trace.settle(shift_ns);
        trace
    }
}

fn category(raw: &[u8]) -> Category {
    // In turn, for each event: the list begins with the categories that are most of a trace.
    CATEGORIES
        .iter()
        .find(|(name, _)| raw.eq_ignore_ascii_case(name))
        .map_or(Category::Nothing, |(_, category)| *category)
}

/// The operation in `nccl:all_reduce` or `nccl:send 0->1`.
fn annotated(name: &[u8]) -> Option<String> {
    let op = text(name.strip_prefix(b"nccl:")?).into_owned();
    op.split(' ').next().map(str::to_owned)
}

/// Whether the host launches a kernel in a call of its runtime.
fn is_launch(name: &[u8]) -> bool {
    // `cudaLaunchKernel`, `cuLaunchKernelEx`, `hipExtModuleLaunchKernel`.
    memmem::find(name, b"LaunchKernel").is_some()
}

/// Whether the host waits for the device in a call of its runtime.
fn is_wait(name: &[u8]) -> bool {
    // Alike in all runtimes: `cudaStreamSynchronize`, `hipDeviceSynchronize`, `cuCtxSynchronize`.
    memmem::find(name, b"Synchronize").is_some()
}

/// What a counter measures, by the names of CUPTI's metrics.
fn resource_of(name: &str) -> Option<Resource> {
    // A rate or a count has no full scale that it could be a share of.
    if !(name.contains("pct") || name.contains('%')) {
        return None;
    }
    let families = [
        ("sm__", Resource::Sm),
        ("dram__", Resource::Dram),
        ("pcie__", Resource::Pcie),
        ("nvl", Resource::NvLink),
    ];
    families
        .iter()
        .find(|(family, _)| name.starts_with(family))
        .map(|(_, resource)| *resource)
}

/// The ranks in `[0, 1, 2, ...]`; empty if the list was cut.
fn ranks(list: &[u8]) -> Vec<u32> {
    // Beyond 30 ranks the writer ends a list with "...", which is no number: no list at all is
    // better than the first ranks of one.
    String::from_utf8_lossy(list)
        .trim_matches(['[', ']'])
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().ok())
        .collect::<Option<Vec<u32>>>()
        .unwrap_or_default()
}

fn parsed<T: FromStr>(raw: &[u8]) -> Option<T> {
    std::str::from_utf8(raw).ok()?.parse().ok()
}

fn as_u32(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}
