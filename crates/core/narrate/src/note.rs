use model::ReadBackSummary;

use crate::words::percent;

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
