"""Pipelines of torch.distributed.pipelining: what is recorded, and what is said of slow blocks."""

import os
import re
import statistics

import pytest
from conftest import JOBS, forked, matrix

STAGES = 4
SEEDS = int(os.environ.get("LAGGARD_TEST_SEEDS", "1"))
PASSES = {"F": "forward", "B": "backward"}


def was_slow(incident, times):
    """Whether a block that an incident names was slow by the job's own clock."""
    ranks, block = incident["subject"]["ranks"], incident["subject"].get("block", "")
    passes = [name for name in PASSES if PASSES[name] in block]
    if len(ranks) != 1:
        return False
    lines = [line.split() for line in (times / str(ranks[0])).read_text().splitlines()]
    for name in passes:
        took = [(int(step), float(took)) for step, of, took in lines if of == name]
        usual = statistics.median(took for _, took in took)
        steps = range(incident["first_step"], incident["last_step"] + 1)
        if any(step in steps and took > 1.4 * usual for step, took in took):
            return True
    return False


def blamed(done, times):
    """What is said of a job that does nothing wrong itself, where its own clock says otherwise.

    A machine with more work than cores makes blocks slow, and then that is the truth."""
    return [one["text"] for one in done.incidents if not was_slow(one, times)]


@matrix
@pytest.mark.parametrize("schedule", ["1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble"])
@pytest.mark.parametrize(
    ("stage", "passes", "microbatch", "step"),
    [(1, "B", 3, 12), (2, "F", 5, 15), (3, "F", 0, 9)][:SEEDS],
)
def test_a_slow_block_is_named_with_its_rank(stage, passes, microbatch, step, schedule, run):
    slow = f"{stage},{passes},{microbatch},{step},{step}"
    command = forked(JOBS / "pipeline.py", schedule)
    done = run(command, STEPS="20", SLOW_BLOCK=slow, DELAY="0.3")
    first, *_ = done.incidents
    block = f"{PASSES[passes]} of microbatch {microbatch}"
    assert first["subject"]["ranks"] == [stage]
    assert first["subject"]["block"] == block
    assert first["subject"]["stage"] == f"pipeline stage {stage}"
    assert (first["first_step"], first["last_step"]) == (step, step)
    assert 0.24 < first["cost_s"] < 0.4
    said = rf"laggard: rank {stage} is slow in the {block} on pipeline stage {stage} once, in step"
    assert re.search(said, done.stderr)


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_block_that_stays_slow_is_one_incident(seed, run):
    stage = (1 + seed) % STAGES
    command = forked(JOBS / "pipeline.py")
    done = run(command, STEPS="24", SLOW_BLOCK=f"{stage},F,4,12,23", DELAY="0.3")
    first, *_ = done.incidents
    assert first["subject"]["ranks"] == [stage] and first["open"]
    assert first["first_step"] == 12 and first["pace"]["kind"] == "steady"
    assert 12 * 0.24 < first["cost_s"] < 12 * 0.4


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_a_bubble_absorbs_is_no_incident(seed, run, tmp_path):
    command = forked(JOBS / "pipeline.py")
    # The first stage's last warm-up forward: the first gradient is still on its way.
    step = 10 + seed
    slow = {"SLOW_BLOCK": f"0,F,3,{step},{step}", "DELAY": "0.05"}
    done = run(command, "--verbose", STEPS="16", TIMES=str(tmp_path), **slow)
    named = "forward of microbatch 3 on pipeline stage 0"
    assert not any(named in incident["text"] for incident in done.incidents)
    assert blamed(done, tmp_path) == []
    said = rf"step {step}: rank 0 took \S+ ms longer than usual in the forward of microbatch 3"
    (absorbed,) = [text for text in done.verdict["absorbed"] if re.match(said, text)]
    assert f"absorbed: {absorbed}" in done.stderr


@matrix
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nobody_is_blamed_in_a_healthy_pipeline(seed, run, tmp_path):
    command = forked(JOBS / "pipeline.py")
    done = run(command, STEPS=str(30 + seed), TIMES=str(tmp_path))
    assert blamed(done, tmp_path) == []


@matrix
def test_a_pipeline_that_stands_still_is_explained(watch):
    command = forked(JOBS / "pipeline.py")
    job = watch(command, SLOW_BLOCK="2,F,5,12,12", DELAY="3600")
    said = job.line("hang since step")
    what = "rank 2 does not finish the forward of microbatch 5 on pipeline stage 2"
    assert f"hang since step 12: {what}; rank 2 is in Work.__call__ (blocks.py:" in said
    (hang,) = job.end()["incidents"]
    assert (hang["kind"], hang["subject"]["ranks"]) == ("hang", [2])
    methods = {evidence["method"] for evidence in hang["evidence"]}
    assert methods == {"schedule", "stack"}
    job.check_told_when_due()


@matrix
@pytest.mark.parametrize("mode", ["data", "tensor"])
def test_who_waits_for_a_block_of_another_rank_is_not_accused(mode, watch):
    """Others wait for its gradients, or for its part of the block."""
    command = forked(JOBS / "pipelines.py", mode)
    job = watch(command, SLOW_BLOCKS="3,B,12,12", DELAY="3600")
    said = job.line("hang since step")
    assert "hang since step 12: rank 3 " in said
    (hang,) = job.end()["incidents"]
    assert (hang["kind"], hang["subject"]["ranks"]) == ("hang", [3])
    methods = {evidence["method"] for evidence in hang["evidence"]}
    assert {"collective", "schedule", "stack"} <= methods, hang["evidence"]
    job.check_told_when_due()


@matrix
def test_of_ranks_that_share_a_stage_the_late_one_is_named(run):
    command = forked(JOBS / "pipelines.py", "tensor")
    done = run(command, STEPS="20", SLOW_BLOCKS="3,B,12,12", DELAY="0.1")
    first, *_ = done.incidents
    assert first["subject"]["ranks"] == [3], first["text"]
    assert first["subject"]["stage"] == "pipeline stage 1"
    assert (first["first_step"], first["last_step"]) == (12, 12)


@matrix
@pytest.mark.parametrize(
    ("chunks", "slow", "block"),
    [
        (2, "6,F,3,12,12", "forward of microbatch 3 (chunk 1)"),
        (1, "1,B,3,12,12", "backward of microbatch 3"),
    ][:SEEDS],
)
def test_blocks_of_megatron_are_told(chunks, slow, block, run):
    command = forked(JOBS / "megatron_pipeline.py", chunks)
    done = run(command, STEPS="20", SLOW_BLOCK=slow, DELAY="0.3")
    first, *_ = done.incidents
    assert first["subject"]["ranks"] == [int(slow[0]) % STAGES]
    assert first["subject"]["block"] == block
    assert (first["first_step"], first["last_step"]) == (12, 12)
