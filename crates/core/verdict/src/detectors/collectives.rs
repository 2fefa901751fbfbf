//! What is seen in collectives: stalls, deaths, and who makes operations slow.

use collective::{Entered, HangSettings};
use diagnosis::Detector;
use model::{
    Announcement, CollectiveOp, DumpNote, Finding, Input, JobContext, Method, NetworkFault,
    Observation, PrintedNote, Slowness, SourceNote,
};

use super::network::SlowLinks;
use crate::hangs::Hangs;
use crate::slow_collectives::SlowCollectives;

/// Stalls and stragglers of collectives, and the network between their ranks. The second are found
/// by the flows of the first.
#[derive(Debug)]
pub(crate) struct InCollectives {
    settings: HangSettings,
    pub(crate) hangs: Hangs,
    slow_collectives: SlowCollectives,
    pub(crate) slow_links: SlowLinks,
}

impl InCollectives {
    pub(crate) fn new(settings: HangSettings, share_min: f64) -> Self {
        Self {
            hangs: Hangs::new(settings.clone()),
            slow_collectives: SlowCollectives::new(share_min),
            slow_links: SlowLinks::default(),
            settings,
        }
    }

    /// Takes what the host of a rank sees of its network. Of a job that stands still it is evidence,
    /// and so is a slow link of one that became slower.
    fn take_network(&mut self, rank: u32, fault: &NetworkFault, context: JobContext<'_>) {
        // A host knows whom it sends to by its number in the communicator only.
        let peer = match fault {
            NetworkFault::SlowerFlow {
                communicator, peer, ..
            } => self.hangs.communicated().job_rank(*communicator, *peer),
            _ => None,
        };
        match fault {
            NetworkFault::Slower { .. } => {
                // Nothing stands still for it: a note beside the incidents.
            }
            NetworkFault::SlowerLink { .. } | NetworkFault::SlowerFlow { .. } => {
                self.slow_links
                    .take(rank, fault, peer, self.hangs.step(), context);
            }
            _ => {
                let what = Observation::Network {
                    rank,
                    fault: fault.clone(),
                    peer,
                };
                self.hangs.network(what.into());
                if fault.is_port_down() {
                    self.hangs.port_down(beside(rank, context));
                }
            }
        }
    }

    /// A rank's process was killed: what is to be said of it, unless another was before.
    fn kill(
        &mut self,
        rank: u32,
        signal: Option<i32>,
        context: JobContext<'_>,
    ) -> Vec<Announcement> {
        // Who is killed after the first is so by its launcher, for the first one's sake.
        let is_first = self.hangs.death(context).is_none();
        let is_reason = self.hangs.kill(rank, signal);
        let death = self.hangs.death(context).filter(|_| is_first && is_reason);
        let hang = self.hangs.given_up(context);
        death
            .into_iter()
            .chain(hang)
            .map(|it| Announcement::Found(it.claim))
            .collect()
    }
}

/// The ranks of a rank's host, if it is known.
fn beside(rank: u32, context: JobContext<'_>) -> Vec<u32> {
    let Some(here) = context.hosts.get(&rank) else {
        return Vec::new();
    };
    let hosts = context.hosts.iter().filter(|(_, host)| *host == here);
    hosts.map(|(rank, _)| *rank).collect()
}

/// A hang, with the stacks that say where its ranks are.
fn announced(hang: Finding) -> Announcement {
    let Finding {
        claim,
        facts: mut stacks,
        ..
    } = hang;
    stacks.retain(|fact| fact.what.method() == Method::Stack);
    Announcement::Hang { claim, stacks }
}

impl Detector for InCollectives {
    fn observe(&mut self, input: &Input, context: JobContext<'_>) -> Vec<Announcement> {
        let hangs = &mut self.hangs;
        match input {
            Input::Rank { rank, .. } => hangs.arrive(*rank),
            Input::Note(SourceNote::Dumps(DumpNote::InTransfers(ranks))) => {
                hangs.wait_in_transfers(ranks);
            }
            Input::Group {
                group,
                name,
                members,
            } => hangs.join(*group, name, members),
            Input::Lost { rank, .. } => hangs.lose(*rank),
            Input::Stack { rank, stack } => hangs.stack(*rank, stack.clone()),
            Input::Entered {
                rank,
                group,
                number,
                op,
                detail,
                completed,
                in_flight,
            } => {
                let entered = Entered {
                    group: *group,
                    number: *number,
                    op: CollectiveOp::from_name(op),
                    detail: detail.clone(),
                    completed: *completed,
                    in_flight: *in_flight,
                };
                hangs.enter(*rank, entered);
            }
            Input::SnapshotComplete => hangs.stuck(),
            Input::StacksComplete => {
                return hangs.tell(context).map(announced).into_iter().collect();
            }
            Input::Communicator { rank, communicator } => {
                hangs.communicate(*rank, communicator);
            }
            Input::Slow {
                rank,
                communicator,
                took_ns,
                usual_ns,
                of_channels,
            } => {
                let [took_s, usual_s] = [took_ns, usual_ns].map(|ns| *ns as f64 * 1e-9);
                let slow = Slowness {
                    took_s,
                    usual_s,
                    of_channels: *of_channels,
                };
                // Both: the one knows which ranks are waited for, the other in which steps it cost
                // time.
                hangs.communication().slow(*rank, *communicator, slow);
                self.slow_collectives.slow(hangs.step());
            }
            Input::InFlightSnapshot {
                rank,
                at,
                in_progress,
                ended,
                late,
            } => {
                let moves = hangs.look(*rank, *at, in_progress.clone(), ended, late);
                let moves = moves.map(|after_s| Announcement::MovesAgain { after_s });
                // Behind the look: only then do the flows say which rank is waited for.
                let found = self
                    .slow_collectives
                    .look(*at, hangs.communication(), context);
                let found = found.map(|found| Announcement::Found(found.claim));
                return moves.into_iter().chain(found).collect();
            }
            Input::Network { rank, fault } => self.take_network(*rank, fault, context),
            Input::Left { rank, orderly, .. } => hangs.leave(*rank, *orderly),
            Input::Note(SourceNote::Printed(PrintedNote::Raised { rank, error })) => {
                hangs.raise(*rank, error);
            }
            Input::Note(SourceNote::Printed(PrintedNote::FirstEnded { rank, code, .. })) => {
                hangs.take_code(*rank, *code);
            }
            Input::Killed { rank, signal } => return self.kill(*rank, *signal, context),
            Input::Failed { rank, code } => {
                hangs.fail(*rank, *code);
                let hang = hangs.given_up(context);
                return hang
                    .map(|it| Announcement::Found(it.claim))
                    .into_iter()
                    .collect();
            }
            _ => {}
        }
        Vec::new()
    }

    fn findings(&self, context: JobContext<'_>) -> Vec<Finding> {
        let hangs = &self.hangs;
        let mut found = hangs.passed(context);
        found.extend(hangs.death(context));
        found.extend(hangs.failures(context));
        found.extend(hangs.under_way(context));
        let flows =
            self.slow_collectives
                .findings(hangs.communicated(), context, context.has_stages);
        found.extend(flows);
        found
    }

    fn restart(&mut self) {
        self.hangs.restart(self.settings.clone());
        self.slow_collectives.restart();
        self.slow_links = SlowLinks::default();
    }
}
