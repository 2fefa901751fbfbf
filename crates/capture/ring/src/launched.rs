//! Which process of a job this is, as its launcher says in its environment.

/// What launchers say of one of their processes; `None` where none of them does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launched {
    /// Global rank.
    pub rank: Option<u32>,
    /// Rank among those of its host.
    pub local_rank: Option<u32>,
    /// Ranks of the job.
    pub world_size: Option<u32>,
    /// Ranks of its host.
    pub local_world_size: Option<u32>,
}

impl Launched {
    /// Reads what torchrun says, and what it leaves open of Open MPI's `mpirun`, Hydra's (MPICH,
    /// Intel MPI) and Slurm's `srun`; `variable` gives a variable of the environment.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        // A script that sbatch started is no task, but knows of those it may start.
        let step = variable("SLURM_STEP_NUM_TASKS");
        let slurm = step.as_ref().map(|_| &variable);
        Self {
            rank: first(&variable, ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
                .or_else(|| number(slurm?, "SLURM_PROCID")),
            local_rank: first(
                &variable,
                [
                    "LOCAL_RANK",
                    "OMPI_COMM_WORLD_LOCAL_RANK",
                    "MPI_LOCALRANKID",
                ],
            )
            .or_else(|| number(slurm?, "SLURM_LOCALID")),
            world_size: first(
                &variable,
                ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"],
            )
            .or_else(|| number(slurm?, "SLURM_STEP_NUM_TASKS")),
            local_world_size: first(
                &variable,
                [
                    "LOCAL_WORLD_SIZE",
                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                    "MPI_LOCALNRANKS",
                ],
            )
            .or_else(|| {
                let tasks = variable("SLURM_STEP_TASKS_PER_NODE")?;
                tasks_of(&tasks, number(slurm?, "SLURM_NODEID")?)
            }),
        }
    }

    /// The same of this process.
    pub fn here() -> Self {
        Self::read(|name| std::env::var(name).ok())
    }
}

/// The first of some variables that is a number.
fn first(variable: &impl Fn(&str) -> Option<String>, names: [&str; 3]) -> Option<u32> {
    names.iter().find_map(|name| number(variable, name))
}

fn number(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Option<u32> {
    variable(name)?.trim().parse().ok()
}

/// The tasks of a node, by its place among those of a step: `2(x3),1` are two on each of three
/// nodes, and one on the next.
fn tasks_of(tasks: &str, node: u32) -> Option<u32> {
    let mut before = 0_u32;
    for part in tasks.split(',') {
        let (count, nodes) = match part.split_once("(x") {
            Some((count, nodes)) => (count, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        before = before.saturating_add(nodes);
        if node < before {
            return count.trim().parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(variables: &[(&str, &str)]) -> [Option<u32>; 4] {
        let Launched {
            rank,
            local_rank,
            world_size,
            local_world_size,
        } = Launched::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        [rank, local_rank, world_size, local_world_size]
    }

    const STEP: [(&str, &str); 5] = [
        ("SLURM_PROCID", "5"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "2"),
        ("SLURM_STEP_NUM_TASKS", "7"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2),3"),
    ];

    #[test]
    fn each_launcher_is_heard() {
        assert_eq!(launched(&STEP), [5, 1, 7, 3].map(Some));
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        assert_eq!(launched(&mpi), [3, 1, 4, 2].map(Some));
        let hydra = [
            ("PMI_RANK", "3"),
            ("MPI_LOCALRANKID", "1"),
            ("MPI_LOCALNRANKS", "2"),
        ];
        assert_eq!(launched(&hydra), [Some(3), Some(1), None, Some(2)]);
        assert_eq!(launched(&[("RANK", "many")]), [None; 4]);
    }

    #[test]
    fn what_torchrun_says_goes_before_what_started_it() {
        let mut both = STEP.to_vec();
        both.extend([("RANK", "40"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "56")]);
        both.push(("LOCAL_WORLD_SIZE", "8"));
        assert_eq!(launched(&both), [40, 0, 56, 8].map(Some));
    }

    #[test]
    fn a_script_of_sbatch_is_no_task() {
        let script = STEP.map(|(name, value)| match name {
            "SLURM_STEP_NUM_TASKS" => ("SLURM_NTASKS", value),
            "SLURM_STEP_TASKS_PER_NODE" => ("SLURM_TASKS_PER_NODE", value),
            _ => (name, value),
        });
        assert_eq!(launched(&script), [None; 4]);
    }

    #[test]
    fn nodes_that_are_not_listed_have_no_tasks() {
        assert_eq!(tasks_of("2(x3),1", 2), Some(2));
        assert_eq!(tasks_of("2(x3),1", 3), Some(1));
        for odd in ["2(x3),1", "", "2(x", "a(x9)", "2(x9"] {
            assert_eq!(tasks_of(odd, 4), None, "{odd}");
        }
    }
}
