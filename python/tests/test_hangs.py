"""Jobs that stop moving: who holds them, where, while they hang."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import BIN, JOBS, job_environment, torchrun

CULPRIT = 2


class Hanging:
    """A job under laggard that stops moving, and what is said of it meanwhile."""

    def __init__(self, reason, tmp_path, **environment):
        self.recording = tmp_path / "job.jsonl"
        self.descendants = []
        command = torchrun(JOBS / "hangs.py", reason, ranks=4)
        self.process = subprocess.Popen(
            [BIN / "laggard", "run", "--json", "--record", self.recording, "--", *command],
            env=job_environment(SLOW_RANK=str(CULPRIT), **environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self, pattern):
        """The first line said that matches."""
        for line in self.process.stderr:
            if re.search(pattern, line):
                self.descendants = descendants(self.process.pid)
                return line
        raise AssertionError("the job ended and nobody said so")

    def end(self):
        """Ends it as an impatient user would; the verdict."""
        self.process.send_signal(signal.SIGTERM)
        try:
            stdout, _ = self.process.communicate(timeout=60)
        finally:
            self.kill()
        return json.loads(stdout.splitlines()[-1])

    def kill(self):
        # torchrun gives each rank a session of its own.
        for pid in {self.process.pid, *self.descendants}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(pid):
    """Processes that a process started, directly or not."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [child for child, parent in parents.items() if parent == pid]
    return found + [below for child in found for below in descendants(child)]


@pytest.fixture
def hanging(tmp_path):
    jobs = []

    def start(reason, **environment):
        jobs.append(Hanging(reason, tmp_path, **environment))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


# reason: what is said of it while it hangs
HANGS = {
    "loader": r"rank 2 never entered ALLREDUCE #\d+ of group default \(ranks 0-1,3 wait in it\); "
    r"rank 2 is in Shards.read_shard \(hangs.py:\d+\)",
    "skip": r"rank 2 entered BARRIER where the others entered ALLREDUCE #\d+ of group default",
    "order": r"ranks 2-3 wait for one another: ranks 0-1,3 in ALLREDUCE #\d+ of group default "
    r"without rank 2; rank 2 in ALLREDUCE #\d+ of group pair without rank 3",
    "stop": r"rank 2 never entered .* rank 2 is stopped in <module> \(hangs.py:\d+\)",
    "spin": r"rank 2 never entered .* rank 2 is in spin \(hangs.py:\d+\)",
    "gil": r"rank 2 never entered .* rank 2 is in hold_gil \(hangs.py:\d+\)",
}


@pytest.mark.parametrize("reason", HANGS)
def test_a_hang_is_explained_while_it_lasts(reason, hanging):
    job = hanging(reason)
    said = job.line("hang since step 4[01]: ")
    assert re.search(HANGS[reason], said), said
    hang, *others = job.end()["incidents"]
    assert others == []
    assert (hang["kind"], hang["severity"], hang["open"]) == ("hang", "critical", True)
    expected = [2, 3] if reason == "order" else [2]
    assert hang["subject"]["ranks"] == expected
    methods = {evidence["method"] for evidence in hang["evidence"]}
    assert methods == {"collective", "stack"}


def test_a_recorded_hang_is_the_same_hang_again(hanging):
    job = hanging("loader")
    job.line("hang since step")
    (live,) = job.end()["incidents"]
    replay = subprocess.run(
        [BIN / "laggard", "analyze", "--json", job.recording], capture_output=True, check=True
    )
    (again,) = json.loads(replay.stdout)["incidents"]
    assert (again["text"], again["evidence"]) == (live["text"], live["evidence"])


def test_a_checkpoint_behind_a_barrier_is_no_hang(hanging):
    job = hanging("checkpoint", PAUSE_S="5")
    said = job.line("waiting since step 40: rank 2 never entered BARRIER")
    assert "save_checkpoint (hangs.py:" in said and said.endswith("writes a checkpoint\n")
    job.line("the job moves again after 5")
    stdout, _ = job.process.communicate(timeout=60)
    assert job.process.returncode == 0
    incidents = json.loads(stdout.splitlines()[-1])["incidents"]
    assert [i for i in incidents if i["kind"] == "hang"] == [], "one incident, not two"
    assert all(incident["severity"] == "info" or not incident["open"] for incident in incidents)


def test_a_rank_that_is_stuck_for_a_while_is_one_incident(hanging):
    job = hanging("loader", PAUSE_S="4")
    began = time.monotonic()
    job.line("hang since step 40")
    assert time.monotonic() - began < 60
    stdout, _ = job.process.communicate(timeout=60)
    (incident,) = json.loads(stdout.splitlines()[-1])["incidents"]
    assert incident["subject"]["ranks"] == [2]
    assert incident["subject"]["stage"] == "data.next_wait"
    methods = [evidence["method"] for evidence in incident["evidence"]]
    assert methods[0] == "frontier" and "collective" in methods
