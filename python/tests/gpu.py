"""What only a device can show of laggard, in one run of under nine minutes: ``make gpu``.

Two ranks train on a CUDA card, or on one each. Without a card four ranks train on the accelerator
of the tests, so that this is known to work on the day there is one. Prints a table, and leaves its
values (gpu.json) and what was recorded (recordings.tar) in a folder. Ends with 1 if a row failed.

    python gpu.py [--out FOLDER] [--only PATTERN] [--jobs N] [--reads PLACE ...]

Several jobs at once (N) ask for a card that works for several processes at a time: one with a
daemon of NVIDIA's Multi-Process Service.
"""

import argparse
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from conftest import HERE, JOBS, Watched, forked, job_environment, laggard

CARD = torch.cuda.is_available()
RANKS, CULPRIT = (2, 1) if CARD else (4, 2)
# Checks that would begin later than this are left out.
BUDGET_S = float(os.environ.get("BUDGET_S", 8 * 60))
# Where the loss is read; device_loop.py has more.
READS = ["after", "never"]
# fault: whether the device or its host is slow, in which stage, and by how much
FAULTS = {
    "loader": ("host", "data.next_wait", {"DELAY": "0.06"}),
    "forward": ("host", "model.fwd_loss_cpu_wall", {"DELAY": "0.06"}),
    "callback": ("host", "callbacks.cpu_wall", {"DELAY": "0.06"}),
    "device_forward": ("device", "model.fwd_loss_cpu_wall", {"FACTOR": "4"}),
    "device_backward": ("device", "model.backward_cpu_wall", {"FACTOR": "4"}),
    "device_optimizer": ("device", "optim.step_cpu_wall", {"FACTOR": "8"}),
}
STOPS = ("stop_kernel", "stop_before", "stop_all", *(() if CARD else ("stop_collective",)))
# What strikes the language model, and whom and what is to be named.
OF_MODEL = {
    "none": None,
    "loader": ("host", "data.next_wait"),
    # The host launches all of it, too.
    "device": (None, "model.fwd_loss_cpu_wall"),
    "read_backs": None,
}


@dataclass
class Ran:
    """A job that has ended."""

    folder: Path
    stdout: str

    @property
    def verdict(self):
        return json.loads(self.stdout.splitlines()[-1])

    @property
    def step_ms(self):
        return float(re.search(r"a step took ([\d.]+) ms", self.stdout)[1])

    @property
    def ranks(self):
        """What each rank left."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("?.json"))]


kept = Path(tempfile.mkdtemp(prefix="laggard-kept-"))


def keep(file, name):
    """Keeps what was recorded."""
    (kept / f"{re.sub(r'[^a-z0-9_]+', '-', name)}.gz").write_bytes(gzip.compress(file.read_bytes()))


def run(script="device_loop.py", ranks=RANKS, bare=False, name=None, **environment):
    """Runs a job under laggard, or bare; its recording is kept by that name."""
    folder = Path(tempfile.mkdtemp(prefix="laggard-gpu-"))
    command = forked(JOBS / script, ranks=ranks)
    environment = {"STEPS": "100", "SLOW_RANK": str(CULPRIT), "TIMES": str(folder), **environment}
    if bare:
        done = subprocess.run(
            command, env=job_environment(**environment), capture_output=True, text=True
        )
        code = done.returncode
    else:
        record = ["--record", folder / "job.jsonl"]
        done = laggard("run", "--json", *record, "--", *command, **environment)
        code = done.code
        if name and (folder / "job.jsonl").exists():
            keep(folder / "job.jsonl", name)
    if code != 0:
        raise RuntimeError(f"the job ended with {code}: {done.stderr[-2000:]}")
    return Ran(folder, done.stdout)


def named(verdict):
    """Incidents that name ranks."""
    return [one for one in verdict["incidents"] if one["subject"]["ranks"]]


def doctor():
    said = laggard("doctor")
    return said.code == 0, {"said": said.stdout.splitlines()}


healthy_ms = {}


def of_job(verdict):
    """What is said of the job as a whole."""
    job = verdict["job"]
    keys = "sampled_steps", "device_wait_share", "read_backs", "cut"
    return {**{key: job.get(key) for key in keys}, "notes": verdict["notes"]}


def healthy(read):
    ran = run(READ=read, name=f"healthy {read}")
    healthy_ms[read] = ran.step_ms
    values = {"step_ms": ran.step_ms, **of_job(ran.verdict)}
    return named(ran.verdict) == [] and values["sampled_steps"] > 0, values


def judge(ran, culprit, healthy_ms=None):
    """Whether the culprit, and nobody else, is named; what was said of it."""
    incidents = named(ran.verdict)
    values = {"step_ms": ran.step_ms, "said": [one["text"] for one in incidents]}
    if healthy_ms:
        values["true_gain_ms"] = ran.step_ms - healthy_ms
    values |= of_job(ran.verdict)
    if not incidents or culprit is None:
        return incidents == [] and culprit is None, values
    first = incidents[0]
    values["charged_ms"] = first["cost_s"] / first["evidence"][0]["values"]["struck_steps"] * 1e3
    values["evidence"] = [evidence["text"] for evidence in first["evidence"]]
    if (profile := ran.verdict.get("profile")) is not None:
        values["functions"] = [each["name"] for each in profile["functions"]][:8]
    subject, (side, stage) = first["subject"], culprit
    right = (subject["ranks"], subject["stage"]) == ([CULPRIT], stage)
    return right and (side is None or subject.get("side") in (side, None)), values


def fault(fault, read):
    side, stage, slow = FAULTS[fault]
    ran = run(FAULT=fault, READ=read, name=f"fault {fault} {read}", **slow)
    right, values = judge(ran, (side, stage), healthy_ms.get(read))
    return right and len(values["said"]) == 1, values


def model(mode, fault):
    """A language model, whose kernels compute something."""
    ran = run(
        "language_model.py", MODE=mode, FAULT=fault, STEPS="150", name=f"model {mode} {fault}"
    )
    passed, values = judge(ran, OF_MODEL[fault], healthy_ms.get(mode))
    if fault == "none":
        healthy_ms[mode] = ran.step_ms
    return passed and (fault != "read_backs" or values["read_backs"] is not None), values


def transfers():
    """What NCCL's profiler plugin counted of the healthy language model."""
    with gzip.open(kept / "model-ddp-none.gz", "rt") as lines:
        records = [record for record in map(json.loads, lines) if isinstance(record, dict)]
    looks = [record for record in records if record.get("is") == "look"]
    moving = [each for look in looks for each in look["in_progress"] if each["flows"]]
    slow = sum(record.get("is") == "slow" for record in records)
    values = {"looks": len(looks), "in_transfer": len(moving), "slow": slow}
    return not CARD or len(moving) > 0, values


