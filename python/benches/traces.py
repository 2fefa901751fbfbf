"""What reading profiler traces costs: laggard beside HolisticTraceAnalysis, on the same files.

    python traces.py [--hta VENV] [--rounds N] [--pairs FILE] FOLDER...
    python traces.py --large GIGABYTES TRACE

Each round runs ``laggard analyze --json FOLDER`` and a program that only loads the folder with
HTA, in turns, and takes CPU time and the largest resident size from ``wait4``. What importing HTA
takes is measured likewise and subtracted. ``VENV`` is a virtual environment that has it.

With ``--large`` the events of ``TRACE`` are repeated, later each time, until the file has that
size, and only laggard reads it: plain, and packed.
"""

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAGGARD = Path(sys.executable).parent / "laggard"
IMPORT = "from hta.trace_analysis import TraceAnalysis"
LOAD = f"import sys; {IMPORT}; TraceAnalysis(trace_dir=sys.argv[1])"
# Numbers that must differ from one repetition to the next.
SHIFTED = re.compile(r'(?:"ts": |"Python id": |"Python parent id": |"ProfilerStep#)(\d+)')


def run(command):
    """CPU seconds, wall seconds and megabytes of a command with all its processes."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # A verdict that finds something is no failure.
    if process.returncode not in (0, 1):
        raise SystemExit(f"{command[0]} failed: {said.decode()[-2000:]}")
    wall = time.perf_counter() - began
    return [used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024]


def compare(folders, hta, rounds):
    commands = {}
    for folder in folders:
        commands[f"laggard {folder}"] = [LAGGARD, "analyze", "--json", folder]
        if hta:
            commands[f"HTA {folder}"] = [hta / "bin/python", "-c", LOAD, folder]
    if hta:
        commands["HTA import"] = [hta / "bin/python", "-c", IMPORT]
    rows = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            rows[name].append(run(command))
    imported = median(rows.get("HTA import", [[0.0]]))
    for folder in folders:
        ours = rows[f"laggard {folder}"]
        print(f"{folder}\n  laggard  {median(ours):7.3f} s CPU  {median(ours, 2):6.0f} MB")
        if hta:
            theirs = rows[f"HTA {folder}"]
            load = median(theirs) - imported
            ratio = (
                f"{load / median(ours):.0f} times, {median(theirs, 2) / median(ours, 2):.1f} times"
            )
            print(f"  HTA      {load:7.3f} s CPU  {median(theirs, 2):6.0f} MB  ({ratio})")
    return {"columns": ["CPU s", "wall s", "peak MB"], "rows": rows}


def median(rows, column=0):
    return statistics.median(row[column] for row in rows)


def repeat(source, target, size):
    """Writes the events of a trace again and again, as one rank's trace of ``size`` bytes."""
    opened = gzip.open if source.suffix == ".gz" else open
    with opened(source, "rt") as file:
        text = file.read()
    head, events = text.split('"traceEvents": [', 1)
    events, tail = events.rsplit("]", 1)
    # Texts between numbers, and the numbers.
    parts = SHIFTED.split(events)
    numbers = [int(number) for number in parts[1::2]]
    keys = [match.group(0)[1:3] for match in SHIFTED.finditer(events)]
    prefixes = [match.group(0)[: -len(match.group(1))] for match in SHIFTED.finditer(events)]
    texts = [before + prefix for before, prefix in zip(parts[::2], prefixes)] + [parts[-1]]
    # Each kind of number goes on behind its largest.
    spans = {}
    for key, number in zip(keys, numbers):
        low, high = spans.get(key, (number, number))
        spans[key] = (min(low, number), max(high, number))
    spans = {key: high - low + 1 for key, (low, high) in spans.items()}
    with open(target, "w") as file:
        file.write(head + '"traceEvents": [')
        written = 0
        for again in range(1 << 20):
            shifted = [str(n + again * spans[key]) for key, n in zip(keys, numbers)]
            block = "".join(a + b for a, b in zip(texts, shifted)) + texts[-1]
            written += file.write(block if again == 0 else "," + block)
            if written >= size:
                break
        file.write("]" + tail)


def large(source, gigabytes):
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder, "large.json"), Path(folder, "large.json.gz")
        repeat(source, plain, gigabytes * 1e9)
        size = plain.stat().st_size
        rows = {"plain": run([LAGGARD, "analyze", "--json", plain])}
        with open(plain, "rb") as file, gzip.open(packed, "wb", compresslevel=1) as to:
            while block := file.read(1 << 24):
                to.write(block)
        plain.unlink()
        rows["packed"] = run([LAGGARD, "analyze", "--json", packed])
    for name, (cpu, _, memory) in rows.items():
        rate = size / 1e6 / cpu
        print(f"{size / 1e9:.2f} GB {name}: {cpu:.2f} s CPU, {rate:.0f} MB/s, {memory:.0f} MB")
    return {"columns": ["CPU s", "wall s", "peak MB"], "bytes": size, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--hta", type=Path, help="a virtual environment with HTA")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", type=float, metavar="GIGABYTES")
    parser.add_argument("--pairs", type=Path, help="file for the raw rows, as JSON")
    args = parser.parse_args()
    if args.large:
        measured = large(args.paths[0], args.large)
    else:
        measured = compare(args.paths, args.hta, args.rounds)
    if args.pairs:
        args.pairs.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
