//! Reports of Nsight Systems, exported as SQLite (`nsys export --type sqlite`).
//!
//! Exports of all versions differ in their tables and columns: what is not there was not recorded.

mod calls;
mod tables;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::Path;

use pattern::Resource;
use rusqlite::types::ValueRef;
use trace::{Counter, NameId, Slice, SliceKind, Trace, Track, Transfer};

use crate::names::{collective_of_kernel, is_point_to_point, without_counts};
use crate::recording::io_error;
use crate::{FormatError, Limits};
use calls::NvtxCalls;
use tables::{Loss, MAX_PACKED_BYTES, Tables};

pub(crate) use tables::MAGIC;

/// Event types of `NVTX_EVENTS` that are ranges: pushed and popped, started and ended.
const RANGES: [i64; 2] = [59, 60];
/// Slices of one report that are kept.
const MAX_SLICES: usize = 1 << 25;
/// Samples of one report that are kept, of all its processes.
const MAX_SAMPLES: usize = 1 << 25;
/// Tracks of one process that are told apart.
const MAX_TRACKS: usize = 1 << 15;

/// Kinds of copies, by CUPTI's numbers.
const COPIES: [(i64, &str); 5] = [
    (1, "Memcpy HtoD"),
    (2, "Memcpy DtoH"),
    (8, "Memcpy DtoD"),
    (10, "Memcpy PtoP"),
    (0, "Memcpy"),
];

/// Metrics of `GPU_METRICS` by how their names begin, and what they measure; the first that a
/// device has counts.
const METRICS: [(&str, Resource); 6] = [
    ("SMs Active", Resource::Sm),
    ("SM Active", Resource::Sm),
    ("DRAM Read", Resource::Dram),
    ("DRAM Bandwidth", Resource::Dram),
    ("NVLink RX", Resource::NvLink),
    ("PCIe RX", Resource::Pcie),
];

/// One process of a report.
#[derive(Default)]
struct ReportProcess {
    trace: Trace,
    tracks: HashMap<(i64, i64), u16>,
    /// Devices it uses.
    devices: Vec<i64>,
}

/// Reads a report that lies on the disk as it is: a trace for each process that used a device or
/// was annotated.
///
/// # Errors
/// What SQLite says of the file; a report without any event.
pub(crate) fn read_file(path: &Path) -> Result<Vec<Trace>, FormatError> {
    read(path, &Tables::of_file(path)?)
}

/// Reads a report that is unpacked on the way, which SQLite can do from memory only.
///
/// # Errors
/// As [`read_file`]; what is larger than `limits` or what SQLite takes.
pub(crate) fn read_packed(
    path: &Path,
    reader: impl Read,
    limits: Limits,
) -> Result<Vec<Trace>, FormatError> {
    let mut bytes = Vec::new();
    let mut most = reader.take(MAX_PACKED_BYTES + 1);
    most.read_to_end(&mut bytes)
        .map_err(|error| io_error(path, error, limits))?;
    if bytes.len() as u64 > MAX_PACKED_BYTES {
        let limit_bytes = MAX_PACKED_BYTES;
        return Err(FormatError::TooLarge {
            path: path.to_owned(),
            limit_bytes,
        });
    }
    let tables = Tables::of_bytes(path, &bytes)?;
    // SQLite has a copy of its own.
    drop(bytes);
    read(path, &tables)
}

