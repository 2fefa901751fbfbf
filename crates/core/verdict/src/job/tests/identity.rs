//! What an incident is called never stands for another one.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    Block, BlockPlace, Boundary, CollectiveIssue, CollectiveOp, Ending, FunctionClass,
    IncidentKind, MarkKind, Pattern, ProfileWindow, RankNs, Sync, Window, WorkerPatterns,
};
use proptest::prelude::*;

use super::*;

const RANKS: u32 = 4;
const STEPS: u64 = 20;

/// Something that happens to a job.
#[derive(Clone, Debug)]
enum Episode {
    /// A window of steps, in which a rank may be late by so much.
    Window {
        late: Option<u32>,
        by_s: f64,
    },
    /// A rank does not come to a collective; whether it comes later.
    Hang {
        rank: u32,
        passes: bool,
    },
    /// Steps of a pipeline, in the last of which a stage may be slow.
    Pipeline {
        slow: Option<u32>,
    },
    /// A profile, in which a rank collects garbage, or all do.
    Profile {
        rank: Option<u32>,
    },
    Killed {
        rank: u32,
    },
    Restart,
}

fn any_episode() -> impl Strategy<Value = Episode> {
    let rank = || 0..RANKS;
    let one = proptest::option::of(rank());
    prop_oneof![
        4 => (one.clone(), 0.05..0.5).prop_map(|(late, by_s)| Episode::Window { late, by_s }),
        3 => (rank(), any::<bool>()).prop_map(|(rank, passes)| Episode::Hang { rank, passes }),
        6 => one.clone().prop_map(|slow| Episode::Pipeline { slow }),
        2 => one.prop_map(|rank| Episode::Profile { rank }),
        1 => rank().prop_map(|rank| Episode::Killed { rank }),
        1 => Just(Episode::Restart),
    ]
}

/// A job as it goes on.
struct Story {
    job: Job,
    step: u32,
    now_s: u64,
    collectives: u64,
}

impl Story {
    fn begin() -> Self {
        let mut settings = Settings::default();
        // A hang is one whatever came before it.
        settings.hang.quiet_ratio = 0.0;
        let job = Job::new("job", Source::Run, settings);
        let mut story = Self {
            job,
            step: 0,
            now_s: 0,
            collectives: 0,
        };
        story.start();
        story
    }

    fn start(&mut self) {
        let members = (0..RANKS).collect();
        self.job.take(Input::Group {
            group: 1,
            name: "default".to_owned(),
            members,
        });
        (self.step, self.collectives) = (0, 0);
    }

    fn mark(&mut self, rank: u32, event: Event) {
        let at = RankNs(self.now_s * 1_000_000_000);
        let mark = Mark {
            at,
            step: self.step,
            on_loop_thread: true,
            event,
        };
        self.job.take(Input::Mark { rank, mark });
    }

    fn meet(&mut self, ranks: impl IntoIterator<Item = u32>) {
        let sum = CollectiveIssue::new(CollectiveOp::ALLREDUCE, 1, self.collectives);
        for rank in ranks {
            self.mark(rank, Event::CollectiveIssue(sum));
        }
    }

    fn happens(&mut self, event: &Episode) {
        self.now_s += 1;
        match event {
            Episode::Window { late, by_s } => {
                let first = u64::from(self.step);
                self.job.add_window(window(first, *late, *by_s));
                self.step += STEPS as u32;
            }
            Episode::Hang { rank, passes } => {
                self.collectives += 1;
                self.meet((0..RANKS).filter(|other| other != rank));
                self.now_s += 100;
                self.job.take(Input::NoProgress {
                    at: RankNs(self.now_s * 1_000_000_000),
                });
                self.job.take(Input::StacksComplete);
                if *passes {
                    self.meet([*rank]);
                }
            }
            Episode::Pipeline { slow } => {
                (0..3).for_each(|_| self.pipeline(None));
                self.pipeline(*slow);
            }
            Episode::Profile { rank } => self.profile(*rank),
            Episode::Killed { rank } => {
                self.job.take(Input::Killed {
                    rank: *rank,
                    signal: Some(9),
                });
            }
            Episode::Restart => {
                self.job.take(Input::Restart { attempt: 0 });
                self.start();
            }
        }
    }

