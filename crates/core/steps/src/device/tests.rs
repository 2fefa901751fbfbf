use model::{DeviceReached, Ending, MarkKind};
use proptest::prelude::*;

use super::*;
use crate::testkit::marks;

const MS: u64 = 1_000_000;

/// Device marks of one run: `device_ms(place, host_ms)` is when the device gets there on the
/// host's clock, seen `seen_ms` later.
fn device_marks(
    text: &str,
    seen_ms: u64,
    device_ms: impl Fn(usize, u64) -> u64,
) -> Vec<(Mark, DeviceTime)> {
    let host = marks(text);
    let at = |place: usize| device_ms(place, host[place].0.at.0 / MS) * MS;
    let mut times: Vec<(Mark, DeviceTime)> = (0..host.len())
        .map(|place| {
            let mark = host[place].0;
            let time = DeviceTime {
                reached: DeviceReached::mark(&mark.event),
                made_at: mark.at,
                device_ns: at(place) - at(0),
                first_step: 0,
                place: place as u64,
                seen_within_us: 0,
            };
            (
                Mark {
                    at: RankNs(at(place) + seen_ms * MS),
                    ..mark
                },
                time,
            )
        })
        .collect();
    let (mark, time) = times[0];
    let (reached, place) = (DeviceReached::END, times.len() as u64);
    times.push((
        mark,
        DeviceTime {
            reached,
            place,
            ..time
        },
    ));
    times
}

fn steps_of(times: &[(Mark, DeviceTime)]) -> Vec<SampledStep> {
    let mut of_rank = RankDeviceMarks::default();
    let steps = |(mark, time): &(Mark, DeviceTime)| of_rank.push(mark, time, StageId::OTHER).steps;
    times.iter().flat_map(steps).collect()
}

fn segments_ms(step: &RankStep) -> Vec<u64> {
    let mut from = step.start;
    let segments = step.segments.iter().map(|segment| {
        let ms = (segment.end.0 - from.0) / MS;
        from = segment.end;
        ms
    });
    segments.collect()
}

/// Host: 1 ms between marks. The device takes 20 ms of forward and of backward.
const STEP: &str = "D0 D1 B0 K B1 O0 O1 D0";

fn busy(place: usize, host_ms: u64) -> u64 {
    host_ms + [0, 0, 19, 28, 37, 36, 35, 34][place]
}

#[test]
fn a_step_is_tiled_by_what_its_segments_take_on_the_device() {
    let [step] = &steps_of(&device_marks(STEP, 0, busy))[..] else {
        panic!("a step")
    };
    assert_eq!(segments_ms(step.device()), [1, 20, 10, 10, 0, 0, 0]);
    let issue = &step.device().segments[2];
    assert!(matches!(issue.ending, Ending::Issue { .. }));
    assert!((step.furthest.least_s - 0.037).abs() < 1e-9);
}

#[test]
fn a_host_that_is_far_ahead_cannot_have_held_its_device_up() {
    let [step] = &steps_of(&device_marks(STEP, 0, busy))[..] else {
        panic!("a step")
    };
    // It launched the forward pass within 1 ms, and the backward pass meanwhile.
    assert_eq!(
        segments_ms(step.on(StepClock::HostBoundMost)),
        [1, 1, 0, 0, 0, 0, 0]
    );
    assert_eq!(
        segments_ms(step.on(StepClock::HostBoundLeast)),
        [1, 1, 0, 0, 0, 0, 0]
    );
}

#[test]
fn a_device_that_waits_for_its_host_is_held_up_all_the_time() {
    let text = "D0 D1+60 B0+5 K B1 O0 O1 D0";
    let waits = device_marks(text, 0, |_, host_ms| host_ms);
    let [step] = &steps_of(&waits)[..] else {
        panic!("a step")
    };
    assert_eq!(segments_ms(step.device()), [60, 5, 1, 1, 1, 1, 1]);
    assert_eq!(
        segments_ms(step.on(StepClock::HostBoundLeast)),
        [60, 5, 1, 1, 1, 1, 1]
    );
}

#[test]
fn what_nobody_looked_at_in_time_is_known_between_two_bounds() {
    // The host never waits, and looks 30 ms late: was the device behind, or not looked at?
    let late = device_marks(STEP, 30, |place, host_ms| busy(place, host_ms) + 30);
    let [step] = &steps_of(&late)[..] else {
        panic!("a step")
    };
    assert_eq!(segments_ms(step.on(StepClock::HostBoundMost))[1], 1);
    assert_eq!(segments_ms(step.on(StepClock::HostBoundLeast))[1], 0);
}

/// Hosts that are far ahead, and look every other millisecond.
#[test]
fn a_look_in_vain_bounds_what_the_clocks_differ_by() {
    let offset_ms = |seen_within_us| {
        let mut looked = device_marks(STEP, 1, |place, host_ms| busy(place, host_ms) + 100);
        for (_, time) in &mut looked {
            time.seen_within_us = seen_within_us;
        }
        let [step] = &steps_of(&looked)[..] else {
            panic!("a step")
        };
        step.offset_ns.map(|ns| ns / i128::from(MS))
    };
    // The device got to its first mark at 101 ms.
    let [least_ms, most_ms] = offset_ms(0);
    assert_eq!((least_ms, most_ms), (1, 102));
    assert_eq!(offset_ms(2_000), [100, 102]);
}

