//! What is seen in collectives: stalls, deaths, and who makes operations slow.

use collective::{Entered, HangSettings};
use diagnosis::Detector;
use model::{Claim, CollectiveOp, Finding, Input, JobContext, Slowness};

use crate::hangs::Hangs;
use crate::slow_collectives::SlowCollectives;

/// Stalls and stragglers of collectives. The second are found by the flows of the first.
#[derive(Debug)]
pub(crate) struct InCollectives {
    settings: HangSettings,
    pub(crate) hangs: Hangs,
    pub(crate) slow_collectives: SlowCollectives,
}

impl InCollectives {
    pub(crate) fn new(settings: HangSettings, share_min: f64) -> Self {
        Self {
            hangs: Hangs::new(settings.clone()),
            slow_collectives: SlowCollectives::new(share_min),
            settings,
        }
    }
}

impl Detector for InCollectives {
    fn observe(&mut self, input: &Input, _: JobContext<'_>) -> Vec<Claim> {
        let hangs = &mut self.hangs;
        match input {
            Input::Rank { rank, .. } => hangs.arrive(*rank),
            Input::Group { group, name, members } => hangs.join(*group, name, members),
            Input::Stack { rank, stack } => hangs.stack(*rank, stack.clone()),
            Input::Entered { rank, group, number, op, detail, completed, in_flight } => {
                let entered = Entered {
                    number: *number,
                    op: CollectiveOp::from_name(op),
                    detail: detail.clone(),
                    completed: *completed,
                    in_flight: *in_flight,
                };
                hangs.enter(*rank, *group, entered);
            }
            Input::SnapshotComplete => hangs.stuck(),
            Input::Communicator { rank, communicator } => {
                hangs.communicate(*rank, communicator);
            }
            Input::Slow { rank, communicator, took_ns, usual_ns, of_channels } => {
                let [took_s, usual_s] = [took_ns, usual_ns].map(|ns| *ns as f64 * 1e-9);
                let slow = Slowness { took_s, usual_s, of_channels: *of_channels };
                hangs.communication().slow(*rank, *communicator, slow);
                self.slow_collectives.slow(hangs.step());
            }
            Input::Left { rank, orderly, .. } => hangs.leave(*rank, *orderly),
            _ => {}
        }
        Vec::new()
    }

    fn findings(&self, context: JobContext<'_>) -> Vec<Finding> {
        let hangs = &self.hangs;
        let mut found = hangs.passed(context);
        found.extend(hangs.death(context));
        found.extend(hangs.under_way(context));
        let flows = self.slow_collectives.findings(
            hangs.communicated(),
            context,
            context.has_stages,
        );
        found.extend(flows);
        found
    }

    fn restart(&mut self) {
        self.hangs.restart(self.settings.clone());
        self.slow_collectives.restart();
    }
}
