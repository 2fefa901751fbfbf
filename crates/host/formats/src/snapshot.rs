//! What other tools say of a job, in several files: Flight Recorder dumps and stacks of each
//! rank, replies of NCCL's RAS, logs of NCCL Inspector, what a dead job printed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::path::Path;

use collective::{idle_ports, slow_links};
use model::{
    DumpNote, Frame, Input, LogDefect, RasNote, SlowConnection, Source, SourceNote, Stack,
};
use schedule::{Layout, LayoutError, RankCalls};
use serde::Deserialize;
use serde_json::{Value, json};
use verdict::{Job, Settings, WorkRequests};

use crate::call_log::CallLog;
use crate::dumps::{self, Dump};
use crate::file_name::named_rank;
use crate::flight_recorder::Versioned;
use crate::inspector::{self, InspectorLog};
use crate::ras::{RasJob, RasReply};
use crate::ras_text;
use crate::watchdog_log::{self, WatchdogLog};
use crate::work_requests::{self, RequestLog};
use crate::{FormatError, Limits, launched, py_spy};

/// Frames that are shown of a stack, the innermost.
const MAX_FRAMES: usize = 4;

/// What one file says of a job.
#[derive(Clone, Debug)]
pub struct SnapshotPart(PartContent);

#[derive(Clone, Debug)]
enum PartContent {
    Dump { rank: u32, dump: Dump },
    Stack { rank: u32, stack: Stack },
    Ras(RasReply),
    Inspector(InspectorLog),
    Calls(CallLog),
    Requests(RequestLog),
    Watchdog(Box<WatchdogLog>),
}

impl SnapshotPart {
    /// Reads a Flight Recorder dump.
    pub(crate) fn dump(path: &Path, document: Value) -> Result<Self, FormatError> {
        // First: those of another version have entries of another form.
        if let Some(version) = document.get("version") {
            let _known: Versioned = content(path, json!({ "version": version }))?;
        }
        let (rank, dump) = (rank_of(path)?, content(path, document)?);
        Ok(Self(PartContent::Dump { rank, dump }))
    }

    /// Reads what `py-spy dump --json` prints.
    pub(crate) fn stacks(path: &Path, document: Value) -> Result<Self, FormatError> {
        let stack = py_spy::main_stack(content(path, document)?);
        let rank = rank_of(path)?;
        Ok(Self(PartContent::Stack { rank, stack }))
    }

    /// Reads what `py-spy dump` prints without `--json`.
    pub(crate) fn stack_text(path: &Path, text: &str) -> Result<Self, FormatError> {
        // First: that there are several processes says more than that the name has no rank.
        let stack = py_spy::main_stack(py_spy::read(path, text)?);
        let rank = rank_of(path)?;
        Ok(Self(PartContent::Stack { rank, stack }))
    }

    /// Reads what NCCL's RAS answers in JSON.
    pub(crate) fn ras(path: &Path, document: Value) -> Result<Self, FormatError> {
        Ok(Self(PartContent::Ras(RasReply::read(path, document)?)))
    }

    /// Which job it is about, if it is a reply of NCCL's RAS.
    pub(crate) fn ras_job(&self) -> Option<RasJob> {
        match &self.0 {
            PartContent::Ras(reply) => Some(reply.job()),
            _ => None,
        }
    }

    /// Reads what NCCL's RAS answers in words, or what a job printed beside it: as in a folder of both,
    /// the reply counts if ranks are apart in it.
    pub(crate) fn ras_text(path: &Path, text: &str) -> Result<Self, FormatError> {
        let reply = ras_text::read(path, text)?;
        let printed = if reply.tells() {
            None
        } else {
            WatchdogLog::read(text.as_bytes(), None).ok().flatten()
        };
        Ok(printed.map_or(Self(PartContent::Ras(reply)), Self::watchdog))
    }

    /// Reads a log of NCCL Inspector.
    pub(crate) fn inspector(
        path: &Path,
        reader: impl BufRead,
        limits: Limits,
    ) -> Result<Self, FormatError> {
        Ok(Self(PartContent::Inspector(InspectorLog::read(
            path, reader, limits,
        )?)))
    }

