//! Jobs whose hosts run ahead of their devices: what is said of a fault, beside what the same job
//! takes without it.

use std::collections::BTreeMap;
use std::env;

use anyhow::{Context, Result};
use model::{Incident, Side, Subject, Verdict};

use super::turns::in_turn;
use super::{AcceptanceRow, BACKWARD, CALLBACKS, DATA, FORWARD, Lab, OPTIMIZER, Print};

const RANKS: u32 = 4;
/// Loops, below `python/tests/jobs`: with late waits, and on the accelerator of the tests.
pub(super) const LATE_WAITS: &str = "late_waits.py";
pub(super) const ON_DEVICES: &str = "device_loop.py";
/// A fault must be named from this share of the step on; what costs less may be left unsaid.
const COUNTS_SHARE: f64 = 0.05;
/// What is charged must be within this distance of the true gain, as a share of it.
const CHARGE_TOL: f64 = 0.1;

/// How many seeds each job is run with: `LAGGARD_TEST_SEEDS`, as for the matrices of real jobs.
fn seeds() -> u32 {
    let wanted = env::var("LAGGARD_TEST_SEEDS").ok();
    wanted.and_then(|seeds| seeds.parse().ok()).unwrap_or(3)
}

/// A job that has ended.
pub(super) struct Ran {
    pub(super) verdict: Verdict,
    /// What a step took by the job's own clock.
    pub(super) step_s: f64,
    /// The same of the steps since step [`SINCE`], where a fault begins there.
    struck_step_s: Option<f64>,
}

/// The arguments of `env` that run a loop with these variables.
pub(super) fn command(lab: &Lab, script: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let folder = lab.root.join("python/tests/jobs");
    let file = |name: &str| folder.join(name).display().to_string();
    let variables = variables
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let ranks = RANKS.to_string();
    let loops = ["python".to_owned(), file("launch.py"), ranks, file(script)];
    variables.chain(loops).collect()
}

/// Seconds of the milliseconds that a job printed behind these words.
pub(super) fn seconds_behind(words: &str, said: &str) -> Option<f64> {
    let (_, rest) = said.split_once(words)?;
    let ms: f64 = rest.split(' ').next()?.parse().ok()?;
    Some(ms * 1e-3)
}

impl Ran {
    /// Runs a loop with these variables.
    pub(super) fn new(lab: &Lab, script: &str, variables: &[(&str, &str)]) -> Result<Self> {
        let command = [vec!["env".to_owned()], command(lab, script, variables)].concat();
        let (verdict, said) = lab.run_with_output("", command)?;
        let seconds = |behind: &str| seconds_behind(behind, &said);
        Ok(Self {
            step_s: seconds("a step took ").context("the job did not say what a step took")?,
            struck_step_s: seconds(&format!("since step {SINCE} a step took ")),
            verdict,
        })
    }

    /// Seconds of the whole run, as seconds of each step that was analysed.
    pub(super) fn of_a_step(&self, run_s: f64) -> f64 {
        run_s / self.verdict.job.analysed_steps.max(1) as f64
    }

    /// The same of a fault that strikes some steps: it may strike a larger part of those that were analysed
    /// than of those that the truth is of.
    fn of_a_step_with(&self, strikes: &Strikes, run_s: f64) -> f64 {
        let windows = self.windows().into_iter();
        let analysed = windows.flat_map(|(first, steps)| first..first + steps);
        // The job counts its steps from 1 on, and a pause behind the optimizer is lateness of the step after.
        let struck = analysed.filter(|step| strikes.is_one(*step)).count();
        run_s / (struck.max(1) as u64 * strikes.every) as f64
    }

    /// The same of each that a fault from step [`SINCE`] on could strike.
    fn of_a_struck_step(&self, run_s: f64) -> f64 {
        // The job counts its steps from 1 on.
        let since = |first: u64| SINCE.saturating_sub(1).saturating_sub(first);
        let windows = self.windows().into_iter();
        let steps: u64 = windows
            .map(|(first, steps)| steps.saturating_sub(since(first)))
            .sum();
        run_s / steps.max(1) as f64
    }

