//! How ranks, times and shares are written.

use model::{Side, fold_ranks};

/// Ranks as a subject: "rank 2", "ranks 0-3".
pub fn who(ranks: &[u32]) -> String {
    format!("{} {}", of(ranks, "rank", "ranks"), fold_ranks(ranks))
}

/// The same as an owner: "rank 2's", "the ranks'" of all.
pub(crate) fn whose(ranks: &[u32]) -> String {
    if ranks.is_empty() {
        "the ranks'".to_owned()
    } else {
        format!("{}'s", who(ranks))
    }
}

/// What is said of one rank, or of any other number: a verb, or a noun.
pub(crate) fn of<'word>(ranks: &[u32], one: &'word str, several: &'word str) -> &'word str {
    if ranks.len() == 1 { one } else { several }
}

/// Whose, of ranks that were just named: "its", "their".
pub(crate) fn its(ranks: &[u32]) -> &'static str {
    of(ranks, "its", "their")
}

/// A subject with its verb: "rank 2 is".
pub(crate) fn are(ranks: &[u32], who: &str) -> String {
    format!("{who} {}", of(ranks, "is", "are"))
}

/// What is slow of some ranks: "rank 2's device is slow", "rank 2's device waits for its host".
pub(crate) fn slow_side(ranks: &[u32], side: Side) -> String {
    let (devices, waits, hosts) = match ranks {
        [rank] => (format!("rank {rank}'s device"), "waits", "its host"),
        ranks => (
            format!("the devices of {}", who(ranks)),
            "wait",
            "their hosts",
        ),
    };
    match side {
        Side::Device => format!("{} slow", are(ranks, &devices)),
        Side::Host => format!("{devices} {waits} for {hosts}"),
    }
}

/// Channels of a connection: "channel 1", "channels 0-3".
pub(crate) fn channels(channels: &[u32]) -> String {
    let noun = if channels.len() == 1 {
        "channel"
    } else {
        "channels"
    };
    format!("{noun} {}", fold_ranks(channels))
}

/// What less than a microsecond is called.
pub(crate) const NOTHING: &str = "nothing";

/// Seconds for reading: "50.1 ms", "2.40 s".
pub(crate) fn duration(seconds: f64) -> String {
    if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 1e-3 {
        format!("{:.1} ms", seconds * 1e3)
    } else if seconds >= 1e-6 {
        format!("{:.0} µs", seconds * 1e6)
    } else {
        NOTHING.to_owned()
    }
}

/// A share for reading: small ones with a decimal.
pub(crate) fn share(share: f64) -> String {
    // From there on one decimal would write 10.0 %.
    if share < 0.0995 {
        format!("{:.1} %", share * 100.0)
    } else {
        percent(share)
    }
}

/// A share for reading, without decimals.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
