//! Jobs of two ranks that share a GPU, whose hosts run ahead of it.

use model::{Conclusion, IncidentKind, Severity, Side, Verdict};

use crate::live_devices::{only, played};

fn verdict(recording: &str) -> Verdict {
    played(&format!("h200/{recording}"), |_| true)
}

/// A late host of the Trainer, or of Lightning: before PyTorch 2.15 nothing records what these have
/// reduced or broadcast outside of buckets of gradients. And one that waits for its device in a copy,
/// and goes on working before the next mark.
#[test]
fn who_is_late_in_jobs_of_other_frameworks_is_charged_what_that_costs() {
    let faults = [
        ("trainer_loader", "data.next_wait", 28.1..29.6),
        ("trainer_callback", "callbacks.cpu_wall", 30.0..33.4),
        ("lightning_forward", "model.fwd_loss_cpu_wall", 20.9..27.3),
        ("averaged_forward", "model.fwd_loss_cpu_wall", 44.0..44.0),
    ];
    for (recording, stage, true_ms) in faults {
        let verdict = verdict(recording);
        let incident = &verdict.incidents[0];
        let subject = &incident.subject;
        assert_eq!(
            (&subject.ranks[..], subject.stage.as_deref(), subject.side),
            (&[1][..], Some(stage), Some(Side::Host)),
            "{recording}: {}",
            incident.text
        );
        let struck = incident.evidence[0].values["struck_steps"];
        let charged_ms = incident.cost_s * 1e3 / struck;
        // Of all whose side is known, so that the device that waits for rank 1 is not slow.
        let sided = verdict.incidents.iter().map(|it| &it.subject);
        let mut sided = sided.filter(|subject| subject.side.is_some());
        assert!(sided.all(|subject| subject.ranks == [1]), "{recording}");
        let bounds = true_ms.start * 0.9..=true_ms.end * 1.2;
        assert!(bounds.contains(&charged_ms), "{recording}: {charged_ms} ms");
    }
}

/// Three ranks average their weights in every eighth step, in which two of them wait for all that the
/// third fell behind since.
#[test]
fn who_waits_in_every_eighth_step_is_not_named() {
    for (recording, true_ms) in [("every_eighth_device", 32.8), ("every_eighth_loader", 10.8)] {
        let verdict = verdict(recording);
        let named = verdict.incidents.iter().map(|it| &it.subject.ranks[..]);
        assert!(!verdict.incidents.is_empty(), "{recording}");
        assert!(
            named.into_iter().all(|ranks| ranks == [1]),
            "{:#?}",
            verdict.incidents
        );
        let cost_s: f64 = verdict.incidents.iter().map(|it| it.cost_s).sum();
        let charged_ms = cost_s * 1e3 / verdict.job.analysed_steps as f64;
        let ratio = charged_ms / true_ms;
        assert!(
            (0.7..=1.1).contains(&ratio),
            "{recording}: charged {ratio:.2} of it"
        );
    }
}

/// Three ranks, of which the first broadcasts its buffers along a ring at the begin of each forward pass:
/// the third waits there for the second, and the first for nobody. And three that hand their work on to
/// one another, of which two wait in forward passes for the third's backward passes.
#[test]
fn who_waits_where_others_do_not_is_not_named() {
    const FORWARD: &str = "model.fwd_loss_cpu_wall";
    const BACKWARD: &str = "model.backward_cpu_wall";
    let faults = [
        ("batch_norm_forward", FORWARD, Side::Host, 26.8),
        ("batch_norm_workers", "data.next_wait", Side::Host, 241.3),
        ("by_hand_backward", BACKWARD, Side::Device, 42.0),
        ("epoch_loader", "data.next_wait", Side::Host, 6.9),
    ];
    for (recording, stage, side, true_ms) in faults {
        let verdict = verdict(recording);
        assert!(!verdict.incidents.is_empty(), "{recording}");
        for incident in &verdict.incidents {
            let subject = &incident.subject;
            assert_eq!(
                (&subject.ranks[..], subject.stage.as_deref()),
                (&[1][..], Some(stage)),
                "{recording}: {}",
                incident.text
            );
            assert!(subject.side.is_none_or(|it| it == side), "{recording}");
        }
        let cost_s: f64 = verdict.incidents.iter().map(|it| it.cost_s).sum();
        let ratio = cost_s * 1e3 / verdict.job.analysed_steps as f64 / true_ms;
        assert!(
            (0.75..=1.2).contains(&ratio),
            "{recording}: charged {ratio:.2} of it"
        );
    }
}

