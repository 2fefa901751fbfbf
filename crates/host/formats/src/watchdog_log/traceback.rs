//! Tracebacks in a log that one rank alone writes: none of its lines says whose it is.

use super::said::{self, raised};

/// Lines behind an error beyond which it was handled: a process that ends prints frames, warnings and
/// what its threads ran into.
const MAX_BEHIND: u32 = 20;

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
}

impl Tracebacks {
    pub(super) fn take(&mut self, record: &str) {
        if record.starts_with("Traceback (most recent call last)") {
            self.follows &= self.goes_on;
            (self.is_inside, self.goes_on, self.error) = (true, false, None);
        } else if let Some(error) = record.strip_prefix("Fatal Python error: ") {
            (self.is_inside, self.follows) = (false, false);
            self.error = Some((error.to_owned(), 0));
        } else if self.is_inside && !record.starts_with(char::is_whitespace) {
            // Behind the frames, which are indented.
            self.is_inside = false;
            self.error = raised(record).map(|error| (error, 0));
            let error = self.error.as_ref();
            self.follows |= error.is_some_and(|(error, _)| said::follows(error));
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
            error("OutOfMemoryError: CUDA out of memory.")
        );
        assert_eq!(
            ended_by(&(oom.clone() + &traceback("AssertionError"))),
            error("AssertionError")
        );
        assert_eq!(ended_by(&(oom.clone() + &"step 9\n".repeat(30))), None);
        assert_eq!(ended_by(&(oom + &traceback("KeyboardInterrupt"))), None);
        let fatal =
            "Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):\n";
        assert_eq!(ended_by(fatal), error("Segmentation fault"));
        assert_eq!(ended_by("ValueError: of no traceback\n"), None);
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
