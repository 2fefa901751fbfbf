"""What only a device can show of laggard, in one run of under nine minutes: ``make gpu``.

Two ranks train on a CUDA card, or on one each. Without a card four ranks train on the accelerator
of the tests, so that this is known to work on the day there is one. Prints a table, and leaves its
values (gpu.json) and a recording (job.jsonl.gz) in a folder. Ends with 1 if a row failed.

    python gpu.py [--out FOLDER] [--only WORD]
"""

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from conftest import JOBS, Watched, forked, job_environment, laggard

CARD = torch.cuda.is_available()
RANKS, CULPRIT = (2, 1) if CARD else (4, 2)
# Checks that would begin later than this are left out.
BUDGET_S = 8 * 60
READS = ("after", "never")
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


def run(script="device_loop.py", ranks=RANKS, bare=False, **environment):
    """Runs a job under laggard, or bare."""
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


def healthy(read):
    ran = run(READ=read)
    healthy_ms[read], job = ran.step_ms, ran.verdict["job"]
    values = {
        "step_ms": ran.step_ms,
        "sampled_steps": job["sampled_steps"],
        "device_wait_share": job.get("device_wait_share"),
        "read_backs": job.get("read_backs"),
    }
    return named(ran.verdict) == [] and job["sampled_steps"] > 0, values


def fault(fault, read):
    side, stage, slow = FAULTS[fault]
    ran = run(FAULT=fault, READ=read, **slow)
    incidents = named(ran.verdict)
    values = {"step_ms": ran.step_ms, "said": [one["text"] for one in incidents]}
    if read in healthy_ms:
        values["true_gain_ms"] = ran.step_ms - healthy_ms[read]
    if not incidents:
        return False, values
    first = incidents[0]
    steps = first["last_step"] - first["first_step"] + 1
    values["charged_ms"] = first["cost_s"] / steps * 1e3
    values["evidence"] = [evidence["text"] for evidence in first["evidence"]]
    if (profile := ran.verdict.get("profile")) is not None:
        values["functions"] = [each["name"] for each in profile["functions"]][:8]
    subject = first["subject"]
    if fault == "device_backward":
        values["recording"] = str(ran.folder / "job.jsonl")
    right = (subject["ranks"], subject["stage"]) == ([CULPRIT], stage)
    return right and subject.get("side") in (side, None) and len(incidents) == 1, values


def cost():
    """Jobs without and with laggard, in turns."""
    pairs = [[run(READ="never", bare=bare).step_ms for bare in (True, False)] for _ in range(3)]
    return True, {"step_ms": pairs, "added_ms": statistics.median(b - a for a, b in pairs)}


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
    return bare.ranks == watched.ranks, {"notes": watched.verdict["notes"]}


def stopped(fault):
    """A device that goes on no more."""
    folder = Path(tempfile.mkdtemp(prefix="laggard-gpu-"))
    config = folder / "laggard.toml"
    config.write_text("[hang]\nfirst_quiet_s = 10.0\n")
    environment = {"FAULT": fault, "SLOW_RANK": str(CULPRIT), "SINCE": "26", "READ": "never"}
    environment["LAGGARD_CONFIG"] = str(config)
    job = Watched(forked(JOBS / "device_loop.py", ranks=RANKS), folder / "job.jsonl", **environment)
    try:
        line = job.line("hang since step|nothing has moved")
        hang = job.end()["incidents"][0]
    finally:
        job.kill()
    values = {"line": line.strip(), "said": [hang["text"]]}
    ranks = hang["subject"]["ranks"]
    return hang["kind"] == "hang" and (fault == "stop_all" or ranks in ([CULPRIT], [])), values


CHECKS = [
    (doctor,),
    *((healthy, read) for read in READS),
    (captured,),
    *((unchanged, mode) for mode in ("ddp", "fsdp2")),
    *((fault, each, read) for read in READS for each in FAULTS),
    *((stopped, each) for each in STOPS),
    (cost,),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--only", default="", help="checks that have this in their name")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if CARD else "the accelerator of the tests"
    rows, began = [], time.monotonic()
    print(f"{RANKS} ranks on {device}, PyTorch {torch.__version__}")
    for check, *arguments in CHECKS:
        name = " ".join([check.__name__, *arguments])
        if args.only not in name:
            continue
        row = {"check": name}
        since = time.monotonic()
        if since - began > BUDGET_S:
            row |= {"passed": None, "why": "no time was left"}
        else:
            try:
                row["passed"], row["values"] = check(*arguments)
            except Exception as error:  # A check that breaks must not hide what others show.
                row |= {"passed": False, "why": f"{type(error).__name__}: {error}"}
        row["took_s"] = time.monotonic() - since
        rows.append(row)
        mark = {True: "ok", False: "FAILED", None: "left out"}[row["passed"]]
        values = row.get("values", {})
        said = row.get("why") or "; ".join(map(str, values.get("said", [])[:1])) or values
        print(f"{mark:8} {name:28} {row['took_s']:5.1f} s  {said}", flush=True)
        if recording := values.get("recording"):
            kept = gzip.compress(Path(recording).read_bytes())
            (args.out / "job.jsonl.gz").write_bytes(kept)
        about = {"device": device, "ranks": RANKS, "pytorch": torch.__version__, "rows": rows}
        (args.out / "gpu.json").write_text(json.dumps(about, indent=1))
    print(f"{time.monotonic() - began:.0f} s; values in {args.out / 'gpu.json'}")
    sys.exit(any(row["passed"] is False for row in rows))


if __name__ == "__main__":
    main()
