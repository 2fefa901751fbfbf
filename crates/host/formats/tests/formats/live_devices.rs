//! A recorded pipeline whose hosts run ahead of their devices.

use std::ops::Range;

use model::{
    Action, Announcement, Claim, Conclusion, Event, Incident, Input, Pace, RankNs, Side, Source,
    Verdict,
};
use verdict::{Job, Settings};

use crate::inputs;

/// What is said of a part of the first of them.
fn verdict(keep: impl Fn(&Input) -> bool) -> Verdict {
    verdict_on("device_pipeline", keep)
}

/// What is said of a part of a job.
fn verdict_on(recording: &str, keep: impl Fn(&Input) -> bool) -> Verdict {
    played(&format!("late/{recording}"), keep)
}

/// What is said of a part of a recording.
pub(crate) fn played(recording: &str, keep: impl Fn(&Input) -> bool) -> Verdict {
    let mut job = Job::new("job", Source::Run, Settings::default());
    inputs(recording)
        .into_iter()
        .filter(keep)
        .for_each(|input| job.take(input));
    job.finish();
    job.verdict()
}

/// The incident of a verdict that has no other.
pub(crate) fn only(verdict: &Verdict) -> &Incident {
    let [incident] = &verdict.incidents[..] else {
        panic!("{:#?}", verdict.incidents)
    };
    incident
}

/// The incidents of a verdict that has two.
fn both(verdict: &Verdict) -> &[Incident; 2] {
    let both = verdict.incidents.as_array();
    both.unwrap_or_else(|| panic!("{:#?}", verdict.incidents))
}

/// What is said of a job, which has one incident: of one side of a rank, charged so many milliseconds of each
/// step.
fn charged(recording: &str, rank: u32, side: Side, ms: Range<f64>) -> Verdict {
    let verdict = verdict_on(recording, |_| true);
    let incident = only(&verdict);
    let subject = &incident.subject;
    let found = (&subject.ranks[..], subject.side);
    assert_eq!(found, (&[rank][..], Some(side)), "{}", incident.text);
    let charged_ms = incident.cost_s * 1e3 / verdict.job.analysed_steps as f64;
    assert!(ms.contains(&charged_ms), "{charged_ms} ms");
    verdict
}

#[test]
fn slow_blocks_of_a_device_are_named_as_the_devices() {
    let verdict = verdict(|_| true);
    let incident = only(&verdict);
    let subject = &incident.subject;
    assert_eq!(
        (&subject.ranks[..], subject.side),
        (&[2][..], Some(Side::Device))
    );
    assert_eq!(subject.stage.as_deref(), Some("pipeline stage 2"));
    assert_eq!(subject.block.as_deref(), Some("forward"));
    assert_eq!((incident.first_step, incident.last_step), (23, 59));
    let begin = "rank 2's device is slow in the forward on pipeline stage 2 in each step since \
                 step 23: ";
    assert!(incident.text.starts_with(begin), "{}", incident.text);
    // 19 ms of each of 37 steps: the last sampled one is 59.
    assert!(
        (0.65..0.78).contains(&incident.cost_s),
        "{}",
        incident.cost_s
    );
}

/// Two tensor-parallel ranks wait for each other within their passes, and are apart between these.
#[test]
fn a_slow_device_of_a_tensor_group_is_named() {
    charged("tensor_device", 1, Side::Device, 25.0..36.0);
}

/// Hosts wait for their devices in a barrier, which is no read-back: what they take there is no work.
#[test]
fn a_late_loader_is_named_though_hosts_meet_in_a_barrier() {
    let verdict = charged("barrier_loader", 1, Side::Host, 36.0..44.0);
    let subject = &only(&verdict).subject;
    assert_eq!(subject.stage.as_deref(), Some("data.next_wait"));
}

/// A script whose loader and model are not marked: its steps begin in the backward pass, where ranks are
/// apart. The other device waits for the late batch behind the first all-reduce, and is not slow.
#[test]
fn a_rank_that_waits_for_a_batch_of_the_step_before_is_not_named_for_it() {
    charged("unmarked_loader", 1, Side::Host, 36.0..44.0);
}

