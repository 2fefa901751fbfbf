"""Verdicts on jobs whose hosts run ahead of their devices, on real accelerator paths of PyTorch."""

import json

import pytest
from conftest import JOBS, accelerated, alone, forked, laggard, matrix

pytestmark = [accelerated, alone]

CULPRIT = 2
# fault: whether the device or its host is slow, and in which stage
FAULTS = {
    "loader": ("host", "data.next_wait"),
    "forward": ("host", "model.fwd_loss_cpu_wall"),
    "callback": ("host", "callbacks.cpu_wall"),
    "device_forward": ("device", "model.fwd_loss_cpu_wall"),
    "device_backward": ("device", "model.backward_cpu_wall"),
    "device_optimizer": ("device", "optim.step_cpu_wall"),
}


def verdict(fault, mode, read, times, **more):
    """What is said of a job, and what its devices measured, in seconds by phase."""
    command = forked(JOBS / "device_loop.py")
    environment = {"FAULT": fault, "MODE": mode, "READ": read, "TIMES": str(times), **more}
    outcome = laggard("run", "--json", "--", *command, **environment)
    assert outcome.code == 0, outcome.stderr
    measured = [json.loads((times / f"{rank}.json").read_text()) for rank in range(4)]
    return outcome.verdict, [it["seconds"] for it in measured]


def test_a_slow_device_is_told_from_a_slow_host(tmp_path):
    said, measured = verdict("device_backward", "ddp", "after", tmp_path, FACTOR="5", STEPS="60")
    first, *_ = said["incidents"]
    subject = first["subject"]
    assert (subject["ranks"], subject["side"], subject["stage"]) == (
        [CULPRIT],
        "device",
        "model.backward_cpu_wall",
    )
    assert said["job"]["sampled_steps"] > 0
    [line] = [it for it in said["job"]["read_backs"] if it["line"].startswith("device_loop.py:")]
    assert line["per_step"] == 1.0
    # Lateness is what its kernels took longer, by the device's own clock.
    longer = [measured[CULPRIT]["backward"] - it["backward"] for it in measured]
    late = first["evidence"][0]["values"]["lateness_s"] * 55
    assert 0.8 * min(longer[:2]) < late < 1.3 * max(longer)


@pytest.mark.parametrize("hooks", ["0", "1"])
def test_a_slow_device_of_a_tensor_group_is_named(hooks):
    command = forked(JOBS / "tensor_device.py", ranks=2)
    outcome = laggard("run", "--json", "--", *command, FACTOR="3", LAGGARD_HOOKS=hooks)
    first = outcome.verdict["incidents"][0]
    assert (first["subject"]["ranks"], first["subject"]["side"]) == ([1], "device"), first["text"]
    assert all(one["subject"]["ranks"] == [1] for one in outcome.verdict["incidents"])


@matrix
@pytest.mark.parametrize("read", ["after", "before", "ten", "never"])
@pytest.mark.parametrize("fault", [*FAULTS, "none", "all_slow"])
@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_host_and_device_are_told_apart(mode, fault, read, tmp_path):
    slow = {"FACTOR": "3", "DELAY": "0.06", "STEPS": "100"}
    said, _ = verdict(fault, mode, read, tmp_path, **slow)
    named = [one["subject"] for one in said["incidents"] if one["subject"]["ranks"]]
    if fault not in FAULTS:
        assert named == []
        return
    side, stage = FAULTS[fault]
    assert [subject["ranks"] for subject in named] == [[CULPRIT]]
    assert named[0]["stage"] == stage and named[0].get("side") in (side, None)


@matrix
@pytest.mark.parametrize(
    ("fault", "side", "block"),
    [
        ("device_forward", "device", "forward"),
        ("device_backward", "device", "backward"),
        ("forward", "host", "forward"),
        ("none", None, None),
    ],
)
def test_blocks_of_a_pipeline_count_by_the_clocks_of_devices(fault, side, block, tmp_path):
    slow = {"FACTOR": "20", "DELAY": "0.3", "STEPS": "64", "SINCE": "24"}
    said, _ = verdict(fault, "pipeline", "after", tmp_path, **slow)
    named = [one["subject"] for one in said["incidents"]]
    # A host that has no core holds its device up, and that is said as well.
    devices = [subject["ranks"] for subject in named if subject.get("side") == "device"]
    assert devices == ([[CULPRIT]] if side == "device" else [])
    if fault != "none":
        of_culprit = [subject for subject in named if subject["ranks"] == [CULPRIT]]
        assert [subject.get("side") for subject in of_culprit] == [side]
        assert of_culprit[0]["block"].startswith(block)
        assert of_culprit[0]["stage"] == f"pipeline stage {CULPRIT}"


@matrix
@pytest.mark.parametrize("fault", ["queries", "capture"])
def test_a_device_that_must_not_be_asked_is_left_alone(fault, tmp_path):
    command = forked(JOBS / "device_loop.py")
    environment = {"FAULT": fault, "READ": "never", "SINCE": "10", "TIMES": str(tmp_path)}
    outcome = laggard("run", "--json", "--", *command, **environment)
    assert outcome.code == 0, outcome.stderr
    assert outcome.incidents == []
    if fault == "queries":
        assert any("device marks ended" in note for note in outcome.verdict["notes"])
    else:
        told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
        assert [it["violations"] for it in told] == [0] * 4
