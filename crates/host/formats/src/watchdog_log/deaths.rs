//! Ranks that ended for a reason of their own: what others wait in follows from it.

use super::WatchdogLog;
use super::cause::Whose;
use super::ended::SlurmTasks;

impl WatchdogLog {
    /// Whether a rank waits in a collective that timed out. It has ended for that.
    fn waits(&self, rank: u32) -> bool {
        let mut groups = self.groups.values();
        groups.any(|group| group.ranks.contains_key(&rank))
            || self.timeouts.contains_key(&rank)
            || self.stuck.contains(&rank)
            || self.gave_up.contains(&rank)
    }

    /// Ranks that raised errors of their own.
    pub(super) fn raised_for_themselves(&self) -> impl Iterator<Item = u32> {
        let own = self.errors.iter().filter(|(rank, (_, whose))| match whose {
            Whose::Device => true,
            Whose::Process => !self.waits(**rank),
            Whose::Unknown => false,
        });
        own.map(|(rank, _)| *rank)
    }

    /// Whether a process ended for a reason of its own of which no line says what rank it has.
    pub(super) fn has_unnamed_end(&self) -> bool {
        self.error_somewhere.is_some() || self.summary.tasks.iter().any(SlurmTasks::crashed)
    }

    /// The rank that ended for a reason of its own, and the signal that killed it, if one did.
    pub(super) fn death(&self) -> Option<(u32, Option<i32>)> {
        let first = self.summary.first();
        if let Some((first, with_it)) = &first
            && let Some(signal) = first.killed_by()
            // Slurm kills them all.
            && self.summary.cancelled.is_none()
            // torchrun gives whole seconds: of several in one nobody knows who was first.
            && with_it.is_empty()
            && !self.waits(first.rank)
        {
            return Some((first.rank, Some(signal)));
        }
        // An exception ends Python with 1, arguments that it cannot read with 2. Who printed none, and whose
        // peers lost their connection to it, ended for itself all the same.
        let exits = self.summary.only_failed();
        let exits = exits.filter(|it| it.code > 2 || !self.lost_peers.is_empty());
        // A log without rank 0 is of one of several hosts, and another may have failed before.
        let has_first_host = self.summary.ended.iter().any(|it| it.rank == 0);
        if let Some(exits) = exits
            && has_first_host
            && self.errors.is_empty()
            && self.summary.cancelled.is_none()
            && !self.waits(exits.rank)
            && !self.following.contains(&exits.rank)
        {
            return Some((exits.rank, None));
        }
        let mut own = self.raised_for_themselves();
        // What raises on several ranks is no rank's fault.
        let (rank, None) = (own.next()?, own.next()) else {
            return None;
        };
        first
            // If another rank ended before, the error may follow from that.
            .is_none_or(|(first, _)| first.rank == rank)
            .then_some((rank, None))
    }
}
