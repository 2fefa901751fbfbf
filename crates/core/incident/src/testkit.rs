//! Windows for tests, and what is found in them.

use frontier::{Baseline, Gates, WindowFrontier, analyse};
use model::{Block, Boundary, Ending, MarkKind, StageId, Sync, Window};

use crate::fault::Turns;
use crate::{Fault, IncidentSettings, find_faults};

/// Steps of ranks that meet nowhere, by the stage and a mark of each segment.
pub(crate) fn block(
    segments: &[(StageId, MarkKind)],
    ranks: usize,
    steps: u64,
    durations_s: Vec<f64>,
) -> Block {
    let boundaries = segments.iter().map(|(stage, kind)| Boundary {
        stage: *stage,
        after: *kind,
        ending: Ending::Mark(*kind),
        sync: Sync::None,
    });
    Block {
        boundaries: boundaries.collect(),
        groups: None,
        steps: (0..steps).collect(),
        durations_s,
        ranks,
        carried: 0,
    }
}

/// The faults of a window, charged anew by `charge`, costliest first.
pub(crate) fn faults_of(
    window: &Window,
    charge: impl FnOnce(&mut Vec<Fault>, &WindowFrontier, &IncidentSettings),
) -> Vec<Fault> {
    let (gates, settings) = (Gates::default(), IncidentSettings::default());
    let found = analyse(window, &gates, &Baseline::CohortMedian);
    let mut faults = find_faults(window, &found, &gates, &settings, Turns::Rotate);
    charge(&mut faults, &found, &settings);
    faults
}
