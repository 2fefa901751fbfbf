//! Tracebacks in a log that one rank alone writes: none of its lines says whose it is. And errors of workers,
//! which a rank raises as its own.

use model::Frame;

use super::cause::{Cause, talks_to_peers};
use super::record::has_any;
use super::said::{number, raised};

/// Lines behind an error beyond which it was handled: a process that ends prints frames, warnings and
/// what its threads ran into.
const MAX_BEHIND: u32 = 20;

/// What begins a traceback.
const TRACEBACK: &str = "Traceback (most recent call last)";
/// What an interpreter prints that cannot go on.
const FATAL: &str = "Fatal Python error: ";
/// What Python prints before the traceback of an exception that ends no process.
const NOT_OF_PROCESSES: [&str; 2] = ["Exception ignored in", "Exception in thread "];
/// Errors of connections that may be of another rank whatever frames they have: PyTorch raises the first out
/// of native code wherever a collective was issued, and the others say that the other end has gone.
const OF_LOST_PEERS: [&str; 3] = ["RuntimeError", "ConnectionResetError", "BrokenPipeError"];

/// Follows tracebacks, line by line.
#[derive(Clone, Debug, Default)]
pub(super) struct Tracebacks {
    is_inside: bool,
    /// Whether the next traceback is of what came of the last error.
    goes_on: bool,
    /// The last error, and the lines behind it.
    error: Option<(String, u32)>,
    /// Whether it came of one that follows from another rank's.
    follows: bool,
    /// What a rank said it had caught, if the next error is what that was.
    caught: Option<String>,
    frames: Frames,
}

/// An error with where it was raised, such as `DataLoader worker process 0`, if a rank said before that it had
/// caught it there: that line says no more, and the traceback behind it ends in the error itself.
/// # Source
/// `ExceptionWrapper` in `torch/_utils.py`.
pub(super) fn of_worker(caught: &str, error: &str) -> Option<String> {
    let (_, what) = caught.split_once(": Caught ")?;
    let (_, place) = what.split_once(" in ")?;
    let worker = place.split(['.', ',']).next()?;
    Some(format!("{error}, in {worker}"))
}

/// What the frames of a traceback show.
#[derive(Clone, Debug, Default)]
pub(super) struct Frames {
    /// The innermost line of the user's own code.
    own: Option<String>,
    is_known: bool,
    talks_to_peers: bool,
    /// Whether the exception ends no process, and the next: Python ignores it, or it ends a thread.
    is_ignored: bool,
    ignores_next: bool,
}

impl Frames {
    /// Takes a record that may be a frame, or begin a traceback.
    pub(super) fn take(&mut self, record: &str) {
        if record.contains(TRACEBACK) {
            *self = Self {
                is_ignored: self.ignores_next,
                ..Self::default()
            };
        }
        self.ignores_next |= has_any(record, &NOT_OF_PROCESSES);
        let Some((file, rest)) = file_of(record) else {
            return;
        };
        self.is_known = true;
        self.talks_to_peers |= talks_to_peers(file);
        self.own = own_line(file, rest).or(self.own.take());
    }

    /// The innermost line of the user's own code, if there was one.
    pub(super) fn line(self) -> Option<String> {
        self.own
    }

    /// An error with the line at which it was raised, if that is known.
    pub(super) fn of(&mut self, error: String) -> String {
        match self.own.take() {
            Some(line) => format!("{}, at {line}", error.trim_end_matches('.')),
            None => error,
        }
    }

    /// Whether the exception ends no process.
    pub(super) fn is_ignored(&self) -> bool {
        self.is_ignored
    }

    /// Whether an error with these frames follows from another rank's, or may.
    pub(super) fn follows(&self, error: &str) -> bool {
        match Cause::of(error) {
            Cause::Peer => true,
            Cause::Connection if OF_LOST_PEERS.iter().any(|it| error.starts_with(it)) => true,
            Cause::Connection => !self.is_known || self.talks_to_peers,
            Cause::Own => false,
        }
    }
}

/// The file of a frame, and what stands behind it.
fn file_of(record: &str) -> Option<(&str, &str)> {
    let (_, frame) = record.split_once("File \"")?;
    frame.split_once("\", line ")
}

/// File and line of a frame of the user's own code.
fn own_line(file: &str, rest: &str) -> Option<String> {
    let frame = Frame {
        function: String::new(),
        file: file.to_owned(),
        line: number(rest)?,
    };
    // PyTorch may be one that was built where its source is.
    let is_own = frame.is_own() && !has_any(file, &["/torch/", "<"]);
    let name = file.rsplit(['/', '\\']).next()?;
    is_own.then(|| format!("{name}:{}", frame.line))
}

