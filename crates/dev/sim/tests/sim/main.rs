//! What simulated jobs hide is found.

mod calls;
mod collective;
mod what_if;