    fn pipeline(&mut self, slow: Option<u32>) {
        let plan = schedule::Scheme::OneForwardOneBackward.plan(RANKS, 4);
        for rank in (0..RANKS).rev() {
            let begun_s = self.now_s;
            for block in plan.order(rank as usize) {
                let place = BlockPlace {
                    pass: block.pass,
                    stage: rank,
                    microbatch: block.microbatch,
                    stages: RANKS,
                    first_rank: 0,
                };
                self.mark(rank, Event::BlockBegin(place));
                self.now_s += if slow == Some(rank) { 60 } else { 2 };
                self.mark(rank, Event::BlockEnd(place));
            }
            self.now_s = begun_s;
        }
        self.now_s += 1000;
        self.step += 1;
    }

    fn profile(&mut self, rank: Option<u32>) {
        let ranks: Vec<u32> = (0..RANKS).collect();
        let first_step = self.step;
        self.job.take(Input::ProfileOrdered {
            ranks,
            first_step,
            steps: 5,
        });
        for other in 0..RANKS {
            let mut patterns = WorkerPatterns {
                worker: other,
                ..Default::default()
            };
            let beta = if rank.is_none_or(|rank| rank == other) {
                0.5
            } else {
                0.01
            };
            let class = FunctionClass::Python;
            let id = patterns.functions.intern(class, "gc.collect", None);
            patterns.patterns.insert(
                id,
                Pattern {
                    beta,
                    events: 1,
                    ..Default::default()
                },
            );
            let window = ProfileWindow {
                span_s: 1.0,
                patterns,
                ..Default::default()
            };
            self.job.take(Input::Profiled {
                rank: other,
                window: Box::new(window),
            });
        }
        self.job.take(Input::ProfileEnded { ranks: Vec::new() });
    }
}

/// A window of one stage.
pub(super) fn window(first_step: u64, late: Option<u32>, by_s: f64) -> Window {
    let boundary = Boundary {
        stage: StageId::BACKWARD,
        after: MarkKind::BackwardBegin,
        ending: Ending::Mark(MarkKind::BackwardEnd),
        sync: Sync::None,
    };
    let row = (0..RANKS).map(|rank| if late == Some(rank) { 0.1 + by_s } else { 0.1 });
    let row: Vec<f64> = row.collect();
    Block {
        boundaries: [boundary].into(),
        groups: None,
        steps: (first_step..first_step + STEPS).collect(),
        durations_s: row.repeat(STEPS as usize),
        ranks: RANKS as usize,
        carried: 0,
    }
    .into()
}

#[test]
fn a_rank_that_is_slow_again_after_a_restart_is_another_incident_that_goes_on() {
    let mut story = Story::begin();
    let late = Episode::Window {
        late: Some(2),
        by_s: 0.1,
    };
    // Twice as far as the second start will come.
    for _ in 0..10 {
        story.happens(&late);
    }
    story.happens(&Episode::Restart);
    for _ in 0..5 {
        story.happens(&late);
    }
    let reported = story.job.verdict().incidents;
    let reported: Vec<_> = reported
        .iter()
        .map(|it| (&*it.id, it.open, &it.text))
        .collect();
    let [(second, true, now), (first, false, before)] = reported[..] else {
        panic!("{reported:?}")
    };
    assert_ne!(first, second);
    assert!(
        now.contains("since step 0") && before.contains("in steps 0-199"),
        "{reported:?}"
    );
}

#[test]
fn what_a_start_loses_is_a_share_of_what_that_start_took() {
    let mut story = Story::begin();
    let healthy = Episode::Window {
        late: None,
        by_s: 0.0,
    };
    for _ in 0..10 {
        story.happens(&healthy);
    }
    story.happens(&Episode::Restart);
    story.happens(&healthy);
    let took_s = story.job.context().exposed_s;
    assert!((took_s - 0.1 * STEPS as f64).abs() < 1e-6, "{took_s}");
}

