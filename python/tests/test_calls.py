"""Collectives of NCCL before 2.23, seen by its calls alone."""

import json
import os
import signal
import subprocess
import time

import pytest
from conftest import BIN, HERE, JOBS, job_environment, torchrun

FAKE = HERE.parent.parent / "crates/capture/preload/tests/preload/fake_nccl.c"


@pytest.fixture(scope="module")
def nccl(tmp_path_factory):
    """A stand-in for NCCL."""
    library = tmp_path_factory.mktemp("nccl") / "libnccl.so.2"
    command = ["cc", "-shared", "-fPIC", "-DNUMBER=1", "-Wl,-soname,libnccl.so.2"]
    subprocess.run([*command, "-o", library, FAKE], check=True)
    return library


@pytest.fixture
def job(nccl, tmp_path):
    """Starts four ranks under laggard of which rank 1 does not come to the last all-reduce."""
    started = []

    def start(*what, slow_rank=1):
        command = torchrun(JOBS / "calls.py", *what, ranks=4)
        options = ["--json", "--preload", "--record", tmp_path / "job.jsonl"]
        started.append(
            subprocess.Popen(
                [BIN / "laggard", "run", *options, "--", *command],
                # Time enough for all of them to start.
                env=job_environment(
                    SLOW_RANK=str(slow_rank), START=str(time.time() + 8), FAKE_NCCL=str(nccl)
                ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()


def test_a_rank_that_does_not_call_is_named_while_the_job_hangs(job, tmp_path):
    process = job()
    line = next(line for line in process.stderr if line.startswith("laggard: hang"))
    assert "rank 1 never entered ALLREDUCE #40" in line
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=60)
    command = [BIN / "laggard", "analyze", "--json", tmp_path / "job.jsonl"]
    replay = subprocess.run(command, capture_output=True, check=True)
    live, again = (json.loads(text)["incidents"][0] for text in (stdout, replay.stdout))
    assert (again["text"], again["evidence"]) == (live["text"], live["evidence"])
    assert live["kind"] == "hang"
    assert live["subject"]["ranks"] == [1]
    stacks = [e["text"] for e in live["evidence"] if e["method"] == "stack"]
    assert any("rank 1" in text and "read_shard" in text for text in stacks), stacks


def test_a_job_that_idles_after_its_last_collective_is_healthy(job):
    process = job("pauses", slow_rank=-1)
    stdout, stderr = process.communicate(timeout=90)
    assert process.returncode == 0, stderr
    assert json.loads(stdout.splitlines()[-1])["incidents"] == []


def test_a_preloaded_library_of_the_user_stays(job, nccl, tmp_path):
    shown = tmp_path / "shown.py"
    shown.write_text("import os\nprint(os.environ['LD_PRELOAD'])\n")
    command = [BIN / "laggard", "run", "--preload", "--", "python", shown]
    environment = job_environment(LD_PRELOAD=str(nccl))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    ours, theirs = done.stdout.split()[0].split(":")
    assert (os.path.basename(ours), theirs) == ("liblaggard_preload.so", str(nccl))
