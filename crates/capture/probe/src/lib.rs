//! What our libraries inside a training process share: who the process is and where it
//! records, its clock, the switch that keeps a fault of ours from training, and the numbers of
//! what NCCL does not number.
//!
//! A library has one [`Switch`] for what it records with. Whatever its host calls goes
//! through [`Switch::with`].
//!
//! # Example
//! NCCL numbers its data types; a float has four bytes:
//! ```
//! assert_eq!(laggard_probe::element_bytes(7), 4);
//! ```
#![expect(unsafe_code, reason = "clocks, fork handlers and the leaked recorder")]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod clock;
mod environment;
mod sequences;
mod switch;

pub use clock::{coarse, now};
pub use environment::{live_table, record_in};
pub use sequences::Sequences;
pub use switch::{Records, Switch};

/// Bytes of an element, by NCCL's number of its data type (`ncclDataType_t`, 2.10 to 2.31).
pub fn element_bytes(datatype: u32) -> u64 {
    match datatype {
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        6 | 9 => 2,
        // 8-bit integers, and floats since 2.24.
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_their_size() {
        let bytes: Vec<_> = (0..12).map(element_bytes).collect();
        assert_eq!(bytes, [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1]);
    }
}
