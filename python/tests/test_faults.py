"""The fault matrix: what is hidden in the demo's training is the first incident.

One seed and four ranks here; `make acceptance` runs three seeds, and two and eight ranks.
"""

import pytest
from conftest import HERE, alone, forked, laggard, matrix

pytestmark = alone

DATA, FORWARD, BACKWARD = "data.next_wait", "model.fwd_loss_cpu_wall", "model.backward_cpu_wall"
OPTIM, CALLBACKS, OTHER = "optim.step_cpu_wall", "callbacks.cpu_wall", "step.other_cpu_wall"
SLOW, SEED = 2, 2
STEADY = {"kind": "steady"}

# fault: ranks, stage, pace, seconds it is late in each struck step
MATRIX = {
    "data": ([SLOW], DATA, STEADY, 0.05),
    "forward": ([SLOW], FORWARD, STEADY, 0.05),
    "backward": ([SLOW], BACKWARD, STEADY, 0.05),
    "between": ([SLOW], OTHER, STEADY, 0.05),
    "optim": ([SLOW], OPTIM, STEADY, 0.05),
    "optim_barrier": ([SLOW], OPTIM, STEADY, 0.05),
    "callback": ([SLOW], CALLBACKS, STEADY, 0.05),
    "callback_barrier": ([SLOW], CALLBACKS, STEADY, 0.05),
    "late_collective": ([SLOW], CALLBACKS, STEADY, 0.05),
    "rotating": ([], DATA, {"kind": "rotating"}, 0.05),
    "periodic": ([SLOW], DATA, {"kind": "every", "steps": 10}, 0.2),
    "two": ([SLOW], DATA, STEADY, 0.05),
    "all_data": ([], DATA, STEADY, 0.05),
    "stall": ([SLOW], DATA, {"kind": "once", "step": 60}, 5.0),
    "forward_fsdp2": ([SLOW], FORWARD, STEADY, 0.05),
    "backward_fsdp2": ([SLOW], BACKWARD, STEADY, 0.05),
}


def demo(fault, tmp_path, ranks=4, seed=SEED):
    """The demo, but that its ranks start quicker."""
    command = forked(
        HERE.parent / "laggard/demo/train.py", "--fault", fault, "--seed", seed, ranks=ranks
    )
    report = tmp_path / "report.html"
    outcome = laggard("run", "--json", "--report", report, "--", *command)
    assert outcome.code == 0, outcome.stderr
    return outcome


@matrix
@pytest.mark.parametrize("fault", MATRIX)
def test_the_hidden_fault_is_the_first_incident(fault, tmp_path):
    outcome = demo(fault, tmp_path)
    ranks, stage, pace, late_s = MATRIX[fault]
    first, *others = outcome.incidents
    subject = first["subject"]
    assert (subject["ranks"], subject["stage"], first["pace"]) == (ranks, stage, pace)
    assert outcome.verdict["job"]["lost_records"] == 0
    struck = first["evidence"][0]["values"]["struck_steps"]
    exposed_s = late_s * struck
    assert abs(first["cost_s"] - exposed_s) < 0.1 * exposed_s, first["text"]
    if fault == "two":
        (hidden,) = first["next_in_line"]
        assert (hidden["ranks"], hidden["stage"]) == ([(SLOW + 2) % 4], FORWARD)
        alone, both = first["gain_alone_s"], hidden["gain_both_s"]
        assert alone < 0.25 * both and hidden["gain_alone_s"] < 0.05 * both
        assert [other["subject"]["ranks"] for other in others] == [hidden["ranks"]]
    else:
        assert others == []
    if fault == "between":
        assert "between forward and backward" in first["text"]
    if fault == "rotating":
        assert "rotates" in first["text"]
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_a_healthy_training_gets_no_incident(tmp_path):
    assert demo("none", tmp_path).incidents == []


def test_the_demo_finds_what_it_hides(tmp_path):
    options = ("--fault", "two", "--ranks", 3, "--seed", 1, "--steps", 80)
    outcome = laggard("demo", "--json", "--report", tmp_path / "report.html", *options)
    assert outcome.code == 0, outcome.stderr
    found = [(one["subject"]["ranks"], one["subject"]["stage"]) for one in outcome.incidents]
    assert found == [([1], DATA), ([0], FORWARD)]


@matrix
@pytest.mark.parametrize("ranks", [2, 8])
def test_other_numbers_of_ranks(ranks, tmp_path):
    outcome = demo("backward", tmp_path, ranks=ranks, seed=1)
    subject = outcome.incidents[0]["subject"]
    assert (subject["ranks"], subject["stage"]) == ([1], BACKWARD)
