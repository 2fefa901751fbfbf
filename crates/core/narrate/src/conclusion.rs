use model::Conclusion;

/// What is concluded where nothing was found: a heading, and what it rests on.
pub fn conclusion(conclusion: Conclusion) -> (&'static str, &'static str) {
    match conclusion {
        Conclusion::NothingStuck => ("Nothing stuck", "all ranks are in the same collectives"),
        Conclusion::PartlySeen => (
            "No verdict",
            "no rank was found that the others wait for; this does not prove that nothing is stuck",
        ),
        Conclusion::NothingTimed => (
            "Nothing found",
            "no rank is constantly late and no communicator became slow",
        ),
        // Before PyTorch 2.15 the recorder has no room unless it is given some (docs/python.md).
        Conclusion::Unexplained => (
            "No verdict",
            "the logs do not show which rank failed first, or which one the others waited for; a wait is \
             shown by Flight Recorder dumps of all ranks (TORCH_FR_BUFFER_SIZE=2000, before PyTorch 2.8 \
             TORCH_NCCL_TRACE_BUFFER_SIZE), or by `laggard run`",
        ),
        Conclusion::TooLittleSeen => ("No verdict", "too little was recorded"),
        Conclusion::Ambiguous => ("Nothing found", "it is unknown which rank is late"),
        Conclusion::RanksUnseen => (
            "Nothing found",
            "no host and no stage stands out; hosts may wait for ranks that have no trace",
        ),
        Conclusion::DevicesUnseen => (
            "Nothing found",
            "no host and no stage stands out; devices were not observed",
        ),
        Conclusion::DeviceWaitsUnseen => (
            "Nothing found",
            "no host and no stage stands out; waits of devices for one another were not observed",
        ),
        Conclusion::StepsUnseen => (
            "Nothing found",
            "steps that were not fully recorded on every rank may hide a late rank",
        ),
        Conclusion::Uncompared => (
            "Nothing found",
            "ranks that have no peers were not compared",
        ),
        Conclusion::Unlike => (
            "Nothing found",
            "it is unknown whether a device is slow or its role has more to do",
        ),
        Conclusion::Healthy => ("Healthy", "no rank and no stage stands out"),
    }
}
