//! The rules. Their order is the policy: each sees what those before it left.

use model::{
    Action, Cause, Claim, Fact, Finding, FunctionFault, IncidentKind, Method, Observation, Origin,
    Side, StageId, StepPlace, is_garbage_collection,
};

use crate::{OwnBlocks, SlowLink, Witnesses};

/// How much more a finding must cost by its stages than by its blocks, to keep what stages say: a
/// block that was slow from the start is not known to be. And one of all ranks than all blocks, to
/// be another.
const SEEN_MORE_RATIO: f64 = 2.0;
/// Share of its lateness that a rank must have worked longer in its blocks than its copies did, for
/// the lateness to be its own; with less than the second it waited. Ours: between them nothing is
/// said.
const OWN_SHARE: f64 = 0.5;
const WAITED_SHARE: f64 = 0.25;
/// Part of what a finding costs that something must cost, to be why.
const EXPLAINED_SHARE: f64 = 0.5;
/// Part of it that any other function of the same ranks must cost, as it may be one of several.
/// Ours: in a short window some function of a rank always takes longer than its peers'.
const HINT_SHARE: f64 = 0.1;
/// Stages in which a rank may wait for others' blocks, and no collective shows it: those up to its
/// optimizer.
const MAY_WAIT_IN: [StageId; 4] = [
    StageId::FORWARD,
    StageId::BACKWARD,
    StageId::CALLBACKS,
    StageId::OTHER,
];

/// One rule: a row of the table in docs/math/fusion.md.
#[derive(Debug)]
pub struct FusionRule {
    /// What it is called.
    pub name: &'static str,
    /// When two findings are one cause, or what is asked for.
    pub when: &'static str,
    /// Which of them keeps headline, place and cost, and what becomes of the other.
    pub keeps: &'static str,
    /// Where the rule comes from.
    pub source: &'static str,
    pub(crate) apply: Apply,
}

/// What a rule does.
#[derive(Debug)]
pub(crate) enum Apply {
    /// Puts findings together.
    Merge(Merge),
    /// Drops findings that are nothing by themselves.
    Drop(fn(&Finding, &[Finding], &dyn Witnesses) -> bool),
    /// Adds what witnesses know of a finding.
    Ask(fn(&mut Finding, &dyn Witnesses)),
}

/// Which of two findings stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Known,
    New,
}

/// When findings are one, and what becomes of them.
#[derive(Debug)]
pub(crate) struct Merge {
    /// The findings that the rule judges.
    pub(crate) of: fn(&Finding, &dyn Witnesses) -> bool,
    /// Whether one of them has the cause of a known one, among all as they were before the rule.
    pub(crate) same: fn(&Finding, &Finding, &[Finding], &dyn Witnesses) -> bool,
    pub(crate) keeps: Kept,
    /// Whether it takes in all of the same cause, or joins the first.
    pub(crate) takes_all: bool,
    /// Gives the one that stays what the other has.
    pub(crate) give: fn(&mut Finding, Finding, &dyn Witnesses),
}

