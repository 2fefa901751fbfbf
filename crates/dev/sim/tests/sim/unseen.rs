//! Verdicts on jobs whose hosts run ahead of devices that make no marks.

use laggard_sim::{AheadJob, ReadBack, Slow, SlowSpot};
use model::Verdict;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::ahead::{jobs, verdict};

/// Jobs that are tried; `LAGGARD_TEST_JOBS` tries more.
const JOBS: u64 = 200;
/// Share of a step up to which a fault costs nothing to speak of, from which it must be named, and that
/// it may be charged where it costs nothing.
const SILENT_SHARE: f64 = 0.025;
const NAMED_SHARE: f64 = 0.08;
const QUIET_SHARE: f64 = 0.05;
/// Share of jobs of which something else may be said: where read-backs are not seen, costs are upper bounds.
const WRONG_SHARE: f64 = 0.03;
/// How far beyond its true cost a fault may be charged: of the cost, and of a step.
const OFF_RATIO: f64 = 0.15;
const OFF_SHARE: f64 = 0.05;
/// Share of costly jobs whose charge must be within a tenth of what they cost.
const NEAR_SHARE: f64 = 0.65;
/// Where nothing is read back: share of costly jobs of which nothing may be said, that must be charged
/// what they cost or more, and of absorbed faults that may be charged more than so much of a step.
const MISSED_SHARE: f64 = 0.02;
const BOUNDED_SHARE: f64 = 0.9;
const LOUD_SHARE: f64 = 0.10;
const LOUD_JOBS_SHARE: f64 = 0.4;
/// Of hosts that are late where they launch work: share of costly jobs that must be charged most of
/// what they cost, and what most is.
const LAUNCHING_SHARE: f64 = 0.7;
const MOST: f64 = 0.8;

/// A job of four to six ranks whose device makes no marks, one of which is late.
fn any_job(seed: u64, read_back: ReadBack, spot: SlowSpot) -> AheadJob {
    let mut rng = SmallRng::seed_from_u64(seed);
    let base = AheadJob::new(seed);
    let ranks = rng.random_range(4..7);
    let slow = Slow {
        spot,
        rank: Some(rng.random_range(0..ranks)),
        late_s: 0.06 * rng.random::<f64>(),
        since: 0,
        every: 1,
    };
    let mut any = |low: f64, high: f64| low + (high - low) * rng.random::<f64>();
    AheadJob {
        ranks,
        host_s: base.host_s.map(|seconds| seconds * any(0.3, 1.5)),
        device_s: base.device_s.map(|seconds| seconds * any(0.5, 3.0)),
        collective_s: base.collective_s * any(0.2, 4.0),
        noise: any(0.005, 0.05),
        queue: any(10.0, 200.0) as usize,
        read_back,
        slow: vec![slow],
        device_marks: false,
        ..base
    }
}

/// A job with its fault, beside the same without it; times are of a step.
struct Tried {
    sound: Verdict,
    said: Verdict,
    step_s: f64,
    gain_s: f64,
    charged_s: f64,
    /// Whether another rank is named than the late one.
    is_innocent: bool,
}

fn tried(job: &AheadJob) -> Tried {
    let (sound, healthy_s) = verdict(&job.healthy());
    let (said, step_s) = verdict(job);
    let costs_s: f64 = said.incidents.iter().map(|incident| incident.cost_s).sum();
    let rank: Vec<u32> = job.slow[0].rank.into_iter().collect();
    Tried {
        gain_s: step_s - healthy_s,
        charged_s: costs_s / said.job.analysed_steps as f64,
        is_innocent: said.incidents.iter().any(|it| it.subject.ranks != rank),
        sound,
        said,
        step_s,
    }
}

