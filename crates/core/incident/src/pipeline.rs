//! The words of what holds a pipeline back, and of where it stands still.

use model::{
    Evidence, Incident, IncidentKind, Method, Pace, Severity, Subject, fold_ranks,
};
use schedule::{Cause, Diagnosis, Halt, SlowIterations, SlowPass};

use crate::words::{duration, percent, who};
use crate::{IncidentSettings, Scene};

/// Words an incident about iterations that a pipeline took too long for.
pub fn pipeline_slowed(
    finding: &SlowIterations,
    pipeline: &Diagnosis,
    scene: Scene<'_>,
    id: String,
    settings: &IncidentSettings,
) -> Incident {
    let cost_share = finding.lost_s / pipeline.total_s.max(finding.lost_s);
    let stage = finding.stage.map(|stage| format!("pipeline stage {stage}"));
    let kind = if finding.ranks.is_empty() && finding.stage.is_none() {
        IncidentKind::Degraded
    } else {
        IncidentKind::Slow
    };
    let pace = if finding.first == finding.last {
        Pace::Once { step: finding.first }
    } else {
        Pace::Steady
    };
    let function = finding.passes.iter().map(|pass| pass.pass.name());
    let function = function.collect::<Vec<_>>().join(" and ");
    Incident {
        id,
        kind,
        severity: settings.severity(cost_share),
        open: finding.open,
        subject: Subject {
            ranks: finding.ranks.clone(),
            hosts: scene.hosts_of(&finding.ranks),
            stage,
            block: finding
                .block
                .map(|block| block.to_string())
                .or(Some(function).filter(|passes| !passes.is_empty())),
            ..Subject::default()
        },
        pace,
        first_step: finding.first,
        last_step: finding.last,
        victims: scene.others(&finding.ranks),
        cost_s: finding.lost_s,
        cost_gpu_s: 0.0,
        cost_share,
        gain_alone_s: finding.lost_s,
        next_in_line: Vec::new(),
        contradictions: Vec::new(),
        facts: Vec::new(),
        actions: Vec::new(),
        stacks: Vec::new(),
        progress: Vec::new(),
        text: sentence(finding),
        evidence: evidence(finding),
        advice: advice(finding),
    }
}

fn sentence(finding: &SlowIterations) -> String {
    let what = match finding.cause {
        Cause::Compute => "slow in",
        Cause::Host => "standing still in",
        Cause::Transfer => "sent its input late in",
        Cause::Outside => "late outside the pipeline",
        Cause::Unseen => "",
    };
    let mut text = match (finding.ranks.as_slice(), finding.cause) {
        ([], _) => unseen(finding),
        (ranks, cause) => {
            let are = if ranks.len() == 1 { "is" } else { "are" };
            let mut text = format!("{} {are} {what}", who(ranks));
            if let Some(stage) = finding.stage.filter(|_| cause != Cause::Outside) {
                text += &format!(" pipeline stage {stage}, {}", passes(finding));
            }
            if !finding.unseen.is_empty() {
                text += &format!(" (or {}, without a log)", who(&finding.unseen));
            }
            text
        }
    };
    let (plural, last) = if finding.first == finding.last {
        ("", String::new())
    } else {
        ("s", format!("-{}", finding.last))
    };
    text += &format!(
        ": iteration{plural} {}{last} took {} instead of {}, {:.1} times as long, {} lost",
        finding.first,
        duration(finding.took_s),
        duration(finding.usual_s),
        finding.took_s / finding.usual_s,
        duration(finding.lost_s),
    );
    match finding.cause {
        Cause::Compute => text += "; compute, not network",
        Cause::Host => text += "; its host, not network",
        Cause::Transfer => text += "; network, not compute",
        Cause::Outside | Cause::Unseen => {}
    }
    text += if finding.open { "; it goes on" } else { "; recovered since" };
    if !finding.victims.is_empty() {
        let verb = if finding.victims.len() == 1 { "is a victim" } else { "are victims" };
        text += &format!("; {} {verb}", who(&finding.victims));
    }
    text
}

fn unseen(finding: &SlowIterations) -> String {
    match (finding.stage, finding.unseen.as_slice()) {
        (_, []) => {
            "no rank and no block that was seen is slow enough to explain it".to_owned()
        }
        (Some(stage), ranks) => format!(
            "something is slow in pipeline stage {stage}, of which nothing was seen ({} without \
             a log)",
            who(ranks)
        ),
        (None, ranks) => {
            format!(
                "something is slow where nothing was seen ({} without a log)",
                who(ranks)
            )
        }
    }
}

fn passes(finding: &SlowIterations) -> String {
    if let Some(block) = finding.block {
        return block.to_string();
    }
    let names = finding.passes.iter().map(|pass| pass.pass.name());
    names.collect::<Vec<_>>().join(" and ")
}