/// All rules, in the order in which they apply.
pub const RULES: [FusionRule; 18] = [
    FusionRule {
        name: "passed stall",
        when: "a stall passed in a step that the other finding struck, or in a neighbouring step; \
               both name common ranks, or the other names none",
        keeps: "the other; the stall supports it",
        source: "ours",
        apply: Apply::Merge(Merge {
            of: |new, _| new.origin == Origin::PassedStall,
            same: |known, stall, _, _| {
                // Of two stalls that fit each other the first stays, whichever is judged first.
                is_before(known, stall)
                    && meets(known, stall.first_step)
                    && (known.subject.ranks.is_empty() || share_ranks(known, stall))
            },
            keeps: Kept::Known,
            takes_all: false,
            give: |known, stall, _| known.facts.extend(stall.facts),
        }),
    },
    FusionRule {
        name: "late to collectives",
        when: "timed collectives and another method name the same ranks",
        keeps: "the other; the arrivals support it",
        source: "ours",
        apply: Apply::Merge(Merge {
            of: |new, _| new.origin == Origin::Arrivals,
            same: |known, late, _, _| known.origin < late.origin && has_same_ranks(known, late),
            keeps: Kept::Known,
            takes_all: false,
            give: |known, late, _| known.facts.extend(late.facts),
        }),
    },
    FusionRule {
        name: "late now and then",
        when: "arrivals could only support another finding, and there is none",
        keeps: "laggard says nothing",
        source: "ours: on hosts with other load every rank is late now and then",
        apply: Apply::Drop(|finding, _, _| {
            finding.origin == Origin::Arrivals && finding.supports_only
        }),
    },
    FusionRule {
        name: "function",
        when: "a function takes the time of the ranks that a finding names, or of all ranks if it \
               names none, in a profile window during the finding; a function of all ranks with a \
               small share, or one of ranks that all became slower, must cost half as much as the \
               finding, any other a tenth; what a host does is none of a slow device's, and if host and \
               device of one rank are slow, the function belongs to the one it runs on",
        keeps: "the other, with the function and its advice",
        source: "ours",
        apply: Apply::Merge(Merge {
            of: |new, _| new.origin == Origin::Profile,
            same: |known, function, all, witnesses| {
                let is_in_window = witnesses.profile_window().is_some();
                let may_be = |finding: &Finding| {
                    may_be_of_function(finding, function, witnesses)
                        && finding.subject.ranks == function.subject.ranks
                        && (!function.subject.ranks.is_empty() || is_in_window)
                };
                // Of a rank whose host and device are both slow each has its own function. A device is not slow
                // for what its host does meanwhile, which may be a wait for it.
                may_be(known)
                    && (runs_where(known, function)
                        || known.subject.side != Some(Side::Device)
                            && !all.iter().any(|it| may_be(it) && runs_where(it, function)))
            },
            keeps: Kept::Known,
            takes_all: false,
            give: take_function,
        }),
    },
    FusionRule {
        name: "link that all wait for",
        when: "the link of a rank carries less in a profile window, and all ranks became slower",
        keeps: "the finding of all ranks, with the function and its advice",
        source: "ours",
        apply: Apply::Merge(Merge {
            of: |new, _| new.origin == Origin::Profile,
            same: |known, function, _, witnesses| {
                known.kind == IncidentKind::Degraded
                    && witnesses.profile_window().is_some()
                    && fault(function).is_some_and(FunctionFault::is_of_link)
                    && may_be_of_function(known, function, witnesses)
            },
            keeps: Kept::Known,
            takes_all: false,
            give: take_function,
        }),
    },
    FusionRule {
        name: "function without a finding",
        when: "no finding of the steps fits a function of a profile window, or all ranks spend \
               little time in the function",
        keeps: "laggard says nothing, with two exceptions: the function leaves a range of yours, \
                or all ranks collect garbage and no rank is named",
        source: "ours: in a short window some ranks always differ",
        apply: Apply::Drop(is_function_alone),
    },
    FusionRule {
        name: "cores in the profile window",
        when: "a finding names ranks, and a profile window shows during it that they lacked cores",
        keeps: "the finding; the advice is to free the cores",
        source: "ours",
        apply: Apply::Ask(ask_profile),
    },
    FusionRule {
        name: "hosts meanwhile",
        when: "the host measured cores or devices of the named ranks during the finding; of a hang, \
               what GPUs do",
        keeps: "the finding; if a function is known, advice about cores comes first, and other \
                advice follows that of the profile",
        source: "ours",
        apply: Apply::Ask(ask_hosts),
    },
    FusionRule {
        name: "slow blocks",
        when: "stages and blocks name the same ranks in steps that meet, and the stage is no wait \
               for data; or all ranks became slower, and blocks account for half of it",
        keeps: "the blocks, unless stages of the same ranks cost twice as much",
        source: "ours",
        apply: Apply::Merge(Merge {
            of: |new, _| new.origin == Origin::Blocks,
            same: |known, blocks, all, _| {
                is_before(known, blocks)
                    && (known.subject.ranks == blocks.subject.ranks
                        || known.subject.ranks.is_empty() && is_of_blocks(known, all))
                    && !is_in_stage(known, StageId::DATA)
                    && meet(known, blocks)
            },
            keeps: Kept::New,
            takes_all: false,
            give: take_stages,
        }),
    },
    FusionRule {
        name: "wait for another stage",
        when: "the named ranks worked no longer in their blocks than their copies; other ranks of \
               their pipeline worked longer or held it up with their blocks, and cost half as \
               much in steps that meet",
        keeps: "the ranks that worked longer; the others are their victims",
        source: "ours",
        apply: Apply::Merge(Merge {
            of: |new, witnesses| is_of_steps(new) && is_wait(new, witnesses),
            same: |cause, wait, _, witnesses| {
                is_of_steps(cause) && is_waited_for(cause, wait, witnesses)
            },
            keeps: Kept::Known,
            takes_all: false,
            give: take_wait,
        }),
    },
    FusionRule {
        name: "death",
        when: "a rank was killed, and the ranks that a hang names are that rank",
        keeps: "the death, with the place where the others wait",
        source: "ours",
        apply: Apply::Merge(Merge {
            of: |new, _| new.origin == Origin::Hang,
            same: |known, hang, _, _| {
                known.origin == Origin::Death && known.subject.ranks == hang.subject.ranks
            },
            keeps: Kept::Known,
            takes_all: false,
            // The death has the wait of the hang already.
            give: |known, hang, _| {
                let facts = hang.facts.into_iter();
                let stacks = facts.filter(|fact| fact.what.method() == Method::Stack);
                known.facts.extend(stacks);
            },
        }),
    },
    FusionRule {
        name: "halted pipeline",
        when: "a job does not move, and the schedule shows where its pipelines stopped",
        keeps: "the hang",
        source: "MegaTrace (2026)",
        apply: Apply::Ask(|finding, witnesses| {
            if finding.origin == Origin::Hang {
                finding
                    .facts
                    .extend(witnesses.halts(&finding.subject.ranks));
            }
        }),
    },
    FusionRule {
        name: "slow, then stopped",
        when: "the ranks that made operations slow are the ranks that do not move",
        keeps: "the hang, which is the present state",
        source: "ours",
        apply: Apply::Drop(|finding, all, _| {
            finding.origin == Origin::Flows
                && all.iter().any(|hang| {
                    hang.origin == Origin::Hang && hang.subject.ranks == finding.subject.ranks
                })
        }),
    },
    FusionRule {
        name: "slower behind another role",
        when: "the ranks of other roles became slower in steps that meet, and late ranks of a role \
               of their own account for half of it",
        keeps: "the late ranks; that others became slower supports it",
        source: "ours: in a pipeline every rank may be alone in its role",
        apply: Apply::Merge(Merge {
            of: |new, _| new.kind == IncidentKind::Degraded && new.origin == Origin::Stages,
            same: |known, slower, _, _| {
                let ranks = &known.subject.ranks;
                known.kind == IncidentKind::Slow
                    && known.origin == Origin::Stages
                    && !ranks.is_empty()
                    // What a late rank of the same role costs is no part of how much slower it is.
                    && !ranks.iter().any(|rank| slower.victims.contains(*rank))
                    && meet(known, slower)
                    && explains(known, slower)
            },
            keeps: Kept::Known,
            takes_all: false,
            give: |known, slower, _| known.facts.extend(explained(slower)),
        }),
    },
    FusionRule {
        name: "all slower, by flows",
        when: "all ranks became slower in steps that meet, and slow operations account for half of it",
        keeps: "the flows, which know the ranks, with the stage of the other finding, and its \
                cost if that is larger",
        source: "ours",
        apply: Apply::Merge(Merge {
            of: |new, _| new.origin == Origin::Flows,
            same: |known, flows, _, _| {
                known.kind == IncidentKind::Degraded
                    && known.subject.ranks.is_empty()
                    && meet(known, flows)
                    && explains(flows, known)
            },
            keeps: Kept::New,
            takes_all: true,
            give: take_slower,
        }),
    },
    FusionRule {
        name: "flows of late ranks",
        when: "flows and another method name the same ranks, and both are ongoing or both are \
               over",
        keeps: "the other; the flows support it",
        source: "ours",
        apply: Apply::Merge(Merge {
            of: |new, _| new.origin == Origin::Flows,
            same: |known, flows, _, _| {
                (is_of_steps(known) || known.origin == Origin::Flows)
                    && is_before(known, flows)
                    && known.open == flows.open
                    && known.subject.ranks == flows.subject.ranks
            },
            keeps: Kept::Known,
            takes_all: false,
            give: |known, flows, _| known.facts.extend(flows.facts),
        }),
    },
    FusionRule {
        name: "slow links meanwhile",
        when: "a link was slow while all ranks were slower, at the ends of ranks whose blocks are \
               slow, or of ranks for which another method blames the network",
        keeps: "the finding; the network comes first, except before a function that takes the \
                time",
        source: "MegaTrace (2026): the network before compute",
        apply: Apply::Ask(ask_links),
    },
    FusionRule {
        name: "blocks behind a network",
        when: "all ranks became slower because of a network, and blocks took longer at the same \
               time and cost less",
        keeps: "the finding of all ranks; the blocks support it",
        source: "MegaTrace (2026): the network before compute",
        apply: Apply::Merge(Merge {
            of: |new, _| new.subject.block.is_some(),
            same: |slower, blocks, all, _| {
                let first = all.iter().find(|it| is_slower_by_network(it));
                first.is_some_and(|first| first.id == slower.id)
                    && is_slower_by_network(slower)
                    && blocks.cost.exposed_s < slower.cost.exposed_s
                    && meet(blocks, slower)
            },
            keeps: Kept::Known,
            takes_all: false,
            give: |slower, blocks, _| {
                let (claim, cost_s) = (Box::new(blocks.claim), blocks.cost.exposed_s);
                let explained = Observation::Explains {
                    claim,
                    by: None,
                    cost_s,
                };
                slower.facts.push(explained.into());
                slower.facts.extend(blocks.facts);
            },
        }),
    },
];

