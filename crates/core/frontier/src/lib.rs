//! StageFrontier: which stage the exposed time of a synchronised job belongs to.
//!
//! Give [`analyse`] a [`model::Window`] and [`Gates`]; it returns a [`WindowFrontier`] with
//! shares, gains, leaders, candidates and labels. [`Replay`] answers "what if this rank had
//! been on time", and [`Sketch`] lets hosts reduce their ranks before a collector merges
//! them. What an operator should know of it is the business of the `incident` crate.
//!
//! # Examples
//! The others wait in backward for rank 2, which is late in its data wait. The frontier
//! charges the data wait:
//! ```
//! use laggard_frontier::advances;
//!
//! // Data wait, forward and backward in seconds, each of ranks 0 to 2.
//! let row = [1.0, 1.0, 5.0, 1.0, 1.0, 1.0, 6.0, 6.0, 2.0];
//! assert_eq!(advances(&row, 3), [5.0, 1.0, 2.0]);
//! ```
//! The fewest stages that explain most of the exposed time are worth a look:
//! ```
//! use laggard_frontier::candidates;
//! use model::StageId;
//!
//! let stages = [StageId::DATA, StageId::FORWARD, StageId::BACKWARD];
//! assert_eq!(candidates(&stages, &[0.62, 0.13, 0.25], 0.8), [StageId::DATA, StageId::BACKWARD]);
//! ```
//! Hosts reduce their own ranks; merging gives the answer of all ranks:
//! ```
//! use laggard_frontier::{Sketch, StageBaseline};
//!
//! let baseline = StageBaseline::uniform(vec![1.0, 1.0]);
//! let sketch = |row: &[f64], ranks: &[u32]| Sketch::of_row(row, ranks, &[0, 1], &baseline);
//! let mut merged = sketch(&[1.0, 1.0, 6.0, 6.0], &[0, 1]);
//! merged.merge(&sketch(&[5.0, 2.0], &[2]))?;
//! assert_eq!(merged.advances_s(), [5.0, 2.0]);
//! # Ok::<(), laggard_frontier::SketchError>(())
//! ```
//!
//! # Source
//! StageFrontier (2026). Ours: the step cut, issue boundaries and the replay
//! (docs/math/frontier.md).

mod accounting;
mod baseline;
mod gates;
mod label;
mod localise;
mod partial;
mod peers;
mod positions;
mod queues;
mod replay;
mod sketch;
mod window;

pub use accounting::{Front, RowAccount, account_row, advances};
pub use baseline::{Baseline, StageBaseline};
pub use gates::Gates;
pub use label::{Axes, label};
pub use localise::{Localisation, localise};
pub use peers::{PeerMethod, peer_scores};
pub use queues::{Excess, QueueReplay};
pub use replay::{
    Replay, assume_synchronisation, device_wait_s, join_devices_where_seen, join_where_seen,
    synchronising_stages,
};
pub use sketch::{BoundarySketch, Histogram, Sketch, SketchError};
pub use window::{StageStep, StepAccount, WindowFrontier, analyse, candidates, ranking};