    /// First step and steps of each window: the stages of a pipeline have one each.
    fn windows(&self) -> BTreeMap<u64, u64> {
        let windows = self.verdict.windows.iter();
        windows
            .map(|window| (window.first_step, window.steps))
            .collect()
    }

    /// Incidents that name ranks.
    fn named(&self) -> impl Iterator<Item = &Incident> {
        self.verdict
            .incidents
            .iter()
            .filter(|incident| !incident.subject.ranks.is_empty())
    }

    /// Who is named, in a few words.
    fn said(&self) -> String {
        let said: Vec<String> = self
            .named()
            .map(|incident| spoken(&incident.subject))
            .collect();
        if said.is_empty() {
            "nobody".to_owned()
        } else {
            said.join(", ")
        }
    }
}

fn spoken(subject: &Subject) -> String {
    let side = subject.side.map_or("", |side| match side {
        Side::Host => " (host)",
        Side::Device => " (device)",
    });
    let place = subject.block.as_ref().or(subject.stage.as_ref());
    format!(
        "{:?}{side} {}",
        subject.ranks,
        place.map_or("", String::as_str)
    )
}

/// Steps that a fault strikes.
struct Strikes {
    every: u64,
    at: u64,
}

impl Strikes {
    fn is_one(&self, step: u64) -> bool {
        step % self.every == self.at
    }
}

/// As `late_waits.py` has them.
const PAUSES: Strikes = Strikes { every: 25, at: 12 };

/// What is hidden in a job: on which rank, and the stages or blocks that are right.
struct Hidden<'a> {
    rank: u32,
    places: &'a [&'a str],
    side: Side,
    /// The steps that it strikes, if not each.
    strikes: Option<&'a Strikes>,
}

impl Hidden<'_> {
    fn is(&self, subject: &Subject) -> bool {
        // A host's fault is one of the rank where no device is in sight.
        let is_side = subject.side.unwrap_or(Side::Host) == self.side;
        let is_place = self.places.iter().any(|place| {
            subject.stage.as_deref() == Some(place)
                || subject
                    .block
                    .as_ref()
                    .is_some_and(|block| block.starts_with(place))
        });
        is_side && is_place && subject.ranks == [self.rank]
    }
}

/// How often what was hidden was named.
#[derive(Default)]
struct Tally {
    jobs: usize,
    /// Jobs whose fault costs enough to be named, and those of them that are right.
    due: usize,
    right: usize,
    /// Of the others, those that rightly say nothing that matters.
    silent: usize,
    innocents: usize,
    /// What is charged, as a part of the true gain.
    charged: Vec<f64>,
    wrong: Vec<String>,
}

impl Tally {
    /// Counts a job whose step takes so many seconds with its fault, and so many without: in all of its
    /// steps or in those since it began.
    fn add(&mut self, name: &str, hidden: &Hidden<'_>, ran: &Ran, [step_s, free_s]: [f64; 2]) {
        let gain_s = step_s - free_s;
        let due_s = COUNTS_SHARE * step_s;
        let is_culprit = |incident: &&Incident| incident.subject.ranks == [hidden.rank];
        let charged_s = ran
            .named()
            .filter(is_culprit)
            .map(|incident| incident.cost_s)
            .sum();
        let charged_s = match (ran.struck_step_s, hidden.strikes) {
            (Some(_), _) => ran.of_a_struck_step(charged_s),
            (None, Some(strikes)) => ran.of_a_step_with(strikes, charged_s),
            (None, None) => ran.of_a_step(charged_s),
        };
        // Of two jobs alike one may take a fifth longer: what is charged is a share of its own step.
        let charged_s = charged_s * step_s / ran.struck_step_s.unwrap_or(ran.step_s);
        let innocents = ran.named().filter(|incident| !is_culprit(incident)).count();
        let is_named = ran
            .named()
            .next()
            .is_some_and(|first| hidden.is(&first.subject));
        let is_due = gain_s > due_s;
        // A small fault may be named, but with no more than it may cost unnamed.
        let is_right = innocents == 0 && if is_due { is_named } else { charged_s <= due_s };
        self.jobs += 1;
        self.innocents += innocents;
        self.due += usize::from(is_due);
        self.right += usize::from(is_due && is_right);
        self.silent += usize::from(!is_due && is_right);
        // A part of a gain near zero would say nothing.
        if is_due && is_named {
            self.charged.push(charged_s / gain_s);
        }
        if !is_right {
            let truth = format!("{:.0} of {:.0} ms to gain", gain_s * 1e3, step_s * 1e3);
            self.wrong.push(format!("{name}, {truth}: {}", ran.said()));
        }
    }