/// Whether a finding is of steps, not of operations or of a job that stands still.
fn is_of_steps(finding: &Finding) -> bool {
    finding.origin < Origin::Death
}

/// Whether a finding comes before another in the order of all.
fn is_before(one: &Finding, other: &Finding) -> bool {
    (one.origin, one.number) < (other.origin, other.number)
}

/// Whether two findings have steps in common, or steps beside one another.
fn meet(one: &Finding, other: &Finding) -> bool {
    // Neighbours count: a row of the accounting may begin in the step before the one it is of.
    one.first_step <= other.last_step.saturating_add(1)
        && other.first_step <= one.last_step.saturating_add(1)
}

/// Whether a step is one of a finding's, or beside one.
fn meets(finding: &Finding, step: u64) -> bool {
    (finding.first_step.saturating_sub(1)..=finding.last_step.saturating_add(1)).contains(&step)
}

fn share_ranks(one: &Finding, other: &Finding) -> bool {
    other
        .subject
        .ranks
        .iter()
        .any(|rank| one.subject.ranks.contains(rank))
}

fn has_same_ranks(one: &Finding, other: &Finding) -> bool {
    !other.subject.ranks.is_empty() && one.subject.ranks == other.subject.ranks
}

/// Whether what one finding costs takes so much of each of its steps that another's can be slower
/// for it: what went on before as well is no reason why a job is slower than it was.
fn explains(why: &Finding, slower: &Finding) -> bool {
    cost_per_step_s(why) >= EXPLAINED_SHARE * cost_per_step_s(slower)
}

