//! Labels that launchers put before each line of a process: `3: ` by `srun --label`, `[default3]:` by
//! `torchrun --tee`. They are numbers of tasks or of processes on a host. They are ranks where lines
//! that name their rank say the same.

use std::collections::BTreeMap;

use super::said::{MAX_RANKS, digits, number, printed_by};
use super::traceback::Tracebacks;

/// Follows what is printed behind labels, line by line.
#[derive(Clone, Debug, Default)]
pub(super) struct Labels {
    /// Of lines that name no rank, by label.
    tracebacks: BTreeMap<u32, Tracebacks>,
    /// Whether a line names the rank of its label, and whether one names another.
    agrees: bool,
    differs: bool,
}

impl Labels {
    pub(super) fn take(&mut self, line: &str) {
        let Some((label, printed)) = label(line) else {
            return;
        };
        match printed_by(printed) {
            Some(rank) if rank == label => self.agrees = true,
            Some(_) => self.differs = true,
            None => {
                let known = self.tracebacks.get_mut(&label);
                if let Some(tracebacks) = known {
                    tracebacks.take(printed);
                } else if Tracebacks::begin_with(printed) {
                    self.tracebacks.entry(label).or_default().take(printed);
                }
            }
        }
    }

    /// Whether labels are ranks.
    pub(super) fn are_ranks(&self) -> bool {
        self.agrees && !self.differs
    }

    /// Each label whose process ended in an error, that error, and whether it follows from another rank's.
    pub(super) fn ended_by(self) -> impl Iterator<Item = (u32, String, bool)> {
        let ended = self.tracebacks.into_iter();
        ended.filter_map(|(label, tracebacks)| {
            let (error, follows) = tracebacks.ended_by()?;
            Some((label, error, follows))
        })
    }
}

/// The number in the label of a line, and what stands behind it.
fn label(line: &str) -> Option<(u32, &str)> {
    let line = line.trim_start();
    let (text, printed) = if let Some(inside) = line.strip_prefix('[') {
        // `[default3]:`; a name is that of a role, and `[rank3]:` is PyTorch's.
        let (label, printed) = inside.split_once("]:")?;
        if label.starts_with("rank") {
            return None;
        }
        let text = label.trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == '_');
        (text, printed.strip_prefix(' ').unwrap_or(printed))
    } else {
        let (text, rest) = line.split_at(digits(line));
        (text, rest.strip_prefix(": ")?)
    };
    let label = number(text).filter(|label| *label < MAX_RANKS && digits(text) == text.len())?;
    Some((label, printed))
}
