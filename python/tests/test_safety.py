"""Whatever happens to laggard, training does not notice: same weights, same exit status."""

import contextlib
import hashlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
from conftest import (
    BIN,
    JOBS,
    PATIENCE_S,
    alone,
    descendants,
    forked,
    job_environment,
    laggard,
    torchrun,
)
from test_service import Collector

TRAIN = JOBS / "weights.py"
# torchrun's own status when it is ended by a signal.
LAUNCHER_WAS_TOLD_TO_END = 1


def weights(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def early(path):
    """Where a job leaves its weights before its odd step."""
    return path.with_name(f"{path.name}.early")


def wait_for(what, job):
    """Waits until it is so, while the job goes on; what it is."""
    while not (found := what()):
        assert job.process.poll() is None, job.process.communicate()
        time.sleep(0.05)
    return found


@dataclass
class Plain:
    """The weights of a run without laggard, and those it has before its odd step."""

    late: str
    early: str


@pytest.fixture(scope="session")
def untouched(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "weights"
    environment = job_environment(SAVE=str(path))
    command = forked(TRAIN, ranks=2)
    done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE_S)
    assert path.exists(), done.stderr.decode()
    return Plain(weights(path), weights(early(path)))


class Started:
    """A wrapped job under way."""

    def __init__(self, tmp_path, rings, *options, wrapper=True, start=forked, **environment):
        self.save = tmp_path / "weights"
        self.rings = rings
        command = start(TRAIN, ranks=2)
        if wrapper:
            command = [str(BIN / "laggard"), "run", *map(str, options), "--", *command]
        self.process = subprocess.Popen(
            command,
            env=job_environment(
                **{"SAVE": str(self.save), "LAGGARD_DIR": str(rings), **environment}
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ring_files(self):
        return sorted(self.rings.glob("*/rank*.ring"))

    def wait_for_rings(self):
        """Waits until every rank records."""
        wait_for(lambda: len(self.ring_files()) == 2, self)

    def saved(self):
        """Waits for the weights, however the processes above have ended."""
        until = time.monotonic() + PATIENCE_S
        while not self.save.exists():
            assert time.monotonic() < until, "the training did not finish"
            time.sleep(0.05)
        return weights(self.save)

    @property
    def verdict(self):
        return json.loads(self.stdout.splitlines()[-1])

    def end(self):
        try:
            return self.process.communicate(timeout=PATIENCE_S)
        finally:
            # Whatever is left: torchrun gives each rank a session of its own.
            ranks = descendants(self.process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            for pid in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def at_once(untouched, tmp_path_factory):
    """Two jobs at once, their rings in one place. One forks, leaves by ``os._exit``, has a report
    that nobody reads and a recording that finds no room; the other one is profiled."""
    folder = tmp_path_factory.mktemp("at_once")
    rings = folder / "rings"
    rings.mkdir(mode=0o700)
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    settings = folder / "laggard.toml"
    settings.write_text("[window]\nsteps = 10\n[profile]\nmax_steps = 5\n")
    jobs = []
    for name, options, environment in (
        ("odd", ("--report", pipe, "--record", "/dev/full"), {"LEAVE": "fork,os._exit"}),
        ("profiled", ("--config", settings), {}),
    ):
        (folder / name).mkdir()
        slow = str(len(jobs))
        options = ("--json", *options)
        start = {"odd": torchrun, "profiled": forked}[name]
        more = {"start": start, "SLOW_RANK": slow}
        jobs.append(Started(folder / name, rings, *options, **more, **environment))
    for job in jobs:
        job.stdout, job.stderr = job.end()
        assert job.process.returncode == 0, job.stderr
    return jobs


@alone
def test_the_result_is_the_same_under_laggard(untouched, at_once):
    for job in at_once:
        assert weights(job.save) == untouched.late
        assert list(job.rings.iterdir()) == [], "nothing is left behind"


@alone
def test_two_jobs_at_once_do_not_mix(at_once):
    for slow, job in enumerate(at_once):
        # Children that a rank forks and that train in its image are no ranks.
        assert job.verdict["job"]["ranks"] == 2
        assert job.verdict["incidents"][0]["subject"]["ranks"] == [slow]


@alone
def test_a_run_is_profiled_beside_one_that_is_not(at_once):
    odd, profiled = at_once
    assert "profile" not in odd.verdict or odd.verdict["profile"] is None
    assert [rank["rank"] for rank in profiled.verdict["profile"]["ranks"]] == [0, 1]


@alone
def test_a_report_that_nobody_reads_and_a_recording_without_room_are_said(at_once):
    odd, profiled = at_once
    assert "no process reads it" in odd.stderr
    assert "No space left" in odd.stderr
    assert "No space left" not in profiled.stderr


def steps_of(recording):
    """Steps in a recording that may still be written, 0 before there are any."""
    left = laggard("analyze", "--json", recording)
    return json.loads(left.stdout)["job"]["steps"] if left.code == 0 else 0


def test_killing_the_wrapper_with_agent_and_collector_in_it(untouched, tmp_path, rings):
    """From then on nobody reads, and rings that are short are overwritten many times."""
    recording = tmp_path / "job.jsonl.zst"
    short = {"LAGGARD_RING_SLOTS": "64"}
    job = Started(tmp_path, rings, "--record", recording, SLOW_RANK="1", DELAY="0.05", **short)
    seen = wait_for(lambda: steps_of(recording), job)
    job.process.kill()
    assert not job.save.exists()
    assert job.saved() == untouched.late
    job.end()
    assert steps_of(recording) >= seen, "what was seen before the kill is kept"


def test_killing_the_collector_and_then_the_agent_of_the_host(untouched, tmp_path, rings):
    collector = Collector(tmp_path / "collected")
    command = [BIN / "laggard", "agent", "--collector", collector.url]
    agent = subprocess.Popen(
        command, env=job_environment(LAGGARD_DIR=str(rings)), stderr=subprocess.PIPE, text=True
    )
    try:
        watched = {"LAGGARD_ENABLE": "1", "LAGGARD_JOB": "found", "SLOW_RANK": "1"}
        job = Started(tmp_path, rings, wrapper=False, **watched)
        collector.wait_for(lambda told: told["steps"] > 0, "found")
        collector.kill()
        assert any("does not accept batches" in line for line in agent.stderr)
        agent.kill()
        assert not job.save.exists()
        _, stderr = job.end()
    finally:
        agent.kill()
        agent.wait()
        collector.kill()
    assert job.process.returncode == 0, stderr
    assert weights(job.save) == untouched.late


def test_a_script_that_saves_when_it_is_told_to_end(untouched, tmp_path, rings):
    """Its rings were torn away meanwhile."""
    job = Started(tmp_path, rings, start=torchrun, LEAVE="SIGTERM")
    wait_for(lambda: len(list(tmp_path.glob("weights.rank*"))) == 2, job)
    for directory in rings.iterdir():
        shutil.rmtree(directory)
    job.process.send_signal(signal.SIGTERM)
    _, stderr = job.end()
    assert job.save.exists(), stderr
    assert weights(job.save) == untouched.early
    assert job.process.returncode == LAUNCHER_WAS_TOLD_TO_END, stderr


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_command_and_its_status_comes_back(sent, tmp_path):
    script = tmp_path / "wait.py"
    script.write_text(
        "import signal, sys, time\n"
        "def handler(number, frame):\n"
        "    print('got', number, flush=True); sys.exit(40 + number)\n"
        "signal.signal(signal.SIGINT, handler); signal.signal(signal.SIGTERM, handler)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [BIN / "laggard", "run", "--", sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(sent)
    assert process.wait(timeout=PATIENCE_S) == 40 + sent
    assert process.stdout.read() == f"got {int(sent)}\n", "once"


def test_what_is_ignored_around_it_the_command_ignores(tmp_path):
    # As `nohup` has it, `cmd &` in a script, and launchers that want no zombies.
    ignored = signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD
    script = tmp_path / "look.py"
    script.write_text(
        "import re, sys\n"
        "status = open('/proc/self/status').read()\n"
        "print(int(re.search(r'SigIgn:\\s+(\\w+)', status)[1], 16), flush=True)\n"
        "sys.exit(7)\n"
    )

    def ignore():
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    done = subprocess.run(
        [BIN / "laggard", "run", "--", sys.executable, script],
        stdout=subprocess.PIPE,
        preexec_fn=ignore,
        text=True,
    )
    assert done.returncode == 7
    for number in ignored:
        assert int(done.stdout) >> (number - 1) & 1, number


def test_a_terminal_interrupt_reaches_the_command_once(tmp_path):
    script = tmp_path / "wait.py"
    script.write_text(
        "import signal, sys, time\n"
        "count = []\n"
        "signal.signal(signal.SIGINT, lambda *_: count.append(1))\n"
        "print('ready', flush=True)\n"
        "while not count: time.sleep(0.05)\n"
        "time.sleep(0.5)  # a second one would come by now\n"
        "sys.exit(len(count))\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(BIN / "laggard", ["laggard", "run", "--", sys.executable, str(script)])
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os._exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 11)", -11),
    ],
)
def test_every_way_to_end_passes_through(code, expected):
    assert laggard("run", "--", sys.executable, "-c", code).code == expected


def test_a_command_that_cannot_be_started_ends_as_in_a_shell(tmp_path):
    assert laggard("run", "--", "no-such-command").code == 127
    text = tmp_path / "text"
    text.write_text("no program")
    outcome = laggard("run", "--", text)
    assert outcome.code == 126
    assert str(text) in outcome.stderr


def test_a_ring_directory_that_cannot_be_written(tmp_path):
    # Root may write anywhere, so a file stands where the directory should be.
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    outcome = laggard("run", "--", "echo", "ran", LAGGARD_DIR=str(blocked))
    assert (outcome.code, outcome.stdout) == (0, "ran\n")
    assert "runs unwatched" in outcome.stderr and str(blocked) in outcome.stderr


def test_ranks_that_can_have_no_rings(untouched, tmp_path):
    """A file stands where one rank's should be, and the other's memory is full from the start."""
    blocked, full = tmp_path / "blocked", tmp_path / "full"
    blocked.write_text("")
    full.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", full], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount")
    try:
        places = {"LAGGARD_ENABLE": "1", "RING_DIRS": f"{blocked}:{full}"}
        job = Started(tmp_path, tmp_path / "rings", wrapper=False, **places)
        _, stderr = job.end()
    finally:
        subprocess.run(["umount", full], check=True)
    assert job.process.returncode == 0
    assert stderr.count("training continues unrecorded") == 2
    assert "No space left" in stderr
    assert weights(job.save) == untouched.late


STEPS = """
import laggard
for _ in range(30):
    with laggard.step(), laggard.stage("work"):
        pass
print("ran")
"""


def test_a_report_without_room_and_a_recording_that_nobody_reads_are_said(tmp_path):
    record = tmp_path / "record"
    os.mkfifo(record)
    options = ("--report", "/dev/full", "--record", record)
    outcome = laggard("run", *options, "--", sys.executable, "-c", STEPS)
    assert (outcome.code, outcome.stdout) == (0, "ran\n")
    assert "No space left" in outcome.stderr
    assert "it is a pipe; a recording goes to a file" in outcome.stderr


def test_switched_off_nothing_is_loaded(tmp_path):
    script = tmp_path / "look.py"
    script.write_text(
        "import sys, torch, laggard\n"
        "with laggard.step():\n"
        "    with laggard.stage('x'), laggard.side_channel('y'): pass\n"
        "assert laggard.summary() is None\n"
        "assert 'laggard._native' not in sys.modules\n"
        "assert 'laggard/_native' not in open('/proc/self/maps').read()\n"
        "assert type(torch.autograd.Variable._execution_engine).__name__ != 'EngineProxy'\n"
    )
    plain = subprocess.run([sys.executable, script], env=job_environment(LAGGARD_ENABLE="0"))
    assert plain.returncode == 0
    outcome = laggard("run", "--", sys.executable, script, LAGGARD_ENABLE="0")
    assert (outcome.code, outcome.stderr) == (0, "")


def test_groups_that_outlive_the_interpreter(tmp_path):
    """A script that never destroys its process group once crashed in its last moment."""
    script = tmp_path / "careless.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    for _ in range(3):
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        environment = job_environment(LAGGARD_ENABLE="1", **alone)
        assert subprocess.run([sys.executable, script], env=environment).returncode == 0
