//! Whether an error is one of the rank that raised it.

use super::record::has_any;

/// Errors that follow from the end of another rank, or from a collective that was given up.
const OF_PEERS: [&str; 20] = [
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "NCCL",
    "nccl",
    "HCCL",
    "Hccl",
    "gloo",
    "monitoredBarrier",
    // All ranks raise these, whichever of them it is about.
    "DDP expects same model",
    "CheckpointException",
    "DistributedOperationException",
    // A process that another one was started by, or asked.
    "ActorDied",
    "RayActorError",
    "EngineDead",
    "WorkerProc initialization failed",
    "Engine core initialization failed",
    "ProcessExited",
    "ProcessRaised",
    // At its end.
    "driver shutting down",
];
/// Words of errors of connections: to another rank, or to a service that has nothing to do with it.
// Without their first letters, which some messages write as capitals.
const OF_CONNECTIONS: [&str; 6] = [
    "onnection",
    "roken pipe",
    "ocket",
    "imed out",
    "imeout",
    "cancelled",
];
/// Folders of libraries that talk to other ranks.
const TO_PEERS: [&str; 12] = [
    "/distributed/",
    "/multiprocessing/",
    "/concurrent/",
    "/asyncio/",
    "/xmlrpc/",
    "/ray/",
    "/zmq/",
    "/grpc/",
    "/deepspeed/",
    "/horovod/",
    "/mpi4py/",
    "/vllm/",
];
/// Parts of errors that may as well be of a link, or of the device at its other end.
const OF_LINKS: [&str; 3] = ["NVLink", "nvlink", "deep_ep"];
/// Failed calls of CUDA that are of the device of the rank that reports them.
const OF_DEVICES: [&str; 5] = [
    "out of memory",
    "illegal memory access",
    "misaligned address",
    "launch failure",
    "ECC error",
];

/// What an error comes of, by its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Another rank's end, or a collective that was given up; or it may.
    Peer,
    /// A connection: its traceback says whether that may be one to another rank.
    Connection,
    /// The rank itself.
    Own,
}

impl Cause {
    pub(super) fn of(error: &str) -> Self {
        let has = |parts| has_any(error, parts);
        if has(&OF_PEERS) {
            Self::Peer
        // A loader waits for its workers.
        } else if has(&OF_CONNECTIONS) && !error.contains("DataLoader") {
            Self::Connection
        } else {
            Self::Own
        }
    }
}

/// Whether a frame of this file is one of a library that talks to other ranks.
pub(super) fn talks_to_peers(file: &str) -> bool {
    let file = file.replace('\\', "/");
    has_any(&file, &TO_PEERS)
}

/// Whose an error is that a rank raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Its device's: it comes of no other rank.
    Device,
    /// Its process's, unless that waits for others.
    Process,
    /// Its own, or that of what is at the other end of a link.
    Unknown,
}

impl Whose {
    pub(super) fn of(error: &str) -> Self {
        let has = |parts| has_any(error, parts);
        if has(&OF_LINKS) {
            Self::Unknown
        } else if has(&["CUDA error", "HIP error"]) {
            Self::Device
        } else if has(&["Cuda failure", "HIP failure"]) {
            // Others are of how devices are set up.
            if has(&OF_DEVICES) {
                Self::Device
            } else {
                Self::Unknown
            }
        } else {
            Self::Process
        }
    }
}
