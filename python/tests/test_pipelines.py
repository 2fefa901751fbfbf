"""Pipelines of torch.distributed.pipelining: what is recorded, and what is said of slow blocks."""

import json

from conftest import JOBS, torchrun

STAGES, MICROBATCHES = 4, 8
BLOCK_BEGIN = 18


def test_every_block_of_a_pipeline_is_recorded(run, tmp_path):
    recording, steps = tmp_path / "job.jsonl", 6
    command = torchrun(JOBS / "pipeline.py", ranks=STAGES)
    done = run(command, "--record", recording, STEPS=str(steps))
    assert done.code == 0, done.stderr
    lines = [json.loads(line) for line in recording.read_text().splitlines()]
    marks = [line for line in lines if isinstance(line, list) and line[3] == BLOCK_BEGIN]
    for rank in range(STAGES):
        # Trailing zeros of what a mark says are left out.
        blocks = [
            (step, passes, (*at, 0, 0)[:3]) for r, _, step, _, _, passes, *at in marks if r == rank
        ]
        expected = {
            (step, passes, (rank, microbatch, STAGES))
            for step in range(steps)
            for passes in (0, 1)
            for microbatch in range(MICROBATCHES)
        }
        assert len(blocks) == len(expected) and set(blocks) == expected
    roles = {
        line["rank"]: line.get("role")
        for line in lines
        if isinstance(line, dict) and line.get("is") == "rank"
    }
    assert roles == {rank: f"pp={rank}" for rank in range(STAGES)}
