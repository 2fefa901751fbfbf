//! One iteration of a running job, mark by mark: 32 a rank, and what is said of all of them.

use divan::{Bencher, black_box};
use laggard_schedule::{ScheduleSettings, Scheme, Watch};
use model::{BlockPlace, Event, Mark, RankNs};

const STAGES: u32 = 8;
const MICROBATCHES: u32 = 8;
const BLOCK_NS: u64 = 40_000_000;

fn main() {
    divan::main();
}

/// A mark of the training loop, at `at_ns` on the rank's clock.
fn mark(step: u32, at_ns: u64, event: Event) -> Mark {
    Mark {
        at: RankNs(at_ns),
        step,
        on_loop_thread: true,
        event,
    }
}

#[divan::bench(args = [1_000, 10_000, 100_000], sample_count = 5, sample_size = 1)]
fn iteration(bencher: Bencher<'_, '_>, ranks: u32) {
    let plan = Scheme::OneForwardOneBackward.plan(STAGES, MICROBATCHES);
    let mut watch = Watch::new(ScheduleSettings::default());
    let mut step = 0;
    let mut iteration = || {
        step += 1;
        let begin_ns = u64::from(step) << 40;
        for at in 0..2 * MICROBATCHES as usize {
            for rank in 0..ranks {
                let stage = rank % STAGES;
                let block = plan.order(stage as usize)[at];
                let place = BlockPlace {
                    pass: block.pass,
                    stage,
                    microbatch: block.microbatch,
                    stages: STAGES,
                    first_rank: rank - stage,
                };
                let at_ns = begin_ns + at as u64 * BLOCK_NS;
                black_box(watch.mark(rank, &mark(step, at_ns, Event::BlockBegin(place))));
                black_box(watch.mark(rank, &mark(step, at_ns + BLOCK_NS, Event::BlockEnd(place))));
            }
        }
    };
    // Schedule and expectations are known.
    (0..5).for_each(|_| iteration());
    bencher.bench_local(iteration);
}