/// The optimizer runs on hosts, between a read-back of the gradients and a copy of the weights. The other
/// device waits for a late one behind the first all-reduce of the next step, in the same stage.
#[test]
fn a_rank_whose_host_is_late_in_its_optimizer_is_named_and_not_the_one_that_waits() {
    charged("offloaded_optimizer", 0, Side::Host, 21.0..28.0);
}

/// Its barrier takes up to 9 ms longer than each host has to wait for its device.
#[test]
fn a_slow_device_is_named_though_hosts_wait_for_each_other_too() {
    charged("unmarked_device", 1, Side::Device, 27.0..33.0);
}

/// Communication that the slow device hides takes time again without it: 81 ms of a struck step were charged.
#[test]
fn a_slow_device_costs_no_more_than_steps_became_longer() {
    // 40 of 60 steps are struck.
    charged("fsdp2_device_since", 1, Side::Device, 43.0..50.0);
}

/// The stage behind a slow one waits for it within its forward pass, and looks as late as that beside the
/// same stage of the other pipeline.
#[test]
fn of_two_pipelines_a_stage_that_waits_for_a_slow_one_is_not_named() {
    let verdict = charged("pipelines_device", 2, Side::Device, 22.0..30.0);
    // The other pipeline shows what its stage asks for.
    assert!(verdict.job.unlike_devices.is_empty());
}

/// Only steps with a checkpoint are struck, and these have other boundaries than the rest. The device that
/// waits in its barrier is held up by its host, too.
#[test]
fn a_rank_whose_checkpoints_take_longer_is_named() {
    let verdict = verdict_on("storage", |_| true);
    let incident = only(&verdict);
    let subject = &incident.subject;
    assert_eq!(
        (&subject.ranks[..], subject.stage.as_deref()),
        (&[1][..], Some("callbacks.cpu_wall")),
        "{}",
        incident.text
    );
    assert!(incident.text.contains("BARRIER"), "{}", incident.text);
    // Two of its strikes were sampled, for twice as many steps as have one.
    assert!((0.8..2.2).contains(&incident.cost_s), "{}", incident.cost_s);
}

#[test]
fn a_pipeline_of_devices_is_healthy_before_one_of_them_is_slow() {
    let verdict = verdict(|input| match input {
        Input::Mark { mark, .. } => mark.step < 23,
        _ => true,
    });
    assert_eq!(verdict.incidents, []);
}

#[test]
fn hosts_that_launch_blocks_are_not_judged_where_devices_are_not_seen() {
    let verdict = verdict(|input| match input {
        Input::Mark { mark, .. } => !matches!(mark.event, Event::DeviceTime(_)),
        _ => true,
    });
    assert_eq!(verdict.incidents, []);
    let said = "a slow block cannot be identified without device marks";
    assert!(
        verdict.notes.iter().any(|note| note.ends_with(said)),
        "{:?}",
        verdict.notes
    );
}

#[test]
fn the_last_stage_is_not_named_where_all_hosts_lack_cores() {
    let verdict = verdict_on("pipeline_none", |_| true);
    assert_eq!(verdict.conclusion(), Some(Conclusion::Healthy));
}

/// What the only incident of a recording says, which is of a rank in a stage, on one of its sides.
fn said_of(recording: &str, rank: u32, stage: &str, side: Side) -> String {
    let verdict = verdict_on(recording, |_| true);
    let incident = only(&verdict);
    let subject = &incident.subject;
    assert_eq!(
        (&subject.ranks[..], subject.stage.as_deref(), subject.side),
        (&[rank][..], Some(stage), Some(side)),
        "{}",
        incident.text
    );
    incident.text.clone()
}

