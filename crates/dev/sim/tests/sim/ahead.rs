//! Verdicts on jobs whose hosts run ahead of their devices, beside what faults really cost.

use std::ops::Range;

use laggard_sim::{AheadJob, ReadBack, Slow, SlowSpot};
use model::{Incident, Pace, Side, Source, Verdict, median};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use verdict::{Job, Settings};

/// Jobs that are tried; `LAGGARD_TEST_JOBS` tries more.
const JOBS: u64 = 300;
/// The same of jobs of two windows, of which it tries one each.
const SHORT_JOBS: u64 = 10_000;
/// Share of these that may be beyond the limits below.
const BEYOND_SHARE: f64 = 0.03;
/// Share of a step that a fault must cost to be named, and up to which it may be.
const NAMED_SHARE: f64 = 0.08;
const SILENT_SHARE: f64 = 0.025;
/// How far off its true cost a fault may be charged: of the cost, and of a step.
const OFF_RATIO: f64 = 0.10;
const OFF_SHARE: f64 = 0.02;
/// The same where the loss is read every tenth step: it may fall between the steps that are sampled.
const OFF_RATIO_OF_FEW: f64 = 0.15;
const OFF_SHARE_OF_FEW: f64 = 0.03;
/// The same where parameters are sharded: who waits for whom in a layer is known less surely.
const OFF_SHARE_SHARDED: f64 = 0.03;
/// Share of jobs of two or three ranks without device marks in which an innocent may be named: by
/// chance, hosts that do not meet seem to.
const FEW_WRONG_SHARE: f64 = 0.01;

pub(crate) fn verdict(job: &AheadJob) -> (Verdict, f64) {
    let run = job.run();
    let mut analysis = Job::new("ahead", Source::Run, Settings::default());
    for input in run.inputs {
        analysis.take(input);
    }
    analysis.finish();
    (analysis.verdict(), run.step_s)
}

/// How many jobs a test tries, if nothing else is asked for.
pub(crate) fn jobs(usual: u64) -> u64 {
    let asked = std::env::var("LAGGARD_TEST_JOBS").ok();
    asked.and_then(|jobs| jobs.parse().ok()).unwrap_or(usual)
}

fn stage_of(spot: SlowSpot) -> &'static [&'static str] {
    match spot {
        SlowSpot::Data => &["data.next_wait"],
        SlowSpot::HostForward | SlowSpot::DeviceForward => &["model.fwd_loss_cpu_wall"],
        SlowSpot::Callback => &["callbacks.cpu_wall"],
        SlowSpot::Launches => &["model.fwd_loss_cpu_wall", "model.backward_cpu_wall"],
        SlowSpot::DeviceBackward => &["model.backward_cpu_wall"],
        SlowSpot::DeviceOptimizer => &["optim.step_cpu_wall"],
    }
}

/// A job of any shape, without a fault.
pub(crate) fn any_job(seed: u64, rng: &mut SmallRng) -> AheadJob {
    let base = AheadJob::new(seed);
    let mut any = |low: f64, high: f64| low + (high - low) * rng.random::<f64>();
    let host_s = base.host_s.map(|seconds| seconds * any(0.3, 1.5));
    let device_s = base.device_s.map(|seconds| seconds * any(0.5, 3.0));
    let collective_s = base.collective_s * any(0.2, 4.0);
    let noise = any(0.005, 0.05);
    let read_back = match rng.random_range(0..6) {
        0 => ReadBack::Every(1),
        1 => ReadBack::BeforeOptimizer,
        2 => ReadBack::InOptimizer,
        3 => ReadBack::BeforeBackward,
        4 => ReadBack::Every(10),
        _ => ReadBack::Never,
    };
    AheadJob {
        ranks: rng.random_range(2..7),
        queue: rng.random_range(10..100),
        host_s,
        device_s,
        collective_s,
        noise,
        read_back,
        ..base
    }
}

