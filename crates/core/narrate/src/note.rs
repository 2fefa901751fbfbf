//! What stands beside the incidents of a verdict.

use model::{CallLogNote, DevicesSeen, ReadBackSummary, Side, UnlikeDevice, VerdictNote};

use crate::words::{duration, its, of, percent, who};
use crate::{network, pipeline, source_note};

const DEVICES_UNSEEN: &str = "hosts run ahead of their devices: without device marks, a slow device \
    cannot be identified, and what fixing a late host saves is an estimate (`laggard doctor` says \
    whether they are on)";
const STAGES_OF_HOSTS: &str = "stages are measured on the hosts, which run ahead of their devices: only \
    kernels in the traces show a slow device, by its functions and by who is late to collectives";
const DEVICES_UNCOMPARED: &str = "no collective shows which device the others wait for, and sends and \
    receives do not show it either";
const DEVICE_ISSUES_UNSEEN: &str = "no device mark shows where collectives are issued: a device \
    with a slow backward pass looks like the devices that wait for it; PyTorch 2.15 or later has \
    the hooks";
const DEVICES_DIFFER: &str = "ranks make different calls in most steps, as in a hand-written \
    pipeline: the time that a device waits for others then looks like work; blocks of \
    torch.distributed.pipelining show which device is slow";
const DEVICES_MAY_BE_UNSEEN: &str = "nothing shows whether hosts wait for one another or run ahead of their devices; if they \
    run ahead, a slow device cannot be observed without device marks (`laggard doctor` \
    says whether they are on)";
const NO_END_OF_A_STEP: &str = "no window was analysed: no end of a step was recognised; if the \
    job trained longer, call `laggard.step()` at the end of each step on all ranks";
const BLOCKS_UNSEEN: &str = "hosts launch pipeline blocks before their input is there: a slow \
    block cannot be identified without device marks";

fn incomplete(steps: u64, share: f64) -> String {
    // Of steps in files it is not known how long they took.
    let of_time = if share > 0.0 {
        format!(", {} of the time,", percent(share))
    } else {
        String::new()
    };
    format!("{steps} steps{of_time} were not fully recorded on every rank and are left out")
}