fn read(path: &Path, tables: &Tables) -> Result<Vec<Trace>, FormatError> {
    // Every export has it: names in all other tables are numbers of this one.
    if !tables.has("StringIds")? {
        let found =
            "it is an SQLite file, but not an export of Nsight Systems: it has no StringIds";
        return Err(FormatError::Unknown {
            path: path.to_owned(),
            found: found.to_owned(),
        });
    }
    let mut strings: HashMap<i64, String> = HashMap::new();
    tables.rows("StringIds", ["id", "value"], |row| {
        if let (Some(id), Some(text)) = (number(row[0]), text(row[1])) {
            strings.insert(id, text.into_owned());
        }
    });
    let mut started_ns = None;
    // Times count from the start of the capture; this leads to the wall clock. `startTime` of
    // `ANALYSIS_DETAILS` does not: it is the host's monotonic clock.
    tables.rows("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"], |row| {
        started_ns = started_ns.or(number(row[0]));
    });
    let mut host = None;
    tables.rows("TARGET_INFO_SYSTEM_ENV", ["name", "value"], |row| {
        if text(row[0]).as_deref() == Some("Hostname") {
            host = text(row[1]).map(Cow::into_owned);
        }
    });
    let mut report = Report {
        strings,
        processes: BTreeMap::new(),
        calls: NvtxCalls::of(tables),
        launched: HashMap::new(),
        kept: 0,
        too_many: 0,
    };
    // Kernels first: calls of the runtime are joined with the kernels they launch.
    report.device(tables);
    report.ranges(tables);
    report.runtime(tables);
    report.metrics(tables);
    report.name_transfers();
    let seats = report.seats();
    let (too_many, shift_ns) = (report.too_many, started_ns.unwrap_or(0));
    let mut processes: Vec<(i64, ReportProcess)> = report.processes.into_iter().collect();
    // Launchers and data loaders are annotated too: beside processes with devices they are no
    // ranks.
    if processes
        .iter()
        .any(|(_, process)| !process.devices.is_empty())
    {
        processes.retain(|(_, process)| !process.devices.is_empty());
    }
    // Launchers give devices to ranks in order: the best guess where NCCL does not say the ranks.
    processes.sort_by_key(|(_, process)| process.devices.iter().min().copied());
    let (several, losses) = (processes.len() > 1, tables.losses());
    let mut traces = Vec::with_capacity(processes.len());
    for (at, (pid, process)) in processes.into_iter().enumerate() {
        let mut trace = process.trace;
        // A single process may be any rank; the file's name may say which.
        trace.rank = several.then(|| u32::try_from(at).unwrap_or(u32::MAX));
        trace.is_rank_of_host = several;
        if let Some((size, rank)) = seats.get(&pid) {
            (trace.rank, trace.world_size) = (Some(*rank), Some(*size));
            trace.is_rank_of_host = false;
        }
        trace.host.clone_from(&host);
        trace.absolute = started_ns.is_some();
        if too_many > 0 {
            trace
                .losses
                .push(format!("{too_many} events beyond the limit"));
        }
        trace
            .losses
            .extend(losses.iter().map(|Loss { place, reason }| {
                format!("{place}: {reason}; what follows there is left out")
            }));
        trace.settle(shift_ns);
        // After `settle`, which sorts: steps are numbered in the order of their times.
        number_steps(&mut trace);
        if !trace.slices.is_empty() {
            traces.push(trace);
        }
    }
    if traces.is_empty() {
        if let Some(Loss { place, reason }) = losses.first().cloned() {
            return Err(FormatError::Damaged {
                path: path.to_owned(),
                place,
                reason,
            });
        }
        let found = "the report has neither NVTX ranges nor CUDA events: record them with \
                     nsys profile --trace=cuda,nvtx";
        return Err(FormatError::Unknown {
            path: path.to_owned(),
            found: found.to_owned(),
        });
    }
    Ok(traces)
}

struct Report {
    strings: HashMap<i64, String>,
    processes: BTreeMap<i64, ReportProcess>,
    calls: NvtxCalls,
    /// Transfers by the process and the correlation number of their kernels.
    launched: HashMap<(i64, i64), usize>,
    kept: usize,
    too_many: u64,
}

/// Where a slice lies: a device and a stream, or nothing and a thread.
type SlicePlace = (i64, i64);
/// Device of tracks that are threads of the host.
const HOST: i64 = -1;

fn number(value: ValueRef<'_>) -> Option<i64> {
    value.as_i64().ok()
}

