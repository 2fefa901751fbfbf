//! A verdict as text.

use model::{Severity, Source, Verdict};
use narrate::who;

use crate::profile::profile_text;
use crate::what_if::what_if_text;

/// Whether to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Never,
    Ansi,
}

impl Colour {
    /// Colour for a stream if it is a terminal and nobody asked for none.
    pub(crate) fn of(stream: &impl std::io::IsTerminal) -> Self {
        // By no-color.org an empty value is none.
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if wanted && stream.is_terminal() {
            Self::Ansi
        } else {
            Self::Never
        }
    }

    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Self::Never => text.to_owned(),
            Self::Ansi => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }

    /// A name.
    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Good news.
    pub(crate) fn good(self, text: &str) -> String {
        self.paint("1;32", text)
    }

    /// Text for a severity.
    pub(crate) fn severity(self, severity: Severity, text: &str) -> String {
        let code = match severity {
            Severity::Critical => "1;31",
            Severity::Warning => "1;33",
            Severity::Info => "1;36",
        };
        self.paint(code, text)
    }
}

/// How a severity stands before its incident.
pub(crate) fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "CRITICAL",
        Severity::Warning => "WARNING",
        Severity::Info => "INFO",
    }
}

/// The verdict card: what is wrong, what to do, where the time went; if `verbose`, also what
/// was slow and cost nothing.
pub(crate) fn verdict_text(verdict: &Verdict, colour: Colour, verbose: bool) -> String {
    let mut text = String::new();
    let job = &verdict.job;
    let exposed = seconds(job.exposed_s);
    let snapshot = job.source == Source::Snapshot;
    let seen = if snapshot {
        "one moment".to_owned()
    } else if job.source == Source::Log {
        "their logs".to_owned()
    } else if job.source == Source::Inspector {
        "completed collectives".to_owned()
    } else if job.source == Source::Calls {
        calls_seen(verdict)
    } else {
        format!(
            "{} steps, {exposed} of exposed step time in {} analysed steps",
            job.steps, job.analysed_steps
        )
    };
    let name = colour.bold("laggard");
    let what = match (job.source, job.ranks) {
        (Source::Log, 0) => "output of a job".to_owned(),
        // Of stacks alone nobody knows how many ranks there are.
        (Source::Snapshot, 0) => seen,
        (_, 1) => format!("1 rank, {seen}"),
        (_, ranks) => format!("{ranks} ranks, {seen}"),
    };
    text += &format!("{name} {}: {what}\n", job.id);
    if let Some(conclusion) = verdict.conclusion() {
        let (heading, reason) = narrate::conclusion(conclusion);
        let said = format!("{}  {reason}", heading.to_uppercase());
        // Not to know is no good news.
        let said = if conclusion.is_good() {
            colour.good(&said)
        } else {
            colour.bold(&said)
        };
        text += &format!("\n{said}\n");
    }
    for incident in &verdict.incidents {
        let head = colour.severity(incident.severity, word(incident.severity));
        let over = if incident.open { "" } else { " (over)" };
        text += &format!("\n{head}{over}  {}\n", incident.text);
        if !incident.subject.hosts.is_empty() {
            text += &format!("  host  {}\n", incident.subject.hosts.join(", "));
        }
        for evidence in &incident.evidence {
            text += &format!("  why   {}\n", evidence.text);
        }
        for contradiction in &incident.contradictions {
            text += &format!("  but   {}\n", contradiction.text);
        }
        if verbose && incident.cost_s > 0.0 {
            let (exposed, waited) = (seconds(incident.cost_s), seconds(incident.cost_gpu_s));
            let waiting = if incident.victims.is_empty() {
                String::new()
            } else {
                format!(" ({})", who(&incident.victims.iter().collect::<Vec<_>>()))
            };
            text += &format!("  cost  {exposed} exposed, {waited} of GPUs that waited{waiting}\n");
        }
        text += &format!("  next  {}\n", incident.advice);
    }
    if !verdict.stages.is_empty() {
        text += &format!("\n{}\n", stage_table(verdict));
    }
    if let Some(what_if) = &verdict.what_if {
        text += &format!("\n{}", what_if_text(what_if));
    }
    if let Some(profile) = &verdict.profile {
        text += &format!("\n{}", profile_text(profile));
    }
    for side in &verdict.side_channels {
        let lost = if side.lost == 0 {
            String::new()
        } else {
            format!(", {} never became ready", side.lost)
        };
        text += &format!(
            "side channel {}: mean {} of {} samples{lost}\n",
            side.name,
            seconds(side.mean_s),
            side.samples
        );
    }
    for absorbed in verdict.absorbed.iter().filter(|_| verbose) {
        text += &format!("absorbed: {absorbed}\n");
    }
    for note in &verdict.notes {
        text += &format!("note: {note}\n");
    }
    text
}

/// What was seen of a job by its calls of NCCL.
fn calls_seen(verdict: &Verdict) -> String {
    let Some(pipeline) = &verdict.pipeline else {
        return "calls of NCCL".to_owned();
    };
    let mut text = format!(
        "{} iterations of {}",
        verdict.job.steps,
        seconds(pipeline.iteration_s)
    );
    if !pipeline.layout.is_empty() {
        text += &format!(", {}", pipeline.layout);
    }
    if let Some(schedule) = &pipeline.schedule {
        text += &format!(", {schedule} with {} microbatches", pipeline.microbatches);
    }
    text
}

fn stage_table(verdict: &Verdict) -> String {
    let heading = if verdict.job.stages_on_devices {
        "stage, on the devices"
    } else {
        "stage"
    };
    let width = verdict
        .stages
        .iter()
        .map(|stage| stage.name.len())
        .max()
        .unwrap_or(0)
        .max(heading.len());
    let mut table = format!(
        "{:width$}  {:>9}  {:>5}  {:>5}  last to arrive",
        heading, "exposed", "share", "gain"
    );
    for stage in &verdict.stages {
        let lead = if stage.lead_ranks.is_empty() {
            "-".to_owned()
        } else {
            who(&stage.lead_ranks)
        };
        table += &format!(
            "\n{:width$}  {:>9}  {:>5}  {:>5}  {lead}",
            stage.name,
            seconds(stage.advance_s),
            percent(stage.share),
            percent(stage.gain),
        );
    }
    table
}

pub(crate) fn seconds(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0} s")
    } else if value >= 1.0 {
        format!("{value:.2} s")
    } else {
        format!("{:.1} ms", value * 1e3)
    }
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
