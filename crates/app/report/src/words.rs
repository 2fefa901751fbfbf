//! Numbers and small facts in words.

use model::{Method, Pace, fold_ranks};

/// Seconds for reading: "50.1 ms", "2.40 s".
pub(crate) fn duration(seconds: f64) -> String {
    if seconds >= 100.0 {
        format!("{seconds:.0} s")
    } else if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 1e-3 {
        format!("{:.1} ms", seconds * 1e3)
    // Less is below what a clock is good for, and is shown as nothing.
    } else if seconds >= 1e-6 {
        format!("{:.0} µs", seconds * 1e6)
    } else {
        "0".to_owned()
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// "1 rank", "4 ranks".
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// "rank 2", "ranks 0-3,7", `None` for nobody.
pub(crate) fn ranks(ranks: &[u32]) -> Option<String> {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    (!ranks.is_empty()).then(|| format!("{noun} {}", fold_ranks(ranks)))
}

/// "step 4", "steps 4-9".
pub(crate) fn steps(first: u64, last: u64) -> String {
    if first >= last {
        format!("step {first}")
    } else {
        format!("steps {first}-{last}")
    }
}

/// What a method looks at.
pub(crate) fn method(method: Method) -> &'static str {
    match method {
        Method::Frontier => "time of the stages of each step",
        Method::Collective => "progress in and inside collectives",
        Method::Schedule => "order of calls and blocks",
        Method::Pattern => "functions in profiles",
        Method::Stack => "where processes are",
        Method::Host => "the host, its devices and network",
    }
}

pub(crate) fn pace(pace: Pace) -> String {
    match pace {
        Pace::Steady => "in most steps".to_owned(),
        Pace::Every { steps } => format!("every {}", count(steps, "step")),
        Pace::Once { step } => format!("once, at step {step}"),
        Pace::Sporadic => "now and then".to_owned(),
        Pace::Rotating => "in most steps, on changing ranks".to_owned(),
    }
}

/// A number of a piece of evidence, by the unit in its name: ("lateness", "120.6 ms").
pub(crate) fn value(name: &str, value: f64) -> (String, String) {
    // First, since it ends in `_s` too.
    if let Some(whose) = name.strip_suffix("bytes_per_s") {
        let name = format!("{whose}rate").replace('_', " ");
        return (name, format!("{:.1} MB/s", value * 1e-6));
    }
    let (name, text) = if let Some(name) = name.strip_suffix("_s") {
        (name, duration(value))
    } else if name.ends_with("_share") || name.ends_with("_gain") {
        (name, percent(value))
    } else if name.ends_with("_ratio") || name == "correlation" {
        (name, format!("{value:.2}"))
    // Counts come as floats, too: a whole value is shown as one.
    } else if value.fract() == 0.0 {
        (name, format!("{value}"))
    } else {
        (name, format!("{value:.3}"))
    };
    (name.replace('_', " "), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_at_a_glance() {
        let seconds = [412.7, 7.238, 0.1206, 45e-6, 0.0];
        assert_eq!(
            seconds.map(duration),
            ["413 s", "7.24 s", "120.6 ms", "45 µs", "0"]
        );
    }

    #[test]
    fn a_value_is_shown_in_the_unit_of_its_name() {
        assert_eq!(
            value("median_lag_s", 0.25),
            ("median lag".into(), "250.0 ms".into())
        );
        assert_eq!(
            value("stage_share", 0.74),
            ("stage share".into(), "74 %".into())
        );
        assert_eq!(
            value("forward_ratio", 2.502),
            ("forward ratio".into(), "2.50".into())
        );
        assert_eq!(
            value("struck_steps", 30.0),
            ("struck steps".into(), "30".into())
        );
        assert_eq!(value("beta", 0.586_016), ("beta".into(), "0.586".into()));
        assert_eq!(
            value("usual_bytes_per_s", 415.8e6),
            ("usual rate".into(), "415.8 MB/s".into())
        );
    }
}