/// What is wrong with what is said, if anything.
fn wrong(job: &AheadJob, said: &Verdict, gain_s: f64, step_s: f64) -> Option<String> {
    let [slow] = &job.slow[..] else { return None };
    let rank = slow.rank.into_iter().collect::<Vec<u32>>();
    let innocent =
        |incident: &&Incident| !incident.subject.ranks.is_empty() && incident.subject.ranks != rank;
    if let Some(incident) = said.incidents.iter().find(innocent) {
        return Some(format!("innocent: {}", incident.text));
    }
    let costs_s = said.incidents.iter().map(|one| one.cost_s);
    let charged_s = costs_s.sum::<f64>() / said.job.analysed_steps as f64;
    if gain_s < SILENT_SHARE * step_s {
        let is_loud = charged_s > 2.0 * SILENT_SHARE * step_s;
        return is_loud.then(|| format!("costs nothing: {}", said.incidents[0].text));
    }
    if gain_s < NAMED_SHARE * step_s {
        return None;
    }
    let Some(first) = said.incidents.first() else {
        return Some("silent".to_owned());
    };
    let stage = first.subject.stage.as_deref().unwrap_or("");
    let side = if slow.spot.is_device() {
        Side::Device
    } else {
        Side::Host
    };
    let is_right = first.subject.ranks == rank
        && stage_of(slow.spot).contains(&stage)
        && first.subject.side.is_none_or(|known| known == side);
    if !is_right {
        return Some(format!("wrong: {}", first.text));
    }
    let off_s = (charged_s - gain_s).abs();
    let (ratio, share) = match job.read_back {
        _ if job.sharded => (OFF_RATIO, OFF_SHARE_SHARDED),
        ReadBack::Every(10) => (OFF_RATIO_OF_FEW, OFF_SHARE_OF_FEW),
        _ => (OFF_RATIO, OFF_SHARE),
    };
    let is_off = off_s > (ratio * gain_s).max(share * step_s);
    is_off.then(|| format!("charged {:.1} ms: {}", charged_s * 1e3, first.text))
}

/// The steps that a job's devices are asked to mark, and whether the last verdict names rank 1.
fn asked_for(job: &AheadJob) -> (Vec<Range<u32>>, bool) {
    let mut analysis = Job::new("ahead", Source::Run, Settings::default());
    let mut asked = Vec::new();
    for input in job.run().inputs {
        analysis.take(input);
        if let Some(now) = analysis.last_at() {
            asked.extend(analysis.wanted_device_steps(now, 0.1));
        }
    }
    analysis.finish();
    let incidents = analysis.verdict().incidents;
    (
        asked,
        incidents
            .iter()
            .any(|incident| incident.subject.ranks == [1]),
    )
}

#[test]
fn devices_are_asked_to_mark_more_steps_once_something_is_suspected() {
    let healthy = AheadJob {
        steps: 400,
        ..AheadJob::new(7)
    };
    assert_eq!(asked_for(&healthy), (Vec::new(), false));
    let slow = Slow {
        spot: SlowSpot::DeviceForward,
        rank: Some(1),
        late_s: 0.02,
        since: 200,
        every: 1,
    };
    let job = AheadJob {
        slow: vec![slow],
        ..healthy
    };
    let (asked, named) = asked_for(&job);
    assert!(named);
    let [first, ..] = &asked[..] else {
        panic!("nothing asked for")
    };
    assert!(
        (205..270).contains(&first.start) && first.len() == 32,
        "{asked:?}"
    );
}

#[test]
fn a_fault_is_named_if_and_only_if_it_costs_and_charged_what_it_costs() {
    check_jobs(false);
}

#[test]
fn where_parameters_are_sharded_too() {
    check_jobs(true);
}

/// Jobs of two windows, with one fault or, one in five, without: no innocent is named and no healthy job has
/// an incident; of the others few are beyond the limits, as few steps are sampled.
#[test]
fn of_short_jobs_none_accuses_an_innocent() {
    let all = jobs(SHORT_JOBS);
    let workers = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
    let of_worker = |worker: u64| {
        let mut beyond = Vec::new();
        for seed in (worker..all).step_by(workers as usize) {
            beyond.extend(short_job(seed).map(|what| format!("{seed}: {what}")));
        }
        beyond
    };
    let beyond: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..workers)
            .map(|worker| scope.spawn(move || of_worker(worker)))
            .collect();
        let found = running.into_iter().map(|it| it.join().expect("a worker"));
        found.flatten().collect()
    });
    let accusations: Vec<&String> = beyond
        .iter()
        .filter(|it| it.contains("innocent") || it.contains("healthy"))
        .collect();
    assert!(accusations.is_empty(), "{accusations:#?}");
    assert!(
        beyond.len() as f64 <= BEYOND_SHARE * all as f64,
        "{} of {all}: {beyond:#?}",
        beyond.len()
    );
}

