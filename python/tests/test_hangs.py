"""Jobs that stop moving: who holds them, where, while they hang."""

import html
import json
import os
import re
import shutil
import signal
import time
from collections import defaultdict

import pytest
from conftest import JOBS, PATIENCE_S, assert_told_again, bare, forked, matrix, torchrun

CULPRIT = 2
COLLECTIVE_ISSUE = 14  # a kind of mark in recordings
SEEDS = int(os.environ.get("LAGGARD_TEST_SEEDS", "1"))
# Long enough for a hang to be spoken of.
PAUSE_S = os.environ.get("LAGGARD_TEST_PAUSE_S", "5")


@pytest.fixture
def hanging(watch):
    def hanging(reason, culprit=CULPRIT, *options, **environment):
        command = forked(JOBS / "hangs.py", reason)
        return watch(command, *options, SLOW_RANK=str(culprit), **environment)

    return hanging


# For each culprit the other ranks, and the pair it makes with the next one.
OTHERS = ["ranks 1-3", "ranks 0,2-3", "ranks 0-1,3", "ranks 0-2"]
PAIRS = ["ranks 0-1", "ranks 1-2", "ranks 2-3", "ranks 0,3"]

# reason: what is said of rank {c} while it hangs
HANGS = {
    "loader": r"rank {c} never entered ALLREDUCE #\d+ of group default \({others} wait in it\); "
    r"rank {c} is in Shards.read_shard \(hangs.py:\d+\)",
    "skip": r"rank {c} entered BARRIER where the others entered ALLREDUCE #\d+ of group default",
    "order": r"{pair} wait for one another: {others} in ALLREDUCE #\d+ of group default "
    r"without rank {c}; rank {c} in ALLREDUCE #\d+ of group pair without rank {next}",
    # gloo lets the others pass: only the larger tensor waits for more.
    "size": r"rank {c} entered ALLREDUCE \(32 bytes\) where the others entered "
    r"ALLREDUCE #\d+ of group default \(16 bytes\); rank {c} is in <module> \(hangs.py:\d+\)$",
    # The smaller one passes, and all others wait.
    "small": r"rank {c} entered ALLREDUCE \(8 bytes\) where the others entered "
    r"ALLREDUCE #\d+ of group default \(16 bytes\); rank {c} is in <module> \(hangs.py:\d+\)$",
    "stop": r"rank {c} never entered .* rank {c} is stopped in <module> \(hangs.py:\d+\)",
    "spin": r"rank {c} never entered .* rank {c} is busy in spin \(hangs.py:\d+\)",
    "gil": r"rank {c} never entered .* rank {c} holds the GIL in hold_gil \(hangs.py:\d+\)",
    # Below activation checkpointing, and below a compiled model: neither is a pause.
    "recompute": r"rank {c} never entered .* rank {c} is in read_shard \(hangs.py:\d+\)$",
    "compiled": r"rank {c} never entered .* rank {c} is in read_shard \(hangs.py:\d+\)$",
}


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("reason", HANGS)
def test_a_hang_is_explained_while_it_lasts(reason, seed, hanging, tmp_path):
    culprit, step = (CULPRIT + seed) % 4, 40 + 7 * seed
    neighbour = (culprit + 1) % 4
    pattern = HANGS[reason].format(
        c=culprit,
        next=neighbour,
        others=OTHERS[culprit],
        pair=PAIRS[culprit],
    )
    report = tmp_path / "report.html"
    job = hanging(reason, culprit, "--report", report, STEP=str(step))
    said = job.line(rf"hang since step ({step}|{step + 1}): ")
    assert re.search(pattern, said), said
    hang, *others = job.end()["incidents"]
    assert others == []
    assert (hang["kind"], hang["severity"], hang["open"]) == ("hang", "critical", True)
    expected = sorted([culprit, neighbour]) if reason == "order" else [culprit]
    assert hang["subject"]["ranks"] == expected
    methods = {evidence["method"] for evidence in hang["evidence"]}
    assert methods == {"collective", "stack"}
    told = [*hang["text"].split("; "), *(evidence["text"] for evidence in hang["evidence"])]
    told += [frame for fold in hang["stacks"] for frame in fold["frames"]]
    page = html.unescape(report.read_text())
    assert [text for text in told if text not in page] == []
    job.check_told_when_due()


