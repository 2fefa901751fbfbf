//! Jobs in which hosts wait for devices, and which of these is behind.

use model::{Device, DeviceUsage, Gauge, Method};

use super::deaths::{all_leave, ask_to_end};
use super::hangs::{assert_unsaid, quiet, sum, take_mark};
use super::*;

/// A job of four whose hosts have issued the same all-reduce. The devices of ranks 0, 1 and 3 were
/// seen to get to it after 12 s; the host of rank 2 looks for its own until then or later.
fn issued_alike(looks_until_s: u64) -> Job {
    let mut job = Job::new("job", Source::Run, Settings::default());
    let members = (0..4).collect();
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members,
    });
    let device = |job: &mut Job, rank, at_s, made_at_s: u64, event: Event, place| {
        let time = DeviceTime {
            reached: DeviceReached::mark(&event),
            made_at: RankNs(made_at_s * 1_000_000_000),
            device_ns: place,
            first_step: 40,
            place,
            seen_within_us: 0,
        };
        take_mark(job, rank, at_s, Event::DeviceTime(time));
    };
    for rank in 0..4 {
        take_mark(&mut job, rank, 10, Event::ForwardBegin);
        device(&mut job, rank, 10, 10, Event::ForwardBegin, 0);
    }
    for rank in 0..4 {
        take_mark(&mut job, rank, 11, sum(47));
    }
    for rank in 0..4 {
        take_mark(&mut job, rank, 12, Event::BackwardEnd);
        if rank != 2 {
            device(&mut job, rank, 12, 11, sum(47), 1);
        }
    }
    for at_s in 13..=looks_until_s {
        take_mark(&mut job, 2, at_s, Event::OptimizerBegin);
    }
    job
}

#[test]
fn the_device_that_is_behind_is_named_if_its_host_looked_for_it_later_than_the_others() {
    let mut job = issued_alike(20);
    assert_unsaid(&mut job, 79);
    assert_eq!(quiet(&mut job, 81).len(), 4);
    job.take(Input::StacksComplete);
    let said = "hang since step 40: the device of rank 2 has not begun ALLREDUCE #47 of group \
                default, which others have begun; rank 2 is in optim.step_cpu_wall";
    assert_eq!(lines(&mut job), [said]);
    let hang = critical_hang(&job, &[2]);
    assert_eq!(hang.victims, [0, 1, 3].into_iter().collect());
    let there = "the devices of ranks 0-1,3 reached ALLREDUCE #47 of group default";
    let reported: Vec<_> = hang.evidence.iter().map(|it| it.text.clone()).collect();
    assert!(reported.contains(&format!(
        "{there}; the device of rank 2 had not reached it 8.00 s later"
    )));
    // Without a later look it may have got there since.
    let mut job = issued_alike(12);
    quiet(&mut job, 73);
    job.take(Input::StacksComplete);
    let [hang] = &job.verdict().incidents[..] else {
        panic!("{:?}", job.verdict())
    };
    assert!(hang.subject.ranks.is_empty(), "{}", hang.text);
    let reported: Vec<_> = hang.evidence.iter().map(|it| it.text.clone()).collect();
    assert!(reported.contains(&format!(
        "{there}; the device of rank 2 was not observed there"
    )));
}

/// The last collective that all have issued is behind them: nobody waits for the rank there.
#[test]
fn a_rank_that_is_elsewhere_while_others_receive_has_missed_no_collective() {
    let mut job = receives(81, None);
    assert_eq!(
        lines(&mut job)[0],
        format!("hang since step 40: {ELSEWHERE}")
    );
    assert_eq!(
        critical_hang(&job, &[1]).victims,
        [0, 2].into_iter().collect()
    );
}

#[test]
fn where_ranks_were_in_a_standstill_is_reported_if_the_job_ends_in_it() {
    // It may pass.
    let mut job = receives(20, None);
    assert!(lines(&mut job).is_empty());
    take_mark(&mut job, 1, 21, Event::DataBegin);
    assert!(job.verdict().incidents.is_empty());
    // Somebody ends it, or ranks give up: nobody can be asked any more.
    for is_asked in [true, false] {
        let mut job = receives(20, None);
        if is_asked {
            ask_to_end(&mut job, 30);
        } else {
            job.take(Input::Failed { rank: 0, code: 1 });
        }
        all_leave(&mut job);
        let end = only(&job);
        assert!(end.text.contains(ELSEWHERE), "{}", end.text);
        assert_eq!(end.subject.ranks, [1]);
    }
}

