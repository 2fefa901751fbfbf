"""What the tests share: running jobs under laggard and looking at what it says."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
JOBS = HERE / "jobs"


@dataclass
class Outcome:
    """How a command under laggard ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def verdict(self):
        return json.loads(self.stdout.splitlines()[-1])

    @property
    def incidents(self):
        return self.verdict["incidents"]


def torchrun(script, *arguments, ranks=2):
    """The command that starts a job on this machine."""
    launcher = [BIN / "torchrun", "--standalone", "--nproc-per-node", ranks]
    return [str(part) for part in (*launcher, script, *arguments)]


def laggard(*arguments, timeout=180, **environment):
    """Runs the laggard command and waits for its end."""
    done = subprocess.run(
        [str(BIN / "laggard"), *map(str, arguments)],
        env=job_environment(**environment),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def job_environment(**more):
    """The environment of a job: this environment's programs first, no noise."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **more}


@pytest.fixture
def run():
    """Runs a job under `laggard run --json`."""

    def run(command, *options, **environment):
        return laggard("run", "--json", *options, "--", *command, **environment)

    return run


@pytest.fixture
def rings(tmp_path):
    """A ring directory of the test's own."""
    directory = tmp_path / "rings"
    directory.mkdir(mode=0o700)
    return directory
