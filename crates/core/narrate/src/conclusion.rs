use model::Conclusion;

/// What is concluded where nothing was found: a heading, and what it rests on.
pub fn conclusion(conclusion: Conclusion) -> (&'static str, &'static str) {
    match conclusion {
        Conclusion::NothingStuck => ("Nothing stuck", "all ranks are in the same collectives"),
        Conclusion::NothingTimed => (
            "Nothing found",
            "no rank is constantly late and no communicator became slow",
        ),
        // Before PyTorch 2.15 the recorder has no room unless it is given some (docs/python.md).
        Conclusion::Unexplained => (
            "No verdict",
            "what was printed does not tell which rank the others waited for; Flight Recorder dumps \
             of all ranks would (TORCH_FR_BUFFER_SIZE=2000, before PyTorch 2.8 \
             TORCH_NCCL_TRACE_BUFFER_SIZE), or laggard run",
        ),
        Conclusion::TooLittleSeen => ("No verdict", "too little was recorded"),
        Conclusion::Ambiguous => ("Nothing found", "which rank is late is unknown"),
        Conclusion::DevicesUnseen => (
            "Nothing found",
            "no host and no stage stands out; devices were not observed",
        ),
        Conclusion::DeviceWaitsUnseen => (
            "Nothing found",
            "no host and no stage stands out; where devices wait for one another was not observed",
        ),
        Conclusion::Uncompared => (
            "Nothing found",
            "ranks that are alone in their roles were compared with nothing",
        ),
        Conclusion::Unlike => (
            "Nothing found",
            "whether a device is slow or its role has more to do is unknown",
        ),
        Conclusion::Healthy => ("Healthy", "no rank and no stage stands out"),
    }
}