/// Ranks wait for buffers along a ring, and for gradients, and seem to meet in several places.
#[test]
fn a_slow_device_is_named_beside_one_that_waits_for_buffers() {
    let verdict = verdict("adapters_device");
    let subject = &verdict.incidents[0].subject;
    assert_eq!(
        (&subject.ranks[..], subject.stage.as_deref(), subject.side),
        (&[1][..], Some("callbacks.cpu_wall"), Some(Side::Device)),
        "{}",
        verdict.incidents[0].text
    );
    let others = &verdict.incidents[1..];
    assert!(others.iter().all(|it| it.severity == Severity::Info));
}

/// Ranks 0 and 1, and 2 and 3, share parameters, and 0 and 2, and 1 and 3, their gradients. Rank 3 waits
/// for rank 2 in each layer, and the steps of ranks begin milliseconds apart.
#[test]
fn a_slow_device_is_named_without_the_rank_that_shares_its_parameters() {
    let verdict = verdict("hybrid_device");
    for incident in &verdict.incidents {
        let subject = &incident.subject;
        assert_eq!(
            (&subject.ranks[..], subject.side),
            (&[2][..], Some(Side::Device)),
            "{}",
            incident.text
        );
    }
    let last = verdict.incidents.iter().find(|it| it.open).unwrap();
    let stages = ["model.backward_cpu_wall", "model.fwd_loss_cpu_wall"];
    assert!(stages.map(Some).contains(&last.subject.stage.as_deref()));
}

/// Kernels of rank 1's device take twice as long in steps 20 to 69, and those of rank 2's from then on.
#[test]
fn a_device_that_is_slow_after_another_was_is_named() {
    let verdict = verdict("migrates");
    let named = verdict.incidents.iter().map(|it| {
        let subject = &it.subject;
        (subject.ranks.clone(), subject.side, it.first_step)
    });
    let mut named: Vec<_> = named.collect();
    named.sort();
    let device = Some(Side::Device);
    assert_eq!(named, [(vec![1], device, 20), (vec![2], device, 70)]);
}

/// The loss is read before the optimizer, and both are callbacks.
#[test]
fn a_rank_that_pauses_behind_its_optimizer_now_and_then_is_named() {
    let verdict = verdict("trainer_pause");
    let incident = only(&verdict);
    let subject = &incident.subject;
    assert_eq!(
        (&subject.ranks[..], subject.stage.as_deref()),
        (&[1][..], Some("callbacks.cpu_wall")),
        "{}",
        incident.text
    );
    let charged_ms = incident.cost_s * 1e3 / verdict.job.analysed_steps as f64;
    assert!((12.0..17.5).contains(&charged_ms), "{charged_ms} ms");
}