    /// Reads telemetry of work requests.
    pub(crate) fn work_requests(
        path: &Path,
        reader: impl BufRead,
        limits: Limits,
    ) -> Result<Self, FormatError> {
        Ok(Self(PartContent::Requests(work_requests::read(
            path, reader, limits,
        )?)))
    }

    /// What a job printed, of which PyTorch's NCCL watchdog is a part.
    pub(crate) fn watchdog(log: WatchdogLog) -> Self {
        Self(PartContent::Watchdog(Box::new(log)))
    }

    /// The ranks that the lines of a log name; `None` of anything else.
    pub(crate) fn printers(&self) -> Option<&BTreeSet<u32>> {
        match &self.0 {
            PartContent::Watchdog(log) => Some(log.printers()),
            _ => None,
        }
    }

    /// Reads a log of NCCL calls.
    pub(crate) fn calls(
        path: &Path,
        reader: impl BufRead,
        limits: Limits,
    ) -> Result<Self, FormatError> {
        Ok(Self(PartContent::Calls(CallLog::read(
            path, reader, limits,
        )?)))
    }
}

pub(crate) fn content<T: for<'de> Deserialize<'de>>(
    path: &Path,
    document: Value,
) -> Result<T, FormatError> {
    serde_path_to_error::deserialize(document).map_err(|error| FormatError::Content {
        path: path.to_owned(),
        place: error.path().to_string(),
        reason: error.into_inner().to_string(),
    })
}

/// The rank a file is about.
fn rank_of(path: &Path) -> Result<u32, FormatError> {
    named_rank(path).ok_or_else(|| FormatError::Unnamed {
        path: path.to_owned(),
    })
}

/// One job, from the files of several ranks or tools.
#[derive(Clone, Debug)]
pub struct Snapshot(Vec<SnapshotPart>);

impl Snapshot {
    /// Puts the files of one job together.
    pub fn new(parts: Vec<SnapshotPart>) -> Self {
        Self(parts)
    }

    /// Runs the snapshot through the analysis and returns the finished job.
    pub fn replay(&self, id: &str, settings: Settings) -> Job {
        let logs: Vec<&InspectorLog> = self.inspector_logs().collect();
        let calls = self.call_logs().count() + self.request_logs().count();
        let mut replies: Vec<&RasReply> = self.replies().collect();
        let dumped: BTreeSet<u32> = self.dumps().map(|(rank, _)| rank).collect();
        let replies_tell = replies.iter().any(|reply| reply.tells());
        // Dumps say the same as logs, and more of it, as RAS does where ranks are apart. Where they are
        // not, that RAS counts ranks must not say that those which printed nothing entered nothing.
        let printed: Vec<&WatchdogLog> = if !dumped.is_empty() || replies_tell {
            Vec::new()
        } else {
            self.watchdog_logs().collect()
        };
        if !printed.is_empty() {
            replies.clear();
        }
        let source = match (logs.len(), calls) {
            (_, calls) if calls == self.0.len() => Source::Calls,
            (timed, _) if timed == self.0.len() => Source::Inspector,
            _ if !printed.is_empty() => Source::Log,
            _ => Source::Snapshot,
        };
        let mut job = Job::new(id, source, settings);
        self.tell_calls(&mut job);
        // Each source numbers its groups from where the one before ended.
        let group = self.tell_dumps(&mut job);
        if !dumped.is_empty() {
            let logs: Vec<&WatchdogLog> = self.watchdog_logs().collect();
            let timed_out = watchdog_log::timed_out(&logs);
            let unseen: Vec<u32> = timed_out.difference(&dumped).copied().collect();
            if !unseen.is_empty() {
                job.take(Input::Note(SourceNote::Dumps(DumpNote::TimedOut(unseen))));
            }
        }
        let reported = watchdog_log::report(&printed, group, &mut |input| job.take(input));
        let is_moment =
            |input: &Input| matches!(input, Input::Note(SourceNote::Ras(RasNote::OneMoment)));
        let group = launched::tell(&replies, reported.group, &mut |input| {
            // Dumps are written once nothing has moved for long.
            if dumped.is_empty() || !is_moment(&input) {
                job.take(input);
            }
        });
        // In the order of a live job: that it stands still, stacks of its ranks, that they are all.
        // Where a rank has ended, the others stand still for that.
        if !reported.has_death {
            job.take(Input::SnapshotComplete);
        }
        for (rank, stack) in self.stacks() {
            job.take(Input::Stack {
                rank,
                stack: stack.clone(),
            });
        }
        job.take(Input::StacksComplete);
        if self.stacks().count() == self.0.len() {
            self.tell_places(&mut job);
        }
        inspector::tell(&logs, group, &mut |input| job.take(input));
        job.finish();
        job
    }

