//! NCCL's names and numbers of functions and data types.

use std::ffi::{CStr, c_char};

use model::CollectiveOp;

/// What NCCL calls a function, by its number in 2.23, the only release that gives numbers,
/// and PyTorch's name of the operation that issues it most often.
///
/// One function serves several operations: an all-gather is PyTorch's `_allgather_base`
/// (FSDP, `all_gather_into_tensor`) as well as `all_gather` over equal tensors, and a
/// barrier is an all-reduce of one element.
const FUNCTIONS: [(&str, &str); 8] = [
    ("Broadcast", "BROADCAST"),
    ("Reduce", "REDUCE"),
    ("AllGather", "ALLGATHER_BASE"),
    ("ReduceScatter", "REDUCE_SCATTER_BASE"),
    ("AllReduce", "ALLREDUCE"),
    // No operation of PyTorch has this name. The row keeps the numbers of those below.
    ("SendRecv", ""),
    ("Send", "SEND"),
    ("Recv", "RECV"),
];

/// The operation behind a function's name, unknown for one this build does not know.
pub(crate) fn op_of_name(name: &str) -> CollectiveOp {
    let found = FUNCTIONS.iter().find(|(known, _)| *known == name);
    found.map_or(CollectiveOp::UNKNOWN, |(_, op)| CollectiveOp::from_name(op))
}

/// The operation behind a function's number in 2.23.
pub(crate) fn op_of_number(number: u8) -> CollectiveOp {
    let found = FUNCTIONS.get(usize::from(number));
    found.map_or(CollectiveOp::UNKNOWN, |(_, op)| CollectiveOp::from_name(op))
}

/// Bytes of an element, by the data type's name.
pub(crate) fn element_bytes_of_name(name: &str) -> u64 {
    match name {
        "ncclInt32" | "ncclUint32" | "ncclFloat32" => 4,
        "ncclInt64" | "ncclUint64" | "ncclFloat64" => 8,
        "ncclFloat16" | "ncclBfloat16" => 2,
        // Among them ncclUint8, whose name is "Unknown".
        _ => 1,
    }
}

/// A text of NCCL's, empty if there is none; at most 120 bytes, what a communicator's name
/// has room for.
///
/// # Safety
/// `text` must be null or point to a text that ends in zero and lives as long as `'text`.
pub(crate) unsafe fn text<'text>(text: *const c_char) -> &'text [u8] {
    if text.is_null() {
        return b"";
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    bytes.get(..120).unwrap_or(bytes)
}

/// The same, of a name that is plain ASCII.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn name<'text>(name: *const c_char) -> &'text str {
    // SAFETY: the caller's promise.
    std::str::from_utf8(unsafe { text(name) }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_name_and_by_number() {
        assert_eq!(op_of_name("AllReduce").name(), "ALLREDUCE");
        assert_eq!(op_of_name("AllGather").name(), "ALLGATHER_BASE");
        assert_eq!(op_of_name("Recv").name(), "RECV");
        assert_eq!(op_of_name("Teleport"), CollectiveOp::UNKNOWN);
        assert_eq!(op_of_number(3), op_of_name("ReduceScatter"));
        assert_eq!(op_of_number(5), CollectiveOp::UNKNOWN);
        assert_eq!(op_of_number(99), CollectiveOp::UNKNOWN);
    }

    #[test]
    fn elements_have_their_size() {
        let bytes = |name| element_bytes_of_name(name);
        assert_eq!(["ncclFloat64", "ncclFloat32"].map(bytes), [8, 4]);
        assert_eq!(["ncclBfloat16", "Unknown"].map(bytes), [2, 1]);
    }
}
