"""The asynchronous accelerator that device jobs run on: it computes what the CPU does, behind the
host, and its events tell the truth."""

import json
import subprocess
import sys

import pytest
from conftest import JOBS, PATIENCE_S, accelerated, alone, forked, job_environment, laggard

pytestmark = accelerated
BLOCK_BEGIN, STEPS, RANKS, MICROBATCHES = 18, 5, 4, 4


@pytest.fixture(scope="module")
def said():
    """What one process sees of its accelerator."""
    command = [sys.executable, JOBS / "device_alone.py"]
    done = subprocess.run(
        command, env=job_environment(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@alone
def test_it_is_the_accelerator_and_computes_what_the_cpu_does(said):
    assert said["current"] == "sim"
    assert said["weights"]


@alone
def test_launches_do_not_block_the_host_and_reading_back_does(said):
    # Of a kernel of 0.3 s.
    assert max(said["launch"], said["pinned"]) < 0.15
    for wait in ("item", "nonzero", "cpu", "stream", "device"):
        assert said[wait] > 0.15, wait
    # Of 20 kernels of 20 ms, all but the nine that are queued or run have ended.
    assert said["full queue"] > 0.2


@alone
def test_events_tell_what_the_device_measured(said):
    assert (said["ready"], said["ready later"]) == (False, True)
    for least, elapsed, most in said["elapsed"]:
        assert least <= elapsed <= most
    assert said["paced"] >= 0.06


@alone
def test_streams_run_beside_one_another_until_one_waits(said):
    assert (said["beside"], said["after"]) == (0, 1)


@alone
def test_a_device_can_fail_in_the_ways_that_matter(said):
    assert said["capturing"] and (said["innocent"], said["guilty"]) == (0, 2)
    assert "queries of events fail" in said["failing query"]
    assert said["stopped"] is False
    assert "out of bounds" in said["failed"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A watched job of DDP, FSDP2 and a pipeline: its verdict, its recording, its weights."""
    folder = tmp_path_factory.mktemp("trained")
    recording = folder / "job.jsonl"
    command = forked(JOBS / "device_weights.py", folder, ranks=RANKS)
    outcome = laggard("run", "--json", "--record", recording, "--", *command)
    assert outcome.code == 0, outcome.stderr
    return outcome.verdict, recording, folder


def test_ddp_fsdp2_and_a_pipeline_end_with_the_weights_of_the_cpu(trained):
    # Marks on the device's clock change nothing either.
    verdict, _, folder = trained
    assert verdict["job"]["sampled_steps"] > 0
    for rank in range(RANKS):
        sim, cpu = (
            json.loads((folder / f"{device}{rank}.json").read_text()) for device in ("sim", "cpu")
        )
        assert sim == cpu


def test_every_block_of_a_pipeline_is_recorded(trained):
    _, recording, _ = trained
    lines = [json.loads(line) for line in recording.read_text().splitlines()]
    marks = [line for line in lines if isinstance(line, list) and line[3] == BLOCK_BEGIN]
    for rank in range(RANKS):
        # Trailing zeros of what a mark says are left out.
        blocks = [
            (step, passes, (*at, 0, 0)[:3])
            for of, _, step, _, _, passes, *at in marks
            if of == rank
        ]
        steps = sorted({step for step, *_ in blocks})
        assert len(steps) == 2 * STEPS
        expected = {
            (step, passes, (rank, microbatch, RANKS))
            for step in steps
            for passes in (0, 1)
            for microbatch in range(MICROBATCHES)
        }
        assert len(blocks) == len(expected) and set(blocks) == expected
    ranks = [line for line in lines if isinstance(line, dict) and line.get("is") == "rank"]
    roles = {line["rank"]: line.get("role") for line in ranks}
    assert roles == {rank: f"pp={rank}" for rank in range(RANKS)}
