"""Jobs that are slow in one function: noticed, profiled, and named while they run."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import BIN, JOBS, PATIENCE_S, alone, forked, job_environment, laggard, matrix

CULPRIT = 2
SEEDS = int(os.environ.get("LAGGARD_TEST_SEEDS", "1"))


def profiled(fault, seed=0, *options, **environment):
    """The verdict on a job with a fault, and its incidents."""
    environment = {
        "STEPS": "100",
        "DELAY": "0.1",
        "SLOW_RANK": str((CULPRIT + seed) % 4),
        "SEED": str(seed),
        **environment,
    }
    command = forked(JOBS / "profiled.py", fault)
    return laggard("run", "--json", *options, "--", *command, **environment)


def evidence_of(incidents, method):
    return [
        (incident["subject"]["ranks"], evidence["text"])
        for incident in incidents
        for evidence in incident["evidence"]
        if evidence["method"] == method
    ]


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(
    ("fault", "function"),
    [
        ("loader", r"<built-in method recv_into of socket.* ← profiled.py\(\d+\): read_shard "),
        ("forward", r"profiled.py\(\d+\): augment_in_python ← profiled.py\(\d+\): forward "),
    ],
)
def test_a_slow_function_of_one_rank_is_named(fault, function, seed):
    outcome = profiled(fault, seed)
    culprit = (CULPRIT + seed) % 4
    first, *_ = outcome.incidents
    assert first["subject"]["ranks"] == [culprit], first
    ((ranks, text),) = evidence_of(outcome.incidents, "pattern")
    assert ranks == [culprit]
    share, peers = re.match(
        rf"{function}.* takes (\d+) % of the critical path of rank {culprit} and ([\d.]+) % of",
        text,
    ).groups()
    # On a busy machine healthy ranks wait for their shards, too.
    assert int(share) > 30 and float(peers) < 20, text
    # It was said while the job ran.
    assert re.search(function, outcome.stderr.split("\n\nlaggard ")[0])


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_garbage_collection_by_turns_has_no_culprit(seed):
    outcome = profiled("gc", seed, DELAY="0.05")
    ((ranks, text),) = evidence_of(outcome.incidents, "pattern")
    assert ranks == []
    assert text.startswith("Python GC takes "), text
    (incident,) = (i for i in outcome.incidents if i["subject"]["function"])
    assert incident["advice"].startswith("look at garbage collection: collect on all ranks")


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_rank_that_shares_its_core_is_named(seed, tmp_path):
    outcome = profiled("pinned", seed, WAITED=str(tmp_path))
    culprit = (CULPRIT + seed) % 4
    waited = {int(rank.name): float(rank.read_text()) for rank in tmp_path.iterdir()}
    if waited.pop(culprit) < max(waited.values()) + 0.3:
        pytest.skip("the machine is so busy that the other ranks have no core either")
    found = evidence_of(outcome.incidents, "host")
    # Who is put on its core beside it may be late with it.
    assert all(culprit in ranks for ranks, _ in found), outcome.incidents
    told = re.compile(
        rf"the loop of rank {culprit} waited for a core for ([\d.]+) % of the "
        r"(?:profile window|time), its peers' for ([\d.]+) %"
    )
    share, peers = next(filter(None, (told.match(text) for _, text in found))).groups()
    assert float(share) > float(peers) + 20


@pytest.fixture
def control_group():
    """A control group that may use a fifth of a core."""
    name = f"laggard{os.getpid()}"
    period_us, quota_us = "50000", "10000"
    v1, v2 = Path("/sys/fs/cgroup/cpu") / name, Path("/sys/fs/cgroup") / name
    group = v1 if v1.parent.exists() else v2
    try:
        group.mkdir()
        if group == v1:
            (group / "cpu.cfs_period_us").write_text(period_us)
            (group / "cpu.cfs_quota_us").write_text(quota_us)
        else:
            (group / "cpu.max").write_text(f"{quota_us} {period_us}")
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"needs a control group of its own with a CPU quota: {error}")
    yield group
    group.rmdir()


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_rank_whose_container_may_use_too_little_is_named(seed, control_group):
    outcome = profiled("quota", seed, GROUP=str(control_group))
    culprit = (CULPRIT + seed) % 4
    told = re.compile(
        rf"the control group of rank {culprit} had used up its CPU quota in ([\d.]+) % of the "
        r"periods, its peers' in 0.0 %"
    )
    (found,) = [incident for incident in outcome.incidents if told.search(str(incident))]
    assert found["subject"]["ranks"] == [culprit]
    assert f"give rank {culprit} more CPU" in found["advice"]
    assert float(told.search(str(found)).group(1)) > 50


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_function_of_a_healthy_job_is_named(seed, tmp_path):
    # By the published rule any jitter orders a window.
    config = tmp_path / "laggard.toml"
    config.write_text('[trigger]\nshortest = "min"\n')
    outcome = profiled("none", seed, STEPS="400", LAGGARD_CONFIG=str(config))
    assert outcome.code == 0
    assert len(outcome.verdict["profile"]["ranks"]) == 4, outcome.verdict["notes"]
    assert [i for i in outcome.incidents if i["subject"]["function"]] == []


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_makes_all_ranks_slower_later_on_is_named(seed, tmp_path):
    """Nobody is suspected: the trigger orders the window, of four ranks."""
    # Four ranks on fewer cores may become slower for want of these before.
    config = tmp_path / "laggard.toml"
    config.write_text("[trigger]\ncool_down_s = 10.0\n[profile]\nevery_s = 10.0\n")
    slower = {"FROM": "150", "SLOW_RANK": "-1", "DELAY": "0.03"}
    outcome = profiled("forward", seed, STEPS="400", LAGGARD_CONFIG=str(config), **slower)
    assert len(outcome.verdict["profile"]["ranks"]) == 4, outcome.verdict["notes"]
    (incident,) = (i for i in outcome.incidents if i["subject"]["function"])
    assert (incident["kind"], incident["subject"]["ranks"]) == ("degraded", [])
    assert "augment_in_python" in incident["subject"]["function"]


@pytest.fixture(scope="session")
def beside_users(tmp_path_factory):
    """A slow function is profiled while a profiler of the user's runs in another rank."""
    folder = tmp_path_factory.mktemp("beside_users")
    recording, trace = folder / "job.jsonl", folder / "user.json"
    users = {"USER_RANK": "0", "USER_TRACE": str(trace)}
    outcome = profiled("forward", 0, "--record", recording, **users)
    assert outcome.code == 0, outcome.stderr
    return outcome, recording, trace