    /// Whether what was given of the layout goes with the ranks that have call logs.
    ///
    /// # Errors
    /// [`LayoutError`] if it does not.
    pub fn check_layout(&self, settings: &Settings) -> Result<(), LayoutError> {
        // `CallLog::read` refuses ranks that would leave no room for one more.
        let ranks = self.call_logs().map(|log| log.calls.rank + 1).max();
        match ranks {
            Some(ranks) => Layout::fits(ranks, &settings.layout.sizes()?),
            None => Ok(()),
        }
    }

    /// Tells the job of calls of NCCL. Of two logs of a rank the one that ends last counts.
    fn tell_calls(&self, job: &mut Job) {
        let mut logs: BTreeMap<u32, &RankCalls> = BTreeMap::new();
        for log in self.call_logs() {
            let (calls, rank) = (&log.calls, log.calls.rank);
            for defect in log.defects() {
                job.take(Input::Note(SourceNote::CallLog { rank, defect }));
            }
            let known = logs.entry(rank).or_insert(calls);
            // `or_insert` gives the log itself back if it is the first of its rank.
            if !std::ptr::eq(*known, calls) {
                let defect = LogDefect::Twice;
                job.take(Input::Note(SourceNote::CallLog { rank, defect }));
                let (end, known_end) = (calls.calls.last(), known.calls.last());
                if end.map(|call| call.at_ns) > known_end.map(|call| call.at_ns) {
                    *known = calls;
                }
            }
        }
        let requests = self.returned().map(|returned| {
            job.take(Input::Note(SourceNote::WorkRequests {
                requests: returned.values().map(|of_link| of_link.len() as u64).sum(),
                connections: returned.len() as u64,
            }));
            let idle_ports = idle_ports(&returned);
            WorkRequests {
                slow: named(slow_links(returned), &logs),
                idle_ports,
            }
        });
        if !logs.is_empty() || requests.is_some() {
            job.take_calls(logs.into_values().cloned().collect(), requests);
        }
    }

    /// Requests of all files; `None` without such files.
    fn returned(&self) -> Option<RequestLog> {
        self.request_logs().next()?;
        let mut returned = RequestLog::new();
        for (ends, of_link) in self.request_logs().flatten() {
            returned.entry(ends.clone()).or_default().extend(of_link);
        }
        Some(returned)
    }

    fn request_logs(&self) -> impl Iterator<Item = &RequestLog> {
        self.0.iter().filter_map(|SnapshotPart(what)| match what {
            PartContent::Requests(log) => Some(log),
            _ => None,
        })
    }

    fn call_logs(&self) -> impl Iterator<Item = &CallLog> {
        self.0.iter().filter_map(|SnapshotPart(what)| match what {
            PartContent::Calls(log) => Some(log),
            _ => None,
        })
    }

    /// Tells the job what Flight Recorders recorded; the number of groups.
    fn tell_dumps(&self, job: &mut Job) -> u32 {
        let of_stacks = self.stacks().map(|(rank, _)| rank);
        dumps::tell(self.dumps(), of_stacks, &mut |input| job.take(input))
    }

    /// Tells where ranks are of which nothing but stacks is known.
    fn tell_places(&self, job: &mut Job) {
        let mut places: BTreeMap<Vec<String>, Vec<u32>> = BTreeMap::new();
        for (rank, stack) in self.stacks() {
            let frames = stack.frames.iter().take(MAX_FRAMES).map(Frame::text);
            places.entry(frames.collect()).or_default().push(rank);
        }
        for (frames, ranks) in places {
            job.take(Input::Note(SourceNote::Stacks { ranks, frames }));
        }
    }

