"""Hosts and collectors, each in a network namespace of its own, and the bus between them."""

import contextlib
import json
import shutil
import subprocess
import time

import pytest
from conftest import BIN, JOBS, PATIENCE_S, TOKENS, Star, matrix, write_tokens

pytestmark = [
    matrix,
    pytest.mark.skipif(shutil.which("nats-server") is None, reason="there is no nats-server"),
]


class Collector:
    def __init__(self, star, address, folder):
        self.star, self.address, self.data = star, address, folder / address
        self.tokens = folder / "tokens.toml"
        self.name = star.add(address)
        self.start()

    def start(self):
        serve = [BIN / "laggard", "serve", "--listen", f"{self.address}:8765", "--data", self.data]
        serve += ["--tokens", self.tokens, "--bus", f"nats://{Star.HUB}:4222"]
        command = ["ip", "netns", "exec", self.name, *map(str, serve)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert any("serving" in line for line in self.process.stderr)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def ask(self, path):
        """What it answers, or the one it leads to; the address that answered last."""
        token = f"Authorization: Bearer {TOKENS['viewer']}"
        ask = ["curl", "--silent", "--location-trusted", "--max-time", "10", "--header", token]
        url = f"http://{self.address}:8765/api/v1/{path}"
        said = self.star.inside(*ask, "--write-out", "\n%{url_effective}", url)
        answer, _, url = said.rpartition("\n")
        return json.loads(answer), url.split("/")[2].split(":")[0]

    def wait_for(self, what):
        """Waits until the job is as it should be, as this collector lists it."""
        end, job = time.monotonic() + PATIENCE_S, None
        while time.monotonic() < end:
            jobs = self.ask("jobs")[0]["jobs"]
            job = jobs[0] if jobs else None
            if job and what(job):
                return job
            time.sleep(0.2)
        raise AssertionError(f"never came: {job}")

    def keeper(self, after=None):
        """Who keeps the job, once somebody does, and another one than before."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            # Nobody answers where a keeper that was cut off is asked.
            with contextlib.suppress(subprocess.CalledProcessError):
                verdict, keeper = self.ask("jobs/wide/verdict")
                if "error" not in verdict and keeper != after:
                    return keeper
            time.sleep(0.2)
        raise AssertionError(f"nobody keeps it after {after}")


@pytest.fixture
def star(cable, tmp_path):
    star = Star()
    bus = None
    try:
        star.lay()
        for nth, name in enumerate(cable.names):
            star.add(f"10.231.78.{nth + 1}", name)
        write_tokens(tmp_path)
        serve = ["nats-server", "-a", Star.HUB, "-p", "4222", "-js", "-sd", tmp_path / "bus"]
        bus = subprocess.Popen(
            ["ip", "netns", "exec", star.name, *map(str, serve)], stderr=subprocess.DEVNULL
        )
        yield star
    finally:
        if bus:
            bus.kill()
            bus.wait()
        star.remove()


def test_a_job_is_told_whoever_is_cut_off(cable, star, tmp_path):
    collectors = [Collector(star, f"10.231.78.{10 + nth}", tmp_path) for nth in range(3)]
    by_address = {collector.address: collector for collector in collectors}
    options = ["--bus", f"nats://{Star.HUB}:4222", "--job", "wide"]
    slow = {"STEPS": "500", "SLOW_RANK": "2"}
    sides = list(cable.sides(tmp_path, JOBS / "ddp.py", options=options, **slow))
    try:
        collectors[0].wait_for(lambda job: job["state"] == "slow")
        first = collectors[0].keeper()
        # Its keeper hears nothing more: another one takes the job, and it comes back.
        star.cut(first)
        others = [one for one in collectors if one.address != first]
        second = others[0].keeper(after=first)
        star.mend(first)
        # A host of the job is cut off from the bus, and trains on.
        before = collectors[0].wait_for(lambda job: True)["steps"]
        recording = sides[1].recording
        star.cut("10.231.78.2")
        recorded = recording.stat().st_size
        while recording.stat().st_size < 1.1 * recorded:
            time.sleep(0.2)
        star.mend("10.231.78.2")
        by_address[second].kill()
        alive = [one for one in collectors if one.address != second]
        job = alive[0].wait_for(lambda job: job["state"] == "ended")
        assert (job["ranks"], job["hosts"], job["steps"]) == (4, 2, 500)
        assert job["steps"] > before
        by_address[second].start()
        found = [one.ask("jobs/wide/verdict")[0] for one in collectors]
        assert found[0] == found[1] == found[2]
        assert [side.process.wait(timeout=PATIENCE_S) for side in sides] == [0, 0]
    finally:
        for process in (*sides, *collectors):
            process.kill()
    verdict = found[0]
    assert verdict["job"]["lost_records"] == 0
    incident = verdict["incidents"][0]
    assert (incident["subject"]["ranks"], incident["subject"]["stage"]) == ([2], "data.next_wait")
    assert incident["victims"] == [[0, 1], [3, 3]]
    assert all(one["subject"]["stage"] == "data.next_wait" for one in verdict["incidents"])
    struck = incident["evidence"][0]["values"]["struck_steps"]
    assert abs(incident["cost_s"] - 0.05 * struck) < 0.1 * 0.05 * struck, incident["text"]
