use model::{Event, PipelineBlock, RankNs};
use proptest::prelude::*;

use super::*;
use crate::{Graph, Scheme, Timing, mark, place};

const MS: u64 = 1_000_000;
const RANKS: u32 = 4;
const MICROBATCHES: u32 = 4;

/// Works sampled steps of a 1F1B pipeline off: hosts launch blocks one after another, devices do
/// the work. What is said by the devices' clocks, and by the hosts'. `extra` is what a block of a
/// rank takes longer in a step, in milliseconds, and for how many of these its host holds its
/// device up, as it takes as much longer to launch the block.
fn watch(
    steps: impl IntoIterator<Item = u32>,
    extra: impl Fn(u32, u32, PipelineBlock) -> (u64, u64),
) -> [Vec<HeldUp>; 2] {
    watch_launches(steps, |step, rank, block| {
        let (took_ms, held_ms) = extra(step, rank, block);
        [took_ms, held_ms, held_ms]
    })
}

/// The same with what hosts take longer to launch a block, which queues may hide.
fn watch_launches(
    steps: impl IntoIterator<Item = u32>,
    extra: impl Fn(u32, u32, PipelineBlock) -> [u64; 3],
) -> [Vec<HeldUp>; 2] {
    watched(steps, extra).0
}

/// The same with who watches devices.
fn watched(
    steps: impl IntoIterator<Item = u32>,
    extra: impl Fn(u32, u32, PipelineBlock) -> [u64; 3],
) -> ([Vec<HeldUp>; 2], DeviceWatch, Watch) {
    let settings = ScheduleSettings::default();
    let mut hosts = Watch::new(settings.clone());
    let mut devices = DeviceWatch::new(settings);
    let plan = Scheme::OneForwardOneBackward.plan(RANKS, MICROBATCHES);
    let graph = Graph::new(plan).unwrap();
    let mut found = [Vec::new(), Vec::new()];
    for step in steps {
        let took_ms = |node: usize| {
            let (rank, block) = graph.block(node);
            let usual_ms = if block.pass == Pass::Forward { 10 } else { 20 };
            // Stages are not alike: the last one has the loss.
            let [more_ms, ..] = extra(step, rank as u32, block);
            usual_ms + u64::from(rank == 3) * 5 + more_ms
        };
        let durations_s: Vec<f64> = (0..graph.nodes())
            .map(|node| took_ms(node) as f64 * 1e-3)
            .collect();
        let mut timing = Timing::default();
        graph.time(&durations_s, &mut timing);
        for rank in 0..RANKS {
            let mut blocks = Vec::new();
            let (mut held_ms, mut late_ms) = (0, 0);
            let first = graph.nodes_of(rank as usize).start;
            for node in graph.nodes_of(rank as usize) {
                let (_, block) = graph.block(node);
                let place = place(block, rank, RANKS);
                let end_ms = (timing.ends_s[node] * 1e3).round() as u64;
                let at = |device_ms: u64, held_ms: u64, host_ms: u64| BlockTime {
                    host: RankNs((u64::from(step) * 1000 + host_ms) * MS),
                    device: RankNs((u64::from(step) * 1000 + device_ms) * MS),
                    host_bound_least: RankNs(held_ms * MS),
                    host_bound_most: RankNs(held_ms * MS),
                };
                // A launch takes a millisecond, and as long is what lies between two.
                let launched_ms = 2 * (node - first) as u64 + late_ms;
                let begin = at(end_ms - took_ms(node), held_ms, launched_ms);
                let [_, more_ms, launch_ms] = extra(step, rank, block);
                held_ms += more_ms;
                late_ms += launch_ms;
                let end = at(end_ms, held_ms, launched_ms + 1 + launch_ms);
                found[1]
                    .extend(hosts.mark(rank, &mark(step, begin.host.0, Event::BlockBegin(place))));
                found[1].extend(hosts.mark(rank, &mark(step, end.host.0, Event::BlockEnd(place))));
                blocks.push(DeviceBlock {
                    step,
                    place,
                    begin,
                    end,
                });
            }
            found[0].extend(devices.take(rank, &blocks, &hosts));
        }
    }
    assert!(hosts.is_ahead());
    (found, devices, hosts)
}

fn sampled() -> impl Iterator<Item = u32> {
    // Runs of steps with others between them.
    (0..80).filter(|step| step % 8 < 4)
}

#[test]
fn a_healthy_pipeline_is_left_alone_on_either_clock() {
    assert_eq!(watch(sampled(), |_, _, _| (0, 0)), [[], []]);
}