#[test]
fn a_loader_whose_lateness_the_queue_absorbs_is_not_charged_without_device_marks() {
    let (mut wrong, mut absorbed, mut loud, mut costly, mut off) = (Vec::new(), 0, 0, 0, 0);
    let mut ratios = Vec::new();
    for seed in 0..jobs(JOBS) {
        let job = any_job(seed, ReadBack::Every(10), SlowSpot::Data);
        let Tried {
            sound,
            said,
            step_s,
            gain_s,
            charged_s,
            is_innocent,
        } = tried(&job);
        let names_sound = sound
            .incidents
            .iter()
            .any(|it| !it.subject.ranks.is_empty());
        let is_hidden = gain_s < SILENT_SHARE * step_s;
        let is_loud = is_hidden && charged_s > QUIET_SHARE * step_s;
        let is_silent = gain_s >= NAMED_SHARE * step_s && said.incidents.is_empty();
        let is_off = charged_s - gain_s > (OFF_RATIO * gain_s).max(OFF_SHARE * step_s);
        absorbed += u32::from(is_hidden);
        loud += u32::from(is_loud);
        costly += u32::from(gain_s >= NAMED_SHARE * step_s);
        off += u32::from(is_off);
        if gain_s >= NAMED_SHARE * step_s {
            ratios.push(charged_s / gain_s);
        }
        if is_innocent || is_loud || is_silent || is_off || names_sound {
            wrong.push(format!(
                "{seed}: {:.1} ms late, charged {:.1} of {:.1} ms, a step {:.1}, queue {}, innocent {is_innocent}, loud {is_loud}, silent {is_silent}, off {is_off}, cut {}, sound: {:?}",
                job.slow[0].late_s * 1e3,
                charged_s * 1e3,
                gain_s * 1e3,
                step_s * 1e3,
                job.queue,
                said.job.cut,
                sound.incidents.first().map(|it| &it.text),
            ));
        }
    }
    assert!(
        wrong.len() as f64 <= WRONG_SHARE * jobs(JOBS) as f64,
        "{} wrong, {loud} of {absorbed} absorbed are charged, {off} too much, {costly} cost: {wrong:#?}",
        wrong.len()
    );
    let near = ratios.iter().filter(|ratio| (0.9..=1.1).contains(*ratio));
    let near = near.count() as f64 / ratios.len() as f64;
    assert!(near >= NEAR_SHARE, "{near} within a tenth");
}

/// Nothing is read back: only full launch queues hold hosts up.
#[test]
fn who_sets_the_pace_of_a_job_that_never_reads_back_is_charged_what_it_may_cost() {
    let (mut wrong, mut costly, mut bounded, mut absorbed, mut loud) = (Vec::new(), 0, 0, 0, 0);
    let mut silent = 0;
    for seed in 0..jobs(JOBS) {
        let spot = [SlowSpot::Data, SlowSpot::Callback][seed as usize % 2];
        let job = any_job(seed, ReadBack::Never, spot);
        let Tried {
            sound,
            said,
            step_s,
            gain_s,
            charged_s,
            is_innocent,
        } = tried(&job);
        let is_costly = gain_s >= NAMED_SHARE * step_s;
        let is_absorbed = gain_s < SILENT_SHARE * step_s;
        let is_bounded = is_costly && charged_s >= (1.0 - OFF_RATIO) * gain_s;
        costly += u32::from(is_costly);
        bounded += u32::from(is_bounded);
        absorbed += u32::from(is_absorbed);
        loud += u32::from(is_absorbed && charged_s > LOUD_SHARE * step_s);
        silent += u32::from(is_costly && said.incidents.is_empty());
        if is_innocent || !sound.incidents.is_empty() {
            let texts: Vec<&str> = said.incidents.iter().map(|it| it.text.as_str()).collect();
            wrong.push(format!(
                "{seed}: {gain_s:.4} of {step_s:.4} s, rank {:?}: {texts:?}, sound: {:?}",
                job.slow[0].rank,
                sound.incidents.first().map(|it| &it.text)
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let measured = format!(
        "{silent} of {costly} silent, {bounded} charged enough; {loud} of {absorbed} absorbed loud"
    );
    assert!(
        f64::from(silent) <= MISSED_SHARE * f64::from(costly)
            && f64::from(bounded) >= BOUNDED_SHARE * f64::from(costly)
            && f64::from(loud) <= LOUD_JOBS_SHARE * f64::from(absorbed),
        "{measured}"
    );
}

/// Nothing is read back, and a host is late while its device works on what it launches meanwhile.
#[test]
fn who_sets_the_pace_while_it_launches_is_charged_most_of_what_it_costs() {
    let (mut wrong, mut costly, mut charged) = (Vec::new(), 0, 0);
    for seed in 0..jobs(JOBS) {
        let job = any_job(seed, ReadBack::Never, SlowSpot::HostForward);
        let it = tried(&job);
        let is_costly = it.gain_s >= NAMED_SHARE * it.step_s;
        costly += u32::from(is_costly);
        charged += u32::from(is_costly && it.charged_s >= MOST * it.gain_s);
        if it.is_innocent {
            wrong.push(seed);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(
        f64::from(charged) >= LAUNCHING_SHARE * f64::from(costly),
        "{charged} of {costly}"
    );
}
