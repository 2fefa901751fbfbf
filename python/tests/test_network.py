"""What is slow between hosts."""

import time

from conftest import JOBS, timed

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


def test_a_link_that_is_throttled_is_named(cable, tmp_path):
    sides = list(cable.sides(tmp_path, JOBS / "wide.py"))
    try:
        wait_for(rf"\[\d,\d+,{HEALTHY_STEPS},", sides)
        wait_for(rf'(?s)(?:"is":"usage".*?){{{HEALTHY_USAGES}}}', sides)
        cable.throttle("400mbit")
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