#[test]
fn a_slow_device_is_named_though_all_hosts_lack_cores() {
    let text = said_of(
        "pipeline_device_backward",
        1,
        "pipeline stage 1",
        Side::Device,
    );
    let begin = "rank 1's device is slow in the backward on pipeline stage 1 in each step since \
                 step 23: ";
    assert!(text.starts_with(begin), "{text}");
}

#[test]
fn a_late_host_of_the_last_stage_is_named() {
    said_of("pipeline_host_forward", 3, "pipeline stage 3", Side::Host);
}

#[test]
fn a_late_callback_of_a_rank_alone_in_its_role_is_named() {
    let text = said_of("pipeline_callback", 1, "callbacks.cpu_wall", Side::Host);
    let begin = "rank 1's device waits for its host in callbacks.cpu_wall: ";
    assert!(text.starts_with(begin), "{text}");
}

#[test]
fn ranks_alone_in_their_roles_are_not_healthy_where_nothing_shows_what_their_hosts_do() {
    let verdict = verdict_on("pipeline_callback", |input| match input {
        Input::Mark { mark, .. } => !matches!(mark.event, Event::DeviceTime(_)),
        _ => true,
    });
    assert_eq!(verdict.incidents, []);
    assert_eq!(verdict.job.uncompared_ranks, [0, 1, 2, 3]);
    let unobserved = [Conclusion::DevicesUnseen, Conclusion::Uncompared];
    assert!(
        verdict
            .conclusion()
            .is_some_and(|it| unobserved.contains(&it))
    );
    let said = "compared with no other rank outside pipeline blocks";
    assert!(
        verdict.notes.iter().any(|note| note.contains(said)),
        "{:?}",
        verdict.notes
    );
}

#[test]
fn a_device_that_became_slow_in_its_optimizer_is_named() {
    let text = said_of(
        "pipeline_device_optimizer",
        1,
        "optim.step_cpu_wall",
        Side::Device,
    );
    let begin = "rank 1's device is slow in optim.step_cpu_wall: 15.";
    assert!(text.starts_with(begin), "{text}");
    assert!(text.contains(" instead of 5."), "{text}");
}

#[test]
fn a_device_that_was_always_slow_in_its_optimizer_may_have_more_to_do() {
    let verdict = verdict_on("pipeline_device_optimizer", |input| match input {
        Input::Mark { mark, .. } => mark.step >= 23,
        _ => true,
    });
    assert_eq!(verdict.incidents, []);
    assert_eq!(verdict.conclusion(), Some(Conclusion::Unlike));
    let [unlike] = &verdict.job.unlike_devices[..] else {
        panic!("{:?}", verdict.job.unlike_devices)
    };
    assert_eq!((unlike.rank, &unlike.stage[..]), (1, "optim.step_cpu_wall"));
    assert!((14e-3..16e-3).contains(&unlike.took_s), "{unlike:?}");
    assert!((4e-3..6e-3).contains(&unlike.others_s), "{unlike:?}");
    let said = "rank 1's device takes ";
    assert!(verdict.notes.iter().any(|note| note.starts_with(said)));
}

#[test]
fn a_rank_with_fewer_batches_is_not_late_for_validating_while_the_other_trains() {
    let verdict = verdict_on("uneven_epochs", |_| true);
    assert_eq!(verdict.incidents, []);
    // Validation lies in steps that only one of them has.
    assert_eq!(verdict.conclusion(), Some(Conclusion::StepsUnseen));
    assert!(verdict.job.unrecorded_share > 0.2);
    let note = "4 steps, ";
    assert!(verdict.notes.iter().any(|it| it.starts_with(note)));
}

#[test]
fn a_host_that_waits_for_its_device_is_not_late_where_each_rank_calls_something_else() {
    let verdict = verdict_on("receive_times_out", |_| true);
    let accused = |it: &&Incident| !it.subject.ranks.is_empty();
    assert_eq!(verdict.incidents.iter().find(accused), None);
}

