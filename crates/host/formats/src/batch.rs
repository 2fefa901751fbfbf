//! `laggard.batch/1`: what a host tells of a job in one go, as it goes over the network.
//!
//! A zstd frame of lines: a [`BatchHead`], then inputs as in a recording. Job, host, agent session
//! and sequence stand in the address it is sent to.

use std::io::{self, Read};

use model::{Input, MAX_RANKS};
use protocol::BatchHead;

use crate::journal::{input_of, is_mark};

/// Bytes of a batch after unpacking; agents cut theirs far below.
const FULL_AT_BYTES: u64 = 16 << 20;

/// A batch that is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// It is no zstd frame, or not a whole one.
    #[error("the batch cannot be unpacked: {0}")]
    Packed(io::Error),
    /// It is longer than any agent's.
    #[error("the batch is larger than {FULL_AT_BYTES} bytes unpacked")]
    TooLarge,
    /// A line makes no sense.
    #[error("line {line} of the batch: {reason}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

/// Packs a batch; `lines` are those of its inputs.
///
/// # Errors
/// What the packer says.
pub fn pack_batch(head: &BatchHead, lines: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(head)?;
    bytes.push(b'\n');
    bytes.extend_from_slice(lines);
    // Level 1: batches are packed on cores that training needs.
    let mut packed = zstd::stream::write::Encoder::new(Vec::new(), 1)?;
    // A bit that flips on the way or on the disk is noticed, and not analysed.
    packed.include_checksum(true)?;
    io::Write::write_all(&mut packed, &bytes)?;
    packed.finish()
}

/// Reads a batch: whole, or not at all.
///
/// # Errors
/// Every variant of [`BatchError`].
pub fn unpack_batch(bytes: &[u8]) -> Result<(BatchHead, Vec<Input>), BatchError> {
    unpack(bytes, true)
}

/// Reads a batch as [`unpack_batch`] does, or all of it but its marks.
pub(crate) fn unpack(
    bytes: &[u8],
    with_marks: bool,
) -> Result<(BatchHead, Vec<Input>), BatchError> {
    let mut unpacked = zstd::stream::read::Decoder::with_buffer(bytes)
        .map_err(BatchError::Packed)?
        .single_frame();
    let mut bytes = Vec::new();
    // One byte more than is allowed tells a batch that is too large from one that just fits.
    let mut limited = unpacked.by_ref().take(FULL_AT_BYTES + 1);
    limited
        .read_to_end(&mut bytes)
        .map_err(BatchError::Packed)?;
    if bytes.len() as u64 > FULL_AT_BYTES {
        return Err(BatchError::TooLarge);
    }
    let mut head = None;
    let mut inputs = Vec::new();
    let lines = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    for (line, number) in lines.split(|byte| *byte == b'\n').zip(1..) {
        if head.is_none() {
            let read = BatchHead::read(line);
            head = Some(read.map_err(|reason| BatchError::Line {
                line: number,
                reason,
            })?);
            continue;
        }
        if !with_marks && is_mark(line) {
            continue;
        }
        let input = checked_input(line).map_err(|reason| BatchError::Line {
            line: number,
            reason,
        })?;
        inputs.push(input);
    }
    let Some(head) = head else {
        return Err(BatchError::Line {
            line: 1,
            reason: "it is empty".to_owned(),
        });
    };
    // A second frame would be kept with the batch, and never read.
    let rest = unpacked.finish();
    if !rest.is_empty() {
        let reason = format!("{} bytes follow it", rest.len());
        return Err(BatchError::Packed(io::Error::new(
            io::ErrorKind::InvalidData,
            reason,
        )));
    }
    Ok((head, inputs))
}

/// An input of a batch. What an analysis keeps grows with the highest rank, so a rank that no job
/// has is refused here, before it is kept.
fn checked_input(line: &[u8]) -> Result<Input, String> {
    let input = input_of(line)?;
    match input.highest_rank() {
        Some(MAX_RANKS..) => Err(format!("ranks are numbered below {MAX_RANKS}")),
        _ => Ok(input),
    }
}
