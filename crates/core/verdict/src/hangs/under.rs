use incident::{folded, hang};
use model::{Finding, JobContext, ProcessState, Severity, Stack, StallKind};

use super::{Asks, Seen, Stall, Under};

impl Under {
    /// Gives it the next number, unless it was spoken of.
    pub(super) fn speak(&mut self, spoken: &mut u64) {
        self.number.get_or_insert_with(|| {
            *spoken += 1;
            *spoken
        });
    }

    /// The same, with where its ranks were when somebody looked before, if it was the same.
    pub(super) fn looked_at_before(self, looked: Option<Self>) -> Self {
        let same = looked
            .filter(|it| it.stall.kind == self.stall.kind && it.stall.since == self.stall.since);
        match same {
            Some(looked) => Self {
                seen: looked.seen,
                ..self
            },
            None => self,
        }
    }

    /// Whether it cannot pass by itself: somebody has ended, was stopped, or entered another
    /// collective than the others. What else takes long may have taken long before.
    pub(super) fn is_final(&self) -> bool {
        let Stall {
            kind,
            gone,
            culprits,
            ..
        } = &self.stall;
        *kind == StallKind::Desync
            || !gone.is_empty()
            || culprits
                .iter()
                .filter_map(|rank| self.seen.stacks.get(rank))
                .any(|stack| stack.state == ProcessState::Stopped)
    }

    /// The stall, with what hosts say of its culprits.
    pub(super) fn explained(&self) -> Stall {
        let mut stall = self.stall.clone();
        // Who is found elsewhere has not come, if those that have come are seen in it: a stack
        // does not always show that it waits.
        let is_in_it = |rank: &u32| {
            let stack = self
                .seen
                .stacks
                .get(rank)
                .filter(|it| !it.frames.is_empty());
            stack.map(Stack::is_in_collective)
        };
        let mut come = stall.waiting.iter().filter_map(is_in_it).peekable();
        let shows = stall.is_of_start() || come.peek().is_some() && come.all(|it| it);
        if stall.kind == StallKind::Unseen
            && shows
            && stall
                .culprits
                .iter()
                .all(|rank| is_in_it(rank) == Some(false))
        {
            stall.kind = StallKind::Missing;
        }
        if let Some((elsewhere, calling)) = self.elsewhere() {
            stall.kind = StallKind::Missing;
            (stall.culprits, stall.waiting) = (elsewhere, calling);
            // All have issued the last collective that is known: it is not what they wait in.
            stall.waits.clear();
        }
        stall.failure = stall
            .failure
            .map(|found| found.of_ports(|rank| self.ports_down.contains(&rank)));
        if let Some(failure) = &stall.failure {
            stall.culprits.clone_from(&failure.ranks);
        }
        stall
    }

    /// Ranks that do something else while all others wait in calls of PyTorch for some rank, and these:
    /// where no collective tells who waits for whom, as in sends and receives, stacks may.
    fn elsewhere(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        // A host that waits for its device is in its own code as well, and is no culprit.
        if self.stall.kind != StallKind::Nowhere || self.sees_devices {
            return None;
        }
        let Seen { stacks, others, .. } = &self.seen;
        let (mut elsewhere, mut calling) = (Vec::new(), Vec::new());
        for rank in &self.stall.culprits {
            let stack = stacks.get(rank).or_else(|| others.get(rank))?;
            if stack.calls_other_ranks() {
                calling.push(*rank);
            } else if stack.is_elsewhere() {
                elsewhere.push(*rank);
            } else {
                return None;
            }
        }
        (!elsewhere.is_empty() && !calling.is_empty()).then_some((elsewhere, calling))
    }

    /// What is said of it, if it was spoken of.
    pub(super) fn finding(&self, context: JobContext<'_>, pause_max_s: f64) -> Option<Finding> {
        let id = format!("h{}", self.number?);
        // What others gave up waiting for is no pause.
        let pause_max_s = if self.gave_up { 0.0 } else { pause_max_s };
        let quiet = (self.quiet_s(), pause_max_s);
        Some(
            self.seen
                .finding(&self.explained(), id, context, quiet, true),
        )
    }

    pub(super) fn quiet_s(&self) -> f64 {
        self.at.seconds_since(self.stall.since)
    }

    /// Looks again at what was reported as a pause, or of ranks that were not seen, each time it
    /// has become twice as long and once it is longer than pauses are: the rank may be somewhere
    /// else by then.
    pub(super) fn doubt(&mut self, pause_max_s: f64) {
        // What was reported as a hang stays one until something moves.
        let is_doubtful = self.reported.is_some_and(|(kind, severity)| {
            let is_open = matches!(
                kind,
                StallKind::Unseen | StallKind::Nowhere | StallKind::Livelock
            );
            is_open || severity == Severity::Info
        });
        if is_doubtful {
            self.look_again(pause_max_s);
        }
    }

    /// Looks again if it has become twice as long, or longer than pauses are.
    pub(super) fn look_again(&mut self, pause_max_s: f64) {
        let (quiet_s, looked_s) = (self.quiet_s(), self.looked_s);
        let is_overdue = looked_s < pause_max_s && quiet_s >= pause_max_s;
        let is_due = quiet_s >= 2.0 * looked_s || is_overdue;
        if self.asks != Asks::Named && is_due {
            self.asks = Asks::Named;
            self.seen.network.clear();
        }
    }
}

impl Seen {
    /// What is said of a stall that was quiet for so long, where pauses last so long at most.
    pub(super) fn finding(
        &self,
        stall: &Stall,
        id: String,
        context: JobContext<'_>,
        (quiet_s, pause_max_s): (f64, f64),
        open: bool,
    ) -> Finding {
        let mut finding = hang(stall, &self.stacks, context, id, quiet_s, pause_max_s, open);
        finding.facts.extend_from_slice(&self.network);
        finding.stacks = folded(self.stacks.iter().chain(&self.others), &stall.culprits);
        finding.progress.clone_from(&self.progress);
        finding
    }
}