    /// Whether what is charged is what would be saved.
    fn charges_the_gain(&self) -> bool {
        self.charged
            .iter()
            .all(|part| (part - 1.0).abs() <= CHARGE_TOL)
    }

    fn text(&self) -> String {
        let mut parts = vec![format!("right {} of {}", self.right, self.due)];
        let least = self.charged.iter().copied().reduce(f64::min);
        let most = self.charged.iter().copied().reduce(f64::max);
        if let (Some(least), Some(most)) = (least, most) {
            let near = self
                .charged
                .iter()
                .filter(|part| (*part - 1.0).abs() <= CHARGE_TOL);
            let (near, all) = (near.count(), self.charged.len());
            parts.push(format!(
                "charged {least:.2} to {most:.2}, {near} of {all} within 0.1"
            ));
        }
        parts.push(format!("innocents {}", self.innocents));
        if self.jobs > self.due {
            parts.push(format!(
                "silent {} of {} absorbed",
                self.silent,
                self.jobs - self.due
            ));
        }
        parts.extend(self.wrong.iter().cloned());
        parts.join("; ")
    }
}

/// Jobs without a fault: how many say nothing.
#[derive(Default)]
struct Healthy {
    jobs: usize,
    loud: Vec<String>,
}

impl Healthy {
    fn add(&mut self, name: &str, ran: &Ran) {
        self.jobs += 1;
        if !ran.verdict.incidents.is_empty() {
            let texts: Vec<&str> = ran
                .verdict
                .incidents
                .iter()
                .map(|incident| incident.text.as_str())
                .collect();
            self.loud.push(format!("{name}: {}", texts.join(" / ")));
        }
    }

    fn print(&self, id: &str, scenario: String, print: Print<'_>) {
        let silent = format!("silent {} of {}", self.jobs - self.loud.len(), self.jobs);
        let measured = [&[silent], &self.loud[..]].concat().join("; ");
        let holds = self.loud.is_empty();
        print(AcceptanceRow::new(
            id,
            scenario,
            measured,
            "no incident",
            holds,
        ));
    }
}

const READS: [&str; 5] = ["after", "before", "ten", "never", "clip"];
/// Faults of a host, the stages that they may be found in, and how many steps show them: what
/// strikes one step in 25 must have struck a few times.
pub(super) const HOST_FAULTS: [(&str, &[&str], &str); 5] = [
    ("loader", &[DATA], "65"),
    ("forward", &[FORWARD], "65"),
    ("callback", &[CALLBACKS], "65"),
    ("launches", &[FORWARD, BACKWARD], "65"),
    ("pause", &[CALLBACKS], "140"),
];
/// Seconds by which a fault strikes, by seed: the second is one that a device behind its host hides.
const DELAYS: [&str; 3] = ["0.06", "0.02", "0.04"];

