use frontier::{Baseline, analyse};
use model::{MarkKind, Window};

use super::*;
use crate::Turns;
use crate::testkit::block;

/// Steps of 0.1 s of ranks of which one may be late by half of that.
fn window(first_step: u64, steps: u64, ranks: usize, late: Option<usize>) -> Window {
    window_of(first_step, steps, ranks, late, 0.15)
}

/// The same where a late rank takes so many seconds.
fn window_of(
    first_step: u64,
    steps: u64,
    ranks: usize,
    late: Option<usize>,
    late_s: f64,
) -> Window {
    let row = (0..ranks).map(|rank| if late == Some(rank) { late_s } else { 0.1 });
    let row: Vec<f64> = row.collect();
    let segment = (StageId::FORWARD, MarkKind::BackwardBegin);
    let mut block = block(&[segment], ranks, steps, row.repeat(steps as usize));
    block.steps.iter_mut().for_each(|step| *step += first_step);
    block.into()
}

fn analysed(window: &Window) -> WindowFrontier {
    analyse(window, &Gates::default(), &Baseline::CohortMedian)
}

/// What is found open of the job.
fn open(tracker: &Tracker) -> Vec<Vec<u32>> {
    let (names, hosts, seen) = Default::default();
    let found = tracker.findings(JobContext::new(&names, &hosts, &seen));
    let open = found.into_iter().filter(|finding| finding.open);
    open.map(|finding| finding.subject.ranks).collect()
}

fn observe(tracker: &mut Tracker, window: &Window) {
    let (names, hosts, seen) = Default::default();
    let context = JobContext::new(&names, &hosts, &seen);
    tracker.observe(window, &mut analysed(window), Devices::Unseen, context);
}

#[test]
fn what_a_device_cost_while_it_was_awaited_is_a_share_of_that_time() {
    let (settings, gates) = (IncidentSettings::default(), Gates::default());
    let (mut tracker, mut group) = (Tracker::default(), Group::default());
    let mut windows = [0, 20, 40, 60].map(|first| window(first, 20, 4, Some(2)));
    for it in &windows {
        group.take(&analysed(it));
    }
    let last = windows.last_mut().unwrap();
    let found = analysed(last);
    let of_window = find_faults(last, &found, &gates, &settings, Turns::Rotate).remove(0);
    // As an account of devices has it, of all steps since the last one.
    let fault = Fault {
        strikes: (0..80).collect(),
        sampled: false,
        side: Some(Side::Device),
        ..of_window.times(4.0)
    };
    tracker.follow(fault, last, &found, &group);
    let share = tracker.tracks[0].cost_share();
    // 50 of 150 ms.
    assert!((share - 1.0 / 3.0).abs() < 1e-6, "{share}");
}

#[test]
fn a_fault_is_not_over_before_as_many_sampled_steps_show_it_no_more() {
    let (settings, gates) = (IncidentSettings::default(), Gates::default());
    let (mut tracker, mut group) = (Tracker::default(), Group::default());
    let whole = window(0, 100, 4, Some(2));
    let found = analysed(&whole);
    group.take(&found);
    group.ranks.clone_from(&whole.ranks);
    let of_window = find_faults(&whole, &found, &gates, &settings, Turns::Rotate).remove(0);
    let fault = Fault {
        strikes: (0..10).collect(),
        sampled: true,
        side: Some(Side::Device),
        ..of_window
    };
    tracker.follow(fault, &whole, &found, &group);
    tracker.last_step = 99;
    // All 100 steps are accounted for: nine of them, and then one more, were sampled after the last strike.
    group.unaccounted.clear();
    for (sampled, goes_on) in [(0..19, true), (19..20, false)] {
        group.sampled.extend(sampled);
        tracker.groups = vec![std::mem::take(&mut group)];
        assert_eq!(tracker.goes_on(&tracker.tracks[0]), goes_on);
        group = tracker.groups.remove(0);
    }
}

#[test]
fn steps_of_an_earlier_start_are_not_judged_with_those_of_the_next() {
    let mut tracker = Tracker::default();
    let mut group = Group::default();
    let more = window(100, 20, 4, None);
    group.take(&analysed(&more));
    tracker.groups.push(group);
    tracker.restart();
    assert_eq!(tracker.groups[0].unaccounted, []);
}

