//! The words of functions that stand out.

use model::{
    Cause, Evidence, FaultKind, FunctionClass, Incident, IncidentKind, Method, Pace,
    StageId, Subject, fold_ranks,
};

use crate::words::{percent, share, who};
use crate::{IncidentSettings, Scene};

/// Callers that are told.
const TOLD_CALLERS: usize = 3;
/// Characters of a name that are told: kernels carry their template arguments.
const TOLD_CHARACTERS: usize = 90;

/// A dimension of a function's pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Share of the critical path.
    Beta,
    /// Utilisation.
    Mu,
    /// Its standard deviation.
    Sigma,
}

/// A function that costs some ranks, or all, more than it should.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionFault {
    /// Its name.
    pub name: String,
    /// What it does.
    pub class: FunctionClass,
    /// What its pattern looks like on these ranks, if it looks alike on all of them.
    pub kind: Option<FaultKind>,
    /// Its callers, innermost first.
    pub callers: Vec<String>,
    /// The ranks it costs so much; empty if it is all of them.
    pub ranks: Vec<u32>,
    /// Its share of their critical path, the worst rank's.
    pub beta: f64,
    /// The median share of the others.
    pub peers_beta: f64,
    /// Share it costs more than it should.
    pub excess_share: f64,
    /// Seconds of that.
    pub cost_s: f64,
    /// Its mean utilisation there, and on the others that ran it; `None` if it was not measured.
    pub mu: (Option<f64>, Option<f64>),
    /// Likewise its utilisation while it is in use.
    pub rate: (Option<f64>, Option<f64>),
    /// In what it is not as somebody has said that it should be: dimension, value and range.
    pub unexpected: Vec<(Dimension, f64, [f64; 2])>,
    /// Further functions that cost the same ranks more: name and excess.
    pub others: Vec<(String, f64)>,
    /// First and last step of the profile.
    pub steps: (u64, u64),
    /// The how many-th of its job it is; zero until that is known.
    pub number: u64,
}

/// What functions are called that read from storage or a network.
const READS: [&str; 6] =
    ["recv_into", "socket", "urlopen", "readinto", "read_bytes", "ssl."];
/// What functions are called in which the host waits for its device.
const WAITS_FOR_DEVICE: [&str; 3] = ["ynchronize", "item of Tensor", ".item"];
/// What the interpreter's collection of garbage is called.
const GARBAGE_COLLECTION: [&str; 3] = ["gc.collect", "garbage", "Python GC"];

/// Whether a function of this name collects garbage, which is work that no step asks for.
pub fn is_garbage_collection(name: &str) -> bool {
    GARBAGE_COLLECTION.iter().any(|word| name.contains(word))
}

impl FunctionFault {
    /// Whether a link of these ranks is to blame.
    pub fn is_of_link(&self) -> bool {
        self.kind.is_some_and(FaultKind::is_of_link)
    }
}

/// Words an incident about a function.
pub fn function(
    found: &FunctionFault,
    scene: Scene<'_>,
    id: String,
    settings: &IncidentSettings,
) -> Incident {
    let who = if found.ranks.is_empty() {
        "all ranks spend".to_owned()
    } else if found.ranks.len() == 1 {
        format!("{} spends", who(&found.ranks))
    } else {
        format!("{} spend", who(&found.ranks))
    };
    let peers = if !found.unexpected.is_empty() {
        all_unexpected(found)
    } else if found.ranks.is_empty() {
        ", more than is expected of such a function".to_owned()
    } else {
        format!("; its peers {}", share(found.peers_beta))
    };
    let place = place(&found.name, &found.callers);
    let text = match found.rate {
        (Some(rate), Some(peers_rate))
            if found.is_of_link() && found.unexpected.is_empty() =>
        {
            format!(
                "{} of {} carries {place} at {}, its peers' at {}",
                if found.ranks.len() == 1 { "the link" } else { "the link of each" },
                self::who(&found.ranks),
                percent(rate),
                percent(peers_rate)
            )
        }
        _ => format!("{who} {} of the time in {place}{peers}", share(found.beta)),
    };
    Incident {
        id,
        kind: IncidentKind::Slow,
        severity: settings.severity(found.excess_share),
        open: true,
        subject: Subject {
            ranks: found.ranks.clone(),
            hosts: scene.hosts_of(&found.ranks),
            function: Some(found.name.clone()),
            ..Subject::default()
        },
        pace: Pace::Steady,
        first_step: found.steps.0,
        last_step: found.steps.1,
        victims: scene.others(&found.ranks),
        cost_s: found.cost_s,
        cost_gpu_s: 0.0,
        cost_share: found.excess_share,
        gain_alone_s: found.cost_s,
        next_in_line: Vec::new(),
        contradictions: Vec::new(),
        stacks: Vec::new(),
        progress: Vec::new(),
        text,
        evidence: vec![Evidence {
            stage: stage(found).map(|stage| scene.names.name(stage).to_owned()),
            ..evidence(found)
        }],
        advice: advice(found),
    }
}

/// In what a function is not as somebody has said: " at 35 % utilisation, where 70 to 100 % is
/// expected".
fn unexpected((dimension, value, [low, high]): &(Dimension, f64, [f64; 2])) -> String {
    let what = match dimension {
        Dimension::Beta => String::new(),
        Dimension::Mu => format!(" at {} utilisation", percent(*value)),
        Dimension::Sigma => format!(" with deviations of {}", percent(*value)),
    };
    format!("{what}, where {:.0} to {} is expected", low * 100.0, percent(*high))
}

