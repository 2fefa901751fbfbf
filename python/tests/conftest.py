"""What the tests share: running jobs under laggard and looking at what it says."""

import contextlib
import fcntl
import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import textwrap
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
JOBS = HERE / "jobs"
# A real job of the matrices that `make acceptance` counts; `make test` plays its recording.
matrix = pytest.mark.matrix
# Has the machine to itself when tests run beside one another: what it asserts follows from times.
alone = pytest.mark.alone
# Needs the asynchronous accelerator, which is built where the tests run.
HEADERS = Path(sysconfig.get_paths()["include"])
accelerated = pytest.mark.skipif(
    not (shutil.which("g++") and (HEADERS / "Python.h").exists()),
    reason="no g++, or no headers of Python, to build the accelerator with",
)
# After so long a test that waits is ended: many times what any takes on a machine that has nothing
# else to do. How long a busy one takes is not judged.
PATIENCE_S = 900
# And one that waits for a line about a job, which comes within 20 s there.
SAID_WITHIN_S = 300
# A job is not said to hang before it was quiet for so long, or for so many of its longest pauses:
# [hang] in docs/settings.md.
QUIET_MIN_S, QUIET_RATIO = 1.5, 3.0

# What proves to a collector who somebody is.
TOKENS = {role: role * 8 for role in ("agent", "viewer", "admin")}


def pytest_addoption(parser):
    parser.addoption("--matrix", action="store_true", help="only the matrices of real jobs")
    parser.addoption("--skipped", type=Path, help="list what was skipped, and why, in this file")


def pytest_configure(config):
    config.addinivalue_line("markers", "matrix: a real job that make acceptance counts")
    config.addinivalue_line("markers", "alone: has the machine to itself")


def is_alone(item):
    return item.get_closest_marker("alone") is not None


def pytest_collection_modifyitems(config, items):
    wanted = config.getoption("--matrix")
    left_out = [item for item in items if (item.get_closest_marker("matrix") is None) == wanted]
    config.hook.pytest_deselected(items=left_out)
    # At the end nobody waits long for those that have the machine to themselves.
    items[:] = sorted((item for item in items if item not in left_out), key=is_alone)


@contextlib.contextmanager
def machine(alone=False):
    """The machine, shared with the tests of other workers or not."""
    lock = os.open(HERE, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with machine(alone=is_alone(item)):
        return (yield)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["jobs"] = jobs_started


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Adds the jobs of a worker that is done."""
    global jobs_started
    jobs_started += getattr(node, "workeroutput", {}).get("jobs", 0)


def pytest_terminal_summary(terminalreporter, config):
    """Lists what was skipped, a line each."""
    skipped = [
        f"skipped: {report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}\n"
        for report in terminalreporter.stats.get("skipped", ())
    ]
    if path := config.getoption("--skipped"):
        path.write_text("".join(skipped))
    terminalreporter.write_line(f"{jobs_started} real jobs")


def kept():
    """Where the recording of this test's job is to be kept, if it is."""
    folder = os.environ.get("LAGGARD_TEST_KEEP")
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2]
    name = re.sub(r"\W+", "_", test.split(" (")[0].removeprefix("test_")).strip("_")
    return folder and Path(folder) / f"{name}.jsonl.gz"


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


# How many real jobs were started; make test has room for 25.
jobs_started = 0


def real_job(command):
    """Counts a job."""
    global jobs_started
    jobs_started += 1
    return [str(part) for part in command]


def torchrun(script, *arguments, ranks=2):
    """The command that starts a job on this machine."""
    launcher = [BIN / "torchrun", "--standalone", "--nproc-per-node", ranks]
    return real_job((*launcher, script, *arguments))


def forked(script, *arguments, ranks=4):
    """The command that starts it in half the time: its ranks share the import of PyTorch."""
    return real_job((sys.executable, JOBS / "launch.py", ranks, script, *arguments))


def bare(script, *arguments, ranks=4):
    """The command that starts ranks as programs of their own, as torchrun does."""
    return real_job((sys.executable, JOBS / "launch.py", "--bare", ranks, script, *arguments))


def free_port():
    """A port that nobody listens on: of two suites on one machine each has its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def laggard(*arguments, timeout=PATIENCE_S, programs=BIN, **environment):
    """Runs the laggard command and waits for its end."""
    if arguments[0] == "run" and "--record" not in arguments and (path := kept()):
        arguments = ["run", "--record", path, *arguments[1:]]
    process = subprocess.Popen(
        [str(programs / "laggard"), *map(str, arguments)],
        env=job_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    finally:
        kill_all(process)
    return Outcome(process.returncode, stdout, stderr)


def job_environment(**more):
    """The environment of a job: this environment's programs first, no noise."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **more}