@alone
def test_a_recorded_window_says_the_same_again(beside_users):
    live, recording, _ = beside_users
    again = json.loads(laggard("analyze", "--json", recording).stdout)["incidents"]
    told = evidence_of(live.incidents, "pattern")
    assert [ranks for ranks, _ in told] == [[CULPRIT]], live.verdict["notes"]
    assert "augment_in_python" in told[0][1]
    assert evidence_of(again, "pattern") == told


@alone
def test_a_profiler_of_the_users_is_left_alone(beside_users):
    outcome, _, trace = beside_users
    assert "rank 0 was not profiled: a profiler runs in it" in outcome.verdict["notes"]
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert "aten::addmm" in names


@pytest.fixture
def running(rings):
    """Starts a job that is profiled only when it is asked for, and waits until it is slow."""
    jobs = []

    def start(steps):
        command = forked(JOBS / "profiled.py", "forward", ranks=2)
        config = rings.parent / "laggard.toml"
        config.write_text("[profile]\nenabled = false\n")
        environment = job_environment(
            LAGGARD_DIR=str(rings),
            LAGGARD_CONFIG=str(config),
            STEPS=str(steps),
            DELAY="0.05",
            SLOW_RANK="1",
        )
        run = [BIN / "laggard", "run", "--", *command]
        job = subprocess.Popen(run, env=environment, stderr=subprocess.PIPE, text=True)
        jobs.append(job)
        assert any("is late in" in line for line in job.stderr)
        return job

    yield start
    for job in jobs:
        job.terminate()
        job.communicate(timeout=PATIENCE_S)


def test_a_window_can_be_asked_for(running, rings):
    running(600)
    asked = laggard("profile", "--json", "--ranks", "0-1", LAGGARD_DIR=str(rings))
    assert asked.code == 0, asked.stderr
    found = asked.verdict["profile"]
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert any("augment_in_python" in function["name"] for function in found["functions"])
    assert not list(rings.glob("*/traces/*")), "traces are removed"
    elsewhere = laggard("profile", "--ranks", "0,7", LAGGARD_DIR=str(rings))
    assert (elsewhere.code, elsewhere.stdout) == (2, "")
    assert "rank 7 does not run on this host, which has ranks 0-1" in elsewhere.stderr
    wrong = laggard("profile", "nobody", LAGGARD_DIR=str(rings))
    assert (wrong.code, "no job nobody runs here" in wrong.stderr) == (2, True)


@matrix
def test_a_job_may_end_while_it_is_profiled(running, rings):
    job = running(100)
    # Longer than the job lasts.
    asked = laggard("profile", "--seconds", "60", LAGGARD_DIR=str(rings))
    assert asked.code == 2
    _, said = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 0, said
    assert "was not profiled: it did not reach the end of the window" in said
