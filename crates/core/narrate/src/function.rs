//! Functions that stand out.

use model::{Dimension, FunctionFault, FunctionFaultKind};

use crate::fact::Worded;
use crate::words::{its, percent, share, who};

/// Characters of a name that are shown: kernels carry their template arguments.
const SHOWN_CHARACTERS: usize = 90;

pub(crate) fn headline(found: &FunctionFault) -> String {
    let place = place(found);
    // All ranks of a ring take as long; only the rate shows whose link it is. A range that somebody
    // has set comes before peers.
    if let (Some(rate), Some(peers_rate)) = found.rate
        && found.is_of_link()
        && found.unexpected.is_empty()
    {
        return format!(
            "{} of {} carries {place} at {}, its peers' at {}",
            if found.ranks.len() == 1 {
                "the link"
            } else {
                "the link of each"
            },
            who(&found.ranks),
            percent(rate),
            percent(peers_rate)
        );
    }
    let who = match &found.ranks[..] {
        [] => "all ranks spend".to_owned(),
        ranks @ [_] => format!("{} spends", who(ranks)),
        ranks => format!("{} spend", who(ranks)),
    };
    let peers = if !found.unexpected.is_empty() {
        all_unexpected(found)
    } else if found.ranks.is_empty() {
        ", more than is expected of such a function".to_owned()
    } else {
        format!("; {} peers {}", its(&found.ranks), share(found.peers_beta))
    };
    format!("{who} {} of the time in {place}{peers}", share(found.beta))
}

pub(crate) fn fact(found: &FunctionFault) -> Worded {
    let mut text = format!(
        "{} takes {} of the critical path",
        place(found),
        share(found.beta)
    );
    if found.ranks.is_empty() {
        text += " on the median rank";
    } else {
        text += &format!(
            " of {} and {} of {} peers'",
            who(&found.ranks),
            share(found.peers_beta),
            its(&found.ranks)
        );
    }
    text += &all_unexpected(found);
    match found.mu {
        (Some(mu), peers) => {
            text += &format!(", at {} utilisation", percent(mu));
            if let Some(peers) = peers {
                text += &format!(" ({} on its peers)", percent(peers));
            }
        }
        // Said, because silence would read as hardware that is in order.
        (None, _) => text += "; utilisation of hardware was not recorded",
    }
    if let (Some(rate), Some(peers_rate)) = found.rate
        && found.is_of_link()
    {
        text += &format!(
            ", carrying at {}, and the peers at {}, while they carry data",
            percent(rate),
            percent(peers_rate)
        );
    }
    text += match found.kind {
        Some(FunctionFaultKind::Throttled) => {
            ": less work at a time, as on a device that is throttled or shared"
        }
        Some(FunctionFaultKind::SlowLink) => ": the link is slow",
        Some(FunctionFaultKind::Detour) => ": it carries traffic that belongs on another link",
        Some(FunctionFaultKind::Waits) => ": it waits",
        Some(FunctionFaultKind::Computes) => ": it computes",
        None => "",
    };
    for (name, excess) in &found.others {
        text += &format!("; {} {} more", short(name), share(*excess));
    }
    let mut values = vec![("beta", found.beta), ("peers_beta", found.peers_beta)];
    values.extend(found.mu.0.map(|mu| ("mu", mu)));
    values.extend(found.mu.1.map(|mu| ("peers_mu", mu)));
    if found.is_of_link() {
        values.extend(found.rate.0.map(|rate| ("rate", rate)));
        values.extend(found.rate.1.map(|rate| ("peers_rate", rate)));
    }
    let label = if found.ranks.is_empty() {
        "common"
    } else {
        "partial"
    };
    Worded::new(label, text, &values)
}

/// In what a function is not as somebody has said: " at 35 % utilisation, where 70 to 100 % is
/// expected".
fn unexpected((dimension, value, [low, high]): &(Dimension, f64, [f64; 2])) -> String {
    let what = match dimension {
        Dimension::Beta => String::new(),
        Dimension::Mu => format!(" at {} utilisation", percent(*value)),
        Dimension::Sigma => format!(" with deviations of {}", percent(*value)),
    };
    format!(
        "{what}, where {:.0} to {} is expected",
        low * 100.0,
        percent(*high)
    )
}

fn all_unexpected(found: &FunctionFault) -> String {
    found
        .unexpected
        .iter()
        .map(unexpected)
        .collect::<Vec<_>>()
        .join(" and")
}

/// A function with its callers: "recv_into ← read_shard ← next".
fn place(found: &FunctionFault) -> String {
    found.near().map(short).collect::<Vec<_>>().join(" ← ")
}

fn short(name: &str) -> String {
    // By characters: a byte index may lie inside of one.
    match name.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