/// What is wrong with what is said of a job of this seed.
fn short_job(seed: u64) -> Option<String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let healthy = AheadJob {
        steps: 70,
        sharded: seed % 2 == 1,
        ..any_job(seed, &mut rng)
    };
    let slow = Slow {
        spot: SlowSpot::ALL[rng.random_range(0..SlowSpot::ALL.len())],
        rank: Some(rng.random_range(0..healthy.ranks)),
        late_s: 0.06 * rng.random::<f64>(),
        since: 0,
        every: 1,
    };
    if seed.is_multiple_of(5) {
        let (said, _) = verdict(&healthy);
        let incident = said.incidents.first();
        return incident.map(|it| format!("healthy {:?}: {}", healthy.read_back, it.text));
    }
    let healthy_s = healthy.run().step_s;
    let job = AheadJob {
        slow: vec![slow],
        ..healthy
    };
    let (said, step_s) = verdict(&job);
    let what = wrong(&job, &said, step_s - healthy_s, step_s)?;
    Some(format!(
        "{:?} {:?} {:.1} ms of {:.1} ms: {what}",
        job.read_back,
        job.slow[0].spot,
        job.slow[0].late_s * 1e3,
        step_s * 1e3
    ))
}

fn check_jobs(sharded: bool) {
    let mut failures = Vec::new();
    let mut healthy_said = Vec::new();
    for seed in 0..jobs(JOBS) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let healthy = AheadJob {
            sharded,
            ..any_job(seed, &mut rng)
        };
        let spot = SlowSpot::ALL[rng.random_range(0..SlowSpot::ALL.len())];
        let late_s = 0.06 * rng.random::<f64>();
        let rank = Some(rng.random_range(0..healthy.ranks));
        let slow = Slow {
            spot,
            rank,
            late_s,
            since: 0,
            every: 1,
        };
        let (said, healthy_s) = verdict(&healthy);
        if let Some(incident) = said.incidents.first() {
            healthy_said.push(format!("{seed} {:?}: {}", healthy.read_back, incident.text));
        }
        let job = AheadJob {
            slow: vec![slow],
            ..healthy.clone()
        };
        let (said, step_s) = verdict(&job);
        let gain_s = step_s - healthy_s;
        if let Some(what) = wrong(&job, &said, gain_s, step_s) {
            failures.push(format!(
                "{seed}: {:?} {spot:?} {:.1} ms on rank {rank:?} of {}, {:.1} of {:.1} ms: {what}",
                healthy.read_back,
                late_s * 1e3,
                healthy.ranks,
                gain_s * 1e3,
                step_s * 1e3,
            ));
        }
    }
    assert!(healthy_said.is_empty(), "healthy: {healthy_said:#?}");
    assert!(failures.is_empty(), "{}: {failures:#?}", failures.len());
}

/// Wherever the loss is read, and however far hosts may run ahead, the same rank is named in the same stage, as
/// long as its fault costs enough.
#[test]
fn the_place_of_the_read_back_and_the_length_of_the_queue_change_no_culprit() {
    let mut others = Vec::new();
    for seed in 0..jobs(JOBS / 12) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let any = any_job(seed, &mut rng);
        let slow = Slow {
            spot: SlowSpot::ALL[rng.random_range(0..SlowSpot::ALL.len())],
            rank: Some(rng.random_range(0..any.ranks)),
            late_s: 0.02 + 0.04 * rng.random::<f64>(),
            since: 0,
            every: 1,
        };
        let read_backs = [
            ReadBack::Every(1),
            ReadBack::BeforeOptimizer,
            ReadBack::InOptimizer,
            ReadBack::BeforeBackward,
            ReadBack::Every(10),
            ReadBack::Never,
        ];
        for (read_back, queue) in read_backs.into_iter().flat_map(|it| [(it, 10), (it, 100)]) {
            let healthy = AheadJob {
                read_back,
                queue,
                ..any.clone()
            };
            let healthy_s = healthy.run().step_s;
            let (said, step_s) = verdict(&AheadJob {
                slow: vec![slow],
                ..healthy
            });
            if step_s - healthy_s < NAMED_SHARE * step_s {
                continue;
            }
            let is_it = said.incidents.first().is_some_and(|it| {
                let stage = it.subject.stage.as_deref().unwrap_or_default();
                it.subject.ranks.iter().copied().eq(slow.rank)
                    && stage_of(slow.spot).contains(&stage)
            });
            let texts = said.incidents.iter().map(|it| it.text.as_str());
            let texts = texts.collect::<Vec<_>>().join(" / ");
            others.extend(
                (!is_it).then(|| format!("{seed} {read_back:?} {queue} {slow:?}: {texts}")),
            );
        }
    }
    assert!(others.is_empty(), "{}: {others:#?}", others.len());
}

