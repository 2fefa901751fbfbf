//! What a verdict comes to that has no incident.

use crate::{Source, Verdict};

/// Share of the time of steps that were not recorded whole from which these may hide a fault. Ours: that
/// of a loss that is spoken of.
const UNRECORDED_SHARE: f64 = 0.1;

/// What is concluded where nothing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// All ranks are in the same collectives, at one moment.
    NothingStuck,
    /// At one moment not all ranks were seen, or something is wrong that names nobody.
    PartlySeen,
    /// Of timed collectives: nobody is late, none became slow.
    NothingTimed,
    /// A job died, and what it printed does not explain why.
    Unexplained,
    /// Too little was recorded.
    TooLittleSeen,
    /// Some rank was late, and which one is unknown.
    Ambiguous,
    /// The ranks that were recorded are alike; others were not.
    RanksUnseen,
    /// Hosts and stages are alike; devices behind hosts that run ahead were not seen.
    DevicesUnseen,
    /// Hosts and stages are alike; where devices wait for one another was not seen.
    DeviceWaitsUnseen,
    /// Ranks are alone in their roles, and nobody is known to do what they do.
    Uncompared,
    /// A device takes longer than those of other roles, which its own may ask for.
    Unlike,
    /// Much of the time lies in steps that were not recorded whole.
    StepsUnseen,
    /// Everything that could be wrong was looked at.
    Healthy,
}

impl Conclusion {
    /// Whether everything that was checked is fine. The other conclusions say why that is unknown.
    pub fn is_good(self) -> bool {
        matches!(
            self,
            Self::NothingStuck | Self::NothingTimed | Self::Healthy
        )
    }
}

impl Verdict {
    /// What it comes to without an incident; `None` if there is one. Healthy comes last: in all
    /// cases before it, what would show a fault was not seen.
    pub fn conclusion(&self) -> Option<Conclusion> {
        let job = &self.job;
        if !self.incidents.is_empty() {
            return None;
        }
        // Exactly 0 stands for too few iterations; it is never measured.
        let is_untimed = self
            .pipeline
            .as_ref()
            .is_some_and(|it| it.iteration_s == 0.0);
        Some(if job.source == Source::Snapshot && job.partly_seen {
            Conclusion::PartlySeen
        } else if job.source == Source::Snapshot {
            Conclusion::NothingStuck
        } else if job.source == Source::Log {
            Conclusion::Unexplained
        } else if job.source == Source::Inspector {
            Conclusion::NothingTimed
        } else if job.analysed_steps == 0 || is_untimed {
            Conclusion::TooLittleSeen
        } else {
            self.unobserved().unwrap_or(Conclusion::Healthy)
        })
    }

    /// Whether profiles show what the devices of all ranks did, and when each came to collectives.
    fn devices_are_recorded(&self) -> bool {
        let is_of_profiles = !self.job.source.has_marks() && !self.job.hosts_may_run_ahead;
        self.profile
            .as_ref()
            .filter(|_| is_of_profiles)
            .is_some_and(|profile| {
                let mut ranks = profile.ranks.iter();
                ranks.len() > 1 && ranks.all(|rank| rank.device_idle_share.is_some())
            })
    }

    /// What hides faults of a job, whatever else was found.
    pub fn unobserved(&self) -> Option<Conclusion> {
        let job = &self.job;
        let runs_ahead =
            job.hosts_run_ahead || job.hosts_may_run_ahead || job.device_wait_share.is_some();
        if job.ambiguous_steps > 0 {
            Some(Conclusion::Ambiguous)
        } else if job.ranks_unseen {
            Some(Conclusion::RanksUnseen)
        } else if runs_ahead && job.sampled_steps == 0 && !self.devices_are_recorded() {
            Some(Conclusion::DevicesUnseen)
        } else if job.device_issues_unseen {
            Some(Conclusion::DeviceWaitsUnseen)
        } else if !job.uncompared_ranks.is_empty() {
            Some(Conclusion::Uncompared)
        } else if !job.unlike_devices.is_empty() {
            Some(Conclusion::Unlike)
        } else if job.unrecorded_share >= UNRECORDED_SHARE {
            Some(Conclusion::StepsUnseen)
        } else {
            None
        }
    }
}