#[test]
fn lateness_that_rotates_where_ranks_call_different_things_is_a_wait() {
    let verdict = verdict_on("reducer_thread", |_| true);
    assert_eq!(verdict.incidents, []);
    assert_eq!(verdict.conclusion(), Some(Conclusion::DeviceWaitsUnseen));
}

#[test]
fn a_device_that_is_late_in_each_of_twelve_steps_is_slow_though_they_scatter() {
    let stage = "model.backward_cpu_wall";
    let text = said_of("experts_device", 0, stage, Side::Device);
    assert!(text.ends_with("since step 39"), "{text}");
}

#[test]
fn who_is_late_in_most_steps_is_named_where_weights_are_averaged_every_four() {
    let verdict = charged("averaged_host", 1, Side::Host, 18.0..22.0);
    let text = &only(&verdict).text;
    assert!(text.contains(", anywhere before backward: "), "{text}");
}

/// One step of several is sampled: these tell which of the others are struck, too.
#[test]
fn a_device_that_is_slow_in_every_third_sampled_step_is_so_in_every_third_step() {
    let verdict = charged("tasks_device", 1, Side::Device, 11.0..15.0);
    let found = only(&verdict);
    assert_eq!(found.pace, Pace::Every { steps: 3 });
    assert!(found.text.contains(" every 3 steps: "), "{}", found.text);
}

/// Its host works no longer than the other one does, which runs ahead of its device.
#[test]
fn a_host_that_synchronizes_alone_is_late_for_that() {
    let verdict = charged("synchronizing_host", 1, Side::Host, 24.0..33.0);
    let ranks = vec![1];
    assert_eq!(only(&verdict).actions, [Action::RemoveReadBacks { ranks }]);
}

#[test]
fn a_device_that_stalls_twice_in_few_sampled_steps_is_named() {
    let text = said_of("device_stalls", 0, "data.gap", Side::Device);
    assert!(text.contains("now and then: 300.1 ms"), "{text}");
    // The first that was sampled is that of step 59.
    assert!(text.ends_with("since step 55"), "{text}");
}

#[test]
fn stalls_of_a_device_count_though_its_host_is_late_by_a_little_in_each_step() {
    let text = said_of("device_stalls_read", 0, "data.gap", Side::Device);
    assert!(
        text.contains("303.6 ms instead of 5.3 ms each time, 26 %"),
        "{text}"
    );
}

/// Rank 1 pauses every 20 steps, and rank 0 waits for it 10 steps later: they are apart half of the time.
#[test]
fn pauses_behind_read_backs_count_in_windows_that_sampled_none_of_them() {
    let verdict = verdict_on("joined_checkpoints", |_| true);
    let found = only(&verdict);
    assert_eq!(found.subject.ranks, [1], "{}", found.text);
    assert_eq!(found.pace, Pace::Every { steps: 20 }, "{}", found.text);
    assert!((2.3..2.8).contains(&found.cost_s), "{}", found.text);
}

/// Each step has two collectives, at which both ranks may seem to wait for the other one. Only on the clock of
/// their host it shows at which of them they are together.
#[test]
fn devices_of_a_host_meet_where_they_are_together_on_its_clock() {
    let verdict = charged("reference_model", 1, Side::Device, 12.0..16.0);
    let stage = only(&verdict).subject.stage.as_deref();
    assert_eq!(stage, Some("data.gap"));
}

/// In the average of every eighth step rank 0 waits for all that rank 1 lost.
#[test]
fn a_device_that_waits_for_an_average_is_not_named() {
    let verdict = charged("averaged_weights", 1, Side::Device, 10.0..16.0);
    let stage = only(&verdict).subject.stage.as_deref();
    assert_eq!(stage, Some("model.backward_cpu_wall"));
    // In the first one it also waits for a rank that started later.
    charged("averaged_late_start", 2, Side::Device, 11.0..16.0);
}

/// Rank 0 receives what rank 1 computes.
#[test]
fn a_device_that_waits_for_what_it_receives_is_not_named() {
    let verdict = verdict_on("pipeline_by_hand", |_| true);
    assert_eq!(verdict.conclusion(), Some(Conclusion::DeviceWaitsUnseen));
    assert!(verdict.incidents.is_empty(), "{:#?}", verdict.incidents);
}

