"""Collectives of NCCL before 2.23, seen by its calls alone."""

import os
import subprocess

import pytest
from conftest import (
    BIN,
    HERE,
    JOBS,
    PATIENCE_S,
    assert_told_again,
    bare,
    job_environment,
    matrix,
)

FAKE = HERE.parent.parent / "crates/capture/preload/tests/preload/fake_nccl.c"


@pytest.fixture(scope="module")
def nccl(tmp_path_factory):
    """A stand-in for NCCL."""
    library = tmp_path_factory.mktemp("nccl") / "libnccl.so.2"
    command = ["cc", "-shared", "-fPIC", "-DNUMBER=1", "-Wl,-soname,libnccl.so.2"]
    subprocess.run([*command, "-o", library, FAKE], check=True)
    return library


@pytest.fixture
def job(nccl, watch, tmp_path):
    """Starts four ranks under laggard of which rank 1 does not come to the last all-reduce."""

    def job(*what, slow_rank=1):
        command = bare(JOBS / "calls.py", *what)
        meet = tmp_path / "meet"
        meet.mkdir()
        stand_in = {"FAKE_NCCL": str(nccl), "MEET": str(meet)}
        return watch(command, "--preload", SLOW_RANK=str(slow_rank), **stand_in)

    return job


def test_a_rank_that_does_not_call_is_named_while_the_job_hangs(job):
    hangs = job()
    line = hangs.line("laggard: hang")
    assert "rank 1 never entered ALLREDUCE #40" in line
    live = hangs.end()["incidents"][0]
    assert_told_again(live, hangs.recording)
    assert live["kind"] == "hang"
    assert live["subject"]["ranks"] == [1]
    stacks = [e["text"] for e in live["evidence"] if e["method"] == "stack"]
    assert any("rank 1" in text and "read_shard" in text for text in stacks), stacks


@matrix
def test_a_job_that_idles_after_its_last_collective_is_healthy(job):
    assert job("pauses", slow_rank=-1).verdict()["incidents"] == []


def test_a_preloaded_library_of_the_user_stays(job, nccl, tmp_path):
    shown = tmp_path / "shown.py"
    shown.write_text("import os\nprint(os.environ['LD_PRELOAD'])\n")
    command = [BIN / "laggard", "run", "--preload", "--", "python", shown]
    environment = job_environment(LD_PRELOAD=str(nccl))
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    ours, theirs = done.stdout.split()[0].split(":")
    assert (os.path.basename(ours), theirs) == ("liblaggard_preload.so", str(nccl))
