use model::{StageId, Window};

/// The ways of ranking stages that StageFrontier is compared with.
///
/// # Source
/// StageFrontier (2026), its comparison; the paper's exact spread formula is not known, ours is max − min.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerMethod {
    /// The slowest rank of each stage.
    Max,
    /// The mean over ranks.
    Mean,
    /// Slowest minus fastest rank of each stage.
    Spread,
    /// The stages of the rank with the longest step.
    SlowestRank,
    /// The stages of the first rank.
    FirstRank,
}

impl PeerMethod {
    /// All methods, in the order of the paper's table.
    pub const ALL: [Self; 5] = [
        Self::Max,
        Self::Mean,
        Self::SlowestRank,
        Self::FirstRank,
        Self::Spread,
    ];

    /// A name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Max => "per-stage max",
            Self::Mean => "per-stage mean",
            Self::Spread => "raw spread",
            Self::SlowestRank => "slowest rank",
            Self::FirstRank => "rank 0",
        }
    }
}

/// Seconds a method gives each stage of `stages`, summed over the window.
pub fn peer_scores(window: &Window, stages: &[StageId], method: PeerMethod) -> Vec<f64> {
    let mut scores = vec![0.0; stages.len()];
    for block in &window.blocks {
        for (_, row) in block.rows() {
            // [stage][rank]
            let mut totals = vec![vec![0.0; block.ranks]; stages.len()];
            for (durations, boundary) in row.chunks_exact(block.ranks).zip(block.boundaries.iter())
            {
                let slot = stages.iter().position(|stage| *stage == boundary.stage);
                for (rank, seconds) in durations.iter().enumerate() {
                    if let Some(slot) = slot {
                        totals[slot][rank] += seconds;
                    }
                }
            }
            let slowest = (0..block.ranks)
                .max_by(|a, b| rank_total(&totals, *a).total_cmp(&rank_total(&totals, *b)));
            for (score, ranks) in scores.iter_mut().zip(&totals) {
                *score += score_step(ranks, method, slowest.unwrap_or(0));
            }
        }
    }
    scores
}

fn rank_total(totals: &[Vec<f64>], rank: usize) -> f64 {
    totals.iter().map(|stage| stage[rank]).sum()
}

fn score_step(ranks: &[f64], method: PeerMethod, slowest: usize) -> f64 {
    let max = ranks.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match method {
        PeerMethod::Max => max,
        PeerMethod::Mean => ranks.iter().sum::<f64>() / ranks.len() as f64,
        PeerMethod::Spread => max - ranks.iter().copied().fold(f64::INFINITY, f64::min),
        PeerMethod::SlowestRank => ranks[slowest],
        PeerMethod::FirstRank => ranks[0],
    }
}
