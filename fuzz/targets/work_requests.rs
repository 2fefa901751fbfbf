//! Any bytes are telemetry of work requests that gives a sound verdict, or are refused.
#![no_main]

use formats::{Limits, Recording, load_bytes};
use fuzz::{eager, judge_document};

const HEADER: &[u8] = b"Time,Group,FromRank,ToRank,DevIndex,Func,FuncTimes,SrcIP,DstIP,Bandwidth,\
    SendWrCounter,RemainWrDataSize,Timestamp\n";

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // What marks the file stands in front, so that every input is one.
    let bytes = [HEADER, bytes].concat();
    let name = "host_mlx5_0_Port0_A.log";
    if let Ok(recording @ Recording::Part(_)) = load_bytes(name, &bytes, Limits::default()) {
        judge_document(&recording.replay(name, eager()));
    }
});