/// Words a note.
pub fn note(note: &VerdictNote) -> String {
    match note {
        VerdictNote::MissingRank { rank, steps } => {
            format!("rank {rank} delivered nothing in {steps} steps")
        }
        VerdictNote::RankLeft {
            rank,
            step,
            last_step,
        } => format!("rank {rank} ended in step {step}; the others went on to step {last_step}"),
        VerdictNote::IncompleteSteps { steps, share } => incomplete(*steps, *share),
        // Which of their collectives belong together is unknown there.
        VerdictNote::MismatchedSteps { steps } => format!(
            "collectives differed between ranks in {steps} steps; these steps are accounted \
             without arrival times"
        ),
        // Ranks that wait for each other leave together, no matter which came last.
        VerdictNote::ArrivalsUnknown => {
            "arrival times at collectives were not recorded: a late rank can be named only in \
             stages that do not synchronise"
                .to_owned()
        }
        VerdictNote::WindowsDropped { windows } => {
            format!("the first {windows} windows are left out of this list")
        }
        VerdictNote::Restarted { times } => {
            format!("the job was restarted ({times}); steps are counted from the last start")
        }
        VerdictNote::OtherHosts => {
            "ranks of other hosts are not recorded: this verdict covers the ranks of this host only"
                .to_owned()
        }
        VerdictNote::HostUnheard { host } => {
            format!("host {host} sent nothing for a while: records of its ranks may be missing")
        }
        VerdictNote::OneStep { on_one_clock: true } => {
            "only one step was recorded: if a rank enters it late, the cause lies before it and is \
             accounted as step.entry_skew"
                .to_owned()
        }
        VerdictNote::OneStep {
            on_one_clock: false,
        } => "only one step was recorded, and clocks cannot be compared: a rank that entered it \
             early and waited may look late"
            .to_owned(),
        VerdictNote::NoTraining => {
            "no training was recorded: no optimizer ran in a process that had loaded laggard; \
             `laggard doctor` checks the installation"
                .to_owned()
        }
        VerdictNote::NoWindow {
            steps,
            ranks,
            warmup_steps,
            min_steps,
        } if *steps > 1 => format!(
            "no window was analysed: {steps} steps of {ranks} ranks were recorded; the first \
             {warmup_steps} are warm-up, and at least {min_steps} more are needed"
        ),
        VerdictNote::NoWindow { .. } => NO_END_OF_A_STEP.to_owned(),
        VerdictNote::Profiled {
            steps: (first, last),
            ranks,
            stall_s,
            write_s,
            slowdown,
        } => {
            let slowdown = slowdown.map_or(String::new(), |times| {
                format!(", steps took {times:.2} times as long")
            });
            format!(
                "steps {first}-{last} were profiled on {}: the loop paused for {stall_s:.2} s to \
                 start and stop the profiler, and for {write_s:.2} s to write the trace{slowdown}; \
                 these steps are left out of the accounting",
                who(ranks)
            )
        }
        VerdictNote::CollectivesCompared { collectives } => {
            format!("{collectives} collectives were timed on more than one rank and compared")
        }
        VerdictNote::LogsEndEarlier {
            op,
            group,
            last,
            ranks,
            first,
        } => format!(
            "the last {} of group {group} in a log is #{last}; the logs of {} end earlier, at \
             #{first} or later: these ranks stopped before the others, or their logs were written \
             earlier",
            op.name(),
            who(ranks)
        ),
        VerdictNote::AmbiguousSteps { steps } => format!(
            "in {steps} steps a rank was late or waited for its device, and it is unknown which. \
             These hosts do not meet in each step, and no majority shows what is usual; device \
             marks would show it (`laggard doctor` says whether they are on)"
        ),
        VerdictNote::DevicesUnseen => DEVICES_UNSEEN.to_owned(),
        VerdictNote::StagesOfHosts => STAGES_OF_HOSTS.to_owned(),
        VerdictNote::DevicesUncompared => DEVICES_UNCOMPARED.to_owned(),
        VerdictNote::DeviceIssuesUnseen => DEVICE_ISSUES_UNSEEN.to_owned(),
        VerdictNote::DevicesDiffer => DEVICES_DIFFER.to_owned(),
        VerdictNote::DevicesMayBeUnseen => DEVICES_MAY_BE_UNSEEN.to_owned(),
        VerdictNote::DeviceWait { share, devices } => device_wait(*share, *devices),
        VerdictNote::ReadBack(of_line) => read_back(of_line),
        VerdictNote::SilentWait {
            per_step,
            idle_share_max,
        } => silent_wait(*per_step, *idle_share_max),
        VerdictNote::BlocksUnseen => BLOCKS_UNSEEN.to_owned(),
        VerdictNote::Uncompared { ranks } => format!(
            "{} {} a role of {} own and {} compared with no other rank outside pipeline blocks; \
             device marks would allow a comparison (`laggard doctor` says whether they are on)",
            who(ranks),
            of(ranks, "has", "have each"),
            its(ranks),
            of(ranks, "was", "were"),
        ),
        VerdictNote::UnlikeDevice(device) => unlike_device(device),
        VerdictNote::Network { rank, fault } => network::fault(*rank, fault, None).text,
        VerdictNote::Calls(of_logs) => calls(of_logs),
        VerdictNote::LostRecords { records, ranks } => format!(
            "{records} records of {} were overwritten before they were read",
            who(ranks)
        ),
        VerdictNote::Source(of_source) => source_note(of_source),
    }
}