fn all_unexpected(found: &FunctionFault) -> String {
    found.unexpected.iter().map(unexpected).collect::<Vec<_>>().join(" and")
}

fn evidence(found: &FunctionFault) -> Evidence {
    let mut text = format!(
        "{} takes {} of the critical path",
        place(&found.name, &found.callers),
        share(found.beta),
    );
    if found.ranks.is_empty() {
        text += " on the median rank";
    } else {
        text += &format!(
            " of rank {} and {} of its peers'",
            fold_ranks(&found.ranks),
            share(found.peers_beta)
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
        (None, _) => text += "; utilisation of hardware was not recorded",
    }
    if let (Some(rate), Some(peers_rate)) = found.rate
        && found.is_of_link()
    {
        text += &format!(
            ", carrying at {}, and the peers at {}, whenever they carry anything",
            percent(rate),
            percent(peers_rate)
        );
    }
    text += match found.kind {
        Some(FaultKind::Throttled) => {
            ": less work at a time, as on a device that is throttled or shared"
        }
        Some(FaultKind::SlowLink) => ": the link is slow",
        Some(FaultKind::Detour) => ": it carries what another link should",
        Some(FaultKind::Waits) => ": it waits",
        Some(FaultKind::Computes) => ": it computes",
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
    let label = if found.ranks.is_empty() { "common" } else { "partial" };
    let evidence = Evidence::new(Method::Pattern, label, text, &values);
    Evidence { cause: cause(found), ..evidence }
}

/// What it blames: code of the host, unless it reads from a network or waits for a device; a device
/// that works at less than others. Why else work of a device takes longer it does not say.
fn cause(found: &FunctionFault) -> Option<Cause> {
    let names = names(found);
    let has = |words: &[&str]| words.iter().any(|word| names.contains(word));
    match found.class {
        _ if found.kind == Some(FaultKind::Throttled) => Some(Cause::Gpu),
        FunctionClass::Python | FunctionClass::OtherCpu if has(&READS) => {
            Some(Cause::Network)
        }
        FunctionClass::Python | FunctionClass::OtherCpu if !has(&WAITS_FOR_DEVICE) => {
            Some(Cause::Code)
        }
        _ => None,
    }
}

/// The stage that the stack of a function lies in, where a frame tells.
fn stage(found: &FunctionFault) -> Option<StageId> {
    const FRAMES: [(&str, StageId); 4] = [
        ("DataLoader", StageId::DATA),
        ("data.next_wait", StageId::DATA),
        ("run_backward", StageId::BACKWARD),
        ("Optimizer.step", StageId::OPTIMIZER),
    ];
    // What it is called from, outermost first: a backward pass may run a forward again.
    let frames = found.callers.iter().rev().chain([&found.name]);
    frames
        .filter_map(|name| FRAMES.iter().find(|(frame, _)| name.contains(frame)))
        .map(|(_, stage)| *stage)
        .next()
}

/// The function and what it is called from, as far as they are told.
fn names(found: &FunctionFault) -> String {
    let names = std::iter::once(&found.name).chain(&found.callers);
    names.take(TOLD_CALLERS + 1).cloned().collect::<Vec<_>>().join(" ")
}

/// A function with its callers: "recv_into ← read_shard ← next".
fn place(name: &str, callers: &[String]) -> String {
    let names = std::iter::once(name).chain(callers.iter().map(String::as_str));
    names.take(TOLD_CALLERS + 1).map(short).collect::<Vec<_>>().join(" ← ")
}

fn short(name: &str) -> String {
    match name.char_indices().nth(TOLD_CHARACTERS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// What to look at, by what the innermost functions are known to do.
pub(crate) fn advice(found: &FunctionFault) -> String {
    const KNOWN: [(&[&str], &str); 5] = [
        (&READS, "the storage and network it reads from"),
        (
            &["DataLoader", "data.next_wait", "dataloader"],
            "the data loader: storage, decoding, worker processes, CPU cores",
        ),
        (
            &GARBAGE_COLLECTION,
            "garbage collection: collect on all ranks in the same step, or freeze what lives on",
        ),
        (&["sleep"], "why it sleeps"),
        (&WAITS_FOR_DEVICE, "why the host waits for the device"),
    ];
    let text = names(found);
    let fits = |words: &&[&str]| words.iter().any(|word| text.contains(word));
    let known = KNOWN.iter().find(|(words, _)| fits(words)).map(|(_, what)| *what);
    let of_kind = match found.kind {
        Some(FaultKind::Throttled) => {
            Some("clocks, temperature and power of its GPU, and who else uses it")
        }
        Some(FaultKind::SlowLink | FaultKind::Detour) => {
            Some("its links: NVLink, PCIe, network card and what they are bound to")
        }
        _ => None,
    };
    match (of_kind.or(known), found.ranks.as_slice()) {
        (Some(what), []) => format!("look at {what}"),
        (Some(what), ranks) => format!("on {}, look at {what}", who(ranks)),
        (None, []) => "look at what it does on every rank: it hides nothing".to_owned(),
        (None, ranks) => format!(
            "compare what {} does in it with its peers: input, clocks, CPU cores",
            who(ranks)
        ),
    }
}
