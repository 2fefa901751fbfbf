//! Synthetic jobs with injected faults.
//!
//! [`Campaign`] is the calibrated simulation of the paper's controlled study. Its base times
//! were chosen to meet the paper's tables, so it is a **fitted fixture**: it notices when
//! our results change, and is no independent evidence for the method. [`patterns`] holds the
//! small worked examples, with noise.
//!
//! [`Cluster`] is a job seen by its live tables: the loop of NCCL's proxy solved for times, with
//! faults of GPUs, cards, proxies and loops. It shares no code with the analysis it tests.
//!
//! [`Pipeline`] is a pipeline-parallel job as what-if traces tell it, with a slow rank, a heavy
//! stage or uneven data.
//!
//! [`CalledJob`] is a pipeline-parallel job as logs of NCCL calls tell it, with slow blocks or a rank
//! that stops.
//!
//! [`AheadJob`] is a data-parallel job whose hosts run ahead of their devices, with hosts or devices
//! that are slow. What a fault costs is the difference to the same job without it.
//!
//! # Examples
//! A pipeline with a slow rank, and what its stragglers cost by the what-if analysis:
//! ```
//! use laggard_sim::{Drag, Pipeline};
//! use model::SlowdownCause;
//! use whatif::{PipelineTrace, analyse};
//!
//! let slow = Drag::Rank { dp_rank: 1, stage: 2, times: 2.0 };
//! let pipeline =
//!     Pipeline { dp: 4, pp: 4, tp: 1, microbatches: 8, steps: 16, drags: vec![slow], seed: 1 };
//! let found = analyse(&PipelineTrace::new(pipeline.layout(), &pipeline.rows())?)?;
//! assert!(matches!(found.causes[..], [SlowdownCause::Rank { dp_rank: 1, stage: 2, .. }]));
//! # Ok::<(), whatif::TraceError>(())
//! ```
//! A window of six steps in which rank 1 is late in its data wait:
//! ```
//! use laggard_sim::window_of;
//! use frontier::{Baseline, Gates, analyse};
//! use model::StageId;
//!
//! let stages = [StageId::DATA, StageId::FORWARD, StageId::BACKWARD];
//! let step = vec![vec![1.0, 1.0, 6.0], vec![5.0, 1.0, 2.0]];
//! let found = analyse(&window_of(&stages, &vec![step; 6]), &Gates::default(), &Baseline::CohortMedian);
//! assert_eq!(found.share[0], 5.0 / 8.0);
//! ```
//! A healthy job by its NCCL calls gives no finding:
//! ```
//! use laggard_sim::CalledJob;
//! use schedule::{ScheduleSettings, Sizes, diagnose};
//!
//! let logs = CalledJob::healthy(1, 4, 2).logs();
//! let found = diagnose(logs, &Sizes::default(), &[], &ScheduleSettings::default())?;
//! assert!(found.expect("a pipeline").findings.is_empty());
//! # Ok::<(), schedule::LayoutError>(())
//! ```
//!
//! # Source
//! StageFrontier (2026), its controlled study and examples.

mod ahead;
mod callbacks;
mod calls;
mod campaign;
mod cluster;
pub mod patterns;
mod pipeline;
mod trace;
mod transfer;
mod watch;
mod window;

pub use ahead::{AheadJob, AheadRun, ReadBack, Slow, SlowSpot};
pub use callbacks::{Begun, Callback, CallbackRoute, Stage};
pub use calls::{CalledJob, Delay, Primitive, Spot, Stop, log_text};
pub use campaign::{Campaign, MAGNITUDES, Scenario, Score, StudyRow, magnitude, simulate};
pub use cluster::{Cluster, ClusterFault, ClusterRun, LOCALS};
pub use pipeline::{Drag, FORWARD_S, Pipeline};
pub use watch::{LOOK_S, Watched, job_of, watch, watch_by};
pub use window::{STAGES, window_of};