/// Of steps 44 to 52 none was sampled, and the device is slow since step 45: the account of the first steps is
/// without it, and the one behind shows nothing else.
#[test]
fn a_device_may_be_slow_since_before_the_account_that_shows_it_first() {
    let verdict = verdict_on("between_accounts", |_| true);
    let found = only(&verdict);
    assert_eq!(found.subject.ranks, [0], "{}", found.text);
    assert!((44..=50).contains(&found.first_step), "{}", found.text);
}

/// The profiler was stopped long after the steps that it recorded.
#[test]
fn steps_between_a_profile_and_the_stop_of_its_profiler_count() {
    let verdict = verdict_on("rollouts", |_| true);
    let found = only(&verdict);
    let about = (&found.subject.ranks[..], found.pace, found.open);
    assert_eq!(
        about,
        (&[1][..], Pace::Every { steps: 3 }, true),
        "{}",
        found.text
    );
    assert!(found.text.contains("27 % of exposed"), "{}", found.text);
    assert!(found.next_in_line.is_empty(), "{}", found.text);
}

/// The stop of the profiler looks like one slow step of the device of rank 1 in the stage in which its host
/// pauses.
#[test]
fn a_device_that_is_slow_in_one_row_waits_in_those_that_its_host_strikes() {
    let verdict = verdict_on("rollouts", |input| {
        !matches!(input, Input::ProfileOrdered { .. })
    });
    let found = only(&verdict);
    assert_eq!(found.subject.ranks, [1], "{}", found.text);
    assert!((0.5..0.8).contains(&found.cost_s), "{} s", found.cost_s);
}

#[test]
fn a_slow_start_costs_what_its_steps_do() {
    let verdict = verdict_on("slow_start", |_| true);
    let found = only(&verdict);
    assert_eq!((found.open, &found.subject.ranks[..]), (false, &[1][..]));
    assert!((14..=16).contains(&found.last_step), "{}", found.text);
    assert!((0.9..1.4).contains(&found.cost_s), "{}", found.text);
}

/// The pause lies behind the last collective of the step, in the same segment: the other rank waits for it
/// in its next backward pass.
#[test]
fn a_rank_that_pauses_behind_a_gathered_metric_is_late_and_not_the_one_that_waits() {
    for (recording, rank, ms) in [
        ("gathered_metric", 1, 22.0..28.0),
        ("gathered_pauses", 0, 22.0..30.0),
    ] {
        let verdict = verdict_on(recording, |_| true);
        let found = only(&verdict);
        let place = (&found.subject.ranks[..], found.subject.stage.as_deref());
        assert_eq!(
            place,
            (&[rank][..], Some("callbacks.cpu_wall")),
            "{}",
            found.text
        );
        let charged_ms = found.cost_s * 1e3 / verdict.job.analysed_steps as f64;
        assert!(ms.contains(&charged_ms), "{charged_ms} ms");
    }
}

/// Where it pauses the other host waits later, for its device and so for the pauses: as long, in other steps.
#[test]
fn three_pauses_behind_read_backs_are_not_taken_for_lateness_that_rotates() {
    let verdict = verdict_on("logged_pauses", |_| true);
    let found = only(&verdict);
    let place = (&found.subject.ranks[..], found.subject.stage.as_deref());
    assert_eq!(place, (&[0][..], Some("callbacks.cpu_wall")));
    assert!((0.95..1.55).contains(&found.cost_s), "{}", found.cost_s);
}

/// Either of them alone gains next to nothing.
#[test]
fn a_device_that_is_slow_behind_a_late_host_is_next_in_line() {
    let verdict = verdict_on("host_and_device", |_| true);
    let [first, second] = both(&verdict);
    assert_eq!(first.subject.ranks, [2]);
    let next = "; next in line: rank 1 in callbacks.cpu_wall (25.1 ms a step); ";
    assert!(first.text.contains(next), "{}", first.text);
    let found = (&second.subject.ranks[..], second.subject.side);
    assert_eq!(found, (&[1][..], Some(Side::Device)));
}

