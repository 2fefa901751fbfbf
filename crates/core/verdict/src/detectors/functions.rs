//! Functions that stand out in profiles.

use std::collections::BTreeMap;

use diagnosis::Detector;
use incident::{IncidentSettings, function};
use model::{Finding, FunctionFault, JobContext, LateArrivals, ProfileSummary};

/// Share of a rank's collectives it must be late to for that alone to be an incident: on hosts that
/// do several things at once everybody is late now and then.
const LATE_SHARE: f64 = 0.75;
/// Share of what the others waited that it may have waited itself, for the same: who is late where it
/// counts may be on time to many that are short.
const WAITED_SHARE: f64 = 0.25;

/// What profiles said, once compared.
#[derive(Debug, Default)]
pub(crate) struct Profiled {
    pub(crate) summary: ProfileSummary,
    pub(crate) faults: Vec<FunctionFault>,
    /// Share of the window in which each rank's loop stood ready and had no core.
    pub(crate) without_core: BTreeMap<u32, f64>,
    /// First and last step, if it is a short window of a job whose stages are accounted: what
    /// only some ranks do then is no incident, unless they hold the job back.
    pub(crate) window: Option<(u64, u64)>,
    /// Whether ranks hand work on to others, so that nobody knows what their devices wait for.
    pub(crate) hand_on: bool,
}

impl Profiled {
    /// The job is started over: other steps have the same numbers now.
    fn restart(&mut self) {
        // The summary stays: it says what was recorded, of whichever start.
        self.faults.clear();
        self.without_core.clear();
    }
}

/// What the profiles of a job show.
#[derive(Debug)]
pub(crate) struct Functions {
    settings: IncidentSettings,
    pub(crate) profiled: Option<Profiled>,
    /// Functions that stood out so far.
    known: u64,
}

impl Functions {
    pub(crate) fn new(settings: IncidentSettings) -> Self {
        Self {
            settings,
            profiled: None,
            known: 0,
        }
    }

    /// Keeps what profiles said in the place of what earlier ones did. What stood out there as well
    /// is the same incident.
    pub(crate) fn keep(&mut self, mut profiled: Profiled) {
        let before = self
            .profiled
            .take()
            .map(|before| before.faults)
            .unwrap_or_default();
        for fault in &mut profiled.faults {
            let same = before.iter().find(|known| {
                (&known.name, known.class, &known.ranks) == (&fault.name, fault.class, &fault.ranks)
            });
            fault.number = same.map_or_else(
                || {
                    self.known += 1;
                    self.known
                },
                |known| known.number,
            );
        }
        self.profiled = Some(profiled);
    }

    /// The largest share of a profile in which the device of one of these ranks has nothing to do, if
    /// each was recorded with its device.
    pub(crate) fn device_idle(&self, ranks: &[u32]) -> Option<f64> {
        let profiled = self.profiled.as_ref()?;
        let idle = ranks.iter().map(|rank| {
            let of_rank = profiled.summary.ranks.iter().find(|it| it.rank == *rank);
            of_rank?.device_idle_share
        });
        let idle: Vec<f64> = idle.collect::<Option<_>>()?;
        idle.into_iter().reduce(f64::max)
    }

    /// Whether a rank is late to so many collectives that it needs no other evidence. Without
    /// profiles it always is: nothing else is known.
    pub(crate) fn is_constantly_late(&self, late: &LateArrivals) -> bool {
        let Some(profiled) = &self.profiled else {
            return true;
        };
        let struck: u64 = late.places.iter().map(|place| place.struck).sum();
        let ranks = profiled
            .summary
            .collectives
            .iter()
            .flat_map(|times| &times.ranks);
        let (ranks, others): (Vec<_>, Vec<_>) =
            ranks.partition(|times| late.ranks.contains(&times.rank));
        let mut waited_s: Vec<f64> = others.iter().map(|times| times.waited_s).collect();
        let others_s = model::median(&mut waited_s).unwrap_or(0.0);
        ranks.iter().all(|times| {
            struck as f64 >= LATE_SHARE * times.collectives as f64
                // Without a common clock nobody is known to wait.
                || others_s > 0.0 && times.waited_s <= WAITED_SHARE * others_s
        })
    }
}

impl Detector for Functions {
    fn findings(&self, context: JobContext<'_>) -> Vec<Finding> {
        let faults = self.profiled.iter().flat_map(|profiled| &profiled.faults);
        faults
            .map(|fault| function(fault, context, &self.settings))
            .collect()
    }

    fn restart(&mut self) {
        self.profiled.iter_mut().for_each(Profiled::restart);
    }
}
