//! What ranks wrote, one stream of marks each.

use std::collections::BTreeMap;

use model::{Event, Mark, RankStep, StageId};
use steps::Segmenter;

/// The marks of ranks on their way to steps, and how many records were lost on it.
#[derive(Debug, Default)]
pub(super) struct MarkStreams {
    streams: BTreeMap<u32, MarkStream>,
    /// Records of each rank that were overwritten before they were read.
    lost: BTreeMap<u32, u64>,
}

#[derive(Debug, Default)]
struct MarkStream {
    segmenter: Segmenter,
    /// Stages behind the codes of the rank's name table.
    stages: Vec<StageId>,
}

impl MarkStreams {
    /// A rank gives its next code to a stage.
    pub(super) fn name(&mut self, rank: u32, stage: StageId) {
        self.streams.entry(rank).or_default().stages.push(stage);
    }

    /// The stage that an event of a rank names.
    pub(super) fn stage(&self, rank: u32, event: &Event) -> StageId {
        // Most events name none: of these nothing is looked up.
        let stage = event.name().and_then(|name| {
            let stages = &self.streams.get(&rank)?.stages;
            stages.get(usize::from(name)).copied()
        });
        // Without one if the name found no room in the rank's table.
        stage.unwrap_or(StageId::OTHER)
    }

    /// Takes a mark of a rank, in `stage`; the step that it ends.
    pub(super) fn push(&mut self, rank: u32, mark: &Mark, stage: StageId) -> Option<RankStep> {
        self.streams
            .entry(rank)
            .or_default()
            .segmenter
            .push(mark, stage)
    }

    /// Records of a rank were lost: its step is not whole.
    pub(super) fn lose(&mut self, rank: u32, records: u64) {
        let lost = self.lost.entry(rank).or_default();
        *lost = lost.saturating_add(records);
        self.streams.entry(rank).or_default().segmenter.lose();
    }

    /// A rank writes no more; the step that it was in.
    pub(super) fn finish(&mut self, rank: u32) -> Option<RankStep> {
        self.streams.remove(&rank)?.segmenter.finish()
    }

    /// Ranks that may write more.
    pub(super) fn open(&self) -> Vec<u32> {
        self.streams.keys().copied().collect()
    }

    /// Ranks that lost records.
    pub(super) fn losers(&self) -> impl Iterator<Item = u32> {
        self.lost.keys().copied()
    }

    /// Records that all ranks lost.
    pub(super) fn lost(&self) -> u64 {
        self.lost.values().copied().fold(0, u64::saturating_add)
    }
}
