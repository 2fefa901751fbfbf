use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::align::JobStep;
use crate::testkit;

/// Steps of ranks that take these milliseconds until each mark.
fn job_steps(took_ms: &[Vec<[u64; 7]>]) -> Vec<JobStep> {
    steps_of(["D0", "D1", "F0", "B0", "K", "B1", "O1"], took_ms)
}

/// The same with these marks.
fn steps_of(marks: [&str; 7], took_ms: &[Vec<[u64; 7]>]) -> Vec<JobStep> {
    let mut steps: Vec<JobStep> = Vec::new();
    for (rank, took_ms) in (0..).zip(took_ms) {
        let words = took_ms.iter().flat_map(|took_ms| marks.iter().zip(took_ms));
        let text: Vec<String> = words.map(|(word, ms)| format!("{word}+{ms}")).collect();
        for (step, piece) in testkit::steps(&text.join(" ")).into_iter().enumerate() {
            if step == steps.len() {
                steps.push(JobStep {
                    step: piece.step,
                    ranks: BTreeMap::new(),
                });
            }
            steps[step].ranks.insert(rank, piece);
        }
    }
    steps
}

proptest! {
    /// Cuts behind the one where ranks issue collectives are not looked at where that one
    /// cannot be wrong.
    #[test]
    fn a_cut_beyond_doubt_is_the_one_that_is_chosen_among_all(
        noise_ms in 1..20u64,
        (late_ms, waits_ms) in (0..80u64, 0..80u64),
        mut took_ms in prop::collection::vec(
            prop::collection::vec(prop::array::uniform7(0..20u64), 8), 2..6),
    ) {
        for (rank, steps) in took_ms.iter_mut().enumerate() {
            for took_ms in steps {
                *took_ms = took_ms.map(|ms| 1 + ms % noise_ms);
                // The first is late; the others wait for it before the cut where collectives
                // are issued, behind it, or some of it at either.
                let [_, data, .., backward, optimizer] = took_ms;
                if rank == 0 {
                    *data += late_ms;
                } else {
                    *backward += waits_ms.min(late_ms);
                    *optimizer += late_ms.saturating_sub(waits_ms);
                }
            }
        }
        let steps = job_steps(&took_ms);
        let ranks: Vec<u32> = (0..).take(took_ms.len()).collect();
        let steps = DeliveredSteps::new(steps.first(), &steps[1..], &ranks);
        let Cut::After(kind) = issued_cut(&cuts_behind_issues(&steps), &steps) else {
            return Ok(());
        };
        let all: Vec<CandidateCut> = [Cut::After(kind)]
            .into_iter()
            .chain(cuts_behind(kind, &steps))
            .map(|cut| CandidateCut::measured(cut, &steps, &[], ranks.len()))
            .collect();
        let among_all = choose_among(&all, ranks.len());
        let among_all = on_own_clocks(among_all, Cut::After(kind), &steps, ranks.len(), &mut OwnClocks::default());
        let chosen = choose_cut(&steps, &[], &mut OwnClocks::default());
        prop_assert_eq!(format!("{chosen:?}"), format!("{among_all:?}"));
    }

    /// Ranks of a blocking host that do not get their cores back together are seen to meet.
    #[test]
    fn ranks_that_leave_a_meeting_apart_are_seen_to_meet(
        late_ms in 20..40u64,
        noise_ms in prop::collection::vec(prop::array::uniform3(0..3u64), 40..80),
    ) {
        let steps = sharing_cores(late_ms, &noise_ms, true);
        let chosen = choose(&steps, &mut OwnClocks::default());
        prop_assert_eq!(chosen.cut, Cut::After(MarkKind::BackwardEnd));
        prop_assert!(!chosen.runs_ahead);
    }
}

/// Two tensor-parallel ranks, one of them half as fast, wait behind each collective at once. At the
/// end of the backward pass, which holds the last one, they are apart.
#[test]
fn devices_that_wait_in_the_forward_pass_are_seen_to_meet_behind_it() {
    let (mut at_ms, mut took_ms) = ([0; 2], vec![Vec::new(); 2]);
    for step in 0..24 {
        let noise_ms = |rank: u64, place: u64| (step * 7 + rank * 5 + place * 3) % 4;
        let mut took_here = [[0; 7]; 2];
        let mut arrived_ms = 0;
        for place in 0..7 {
            for (rank, at_ms) in (0..).zip(&mut at_ms) {
                let own_ms = [1, 1, 40, 5, 60, 60, 30][place as usize] * (rank + 1);
                // Behind the collectives, the third and the fifth, the last is waited for.
                let from_ms = if place == 3 || place == 5 {
                    arrived_ms
                } else {
                    *at_ms
                };
                let left_ms = from_ms + own_ms + noise_ms(rank, place);
                took_here[rank as usize][place as usize] = left_ms - *at_ms;
                *at_ms = left_ms;
            }
            arrived_ms = at_ms[0].max(at_ms[1]);
        }
        for (took_ms, here) in took_ms.iter_mut().zip(took_here) {
            took_ms.push(here);
        }
    }
    let steps = steps_of(["D0", "D1", "K", "B0", "K", "B1", "O1"], &took_ms);
    let steps = DeliveredSteps::new(steps.first(), &steps[1..], &[0, 1]);
    let chosen = choose_device_cut(&steps, |_| false, |_| None);
    assert_eq!(chosen.cut, Cut::After(MarkKind::BackwardBegin));
    assert_eq!(chosen.meeting, Meeting::Seen);
}

