//! What agents and collectors say to each other: the types, and the JSON they are sent as.
//!
//! An agent posts batches to a [`BatchAddress`]; each begins with a [`BatchHead`], and its inputs
//! follow as in a recording (`formats` packs and unpacks them). A collector answers with a
//! [`KeptReply`] or a [`Refusal`], which the agent reads as one [`Reply`]. Over a bus, which answers
//! nothing, a [`Command`] takes the place of the answer. docs/formats.md describes the bytes.
//!
//! ```
//! use laggard_protocol::{BatchAddress, Reply};
//!
//! let address = BatchAddress { job: "pretrain/7", host: "node-1", session: "16-9", sequence: 4 };
//! assert_eq!(address.path(), "/api/v1/jobs/pretrain%2F7/hosts/node-1/epochs/16-9/batches/4");
//!
//! let Reply::Kept(kept) = Reply::read(200, br#"{"next": 5, "stacks": [2]}"#) else { panic!() };
//! assert_eq!((kept.next, kept.wanted.stacks), (5, vec![2]));
//! ```

mod batch;
mod reply;

pub use batch::{BATCH_ROUTE, BatchAddress, BatchHead, CLOCK_HEADER, url_segment};
pub use reply::{Command, HostOrders, KeptReply, Refusal, Reply};
