//! What other tools say of a job, in several files: Flight Recorder dumps and stacks of each
//! rank, replies of NCCL's RAS, logs of NCCL Inspector.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

use collective::{SlowLink, idle_ports, slow_links};
use model::{Frame, Input, ProcessState, Source, Stack};
use schedule::{Lane, Layout, LayoutError, RankCalls};
use serde::Deserialize;
use serde_json::Value;
use verdict::{Job, Settings, WorkRequests};

use crate::call_log::CallLog;
use crate::dumps::{self, Dump};
use crate::inspector::{self, InspectorLog};
use crate::ras::{RasJob, RasReply};
use crate::ras_text;
use crate::work_requests::{self, RequestLog};
use crate::{FormatError, Limits, launched};

/// What one file says of a job.
#[derive(Clone, Debug)]
pub struct Part(What);

#[derive(Clone, Debug)]
enum What {
    Dump { rank: u32, dump: Dump },
    Stack { rank: u32, stack: Stack },
    Ras(RasReply),
    Inspector(InspectorLog),
    Calls(CallLog),
    Requests(RequestLog),
}

#[derive(Deserialize)]
struct Thread {
    #[serde(default, rename = "thread_name")]
    name: Option<String>,
    #[serde(default)]
    pid: u64,
    #[serde(default)]
    os_thread_id: Option<u64>,
    #[serde(default)]
    active: bool,
    #[serde(default)]
    owns_gil: Option<bool>,
    frames: Vec<SpyFrame>,
}

#[derive(Deserialize)]
struct SpyFrame {
    name: String,
    filename: String,
    line: i32,
}

impl Part {
    /// Reads a Flight Recorder dump.
    pub(crate) fn dump(path: &Path, document: Value) -> Result<Self, FormatError> {
        let (rank, dump) = (rank_of(path)?, content(path, document)?);
        Ok(Self(What::Dump { rank, dump }))
    }

    /// Reads what `py-spy dump --json` prints.
    pub(crate) fn stacks(path: &Path, document: Value) -> Result<Self, FormatError> {
        let threads: Vec<Thread> = content(path, document)?;
        let is_main = |thread: &&Thread| {
            thread.os_thread_id == Some(thread.pid)
                || thread.name.as_deref() == Some("MainThread")
        };
        let main = threads.iter().find(is_main).or(threads.first());
        let frames =
            main.into_iter().flat_map(|thread| &thread.frames).map(|frame| Frame {
                function: frame.name.clone(),
                file: frame.filename.clone(),
                line: frame.line,
            });
        let active = main.is_some_and(|thread| thread.active);
        let state = if active { ProcessState::Running } else { ProcessState::Sleeping };
        let holds_gil = main.and_then(|thread| thread.owns_gil);
        let stack = Stack::new(state, holds_gil, frames.collect());
        Ok(Self(What::Stack { rank: rank_of(path)?, stack }))
    }

    /// Reads what NCCL's RAS answers in JSON.
    pub(crate) fn ras(path: &Path, document: Value) -> Result<Self, FormatError> {
        Ok(Self(What::Ras(RasReply::read(path, document)?)))
    }

    /// Which job it is about, if it is a reply of NCCL's RAS.
    pub(crate) fn ras_job(&self) -> Option<RasJob> {
        match &self.0 {
            What::Ras(reply) => Some(reply.job()),
            _ => None,
        }
    }

    /// Reads what NCCL's RAS answers in words.
    pub(crate) fn ras_text(path: &Path, text: &str) -> Result<Self, FormatError> {
        Ok(Self(What::Ras(ras_text::read(path, text)?)))
    }

    /// Reads a log of NCCL Inspector.
    pub(crate) fn inspector(
        path: &Path,
        reader: impl BufRead,
        limits: Limits,
    ) -> Result<Self, FormatError> {
        Ok(Self(What::Inspector(InspectorLog::read(path, reader, limits)?)))
    }

    /// Reads telemetry of work requests.
    pub(crate) fn work_requests(
        path: &Path,
        reader: impl BufRead,
        limits: Limits,
    ) -> Result<Self, FormatError> {
        Ok(Self(What::Requests(work_requests::read(path, reader, limits)?)))
    }

    /// Reads a log of NCCL calls.
    pub(crate) fn calls(
        path: &Path,
        reader: impl BufRead,
        limits: Limits,
    ) -> Result<Self, FormatError> {
        Ok(Self(What::Calls(CallLog::read(path, reader, limits)?)))
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

/// The rank a file is about: the number its name ends with, extensions left out.
fn rank_of(path: &Path) -> Result<u32, FormatError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.split('.').next().unwrap_or_default();
    let digits = stem.len() - stem.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    stem[stem.len() - digits..].parse().ok().ok_or_else(|| FormatError::Content {
        path: path.to_owned(),
        place: "its name".to_owned(),
        reason: "it does not end with the number of a rank, as in dump_rank_3.json"
            .to_owned(),
    })
}

/// One job, from the files of several ranks or tools.
#[derive(Clone, Debug)]
pub struct Snapshot(Vec<Part>);

impl Snapshot {
    /// Puts the files of one job together.
    pub fn new(parts: Vec<Part>) -> Self {
        Self(parts)
    }

