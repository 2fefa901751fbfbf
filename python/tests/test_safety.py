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
from pathlib import Path

import pytest
from conftest import BIN, JOBS, descendants, job_environment, laggard, torchrun
from test_service import Collector

TRAIN = JOBS / "weights.py"


def weights(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="session")
def untouched(tmp_path_factory):
    """The weights of a run without laggard."""
    path = tmp_path_factory.mktemp("plain") / "weights"
    environment = job_environment(SAVE=str(path))
    done = subprocess.run(torchrun(TRAIN), env=environment, capture_output=True, timeout=120)
    assert path.exists(), done.stderr.decode()
    return weights(path)


class Started:
    """A wrapped job under way."""

    def __init__(self, tmp_path, rings, *options, wrapper=True, **environment):
        self.save = tmp_path / "weights"
        self.rings = rings
        command = torchrun(TRAIN)
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

    def wait_for_rings(self, count=2):
        """Waits until every rank records."""
        for _ in range(600):
            if len(self.ring_files()) >= count:
                return
            time.sleep(0.05)
        raise AssertionError(f"no rings: {self.process.communicate(timeout=60)}")

    def rank_pids(self):
        return [int(path.name.split(".")[1]) for path in self.ring_files()]

    def saved(self):
        """Waits for the weights, however the processes above have ended."""
        for _ in range(1200):
            if self.save.exists():
                return weights(self.save)
            time.sleep(0.05)
        raise AssertionError("the training did not finish")

    def end(self):
        try:
            return self.process.communicate(timeout=120)
        finally:
            # Whatever is left: torchrun gives each rank a session of its own.
            ranks = descendants(self.process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            for pid in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_the_result_is_the_same_under_laggard(untouched, tmp_path, rings):
    job = Started(tmp_path, rings)
    _, stderr = job.end()
    assert job.process.returncode == 0, stderr
    assert weights(job.save) == untouched
    assert list(rings.iterdir()) == [], "nothing is left behind"


def steps_of(recording):
    """Steps in a recording that may still be written, 0 before there are any."""
    left = laggard("analyze", "--json", recording)
    return json.loads(left.stdout)["job"]["steps"] if left.code == 0 else 0


def test_killing_the_wrapper_with_agent_and_collector_in_it(untouched, tmp_path, rings):
    recording = tmp_path / "job.jsonl.zst"
    job = Started(tmp_path, rings, "--record", recording, SLOW_RANK="1", DELAY="0.05")
    job.wait_for_rings()
    while not (seen := steps_of(recording)):
        time.sleep(0.2)
    job.process.kill()
    assert not job.save.exists()
    assert job.saved() == untouched
    job.end()
    assert steps_of(recording) >= seen, "what was seen before the kill is kept"


def test_killing_the_collector_that_is_told(untouched, tmp_path, rings):
    collector = Collector(tmp_path / "collected")
    try:
        tell = ("--collector", collector.url, "--job", "told")
        job = Started(tmp_path, rings, *tell, SLOW_RANK="1")
        collector.wait_for(lambda told: told["steps"] > 0, "told")
        collector.kill()
        assert not job.save.exists()
        _, stderr = job.end()
    finally:
        collector.kill()
    assert job.process.returncode == 0, stderr
    assert "does not take what it is told" in stderr
    assert weights(job.save) == untouched


def test_killing_the_agent_of_the_host(untouched, tmp_path, rings):
    collector = Collector(tmp_path / "collected")
    command = [BIN / "laggard", "agent", "--collector", collector.url]
    agent = subprocess.Popen(
        command, env=job_environment(LAGGARD_DIR=str(rings)), stderr=subprocess.DEVNULL
    )
    try:
        watched = {"LAGGARD_ENABLE": "1", "LAGGARD_JOB": "found", "SLOW_RANK": "1"}
        job = Started(tmp_path, rings, wrapper=False, **watched)
        collector.wait_for(lambda told: told["steps"] > 0, "found")
        agent.kill()
        assert not job.save.exists()
        _, stderr = job.end()
    finally:
        agent.kill()
        agent.wait()
        collector.kill()
    assert job.process.returncode == 0, stderr
    assert weights(job.save) == untouched


def test_a_run_that_is_profiled(untouched, tmp_path, rings):
    settings = tmp_path / "laggard.toml"
    settings.write_text("[window]\nsteps = 10\n[profile]\nmax_steps = 5\n")
    job = Started(tmp_path, rings, "--json", "--config", settings, SLOW_RANK="1")
    stdout, stderr = job.end()
    assert job.process.returncode == 0, stderr
    verdict = json.loads(stdout.splitlines()[-1])
    assert [rank["rank"] for rank in verdict["profile"]["ranks"]] == [0, 1]
    assert weights(job.save) == untouched


def test_a_script_that_saves_when_it_is_told_to_end(tmp_path, rings):
    ends = []
    for wrapper in (False, True):
        folder = tmp_path / str(wrapper)
        folder.mkdir()
        job = Started(folder, rings, wrapper=wrapper, LEAVE="SIGTERM")
        for _ in range(1200):
            if len(list(folder.glob("weights.rank*"))) == 2:
                break
            time.sleep(0.05)
        job.process.send_signal(signal.SIGTERM)
        _, stderr = job.end()
        assert job.save.exists(), stderr
        ends.append((job.process.returncode, weights(job.save)))
    assert ends[0] == ends[1]


def test_a_rank_that_is_killed_fails_the_job_as_without_laggard(tmp_path, rings):
    job = Started(tmp_path, rings, "--json", STEPS="400")
    job.wait_for_rings()
    time.sleep(1.0)  # into the steps: what is killed is a rank at work
    os.kill(job.rank_pids()[1], signal.SIGKILL)
    stdout, stderr = job.end()
    assert job.process.returncode == 1
    assert "ChildFailedError" in stderr
    verdict = json.loads(stdout.splitlines()[-1])
    guesses = [incident for incident in verdict["incidents"] if incident["id"] != "k1"]
    blamed = [incident["subject"]["ranks"] for incident in guesses]
    assert not any(blamed), "a dead rank is no guess at a slow one"


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
    assert process.wait(timeout=30) == 40 + sent
    assert process.stdout.read() == f"got {int(sent)}\n", "once"


def test_a_terminal_interrupt_reaches_the_command_once(tmp_path):
    script = tmp_path / "wait.py"
    script.write_text(
        "import signal, sys, time\n"
        "count = []\n"
        "signal.signal(signal.SIGINT, lambda *_: count.append(1))\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 2\n"
        "while time.monotonic() < end: time.sleep(0.05)\n"
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


def test_a_script_that_leaves_by_os_exit(untouched, tmp_path, rings):
    job = Started(tmp_path, rings, LEAVE="os._exit")
    job.end()
    assert job.process.returncode == 0
    assert weights(job.save) == untouched


def test_a_script_that_forks_keeps_its_children_out(untouched, tmp_path, rings):
    job = Started(tmp_path, rings, "--json", LEAVE="fork")
    stdout, _ = job.end()
    assert weights(job.save) == untouched
    assert json.loads(stdout.splitlines()[-1])["job"]["ranks"] == 2


def test_a_ring_directory_that_cannot_be_written(untouched, tmp_path):
    # Root may write anywhere, so a file stands where the directory should be.
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    job = Started(tmp_path, blocked)
    _, stderr = job.end()
    assert job.process.returncode == 0
    assert "runs unwatched" in stderr and str(blocked) in stderr
    assert weights(job.save) == untouched


def test_ranks_that_cannot_make_their_rings(untouched, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    job = Started(tmp_path, blocked, wrapper=False, LAGGARD_ENABLE="1")
    _, stderr = job.end()
    assert job.process.returncode == 0
    assert stderr.count("training goes on unrecorded") == 2
    assert weights(job.save) == untouched


def test_memory_that_is_full_from_the_start(untouched, tmp_path):
    full = tmp_path / "full"
    full.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", full], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount")
    try:
        job = Started(tmp_path, full)
        _, stderr = job.end()
        assert job.process.returncode == 0
        assert "training goes on unrecorded" in stderr and "No space left" in stderr
        assert weights(job.save) == untouched
    finally:
        subprocess.run(["umount", full], check=True)


def test_a_full_disk_under_report_and_recording(untouched, tmp_path, rings):
    job = Started(tmp_path, rings, "--report", "/dev/full", "--record", "/dev/full")
    _, stderr = job.end()
    assert job.process.returncode == 0
    assert "No space left" in stderr
    assert weights(job.save) == untouched


def test_pipes_that_nobody_reads(untouched, tmp_path, rings):
    report, record = tmp_path / "report", tmp_path / "record"
    os.mkfifo(report)
    os.mkfifo(record)
    job = Started(tmp_path, rings, "--report", str(report), "--record", str(record))
    _, stderr = job.end()
    assert job.process.returncode == 0
    assert "nobody reads it" in stderr
    assert "it is a pipe; a recording goes to a file" in stderr
    assert weights(job.save) == untouched


def test_two_jobs_at_once_do_not_mix(untouched, tmp_path, rings):
    jobs = []
    for number, slow in enumerate(["0", "1"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        jobs.append(Started(folder, rings, "--json", SLOW_RANK=slow))
    for job, slow in zip(jobs, [0, 1]):
        stdout, stderr = job.end()
        verdict = json.loads(stdout.splitlines()[-1])
        assert verdict["job"]["ranks"] == 2, stderr
        assert verdict["incidents"][0]["subject"]["ranks"] == [slow]
        assert weights(job.save) == untouched


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


def test_without_an_agent_the_ring_just_turns(untouched, tmp_path, rings):
    """A short ring that nobody reads, overwritten many times."""
    job = Started(tmp_path, rings, wrapper=False, LAGGARD_ENABLE="1", LAGGARD_RING_SLOTS="64")
    job.end()
    assert job.process.returncode == 0
    assert weights(job.save) == untouched


def test_rings_torn_away_while_training(untouched, tmp_path, rings):
    job = Started(tmp_path, rings)
    job.wait_for_rings()
    for directory in Path(rings).iterdir():
        shutil.rmtree(directory)
    job.end()
    assert job.process.returncode == 0
    assert weights(job.save) == untouched


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