#[test]
fn a_fault_is_not_over_because_another_rank_has_left() {
    let mut tracker = Tracker::new(IncidentSettings::default(), Gates::default());
    for first in [0, 20] {
        observe(&mut tracker, &window(first, 20, 4, Some(1)));
    }
    assert_eq!(open(&tracker), [[1]]);
    // Too few steps without a strike to say that it is over.
    observe(&mut tracker, &window(40, 5, 3, None));
    assert_eq!(open(&tracker), [[1]]);
    observe(&mut tracker, &window(45, 20, 3, None));
    assert_eq!(open(&tracker), [[0; 0]; 0]);
}

#[test]
fn a_fault_is_not_over_because_a_window_shows_nothing_of_hosts() {
    let mut tracker = Tracker::new(IncidentSettings::default(), Gates::default());
    for first in [0, 20, 40] {
        observe(&mut tracker, &window(first, 20, 3, Some(1)));
    }
    for first in [60, 80] {
        let unseen = Window {
            runs_ahead: true,
            meeting: Meeting::Unseen,
            ..window(first, 20, 3, None)
        };
        observe(&mut tracker, &unseen);
        assert_eq!(open(&tracker), [[1]]);
    }
    // It is the same fault that comes back.
    observe(&mut tracker, &window(100, 20, 3, Some(1)));
    assert_eq!(open(&tracker), [[1]]);
    assert_eq!(tracker.tracks.len(), 1);
    observe(&mut tracker, &window(120, 20, 3, None));
    assert_eq!(open(&tracker), [[0; 0]; 0]);
}

#[test]
fn steps_that_accumulate_more_gradients_are_not_slower() {
    let job = |passes: [usize; 4], pass_s: [f64; 4]| {
        let mut tracker = Tracker::new(IncidentSettings::default(), Gates::default());
        for (place, (passes, pass_s)) in passes.into_iter().zip(pass_s).enumerate() {
            let segment = (StageId::BACKWARD, MarkKind::BackwardEnd);
            let row = vec![pass_s; 2 * passes];
            let mut block = block(&vec![segment; passes], 2, 20, row.repeat(20));
            let first = 20 * place as u64;
            block.steps.iter_mut().for_each(|step| *step += first);
            observe(&mut tracker, &block.into());
        }
        open(&tracker).len()
    };
    assert_eq!(job([1, 1, 2, 2], [0.1; 4]), 0);
    assert_eq!(job([1, 1, 1, 1], [0.1, 0.1, 0.2, 0.2]), 1);
    assert_eq!(job([2, 1, 2, 2], [0.1, 0.1, 0.2, 0.2]), 1);
}

#[test]
fn fixing_two_saves_no_less_than_fixing_one_of_them() {
    let (settings, gates) = (IncidentSettings::default(), Gates::default());
    let window = window(0, 20, 4, Some(2));
    let of_window = find_faults(
        &window,
        &analysed(&window),
        &gates,
        &settings,
        Turns::Rotate,
    )
    .remove(0);
    let saves = |hides: &[Hidden]| Fault {
        gain_alone_s: 1.0,
        hides: hides.to_vec(),
        ..of_window.clone()
    };
    let hidden = Hidden {
        ranks: vec![3],
        stage: StageId::OPTIMIZER,
        lateness_s: 0.01,
        gain_alone_s: 0.0,
        gain_both_s: 1.2,
    };
    let mut track = Track::new(0, &of_window, 0, 2.0);
    // Only one of three windows shows the other one.
    for fault in [saves(&[]), saves(&[hidden]), saves(&[])] {
        track.add(fault);
    }
    let both_s = track.hides[0].gain_both_s;
    assert!(
        (both_s - 3.2).abs() < 1e-9 && track.gain_alone_s <= both_s,
        "{both_s}"
    );
}

#[test]
fn a_few_steps_of_a_longer_job_show_no_small_fault() {
    let observed = |windows: &[(u64, u64, Option<usize>)], late_s: f64| {
        let mut tracker = Tracker::new(IncidentSettings::default(), Gates::default());
        for (first, steps, late) in windows {
            observe(&mut tracker, &window_of(*first, *steps, 4, *late, late_s));
        }
        open(&tracker)
    };
    let [healthy, few, more] = [(0, 50, None), (50, 6, Some(1)), (56, 6, Some(1))];
    assert_eq!(observed(&[healthy, few], 0.115), [[0; 0]; 0]);
    assert_eq!(observed(&[healthy, few, more], 0.115), [[1]]);
    assert_eq!(observed(&[healthy, few], 0.15), [[1]]);
    // Nothing else is known of this job.
    assert_eq!(observed(&[few], 0.115), [[1]]);
}
