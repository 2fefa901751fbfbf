"""What is slow between hosts."""

import time

from conftest import JOBS

# What is usual on a link is known by then, and what is usual of the job's steps.
HEALTHY_S = 16


def test_a_link_that_is_throttled_is_named(cable, tmp_path):
    sides = list(cable.sides(tmp_path, JOBS / "wide.py"))
    try:
        while not all(side.recording.exists() for side in sides):
            assert all(side.process.poll() is None for side in sides)
            time.sleep(0.05)
        time.sleep(HEALTHY_S)
        cable.throttle("100mbit")
        for side in sides:
            side.line("slower than the job's best window .* on all ranks")
        time.sleep(4)
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