#[test]
fn what_is_read_back_is_counted_with_what_it_may_cost() {
    // Read back 10 ms before the device is done; 3 ms later the host launches again.
    let text = "D0 D1 B0 B1 R0 R1+10 O0+3 O1 D0";
    let done = |_, host_ms: u64| host_ms.max(13);
    let [step] = &steps_of(&device_marks(text, 0, done))[..] else {
        panic!("a step")
    };
    let [(line, read_back)] = step.read_backs.lines.iter().collect::<Vec<_>>()[..] else {
        panic!("a line")
    };
    assert_eq!((*line, read_back.count), (StageId::OTHER, 1));
    assert!((read_back.wait_s - 0.010).abs() < 1e-9);
    // No later mark shows the host ahead: all the rest of the step may be lost.
    assert!(
        (read_back.idle_most_s - 0.005).abs() < 1e-9,
        "{}",
        read_back.idle_most_s
    );
}

/// As where a batch is copied from memory that is not pinned.
#[test]
fn a_host_that_loses_all_its_lead_in_as_long_waits_for_its_device() {
    const COPIES: &str = "D0 D1 F0+12 B0 B1 O0 O1 D0";
    let read_ms = |lead_ms: u64| {
        let ahead_ms = [0, lead_ms, 0, 11, 10, 9, 8, 7];
        let marks = device_marks(COPIES, 0, |place, host_ms| host_ms + ahead_ms[place]);
        let steps = steps_of(&marks);
        let silent = steps[0].read_backs.silent;
        (segments_ms(steps[0].on(StepClock::Reading)), silent)
    };
    let (reading_ms, silent) = read_ms(12);
    assert_eq!(reading_ms[..3], [0, 12, 0]);
    assert_eq!(silent.count, 1);
    assert!((silent.wait_s - 0.012).abs() < 1e-9 && silent.idle_most_s < 0.002);
    // Its device had more left to do than that, or less: it worked.
    for lead_ms in [15, 8] {
        let (reading_ms, silent) = read_ms(lead_ms);
        assert_eq!((&reading_ms[..3], silent.count), (&[0; 3][..], 0));
    }
    // A read-back is counted for its line alone.
    let ahead_ms = [0, 0, 12, 0, 10, 9, 8, 7, 6];
    let read = device_marks("D0 D1 R0 R1+12 B0 B1 O0 O1 D0", 0, |place, host_ms| {
        host_ms + ahead_ms[place]
    });
    let read_backs = &steps_of(&read)[0].read_backs;
    assert_eq!((read_backs.lines.len(), read_backs.silent.count), (1, 0));
}

#[test]
fn a_run_that_follows_at_once_goes_on_where_the_last_one_ended() {
    let mut of_rank = RankDeviceMarks::default();
    let mut both = Vec::new();
    for first_step in [0, 1] {
        for (mut mark, mut time) in device_marks(STEP, 0, busy) {
            mark.step += first_step;
            time.first_step = first_step;
            both.extend(of_rank.push(&mark, &time, StageId::OTHER).steps);
        }
    }
    let end = both[0].device().segments.last().map(|segment| segment.end);
    assert_eq!(Some(both[1].device().start), end);
}

#[test]
fn a_run_that_lost_a_mark_is_left_out() {
    let whole = device_marks(STEP, 0, busy);
    for lost in 0..whole.len() {
        let mut marks = whole.clone();
        marks.remove(lost);
        assert!(steps_of(&marks).is_empty(), "without {lost}");
    }
}

#[test]
fn what_is_asked_for_are_whole_runs() {
    assert_eq!(runs_from(41, 1e9), 44..76);
    assert_eq!(runs_from(44, 0.1), 44..52);
}

#[test]
fn one_step_in_ten_is_sampled_and_half_of_the_first() {
    let share = |steps: std::ops::Range<u32>| {
        let all = steps.len() as f64;
        steps.filter(|step| is_sampled(*step)).count() as f64 / all
    };
    assert!((0.35..0.65).contains(&share(0..FIRST_STEPS)));
    let later = share(FIRST_STEPS..FIRST_STEPS + 100_000);
    assert!((0.09..0.11).contains(&later), "{later}");
    assert!((0..1000).all(|step| run_of(step).all(|of| is_sampled(of) == is_sampled(step))));
}

proptest! {
    #[test]
    fn whatever_a_rank_sends_is_borne(
        marks in prop::collection::vec((0_usize..26, any::<[u64; 2]>(), 0u32..9), 0..50),
    ) {
        let mut clock = DeviceClock::default();
        for (place, (kind, [at, device_ns], step)) in (0..).zip(marks) {
            let kind = MarkKind::ALL.get(kind);
            let reached = kind.map(|kind| DeviceReached::mark(&Event::from(*kind)));
            let (reached, at) = (reached.unwrap_or(DeviceReached::END), RankNs(at));
            // In order, as else nothing gets through.
            let (made_at, first_step) = (at, 0);
            let time = DeviceTime {
                reached, made_at, device_ns, first_step, place, seen_within_us: 0,
            };
            let event = Event::DeviceTime(time);
            let mark = Mark { at, step, on_loop_thread: true, event };
            clock.push(0, &mark, &time, StageId::OTHER);
            clock.push(1, &mark, &time, StageId::OTHER);
        }
        clock.take_window(&[0, 1], u32::MAX, &BTreeMap::new());
    }
}
