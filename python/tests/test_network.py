"""What is slow between hosts."""

import contextlib
import json
import subprocess
import time

import pytest
from conftest import BIN, JOBS, PATIENCE_S, TOKENS, Star, matrix, write_tokens

# What is usual of the job's steps is known by then.
HEALTHY_STEPS = 200
# What is usual on a link is known when what both ranks got of cores has been told so often, every
# 10 s: as often it is looked for sockets, and six readings take a second each.
HEALTHY_USAGES = 6


def wait_for(pattern, sides):
    """Until both sides have recorded it."""
    until = time.monotonic() + PATIENCE_S
    while not all(side.recorded(pattern) for side in sides):
        assert all(side.process.poll() is None for side in sides)
        assert time.monotonic() < until, pattern
        time.sleep(0.2)


def throttle(cable, sides, steps, rate):
    """Once these steps have shown what is usual."""
    wait_until_healthy(sides, steps)
    cable.throttle(rate)


def wait_until_healthy(sides, steps):
    wait_for(rf"\[\d,\d+,{steps},", sides)
    wait_for(rf'(?s)(?:"is":"usage".*?){{{HEALTHY_USAGES}}}', sides)


@matrix
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


@contextlib.contextmanager
def serving(namespace, address, job, tmp_path, *options):
    """A collector in a namespace; asks it for the verdict of its one job."""

    def inside(*command):
        return ["ip", "netns", "exec", namespace, *map(str, command)]

    tokens = write_tokens(tmp_path)
    serve = [BIN / "laggard", "serve", "--listen", address, "--data", tmp_path / "data"]
    command = inside(*serve, "--tokens", tokens, *options)
    process = subprocess.Popen(command, stderr=subprocess.PIPE)

    def verdict():
        url = f"http://{address}/api/v1/jobs/{job}/verdict"
        ask = ["curl", "--silent", "--header", f"Authorization: Bearer {TOKENS['viewer']}", url]
        answer = subprocess.run(inside(*ask), check=True, capture_output=True)
        return json.loads(answer.stdout)

    try:
        assert b"serving" in process.stderr.readline()
        yield verdict
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def collector(cable, tmp_path):
    """A collector at the first end."""
    with serving(cable.names[0], f"{cable.ENDS[0]}:8765", "pipeline", tmp_path) as verdict:
        yield verdict


@matrix
def test_the_network_comes_before_the_blocks_of_a_pipeline(cable, collector, tmp_path):
    options = ["--job", "pipeline", "--collector", f"http://{cable.ENDS[0]}:8765"]
    token = {"LAGGARD_TOKEN": TOKENS["agent"]}
    script = JOBS / "wide_pipeline.py"
    sides = list(cable.sides(tmp_path, script, options=options, **token))
    try:
        throttle(cable, sides, HEALTHY_STEPS // 2, "800mbit")
        # Two windows of 50 slow steps, and the end of the one before.
        until, incidents = time.monotonic() + PATIENCE_S, []
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


@pytest.fixture
def star():
    """Four hosts and a switch."""
    star = Star()
    try:
        star.lay()
        for host in range(1, 5):
            star.add(f"10.231.78.{host}")
    except (OSError, subprocess.CalledProcessError) as error:
        star.remove()
        pytest.skip(f"needs root and iproute2 for network namespaces: {error}")
    yield star
    star.remove()


@matrix
def test_every_method_tells_of_the_slow_link_of_a_ring(star, tmp_path):
    """X2: from rank 1 to rank 2, in both directions of which everything else goes as before."""
    hosts, address = list(star.ends), f"{star.HUB}:8765"
    # What is said of healthy steps may ask for a profile window, and the next one waits.
    settings = tmp_path / "laggard.toml"
    settings.write_text("[profile]\nevery_s = 20.0\n")
    config = ["--config", settings]
    options = [*config, "--job", "ring", "--collector", f"http://{address}"]
    token = {"LAGGARD_TOKEN": TOKENS["agent"]}
    ends, command = list(star.ends.values()), [JOBS / "ring.py"]
    with serving(star.name, address, "ring", tmp_path, *config) as verdict:
        sides = list(star.hosts(ends, hosts[0], 1, tmp_path, command, options, **token))
        try:
            wait_until_healthy(sides, HEALTHY_STEPS)
            assert verdict()["incidents"] == []
            star.throttle(hosts[1], hosts[2], "150mbit")
            until, told = time.monotonic() + PATIENCE_S, {}
            while set(told) != {"collective", "frontier", "pattern", "host"}:
                assert time.monotonic() < until, told
                time.sleep(1)
                incidents = verdict()["incidents"]
                evidence = incidents[0]["evidence"] if incidents else []
                told = {one["method"]: one for one in reversed(evidence)}
        finally:
            for side in sides:
                side.kill()
    (slow,) = incidents
    assert slow["subject"]["ranks"] == [1, 2], slow
    assert slow["subject"]["stage"] == "model.backward_cpu_wall"
    assert slow["subject"]["flow"].endswith(f" to {hosts[2]}")
    assert "data between ranks 1-2 arrives late" in slow["text"]
    assert told["collective"]["label"] == "not_delivered"
    assert "on all ranks, mostly in model.backward_cpu_wall" in told["frontier"]["text"]
    assert told["host"]["text"].startswith(f"host of rank 1: its data to {hosts[2]} arrives")
    host, pattern = told["host"]["values"], told["pattern"]["values"]
    assert host["bytes_per_s"] < 0.8 * host["usual_bytes_per_s"]
    assert told["pattern"]["ranks"] == [1] and "the link is slow" in told["pattern"]["text"]
    assert pattern["mu"] < 0.03 and pattern["rate"] < 0.5 * pattern["peers_rate"]
    assert slow.get("contradictions", []) == []
