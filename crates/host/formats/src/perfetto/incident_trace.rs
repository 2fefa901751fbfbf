//! The steps around an incident, of those it names and of some others.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::ops::RangeInclusive;

use model::{
    BlockPlace, CollectiveIssue, Event, Incident, IncidentKind, Input, Mark, StageId, StageNames,
    Verdict,
};
use serde_json::json;
use steps::Segmenter;

use super::spans::{SpanTrack, TraceSpan, add_steps, write_spans};

/// Steps that are shown before the one it began in, and after.
const BEFORE: u64 = 3;
const AFTER: u64 = 7;
/// Ranks that are shown, at most half of them those it names.
const MOST_RANKS: usize = 32;
/// Marks of a rank that are shown.
const MOST_MARKS: usize = 1 << 14;

/// What ranks did in the steps around the beginning of an incident, as it is recorded.
#[derive(Debug)]
pub struct IncidentTrace {
    incident: Incident,
    steps: RangeInclusive<u32>,
    names: StageNames,
    groups: BTreeMap<u32, String>,
    ranks: BTreeMap<u32, ShownRank>,
    /// How many are to come.
    expected: usize,
    /// Of all that is recorded in these steps.
    last_ns: i64,
    /// Whether the job has started over since, and for which time.
    restarted: bool,
    attempt: u32,
}

/// A rank that is shown.
#[derive(Debug, Default)]
struct ShownRank {
    host: String,
    /// Names of stages in the order of their codes.
    stages: Vec<StageId>,
    /// Each with its time on the clock of the job and the stage that its code stands for.
    marks: Vec<(i64, Mark, StageId)>,
    /// Whether it has gone on beyond the steps that are shown.
    has_passed: bool,
}

impl IncidentTrace {
    /// The steps around an incident of a verdict; `None` if it has no such incident.
    pub fn of(verdict: &Verdict, id: &str) -> Option<Self> {
        let incident = verdict
            .incidents
            .iter()
            .find(|incident| incident.id == id)?;
        let first = incident.first_step;
        let named = &incident.subject.ranks;
        let mut ranks: BTreeSet<u32> = named.iter().copied().take(MOST_RANKS / 2).collect();
        // Of many ranks, from all over the job; of few all that are known.
        let (all, room) = (verdict.job.ranks as u64, MOST_RANKS - ranks.len());
        if verdict.job.ranks > MOST_RANKS {
            let spread = (0..room as u64).map(|nth| (nth * all / room as u64) as u32);
            ranks.extend(spread.filter(|rank| !named.contains(rank)));
        }
        let ranks = ranks
            .into_iter()
            .map(|rank| (rank, ShownRank::default()))
            .collect();
        Some(Self {
            incident: incident.clone(),
            steps: step_number(first.saturating_sub(BEFORE))
                ..=step_number(first.saturating_add(AFTER)),
            names: StageNames::default(),
            groups: BTreeMap::new(),
            ranks,
            expected: verdict.job.ranks.min(MOST_RANKS),
            last_ns: i64::MIN,
            restarted: false,
            attempt: 0,
        })
    }

    /// Takes what was recorded of the job, in its order; `shift_ns` leads from the clock it was
    /// recorded by to that of the job.
    pub fn take(&mut self, input: &Input, shift_ns: i64) {
        match input {
            Input::Group { group, name, .. } => {
                self.groups.insert(*group, name.clone());
            }
            // Each host tells of it; 0 if it does not know how often.
            Input::Restart { attempt } if *attempt == 0 || *attempt > self.attempt => {
                // What is shown stays for now: the job may end before it comes to these steps
                // again.
                (self.restarted, self.attempt) = (true, *attempt);
                // Each process numbers its names from 0, and sends them again after a restart.
                self.ranks.values_mut().for_each(|seen| seen.stages.clear());
            }
            Input::Rank { rank, host, .. } => {
                if let Some(seen) = self.shown(*rank) {
                    seen.host.clone_from(host);
                }
            }
            Input::Name { rank, name } => {
                let stage = self.names.intern(name);
                if let Some(seen) = self.shown(*rank) {
                    seen.stages.push(stage);
                }
            }
            Input::Mark { rank, mark } => self.mark(*rank, mark, shift_ns),
            Input::NoProgress { at } if self.last_ns > i64::MIN => {
                self.last_ns = self.last_ns.max(on_clock(at.0, shift_ns));
            }
            _ => {}
        }
    }

    /// A rank, if it is one of those that are shown.
    fn shown(&mut self, rank: u32) -> Option<&mut ShownRank> {
        if self.ranks.len() < MOST_RANKS {
            self.ranks.entry(rank).or_default();
        }
        self.ranks.get_mut(&rank)
    }

