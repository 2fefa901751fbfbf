//! Which finding asks for which dearer evidence, of which ranks, within which budget.

/// Something that more should be known of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// Nothing moves, and it was not said yet.
    Standstill,
    /// A hang that was said.
    Hang,
    /// A hang of a job with NCCL.
    HangWithNccl,
    /// An incident that goes on and whose function is not known.
    Slow,
    /// Steps became longer, and no incident says why.
    LongerSteps,
    /// Something is suspected of ranks whose hosts run ahead or work in a pipeline, and their devices
    /// were not observed.
    DevicesUnseen,
    /// An operation of NCCL took longer than it should.
    SlowOperation,
}

/// What is asked for, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// What was found, in words.
    pub finding: &'static str,
    /// What is asked for, in words.
    pub evidence: &'static str,
    /// Ranks that are asked because the finding names them, at most.
    pub named: usize,
    /// Ranks that are asked beside them, at most.
    pub others: usize,
    /// Seconds from one asking to the next; zero where each finding asks once.
    pub every_s: f64,
    /// Seconds it may take.
    pub lasts_s: f64,
}

impl Suspicion {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Standstill,
        Self::Hang,
        Self::HangWithNccl,
        Self::Slow,
        Self::LongerSteps,
        Self::DevicesUnseen,
        Self::SlowOperation,
    ];

    /// What it asks for.
    ///
    /// # Source
    /// PerfTracker (2025) for the 20 s of a profile window; the others are our choice.
    pub const fn rule(self) -> Rule {
        match self {
            Self::Standstill => Rule {
                finding: "nothing moves for longer than usual",
                evidence: "stacks; sockets, requests and ports of their hosts",
                named: 8,
                others: 3,
                every_s: 0.0,
                lasts_s: 3.0,
            },
            Self::Hang => Rule {
                finding: "a hang that was reported",
                evidence: "stacks of other ranks, spread over the job",
                named: 0,
                others: 512,
                every_s: 600.0,
                lasts_s: 3.0,
            },
            Self::HangWithNccl => Rule {
                finding: "a hang, in a job with NCCL",
                evidence: "NCCL's RAS, of all communicators",
                named: 0,
                others: usize::MAX,
                every_s: 30.0,
                lasts_s: 20.0,
            },
            Self::Slow => Rule {
                finding: "an ongoing incident that costs time, and whose function is unknown",
                evidence: "a profile window",
                named: 6,
                others: 2,
                every_s: 600.0,
                lasts_s: 20.0,
            },
            Self::LongerSteps => Rule {
                finding: "steps became longer, and no incident explains it",
                evidence: "a profile window",
                named: 0,
                others: 4,
                every_s: 600.0,
                lasts_s: 20.0,
            },
            Self::DevicesUnseen => Rule {
                finding: "a rank or stage is suspected, and hosts run ahead of their devices or \
                          work in a pipeline",
                evidence: "device marks of up to 32 steps in a row",
                named: 0,
                others: usize::MAX,
                every_s: 60.0,
                lasts_s: 20.0,
            },
            Self::SlowOperation => Rule {
                finding: "an operation of NCCL takes longer than it should",
                evidence: "samples of the operations that ranks are in, every 20 ms",
                named: 0,
                others: usize::MAX,
                every_s: 0.0,
                lasts_s: 12.0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCS: &str = include_str!("../../../../docs/incidents/escalation.md");

    /// The rule as a row of the table in the documentation.
    fn row(rule: &Rule) -> String {
        let ranks = match (rule.named, rule.others) {
            (0, usize::MAX) => "all".to_owned(),
            (0, others) => format!("{others} of them"),
            (named, others) => format!("{named} it names, {others} others"),
        };
        let every = if rule.every_s > 0.0 {
            format!("every {} s", rule.every_s)
        } else {
            "once each".to_owned()
        };
        let Rule {
            finding,
            evidence,
            lasts_s,
            ..
        } = rule;
        format!("| {finding} | {evidence} | {ranks} | {every} | {lasts_s} s |")
    }

    #[test]
    fn the_table_in_the_documentation_is_the_policy() {
        let table = DOCS
            .split("\n\n")
            .find(|part| part.starts_with("| found"))
            .unwrap();
        let rows = table.lines().skip(2);
        let reported = Suspicion::ALL.map(|finding| row(&finding.rule()));
        assert_eq!(rows.collect::<Vec<_>>(), reported);
    }
}