/// Without device marks two or three hosts that run ahead show less: who waits may look late.
#[test]
fn of_few_hosts_that_run_ahead_unseen_hardly_an_innocent_is_named() {
    let (mut tried, mut innocent, mut healthy, mut costly) = (0, Vec::new(), Vec::new(), 0);
    for seed in 0..jobs(JOBS / 2) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let any = any_job(seed, &mut rng);
        let spot = SlowSpot::ALL[rng.random_range(0..SlowSpot::ALL.len())];
        let late_s = 0.06 * rng.random::<f64>();
        for ranks in [2, 3] {
            tried += 1;
            let sound = AheadJob {
                device_marks: false,
                ranks,
                ..any.clone()
            };
            let (said, sound_s) = verdict(&sound);
            assert_eq!(said.incidents, [], "{seed}, {ranks} ranks");
            let rank = rng.random_range(0..ranks);
            let slow = Slow {
                spot,
                rank: Some(rank),
                late_s,
                since: 0,
                every: 1,
            };
            let (said, step_s) = verdict(&AheadJob {
                slow: vec![slow],
                ..sound.clone()
            });
            let name = format!("{seed} of {ranks}: {spot:?} {:?}", sound.read_back);
            let named = |it: &&Incident| !it.subject.ranks.is_empty();
            let mut named = said.incidents.iter().filter(named);
            innocent.extend(
                named
                    .find(|it| it.subject.ranks != [rank])
                    .map(|it| format!("{name}: {}", it.text)),
            );
            let costs = step_s - sound_s >= NAMED_SHARE * step_s;
            costly += u32::from(costs);
            let looks_healthy = said.incidents.is_empty()
                && said.job.ambiguous_steps == 0
                && !said.job.hosts_run_ahead
                && said.job.device_wait_share.is_none();
            healthy.extend((costs && looks_healthy).then_some(name));
        }
    }
    assert!(
        innocent.len() as f64 <= FEW_WRONG_SHARE * f64::from(tried),
        "{} of {tried} name an innocent: {innocent:#?}",
        innocent.len()
    );
    assert!(
        healthy.is_empty(),
        "{} of {costly}: {healthy:#?}",
        healthy.len()
    );
}

