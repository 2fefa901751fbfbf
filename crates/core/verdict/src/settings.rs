use std::collections::BTreeMap;

use collective::{ArrivalSettings, HangSettings};
use frontier::{Baseline, Gates};
use incident::IncidentSettings;
use model::{StageNames, thresholds};
use pattern::{PatternSettings, TriggerSettings};
use schedule::{Axis, LayoutError, ScheduleSettings, Sizes};
use serde::{Deserialize, Serialize};
use steps::WindowSettings;

use crate::ProfileSettings;

/// Everything that can be set about the analysis; one table of the settings file each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How steps become windows.
    pub window: WindowSettings,
    /// The gates of the labeler.
    pub frontier: Gates,
    /// When a job that does not move is said to hang.
    pub hang: HangSettings,
    /// When timed collectives are said to be held up.
    pub arrival: ArrivalSettings,
    /// How functions of profiles are compared.
    pub pattern: PatternSettings,
    /// When iterations are said to have become slower.
    pub trigger: TriggerSettings,
    /// When ranks of a running job are profiled, and for how long.
    pub profile: ProfileSettings,
    /// When a pipeline is said to be held back.
    pub schedule: ScheduleSettings,
    /// How the ranks of a pipeline divide the work, where it is not to be inferred.
    pub layout: LayoutSettings,
    /// When a finding becomes an incident.
    pub incident: IncidentSettings,
    /// What a stage would take without a stall, where no reference says so.
    pub baseline: BaselineChoice,
    /// Seconds each stage takes in a run without stalls, by stage name; overrides
    /// `baseline`.
    #[serde(deserialize_with = "thresholds")]
    pub reference: BTreeMap<String, f64>,
}

/// What a stage would take without a stall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaselineChoice {
    /// The median over the ranks of their medians over the window.
    #[default]
    CohortMedian,
    /// Each rank's own median over the window.
    RankMedian,
}

/// Sizes of the axes along which ranks divide the work; the `[layout]` table of the settings
/// file. What is not given is inferred.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LayoutSettings {
    /// Ranks that share each layer.
    pub tp: Option<u32>,
    /// Ranks that share each sequence.
    pub cp: Option<u32>,
    /// Ranks that hold different experts.
    pub ep: Option<u32>,
    /// Ranks that take different data.
    pub dp: Option<u32>,
    /// Ranks that hold different layers.
    pub pp: Option<u32>,
    /// Order of the axes, fastest first, as Megatron-LM writes it: `tp-cp-ep-dp-pp`.
    pub order: Option<String>,
}

impl LayoutSettings {
    /// What was given, in the words of the pipeline's analysis.
    ///
    /// # Errors
    /// [`LayoutError::UnknownAxis`] for an order that names none.
    pub fn sizes(&self) -> Result<Sizes, LayoutError> {
        let sizes = Axis::ALL
            .into_iter()
            .zip([self.tp, self.cp, self.ep, self.dp, self.pp]);
        let given = sizes
            .filter_map(|(axis, size)| Some((axis, size?)))
            .collect();
        let names = self.order.iter().flat_map(|order| order.split('-'));
        Ok(Sizes {
            given,
            order: names.map(str::parse).collect::<Result<_, _>>()?,
        })
    }
}

impl Settings {
    pub(crate) fn baseline(&self, names: &mut StageNames) -> Baseline {
        if self.reference.is_empty() {
            return match self.baseline {
                BaselineChoice::CohortMedian => Baseline::CohortMedian,
                BaselineChoice::RankMedian => Baseline::RankMedian,
            };
        }
        let stages = self.reference.iter();
        Baseline::Reference(
            stages
                .map(|(name, seconds)| (names.intern(name), *seconds))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_the_file_may_be_negative() {
        let defaults = serde_json::to_value(Settings::default()).unwrap();
        let tables = defaults.as_object().unwrap().iter();
        let numbers = tables.flat_map(|(table, values)| {
            let numbers = values.as_object().into_iter().flatten();
            numbers
                .filter(|(_, value)| value.is_f64())
                .map(move |(key, _)| (table, key))
        });
        for (table, key) in numbers {
            let mut settings = defaults.clone();
            settings[table][key] = (-1.0).into();
            assert!(
                serde_json::from_value::<Settings>(settings).is_err(),
                "{table}.{key}"
            );
        }
    }
}