fn evidence(finding: &SlowIterations) -> Vec<Evidence> {
    let mut evidence: Vec<Evidence> = finding.passes.iter().map(of_pass).collect();
    if let Some((usual_s, took_s)) = finding.outside_s {
        evidence.push(Evidence::new(
            Method::Schedule,
            "outside",
            format!(
                "outside the pipeline, in optimizer, input and logging, an iteration took {} \
                 instead of {}",
                duration(took_s),
                duration(usual_s)
            ),
            &[("outside_s", took_s), ("usual_outside_s", usual_s)],
        ));
    }
    if let Some(share) = finding.wide_share {
        evidence.push(Evidence::new(
            Method::Schedule,
            "arrival",
            format!(
                "where all ranks meet, {} of what they waited longer than usual for one rank \
                 alone was for {}",
                percent(share),
                who(&finding.ranks)
            ),
            &[("alone_share", share)],
        ));
    }
    if let Some(share) = finding.copies_share {
        evidence.push(Evidence::new(
            Method::Schedule,
            "copies",
            format!(
                "where the copies of a stage meet, {} of what they waited longer than usual for \
                 one rank alone was for {}",
                percent(share),
                who(&finding.ranks)
            ),
            &[("alone_share", share)],
        ));
    }
    if let Some(share) = finding.last_share {
        evidence.push(Evidence::new(
            Method::Schedule,
            "last",
            format!(
                "{} was the last of its stage to enter {} of the calls in which its layers meet",
                who(&finding.ranks),
                percent(share)
            ),
            &[("last_share", share)],
        ));
    }
    if let Some((first_ns, last_ns)) = finding.span_ns {
        let [first_s, last_s] = [first_ns, last_ns].map(|ns| ns as f64 * 1e-9);
        evidence.push(Evidence::new(
            Method::Schedule,
            "span",
            format!("from {first_s:.3} to {last_s:.3} (seconds since 1970)"),
            &[("onset_unix_s", first_s), ("end_unix_s", last_s)],
        ));
    }
    evidence
}

fn of_pass(pass: &SlowPass) -> Evidence {
    Evidence::new(
        Method::Schedule,
        "critical_path",
        format!(
            "{} passes took {} instead of {}, {:.2} times as long; {} of {} were slow and on \
             the critical path",
            pass.pass.name(),
            duration(pass.took_s),
            duration(pass.usual_s),
            pass.took_s / pass.usual_s,
            pass.slow,
            pass.of,
        ),
        &[("pass_s", pass.took_s), ("usual_pass_s", pass.usual_s)],
    )
}

fn advice(finding: &SlowIterations) -> String {
    advice_of(finding.cause, &finding.ranks, &finding.unseen)
}

/// What to look at next, of ranks that are named or whose logs are missing.
pub(crate) fn advice_of(cause: Cause, ranks: &[u32], unseen: &[u32]) -> String {
    let who = who(ranks);
    match cause {
        Cause::Compute => format!(
            "look at the GPU of {who} at that time: clocks, power, temperature, other work on \
             it; the ranks that wait for it are fine"
        ),
        Cause::Host => format!(
            "look at the host of {who} at that time: CPU cores, garbage collection, storage"
        ),
        Cause::Transfer => format!(
            "look at the link into {who}: network card, switch, other traffic on it"
        ),
        Cause::Outside => format!(
            "look at what {who} does between iterations: optimizer, input, logging, checkpoints"
        ),
        Cause::Unseen if unseen.is_empty() => {
            "look at what changed then on all hosts: clocks, other jobs, storage, input sizes"
                .to_owned()
        }
        Cause::Unseen => format!("get the logs of rank {}", fold_ranks(unseen)),
    }
}

/// Says where a pipeline stands still at the end of its logs.
pub fn halt_point(halt: &Halt) -> String {
    format!(
        "{} {} not finish the {} on pipeline stage {}; everything it waits for is done",
        who(&halt.ranks),
        if halt.ranks.len() == 1 { "does" } else { "do" },
        halt.block,
        halt.stage
    )
}

/// Says what slow blocks the slack of a pipeline took.
pub fn pipeline_absorbed(diagnosis: &Diagnosis) -> Vec<String> {
    let told = diagnosis.absorbed.iter().map(|(iteration, slow)| {
        format!(
            "iteration {iteration}: the {} on pipeline stage {} took {} longer than usual; a \
             slack of {} absorbed it",
            slow.block,
            slow.stage,
            duration(slow.excess_s()),
            duration(slow.excess_s() + slow.slack_s)
        )
    });
    told.collect()
}

/// Words an incident about a pipeline that stands still.
pub fn pipeline_halted(halt: &Halt, scene: Scene<'_>, id: String) -> Incident {
    let culprits = who(&halt.ranks);
    let mut evidence = vec![Evidence::new(
        Method::Schedule,
        "halt_point",
        format!(
            "of all blocks it is the only one that could go on; others went on for {} after \
             its last call and input, and the next call usually takes {}",
            duration(halt.silent_s),
            duration(halt.usual_s)
        ),
        &[("silent_s", halt.silent_s), ("usual_s", halt.usual_s)],
    )];
    evidence.extend(halt.ahead_s.map(|(ahead_s, late_s)| {
        Evidence::new(
            Method::Schedule,
            "ranks_beside_it_went_on",
            format!(
                "ranks beside it made that call {} before the logs end; they are never more than \
                 {} apart",
                duration(ahead_s),
                duration(late_s)
            ),
            &[("ahead_s", ahead_s), ("usual_late_s", late_s)],
        )
    }));
    let text = format!("hang in iteration {}: {}", halt.iteration, halt_point(halt));
    Incident {
        id,
        kind: IncidentKind::Hang,
        severity: Severity::Critical,
        open: true,
        subject: Subject {
            ranks: halt.ranks.clone(),
            hosts: scene.hosts_of(&halt.ranks),
            stage: Some(format!("pipeline stage {}", halt.stage)),
            block: Some(halt.block.to_string()),
            ..Subject::default()
        },
        pace: Pace::Once { step: halt.iteration },
        first_step: halt.iteration,
        last_step: halt.iteration,
        victims: scene.others(&halt.ranks),
        cost_s: 0.0,
        cost_gpu_s: 0.0,
        cost_share: 0.0,
        gain_alone_s: 0.0,
        next_in_line: Vec::new(),
        contradictions: Vec::new(),
        facts: Vec::new(),
        actions: Vec::new(),
        stacks: Vec::new(),
        progress: Vec::new(),
        text,
        evidence,
        advice: format!("look at what {culprits} is doing: its stack, its GPU"),
    }
}
