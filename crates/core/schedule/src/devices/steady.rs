//! Devices that became slower by less than a single block shows.

use std::collections::{BTreeMap, VecDeque};

use model::{Pass, Side, median, medians_of_others};

use super::level::Level;
use super::{OWN_SHARE, UnlikeStage};
use crate::judge::{HeldUp, REAL_SHARE, SCATTERS};

/// Sampled iterations that are looked at together. Two runs of sampled steps have as many.
const RECENT: usize = 8;
/// So many of them must have been struck. Ours: a hiccup of a machine strikes a run of steps, not two.
const STRUCK_MIN: usize = 6;
/// Part of the usual by which it must be slower at least. Ours: clocks of equal devices differ by
/// less.
const LEAST_SHARE: f64 = 0.125;
/// Part of what devices of other ranks take for a pass by which one takes longer that is not like
/// them. Ours: stages of a model are divided as evenly as its layers allow.
const UNLIKE_SHARE: f64 = 0.25;
/// Part of what struck iterations usually lose from which one is of the same cause. Ours.
const SAME_CAUSE_SHARE: f64 = 0.5;

/// What the devices of ranks take by themselves for the blocks of a pass, over the iterations.
///
/// One iteration scatters by as much as its blocks take longer on a device that is half as quick
/// again; several in a row do not.
/// # Source
/// Ours: docs/math/device.md.
#[derive(Debug, Default)]
pub(super) struct Steady {
    of_passes: BTreeMap<(u32, Pass), Followed>,
    /// What iterations take in which no device is slower.
    spans_s: Level,
}

#[derive(Debug, Default)]
struct Followed {
    /// The most that it took by itself in iterations that were not struck.
    usual_s: Level,
    /// The least, and for how long its host held it up at least.
    least_s: Level,
    held_s: Level,
    /// The latest iterations: what those that were struck lost, if that is yet to be reported.
    recent: VecDeque<Option<Struck>>,
}

/// An iteration in which a device was slower.
#[derive(Debug)]
pub(super) struct Struck {
    pub(super) held: HeldUp,
    pub(super) is_reported: bool,
}

/// What devices took for the blocks of each pass in an iteration.
pub(super) type OwnTimes = BTreeMap<(u32, Pass), OwnTime>;

/// What a device took for the blocks of a pass, in seconds.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "the unit")]
pub(super) struct OwnTime {
    /// By itself, at least and at most.
    pub(super) least_s: f64,
    pub(super) most_s: f64,
    /// For how long of it its host held it up, at least.
    pub(super) held_s: f64,
}

impl Steady {
    /// By what factor devices are slower than usual in passes, those that are.
    pub(super) fn slower(&self, own_s: &OwnTimes) -> BTreeMap<(u32, Pass), f64> {
        let mut by_pass: BTreeMap<Pass, Vec<(u32, f64)>> = BTreeMap::new();
        for ((rank, pass), OwnTime { least_s, .. }) in own_s {
            let followed = self.of_passes.get(&(*rank, *pass));
            if let Some(usual_s) = followed.and_then(|it| it.usual_s.known()) {
                // The least of now beside the usual most: that a host holds its device up for longer
                // or shorter than usual does not make the device seem slower.
                let growth = (least_s - usual_s) / usual_s;
                by_pass.entry(*pass).or_default().push((*rank, growth));
            }
        }
        let mut slower = BTreeMap::new();
        for (pass, growths) in by_pass {
            let all: Vec<f64> = growths.iter().map(|(_, growth)| *growth).collect();
            let beside = growths.into_iter().zip(medians_of_others(&all));
            slower.extend(beside.filter_map(|((rank, growth), others)| {
                let least = self.of_passes.get(&(rank, pass))?.least_growth()?;
                let is_own = growth - others >= OWN_SHARE * growth;
                (growth > least && is_own).then_some(((rank, pass), 1.0 + growth))
            }));
        }
        slower
    }

    /// What iterations usually take in which no device is slower, in seconds.
    pub(super) fn usual_span_s(&self) -> Option<f64> {
        self.spans_s.usual()
    }