# reason: what is said of rank {c} that has gone another way than the others; {others} are those
# that went the same way in each half.
DIVERGED = {
    # Its next step met theirs, one behind, until its loop ended.
    "swallowed": r"rank {c} entered BARRIER where the others entered ALLREDUCE #\d+ of group",
    # Of DDP's buckets it is not known how large they are.
    "more": r"rank {c} entered ALLREDUCE \(16 bytes\) where the others entered ALLREDUCE #\d+ of",
}


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("reason", DIVERGED)
def test_a_rank_that_calls_something_else_is_named(reason, seed, hanging):
    culprit = (CULPRIT + seed) % 4
    job = hanging(reason, culprit, STEP=str(40 + 7 * seed))
    said = job.line("hang since step")
    assert re.search(DIVERGED[reason].format(c=culprit), said), said
    hang, *others = job.end()["incidents"]
    assert (hang["subject"]["ranks"], hang["severity"], others) == ([culprit], "critical", [])


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_halves_that_call_different_things_are_two_sides(seed, hanging):
    culprit = (CULPRIT + seed) % 4
    pair = PAIRS[culprit]
    rest = PAIRS[(culprit + 2) % 4]
    job = hanging("halves", culprit, STEP=str(40 + 7 * seed))
    said = job.line("hang since step")
    sides = [rf"{pair} entered BARRIER", rf"{rest} entered ALLREDUCE"]
    assert all(re.search(side, said) for side in sides), said
    assert len(re.findall(r"rank \d is in \S+ \(hangs.py:\d+\)", said)) == 2, said
    hang, *others = job.end()["incidents"]
    assert (hang["severity"], others) == ("critical", [])


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_rank_that_returns_early_is_named_and_not_those_that_gave_up(seed, watch):
    culprit = (CULPRIT + seed) % 4
    # How a rank ended is seen until its launcher asks, which torchrun does every 100 ms.
    command = torchrun(JOBS / "hangs.py", "returns", ranks=4)
    job = watch(command, SLOW_RANK=str(culprit), STEP=str(40 + 7 * seed))
    stdout, stderr = job.process.communicate(timeout=60)
    assert "moves again" not in stderr
    hang, *others = json.loads(stdout.splitlines()[-1])["incidents"]
    assert re.search(rf"rank {culprit} never entered ALLREDUCE #\d+ of group", hang["text"]), hang
    assert (hang["subject"]["ranks"], hang["severity"], others) == ([culprit], "critical", [])


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_worker_of_a_loader_that_was_stopped_is_named(seed, hanging):
    culprit = (CULPRIT + seed) % 4
    job = hanging("worker", culprit, STEP=str(40 + 7 * seed))
    said = job.line("hang since step")
    where = r"it waits in data.next_wait for its data-loader worker \(pid \d+\), which is stopped"
    assert re.search(rf"rank {culprit} never entered .*{where}", said), said
    job.process.send_signal(signal.SIGTERM)
    # It would keep the output of the job open.
    os.kill(int(re.search(r"pid (\d+)", said)[1]), signal.SIGKILL)
    (hang,) = job.end()["incidents"]
    assert hang["subject"]["ranks"] == [culprit]


# What differs if collectives are known from Flight Recorders: they count on their own.
@matrix
@pytest.mark.parametrize("reason", ["loader", "skip", "order", "small"])
def test_older_versions_tell_a_hang_by_their_flight_recorders(reason, hanging):
    job = hanging(reason, LAGGARD_HOOKS="0")
    pattern = HANGS[reason].format(c=2, next=3, others=OTHERS[2], pair=PAIRS[2])
    said = job.line(r"hang since step (40|41): ")
    assert re.search(pattern, said), said
    (hang,) = job.end()["incidents"]
    assert (hang["kind"], hang["severity"]) == ("hang", "critical")
    job.check_told_when_due()


