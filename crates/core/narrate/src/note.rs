//! What stands beside the incidents of a verdict.

use model::ReadBackSummary;

use crate::words::percent;

/// Why nobody is named by the blocks of hosts that only launch them.
pub const BLOCKS_UNSEEN: &str = "hosts launch blocks of the pipeline before their input is there: \
                                 which block is slow cannot be seen without device marks";

/// What a line that reads back from the device does.
pub fn read_back(of_line: &ReadBackSummary) -> String {
    let line = of_line.line.as_deref().unwrap_or("other lines");
    let often = match of_line.per_step.round() as u64 {
        0 => format!("a read-back in {} of the steps", percent(of_line.per_step)),
        1 => "1 read-back a step".to_owned(),
        many => format!("{many} read-backs a step"),
    };
    let idle = percent(of_line.idle_share_max);
    format!("{often} at {line} may leave the device idle for up to {idle} of the step")
}

/// Says that too few hosts run ahead of their devices to tell who is late; nothing of no step.
pub fn ambiguous(steps: u64) -> Option<String> {
    (steps > 0).then(|| {
        format!(
            "in {steps} steps a rank was late, or waited for its device: which one cannot be told. \
             These hosts do not meet in each step, and fewer than four show no majority; device \
             marks would tell (`laggard doctor` says whether they are on)"
        )
    })
}

/// Says that hosts run ahead of devices that nobody looked at.
pub fn devices_unseen() -> String {
    "hosts run ahead of their devices: which device is slow cannot be seen without device marks \
     (`laggard doctor` says whether they are on)"
        .to_owned()
}
