//! One slow iteration of a whole job: critical paths of all its pipelines.
//!
//! MegaTrace publishes 66 ms for the slowest pipeline of 4,096 ranks and 36.8 s for all of
//! them. Here all pipelines are as slow as each other, so that none is left out. Every rank is
//! a pipeline stage of its own: with tensor parallelism there is less to do.

use divan::{Bencher, black_box};
use laggard_schedule::{Graph, Localiser, ScheduleSettings, Scheme};

const STAGES: u32 = 8;
const MICROBATCHES: u32 = 32;

fn main() {
    divan::main();
}

#[divan::bench(args = [64, 4_096, 131_072], sample_count = 10, sample_size = 1)]
fn all_pipelines(bencher: Bencher<'_, '_>, ranks: u32) {
    let plan = Scheme::OneForwardOneBackward.plan(STAGES, MICROBATCHES);
    let Ok(graph) = Graph::new(plan) else { return };
    let mut usual = vec![0.04; graph.nodes()];
    let mut localiser = Localiser::new(graph, &ScheduleSettings::default());
    localiser.learn(10.0, std::slice::from_ref(&usual), true);
    usual[100] += 5.0;
    let pipelines = vec![usual; (ranks / STAGES) as usize];
    bencher.bench_local(|| localiser.judge(black_box(15.0), black_box(&pipelines)));
}