@matrix
def test_older_versions_call_no_busy_job_hung(hanging):
    # A full recorder takes long to answer, and is left alone for a hundred times as long.
    job = hanging("none", LAGGARD_HOOKS="0", STEPS="400", TORCH_FR_BUFFER_SIZE="20000")
    stdout, stderr = job.process.communicate(timeout=PATIENCE_S)
    assert job.process.returncode == 0, stderr
    assert not re.search("(hang|waiting) since step", stderr), stderr
    incidents = json.loads(stdout.splitlines()[-1])["incidents"]
    assert [incident for incident in incidents if incident["kind"] == "hang"] == []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_rank_that_is_killed_is_named_and_fails_the_job_as_without_laggard(seed, watch):
    culprit, step = (CULPRIT + seed) % 4, 40 + 7 * seed
    command = torchrun(JOBS / "hangs.py", "kill", ranks=4)
    job = watch(command, SLOW_RANK=str(culprit), STEP=str(step))
    # The launcher may have been quicker to ask how it ended.
    job.line(rf"rank {culprit} (was killed by signal 9 \(SIGKILL\)|ended abruptly) in step {step}")
    stdout, stderr = job.process.communicate(timeout=PATIENCE_S)
    assert job.process.returncode == 1
    assert "ChildFailedError" in stderr
    others = OTHERS[culprit]
    where = rf"before it entered ALLREDUCE #\d+ of group default \({others} were in it\)$"
    (death,) = json.loads(stdout.splitlines()[-1])["incidents"]
    assert re.search(rf"^rank {culprit} .* in step {step}, {where}", death["text"]), death
    assert (death["subject"]["ranks"], death["severity"]) == ([culprit], "critical")


@matrix
def test_ranks_that_are_killed_when_they_are_done_are_no_incident(hanging):
    # As Ray Train ends its workers.
    job = hanging("dismissed", STEPS="20")
    stdout, stderr = job.process.communicate(timeout=PATIENCE_S)
    verdict = json.loads(stdout.splitlines()[-1])
    assert (verdict["job"]["steps"], verdict["incidents"]) == (20, []), stderr


# what happens: what is said, the ranks that are named
STARTS = {
    "late": (
        r"rank 1 never entered INIT_PROCESS_GROUP #1 of group default \(ranks 0,2 wait in it\); "
        r"rank 1 is in prepare \(starts.py:\d+\)$",
        [1],
    ),
    "apart": (
        r"ranks 0-2 entered INIT_PROCESS_GROUP #1 of group default and do not leave it; "
        r"rank 0 is in <module> \(starts.py:\d+\); rank 1 is in <module> \(starts.py:\d+\)$",
        [0, 1, 2],
    ),
}


@pytest.mark.parametrize("reason", ["late", pytest.param("apart", marks=matrix)])
def test_a_start_that_stands_still_is_explained(reason, watch, early):
    command = bare(JOBS / "starts.py", reason, ranks=3)
    job = watch(command, LAGGARD_CONFIG=early)
    said = job.line("startup has stalled: ")
    pattern, ranks = STARTS[reason]
    assert re.search(pattern, said), said
    (start,) = job.end()["incidents"]
    assert (start["kind"], start["severity"], start["open"]) == ("hang", "warning", True)
    assert start["subject"]["ranks"] == ranks


@matrix
def test_a_hang_before_the_first_step_is_explained(hanging, early):
    job = hanging("first", LAGGARD_CONFIG=early)
    said = job.line("hang: ")
    assert re.search(
        r"hang: rank 2 never entered \w+ #\d+ of group default \(ranks 0-1,3 wait in it\); "
        r"rank 2 is in load_tokenizer \(hangs.py:\d+\)",
        said,
    ), said
    (hang,) = job.end()["incidents"]
    assert (hang["subject"]["ranks"], hang["severity"]) == ([2], "critical")


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_network_that_is_cut_accuses_nobody(seed, cable, tmp_path):
    culprit, step = seed % 4, 40 + 7 * seed
    reached = tmp_path / "reached"
    sides = list(
        cable.sides(
            tmp_path,
            JOBS / "hangs.py",
            "cut",
            REACHED=str(reached),
            SLOW_RANK=str(culprit),
            STEP=str(step),
        )
    )
    try:
        while not reached.exists():
            assert all(side.process.poll() is None for side in sides)
            time.sleep(0.05)
        cable.cut()
        for side, here, there in zip(sides, ("0-1", "2-3"), ("2-3", "0-1")):
            where = r"\w+ #\d+ of group default"
            said = side.line("(hang|waiting) since step")
            expected = f"waiting since step .*: ranks {here} wait in {where} for ranks {there}, of"
            assert re.search(expected, said), said
        for side in sides:
            (incident,) = side.end()["incidents"]
            assert incident["severity"] == "warning"
            side.check_told_when_due()
    finally:
        for side in sides:
            side.kill()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs setpriv")
