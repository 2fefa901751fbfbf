use std::collections::HashMap;

use crate::MarkKind;

/// A stage of the step: one of the built-in ones or a name the user gave.
///
/// Ids are job-wide: [`StageNames`] gives the same id to the same name on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageId(pub u16);

/// Names of the built-in stages, each at the place of its id.
///
/// # Source
/// StageFrontier's default schema; `data.gap` is ours: the time between the
/// optimizer and the forward pass where no data loader is seen.
// The order of ids is the order in which stages are shown and compared; new names go last.
const BUILT_IN: [&str; 8] = [
    "data.next_wait",
    "model.fwd_loss_cpu_wall",
    "model.backward_cpu_wall",
    "callbacks.cpu_wall",
    "optim.step_cpu_wall",
    "step.other_cpu_wall",
    "data.gap",
    // The published name; values are kept in seconds here.
    "model.fwd_loss_cuda_event_ms",
];

impl StageId {
    /// The name of a built-in stage.
    pub fn built_in(self) -> Option<&'static str> {
        BUILT_IN.get(usize::from(self.0)).copied()
    }

    /// Waiting for the next batch.
    pub const DATA: Self = Self(0);
    /// Forward pass and loss, host wall time.
    pub const FORWARD: Self = Self(1);
    /// Backward pass, host wall time.
    pub const BACKWARD: Self = Self(2);
    /// Everything around the optimizer that is not the optimizer: logging, checkpoints.
    pub const CALLBACKS: Self = Self(3);
    /// Optimizer step, host wall time.
    pub const OPTIMIZER: Self = Self(4);
    /// The residual: time of the step that no stage covers.
    pub const OTHER: Self = Self(5);
    /// Time between optimizer and forward pass of a loop without a data loader.
    pub const DATA_GAP: Self = Self(6);
    /// Side channel: the forward pass as measured on the device. Never part of a step.
    pub const FORWARD_EVENT: Self = Self(7);

    /// The stages that hooks record, with the marks at their begin and at their end.
    pub const HOOKED: [(Self, [MarkKind; 2]); 4] = [
        (Self::DATA, [MarkKind::DataBegin, MarkKind::DataEnd]),
        (
            Self::FORWARD,
            [MarkKind::ForwardBegin, MarkKind::ForwardEnd],
        ),
        (
            Self::BACKWARD,
            [MarkKind::BackwardBegin, MarkKind::BackwardEnd],
        ),
        (
            Self::OPTIMIZER,
            [MarkKind::OptimizerBegin, MarkKind::OptimizerEnd],
        ),
    ];

    /// The marks at its begin and at its end, if hooks record it.
    pub fn hook_marks(self) -> Option<[MarkKind; 2]> {
        let of_it = Self::HOOKED.iter().find(|(stage, _)| *stage == self);
        of_it.map(|(_, marks)| *marks)
    }

    /// Whether the stage is one the user named.
    pub fn is_named(self) -> bool {
        usize::from(self.0) >= BUILT_IN.len()
    }
}

/// Job-wide table of stage names.
#[derive(Clone, Debug)]
pub struct StageNames {
    names: Vec<String>,
    ids: HashMap<String, StageId>,
}

impl Default for StageNames {
    fn default() -> Self {
        let mut table = Self {
            names: Vec::new(),
            ids: HashMap::new(),
        };
        // First of all, so that each gets its place as id.
        for name in BUILT_IN {
            table.intern(name);
        }
        table
    }
}

impl StageNames {
    /// Gives `name` an id, the one it already has if it was seen before.
    ///
    /// After 65,000 different names all further ones share the residual's id: a script that
    /// makes names up as it goes must not grow the table for ever.
    pub fn intern(&mut self, name: &str) -> StageId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let Some(id) = u16::try_from(self.names.len())
            .ok()
            // Marks have 16 bits for a name, and the largest number stands for none.
            .filter(|id| *id < 65_000)
        else {
            return StageId::OTHER;
        };
        self.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), StageId(id));
        StageId(id)
    }

    /// The name behind an id, "?" for an id this table never gave.
    pub fn name(&self, id: StageId) -> &str {
        self.names
            .get(usize::from(id.0))
            .map_or("?", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_ids_carry_their_schema_names() {
        let names = StageNames::default();
        assert_eq!(names.name(StageId::DATA), "data.next_wait");
        assert_eq!(names.name(StageId::OTHER), "step.other_cpu_wall");
        assert_eq!(names.name(StageId::DATA_GAP), "data.gap");
    }

    #[test]
    fn marks_of_hooks_know_their_stage() {
        for (stage, [begin, end]) in StageId::HOOKED {
            assert_eq!(stage.hook_marks(), Some([begin, end]));
            assert_eq!((begin.stage(), end.stage()), (Some(stage), Some(stage)));
            assert!(begin.begins() && !begin.ends_stage(), "{begin:?}");
            assert!(end.ends_stage() && !end.begins(), "{end:?}");
        }
        assert!(MarkKind::DataStop.ends_stage() && MarkKind::StageEnd.ends_stage());
        assert_eq!(StageId::CALLBACKS.hook_marks(), None);
        let of_hooks = MarkKind::ALL.iter().filter(|kind| kind.is_hook()).count();
        assert_eq!(of_hooks, 2 * StageId::HOOKED.len() + 1);
    }

    #[test]
    fn the_same_name_has_the_same_id() {
        let mut names = StageNames::default();
        let first = names.intern("tokenise");
        assert_eq!(names.intern("tokenise"), first);
        assert_eq!(names.intern("data.next_wait"), StageId::DATA);
        assert!(first.is_named());
    }
}
