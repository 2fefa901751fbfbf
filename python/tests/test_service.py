"""Jobs of two hosts, told to a collector: what no host could say alone."""

import json
import re
import signal
import subprocess
import time
import urllib.request

import pytest
from conftest import BIN, JOBS, PATIENCE_S, free_port, job_environment, matrix, real_job


class Collector:
    def __init__(self, data, *more):
        self.data, self.port, self.more = data, free_port(), more
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        command = [BIN / "laggard", "serve", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--data", self.data, *self.more]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert b"serving" in self.process.stderr.readline()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def get(self, path):
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def wait_for(self, what, job):
        """Waits until the job in the list of jobs is as it should be."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = [one for one in self.get("jobs")["jobs"] if one["id"] == job]
            if found and what(found[0]):
                return found[0]
            time.sleep(0.2)
        raise AssertionError(f"never came: {found}")


@pytest.fixture
def collector(tmp_path):
    collector = Collector(tmp_path / "data")
    yield collector
    collector.kill()


def host(name, place, collector, port, *script, ranks=1, **environment):
    """One host of two: its `laggard run`."""
    tell = ["--collector", collector.url, "--job", "two hosts", "--host", name]
    nodes = ["--nnodes", "2", "--node-rank", place, "--nproc-per-node", ranks]
    meet = ["--master-addr", "127.0.0.1", "--master-port", port]
    launch = [BIN / "torchrun", *nodes, *meet, *script]
    command = [BIN / "laggard", "run", *tell, "--", *launch]
    command = [str(part) for part in command] if place else real_job(command)
    return subprocess.Popen(
        command,
        env=job_environment(**({"STEPS": "200", "SLOW_RANK": "1"} | environment)),
        stderr=subprocess.PIPE,
        text=True,
    )


@matrix
def test_a_job_of_two_hosts_is_one_whatever_happens_to_its_collector(collector):
    port = free_port()
    script = JOBS / "ddp.py"
    hosts = [host(name, rank, collector, port, script) for rank, name in enumerate("ab")]
    collector.wait_for(lambda job: job["state"] == "slow", "two hosts")
    collector.kill()
    for process in hosts:
        assert any("does not accept batches" in line for line in process.stderr)
    collector.start()
    told = [process.communicate(timeout=PATIENCE_S)[1] for process in hosts]
    assert [process.returncode for process in hosts] == [0, 0], told
    assert all("answers again" in text for text in told), told
    job = collector.wait_for(lambda job: job["state"] == "ended", "two hosts")
    assert (job["ranks"], job["hosts"], job["steps"]) == (2, 2, 200)
    verdict = collector.get("jobs/two%20hosts/verdict")
    first = verdict["incidents"][0]
    assert (first["subject"]["ranks"], first["subject"]["stage"]) == ([1], "data.next_wait")
    assert verdict["job"]["lost_records"] == 0
    assert not any("other hosts" in note for note in verdict["notes"]), verdict["notes"]
    struck = first["evidence"][0]["values"]["struck_steps"]
    assert abs(first["cost_s"] - 0.05 * struck) < 0.1 * 0.05 * struck, first["text"]


def test_a_hang_over_two_hosts_is_explained_with_the_stacks_of_both(collector):
    port, script = free_port(), (JOBS / "hangs.py", "spin")
    hosts = [host(name, rank, collector, port, *script) for rank, name in enumerate("ab")]
    try:
        said = r"rank 1 never entered ALLREDUCE #\d+ of group default \(rank 0 waits in it\); "
        said = re.compile(said + "rank 1 is busy in spin")

        def is_explained(job):
            # Stacks come a moment after the hang is reported.
            if job["state"] != "hung" or not said.search(job["headline"]):
                return False
            evidence = collector.get("jobs/two%20hosts/verdict")["incidents"][0]["evidence"]
            return sum(piece["method"] == "stack" for piece in evidence) == 2

        collector.wait_for(is_explained, "two hosts")
    finally:
        for process in hosts:
            process.terminate()
        told = [process.communicate(timeout=PATIENCE_S)[1] for process in hosts]
    assert all("not recorded here" in text for text in told), told


@matrix
def test_a_rank_of_another_host_that_does_not_come_to_the_start_is_named(tmp_path, early):
    collector = Collector(tmp_path / "data", "--config", early)
    port, script = free_port(), (JOBS / "starts.py", "late")
    hosts = [host(name, rank, collector, port, *script) for rank, name in enumerate("ab")]
    said = "startup has stalled: rank 1 never entered INIT_PROCESS_GROUP #1 of group default"
    said = re.compile(rf"{said} \(rank 0 waits in it\); rank 1 is in prepare \(starts.py:\d+\)")
    try:
        collector.wait_for(lambda job: said.search(job["headline"] or ""), "two hosts")
    finally:
        for process in hosts:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
        collector.kill()


def pipeline_of_two_hosts(collector, **environment):
    """Four stages, two on each host: neither sees a whole pipeline."""
    port, script = free_port(), JOBS / "pipeline.py"
    return [
        host(name, place, collector, port, script, ranks=2, **environment)
        for place, name in enumerate("ab")
    ]


@matrix
def test_a_slow_block_of_a_pipeline_over_two_hosts_is_named(collector):
    slow = {"SLOW_BLOCK": "2,B,3,16,16", "DELAY": "0.3"}
    hosts = pipeline_of_two_hosts(collector, STEPS="24", **slow)
    told = [process.communicate(timeout=PATIENCE_S)[1] for process in hosts]
    assert [process.returncode for process in hosts] == [0, 0], told
    assert not any("on pipeline stage" in text for text in told), told
    collector.wait_for(lambda job: job["state"] == "ended", "two hosts")
    (block,) = collector.get("jobs/two%20hosts/verdict")["incidents"]
    assert block["subject"]["ranks"] == [2], block["text"]
    assert block["subject"]["block"] == "backward of microbatch 3"
    assert block["subject"]["stage"] == "pipeline stage 2"
    assert (block["first_step"], block["last_step"]) == (16, 16)


@matrix
def test_where_a_pipeline_over_two_hosts_stands_still_is_said(collector):
    hosts = pipeline_of_two_hosts(collector, SLOW_BLOCK="2,F,5,12,12", DELAY="3600")
    what = "rank 2 does not finish the forward of microbatch 5 on pipeline stage 2"
    try:
        collector.wait_for(
            lambda job: job["state"] == "hung" and what in job["headline"], "two hosts"
        )
    finally:
        for process in hosts:
            process.terminate()
        told = [process.communicate(timeout=PATIENCE_S)[1] for process in hosts]
    assert not any(what in text for text in told), told
