//! The live table: what communication one process is in, readable while it hangs or after it
//! was killed.
//!
//! Two rings of slots, operations and their flows, and tables of communicators and of what was sent
//! to whom. A slot of a ring is claimed and published as in the ring of marks, and afterwards its
//! counters go on changing: nothing is moved when an operation ends, it stays until its slot is
//! needed.

mod connections;
mod layout;
mod reader;
mod table;
mod writer;

pub use connections::Sent;
pub use layout::{LiveSize, LiveSource, STEP_BITS};
pub use reader::{LiveReader, LiveState};
pub use writer::{Bytes, CommunicatorIndex, FlowToken, LiveWriter, OperationToken, Reached, Route};
