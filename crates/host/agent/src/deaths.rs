use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::{fs, thread};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::processes::fields;

/// Signals by which people and launchers end a job.
const REQUESTS: [i32; 3] = [1, 2, 15];
/// The signal that no process survives.
pub(crate) const SIGKILL: i32 = 9;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// It was killed by this signal.
    Signal(i32),
    /// It was done, or was told to end.
    Calm,
    /// It ended by itself with this exit code, which is not 0.
    Failed(i32),
    /// Its parent asked before we could.
    Unknown,
}

/// Waits for the processes of ranks to end: only in that moment can everybody see how.
#[derive(Debug)]
pub(crate) struct Deaths {
    watched: BTreeSet<u32>,
    sender: Sender<(u32, ProcessEnd)>,
    ends: Receiver<(u32, ProcessEnd)>,
}

impl Default for Deaths {
    fn default() -> Self {
        let (sender, ends) = channel();
        Self {
            watched: BTreeSet::new(),
            sender,
            ends,
        }
    }
}

impl Deaths {
    /// Watches a process from now on. Where that is not possible nothing is said of its end.
    pub(crate) fn look_at(&mut self, pid: u32) {
        if !self.watched.insert(pid) {
            return;
        }
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let Some(Ok(process)) = id.map(|id| pidfd_open(id, PidfdFlags::empty())) else {
            return;
        };
        let sender = self.sender.clone();
        // Sleeps until the process ends. The parent asks for its status within 100 ms, as
        // torchrun does, so looking from time to time would mostly be too late.
        let watch = thread::Builder::new().name("laggard-deaths".to_owned());
        drop(watch.spawn(move || {
            // Nobody listens any more once the agent is gone.
            sender
                .send((pid, end_of(&process, pid)))
                .unwrap_or_default();
        }));
    }

    /// The processes that have ended, in the order in which they did.
    pub(crate) fn take(&self) -> impl Iterator<Item = (u32, ProcessEnd)> {
        self.ends.try_iter()
    }
}

fn end_of(process: &OwnedFd, pid: u32) -> ProcessEnd {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            Err(_) => return ProcessEnd::Unknown,
            Ok(_) => break,
        }
    }
    // The process is a zombie until its parent asks for it: as long as that its status is here.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    exit_code(&stat).map_or(ProcessEnd::Unknown, |code| match code & 0x7f {
        0 if code >> 8 == 0 => ProcessEnd::Calm,
        0 => ProcessEnd::Failed(code >> 8),
        signal if REQUESTS.contains(&signal) => ProcessEnd::Calm,
        signal => ProcessEnd::Signal(signal),
    })
}

/// The wait status of a process that nobody has asked for yet; proc(5), field 52.
fn exit_code(stat: &str) -> Option<i32> {
    let mut fields = fields(stat)?;
    (fields.next()? == "Z").then_some(())?;
    fields.nth(48)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn end(script: &str) -> ProcessEnd {
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let mut deaths = Deaths::default();
        deaths.look_at(child.id());
        let (pid, end) = deaths.ends.recv().unwrap();
        assert_eq!(pid, child.id());
        child.wait().unwrap();
        end
    }

    #[test]
    fn a_killed_process_is_reported_with_its_signal() {
        assert_eq!(end("kill -9 $$"), ProcessEnd::Signal(9));
    }

    #[test]
    fn processes_that_end_or_are_asked_to_end_calmly() {
        assert_eq!(end("exit 0"), ProcessEnd::Calm);
        assert_eq!(end("exit 3"), ProcessEnd::Failed(3));
        assert_eq!(end("kill -15 $$"), ProcessEnd::Calm);
    }
}