/// A rank whose host and whose device are slow has two faults, each of which is named.
#[test]
fn a_slow_host_and_a_slow_device_of_one_rank_are_two_faults() {
    let mut failures = Vec::new();
    let mut both_cost = 0;
    for seed in 0..jobs(JOBS / 2) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let healthy = any_job(seed, &mut rng);
        let (on_host, on_device): (Vec<SlowSpot>, Vec<SlowSpot>) = SlowSpot::ALL
            .into_iter()
            .partition(|spot| !spot.is_device());
        let rank = rng.random_range(0..healthy.ranks);
        let slow = [on_host, on_device].map(|spots| Slow {
            spot: spots[rng.random_range(0..spots.len())],
            rank: Some(rank),
            late_s: 0.01 + 0.05 * rng.random::<f64>(),
            since: 0,
            every: 1,
        });
        let with = |slow: &[Slow]| AheadJob {
            slow: slow.to_vec(),
            ..healthy.clone()
        };
        // A stage of a rank has one lateness, whose larger part decides whose it is.
        if stage_of(slow[0].spot)
            .iter()
            .any(|stage| stage_of(slow[1].spot).contains(stage))
        {
            continue;
        }
        let (said, step_s) = verdict(&with(&slow));
        let added_s = [1, 0].map(|left| step_s - with(&slow[left..=left]).run().step_s);
        let gain_s = step_s - healthy.run().step_s;
        let name = format!(
            "{seed}: {:?} {:?} and {:?} on rank {rank} of {}, {:.1} and {:.1}, both {:.1} of {:.1} ms",
            healthy.read_back,
            slow[0].spot,
            slow[1].spot,
            healthy.ranks,
            added_s[0] * 1e3,
            added_s[1] * 1e3,
            gain_s * 1e3,
            step_s * 1e3,
        );
        let texts = || {
            let texts = said.incidents.iter().map(|it| it.text.clone());
            texts.collect::<Vec<String>>()
        };
        let mut named = said
            .incidents
            .iter()
            .filter(|it| !it.subject.ranks.is_empty());
        if named.any(|it| it.subject.ranks != [rank]) {
            failures.push(format!("{name}: innocent: {:?}", texts()));
        }
        if added_s
            .iter()
            .any(|added_s| *added_s < NAMED_SHARE * step_s)
        {
            continue;
        }
        both_cost += 1;
        let is_named = |slow: &Slow| {
            let side = if slow.spot.is_device() {
                Side::Device
            } else {
                Side::Host
            };
            said.incidents.iter().any(|it| {
                let stage = it.subject.stage.as_deref().unwrap_or_default();
                it.subject.side == Some(side) && stage_of(slow.spot).contains(&stage)
            })
        };
        if !slow.iter().all(is_named) {
            failures.push(format!("{name}: {:?}", texts()));
        }
    }
    assert!(both_cost > 0);
    assert!(
        failures.is_empty(),
        "{} of {both_cost}: {failures:#?}",
        failures.len()
    );
}

/// Jobs so short that their fault begins inside their first window: only steps behind its begin pay for
/// it, of which more or fewer are sampled than of those before.
#[test]
fn what_begins_inside_a_window_costs_what_the_steps_behind_it_lose() {
    let (mut charged, mut beyond) = (Vec::new(), Vec::new());
    for seed in 0..jobs(JOBS) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let healthy = AheadJob {
            steps: 65,
            read_back: ReadBack::Every(1),
            ..any_job(seed, &mut rng)
        };
        let slow = Slow {
            spot: SlowSpot::ALL[rng.random_range(0..SlowSpot::ALL.len())],
            rank: Some(rng.random_range(0..healthy.ranks)),
            late_s: 0.01 + 0.05 * rng.random::<f64>(),
            since: rng.random_range(15..40),
            every: 1,
        };
        let healthy_s = healthy.run().step_s;
        let (said, step_s) = verdict(&AheadJob {
            slow: vec![slow],
            ..healthy
        });
        let gain_s = step_s - healthy_s;
        if gain_s < NAMED_SHARE * step_s || said.incidents.is_empty() {
            continue;
        }
        let costs_s = said.incidents.iter().map(|one| one.cost_s);
        let charged_s = costs_s.sum::<f64>() / said.job.analysed_steps as f64;
        charged.push(charged_s / gain_s);
        if (charged_s / gain_s - 1.0).abs() > 0.15 {
            let text = &said.incidents[0].text;
            beyond.push(format!("{seed}: {charged_s:.4} of {gain_s:.4} s: {text}"));
        }
    }
    let middle = model::median(&mut charged).unwrap_or_default();
    assert!((middle - 1.0).abs() < 0.05, "{middle} of {}", charged.len());
    assert!(beyond.len() * 100 <= charged.len(), "{beyond:#?}");
}

/// Hosts that read their loss back in every tenth step wait there for their devices, and for the late
/// rank. The share of the fault is that of the time that steps take, and stages are the devices'.
#[test]
fn shares_are_parts_of_what_steps_take() {
    let healthy = AheadJob {
        read_back: ReadBack::Every(10),
        steps: 200,
        ..AheadJob::new(3)
    };
    let (_, healthy_s) = verdict(&healthy);
    let slow = Slow {
        spot: SlowSpot::Data,
        rank: Some(1),
        late_s: healthy_s,
        since: 0,
        every: 1,
    };
    let (said, step_s) = verdict(&AheadJob {
        slow: vec![slow],
        ..healthy
    });
    let took_s = said.job.exposed_s / said.job.analysed_steps as f64;
    assert!((took_s / step_s - 1.0).abs() < 0.05, "{took_s} {step_s}");
    let lost = (step_s - healthy_s) / step_s;
    let [incident] = &said.incidents[..] else {
        panic!("{:?}", said.incidents)
    };
    assert!((incident.cost_share - lost).abs() < 0.05, "{incident:?}");
    let share = |name| {
        let mut stages = said.stages.iter();
        stages.find(|stage| stage.name == name).map(|it| it.share)
    };
    assert!(said.job.stages_on_devices);
    let [data, callbacks] = ["data.next_wait", "callbacks.cpu_wall"].map(share);
    assert!(
        (data.unwrap_or_default() - lost).abs() < 0.1,
        "{data:?} {lost}"
    );
    assert!(callbacks.unwrap_or_default() < 0.1, "{callbacks:?}");
}

