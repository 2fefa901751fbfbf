"""The asynchronous accelerator that device jobs run on: it computes what the CPU does, behind the
host, and its events tell the truth."""

import json
import subprocess
import sys

import pytest
from conftest import JOBS, accelerated, forked, job_environment, laggard

pytestmark = accelerated


def output(command, **environment):
    command = [str(part) for part in command]
    done = subprocess.run(
        command, env=job_environment(**environment), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said():
    """What one process sees of its accelerator."""
    return json.loads(output([sys.executable, JOBS / "device_alone.py"]).splitlines()[-1])


def test_it_is_the_accelerator_and_computes_what_the_cpu_does(said):
    assert said["current"] == "sim"
    assert said["weights"]


def test_launches_do_not_block_the_host_and_reading_back_does(said):
    # Of a kernel of 0.3 s.
    assert max(said["launch"], said["pinned"]) < 0.15
    for wait in ("item", "nonzero", "cpu", "stream", "device"):
        assert said[wait] > 0.15, wait
    # Of 20 kernels of 20 ms, all but the nine that are queued or run have ended.
    assert said["full queue"] > 0.2


def test_events_tell_what_the_device_measured(said):
    assert (said["ready"], said["ready later"]) == (False, True)
    for least, elapsed, most in said["elapsed"]:
        assert least <= elapsed <= most
    assert said["paced"] >= 0.06


def test_streams_run_beside_one_another_until_one_waits(said):
    assert (said["beside"], said["after"]) == (0, 1)


def test_a_device_can_fail_in_the_ways_that_matter(said):
    assert said["capturing"] and (said["innocent"], said["guilty"]) == (0, 2)
    assert "queries of events fail" in said["failing query"]
    assert said["stopped"] is False
    assert "out of bounds" in said["failed"]


def test_ddp_fsdp2_and_a_pipeline_end_with_the_weights_of_the_cpu(tmp_path):
    output(forked(JOBS / "device_weights.py", "cpu", tmp_path))
    # Watched, with marks on the device's clock: these change nothing either.
    watched = laggard("run", "--", *forked(JOBS / "device_weights.py", "sim", tmp_path))
    assert watched.code == 0, watched.stderr
    for rank in range(4):
        cpu, sim = (
            json.loads((tmp_path / f"{device}{rank}.json").read_text()) for device in ("cpu", "sim")
        )
        assert cpu == sim