    fn mark(&mut self, rank: u32, mark: &Mark, shift_ns: i64) {
        let (is_in, end) = (self.steps.contains(&mark.step), *self.steps.end());
        let Some(seen) = self.shown(rank) else { return };
        if !is_in {
            seen.has_passed |= mark.step > end;
            return;
        }
        if std::mem::take(&mut self.restarted) {
            // What is to be shown comes again: of two starts that came so far, the later one.
            for seen in self.ranks.values_mut() {
                seen.marks.clear();
                seen.has_passed = false;
            }
        }
        let at_ns = on_clock(mark.at.0, shift_ns);
        self.last_ns = self.last_ns.max(at_ns);
        // An agent that was started anew sends again what it has sent.
        if let Some(seen) = self.ranks.get_mut(&rank)
            && seen
                .marks
                .last()
                .is_none_or(|(last_ns, ..)| *last_ns <= at_ns)
            && seen.marks.len() < MOST_MARKS
        {
            let name = mark.event.name();
            let stage = name
                .and_then(|name| seen.stages.get(usize::from(name)))
                .copied();
            seen.marks
                .push((at_ns, *mark, stage.unwrap_or(StageId::OTHER)));
        }
    }

    /// Whether all ranks have gone on to later steps: what comes now is not shown.
    pub fn is_whole(&self) -> bool {
        self.ranks.len() >= self.expected && self.ranks.values().all(|seen| seen.has_passed)
    }

    /// Writes it as Chrome trace events: a process for each rank.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut spans = Vec::new();
        for (rank, seen) in &self.ranks {
            self.add(*rank, seen, &mut spans);
        }
        let processes = self.ranks.iter().map(|(rank, seen)| {
            let named = if self.is_named(*rank) { " (named)" } else { "" };
            let host = if seen.host.is_empty() { "" } else { " on " };
            (*rank, format!("rank {rank}{host}{}{named}", seen.host))
        });
        write_spans(processes, spans, out)
    }

    fn is_named(&self, rank: u32) -> bool {
        self.incident.subject.ranks.contains(&rank)
    }

    fn add(&self, rank: u32, seen: &ShownRank, spans: &mut Vec<TraceSpan>) {
        let Some((last_ns, last, _)) = seen.marks.last() else {
            return;
        };
        let mut segmenter = Segmenter::default();
        let mut steps = Vec::new();
        let mut open: Option<(i64, BlockPlace)> = None;
        for (at_ns, mark, stage) in &seen.marks {
            steps.extend(segmenter.push(mark, *stage));
            match mark.event {
                Event::CollectiveIssue(CollectiveIssue {
                    op,
                    group,
                    number,
                    bytes,
                    ..
                }) => {
                    // An issue is an instant: when the collective ended, marks do not say.
                    let group = self.groups.get(&group);
                    let args = json!({"group": group, "number": number, "bytes": bytes});
                    let name = op.name().to_owned();
                    let span_ns = (*at_ns, *at_ns);
                    spans.push(TraceSpan::new(
                        rank,
                        SpanTrack::Collectives,
                        name,
                        span_ns,
                        args,
                    ));
                }
                Event::BlockBegin(place) => open = Some((*at_ns, place)),
                Event::BlockEnd(place) => {
                    let begun = open.take().filter(|(_, begun)| *begun == place);
                    let Some((begun_ns, _)) = begun else { continue };
                    let BlockPlace {
                        pass,
                        microbatch,
                        stage,
                        ..
                    } = place;
                    let name = format!("{} of microbatch {microbatch}", pass.name());
                    let args = json!({"stage": stage});
                    let span_ns = (begun_ns, *at_ns);
                    spans.push(TraceSpan::new(rank, SpanTrack::Blocks, name, span_ns, args));
                }
                _ => {}
            }
        }
        steps.extend(segmenter.finish());
        let first_step = step_number(self.incident.first_step);
        let begun_ns = seen
            .marks
            .iter()
            .find(|(_, mark, _)| mark.step >= first_step);
        if let Some((begun_ns, ..)) = begun_ns
            && (self.is_named(rank) || self.incident.subject.ranks.is_empty())
        {
            let Incident {
                text,
                advice,
                cost_s,
                ..
            } = &self.incident;
            let args = json!({"advice": advice, "cost_s": cost_s});
            let span_ns = (*begun_ns, self.last_ns);
            spans.push(TraceSpan::new(
                rank,
                SpanTrack::Incidents,
                text.clone(),
                span_ns,
                args,
            ));
        }
        if self.incident.kind == IncidentKind::Hang && !seen.has_passed {
            let (name, span_ns) = ("nothing more".to_owned(), (*last_ns, self.last_ns));
            let args = json!({"step": last.step});
            spans.push(TraceSpan::new(rank, SpanTrack::Stages, name, span_ns, args));
        }
        // What leads from the clock of the host to that of the job, as the last mark had it.
        let origin_ns = *last_ns - on_clock(last.at.0, 0);
        add_steps(rank, &steps, &self.names, origin_ns, spans);
    }
}

fn step_number(step: u64) -> u32 {
    u32::try_from(step).unwrap_or(u32::MAX)
}

/// A time of a host on the clock of the job.
fn on_clock(at_ns: u64, shift_ns: i64) -> i64 {
    i64::try_from(at_ns)
        .unwrap_or(i64::MAX)
        .saturating_add(shift_ns)
}