    fn dumps(&self) -> impl Iterator<Item = (u32, &Dump)> + Clone {
        self.0.iter().filter_map(|SnapshotPart(what)| match what {
            PartContent::Dump { rank, dump } => Some((*rank, dump)),
            _ => None,
        })
    }

    fn stacks(&self) -> impl Iterator<Item = (u32, &Stack)> {
        self.0.iter().filter_map(|SnapshotPart(what)| match what {
            PartContent::Stack { rank, stack } => Some((*rank, stack)),
            _ => None,
        })
    }

    fn replies(&self) -> impl Iterator<Item = &RasReply> {
        self.0.iter().filter_map(|SnapshotPart(what)| match what {
            PartContent::Ras(reply) => Some(reply),
            _ => None,
        })
    }

    fn watchdog_logs(&self) -> impl Iterator<Item = &WatchdogLog> {
        self.0.iter().filter_map(|SnapshotPart(what)| match what {
            PartContent::Watchdog(log) => Some(&**log),
            _ => None,
        })
    }

    fn inspector_logs(&self) -> impl Iterator<Item = &InspectorLog> {
        self.0.iter().filter_map(|SnapshotPart(what)| match what {
            PartContent::Inspector(log) => Some(log),
            _ => None,
        })
    }
}

/// Connections with the ranks at their ends, if calls tell who is in their communicators.
fn named(
    links: Vec<SlowConnection>,
    logs: &BTreeMap<u32, &RankCalls>,
) -> Vec<(SlowConnection, Option<[u32; 2]>)> {
    links
        .into_iter()
        .map(|link| {
            let members = members_of(link.ends.communicator, logs);
            let ends =
                [link.ends.from, link.ends.to].map(|place| members.get(place as usize).copied());
            let [Some(from), Some(to)] = ends else {
                return (link, None);
            };
            (link, Some([from, to]))
        })
        .collect()
}

/// Ranks of the job that have called NCCL for a communicator, in the order they have there; none if a
/// rank has no log.
fn members_of(communicator: u64, logs: &BTreeMap<u32, &RankCalls>) -> Vec<u32> {
    // It may be a member, and all behind it would have the wrong place.
    if !logs.keys().copied().eq(0..logs.len() as u32) {
        return Vec::new();
    }
    // Work requests have the hash as an unsigned number, call logs as a signed one.
    let hash = communicator.cast_signed().to_string();
    logs.values()
        .filter(|log| {
            // The writer of call logs cuts long lines, and so the end of a hash: more than eight
            // characters of it are taken for the whole.
            log.lanes.iter().any(|lane| {
                lane.hash == hash || lane.hash.len() > 8 && hash.starts_with(&lane.hash)
            })
        })
        .map(|log| log.rank)
        .collect()
}

#[cfg(test)]
mod tests {
    use schedule::Lane;
    use serde_json::json;

    use super::*;

    #[test]
    fn nobody_is_named_by_a_place_where_a_log_is_missing() {
        let calls = |rank| RankCalls {
            rank,
            host: None,
            lanes: vec![Lane {
                pointer: "0x1".to_owned(),
                hash: "77".to_owned(),
            }],
            calls: Vec::new(),
        };
        let all: Vec<RankCalls> = (0..4).map(calls).collect();
        let members =
            |of: &[RankCalls]| members_of(77, &of.iter().map(|log| (log.rank, log)).collect());
        assert_eq!(members(&all), [0, 1, 2, 3]);
        assert!(members(&all[1..]).is_empty());
    }

    #[test]
    fn a_stack_is_that_of_the_main_thread_wherever_it_stands() {
        for order in [[41, 40], [40, 41]] {
            let threads = order.map(|id| {
                let function = if id == 40 { "main" } else { "helper" };
                let frame = json!({"name": function, "filename": "train.py", "line": 7});
                json!({"pid": 40, "os_thread_id": id, "active": false, "frames": [frame]})
            });
            let read = SnapshotPart::stacks(Path::new("rank3.json"), json!(threads));
            let Ok(SnapshotPart(PartContent::Stack { rank, stack })) = read else {
                panic!("{read:?}")
            };
            assert_eq!((rank, stack.frames[0].function.as_str()), (3, "main"));
        }
    }
}
