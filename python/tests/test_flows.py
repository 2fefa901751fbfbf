"""Collectives of NCCL that stop in the middle or become slow, seen by its profiler plugin."""

import contextlib
import json
import signal
import subprocess
import time

from conftest import BIN, JOBS, job_environment, torchrun


@contextlib.contextmanager
def job(what):
    """Four ranks under laggard whose link from rank 1 to rank 2 fails them."""
    process = subprocess.Popen(
        [BIN / "laggard", "run", "--json", "--", *torchrun(JOBS / "flows.py", what, ranks=4)],
        env=job_environment(SLOW_RANK="1", START=str(time.time() + 4)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()


def first_incident(process):
    stdout, _ = process.communicate(timeout=60)
    return json.loads(stdout.splitlines()[-1])["incidents"][0]


def test_a_link_that_delivers_no_more_is_named_while_the_job_hangs():
    with job("stops") as process:
        line = next(line for line in process.stderr if line.startswith("laggard: hang"))
        assert "what is sent between ranks 1-2 in ALLREDUCE #40 of group ring" in line
        assert "does not arrive (rank 1 to 2, channels 0-1)" in line
        process.send_signal(signal.SIGTERM)
        incident = first_incident(process)
    assert incident["subject"]["ranks"] == [1, 2]
    assert incident["subject"]["flow"] == "rank 1 to 2, channels 0-1"
    assert "not_delivered" in {evidence["label"] for evidence in incident["evidence"]}


def test_a_link_that_delivers_late_is_named():
    with job("slow") as process:
        incident = first_incident(process)
    assert incident["kind"] == "slow"
    assert incident["subject"]["ranks"] == [1, 2]
    assert "what is sent between ranks 1-2 arrives late" in incident["text"]
    assert incident["evidence"][0]["values"]["blamed_share"] > 0.8
