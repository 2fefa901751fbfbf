//! What a mark costs the training process.
//!
//! The ring is written past its end again and again, so what is measured is overwriting,
//! the steady state of a ring nobody reads.

use divan::{Bencher, black_box};
use laggard_ring::{Identity, ProfileMailbox, RingDirectory, RingReader, RingWriter};
use model::{Event, Mark, RankNs};

fn main() {
    divan::main();
}

fn mark() -> Mark {
    Mark {
        at: RankNs(1),
        step: 2,
        on_loop_thread: true,
        event: Event::DataBegin,
    }
}

#[divan::bench(sample_size = 10_000)]
fn write(bencher: Bencher<'_, '_>) {
    let root = tempfile::tempdir().expect("a temporary directory");
    let directory = RingDirectory::create(root.path(), "bench").expect("a ring directory");
    let ring = RingWriter::create(&directory, &Identity::default(), 32_768).expect("a ring");
    bencher.bench_local(|| ring.write(black_box(mark())));
}

#[divan::bench(sample_size = 1)]
fn drain_1000(bencher: Bencher<'_, '_>) {
    let root = tempfile::tempdir().expect("a temporary directory");
    let directory = RingDirectory::create(root.path(), "bench").expect("a ring directory");
    let ring = RingWriter::create(&directory, &Identity::default(), 32_768).expect("a ring");
    let mut reader = RingReader::open(ring.path()).expect("the ring");
    bencher
        .with_inputs(|| (0..1000).for_each(|_| ring.write(mark())))
        .bench_local_values(|()| {
            reader.drain(usize::MAX, |drained| {
                black_box(drained);
            })
        });
}

/// What each step looks at while no profile window is ordered.
#[divan::bench(sample_size = 10_000)]
fn look_at_the_mailbox(bencher: Bencher<'_, '_>) {
    let root = tempfile::tempdir().expect("a temporary directory");
    let directory = RingDirectory::create(root.path(), "bench").expect("a ring directory");
    let mailbox = ProfileMailbox::create(&directory, &Identity::default()).expect("a mailbox");
    bencher.bench_local(|| black_box(&mailbox).last_order());
}
