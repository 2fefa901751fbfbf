use model::Finding;
use whatif::Findings;

use super::Job;
use super::notes::Counted;

impl Job {
    /// Takes what a what-if trace shows: the job is its sampled steps.
    pub fn add_what_if(&mut self, findings: Findings) {
        let what_if = &findings.what_if;
        self.seen_ranks.extend(what_if.ranks.iter().map(|rank| rank.rank));
        self.earlier_steps += (what_if.steps.len() + findings.left_out_steps) as u64;
        self.analysed_steps += what_if.steps.len() as f64;
        self.exposed_s += what_if.recorded_s.iter().sum::<f64>();
        self.notes.count(Counted::IncompleteSteps, findings.left_out_steps as u64);
        self.what_if = Some(findings);
    }

    /// What a what-if trace shows.
    pub(super) fn straggling(&self) -> Vec<Finding> {
        let settings = &self.settings.incident;
        let causes = self.what_if.iter().flat_map(|findings| {
            findings.causes.iter().map(move |cause| (&findings.what_if, cause))
        });
        causes
            .zip(1..)
            .map(|((what_if, cause), at)| {
                incident::what_if(what_if, cause, format!("w{at}"), settings)
            })
            .collect()
    }
}
