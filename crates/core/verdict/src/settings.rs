use std::collections::BTreeMap;

use frontier::{Baseline, Gates};
use incident::IncidentSettings;
use model::StageNames;
use serde::{Deserialize, Serialize};
use steps::WindowSettings;

/// Everything that can be set about the analysis; one table of the settings file each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How steps become windows.
    pub window: WindowSettings,
    /// The gates of the labeler.
    pub frontier: Gates,
    /// When a finding becomes an incident.
    pub incident: IncidentSettings,
    /// Seconds each stage takes in a run without stalls, by stage name. Without it the
    /// baseline is the median over the ranks.
    pub reference: BTreeMap<String, f64>,
}

impl Settings {
    pub(crate) fn baseline(&self, names: &mut StageNames) -> Baseline {
        if self.reference.is_empty() {
            return Baseline::CohortMedian;
        }
        let stages = self.reference.iter();
        Baseline::Reference(
            stages.map(|(name, seconds)| (names.intern(name), *seconds)).collect(),
        )
    }
}