impl Tracebacks {
    /// Whether there is anything to follow from this line on.
    pub(super) fn begin_with(line: &str) -> bool {
        line.starts_with(TRACEBACK) || line.starts_with(FATAL) || has_any(line, &NOT_OF_PROCESSES)
    }

    pub(super) fn take(&mut self, record: &str) {
        self.frames.take(record);
        if record.starts_with(TRACEBACK) && self.frames.is_ignored() {
            // It ends nothing, and is as any other line behind an error that did.
        } else if record.starts_with(TRACEBACK) {
            self.follows &= self.goes_on;
            (self.is_inside, self.goes_on, self.error) = (true, false, None);
            self.caught = None;
        } else if record.starts_with("Original Traceback (most recent call last)") {
            self.caught = self.error.take().map(|(error, _)| error);
            self.is_inside = true;
        } else if let Some(error) = record.strip_prefix(FATAL) {
            (self.is_inside, self.follows) = (false, false);
            self.error = Some((error.to_owned(), 0));
        } else if self.is_inside && !record.starts_with(char::is_whitespace) {
            // Behind the frames, which are indented.
            self.is_inside = false;
            let caught = self.caught.take();
            let error = raised(record).map(|error| {
                let of_worker = caught.and_then(|caught| of_worker(&caught, &error));
                of_worker.unwrap_or(error)
            });
            self.follows |= error
                .as_ref()
                .is_some_and(|error| self.frames.follows(error));
            self.error = error.map(|error| (self.frames.of(error), 0));
        } else if let Some((_, behind)) = &mut self.error {
            self.goes_on |= record.starts_with("During handling of the above exception")
                || record.starts_with("The above exception was the direct cause");
            *behind += u32::from(!record.starts_with(char::is_whitespace));
        }
    }

    /// The error that ended the process, and whether it follows from another rank's.
    pub(super) fn ended_by(self) -> Option<(String, bool)> {
        let (error, behind) = self.error?;
        (behind <= MAX_BEHIND).then_some((error, self.follows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended_by(text: &str) -> Option<(String, bool)> {
        let mut tracebacks = Tracebacks::default();
        text.lines().for_each(|line| tracebacks.take(line));
        tracebacks.ended_by()
    }

    fn traceback(error: &str) -> String {
        format!(
            "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\n    f()\n{error}\n"
        )
    }

    #[test]
    fn the_last_error_ended_the_process_unless_it_went_on() {
        let oom = traceback("torch.OutOfMemoryError: CUDA out of memory.");
        let error = |text: &str| Some((text.to_owned(), false));
        assert_eq!(
            ended_by(&oom),
            error("OutOfMemoryError: CUDA out of memory, at a.py:3")
        );
        assert_eq!(
            ended_by(&(oom.clone() + &traceback("AssertionError"))),
            error("AssertionError, at a.py:3")
        );
        assert_eq!(ended_by(&(oom.clone() + &"step 9\n".repeat(30))), None);
        assert_eq!(ended_by(&(oom + &traceback("KeyboardInterrupt"))), None);
        let fatal =
            "Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):\n";
        assert_eq!(ended_by(fatal), error("Segmentation fault"));
        assert_eq!(ended_by("ValueError: of no traceback\n"), None);
    }

    #[test]
    fn what_a_worker_raised_is_said_and_not_that_it_was_caught() {
        let caught = traceback("ValueError: Caught ValueError in DataLoader worker process 0.");
        let text = caught + "Original " + &traceback("ValueError: corrupt sample 80");
        let error = "ValueError: corrupt sample 80, in DataLoader worker process 0, at a.py:3";
        assert_eq!(ended_by(&text), Some((error.to_owned(), false)));
    }

    #[test]
    fn what_comes_of_an_error_of_another_rank_follows_from_it() {
        let peer = traceback("torch.distributed.DistBackendError: NCCL error in: a.cpp");
        let own = traceback("RuntimeError: training failed");
        let between = "\nThe above exception was the direct cause of the following exception:\n\n";
        let follows = |text: &str| ended_by(text).unwrap().1;
        assert!(follows(&peer));
        assert!(follows(&[&peer, between, &own].concat()));
        assert!(!follows(&[&*peer, &*own].concat()));
    }
}