/// Faults of hosts that nothing but late waits shows, wherever the loss is read.
pub(super) fn late_waits(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    let (mut healthy, mut tallies) = (Healthy::default(), HOST_FAULTS.map(|_| Tally::default()));
    for (seed, delay) in (1..=seeds()).zip(DELAYS.into_iter().cycle()) {
        let (seed_text, slow) = (seed.to_string(), seed % RANKS);
        for read in READS {
            let name = format!("{read} {seed}");
            let job = [("READ", read), ("SEED", seed_text.as_str())];
            let base = Ran::new(lab, LATE_WAITS, &[&job[..], &[("FAULT", "none")]].concat())?;
            healthy.add(&name, &base);
            let faults = HOST_FAULTS.map(|(fault, ..)| format!("{fault}@{slow}@{delay}"));
            let took_s = in_turn(lab, LATE_WAITS, &job, &with_none(&faults))?;
            let each = HOST_FAULTS.iter().zip(&faults).zip(&took_s[1..]);
            for ((((fault, places, steps), struck), step_s), tally) in each.zip(&mut tallies) {
                let is_pause = *fault == "pause";
                let own = [("FAULT", struck.as_str()), ("STEPS", steps)];
                let ran = Ran::new(lab, LATE_WAITS, &[&job[..], &own].concat())?;
                let hidden = Hidden {
                    rank: slow,
                    places,
                    side: Side::Host,
                    strikes: is_pause.then_some(&PAUSES),
                };
                tally.add(&name, &hidden, &ran, [*step_s, took_s[0]]);
            }
        }
    }
    let beds = format!(
        "late waits, loss read in {} places, seeds: {}",
        READS.len(),
        seeds()
    );
    for ((fault, ..), tally) in HOST_FAULTS.iter().zip(&tallies) {
        let target = "rank and stage above 5 %; 0.9 to 1.1 of the true gain; else silent";
        let holds = tally.wrong.is_empty() && tally.charges_the_gain();
        let scenario = format!("`{fault}`: {beds}");
        print(AcceptanceRow::new(
            id,
            scenario,
            tally.text(),
            target,
            holds,
        ));
    }
    healthy.print(id, format!("no fault: {beds}"), print);
    Ok(())
}

const FACTORS: [&str; 3] = ["1.3", "1.5", "3"];
/// How many times as much devices have to do: on two cores steps wait for hosts first, and for
/// devices with the second.
const LOADS: [&str; 2] = ["1", "3"];
/// What is slow on a device, and where it may be found.
pub(super) const DEVICE_FAULTS: [(&str, &[&str]); 3] = [
    ("device_forward", &[FORWARD, "forward"]),
    ("device_backward", &[BACKWARD, "backward"]),
    ("device_optimizer", &[OPTIMIZER]),
];
/// Host faults of jobs on devices; a pipeline has blocks.
const BESIDE_DEVICES: [(&str, &[&str]); 3] = [
    ("loader", &[DATA]),
    ("forward", &[FORWARD, "forward"]),
    ("callback", &[CALLBACKS]),
];
const HEALTHY_SEEDS: u32 = 8;
/// Step in which faults of jobs on devices begin: after the warm-up, and some steps to compare with.
const SINCE: u64 = 24;

/// Slow devices and slow hosts of jobs that take PyTorch's accelerator paths; the id ends in the job's mode.
pub(super) fn on_devices(lab: &Lab, id: &str, print: Print<'_>) -> Result<()> {
    let (_, mode) = id.split_once('-').context("the id names no mode")?;
    let mut healthy = Healthy::default();
    for (seed, load) in (1..=HEALTHY_SEEDS).zip(LOADS.into_iter().cycle()) {
        let ran = struck(lab, mode, "none", seed, &[("LOAD", load)])?;
        healthy.add(&format!("load {load}, seed {seed}"), &ran);
    }
    healthy.print(
        id,
        format!("no fault: {mode}, seeds: {HEALTHY_SEEDS}"),
        print,
    );
    slow_devices(lab, id, mode, print)?;
    all_devices(lab, id, mode, print)?;
    for (fault, places) in BESIDE_DEVICES {
        let mut tally = Tally::default();
        for seed in 1..=seeds() {
            let took_s = with_and_without(lab, mode, fault, seed, &["0.06"], LOADS[0])?;
            let ran = struck(lab, mode, fault, seed, &[("DELAY", "0.06")])?;
            let hidden = Hidden {
                rank: seed % RANKS,
                places,
                side: Side::Host,
                strikes: None,
            };
            tally.add(
                &format!("seed {seed}"),
                &hidden,
                &ran,
                [took_s[1], took_s[0]],
            );
        }
        print_side(
            id,
            &format!("`{fault}` of a host 60 ms late: {mode}"),
            &tally,
            print,
        );
    }
    Ok(())
}