fn cost_per_step_s(finding: &Finding) -> f64 {
    // By step and not in all: what cost as much before is no reason why a job became slower.
    let steps = finding.last_step.saturating_sub(finding.first_step);
    finding.cost.exposed_s / steps.saturating_add(1) as f64
}

fn is_in_stage(finding: &Finding, stage: StageId) -> bool {
    finding.subject.stage.as_deref() == stage.built_in()
}

fn fault(function: &Finding) -> Option<&FunctionFault> {
    match &function.claim {
        Claim::Function(fault) => Some(fault),
        _ => None,
    }
}

/// Whether a finding was under way in the profile window; a recording is all there is.
fn is_in_profile(finding: &Finding, witnesses: &dyn Witnesses) -> bool {
    let window = witnesses.profile_window();
    window.is_none_or(|(first, last)| finding.went_on_in(first..=last))
}

/// Little of what all ranks do explains what it is large enough for, and is nothing alone.
fn is_little(fault: &FunctionFault, witnesses: &dyn Witnesses) -> bool {
    fault.ranks.is_empty()
        // What somebody expected otherwise is said, however little it is.
        && fault.unexpected.is_empty()
        && fault.excess_share < witnesses.common_share_min()
}

fn may_be_of_function(known: &Finding, function: &Finding, witnesses: &dyn Witnesses) -> bool {
    let Some(fault) = fault(function) else {
        return false;
    };
    known.origin < Origin::Profile
        // Functions come costliest first: the first that fits stays.
        && known.subject.function.is_none()
        && is_in_profile(known, witnesses)
        && (explains(function, known)
            || !is_little(fault, witnesses)
                && known.kind != IncidentKind::Degraded
                && cost_per_step_s(function) >= HINT_SHARE * cost_per_step_s(known))
}