#[test]
fn a_slow_device_is_named_and_no_host_that_launches() {
    let [devices, hosts] = watch(sampled(), |step, rank, block| {
        let is_slow = step >= 40 && rank == 2 && block.pass == Pass::Forward;
        (u64::from(is_slow) * 20, 0)
    });
    assert_eq!(hosts, []);
    let steps: Vec<u32> = devices.iter().map(|held| held.step).collect();
    assert_eq!(
        steps,
        sampled().filter(|step| *step >= 40).collect::<Vec<_>>()
    );
    for held in &devices {
        // Of what four microbatches take longer the last stage, which is the slowest, hides half.
        assert!((held.lost_s - 0.04).abs() < 1e-6, "{held:?}");
        // What is usual stays what it was before, however long it lasts.
        let longer_s = held.took_s - held.usual_s;
        assert!((longer_s - held.lost_s).abs() < 1e-6, "{held:?}");
        for (rank, slow) in &held.causes {
            assert_eq!((*rank, slow.block.pass), (2, Pass::Forward));
            assert_eq!(slow.host_s, Some([0.0, 0.0]));
        }
    }
}

#[test]
fn a_host_that_holds_its_device_up_is_distinguished_from_it() {
    let [devices, _] = watch(sampled(), |step, rank, block| {
        let is_slow = step >= 40 && rank == 1 && block.microbatch == 2;
        if is_slow { (60, 56) } else { (0, 0) }
    });
    let causes: Vec<&(u32, crate::SlowBlock)> =
        devices.iter().flat_map(|held| &held.causes).collect();
    assert!(!causes.is_empty());
    for (rank, slow) in causes {
        let [least_s, most_s] = slow.host_s.unwrap();
        assert_eq!(*rank, 1);
        assert!(least_s > 0.055 && most_s < 0.057, "{slow:?}");
    }
}

/// What is slow from the first step on may be the stage's work: no rank is named for it.
#[test]
fn devices_that_always_took_longer_than_others_are_unlike_them() {
    let slow = |block: PipelineBlock| u64::from(block.pass == Pass::Forward) * 10;
    let (found, devices, hosts) = watched(sampled(), |_, rank, block| {
        [u64::from(rank == 1) * slow(block), 0, 0]
    });
    assert_eq!(found, [[], []]);
    let unlike = |rank, side, took_s, others_s| UnlikeStage {
        rank,
        pass: Pass::Forward,
        side,
        took_s,
        others_s,
    };
    // Four microbatches of 20 ms instead of 10. The last stage has more to do, and looks
    // like a slow device.
    let of_loss = [
        unlike(3, Side::Device, 0.06, 0.04),
        UnlikeStage {
            pass: Pass::Backward,
            ..unlike(3, Side::Device, 0.1, 0.08)
        },
    ];
    let but_loss = |devices: &DeviceWatch, hosts: &Watch| {
        let mut found = devices
            .unlike(0.05, hosts)
            .into_iter()
            .map(rounded)
            .collect::<Vec<_>>();
        found.retain(|it| !of_loss.contains(it));
        found
    };
    assert_eq!(
        but_loss(&devices, &hosts),
        [unlike(1, Side::Device, 0.08, 0.04)]
    );
    let (found, devices, hosts) = watched(sampled(), |_, rank, block| {
        [u64::from(rank == 1) * slow(block); 3]
    });
    assert_eq!(found, [[], []]);
    assert_eq!(
        but_loss(&devices, &hosts),
        [unlike(1, Side::Host, 0.04, 0.0)]
    );
    // A device that waits for a host that does not take longer may do so for many reasons.
    let (_, devices, hosts) = watched(sampled(), |_, rank, block| {
        let held_ms = u64::from(rank == 1) * slow(block);
        [held_ms, held_ms, 0]
    });
    assert_eq!(but_loss(&devices, &hosts), []);
    let (_, devices, hosts) = watched(sampled(), |_, _, _| [0; 3]);
    assert_eq!(but_loss(&devices, &hosts), []);
}

fn rounded(unlike: UnlikeStage) -> UnlikeStage {
    let [took_s, others_s] =
        [unlike.took_s, unlike.others_s].map(|seconds| (seconds * 1e3).round() * 1e-3);
    UnlikeStage {
        took_s,
        others_s,
        ..unlike
    }
}

/// Hosts wait at full queues where they launch backward passes, in some steps, for longer than rank 2
/// takes in its forward passes.
#[test]
fn a_host_that_is_late_in_a_pass_is_named_whatever_launches_of_another_wait() {
    let [devices, _] = watch_launches(sampled(), |step, rank, block| {
        if block.pass == Pass::Backward {
            return [0, 0, u64::from((step + rank) % 3 == 0) * 30];
        }
        let late_ms = u64::from(step >= 40 && rank == 2) * 20;
        [late_ms, late_ms, late_ms]
    });
    let named = devices.iter().flat_map(|held| &held.causes);
    let named: BTreeSet<u32> = named.map(|(rank, _)| *rank).collect();
    assert_eq!(named, BTreeSet::from([2]));
}

