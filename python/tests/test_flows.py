"""Collectives of NCCL that stop in the middle or become slow, seen by its profiler plugin."""

import json
import signal
import subprocess
import time

import pytest
from conftest import BIN, JOBS, job_environment, torchrun


@pytest.fixture
def job(tmp_path):
    """Starts four ranks under laggard whose link from rank 1 to rank 2 fails them."""
    started = []

    def start(what):
        command = torchrun(JOBS / "flows.py", what, ranks=4)
        record = ["--record", tmp_path / "job.jsonl"]
        started.append(
            subprocess.Popen(
                [BIN / "laggard", "run", "--json", *record, "--", *command],
                # Time enough for all of them to start.
                env=job_environment(SLOW_RANK="1", START=str(time.time() + 8)),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()


def first_incident(process, recording):
    """The incident, which is that of the replay too."""
    stdout, _ = process.communicate(timeout=60)
    command = [BIN / "laggard", "analyze", "--json", recording]
    replay = subprocess.run(command, capture_output=True, check=True)
    live, again = (json.loads(text)["incidents"][0] for text in (stdout, replay.stdout))
    assert (again["text"], again["evidence"]) == (live["text"], live["evidence"])
    return live


def test_a_link_that_delivers_no_more_is_named_while_the_job_hangs(job, tmp_path):
    process = job("stops")
    line = next(line for line in process.stderr if line.startswith("laggard: hang"))
    assert "what is sent between ranks 1-2 in ALLREDUCE #40 of group ring" in line
    assert "does not arrive (rank 1 to 2, channels 0-1)" in line
    process.send_signal(signal.SIGTERM)
    incident = first_incident(process, tmp_path / "job.jsonl")
    assert incident["subject"]["ranks"] == [1, 2]
    assert incident["subject"]["flow"] == "rank 1 to 2, channels 0-1"
    assert "not_delivered" in {evidence["label"] for evidence in incident["evidence"]}


def test_a_link_that_delivers_late_is_named(job, tmp_path):
    incident = first_incident(job("slow"), tmp_path / "job.jsonl")
    assert incident["kind"] == "slow"
    assert incident["subject"]["ranks"] == [1, 2]
    assert "what is sent between ranks 1-2 arrives late" in incident["text"]
    assert incident["evidence"][0]["values"]["blamed_share"] > 0.8
