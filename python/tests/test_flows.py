"""Collectives of NCCL that stop in the middle, seen by its profiler plugin."""

import json
import os
import signal
import subprocess

from conftest import BIN, JOBS, job_environment, torchrun


def test_a_link_that_delivers_no_more_is_named_while_the_job_hangs():
    command = torchrun(JOBS / "flows.py", ranks=4)
    job = subprocess.Popen(
        [BIN / "laggard", "run", "--json", "--", *command],
        env=job_environment(SLOW_RANK="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        line = next(line for line in job.stderr if line.startswith("laggard: hang"))
        assert "what is sent between ranks 1-2 in ALLREDUCE #20 of group ring" in line
        assert "does not arrive (rank 1 to 2, channels 0-1)" in line
        os.killpg(job.pid, signal.SIGTERM)
        stdout, _ = job.communicate(timeout=60)
    finally:
        job.kill()
    incident = json.loads(stdout.splitlines()[-1])["incidents"][0]
    assert incident["subject"]["ranks"] == [1, 2]
    assert incident["subject"]["flow"] == "rank 1 to 2, channels 0-1"
    assert {"collective"} <= {evidence["method"] for evidence in incident["evidence"]}