/// Whether a function runs on what a finding says is slow: ranks' hosts, or their devices.
fn runs_where(known: &Finding, function: &Finding) -> bool {
    let on_device = fault(function).is_some_and(|fault| fault.class.is_of_device());
    let slow = known.subject.side;
    slow.is_none_or(|side| (side == Side::Device) == on_device)
}

fn take_function(known: &mut Finding, function: Finding, _: &dyn Witnesses) {
    // The link that all wait for is of other ranks than the finding.
    let are_others = known.subject.ranks != function.subject.ranks;
    let ranks = if are_others {
        function.subject.ranks
    } else {
        Vec::new()
    };
    let claim = &known.claim;
    let facts = function.facts.into_iter().map(|fact| Fact {
        // A stage that the headline names needs no second word.
        stage: fact.stage.filter(|stage| !claim.names_stage(stage)),
        ranks: ranks.clone(),
        ..fact
    });
    known.facts.extend(facts.collect::<Vec<_>>());
    known.subject.function = function.subject.function;
    // A function is nearer to the cause than a stage, so its advice replaces that of the stage.
    known.actions = function.actions;
}

fn is_function_alone(finding: &Finding, all: &[Finding], witnesses: &dyn Witnesses) -> bool {
    let Some(fault) = fault(finding).filter(|_| finding.origin == Origin::Profile) else {
        return false;
    };
    // What all ranks do anyway is not why one of them is late.
    let is_explained = all
        .iter()
        .any(|other| other.origin < Origin::Profile && !other.subject.ranks.is_empty());
    is_little(fault, witnesses)
        || witnesses.profile_window().is_some()
            && fault.unexpected.is_empty()
            && (!fault.ranks.is_empty() || !is_garbage_collection(&fault.name) || is_explained)
}

fn ask_profile(finding: &mut Finding, witnesses: &dyn Witnesses) {
    let is_asked = finding.origin <= Origin::Profile
        && !finding.subject.ranks.is_empty()
        && is_in_profile(finding, witnesses);
    if !is_asked {
        return;
    }
    if let Some((what, action)) = witnesses.cores_in_profile(&finding.subject.ranks) {
        finding.facts.push(what.into());
        finding.actions = vec![action];
    }
}