/// A job on devices with a fault from step [`SINCE`] on: a stage of a pipeline is compared with itself.
fn struck(
    lab: &Lab,
    mode: &str,
    fault: &str,
    seed: u32,
    variables: &[(&str, &str)],
) -> Result<Ran> {
    let (slow, seed, since) = (
        (seed % RANKS).to_string(),
        seed.to_string(),
        SINCE.to_string(),
    );
    let job = [
        ("MODE", mode),
        ("SINCE", &since),
        ("FAULT", fault),
        ("SEED", &seed),
        ("SLOW_RANK", &slow),
    ];
    Ran::new(lab, ON_DEVICES, &[&job[..], variables].concat())
}

/// What a step on devices takes without a fault, and with each of its sizes: seconds, or factors of kernels.
fn with_and_without(
    lab: &Lab,
    mode: &str,
    fault: &str,
    seed: u32,
    sizes: &[&str],
    load: &str,
) -> Result<Vec<f64>> {
    let (slow, seed) = (seed % RANKS, seed.to_string());
    let job = [("MODE", mode), ("SEED", &seed), ("LOAD", load)];
    let faults = sizes.iter().map(|size| format!("{fault}@{slow}@{size}"));
    let sets = with_none(&faults.collect::<Vec<_>>());
    in_turn(lab, ON_DEVICES, &job, &sets)
}

/// Sets of one fault each, behind one of none.
fn with_none(faults: &[String]) -> Vec<String> {
    [&["none".to_owned()], faults].concat()
}

fn print_side(id: &str, scenario: &str, tally: &Tally, print: Print<'_>) {
    let scenario = format!("{scenario}, seeds: {}", seeds());
    let target = "rank, stage, host or device above 5 %; no other rank";
    let holds = tally.wrong.is_empty();
    print(AcceptanceRow::new(
        id,
        scenario,
        tally.text(),
        target,
        holds,
    ));
}

/// A device whose kernels of one phase take longer.
fn slow_devices(lab: &Lab, id: &str, mode: &str, print: Print<'_>) -> Result<()> {
    for (fault, places) in DEVICE_FAULTS {
        for load in LOADS {
            let mut tally = Tally::default();
            for seed in 1..=seeds() {
                let took_s = with_and_without(lab, mode, fault, seed, &FACTORS, load)?;
                for (factor, step_s) in FACTORS.into_iter().zip(&took_s[1..]) {
                    let ran = struck(
                        lab,
                        mode,
                        fault,
                        seed,
                        &[("FACTOR", factor), ("LOAD", load)],
                    )?;
                    let hidden = Hidden {
                        rank: seed % RANKS,
                        places,
                        side: Side::Device,
                        strikes: None,
                    };
                    let name = format!("{factor} times, seed {seed}");
                    tally.add(&name, &hidden, &ran, [*step_s, took_s[0]]);
                }
            }
            let scenario = format!("`{fault}` 1.3, 1.5, 3 times as slow: {mode}, load {load}");
            print_side(id, &scenario, &tally, print);
        }
    }
    Ok(())
}

/// All devices are slow: nobody is to blame.
fn all_devices(lab: &Lab, id: &str, mode: &str, print: Print<'_>) -> Result<()> {
    let mut accused = Vec::new();
    for seed in 1..=seeds() {
        let ran = struck(lab, mode, "all_slow", seed, &[("FACTOR", "1.5")])?;
        if ran.named().next().is_some() {
            accused.push(format!("seed {seed}: {}", ran.said()));
        }
    }
    let silent = format!(
        "nobody named in {} of {}",
        seeds() as usize - accused.len(),
        seeds()
    );
    let scenario = format!("all devices 1.5 times as slow: {mode}, seeds: {}", seeds());
    let holds = accused.is_empty();
    accused.insert(0, silent);
    print(AcceptanceRow::new(
        id,
        scenario,
        accused.join("; "),
        "no rank",
        holds,
    ));
    Ok(())
}

/// The value below which this share of the values lies.
pub(super) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}
