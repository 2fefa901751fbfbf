//! StageFrontier: which stage the exposed time of a synchronised job belongs to.
//!
//! Give [`analyse`] a [`model::Window`] and [`Gates`]; it returns a [`WindowFrontier`] with
//! shares, gains, leaders, candidates and labels. [`Replay`] answers "what if this rank had
//! been on time", and [`Sketch`] lets hosts reduce their ranks before a collector merges
//! them. What an operator should be told about it is the business of the `incident` crate.
//!
//! # Source
//! StageFrontier (2026). Ours: the step cut, issue boundaries and the replay
//! (docs/math/frontier.md).

mod accounting;
mod baseline;
mod gates;
mod label;
mod localise;
mod peers;
mod replay;
mod sketch;
mod window;

pub use accounting::{Front, RowAccount, account_row, advances};
pub use baseline::{Baseline, StageBaseline};
pub use gates::Gates;
pub use label::{Axes, label};
pub use localise::{Localisation, localise};
pub use peers::{PeerMethod, peer_scores};
pub use replay::{
    Replay, assume_synchronisation, device_wait_s, join_devices_where_seen,
    join_where_seen, synchronising_stages,
};
pub use sketch::{BoundarySketch, Histogram, Sketch, SketchError};
pub use window::{StageStep, StepAccount, WindowFrontier, analyse, candidates, ranking};