fn calls(note: &CallLogNote) -> String {
    match note {
        CallLogNote::NoIterations => {
            "nothing in the logs marks iterations: no collective is entered once per iteration by \
             all ranks"
                .to_owned()
        }
        CallLogNote::NothingCompared { why } => format!("nothing was compared: {why}"),
        CallLogNote::NoSchedule => {
            "no pipeline schedule explains the sends and receives of the ranks: blocks are not \
             distinguished"
                .to_owned()
        }
        CallLogNote::HostsAhead => {
            "hosts launch blocks before their input is there: calls show when blocks are launched, \
             not which block is slow"
                .to_owned()
        }
        CallLogNote::FewIterations { timed } => {
            format!("only {timed} iterations are timed, too few to know the usual time")
        }
        // Logs end in the middle of work, too, where recording stopped.
        CallLogNote::LogsEnd(halt) => format!(
            "the logs end in iteration {} with nothing else under way: if the job hung, {}",
            halt.iteration,
            pipeline::halt_point(halt)
        ),
        CallLogNote::NoLog { ranks } => format!("no log of {}", who(ranks)),
        CallLogNote::PartialLogs {
            ranks,
            span,
            whole,
            iterations,
            lost,
        } => {
            let seen = match span {
                Some((from, to)) => format!("iterations {from}-{to}"),
                None => "no iteration".to_owned(),
            };
            let lost = match lost {
                0 => String::new(),
                lost => format!(
                    "; {lost} operations are missing in the logs, which is neither lateness nor \
                     a hang"
                ),
            };
            format!(
                "coverage is partial: whole records of {} cover {seen}, {whole} of \
                 {iterations}{lost}",
                who(ranks),
            )
        }
        // A rank that is late by as much at every meeting looks like one whose clock is behind.
        CallLogNote::OffClocks { ranks } => format!(
            "clocks of {} differ from the others' and were corrected by the meetings of ranks: \
             steady lateness of these ranks is unknown",
            who(ranks)
        ),
    }
}

fn device_wait(share: f64, devices: DevicesSeen) -> String {
    let known = match devices {
        DevicesSeen::None => {
            "; without device marks, a slow device and the host's own work there cannot be \
             observed, and what fixing a late host saves is an estimate"
        }
        // An incident names it.
        DevicesSeen::Slower => "",
        DevicesSeen::Alike => "; no device is slower than the others",
    };
    format!(
        "the hosts spend {} of the step at points where they wait for their devices{known}",
        percent(share)
    )
}

fn read_back(of_line: &ReadBackSummary) -> String {
    let line = of_line.line.as_deref().unwrap_or("other lines");
    let often = often(of_line.per_step, "read-back");
    // "Up to": how soon the host was ahead again is known by bounds only.
    let idle = percent(of_line.idle_share_max);
    format!("{often} at {line} may leave the device idle for up to {idle} of the step")
}

fn unlike_device(device: &UnlikeDevice) -> String {
    let UnlikeDevice { rank, stage, .. } = device;
    let [took, others] = [device.took_s, device.others_s].map(duration);
    match device.side {
        Side::Device => format!(
            "rank {rank}'s device takes {took} of a step in {stage}, devices of other roles take \
             {others}: either its role has more work or the device is slow; swap the devices of two \
             ranks, and check whether the difference moves with the device"
        ),
        Side::Host => format!(
            "rank {rank}'s device waits for its host for {took} of a step in {stage}, devices of other \
             roles for {others}: either its role has more to launch or the host is slow; profile both"
        ),
    }
}

fn silent_wait(per_step: f64, idle_share_max: f64) -> String {
    format!(
        "{} for the device without reading back may leave it idle for up to {} of the step: a copy \
         from memory that is not pinned (pin_memory=True, non_blocking=True) waits like this",
        often(per_step, "wait"),
        percent(idle_share_max)
    )
}

/// How often something happens in a step.
fn often(per_step: f64, what: &str) -> String {
    match per_step.round() as u64 {
        // Fewer than one in two steps would be written as none.
        0 => format!("a {what} in {} of the steps", percent(per_step)),
        1 => format!("1 {what} a step"),
        many => format!("{many} {what}s a step"),
    }
}