#[test]
fn what_is_slow_everywhere_is_nobodys_fault() {
    let three_times = |block: PipelineBlock| match block.pass {
        Pass::Forward => 20,
        _ => 40,
    };
    // As long for each block is most for the shortest.
    for longer_ms in [three_times, |_| 20] {
        let [devices, _] = watch(sampled(), |step, _, block| {
            (if step >= 40 { longer_ms(block) } else { 0 }, 0)
        });
        assert!(
            devices.iter().all(|held| held.causes.is_empty()),
            "{devices:?}"
        );
    }
}

#[test]
fn a_device_that_is_slower_by_less_than_a_block_shows_is_named_once_it_stays_so() {
    let slower = |until: u32| {
        let [devices, _] = watch(sampled(), move |step, rank, block| {
            let is_slow = (40..until).contains(&step) && rank == 2 && block.pass == Pass::Backward;
            (u64::from(is_slow) * 6, 0)
        });
        devices
    };
    // Three steps are a hiccup.
    assert_eq!(slower(43), []);
    let devices = slower(80);
    let steps: Vec<u32> = devices.iter().map(|held| held.step).collect();
    assert_eq!(
        steps,
        sampled().filter(|step| *step >= 40).collect::<Vec<_>>()
    );
    for held in &devices {
        // Four microbatches, of which the slowest stage hides what they take less than its own.
        assert!(held.lost_s > 0.005 && held.lost_s < 0.025, "{held:?}");
        for (rank, slow) in &held.causes {
            assert_eq!((*rank, slow.block.pass), (2, Pass::Backward));
            assert!((slow.excess_s() - 0.006).abs() < 1e-6, "{slow:?}");
        }
    }
}

#[test]
fn what_everybody_is_slower_by_is_nobodys_fault() {
    let [devices, _] = watch(sampled(), |step, rank, block| {
        let usual_ms = if block.pass == Pass::Forward { 10 } else { 20 } + u64::from(rank == 3) * 5;
        (u64::from(step >= 40) * usual_ms * 3 / 10, 0)
    });
    assert_eq!(devices, []);
}

/// A machine whose hosts lack cores in half of the steps: each takes up to 60 ms longer to launch
/// blocks. The last stage has nothing in its queue, so that its device waits; the others hide it.
fn without_cores(seed: u64, step: u32, rank: u32, block: PipelineBlock) -> [u64; 3] {
    let is_busy = noise_ms(seed, step, rank, block, 1) == 1;
    let launch_ms = u64::from(is_busy) * noise_ms(!seed, step, rank, block, 20);
    let held_ms = if rank + 1 == RANKS { launch_ms } else { 0 };
    [held_ms, held_ms, launch_ms]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_last_stage_is_not_to_blame_for_hosts_that_all_lack_cores(seed: u64) {
        let [devices, _] = watch_launches(sampled(), |step, rank, block| {
            without_cores(seed, step, rank, block)
        });
        let struck = devices.iter().filter(|held| !held.causes.is_empty());
        prop_assert!(struck.clone().count() < 3, "{:?}", struck.collect::<Vec<_>>());
    }

    #[test]
    fn a_slow_device_is_named_beside_hosts_that_lack_cores(seed: u64, slow_rank in 0..RANKS) {
        let [devices, _] = watch_launches(sampled(), |step, rank, block| {
            let [more_ms, held_ms, launch_ms] = without_cores(seed, step, rank, block);
            let is_slow = step >= 40 && rank == slow_rank;
            [more_ms + u64::from(is_slow) * 30, held_ms, launch_ms]
        });
        let of_rank = |held: &&HeldUp| held.causes.iter().any(|(rank, _)| *rank == slow_rank);
        let struck = devices.iter().filter(of_rank);
        prop_assert!(struck.count() >= 8, "{:?}", devices);
        let others = devices.iter().filter(|held| {
            held.causes.iter().any(|(rank, _)| *rank != slow_rank)
        });
        prop_assert!(others.count() < 3, "{:?}", devices);
    }
}

