//! NATS JetStream between agents and collectors.
//!
//! Agents put batches into one stream with [`Publisher`], and hear of orders. Collectors read them,
//! and agree on who keeps which job, in a [`Session`]. Nothing here knows what a batch says.
//!
//! A stream keeps its messages in order, so a collector that reads those of a job from the first
//! on knows all there is to know of it: to hand a job on takes a note of its new keeper, and two
//! keepers at once only do the same work twice.
//!
//! # Example
//! An address may hold credentials, and several servers of one cluster:
//! ```
//! use laggard_bus::BusAddress;
//!
//! assert!(BusAddress::parse("nats://agent:secret@bus1:4222,nats://bus2:4222").is_ok());
//! assert!(BusAddress::parse("http://bus1:4222").is_err());
//! ```

mod address;
mod names;
mod publisher;
mod session;

pub use address::{AddressError, BusAddress, Proof};
pub use publisher::{NotPublished, Publisher};
pub use session::{
    BusBatch, BusError, Feed, KeeperNote, NewestBatch, Session, StreamMessage, StreamMessages,
};