#[test]
fn what_strikes_every_thirty_steps_and_misses_one_is_the_same_incident_still() {
    let mut story = Story::begin();
    let strikes = |step: u64| step.is_multiple_of(30) && step != 630;
    for first in (0..700).step_by(STEPS as usize) {
        let mut window = window(first, None, 0.0);
        let block = &mut window.blocks[0];
        let rows = block
            .steps
            .iter()
            .zip(block.durations_s.chunks_mut(RANKS as usize));
        for (_, row) in rows.filter(|(step, _)| strikes(**step)) {
            row[2] += 0.5;
        }
        story.job.add_window(window);
    }
    let reported = story.job.verdict().incidents;
    let reported: Vec<_> = reported
        .iter()
        .map(|it| (it.pace, it.last_step, it.open))
        .collect();
    assert_eq!(reported, [(model::Pace::Every { steps: 30 }, 690, true)]);
}

#[test]
fn a_hang_in_which_a_job_was_started_again_stays() {
    let mut story = Story::begin();
    story.happens(&Episode::Hang {
        rank: 1,
        passes: false,
    });
    let [hang] = &story.job.verdict().incidents[..] else {
        panic!("a hang")
    };
    story.happens(&Episode::Restart);
    story.happens(&Episode::Hang {
        rank: 2,
        passes: false,
    });
    let reported = story.job.verdict().incidents;
    let reported: Vec<_> = reported
        .iter()
        .map(|it| (&*it.id, it.open, it.severity))
        .collect();
    let now = reported[0];
    assert!(now.1 && now.0 != hang.id);
    assert_eq!(
        reported[1..],
        [(&*hang.id, false, model::Severity::Warning)]
    );
}

#[test]
fn a_rank_that_is_killed_while_the_job_hangs_is_how_somebody_ended_it() {
    let mut story = Story::begin();
    story.happens(&Episode::Hang {
        rank: 1,
        passes: false,
    });
    story.happens(&Episode::Killed { rank: 2 });
    let reported = story.job.verdict().incidents;
    let reported: Vec<_> = reported.iter().map(|it| (it.kind, &it.id[..1])).collect();
    assert_eq!(reported, [(IncidentKind::Hang, "h")]);
}

#[test]
fn each_hang_has_a_name_of_its_own_and_keeps_it_when_it_passes() {
    let mut story = Story::begin();
    let named = |story: &Story| {
        let incidents = story.job.verdict().incidents.into_iter();
        incidents
            .map(|it| (it.id, it.subject.ranks))
            .collect::<BTreeMap<_, _>>()
    };
    story.happens(&Episode::Hang {
        rank: 1,
        passes: false,
    });
    let first = named(&story);
    story.happens(&Episode::Hang {
        rank: 2,
        passes: false,
    });
    let both = named(&story);
    assert_eq!((first.len(), both.len()), (1, 2));
    assert!(
        first.iter().all(|(id, ranks)| both.get(id) == Some(ranks)),
        "{both:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens, an id that was told once names the same kind of thing of the same
    /// ranks, no two incidents have the same one, and what was over with a start of the job
    /// stays over.
    #[test]
    fn an_id_never_names_another_incident(
        events in prop::collection::vec(any_episode(), 1..40)
    ) {
        let mut story = Story::begin();
        let mut known: BTreeMap<String, (IncidentKind, Vec<u32>)> = BTreeMap::new();
        let mut over: BTreeSet<String> = BTreeSet::new();
        for event in &events {
            story.happens(event);
            let reported = story.job.verdict().incidents;
            if matches!(event, Episode::Restart) {
                over.extend(reported.iter().map(|incident| incident.id.clone()));
            }
            let mut ids = BTreeSet::new();
            for incident in reported {
                let what = (incident.kind, incident.subject.ranks);
                let before = known.entry(incident.id.clone()).or_insert_with(|| what.clone());
                prop_assert_eq!(before, &what, "{}", incident.id);
                prop_assert!(!(incident.open && over.contains(&incident.id)));
                prop_assert!(ids.insert(incident.id));
            }
        }
    }
}
