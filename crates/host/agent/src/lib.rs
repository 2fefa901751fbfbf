//! Watches the rings of one host.
//!
//! An [`Agent`] is polled by its host process and never blocks. Its absence, or its death,
//! costs the job nothing but records. [`HostJobs`] watches all jobs of a host.

mod agent;
mod asked;
mod collector_link;
mod deaths;
mod devices;
mod flight;
mod jobs;
mod live;
mod outbox;
mod ports;
mod probes;
mod processes;
mod profiles;
mod quota;
mod ras;
mod rdma;
mod slowing;
mod sockets;
mod spool;
mod stacks;
mod tcp_links;
mod uplink;

pub use agent::Agent;
pub use asked::ProfileRequest;
pub use collector_link::Receiver;
pub use jobs::{HostJobs, HostOptions};
pub use stacks::stack_of;
pub use uplink::{Destination, Farewell, Uplink};