    /// Devices that always took longer for a pass than those of other ranks, by themselves or because
    /// their hosts held them up, if that is more than `share_min` of what iterations take.
    pub(super) fn unlike(&self, share_min: f64) -> Vec<UnlikeStage> {
        let Some(span_s) = self.usual_span_s() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for pass in Pass::ALL {
            let followed = self.of_passes.iter().filter(|((_, of), _)| *of == pass);
            let known: Vec<(u32, OwnTime)> = followed
                .filter_map(|((rank, _), it)| Some((*rank, it.usual()?)))
                .collect();
            // Without another rank there is nothing to be unlike.
            if known.len() < 2 {
                continue;
            }
            let all = |of: fn(&OwnTime) -> f64| known.iter().map(|(_, it)| of(it)).collect();
            // The least of one beside the most of the others.
            let sides: [(Side, Vec<f64>, Vec<f64>); 2] = [
                (Side::Device, all(|it| it.least_s), all(|it| it.most_s)),
                (
                    Side::Host,
                    all(|it| it.held_s),
                    all(|it| it.most_s - it.least_s),
                ),
            ];
            for (side, own_s, most_s) in sides {
                let ranks = known.iter().map(|(rank, _)| *rank);
                for ((rank, took_s), others_s) in ranks.zip(own_s).zip(medians_of_others(&most_s)) {
                    let least_s = (UNLIKE_SHARE * others_s).max(share_min * span_s);
                    if took_s - others_s >= least_s {
                        found.push(UnlikeStage {
                            rank,
                            pass,
                            side,
                            took_s,
                            others_s,
                        });
                    }
                }
            }
        }
        found
    }

    /// Takes an iteration: what devices took, what all of it took, and what was lost to those that
    /// were slower. What is known now to be no hiccup, of this iteration and of those before.
    pub(super) fn take(
        &mut self,
        own_s: &OwnTimes,
        span_s: f64,
        mut lost: BTreeMap<(u32, Pass), Struck>,
    ) -> Vec<HeldUp> {
        // All ranks wait for one slower device, so that their iteration is not usual either.
        if lost.is_empty() {
            self.spans_s.learn(span_s);
        }
        let usual_s = self.usual_span_s().unwrap_or(span_s);
        let mut found = Vec::new();
        for (key, own) in own_s {
            let followed = self.of_passes.entry(*key).or_default();
            let struck = lost.remove(key);
            if struck.is_none() {
                followed.usual_s.learn(own.most_s);
                followed.least_s.learn(own.least_s);
                followed.held_s.learn(own.held_s);
            }
            if followed.recent.len() == RECENT {
                followed.recent.pop_front();
            }
            followed.recent.push_back(struck.map(|mut struck| {
                struck.held.usual_s = usual_s;
                struck
            }));
            found.extend(followed.report());
        }
        // Ranks and passes report iterations before this one, too. Strikes are counted in
        // ascending order.
        found.sort_by_key(|held| held.step);
        found
    }
}

impl Followed {
    /// What the device usually takes.
    fn usual(&self) -> Option<OwnTime> {
        Some(OwnTime {
            least_s: self.least_s.known()?,
            most_s: self.usual_s.known()?,
            held_s: self.held_s.known()?,
        })
    }

    /// What it must be slower by at least, as a part of the usual.
    fn least_growth(&self) -> Option<f64> {
        let usual_s = self.usual_s.known()?;
        let scatter_s = median(&mut self.usual_s.distances().collect::<Vec<_>>())?;
        Some((SCATTERS * scatter_s / usual_s).max(LEAST_SHARE))
    }

    /// What was not reported yet, if most of the latest iterations were struck and took longer.
    fn report(&mut self) -> Vec<HeldUp> {
        let struck = || self.recent.iter().flatten().map(|struck| &struck.held);
        let middle = |of: fn(&HeldUp) -> f64| median(&mut struck().map(of).collect::<Vec<_>>());
        // Of all that were struck: a single iteration scatters by more than what it loses here.
        let is_real = middle(|held| held.took_s - held.usual_s - REAL_SHARE * held.lost_s)
            .is_some_and(|beyond_s| beyond_s >= 0.0);
        // What eight iterations take longer scatters: one that was reported goes on.
        let goes_on = self.recent.iter().flatten().any(|it| it.is_reported);
        if struck().count() < STRUCK_MIN || !(is_real || goes_on) {
            return Vec::new();
        }
        // A hiccup before it became slower is none of it.
        let least_s = SAME_CAUSE_SHARE * middle(|held| held.lost_s).unwrap_or(0.0);
        let struck = self.recent.iter_mut().flatten();
        let new = struck.filter(|it| !it.is_reported && it.held.lost_s >= least_s);
        new.map(|struck| {
            struck.is_reported = true;
            struck.held.clone()
        })
        .collect()
    }
}
