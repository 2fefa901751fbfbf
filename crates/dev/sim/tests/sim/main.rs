//! What simulated jobs hide is found.

mod ahead;
mod calls;
mod collective;
mod replay;
mod unseen;
mod what_if;