def traced():
    """What a profiler of the user's records of the language model, under laggard."""
    folder = Path(tempfile.mkdtemp(prefix="laggard-gpu-"))
    ran = run("language_model.py", PROFILE=str(folder))
    traces = sorted(folder.glob("*.json"))
    for trace in traces:
        keep(trace, f"trace {trace.stem}")
    said = json.loads(laggard("analyze", "--json", *traces).stdout)
    texts = [one["text"] for one in said["incidents"]]
    return len(traces) == RANKS, {"said": texts, "step_ms": ran.step_ms, **of_job(said)}


def cost():
    """Jobs without and with laggard, in turns."""
    long = {"READ": "never", "STEPS": "250"}
    pairs = [[run(bare=bare, **long).step_ms for bare in (True, False)] for _ in range(3)]
    return True, {"step_ms": pairs, "added_ms": statistics.median(b - a for a, b in pairs)}


def marks():
    """What marks of a step of DDP take of the host, and calls that they are made of."""
    bench = HERE.parent / "benches" / "device.py"
    values = {}
    for how in ("off", "free", *(["card", "torch"] if CARD else [])):
        done = subprocess.run([sys.executable, bench, how], capture_output=True, text=True)
        values[how] = json.loads(done.stdout) if done.returncode == 0 else done.stderr[-500:]
    return all(isinstance(value, dict) for value in values.values()), values


def unchanged(mode):
    """Training ends with the same weights."""
    bare, watched = (run(MODE=mode, STEPS="40", bare=bare) for bare in (True, False))
    weights = [[rank["weights"] for rank in ran.ranks] for ran in (bare, watched)]
    return weights[0] == weights[1], {"weights": weights[1]}


def captured():
    """Passes that are captured as a graph while steps are sampled."""
    if not CARD:
        ran = run(FAULT="capture", READ="never", SINCE="10")
        return True, {"violations": [rank["violations"] for rank in ran.ranks]}
    bare, watched = (run("graph_loop.py", ranks=1, bare=bare) for bare in (True, False))
    return bare.ranks == watched.ranks, of_job(watched.verdict)