/// A host is late in its callbacks and in its loader. Where the loss is read, in every tenth step, its device
/// waits for the first; in the others it still has work meanwhile, and waits for the second, for longer.
#[test]
fn two_stages_in_which_a_host_is_late_are_both_named_though_one_hides_the_other() {
    let late = |spot, late_s| Slow {
        spot,
        rank: Some(2),
        late_s,
        since: 0,
        every: 1,
    };
    let both = [late(SlowSpot::Data, 0.04), late(SlowSpot::Callback, 0.02)];
    let with = |slow: &[Slow]| {
        verdict(&AheadJob {
            ranks: 4,
            steps: 70,
            read_back: ReadBack::Every(10),
            slow: slow.to_vec(),
            ..AheadJob::new(5)
        })
    };
    let (_, healthy_s) = with(&[]);
    let (said, step_s) = with(&both);
    let named = said.incidents.iter().map(|it| {
        let stage = it.subject.stage.as_deref().unwrap_or_default();
        (&it.subject.ranks[..], stage)
    });
    let named: Vec<(&[u32], &str)> = named.collect();
    for stage in ["data.next_wait", "callbacks.cpu_wall"] {
        assert!(named.contains(&(&[2][..], stage)), "{named:?}");
    }
    let costs_s: f64 = said.incidents.iter().map(|one| one.cost_s).sum();
    let charged = costs_s / said.job.analysed_steps as f64 / (step_s - healthy_s);
    assert!((charged - 1.0).abs() < 0.1, "{charged}");
}

/// A rank pauses in every 25th step, in the stage in which all read their loss back in every tenth:
/// the others wait for it there, and at full queues.
#[test]
fn a_pause_is_told_from_the_waits_for_it() {
    let (mut wrong, mut silent, mut charged) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..jobs(JOBS / 4) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let healthy = AheadJob {
            read_back: ReadBack::Every(10),
            steps: 300,
            ..any_job(seed, &mut rng)
        };
        let healthy_s = healthy.run().step_s;
        let rank = rng.random_range(0..healthy.ranks);
        let slow = Slow {
            spot: SlowSpot::Callback,
            rank: Some(rank),
            late_s: healthy_s * (4.0 + 8.0 * rng.random::<f64>()),
            since: 10 + rng.random_range(0..10),
            every: 25,
        };
        let (said, step_s) = verdict(&AheadJob {
            slow: vec![slow],
            ..healthy
        });
        let is_right = |it: &Incident| {
            it.subject.ranks == [rank]
                && it.subject.stage.as_deref() == Some(stage_of(slow.spot)[0])
                && it.pace == Pace::Every { steps: 25 }
        };
        if let Some(other) = said.incidents.iter().find(|it| !is_right(it)) {
            wrong.push(format!("{seed}, rank {rank}: {}", other.text));
        }
        let gain_s = step_s - healthy_s;
        if gain_s < NAMED_SHARE * step_s {
            continue;
        }
        let cost_s = said.incidents.iter().map(|it| it.cost_s).sum::<f64>();
        charged.push(cost_s / said.job.analysed_steps as f64 / gain_s);
        silent.extend(said.incidents.is_empty().then_some(seed));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let costly = charged.len();
    // Few of its strikes are sampled, and a queue takes more of one than of another.
    assert!(silent.len() * 20 <= costly, "{silent:?} of {costly}");
    let median = median(&mut charged).unwrap_or_default();
    assert!((0.85..1.1).contains(&median), "{charged:?}");
}