class Watched:
    """A job under laggard, and what is said of it meanwhile."""

    def __init__(self, command, recording, *options, before=(), **environment):
        self.recording = recording
        self.descendants = []
        wrapper = [BIN / "laggard", "run", "--json", "--record", recording, *options, "--"]
        self.process = subprocess.Popen(
            [*before, *wrapper, *command],
            env=job_environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self, pattern):
        """The first line said that matches; without one in time the job is ended."""
        said = []
        # Nothing else ends the reading: a job that hangs for ever keeps its output open.
        deadline = threading.Timer(SAID_WITHIN_S, self.kill)
        deadline.start()
        try:
            for line in self.process.stderr:
                said.append(line)
                if re.search(pattern, line):
                    self.descendants = descendants(self.process.pid)
                    return line
        finally:
            deadline.cancel()
        so_far = "".join(said)
        raise AssertionError(
            f"the job ended, or {SAID_WITHIN_S} s passed, and nobody said {pattern!r}:\n{so_far}"
        )

    def recorded(self, pattern):
        """Whether its recording has that by now."""
        return self.recording.exists() and re.search(pattern, self.recording.read_text())

    def end(self):
        """Ends it as an impatient user would; the verdict."""
        self.process.send_signal(signal.SIGTERM)
        try:
            stdout, _ = self.process.communicate(timeout=PATIENCE_S)
        finally:
            self.kill()
        return json.loads(stdout.splitlines()[-1])

    def verdict(self):
        """Waits for its end."""
        stdout, stderr = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, stderr
        return json.loads(stdout.splitlines()[-1])

    def check_told_when_due(self):
        """A hang is reported at the agent's first look at which it was due; pytest -rP shows when.

        All times are of the recording: how late a busy machine lets it look is not judged."""
        marks, looks = [], []
        with self.recording.open() as lines:
            for line in map(json.loads, lines):
                if isinstance(line, list):
                    marks.append(line[1])
                elif line.get("is") == "quiet":
                    looks.append(line["at"])
                elif line.get("is") == "stacks_told":
                    break
        marks.sort()
        longest_s = max(b - a for a, b in zip(marks, marks[1:])) * 1e-9
        patience_s = max(QUIET_MIN_S, QUIET_RATIO * longest_s)
        *before, told = (1e-9 * (at - marks[-1]) for at in looks if at > marks[-1])
        print(f"told after {told:.2f} s")
        assert told >= QUIET_MIN_S
        assert all(quiet_s < patience_s for quiet_s in before), (before, told, patience_s)

    def kill(self):
        kill_all(self.process, *self.descendants)


def kill_all(process, *more):
    """Kills it, what it has started, and more: a job outlives the laggard that watches it."""
    # torchrun gives each rank a session of its own.
    running = [process.pid, *descendants(process.pid)] if process.poll() is None else []
    for pid in {*running, *more}:
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
def early(tmp_path):
    """Settings by which a job that has not begun is soon said to stand still."""
    config = tmp_path / "laggard.toml"
    config.write_text("[hang]\nfirst_quiet_s = 5.0\n")
    return str(config)


@pytest.fixture
def watch(tmp_path):
    """Starts jobs under `laggard run --json --record`."""
    jobs = []

    def watch(command, *options, **environment):
        jobs.append(Watched(command, tmp_path / "job.jsonl", *options, **environment))
        return jobs[-1]

    kept_as = kept()
    yield watch
    for job in jobs:
        job.kill()
        if kept_as and job.recording.exists():
            kept_as.write_bytes(gzip.compress(job.recording.read_bytes()))


def assert_told_again(incident, recording):
    """The same is said of a recording."""
    again = json.loads(laggard("analyze", "--json", recording).stdout)["incidents"][0]
    assert (again["text"], again["evidence"]) == (incident["text"], incident["evidence"])


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