def hung(script, name, **environment):
    """The line that says that a job moves no more, and the hang in its verdict."""
    folder = Path(tempfile.mkdtemp(prefix="laggard-gpu-"))
    config = folder / "laggard.toml"
    config.write_text("[hang]\nfirst_quiet_s = 10.0\n")
    environment = {"SLOW_RANK": str(CULPRIT), "LAGGARD_CONFIG": str(config), **environment}
    job = Watched(forked(JOBS / script, ranks=RANKS), folder / "job.jsonl", **environment)
    try:
        line = job.line("hang since step|nothing has moved")
        verdict = job.end()
    finally:
        job.kill()
        if job.recording.exists():
            keep(job.recording, name)
    hang = verdict["incidents"][0]
    evidence = [each["text"] for each in hang["evidence"]]
    values = {"line": line.strip(), "said": [hang["text"]], "evidence": evidence}
    return hang, {**values, **of_job(verdict)}


def stopped(fault):
    """A device that goes on no more."""
    hang, values = hung("device_loop.py", f"stopped {fault}", FAULT=fault, SINCE="26", READ="never")
    ranks = hang["subject"]["ranks"]
    return hang["kind"] == "hang" and (fault == "stop_all" or ranks in ([CULPRIT], [])), values


def swallowed():
    """A rank that does not come to the collectives of a step."""
    hang, values = hung("language_model.py", "swallowed", FAULT="swallowed", SINCE="40")
    # Of two ranks either may be the one that is wrong.
    culprits = [[CULPRIT], []] if RANKS == 2 else [[CULPRIT]]
    return hang["kind"] == "hang" and hang["subject"]["ranks"] in culprits, values


def together():
    """Checks of which several may run at once. What compares with a healthy job comes behind it."""
    yield doctor, ()
    for read in READS:
        yield healthy, (read,)
    yield model, ("ddp", "none")
    yield captured, ()
    for mode, each in (("ddp", "device"), ("ddp", "loader"), ("ddp", "read_backs")):
        yield model, (mode, each)
    yield traced, ()
    for read in READS:
        for each in FAULTS:
            yield fault, (each, read)
    for each in ("none", "device"):
        yield model, ("fsdp2", each)
    yield transfers, ()
    for mode in ("ddp", "fsdp2"):
        yield unchanged, (mode,)


def alone():
    """Checks that have the machine to themselves, or leave a card in a state that others feel."""
    yield swallowed, ()
    for each in STOPS:
        yield stopped, (each,)
    yield marks, ()
    yield cost, ()


def check(began, function, arguments):
    """One row."""
    row = {"check": " ".join([function.__name__, *arguments])}
    since = time.monotonic()
    if since - began > BUDGET_S:
        row |= {"passed": None, "why": "no time was left"}
    else:
        try:
            row["passed"], row["values"] = function(*arguments)
        except Exception as error:  # A check that breaks must not hide what others show.
            row |= {"passed": False, "why": f"{type(error).__name__}: {error}"}
    row["took_s"] = time.monotonic() - since
    mark = {True: "ok", False: "FAILED", None: "left out"}[row["passed"]]
    values = row.get("values", {})
    said = row.get("why") or "; ".join(map(str, values.get("said", [])[:1])) or values
    print(f"{mark:8} {row['check']:28} {row['took_s']:5.1f} s  {str(said)[:200]}", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--only", default="", help="checks in whose name this is found")
    parser.add_argument("--jobs", type=int, default=1, help="so many at once")
    parser.add_argument("--reads", nargs="+", default=READS, help="where the loss is read")
    args = parser.parse_args()
    READS[:] = args.reads
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if CARD else "the accelerator of the tests"
    rows, began = [], time.monotonic()
    print(f"{RANKS} ranks on {device}, PyTorch {torch.__version__}")
    for checks, at_once in ((together, args.jobs), (alone, 1)):
        with ThreadPoolExecutor(at_once) as pool:
            waiting = [
                pool.submit(check, began, function, arguments)
                for function, arguments in checks()
                if re.search(args.only, " ".join([function.__name__, *arguments]))
            ]
            for each in waiting:
                rows.append(each.result())
                about = {"device": device, "ranks": RANKS, "pytorch": torch.__version__}
                (args.out / "gpu.json").write_text(json.dumps({**about, "rows": rows}, indent=1))
    with tarfile.open(args.out / "recordings.tar", "w") as archive:
        archive.add(kept, arcname="recordings")
    shutil.rmtree(kept)
    print(f"{time.monotonic() - began:.0f} s; values in {args.out / 'gpu.json'}")
    sys.exit(any(row["passed"] is False for row in rows))


if __name__ == "__main__":
    main()