    /// Runs the snapshot through the analysis and returns the finished job.
    pub fn replay(&self, id: &str, settings: Settings) -> Job {
        let logs = self.logs();
        let calls = self.call_logs().count() + self.request_logs().count();
        let source = match (logs.len(), calls) {
            (_, calls) if calls == self.0.len() => Source::Calls,
            (timed, _) if timed == self.0.len() => Source::Inspector,
            _ => Source::Snapshot,
        };
        let mut job = Job::new(id, source, settings);
        self.tell_calls(&mut job);
        let group = self.tell_dumps(&mut job);
        let group = launched::tell(&self.replies(), group, &mut |input| job.take(input));
        job.take(Input::Stuck);
        for (rank, stack) in self.stacks() {
            job.take(Input::Stack { rank, stack: stack.clone() });
        }
        job.take(Input::StacksTold);
        inspector::tell(&logs, group, &mut |input| job.take(input));
        job.finish();
        job
    }

    /// Whether what was told of the layout goes with the ranks that have call logs.
    ///
    /// # Errors
    /// [`LayoutError`] if it does not.
    pub fn check_layout(&self, settings: &Settings) -> Result<(), LayoutError> {
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
            let ends = |log: &RankCalls| log.calls.last().map(|call| call.at_ns);
            let calls = &log.calls;
            let notes = log.notes().into_iter();
            notes.for_each(|text| job.take(Input::Note { text }));
            let known = logs.entry(calls.rank).or_insert(calls);
            if !std::ptr::eq(*known, calls) {
                let text = format!(
                    "two logs are of rank {}: the one that ends last is analysed",
                    calls.rank
                );
                job.take(Input::Note { text });
                if ends(calls) > ends(known) {
                    *known = calls;
                }
            }
        }
        let requests = self.returned().map(|returned| {
            let requests: usize = returned.values().map(Vec::len).sum();
            let connections = returned.len();
            let text = format!(
                "{requests} work requests that came back were told, of {connections} connections"
            );
            job.take(Input::Note { text });
            let idle_ports = idle_ports(&returned);
            WorkRequests { slow: named(slow_links(returned), &logs), idle_ports }
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
        self.0.iter().filter_map(|Part(what)| match what {
            What::Requests(log) => Some(log),
            _ => None,
        })
    }

    fn call_logs(&self) -> impl Iterator<Item = &CallLog> {
        self.0.iter().filter_map(|Part(what)| match what {
            What::Calls(log) => Some(log),
            _ => None,
        })
    }

    /// Tells the job what Flight Recorders recorded; the number of groups.
    fn tell_dumps(&self, job: &mut Job) -> u32 {
        let of_stacks = self.stacks().map(|(rank, _)| rank);
        dumps::tell(self.dumps(), of_stacks, &mut |input| job.take(input))
    }

    fn dumps(&self) -> impl Iterator<Item = (u32, &Dump)> + Clone {
        self.0.iter().filter_map(|Part(what)| match what {
            What::Dump { rank, dump } => Some((*rank, dump)),
            _ => None,
        })
    }

    fn stacks(&self) -> impl Iterator<Item = (u32, &Stack)> {
        self.0.iter().filter_map(|Part(what)| match what {
            What::Stack { rank, stack } => Some((*rank, stack)),
            _ => None,
        })
    }

    fn replies(&self) -> Vec<&RasReply> {
        let replies = self.0.iter().filter_map(|Part(what)| match what {
            What::Ras(reply) => Some(reply),
            _ => None,
        });
        replies.collect()
    }

    fn logs(&self) -> Vec<&InspectorLog> {
        let logs = self.0.iter().filter_map(|Part(what)| match what {
            What::Inspector(log) => Some(log),
            _ => None,
        });
        logs.collect()
    }
}

/// Connections with the ranks at their ends, if calls tell who is in their communicators.
fn named(
    links: Vec<SlowLink>,
    logs: &BTreeMap<u32, &RankCalls>,
) -> Vec<(SlowLink, Option<[u32; 2]>)> {
    let ranks = |link: &SlowLink| {
        let hash = link.ends.communicator.cast_signed().to_string();
        // The writer of call logs cuts long lines, and so the end of a hash.
        let is_it = |lane: &Lane| lane.hash.len() > 8 && hash.starts_with(&lane.hash);
        let is_member = |log: &&&RankCalls| {
            log.lanes.iter().any(|lane| lane.hash == hash || is_it(lane))
        };
        let members: Vec<u32> =
            logs.values().filter(is_member).map(|log| log.rank).collect();
        let rank = |place: u32| members.get(place as usize).copied();
        Some([rank(link.ends.from)?, rank(link.ends.to)?])
    };
    let links = links.into_iter();
    links.map(|link| (link.clone(), ranks(&link))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stack_is_that_of_the_main_thread_wherever_it_stands() {
        let thread = |id: u64, function: &str| {
            let frame = json!({"name": function, "filename": "train.py", "line": 7});
            json!({"pid": 40, "os_thread_id": id, "active": false, "frames": [frame]})
        };
        for order in [[41, 40], [40, 41]] {
            let of = |id| thread(id, if id == 40 { "main" } else { "helper" });
            let read = Part::stacks(Path::new("rank3.json"), json!(order.map(of)));
            let Ok(Part(What::Stack { rank, stack })) = read else { panic!("{read:?}") };
            assert_eq!((rank, stack.frames[0].function.as_str()), (3, "main"));
        }
    }
}