#[test]
fn a_fault_is_over_once_sampled_steps_are_without_it() {
    let verdict = verdict_on("moved_host", |_| true);
    let [first, second] = both(&verdict);
    assert!(!first.open && second.open);
    assert_eq!((&first.subject.ranks[..], first.last_step), (&[0][..], 39));
    assert_eq!(
        (&second.subject.ranks[..], second.first_step),
        (&[1][..], 40)
    );
}

/// Three of four ranks are late, each in another stage.
#[test]
fn a_host_that_waits_for_all_others_where_it_clips_gradients_is_not_named() {
    let verdict = verdict_on("clipped_gradients", |_| true);
    let [first, ..] = &verdict.incidents[..] else {
        panic!("nobody is named")
    };
    let place = (&first.subject.ranks[..], first.subject.stage.as_deref());
    assert_eq!(place, (&[1][..], Some("callbacks.cpu_wall")));
    let mut named = verdict.incidents.iter().flat_map(|it| &it.subject.ranks);
    assert!(named.all(|rank| *rank != 3), "{:#?}", verdict.incidents);
}

/// In one step the other one of the two ranks is later.
#[test]
fn a_host_that_is_late_in_each_step_is_charged_though_another_one_is_late_once() {
    charged("prefetched_loader", 1, Side::Host, 27.0..34.0);
}

#[test]
fn steps_take_no_longer_than_the_slowest_rank_does() {
    let verdict = verdict_on("tensor_loader", |_| true);
    let step_s = verdict.job.exposed_s / verdict.job.analysed_steps as f64;
    assert!((0.090..0.110).contains(&step_s), "{step_s} s");
    assert_eq!(only(&verdict).subject.ranks, [1]);
}

#[test]
fn devices_that_wait_for_replicas_of_a_late_host_are_not_slow() {
    let stage = "model.fwd_loss_cpu_wall";
    let text = said_of("hybrid_callback", 1, stage, Side::Host);
    assert!(text.contains(": 59."), "{text}");
}

#[test]
fn that_all_devices_became_slower_is_seen_though_hosts_seldom_wait_for_them() {
    let verdict = verdict_on("devices_slower", |_| true);
    let text = &only(&verdict).text;
    let begin = "steps are 26.8 ms slower than the job's best window since step 105, on all ranks, \
                 mostly in model.fwd_loss_cpu_wall";
    assert!(text.starts_with(begin), "{text}");
}

/// Takes a recording input by input; `ask` gets the job and the clock after each mark. The job.
fn watched(recording: &str, mut ask: impl FnMut(&mut Job, RankNs)) -> Job {
    let mut job = Job::new("job", Source::Run, Settings::default());
    for input in inputs(&format!("late/{recording}")) {
        let at = match &input {
            Input::Mark { mark, .. } => Some(mark.at),
            _ => None,
        };
        job.take(input);
        if let Some(at) = at {
            ask(&mut job, at);
        }
    }
    job
}

#[test]
fn a_late_callback_of_a_rank_alone_in_its_role_is_announced() {
    let mut job = watched("pipeline_callback", |_, _| {});
    job.finish();
    let said: Vec<Claim> = job
        .take_announcements()
        .into_iter()
        .filter_map(|it| match it {
            Announcement::InWindow { claim, .. } => Some(claim),
            _ => None,
        })
        .collect();
    let [Claim::LateRanks(late)] = &said[..] else {
        panic!("{said:#?}")
    };
    assert_eq!(
        (&late.ranks[..], &late.stage[..]),
        (&[1][..], "callbacks.cpu_wall")
    );
}