fn ask_hosts(finding: &mut Finding, witnesses: &dyn Witnesses) {
    let is_asked = finding.origin <= Origin::Profile
        || matches!(finding.origin, Origin::Blocks | Origin::Hang);
    if !is_asked {
        return;
    }
    // Before hosts are asked: what they say now is not what a profile saw.
    let is_seen = finding.is_seen_by(Method::Host);
    let (found, actions): (Vec<_>, Vec<_>) = witnesses.hosts(finding, is_seen).into_iter().unzip();
    let has_cores = found.iter().any(|what| what.cause() == Some(Cause::Cores));
    finding.facts.extend(found.into_iter().map(Fact::from));
    let Some(action) = actions.into_iter().flatten().next() else {
        return;
    };
    let has_function = finding.subject.function.is_some();
    if has_cores && has_function {
        // Whatever it does there takes longer for it.
        finding.actions.insert(0, action);
    } else if is_seen || has_function || finding.origin == Origin::Hang {
        // What was seen in a profile, or of who has not come, is first.
        finding.actions.push(action);
    } else {
        finding.actions = vec![action];
    }
}

fn is_of_blocks(slower: &Finding, all: &[Finding]) -> bool {
    let blocks = all
        .iter()
        .filter(|it| it.origin == Origin::Blocks && meet(it, slower));
    let explained_s: f64 = blocks.map(|it| it.cost.exposed_s).sum();
    slower.cost.exposed_s <= SEEN_MORE_RATIO * explained_s
}

fn take_stages(blocks: &mut Finding, mut stages: Finding, _: &dyn Witnesses) {
    let is_more = !stages.subject.ranks.is_empty()
        && stages.cost.exposed_s > SEEN_MORE_RATIO * blocks.cost.exposed_s;
    if is_more {
        stages.subject.block.clone_from(&blocks.subject.block);
        // Which of the two costs more may change: it is the same finding.
        std::mem::swap(&mut stages.id, &mut blocks.id);
        stages.origin = blocks.origin;
        std::mem::swap(&mut stages.number, &mut blocks.number);
        std::mem::swap(&mut stages, blocks);
    }
    blocks.facts.extend(stages.facts);
}

/// What the blocks of late ranks say of their lateness: their pipeline, and the share of the
/// lateness that they worked longer.
fn judged(finding: &Finding, witnesses: &dyn Witnesses) -> Option<(f64, OwnBlocks)> {
    let account = finding.facts.first()?.what.account()?;
    let late_s = account.lateness_s * account.struck_steps as f64;
    let is_asked = finding.kind == IncidentKind::Slow
        // Behind the optimizer no block is waited for any more.
        && finding.claim.place() != Some(&StepPlace::AfterOptimizer)
        && MAY_WAIT_IN.iter().any(|stage| is_in_stage(finding, *stage));
    if !is_asked || late_s <= 0.0 {
        return None;
    }
    // A step of the accounting may begin in the one before.
    let steps = finding.first_step..=finding.last_step.saturating_add(1);
    let ranks = &finding.subject.ranks;
    let blocks = witnesses.own_blocks(ranks, &steps)?;
    Some((
        (blocks.own_s - blocks.copies_s) / (late_s * ranks.len() as f64),
        blocks,
    ))
}

/// Whether ranks worked no longer in their blocks than their copies did.
fn is_wait(finding: &Finding, witnesses: &dyn Witnesses) -> bool {
    judged(finding, witnesses).is_some_and(|(own, _)| own < WAITED_SHARE)
}

fn is_waited_for(cause: &Finding, wait: &Finding, witnesses: &dyn Witnesses) -> bool {
    let ranks = &cause.subject.ranks;
    if ranks.is_empty()
        || !meet(cause, wait)
        || cause.cost.exposed_s < EXPLAINED_SHARE * wait.cost.exposed_s
    {
        return false;
    }
    let Some((_, blocks)) = judged(wait, witnesses) else {
        return false;
    };
    // Ranks that wait themselves would be blamed for a wait that they pass on.
    let is_own = match judged(cause, witnesses) {
        Some((own, _)) => own >= OWN_SHARE,
        // Where its own blocks were not measured, blocks that held steps up speak for it.
        None => cause.is_seen_by(Method::Schedule),
    };
    is_own && ranks.iter().all(|rank| blocks.pipeline.contains(rank))
}

