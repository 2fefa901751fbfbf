"""Collectives of NCCL that stop in the middle or become slow, seen by its profiler plugin."""

import pytest
from conftest import JOBS, assert_told_again, bare, matrix


@pytest.fixture
def job(watch, tmp_path):
    """Starts four ranks under laggard whose link from rank 1 to rank 2 fails them."""

    def job(what):
        meet = tmp_path / "meet"
        meet.mkdir()
        return watch(bare(JOBS / "flows.py", what), SLOW_RANK="1", MEET=str(meet))

    return job


def test_a_link_that_delivers_no_more_is_named_while_the_job_hangs(job):
    stops = job("stops")
    line = stops.line("laggard: hang")
    assert "data between ranks 1-2 in ALLREDUCE #40 of group ring" in line
    assert "does not arrive (rank 1 to 2, channels 0-1)" in line
    incident = stops.end()["incidents"][0]
    assert_told_again(incident, stops.recording)
    assert incident["subject"]["ranks"] == [1, 2]
    assert incident["subject"]["flow"] == "rank 1 to 2, channels 0-1"
    assert "not_delivered" in {evidence["label"] for evidence in incident["evidence"]}


@matrix
def test_a_link_that_delivers_late_is_named(job):
    slow = job("slow")
    incident = slow.verdict()["incidents"][0]
    assert_told_again(incident, slow.recording)
    assert incident["kind"] == "slow"
    assert incident["subject"]["ranks"] == [1, 2]
    assert "data between ranks 1-2 arrives late" in incident["text"]
    assert incident["evidence"][0]["values"]["blamed_share"] > 0.8