@pytest.fixture
def python(tmp_path, rings):
    """Runs a script and returns what it prints, as JSON if it is."""

    def python(script, *arguments, **environment):
        file = tmp_path / "script.py"
        file.write_text(textwrap.dedent(script))
        done = subprocess.run(
            [sys.executable, *arguments, file],
            env=job_environment(LAGGARD_DIR=str(rings), LAGGARD_JOB="test", **environment),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        return json.loads(lines[-1]) if lines else None

    return python


def write_tokens(folder):
    """A file of tokens for a collector."""
    path = folder / "tokens.toml"
    path.write_text("".join(f'{role} = "{token}"\n' for role, token in TOKENS.items()))
    path.chmod(0o600)
    return path


class Namespaces:
    """Network namespaces by their names."""

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def limit(self, name, device, *words):
        """Lets less through."""
        command = ["ip", "netns", "exec", name, "tc", *words[:2], "dev", device, *words[2:]]
        subprocess.run(command, check=True, capture_output=True)

    def hosts(self, ends, master, ranks, tmp_path, command, options, **environment):
        """A job of so many ranks in each namespace, and its device."""
        for node, (name, device) in enumerate(ends):
            launcher = [BIN / "torchrun", "--nnodes", len(ends), "--nproc-per-node", ranks]
            meet = ["--node-rank", node, "--master-addr", master, "--master-port", 29511]
            # A reader must be able to distinguish them: here they have one name.
            told = [*options, "--host", "abcd"[node]] if options else []
            yield Watched(
                [str(part) for part in (*launcher, *meet, *command)],
                tmp_path / f"node{node}.jsonl",
                *told,
                before=["ip", "netns", "exec", name],
                GLOO_SOCKET_IFNAME=device,
                **environment,
            )


class Cable(Namespaces):
    """Two network namespaces, and a wire between them."""

    ENDS = ("10.231.77.1", "10.231.77.2")

    def __init__(self):
        self.names = [f"laggard{os.getpid()}{end}" for end in "ab"]
        self.devices = [f"lg{os.getpid() % 10**9}{end}" for end in "ab"]

    def lay(self):
        (a, b), (left, right) = self.names, self.devices
        self.ip("netns", "add", a)
        self.ip("netns", "add", b)
        self.ip("link", "add", left, "netns", a, "type", "veth", "peer", right, "netns", b)
        for name, device, address in zip(self.names, self.devices, self.ENDS):
            self.ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            self.ip("-n", name, "link", "set", "lo", "up")
            self.ip("-n", name, "link", "set", device, "up")

    def cut(self):
        self.ip("-n", self.names[0], "link", "set", self.devices[0], "down")

    def throttle(self, rate):
        shape = ["root", "tbf", "rate", rate, "burst", "32kbit", "latency", "400ms"]
        self.limit(self.names[0], self.devices[0], "qdisc", "add", *shape)

    def inside(self, *command):
        """As a command at the first end."""
        return ["ip", "netns", "exec", self.names[0], *map(str, command)]

    def sides(self, tmp_path, script, *arguments, options=(), **environment):
        """A job of two ranks at each end, under `laggard run` with these options."""
        ends, command = list(zip(self.names, self.devices)), [script, *arguments]
        return self.hosts(ends, self.ENDS[0], 2, tmp_path, command, options, **environment)


class Star(Namespaces):
    """A namespace with a switch, and wires from it to others."""

    HUB = "10.231.78.254"

    def __init__(self):
        self.name = f"laggard{os.getpid()}hub"
        self.wires = {}
        self.ends = {}
        self.names = [self.name]

    def lay(self):
        self.ip("netns", "add", self.name)
        self.inside("ip", "link", "add", "switch", "type", "bridge")
        self.inside("ip", "address", "add", f"{self.HUB}/24", "dev", "switch")
        for device in ("lo", "switch"):
            self.inside("ip", "link", "set", device, "up")

    def add(self, address, name=None):
        """A wire to a namespace, a new one without a name; the namespace."""
        nth = len(self.wires)
        if name is None:
            name = f"{self.name}{nth}"
            self.ip("netns", "add", name)
            self.names.append(name)
            self.ip("-n", name, "link", "set", "lo", "up")
        here, there = f"w{nth}", f"lw{os.getpid() % 10**6}{nth}"
        self.ip(
            "link", "add", here, "netns", self.name, "type", "veth", "peer", there, "netns", name
        )
        self.inside("ip", "link", "set", here, "master", "switch", "up")
        self.ip("-n", name, "address", "add", f"{address}/24", "dev", there)
        self.ip("-n", name, "link", "set", there, "up")
        self.wires[address], self.ends[address] = here, (name, there)
        return name

    def throttle(self, address, to, rate):
        """What is sent from one to another, and nothing else."""
        for words in (
            "qdisc add root handle 1: htb",
            f"class add parent 1: classid 1:1 htb rate {rate}",
            f"filter add parent 1: protocol ip u32 match ip dst {to}/32 flowid 1:1",
        ):
            self.limit(*self.ends[address], *words.split())

    def cut(self, address):
        self.inside("ip", "link", "set", self.wires[address], "down")

    def mend(self, address):
        self.inside("ip", "link", "set", self.wires[address], "up")

    def inside(self, *command):
        """Runs a command where the switch is; what it says."""
        command = ["ip", "netns", "exec", self.name, *command]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def cable():
    cable = Cable()
    try:
        cable.lay()
    except (OSError, subprocess.CalledProcessError) as error:
        cable.remove()
        pytest.skip(f"needs root and iproute2 for two network namespaces: {error}")
    yield cable
    cable.remove()