#[test]
fn slow_blocks_raise_how_many_steps_are_sampled() {
    let mut asked_in = Vec::new();
    watched("pipeline_device_backward", |job, at| {
        let step = job.steps();
        asked_in.extend(job.wanted_device_steps(at, 0.1).map(|_| step));
    });
    // The device of rank 1 is slow from step 23 on; asked is once a minute.
    assert!(matches!(asked_in[..], [24..30]), "{asked_in:?}");
}

/// The others run ahead until their queues are full, and what they wait there is no work.
#[test]
fn a_slow_device_is_charged_in_full_where_one_rank_alone_reads_back() {
    let verdict = verdict_on("read_by_one", |_| true);
    let first = &verdict.incidents[0];
    let found = (&first.subject.ranks[..], first.subject.side);
    assert_eq!(found, (&[2][..], Some(Side::Device)), "{}", first.text);
    // Its kernels take 25 ms longer in each step.
    let charged_ms = first.cost_s * 1e3 / verdict.job.analysed_steps as f64;
    assert!((20.0..27.0).contains(&charged_ms), "{charged_ms} ms");
}

/// All ranks read back in every tenth step. In the next one the queue is empty, and the device waits for all of
/// what the loader is late by, in the others for a part of it.
#[test]
fn lateness_of_two_sizes_is_one_fault_where_hosts_show_one() {
    let verdict = charged("read_each_tenth", 0, Side::Host, 10.0..19.0);
    let incident = only(&verdict);
    let apart_s = (incident.gain_alone_s - incident.cost_s).abs();
    assert!(apart_s < 1e-3, "{apart_s}");
}

/// Nothing is read back, so that all hosts run ahead while devices wait for rank 3, whose host takes 50 ms longer
/// in its forward pass. That of rank 0 is 40 ms late behind each optimizer, and its device is not: the job
/// takes 64.7 ms a step, without the first 53.2, without the second 64.7, and without both 35.3.
#[test]
fn a_host_that_others_delays_give_time_is_next_in_line() {
    let verdict = verdict_on("hidden_callback", |_| true);
    let [first, hidden] = &verdict.incidents[..] else {
        panic!("{:#?}", verdict.incidents)
    };
    assert_eq!(
        (&first.subject.ranks[..], first.subject.side),
        (&[3][..], Some(Side::Host))
    );
    let [next] = &first.next_in_line[..] else {
        panic!("{}", first.text)
    };
    let found = (&next.ranks[..], &next.stage[..]);
    assert_eq!(found, (&[0][..], "callbacks.cpu_wall"));
    let of_a_step_ms = |gain_s: f64| gain_s * 1e3 / verdict.job.analysed_steps as f64;
    let saved_ms = [first.gain_alone_s, next.gain_alone_s, next.gain_both_s].map(of_a_step_ms);
    for (saved_ms, truth_ms) in saved_ms.into_iter().zip([11.5, 0.0, 29.4]) {
        assert!(
            (saved_ms - truth_ms).abs() < 3.0,
            "{saved_ms} ms of {truth_ms}"
        );
    }
    // Its device waits for nothing yet.
    let found = (&hidden.subject.ranks[..], hidden.subject.side);
    assert_eq!(found, (&[0][..], None), "{}", hidden.text);
}

#[test]
fn a_host_that_is_no_slower_than_others_costs_nothing_though_its_device_is_behind() {
    let verdict = played("simulated/host_bound", |_| true);
    assert_eq!(verdict.incidents, []);
}

#[test]
fn a_device_that_is_slow_in_every_tenth_step_has_its_period_though_half_of_them_are_sampled() {
    let verdict = played("simulated/device_every_tenth", |_| true);
    let incident = only(&verdict);
    let subject = &incident.subject;
    assert_eq!(
        (&subject.ranks[..], subject.side),
        (&[2][..], Some(Side::Device))
    );
    assert_eq!(incident.pace, Pace::Every { steps: 10 });
    // From the second strike on that was sampled.
    assert!(
        (0.55..1.1).contains(&(incident.cost_s / 0.825)),
        "{}",
        incident.cost_s
    );
}