#[test]
fn a_step_that_one_rank_has_not_reported_is_passed_over() {
    let settings = ScheduleSettings::default();
    let (mut hosts, mut devices) = (Watch::new(settings.clone()), DeviceWatch::new(settings));
    let time = |ms: u64| BlockTime {
        host: RankNs(ms * MS),
        device: RankNs(ms * MS),
        host_bound_least: RankNs(0),
        host_bound_most: RankNs(0),
    };
    for step in 0..200_u32 {
        for rank in 0..2 {
            let place = BlockPlace {
                pass: Pass::Forward,
                stage: rank,
                microbatch: 0,
                stages: 2,
                first_rank: 0,
            };
            let at_ms = u64::from(step) * 100 + u64::from(rank) * 10;
            hosts.mark(rank, &mark(step, at_ms * MS, Event::BlockBegin(place)));
            hosts.mark(rank, &mark(step, (at_ms + 10) * MS, Event::BlockEnd(place)));
            let (begin, end) = (time(at_ms), time(at_ms + 10));
            let block = DeviceBlock {
                step,
                place,
                begin,
                end,
            };
            let is_lost = rank == 1 && (20..120).contains(&step);
            let blocks = if is_lost { &[][..] } else { &[block] };
            assert_eq!(devices.take(rank, blocks, &hosts), []);
        }
        assert!(devices.waiting.len() <= MAX_WAITING);
    }
    let steps: Vec<u32> = (1..20).chain(120..200).collect();
    // The pipeline is known once both ranks have worked.
    assert_eq!(devices.take_steps().split_off(1), steps);
}

/// Up to so many milliseconds, at random.
fn noise_ms(seed: u64, step: u32, rank: u32, block: PipelineBlock, most_ms: u64) -> u64 {
    let place = u64::from(block.microbatch) * 3 + block.pass as u64;
    let key = seed ^ u64::from(step) << 40 ^ u64::from(rank) << 32 ^ place << 20;
    // SplitMix64: a multiplication alone leaves neighbouring steps alike.
    let mixed = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % (most_ms + 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Blocks scatter by up to a fifth, which hides less than half of a step, and stages are not alike.
    #[test]
    fn whose_device_is_slow_is_named_and_nobody_else(
        seed: u64, slow_rank in 0..RANKS, times in 3..5_u64, since in 30..50_u32,
    ) {
        let [devices, hosts] = watch(sampled(), |step, rank, block| {
            let usual_ms = if block.pass == Pass::Forward { 10 } else { 20 };
            let is_slow = step >= since && rank == slow_rank;
            let more_ms = u64::from(is_slow) * usual_ms * (times - 1);
            (more_ms + noise_ms(seed, step, rank, block, usual_ms / 5), 0)
        });
        prop_assert_eq!(hosts, []);
        let struck: Vec<&HeldUp> =
            devices.iter().filter(|held| !held.causes.is_empty()).collect();
        for held in &struck {
            prop_assert!(held.step >= since, "{:?}", held);
            let ranks = held.causes.iter().map(|(rank, _)| *rank);
            prop_assert!({ ranks }.all(|rank| rank == slow_rank), "{:?}", held);
        }
        let all = sampled().filter(|step| *step >= since).count();
        prop_assert!(struck.len() * 2 > all, "{} of {all}", struck.len());
    }

    /// Blocks scatter by up to a twentieth.
    #[test]
    fn whose_device_stays_a_little_slower_is_named_and_nobody_else(
        seed: u64, slow_rank in 0..RANKS, percent in 30..50_u64, since in 24..40_u32, forward: bool,
    ) {
        let slow_pass = if forward { Pass::Forward } else { Pass::Backward };
        let [devices, _] = watch(sampled(), |step, rank, block| {
            let usual_ms = if block.pass == Pass::Forward { 10 } else { 20 } + u64::from(rank == 3) * 5;
            let is_slow = step >= since && rank == slow_rank && block.pass == slow_pass;
            let more_ms = u64::from(is_slow) * usual_ms * percent / 100;
            (more_ms + noise_ms(seed, step, rank, block, 1), 0)
        });
        for held in &devices {
            prop_assert!(held.step >= since, "{:?}", held);
            let ranks = held.causes.iter().map(|(rank, slow)| (*rank, slow.block.pass));
            prop_assert!({ ranks }.all(|it| it == (slow_rank, slow_pass)), "{:?}", held);
        }
        // The slowest stage hides what another one takes less than it: iterations that take 2 % longer are
        // now and then not seen to for a while.
        let all = sampled().filter(|step| *step >= since).count();
        let struck = devices.iter().filter(|held| !held.causes.is_empty()).count();
        prop_assert!(struck * 2 > all, "{} of {all}", struck);
    }

    #[test]
    fn a_pipeline_of_devices_that_scatters_is_healthy(seed: u64, most_ms in 0..4_u64) {
        let found = watch(sampled(), |step, rank, block| {
            (noise_ms(seed, step, rank, block, most_ms), 0)
        });
        for held in found.iter().flatten() {
            prop_assert!(held.causes.is_empty(), "{:?}", held);
        }
    }
}
