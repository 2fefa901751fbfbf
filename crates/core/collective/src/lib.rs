//! Progress of ranks through the collectives of their groups: who never arrived.
//!
//! [`Collectives`] is given every mark of a job. Once nothing has moved for longer than is
//! usual, [`Collectives::stall`] says which collectives are stuck, who waits in them, and
//! who is waited for: the ranks at the root of the wait graph, or a cycle. Only counts are
//! compared, never clocks of different hosts.
//!
//! [`Arrivals`] is given how long ranks were in completed collectives, and says who constantly
//! arrives last and which communicator became slow.
//!
//! # Example
//! Counters of a flow show where its oldest unfinished transfer is:
//! ```
//! use laggard_collective::FlowState;
//! use model::{Direction, Flow, RankNs};
//!
//! let flow = Flow {
//!     channel: 0,
//!     peer: 1,
//!     direction: Direction::Send,
//!     total: 64,
//!     ready: 10,
//!     transmitted: 8,
//!     done: 5,
//!     bytes: 0,
//!     begun_at: RankNs(0),
//!     moved_at: RankNs(0),
//! };
//! assert_eq!(FlowState::of(&flow), FlowState::NotDelivered);
//! ```
//!
//! # Source
//! Mycroft (2025): wait graph, root group and MinOp; the trigger is ours, on single marks
//! instead of windows.

mod arrival;
mod bandwidth;
mod blame;
mod communication;
mod failure;
mod links;
mod progress;
mod requests;
mod roots;
mod settings;
mod stall;
mod state;
mod streams;
mod tables;
mod trigger;
mod wait;

pub use arrival::{ArrivalSettings, Arrivals};
pub use communication::Communication;
pub use links::{Returned, idle_ports, slow_links};
pub use progress::{Collectives, Entered};
pub use requests::{Connection, Counted, Lost, Path};
pub use roots::Root;
pub use settings::HangSettings;
pub use stall::Stall;
pub use state::FlowState;
pub use trigger::OperationTrigger;