fn take_wait(cause: &mut Finding, wait: Finding, witnesses: &dyn Witnesses) {
    let ranks = &wait.subject.ranks;
    let waited = ranks.iter().copied().collect();
    let blocks = judged(&wait, witnesses).map(|(_, blocks)| blocks.fact);
    // Those whom the wait held up may be ranks of the cause (FU-P4).
    cause.victims = cause
        .victims
        .and(&wait.victims)
        .and(&waited)
        .without(&cause.subject.ranks);
    let facts = wait.facts.into_iter().chain(blocks).map(|fact| {
        match fact.what.method() {
            // What its blocks say is not that it is to blame.
            Method::Schedule => fact,
            _ => Fact {
                ranks: ranks.clone(),
                ..fact
            },
        }
    });
    let own = judged(cause, witnesses).map(|(_, blocks)| blocks.fact);
    cause.facts.extend(facts);
    // Several waits may have one cause: what its own blocks took is said once (FU-P5).
    if let Some(own) = own.filter(|own| !cause.facts.contains(own)) {
        cause.facts.push(own);
    }
}

fn take_slower(flows: &mut Finding, mut slower: Finding, _: &dyn Witnesses) {
    flows.open |= slower.open;
    // Flows have one severity, whatever they cost: a critical slowdown stays one.
    flows.severity = flows.severity.max(slower.severity);
    flows.last_step = flows.last_step.max(slower.last_step);
    // Both cost the same seconds: their sum would be more than was lost (FU-P3).
    flows.cost = flows.cost.max(slower.cost);
    let (known, new) = (&mut flows.subject, &mut slower.subject);
    known.stage = known.stage.take().or(new.stage.take());
    known.function = known.function.take().or(new.function.take());
    flows.facts.extend(explained(slower));
}

/// The facts of a finding that another one explains.
fn explained(slower: Finding) -> impl Iterator<Item = Fact> {
    let (claim, cost_s) = (Box::new(slower.claim), slower.cost.exposed_s);
    slower.facts.into_iter().map(move |fact| {
        // Only the account is explained by it; what hosts or functions say stands for itself.
        if fact.what.account().is_none() {
            return fact;
        }
        let by = Some(Box::new(fact.what));
        Fact {
            what: Observation::Explains {
                claim: claim.clone(),
                by,
                cost_s,
            },
            ..fact
        }
    })
}

fn ask_links(finding: &mut Finding, witnesses: &dyn Witnesses) {
    let of_all = finding.subject.ranks.is_empty();
    let in_network = finding.blames(Cause::Network);
    let is_asked = match finding.kind {
        IncidentKind::Degraded => of_all,
        // Lateness of one rank in its own work is not made by a link, unless a method says so.
        IncidentKind::Slow => finding.subject.block.is_some() || in_network,
        // Hosts were asked for their network as it began (docs/incidents/escalation.md).
        IncidentKind::Hang => false,
    };
    if !is_asked {
        return;
    }
    let mut during = witnesses.slow_links();
    during.retain(|link| {
        finding.went_on_in(link.step..=link.step) && (of_all || link.is_at_end_of(&finding.subject))
    });
    // The link that has least left of its bandwidth is the one to look at.
    during.sort_by(|one, other| one.left_share.total_cmp(&other.left_share));
    let Some(SlowLink {
        ends: (from, to), ..
    }) = during.first().cloned()
    else {
        return;
    };
    let look = Action::LookAtNetwork {
        from: from.clone(),
        to: to.clone(),
    };
    if finding.blames(Cause::Code) {
        // A function that takes most of the time comes first.
        finding.actions.push(look);
    } else if of_all {
        finding.actions = vec![look];
    } else if !in_network {
        finding.actions.insert(0, look);
    }
    finding.link.get_or_insert((from, to));
    finding
        .facts
        .extend(during.into_iter().map(|link| link.fact));
}

fn is_slower_by_network(finding: &Finding) -> bool {
    finding.kind == IncidentKind::Degraded && finding.blames(Cause::Network)
}
