"""Unmodified training scripts of all kinds: the slow rank's data loader is found in each."""

import json
import subprocess
import sys

import pytest
from conftest import (
    BIN,
    JOBS,
    PATIENCE_S,
    alone,
    forked,
    free_port,
    job_environment,
    matrix,
    real_job,
    torchrun,
)

pytestmark = alone

# Frameworks whose hooks only a real job shows; FSDP2 is started as by Slurm below.
OTHERS = ["ddp", "workers", "accumulate", "gan", "lbfgs", "grad_scaler", "fsdp2", "accelerated"]
LOOPS = ["hf_trainer", "lightning_job", *(pytest.param(loop, marks=matrix) for loop in OTHERS)]


@pytest.mark.parametrize("loop", LOOPS)
def test_the_slow_loader_is_found(run, loop):
    outcome = run(forked(JOBS / f"{loop}.py", ranks=2), SLOW_RANK="1", STEPS="40")
    verdict = outcome.verdict
    assert verdict["job"]["steps"] == 40
    assert verdict["job"]["ranks"] == 2
    assert outcome.incidents, outcome.stderr
    first = outcome.incidents[0]
    assert first["subject"]["ranks"] == [1], first["text"]
    assert first["subject"]["stage"] == "data.next_wait"
    assert first["pace"] == {"kind": "steady"}, outcome.stderr
    assert len(outcome.incidents) == 1, outcome.stderr


@matrix
def test_a_loop_without_loader_has_a_gap_to_blame(run):
    outcome = run(forked(JOBS / "no_loader.py", ranks=2), SLOW_RANK="0", STEPS="40")
    first = outcome.incidents[0]
    assert first["subject"]["ranks"] == [0]
    assert first["subject"]["stage"] == "data.gap"


@matrix
def test_a_loop_without_an_optimizer_has_steps_where_devices_wait(run):
    job = forked(JOBS / "no_optimizer.py", ranks=2)
    outcome = run(job, SLOW_RANK="1", STEPS="70", DELAY="0.03")
    # Those of the first 16 backward passes count as one.
    assert outcome.verdict["job"]["steps"] == 55
    first = outcome.incidents[0]
    subject = first["subject"]
    assert (subject["ranks"], subject["side"]) == ([1], "device"), first["text"]
    assert len(outcome.incidents) == 1, outcome.stderr

    # Hosts that block have no mark behind their last collective.
    outcome = run(job, SLOW_RANK="1", STEPS="40", DEVICE="cpu")
    assert outcome.incidents == []
    assert "no optimizer ran" in outcome.stderr


@matrix
def test_read_ahead_and_accumulation_of_the_trainer(run):
    outcome = run(
        forked(JOBS / "hf_trainer.py", ranks=2), SLOW_RANK="0", STEPS="20", ACCUMULATE="3"
    )
    assert outcome.verdict["job"]["steps"] == 20
    assert outcome.incidents[0]["subject"]["ranks"] == [0]


@matrix
@pytest.mark.parametrize("loop", ["ddp", "hf_trainer", "lightning_job"])
def test_a_healthy_job_gets_no_incident(run, loop):
    outcome = run(torchrun(JOBS / f"{loop}.py"), STEPS="60")
    assert outcome.incidents == [], outcome.stderr
    assert "HEALTHY" in outcome.stderr


def test_a_single_process_is_accounted_too(run):
    outcome = run(real_job([sys.executable, JOBS / "single.py"]), STEPS="40")
    assert outcome.code == 0
    verdict = outcome.verdict
    assert verdict["job"]["ranks"] == 1
    shares = {stage["name"]: stage["share"] for stage in verdict["stages"]}
    assert abs(sum(shares.values()) - 1) < 1e-9
    assert max(shares, key=shares.get) == "model.backward_cpu_wall"


@matrix
def test_explicit_stages_are_named(run):
    outcome = run(forked(JOBS / "explicit.py", ranks=2), SLOW_RANK="1", STEPS="40")
    first = outcome.incidents[0]
    assert first["subject"]["ranks"] == [1]
    assert first["subject"]["stage"] == "tokenise"
    names = [stage["name"] for stage in outcome.verdict["stages"]]
    assert "step.other_cpu_wall" in names


def test_steps_that_a_script_names_need_no_pytorch(run):
    command = real_job([sys.executable, JOBS / "without_pytorch.py"])
    outcome = run(command, SLOW_RANK="1", STEPS="60")
    assert (outcome.code, len(outcome.incidents)) == (0, 1), outcome.stderr
    assert (outcome.verdict["job"]["ranks"], outcome.verdict["job"]["steps"]) == (2, 60)
    first = outcome.incidents[0]
    assert (first["subject"]["ranks"], first["subject"]["stage"]) == ([1], "tokenise")


@matrix
def test_older_versions_read_arrival_times_from_the_flight_recorder(run):
    outcome = run(
        forked(JOBS / "slow_backward.py", ranks=2), SLOW_RANK="1", STEPS="80", LAGGARD_HOOKS="0"
    )
    first = outcome.incidents[0]
    assert first["subject"]["ranks"] == [1], first["text"]
    assert first["subject"]["stage"] == "model.backward_cpu_wall"
    assert any("Flight Recorder" in note for note in outcome.verdict["notes"])


@matrix
def test_tensor_parallel_victims_are_not_blamed(run):
    outcome = run(forked(JOBS / "tensor_parallel.py"), SLOW_RANK="3", STEPS="40")
    first = outcome.incidents[0]
    assert first["subject"]["ranks"] == [3], first["text"]
    assert first["subject"]["stage"] == "data.next_wait"
    assert len(outcome.incidents) == 1


def test_ranks_that_srun_starts_one_by_one_are_one_job(tmp_path):
    variables = {"STEPS": "60", "SLOW_RANK": "1", "LAGGARD_DIR": str(tmp_path / "rings")}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    variables |= {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0"}
    variables |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}

    def task(rank):
        ours = {"RANK": rank, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}
        command = [BIN / "laggard", "run", "--json", "--", sys.executable, JOBS / "fsdp2.py"]
        return subprocess.Popen(
            [str(part) for part in command] if rank == "1" else real_job(command),
            env=job_environment(**variables, **ours),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    tasks = [task(rank) for rank in "01"]
    said = [process.communicate(timeout=PATIENCE_S) for process in tasks]
    assert [process.returncode for process in tasks] == [0, 0], said
    # One of them watches; the other says nothing.
    [verdict] = [json.loads(stdout) for stdout, _ in said if stdout]
    assert not any("laggard" in stderr for stdout, stderr in said if not stdout)
    assert (verdict["job"]["id"], verdict["job"]["ranks"]) == ("slurm-71.0", 2)
    first = verdict["incidents"][0]
    assert (first["subject"]["ranks"], first["subject"]["stage"]) == ([1], "data.next_wait")
    assert not any("delivered nothing" in note for note in verdict["notes"])
    assert list((tmp_path / "rings").iterdir()) == []