def test_older_versions_tell_a_hang_and_where_stacks_cannot_be_read_that_is_said(watch):
    command = forked(JOBS / "hangs.py", "spin")
    # Root reads everything, unless it has dropped the right to.
    drop = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    job = watch(command, before=drop, UNREADABLE="1", LAGGARD_HOOKS="0")
    said = job.line("hang since step")
    assert re.search(r"rank 2 never entered ALLREDUCE #\d+ of group default", said), said
    assert "rank 2: its stack cannot be read: laggard may not trace" in job.line("rank 2: ")
    hang = job.end()["incidents"][0]
    assert (hang["kind"], hang["subject"]["ranks"]) == ("hang", [2])
    stacks = [it["text"] for it in hang["evidence"] if it["method"] == "stack"]
    assert all("laggard may not trace its process" in text for text in stacks), stacks
    assert stacks[0].endswith("; it runs"), stacks
    job.check_told_when_due()


def test_a_recorded_hang_is_the_same_hang_again(hanging):
    job = hanging("loader")
    said = job.line("hang since step (40|41)")
    assert re.search(HANGS["loader"].format(c=CULPRIT, others=OTHERS[CULPRIT]), said), said
    (live,) = job.end()["incidents"]
    assert_told_again(live, job.recording)
    job.check_told_when_due()
    check_counted_from_one(job.recording)


def check_counted_from_one(recording):
    """Each rank counts a group's collectives from one, as a Flight Recorder does."""
    numbers = defaultdict(list)
    for mark in map(json.loads, recording.read_text().splitlines()):
        if isinstance(mark, list) and mark[3] == COLLECTIVE_ISSUE:
            rank, group, number = mark[0], mark[6], mark[8] if len(mark) > 8 else 0
            numbers[rank, group].append(number)
    assert {rank for rank, _ in numbers} == {0, 1, 2, 3}
    for counted in numbers.values():
        assert counted == list(range(1, len(counted) + 1)), counted


@matrix
@pytest.mark.parametrize(
    ("reason", "collective", "pause"),
    [
        ("checkpoint", "BARRIER", "is in save_checkpoint (hangs.py:"),
        ("compile", "ALLREDUCE", "compiles"),
        ("evaluate", "BARRIER", "is in evaluate (hangs.py:"),
        ("download", "BARRIER", "is in download_shard (hangs.py:"),
    ],
)
def test_a_known_pause_is_no_hang(reason, collective, pause, hanging):
    job = hanging(reason, PAUSE_S=PAUSE_S)
    said = job.line(f"since step 4[01]: rank 2 never entered {collective}")
    assert "waiting since step" in said and pause in said
    does = {"checkpoint": "writes a checkpoint"}.get(reason, f"{reason}s")
    assert said.endswith(f" and {does}\n")
    job.line(r"the job moves again after \d")
    incidents = job.verdict()["incidents"]
    assert [i for i in incidents if i["kind"] == "hang"] == [], "one incident, not two"
    assert all(incident["severity"] == "info" or not incident["open"] for incident in incidents)


@matrix
def test_ranks_with_fewer_batches_that_join_are_no_hang(hanging):
    job = hanging("join")
    stdout, stderr = job.process.communicate(timeout=PATIENCE_S)
    assert job.process.returncode == 0, stderr
    assert "since step" not in stderr
    assert json.loads(stdout.splitlines()[-1])["incidents"] == []


@matrix
def test_a_rank_that_is_stuck_for_a_while_is_one_incident(hanging):
    job = hanging("loader", PAUSE_S="4")
    job.line("hang since step 40")
    (incident,) = job.verdict()["incidents"]
    assert incident["subject"]["ranks"] == [2]
    assert incident["subject"]["stage"] == "data.next_wait"
    methods = [evidence["method"] for evidence in incident["evidence"]]
    assert methods[0] == "frontier" and "collective" in methods