/// The fault is there from the first step on, so that no earlier step shows what is usual, and of two
/// ranks none is in the majority. Its true cost is what a step of the same job takes longer with it
/// than without it.
#[test]
fn who_is_late_is_named_and_charged_what_it_costs() {
    const LOADER: &str = "data.next_wait";
    const FORWARD: &str = "model.fwd_loss_cpu_wall";
    const BACKWARD: &str = "model.backward_cpu_wall";
    let faults = [
        ("loader_after", Side::Host, LOADER, 62.4),
        ("loader_never", Side::Host, LOADER, 50.2),
        ("callback_never", Side::Host, "callbacks.cpu_wall", 50.0),
        ("forward_never", Side::Host, FORWARD, 57.2),
        ("device_forward_never", Side::Device, FORWARD, 37.9),
        ("device_backward_after", Side::Device, BACKWARD, 31.9),
        ("device_backward_never", Side::Device, BACKWARD, 31.9),
        (
            "device_optimizer_never",
            Side::Device,
            "optim.step_cpu_wall",
            36.8,
        ),
    ];
    for (recording, side, stage, true_ms) in faults {
        let verdict = verdict(recording);
        let [incident] = &verdict.incidents[..] else {
            panic!("{recording}: {:#?}", verdict.incidents)
        };
        let subject = &incident.subject;
        assert_eq!(
            (&subject.ranks[..], subject.stage.as_deref(), subject.side),
            (&[1][..], Some(stage), Some(side)),
            "{recording}: {}",
            incident.text
        );
        // It goes on to the end, whatever is left out for a profile window.
        assert!(incident.text.contains("since step 5"), "{}", incident.text);
        let struck = incident.evidence[0].values["struck_steps"];
        let ratio = incident.cost_s * 1e3 / struck / true_ms;
        assert!(
            (0.9..=1.1).contains(&ratio),
            "{recording}: charged {ratio:.2} of it"
        );
    }
}

/// Of two tensor-parallel ranks the one whose kernels take twice as long. The other one takes as long in
/// its passes, as it waits there.
#[test]
fn who_waits_in_a_tensor_parallel_pass_is_not_named() {
    let verdict = verdict("tensor_device");
    let incident = only(&verdict);
    let subject = &incident.subject;
    assert_eq!(
        (&subject.ranks[..], subject.side),
        (&[1][..], Some(Side::Device))
    );
    let ratio = incident.cost_s * 1e3 / verdict.job.analysed_steps as f64 / 30.7;
    assert!((0.8..=1.1).contains(&ratio), "charged {ratio:.2} of it");
}

/// Three ranks, of which one runs in a loop for ever; those that read back wait for it on the host.
#[test]
fn a_host_that_never_comes_back_is_named_though_others_run_ahead() {
    let verdict = verdict("spin");
    let hang = &verdict.incidents[0];
    assert_eq!(
        (hang.kind, &hang.subject.ranks[..]),
        (IncidentKind::Hang, &[1][..])
    );
    let said = "rank 1 never entered ALLREDUCE #124 of group default (ranks 0,2 wait in it)";
    assert!(hang.text.contains(said), "{}", hang.text);
}

#[test]
fn a_healthy_job_that_never_reads_back_is_healthy() {
    let mut verdict = verdict("healthy_never");
    assert_eq!(verdict.incidents, []);
    assert_eq!(verdict.conclusion(), Some(Conclusion::Healthy));
    // Another rank may be what these wait for.
    verdict.job.ranks_unseen = true;
    assert_eq!(verdict.conclusion(), Some(Conclusion::RanksUnseen));
}

/// In the second, ranks hand their work on to one another.
#[test]
fn where_waits_of_devices_look_like_work_a_job_is_not_called_healthy() {
    let unseen = [
        (
            "device_backward_unmarked",
            "no device mark shows where collectives are issued",
        ),
        ("by_hand", "ranks make different calls in most steps"),
    ];
    for (recording, said) in unseen {
        let verdict = verdict(recording);
        assert_eq!(verdict.incidents, [], "{recording}");
        assert_eq!(verdict.conclusion(), Some(Conclusion::DeviceWaitsUnseen));
        assert!(
            verdict.notes.iter().any(|note| note.starts_with(said)),
            "{:?}",
            verdict.notes
        );
    }
}

#[test]
fn a_kernel_that_never_ends_is_told_of_by_the_collective_it_keeps_its_gpu_from() {
    let verdict = verdict("stop_kernel");
    let hang = &verdict.incidents[0];
    assert_eq!(
        (hang.kind, &hang.subject.ranks[..]),
        (IncidentKind::Hang, &[1][..])
    );
    let said = "hang since step 26: the GPU of rank 1 never began ALLREDUCE #74";
    assert!(hang.text.starts_with(said), "{}", hang.text);
}
