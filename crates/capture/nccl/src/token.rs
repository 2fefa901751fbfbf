//! What NCCL is given for handles and contexts: numbers, never addresses.
//!
//! NCCL stops some handles twice, keeps others long after their time, and hands contexts and
//! handles of one process to another that runs its proxy (PXN). So each says who made it
//! and what it stands for, is checked before it is used, and is never followed.

use std::ffi::c_void;
use std::hash::{BuildHasher, RandomState};

use ring::{CommunicatorIndex, FlowToken, OperationToken, STEP_BITS};

const STEP_MASK: u64 = (1 << STEP_BITS) - 1;
const KIND_SHIFT: u32 = 44;
const SALT_SHIFT: u32 = 48;

/// What a token stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A context whose communicator is in the table.
    Communicator(CommunicatorIndex),
    /// A context whose communicator NCCL did not tell, or that found no room.
    Nameless,
    /// A collective, a send or a receive.
    Operation(OperationToken),
    /// A proxy operation.
    Flow(FlowToken),
    /// A proxy step: the flow, and its number's last [`STEP_BITS`] bits.
    Step(FlowToken, u16),
}

/// What tells this process's tokens from those of others: 16 bits at the top of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Salt(u16);

impl Salt {
    /// One of this process's own.
    pub(crate) fn new() -> Self {
        // The standard library's hash is keyed with random bits of the system.
        Self(RandomState::new().hash_one("laggard") as u16)
    }

    /// Packs a token: 16 bits salt, 4 kind, 12 step, 32 number. Never null.
    pub(crate) fn pack(self, token: Token) -> *mut c_void {
        let (kind, step, number) = match token {
            Token::Communicator(index) => (1, 0, index.0),
            Token::Nameless => (2, 0, 0),
            Token::Operation(operation) => (3, 0, operation.0),
            Token::Flow(flow) => (4, 0, flow.0),
            Token::Step(flow, step) => (5, u64::from(step) & STEP_MASK, flow.0),
        };
        let word = u64::from(self.0) << SALT_SHIFT
            | kind << KIND_SHIFT
            | step << u32::BITS
            | u64::from(number);
        std::ptr::without_provenance_mut(word as usize)
    }

    /// Unpacks a token; `None` if it is not one of this process's.
    #[inline]
    pub(crate) fn unpack(self, pointer: *const c_void) -> Option<Token> {
        let word = pointer.addr() as u64;
        if word >> SALT_SHIFT != u64::from(self.0) {
            return None;
        }
        let number = word as u32;
        let step = (word >> u32::BITS & STEP_MASK) as u16;
        match word >> KIND_SHIFT & 0xf {
            1 => Some(Token::Communicator(CommunicatorIndex(number))),
            2 => Some(Token::Nameless),
            3 => Some(Token::Operation(OperationToken(number))),
            4 => Some(Token::Flow(FlowToken(number))),
            5 => Some(Token::Step(FlowToken(number), step)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_stands_for_what_it_was_made_of_and_only_in_its_process() {
        let (ours, theirs) = (Salt(0), Salt(1));
        for number in [0, 1, u32::MAX] {
            for token in [
                Token::Communicator(CommunicatorIndex(number)),
                Token::Nameless,
                Token::Operation(OperationToken(number)),
                Token::Flow(FlowToken(number)),
                Token::Step(FlowToken(number), 4095),
            ] {
                let packed = ours.pack(token);
                assert!(!packed.is_null());
                assert_eq!(ours.unpack(packed), Some(token));
                assert_eq!(theirs.unpack(packed), None);
            }
        }
        assert_eq!(ours.unpack(std::ptr::null()), None);
    }
}
