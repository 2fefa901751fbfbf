//! How ranks, times and shares are written.

use model::fold_ranks;

/// Ranks as a subject: "rank 2", "ranks 0-3".
pub fn who(ranks: &[u32]) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", fold_ranks(ranks))
}

/// The same as an owner: "rank 2's", "the ranks'" of all.
pub fn whose(ranks: &[u32]) -> String {
    if ranks.is_empty() { "the ranks'".to_owned() } else { format!("{}'s", who(ranks)) }
}

/// A subject with its verb: "rank 2 is".
pub fn are(ranks: &[u32], who: &str) -> String {
    format!("{who} {}", if ranks.len() == 1 { "is" } else { "are" })
}

/// What less than a microsecond is called.
pub(crate) const NOTHING: &str = "nothing";

/// Seconds for reading: "50.1 ms", "2.40 s".
pub fn duration(seconds: f64) -> String {
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
pub fn share(share: f64) -> String {
    if share < 0.0995 { format!("{:.1} %", share * 100.0) } else { percent(share) }
}

/// A share for reading, without decimals.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