fn text(value: ValueRef<'_>) -> Option<Cow<'_, str>> {
    match value {
        ValueRef::Text(bytes) => Some(String::from_utf8_lossy(bytes)),
        _ => None,
    }
}

impl Report {
    /// A text, or the one whose number is given instead.
    fn text<'a>(&'a self, value: ValueRef<'a>) -> Option<Cow<'a, str>> {
        text(value).or_else(|| Some(Cow::from(self.strings.get(&number(value)?)?.as_str())))
    }

    /// Adds a slice; the place of its transfer if it is a collective.
    fn add(
        &mut self,
        process: i64,
        place: SlicePlace,
        name: &str,
        kind: SliceKind,
        row: &[ValueRef<'_>],
    ) -> Option<usize> {
        let [start, end, ..] = row else { return None };
        // A range that never ended has no length.
        let (start_ns, end_ns) = number(*start).zip(number(*end))?;
        let process = self.processes.entry(process).or_default();
        let tracks = process.tracks.len();
        let known = process.tracks.contains_key(&place);
        // A slice has 16 bits for its track.
        if self.kept >= MAX_SLICES || (!known && tracks >= MAX_TRACKS) {
            self.too_many += 1;
            return None;
        }
        self.kept += 1;
        let trace = &mut process.trace;
        let lane = *process.tracks.entry(place).or_insert_with(|| {
            let (device, thread) = (place.0.to_string(), place.1.to_string());
            trace.tracks.push(Track {
                process: device,
                thread,
                name: None,
            });
            tracks as u16
        });
        if place.0 != HOST && !process.devices.contains(&place.0) {
            process.devices.push(place.0);
        }
        let name: NameId = trace.names.intern(name);
        let mut detail = 0;
        if kind == SliceKind::Collective {
            let op = collective_of_kernel(trace.names.text(name)).unwrap_or_default();
            trace.transfers.push(Transfer {
                is_point_to_point: is_point_to_point(&op),
                op,
                ..Transfer::default()
            });
            detail = trace.transfers.len() as u32 - 1;
        }
        let end_ns = end_ns.max(start_ns);
        let slice = Slice {
            start_ns,
            end_ns,
            name,
            detail,
            track: lane,
            kind,
        };
        trace.slices.push(slice);
        (kind == SliceKind::Collective).then_some(detail as usize)
    }

    fn device(&mut self, tables: &Tables) {
        let [start, end, device, stream, process] =
            ["start", "end", "deviceId", "streamId", "globalPid"];
        let [short, long, number_of] = ["shortName", "demangledName", "correlationId"];
        let kernels = [start, end, device, stream, process, short, long, number_of];
        tables.rows("CUPTI_ACTIVITY_KIND_KERNEL", kernels, |row| {
            let Some((process, place)) = device_place(row) else {
                return;
            };
            let name = self
                .text(row[5])
                .or_else(|| self.text(row[6]))
                .map_or_else(|| "kernel".to_owned(), Cow::into_owned);
            let kind = match collective_of_kernel(&name) {
                Some(_) => SliceKind::Collective,
                None => SliceKind::Kernel,
            };
            let transfer = self.add(process, place, &name, kind, row);
            if let Some((transfer, launch)) = transfer.zip(number(row[7])) {
                // With the process: correlation numbers of processes in one report repeat.
                self.launched.insert((process, launch), transfer);
            }
        });
        let copies = [start, end, device, stream, process, "copyKind"];
        tables.rows("CUPTI_ACTIVITY_KIND_MEMCPY", copies, |row| {
            let Some((process, place)) = device_place(row) else {
                return;
            };
            let kind = number(row[5]).unwrap_or(0);
            let name = COPIES
                .iter()
                .find(|(number, _)| *number == kind)
                .map_or("Memcpy", |(_, name)| name);
            self.add(process, place, name, SliceKind::Memory, row);
        });
        let sets = [start, end, device, stream, process];
        tables.rows("CUPTI_ACTIVITY_KIND_MEMSET", sets, |row| {
            let Some((process, place)) = device_place(row) else {
                return;
            };
            self.add(process, place, "Memset", SliceKind::Memory, row);
        });
    }

    fn ranges(&mut self, tables: &Tables) {
        let [start, end, kind, thread, text] = ["start", "end", "eventType", "globalTid", "text"];
        let columns = [start, end, kind, thread, text, "textId", "binaryData"];
        tables.rows("NVTX_EVENTS", columns, |row| {
            let is_range = number(row[2]).is_some_and(|kind| RANGES.contains(&kind));
            let Some(thread) = number(row[3]).filter(|_| is_range) else {
                return;
            };
            // Registered names stand in `textId`, others in `text`; one report has both.
            let Some(name) = self.text(row[4]).or_else(|| self.text(row[5])) else {
                return;
            };
            let name = without_counts(&name).to_owned();
            // `emit_nvtx` of PyTorch makes each operator a range like any other: only its name says
            // so.
            let is_op = name.starts_with("aten::")
                || name.starts_with("autograd::")
                || name.contains("Backward");
            let kind = if is_op {
                SliceKind::Op
            } else {
                SliceKind::Annotation
            };
            self.calls
                .range((pid_of(thread), thread), &name, row[0], row[6]);
            self.add(pid_of(thread), (HOST, thread & 0xff_ffff), &name, kind, row);
        });
    }

    /// Calls of the runtime in which the host waits for the device, or launches a collective.
    fn runtime(&mut self, tables: &Tables) {
        let columns = ["start", "end", "globalTid", "nameId", "correlationId"];
        tables.rows("CUPTI_ACTIVITY_KIND_RUNTIME", columns, |row| {
            let Some(thread) = number(row[2]) else { return };
            let launched = number(row[4]).and_then(|id| self.launched.get(&(pid_of(thread), id)));
            if let Some((transfer, at_ns)) = launched.zip(number(row[0])) {
                self.calls.launch(thread, at_ns, *transfer);
            }
            let Some(name) = self
                .text(row[3])
                .filter(|name| name.contains("Synchronize"))
            else {
                return;
            };
            let name = name.into_owned();
            let place = (HOST, thread & 0xff_ffff);
            self.add(pid_of(thread), place, &name, SliceKind::Wait, row);
        });
    }

    /// Says of collectives what NCCL has said of the calls for them.
    fn name_transfers(&mut self) {
        let Self {
            calls, processes, ..
        } = self;
        calls.transfers(|thread, at, found| {
            let process = processes.get_mut(&pid_of(thread));
            if let Some(transfer) = process.and_then(|p| p.trace.transfers.get_mut(at)) {
                *transfer = found;
            }
        });
    }

    /// The size of the largest communicator of each process, and its rank there, if all processes say
    /// so, of the same size, and each another rank.
    fn seats(&self) -> BTreeMap<i64, (u32, u32)> {
        let seats: BTreeMap<i64, (u32, u32)> = self
            .processes
            .iter()
            .filter(|(_, process)| !process.devices.is_empty())
            .map(|(pid, _)| Some((*pid, self.calls.seat(*pid)?)))
            .collect::<Option<_>>()
            .unwrap_or_default();
        let sizes: BTreeSet<u32> = seats.values().map(|(size, _)| *size).collect();
        let ranks: BTreeSet<u32> = seats.values().map(|(_, rank)| *rank).collect();
        if sizes.len() == 1 && ranks.len() == seats.len() {
            seats
        } else {
            BTreeMap::new()
        }
    }

    fn metrics(&mut self, tables: &Tables) {
        // The metrics of each device by the place in the list of what they are.
        let mut known: HashMap<(i64, i64), usize> = HashMap::new();
        let mut chosen: HashMap<(i64, Resource), usize> = HashMap::new();
        let columns = ["typeId", "metricId", "metricName"];
        tables.rows("TARGET_INFO_GPU_METRICS", columns, |row| {
            let name = text(row[2]).unwrap_or_default();
            let metric = METRICS
                .iter()
                .position(|(metric, _)| name.starts_with(metric));
            if let (Some(kind), Some(id), Some(metric)) = (number(row[0]), number(row[1]), metric) {
                known.insert((kind, id), metric);
                let first = chosen.entry((kind, METRICS[metric].1)).or_insert(metric);
                *first = metric.min(*first);
            }
        });
        known.retain(|(kind, _), metric| chosen[&(*kind, METRICS[*metric].1)] == *metric);
        let mut samples: BTreeMap<(i64, Resource), Vec<(i64, f32)>> = BTreeMap::new();
        let mut kept = 0;
        let columns = ["timestamp", "typeId", "metricId", "value"];
        tables.rows("GPU_METRICS", columns, |row| {
            let numbers = [0, 1, 2].map(|at: usize| number(row[at]));
            let [Some(at), Some(kind), Some(id)] = numbers else {
                return;
            };
            let value = match row[3] {
                ValueRef::Integer(value) => value as f32,
                ValueRef::Real(value) => value as f32,
                _ => return,
            };
            if let Some(metric) = known.get(&(kind, id)) {
                if kept >= MAX_SAMPLES {
                    self.too_many += 1;
                    return;
                }
                kept += 1;
                // The device is the lowest byte of the type's number, as BSC's nsys2prv reads it.
                let place = (kind & 0xff, METRICS[*metric].1);
                samples
                    .entry(place)
                    .or_default()
                    .push((at, value.clamp(0.0, 100.0) / 100.0));
            }
        });
        let mut copied = 0;
        for ((device, resource), mut samples) in samples {
            // Metrics that begin alike are parts of one, such as what a link carries for
            // requests and for responses.
            samples.sort_by_key(|(at, _)| *at);
            samples.dedup_by(|next, kept| {
                let is_part = next.0 == kept.0;
                kept.1 += if is_part { next.1 } else { 0.0 };
                is_part
            });
            for (_, share) in &mut samples {
                *share = share.min(1.0);
            }
            for process in self.processes.values_mut() {
                // A device is sampled as a whole: processes that share it get the same series, as far
                // as there is room for copies.
                if !process.devices.contains(&device) {
                    continue;
                }
                if copied + samples.len() > MAX_SAMPLES {
                    self.too_many += samples.len() as u64;
                    continue;
                }
                copied += samples.len();
                let samples = samples.clone();
                process.trace.counters.push(Counter { resource, samples });
            }
        }
    }
}

/// The process of something on a device, and where it lies: the columns are its times, device,
/// stream and process.
fn device_place(row: &[ValueRef<'_>]) -> Option<(i64, SlicePlace)> {
    let (device, stream) = (number(row[2])?, number(row[3])?);
    // Not below zero: that would be a thread of the host.
    Some((number(row[4]).map_or(0, pid_of), (device.max(0), stream)))
}

/// The process in a global id.
fn pid_of(global: i64) -> i64 {
    // From the bottom: 24 bits of thread, then 24 of process.
    global >> 24 & 0xff_ffff
}

/// How ranges of steps are called; "iteration" stands before "iter", with which it begins.
const STEP_WORDS: [&str; 6] = [
    "profilerstep",
    "train_step",
    "training_step",
    "iteration",
    "iter",
    "step",
];

/// The number of the step that a range is called by, `next` if it says none; `None` of a range that
/// is not called like a step.
fn step_in(name: &str, next: u32) -> Option<u32> {
    let name = name.to_lowercase();
    let rest = STEP_WORDS.iter().find_map(|word| name.strip_prefix(word))?;
    let number = rest.trim_start_matches([' ', '_', '#', ':', '=', '-', '[']);
    let digits = number.bytes().take_while(u8::is_ascii_digit).count();
    match number[..digits].parse::<u32>() {
        // Such as "step 12" and "Step 0 to 10", not "step2vec".
        Ok(found) if !number[digits..].starts_with(char::is_alphabetic) => Some(found),
        _ => rest.is_empty().then_some(next),
    }
}

/// Takes ranges that are called like steps for steps: numbered ones, or one name again and again.
fn number_steps(trace: &mut Trace) {
    let mut next = 0;
    let mut end_ns = i64::MIN;
    for at in 0..trace.slices.len() {
        let slice = trace.slices[at];
        // What is called like a step within a step is a part of it, such as "iter" of an optimizer.
        if slice.kind != SliceKind::Annotation || slice.start_ns < end_ns {
            continue;
        }
        let Some(number) = step_in(trace.names.text(slice.name), next) else {
            continue;
        };
        (next, end_ns) = (number.saturating_add(1), slice.end_ns);
        let name = trace.names.intern(&format!("ProfilerStep#{number}"));
        trace.slices[at] = Slice {
            name,
            kind: SliceKind::Step,
            ..slice
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_and_threads_are_read_from_global_ids() {
        let (process, thread) = (4242, 4250);
        let global = 1 << 48 | process << 24 | thread;
        assert_eq!((pid_of(global), global & 0xff_ffff), (process, thread));
    }

    #[test]
    fn ranges_called_like_steps_are_steps() {
        let mut trace = Trace {
            tracks: vec![Track::default()],
            ..Trace::default()
        };
        let names = ["step 4", "forward", "Step", "iteration_9 to 10", "step2vec"];
        for (start_ns, name) in (0..).step_by(10).zip(names) {
            let name = trace.names.intern(name);
            let (end_ns, kind) = (start_ns + 9, SliceKind::Annotation);
            trace.slices.push(Slice {
                start_ns,
                end_ns,
                name,
                detail: 0,
                track: 0,
                kind,
            });
        }
        number_steps(&mut trace);
        let names: Vec<&str> = trace.slices.iter().map(|slice| trace.name(slice)).collect();
        let expected = [
            "ProfilerStep#4",
            "forward",
            "ProfilerStep#5",
            "ProfilerStep#9",
            "step2vec",
        ];
        assert_eq!(names, expected);
    }

    /// Two processes with a device each, of which NCCL tells what their only kernel carries.
    #[test]
    fn collectives_have_what_nccl_said_of_their_calls() {
        let mut made = rusqlite::Connection::open_in_memory().unwrap();
        made.execute_batch(
            "CREATE TABLE StringIds (id, value);
             INSERT INTO StringIds VALUES (1, 'ncclDevKernel_Generic(x)'), (2, 'cudaLaunchKernel');
             CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (schemaId, name, offset);
             INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES
                (100, 'NCCL communicator ID', NULL), (100, 'Message size [bytes]', 8),
                (200, 'NCCL communicator ID', NULL), (200, 'No. of ranks', 8),
                (200, 'Rank', 12);
             CREATE TABLE NVTX_EVENTS (start, end, eventType, globalTid, text, binaryData);
             CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME
                (start, end, globalTid, nameId, correlationId);
             CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
                (start, end, deviceId, streamId, globalPid, shortName, correlationId);",
        )
        .unwrap();
        // The process with device 0 is rank 3 of four, the other one rank 2.
        for (device, process, rank) in [(0_i64, 11_i64, 3_u32), (1, 12, 2)] {
            let pid = process << 24;
            let head =
                |schema: u32| [[0_u8; 8].as_slice(), &schema.to_le_bytes(), &[0; 20]].concat();
            let communicator = 0xab_u64.to_le_bytes();
            let seat = [4_u32.to_le_bytes(), rank.to_le_bytes()].concat();
            let init = [head(200), communicator.to_vec(), seat].concat();
            let call = [
                head(100),
                communicator.to_vec(),
                4096_u64.to_le_bytes().to_vec(),
            ]
            .concat();
            let range = "INSERT INTO NVTX_EVENTS VALUES (?1, ?2, 59, ?3, ?4, ?5)";
            let (init_name, call_name) = ("ncclCommInitRank", "ncclAllReduce");
            made.execute(range, (1, 2, pid | 5, init_name, init))
                .unwrap();
            made.execute(range, (10, 12, pid | 5, call_name, call))
                .unwrap();
            let launch = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (11, 12, ?1, 2, 77)";
            made.execute(launch, (pid | 5,)).unwrap();
            let kernel = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (20, 30, ?1, 9, ?2, 1, 77)";
            made.execute(kernel, (device, pid)).unwrap();
        }
        let file = made.serialize(rusqlite::MAIN_DB).unwrap().to_vec();
        let traces = read_packed(Path::new("f"), &*file, Limits::default()).unwrap();
        let reported = traces.iter().map(|trace| {
            let Transfer {
                op, group, bytes, ..
            } = trace.transfers[0].clone();
            (trace.rank, trace.world_size, op, group, bytes)
        });
        let expected = |rank| {
            let group = Some("comm 0x00000000000000ab".to_owned());
            (Some(rank), Some(4), "AllReduce".to_owned(), group, 4096)
        };
        assert_eq!(reported.collect::<Vec<_>>(), [expected(3), expected(2)]);
    }

    /// A report of one device with kernels enough for many pages.
    fn report_with_kernels(rest: &str) -> Vec<u8> {
        let mut made = rusqlite::Connection::open_in_memory().unwrap();
        made.execute_batch(&format!(
            "CREATE TABLE StringIds (id, value);
             CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
                (start, end, deviceId, streamId, globalPid, shortName);
             WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999)
             INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL
                SELECT i * 10, i * 10 + 5, 0, 7, 0, 'kernel ' || i FROM n;
             {rest}"
        ))
        .unwrap();
        made.serialize(rusqlite::MAIN_DB).unwrap().to_vec()
    }

    #[test]
    fn a_damaged_table_loses_what_lies_behind_the_damage() {
        let mut file = report_with_kernels(
            "CREATE TABLE NVTX_EVENTS (start, end, eventType, globalTid, text);
             INSERT INTO NVTX_EVENTS VALUES (0, 9000, 59, 5, 'step 1');",
        );
        let marker = file
            .windows(10)
            .position(|bytes| bytes == b"kernel 500")
            .unwrap();
        file[marker / 4096 * 4096] = 0xff;
        let traces = read_packed(Path::new("f"), &*file, Limits::default()).unwrap();
        let trace = &traces[0];
        let kernels = trace
            .slices
            .iter()
            .filter(|s| s.kind == SliceKind::Kernel)
            .count();
        assert!((1..500).contains(&kernels), "{kernels}");
        assert!(
            trace
                .slices
                .iter()
                .any(|slice| slice.kind == SliceKind::Step)
        );
        assert_eq!(
            trace.losses,
            [format!(
                "CUPTI_ACTIVITY_KIND_KERNEL, after row {kernels}: database disk image is \
                 malformed; what follows there is left out"
            )]
        );
    }

    #[test]
    fn metrics_of_a_device_are_one_series_for_each_resource() {
        let file = report_with_kernels(
            "CREATE TABLE TARGET_INFO_GPU_METRICS (typeId, metricId, metricName);
             INSERT INTO TARGET_INFO_GPU_METRICS VALUES
                (256, 1, 'SM Active'), (256, 2, 'SMs Active [Throughput %]'),
                (256, 3, 'NVLink RX Requests User Data [Throughput %]'),
                (256, 4, 'NVLink RX Responses User Data [Throughput %]'),
                (257, 1, 'SMs Active [Throughput %]');
             CREATE TABLE GPU_METRICS (timestamp, typeId, metricId, value);
             INSERT INTO GPU_METRICS VALUES
                (20, 256, 1, 11), (20, 256, 2, 90), (20, 256, 3, 25), (20, 256, 4, 50),
                (10, 256, 2, 80), (10, 256, 3, 70), (10, 256, 4, 60), (10, 257, 1, 5);",
        );
        let traces = read_packed(Path::new("f"), &*file, Limits::default()).unwrap();
        let reported = traces[0]
            .counters
            .iter()
            .map(|c| (c.resource, c.samples.clone()));
        let reported: BTreeMap<_, _> = reported.collect();
        let expected = BTreeMap::from([
            (Resource::Sm, vec![(10, 0.8), (20, 0.9)]),
            (Resource::NvLink, vec![(10, 1.0), (20, 0.75)]),
        ]);
        assert_eq!(reported, expected);
    }

    #[test]
    fn what_is_no_report_is_refused_with_its_place() {
        let refusal = |bytes: &[u8]| {
            let refused = read_packed(Path::new("f"), bytes, Limits::default());
            refused.unwrap_err().to_string()
        };
        let empty = rusqlite::Connection::open_in_memory().unwrap();
        empty.execute_batch("CREATE TABLE t (a)").unwrap();
        let mut empty = empty;
        let empty = empty.serialize(rusqlite::MAIN_DB).unwrap().to_vec();
        assert!(refusal(&empty).contains("no StringIds"));
        assert_eq!(
            refusal(MAGIC),
            "f, at sqlite_schema: file is not a database"
        );
    }
}
