//! Collectives that do not end.

use serde::{Deserialize, Serialize};

use crate::CollectiveOp;

/// Why nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StallKind {
    /// The culprits never entered a collective the others wait in.
    Missing,
    /// The same, and the culprits do again and again what they did before.
    Livelock,
    /// The others wait in a collective for the culprits, of which nothing is recorded: they may
    /// have entered it.
    Unseen,
    /// The culprits entered another collective than the others.
    // Verdicts have had this name since before the field's word was taken.
    #[serde(rename = "mismatch")]
    Desync,
    /// The culprits wait for one another, in different collectives.
    Deadlock,
    /// All entered, and inside the operation something stands still: at the culprits, if there
    /// is a `failure` or recorders show how far each rank has come; or nothing shows where.
    Inside,
    /// No rank does anything, and none is known to wait for another.
    Nowhere,
}

/// A collective that does not end: some ranks are in it and others are not, or all are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Name of the group.
    pub group: String,
    /// How many collectives were issued in the group, this one included; 0 if it is known who
    /// is there and not in which collective.
    pub number: u64,
    /// Which collective, as most of those say that have not gone on to the next.
    pub op: CollectiveOp,
    /// Ranks that entered it.
    #[serde(with = "rank_runs")]
    pub entered: Vec<u32>,
    /// Members of the group that did not; where ranks disagree, those of which nothing is recorded.
    #[serde(with = "rank_runs")]
    pub missing: Vec<u32>,
    /// Its sizes and types, as most of those in it say; empty if nothing is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Ranks that entered something else under this number; all ranks if it is unknown which
    /// of them did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub desyncs: Vec<Desync>,
    /// Those missing that have done nothing since they entered the collective before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub still_before: Vec<u32>,
    /// What recorders of the ranks say of it, if all that are seen entered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<DeviceProgress>,
}

/// What a rank entered that the others did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desync {
    /// The rank.
    pub rank: u32,
    /// Its collective.
    pub op: CollectiveOp,
    /// Its sizes and types.
    pub detail: String,
}

/// How far the ranks have come in a collective that all of them entered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProgress {
    /// Ranks on which it has not ended.
    #[serde(with = "rank_runs")]
    pub under_way: Vec<u32>,
    /// Those of them whose device has not begun it.
    #[serde(with = "rank_runs")]
    pub not_started: Vec<u32>,
    /// Ranks on which it has ended.
    #[serde(with = "rank_runs")]
    pub ended: Vec<u32>,
}

/// Whose devices were seen to get to a collective that all hosts have issued, by marks of sampled
/// steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceArrival {
    /// The collective: entered by devices that were seen there, missing those that were not.
    pub wait: Wait,
    /// By how many seconds later than the others their hosts have still looked for those in vain, if
    /// that is known and longer than ranks are usually apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later_s: Option<f64>,
}

impl DeviceProgress {
    /// Ranks that the others are seen to wait for in it: their devices have not begun what
    /// others have begun, or not finished what others have finished. Empty if all are alike.
    pub fn behind(&self) -> &[u32] {
        // Those that have not started are among those under way.
        let begun = self.ended.len() + self.under_way.len() - self.not_started.len();
        if !self.not_started.is_empty() && begun > 0 {
            &self.not_started
        } else if self.ended.is_empty() {
            // All have begun and none has ended: no device is behind another.
            &[]
        } else {
            &self.under_way
        }
    }
}

impl Wait {
    /// Whether it is unknown which of the ranks that entered different things is wrong.
    pub fn is_undecided(&self) -> bool {
        self.desyncs
            .iter()
            // Those that entered what the wait names are listed only if no side is known to be
            // wrong.
            .any(|desync| (desync.op, &desync.detail) == (self.op, &self.detail))
    }

    /// Ranks that entered the same, together; each side by its first rank.
    pub fn sides(&self) -> Vec<(Vec<u32>, &Desync)> {
        let mut sides: Vec<(Vec<u32>, &Desync)> = Vec::new();
        for desync in &self.desyncs {
            let known = sides
                .iter_mut()
                .find(|(_, first)| (first.op, &first.detail) == (desync.op, &desync.detail));
            match known {
                Some((ranks, _)) => ranks.push(desync.rank),
                None => sides.push((vec![desync.rank], desync)),
            }
        }
        sides
    }

    /// Ranks that others wait for in it.
    pub fn awaited(&self) -> impl Iterator<Item = u32> {
        let behind = self
            .open
            .as_ref()
            .map(DeviceProgress::behind)
            .unwrap_or_default();
        self.missing.iter().chain(behind).copied()
    }

    /// Ranks that wait in it for others.
    pub fn waiting(&self) -> impl Iterator<Item = u32> {
        let (waits, behind) = match &self.open {
            Some(open) => (&open.under_way, open.behind()),
            None => (&self.entered, &[][..]),
        };
        waits.iter().filter(|rank| !behind.contains(rank)).copied()
    }

    /// Whether a device may have begun it: it is not known of all that they have not.
    pub fn has_begun(&self) -> bool {
        self.open.as_ref().is_none_or(|open| {
            !open.ended.is_empty() || open.not_started.len() < open.under_way.len()
        })
    }

    /// Whether ranks are in it and nobody is known to be waited for.
    pub fn holds_all(&self) -> bool {
        // Without recorders it is unknown who is still in it.
        self.open.is_some() && self.desyncs.is_empty() && self.awaited().next().is_none()
    }
}

/// Lists of ranks as the runs of [`Ranks`](crate::Ranks): those of a large job are long, and hardly
/// have gaps.
pub(crate) mod rank_runs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::Ranks;

    pub(crate) fn serialize<S: Serializer>(
        ranks: &[u32],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        ranks
            .iter()
            .copied()
            .collect::<Ranks>()
            .serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u32>, D::Error> {
        Ok(Ranks::deserialize(deserializer)?.iter().collect())
    }
}