#[test]
fn ranks_of_a_job_that_was_asked_to_end_are_not_looked_at() {
    for is_asked in [false, true] {
        let mut job = issued_alike(12);
        assert_eq!(quiet(&mut job, 81).len(), 4);
        job.take(Input::StacksComplete);
        if is_asked {
            ask_to_end(&mut job, 90);
        }
        assert_eq!(quiet(&mut job, 200).is_empty(), is_asked);
    }
}

#[test]
fn a_rank_that_is_stopped_is_reported_as_soon_as_it_is_looked_at() {
    let mut job = receives(20, Some(1));
    let said = &lines(&mut job)[0];
    assert!(
        said.contains("rank 1 is stopped in step (train.py:7)"),
        "{said}"
    );
    // It is not looked at sooner than that.
    assert!(quiet(&mut receives(15, None), 16).is_empty());
    assert_eq!(quiet(&mut receives(15, None), 19).len(), 3);
}

/// Three ranks that have all issued their last collective; where each is, after so many seconds.
fn receives(looked_at_s: u64, stopped: Option<u32>) -> Job {
    let mut job = Job::new("job", Source::Run, Settings::default());
    job.take(Input::Group {
        group: 1,
        name: "default".to_owned(),
        members: (0..3).collect(),
    });
    for rank in 0..3 {
        take_mark(&mut job, rank, 11, sum(47));
        take_mark(&mut job, rank, 12, Event::BackwardEnd);
    }
    for rank in quiet(&mut job, looked_at_s) {
        let (function, file) = if rank == 1 {
            ("wait", "/usr/lib/python3.11/threading.py")
        } else {
            ("recv", "/usr/lib/python3.11/torch/distributed/c10d.py")
        };
        let frame = |function: &str, file: &str| Frame {
            function: function.to_owned(),
            file: file.to_owned(),
            line: 7,
        };
        let frames = vec![frame(function, file), frame("step", "/home/me/train.py")];
        let state = if stopped == Some(rank) {
            ProcessState::Stopped
        } else {
            ProcessState::Sleeping
        };
        let stack = Stack::new(state, Some(false), frames);
        job.take(Input::Stack { rank, stack });
    }
    job.take(Input::StacksComplete);
    job
}

const ELSEWHERE: &str = "rank 1 is not in a communication call, and all other ranks wait in one; rank 1 is in step \
                         (train.py:7)";

/// What GPUs do meanwhile says which may have stopped, and names nobody.
#[test]
fn what_gpus_do_in_a_standstill_stands_beside_it() {
    let mut job = issued_alike(12);
    let tell = |job: &mut Job, first_step, busy_of_two: f64| {
        for rank in 0..4 {
            let mut usage = DeviceUsage::new(Device::Gpu(rank));
            let (busy, watts) = if rank == 2 {
                (busy_of_two, 71.0)
            } else {
                (1.0, 152.0)
            };
            usage.measure(Gauge::BusyShare, busy, 10.0);
            usage.measure(Gauge::Watts, watts, 10.0);
            job.take(Input::Device {
                ranks: vec![rank],
                first_step,
                last_step: 40,
                usage: Box::new(usage),
            });
        }
    };
    let said = |job: &Job| {
        let [hang] = &job.verdict().incidents[..] else {
            panic!("{:?}", job.verdict())
        };
        assert!(hang.subject.ranks.is_empty(), "{}", hang.text);
        let of_hosts = hang.evidence.iter().filter(|it| it.method == Method::Host);
        let of_hosts: Vec<String> = of_hosts.map(|it| it.text.clone()).collect();
        (of_hosts, hang.advice.clone())
    };
    tell(&mut job, 30, 0.0);
    quiet(&mut job, 73);
    job.take(Input::StacksComplete);
    assert_eq!(said(&job).0, [""; 0], "partly of steps before");
    tell(&mut job, 40, 0.0);
    let (of_hosts, advice) = said(&job);
    assert_eq!(
        of_hosts,
        [
            "the GPU of rank 2 was busy for 0.0 % of the time and drew 71 W, those of ranks 0-1,3 for \
             100 % and 152 W"
        ]
    );
    assert!(
        advice.contains("on rank 2, look at whether the GPU still works"),
        "{advice}"
    );
    tell(&mut job, 40, 1.0);
    let (of_hosts, _) = said(&job);
    assert_eq!(of_hosts.len(), 1);
    assert!(
        of_hosts[0].starts_with("the GPU of rank 2 was busy for 100 %"),
        "{of_hosts:?}"
    );
}