/// Three of four ranks are late, each in another stage, and the fourth waits for them where gradients are
/// clipped.
#[test]
fn a_host_that_waits_for_all_others_is_not_late_where_it_reads_back() {
    let noise_ms = |rank: u64, step: u64| (step * 7 + rank * 5) % 3;
    let took_ms = [[0, 35, 0], [45, 0, 0], [0, 0, 45], [0; 3]].map(|[callback, data, forward]| {
        let rank = callback + data + forward;
        let steps = (0..24).map(move |step| {
            let own_ms = [1 + callback, 2 + data, 1, 3 + forward, 1, 2, 1]
                .map(|ms| ms + noise_ms(rank, step));
            let [.., optimizer] = own_ms;
            let mut took_ms = own_ms;
            took_ms[6] = optimizer + 80 - own_ms.iter().sum::<u64>();
            took_ms
        });
        steps.collect::<Vec<_>>()
    });
    let steps = job_steps(&took_ms);
    let steps = DeliveredSteps::new(steps.first(), &steps[1..], &[0, 1, 2, 3]);
    let cut_on =
        |hosts: [&str; 4]| choose_cut(&steps, &hosts.map(Some), &mut OwnClocks::default()).cut;
    assert_eq!(cut_on(["a"; 4]), Cut::After(MarkKind::OptimizerEnd));
    // Without a common clock nothing shows it.
    assert_ne!(cut_on(["a", "b", "c", "d"]), cut_on(["a"; 4]));
}

/// Of two ranks, whose gradients two all-reduces sum, one takes longer behind the second. The other
/// waits for it behind the first of the next step.
#[test]
fn devices_that_wait_for_a_late_host_behind_the_first_collective_meet_at_the_last_one() {
    let late_ms = |rank: usize, step: u64| if rank == 0 { 25 + step * 3 % 5 } else { 0 };
    let took_ms = [0, 1].map(|rank| {
        let steps = (0..24).map(|step: u64| {
            let waits_ms = late_ms(1 - rank, step.saturating_sub(1));
            [1, 18, 25, 1, 1 + waits_ms, 9 + late_ms(rank, step), 1]
        });
        steps.collect::<Vec<_>>()
    });
    let steps = steps_of(["D0", "B0", "B1", "K", "K", "O0", "O1"], &took_ms);
    let steps = DeliveredSteps::new(steps.first(), &steps[1..], &[0, 1]);
    let held_up = |cut| cut != Cut::After(MarkKind::CollectiveIssue);
    let chosen = choose_device_cut(&steps, held_up, |_| None);
    assert_eq!(chosen.cut, Cut::After(MarkKind::CollectiveIssue));
    assert_ne!(
        choose_device_cut(&steps, |_| false, |_| None).cut,
        chosen.cut
    );
}

#[test]
fn short_windows_of_one_job_show_together_that_ranks_meet() {
    let noise_ms: Vec<[u64; 3]> = (0..60)
        .map(|step| [7, 11, 13].map(|it| step * it % 5))
        .collect();
    let steps = sharing_cores(25, &noise_ms, true);
    let (mut alone, mut clocks) = (OwnClocks::default(), OwnClocks::default());
    assert!(choose(&steps[..12], &mut alone).runs_ahead);
    let last = steps
        .chunks_exact(12)
        .map(|steps| choose(steps, &mut clocks))
        .last();
    assert!(last.is_some_and(|last| !last.runs_ahead));
    // What held before holds no more for ranks that wait for nobody.
    let steps = sharing_cores(25, &noise_ms, false);
    assert!(choose(&steps, &mut clocks).runs_ahead);
}

/// Steps of three ranks on fewer cores, which take turns in getting one; rank 1 is late, and
/// they wait for one another or not.
fn sharing_cores(late_ms: u64, noise_ms: &[[u64; 3]], waits: bool) -> Vec<JobStep> {
    let mut at_ms = [0; 3];
    let mut took_ms = vec![Vec::new(); 3];
    for (step, noise_ms) in noise_ms.iter().enumerate() {
        let mut leaves_ms = *noise_ms;
        leaves_ms[step % 2 * 2] += 7;
        let begun_ms = at_ms;
        for (rank, at_ms) in at_ms.iter_mut().enumerate() {
            *at_ms += 6 + if rank == 1 { late_ms } else { 0 };
        }
        let last_ms = at_ms.into_iter().max().unwrap_or(0);
        for rank in 0..3 {
            let own_ms = at_ms[rank] - begun_ms[rank] - 5;
            let free_ms = if waits { last_ms } else { at_ms[rank] };
            let left_ms = free_ms + 1 + leaves_ms[rank];
            took_ms[rank].push([1, own_ms, 1, 1, 1, left_ms - at_ms[rank], 1]);
            at_ms[rank] = left_ms + 1;
        }
    }
    job_steps(&took_ms)
}

fn choose(steps: &[JobStep], clocks: &mut OwnClocks) -> ChosenCut {
    let steps = DeliveredSteps::new(steps.first(), &steps[1..], &[0, 1, 2]);
    choose_cut(&steps, &[], clocks)
}
