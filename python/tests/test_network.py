"""What is slow between hosts."""

import json
import subprocess
import time

import pytest
from conftest import BIN, JOBS, TOKENS, timed, write_tokens

pytestmark = timed
# What is usual of the job's steps is known by then.
HEALTHY_STEPS = 200
# What is usual on a link is known when what both ranks got of cores has been told so often, every
# 10 s: as often it is looked for sockets, and six readings take a second each.
HEALTHY_USAGES = 6
PATIENCE_S = 60


def wait_for(pattern, sides):
    """Until both sides have recorded it."""
    until = time.monotonic() + PATIENCE_S
    while not all(side.recorded(pattern) for side in sides):
        assert all(side.process.poll() is None for side in sides)
        assert time.monotonic() < until, pattern
        time.sleep(0.2)


def throttle(cable, sides, steps, rate):
    """Once these steps have shown what is usual."""
    wait_for(rf"\[\d,\d+,{steps},", sides)
    wait_for(rf'(?s)(?:"is":"usage".*?){{{HEALTHY_USAGES}}}', sides)
    cable.throttle(rate)


def test_a_link_that_is_throttled_is_named(cable, tmp_path):
    sides = list(cable.sides(tmp_path, JOBS / "wide.py"))
    try:
        throttle(cable, sides, HEALTHY_STEPS, "400mbit")
        wait_for("slower_link", sides)
        for side in sides:
            side.line("slower than the job's best window .* on all ranks")
        for side, there in zip(sides, reversed(cable.ENDS)):
            # That the other side was ended is another incident; so may be what a busy machine does.
            found = side.end()["incidents"]
            named = [one for one in found if one["subject"]["flow"]]
            assert named, found
            for incident in named:
                assert incident["kind"] == "degraded", incident
                assert incident["subject"]["flow"].endswith(f" to {there}"), incident
                assert "look at the network" in incident["advice"]
    finally:
        for side in sides:
            side.kill()


@pytest.fixture
def collector(cable, tmp_path):
    """A collector at the first end; asks it for the verdict of its one job."""
    address, tokens = f"{cable.ENDS[0]}:8765", write_tokens(tmp_path)
    serve = [BIN / "laggard", "serve", "--listen", address, "--data", tmp_path / "data"]
    command = cable.inside(*serve, "--tokens", tokens)
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert b"serving" in process.stderr.readline()

    def verdict():
        url = f"http://{address}/api/v1/jobs/pipeline/verdict"
        ask = ["curl", "--silent", "--header", f"Authorization: Bearer {TOKENS['viewer']}", url]
        answer = subprocess.run(cable.inside(*ask), check=True, capture_output=True)
        return json.loads(answer.stdout)

    verdict.url = f"http://{address}"
    yield verdict
    process.kill()
    process.wait()


def test_the_network_comes_before_the_blocks_of_a_pipeline(cable, collector, tmp_path):
    options = ["--job", "pipeline", "--collector", collector.url]
    token = {"LAGGARD_TOKEN": TOKENS["agent"]}
    script = JOBS / "wide_pipeline.py"
    sides = list(cable.sides(tmp_path, script, options=options, **token))
    try:
        throttle(cable, sides, HEALTHY_STEPS // 2, "800mbit")
        # Two windows of 50 slow steps, and the end of the one before.
        until, incidents = time.monotonic() + 2 * PATIENCE_S, []
        while not any(incident["subject"]["flow"] for incident in incidents):
            assert time.monotonic() < until, incidents
            incidents = collector()["incidents"]
            time.sleep(1)
        # Copying what comes slowly takes cores from blocks too: they are not to blame.
        slower = max(incidents, key=lambda incident: incident["cost_s"])
        assert (slower["kind"], slower["subject"]["ranks"]) == ("degraded", []), incidents
        assert "on all ranks" in slower["text"]
        assert slower["subject"]["flow"].endswith(tuple(f" to {end}" for end in cable.ENDS))
        assert "look at the network" in slower["advice"]
        others = sum(incident["cost_s"] for incident in incidents) - slower["cost_s"]
        assert others < 0.1 * slower["cost_s"], incidents
    finally:
        for side in sides:
            side.kill()
