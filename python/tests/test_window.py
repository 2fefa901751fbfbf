"""How much a profile window records: of operators by time, of functions by number."""

import textwrap

WINDOW = """
import gc, json, sys, time
import torch
from laggard import _profile

def spin(calls):
    began = time.perf_counter()
    for _ in range(calls):
        time.perf_counter()
    return time.perf_counter() - began

def functions(path="trace.json"):
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    return [event for event in events if event.get("cat") == "python_function"]

recorder = _profile.Recorder(torch)
assert recorder.begin(0)
"""


def test_a_million_calls_make_no_large_trace_and_keep_the_name_of_their_caller(python):
    inside, around, calls, name, caller, spun = python(
        WINDOW
        + textwrap.dedent(
            """
            began = time.perf_counter()
            inside = spin(1_000_000)
            around = time.perf_counter() - began
            time.sleep(0.01)
            assert recorder.stop()
            recorder.write("trace.json")
            found = functions()
            by_id = {each["args"].get("Python id"): each for each in found}
            (slept,) = (each for each in found if "sleep" in each["name"])
            (spun,) = (each for each in found if each["name"].endswith(": spin"))
            caller = by_id[spun["args"]["Python parent id"]]["name"]
            spun = [len(found), spun["name"], caller, spun["dur"] * 1e-6]
            print(json.dumps([inside, around, *spun]))
            """
        )
    )
    assert calls < 1 << 17
    assert (name, caller) == ("script.py(6): spin", "script.py(1): <module>")
    # The clocks differ: one is set by time services.
    assert 0.99 * inside < spun < 1.01 * around


def test_a_window_ends_before_stopping_takes_too_long(python):
    """By how long PyTorch takes to stop after the first step."""
    first_only, others = python(
        WINDOW
        + textwrap.dedent(
            """
            def steps(path):
                with open(path) as file:
                    events = json.load(file)["traceEvents"]
                return sorted({e["name"] for e in events if e["name"].startswith("ProfilerStep#")})

            def window(stall_s, path):
                "Of four steps at most."
                _profile.STALL_S = stall_s
                step = 1
                while not recorder.step(step, 4 - step):
                    step += 1
                assert recorder.stop()
                recorder.write(path)
                return steps(path)

            first = window(0.0, "first.json")
            assert recorder.begin(0)
            print(json.dumps([first, window(1e9, "others.json")]))
            """
        )
    )
    assert first_only == ["ProfilerStep#0"]
    assert others == ["ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"]


def test_collections_of_garbage_are_calls_without_a_caller(python):
    (collection,) = python(
        WINDOW
        + textwrap.dedent(
            """
            gc.disable()
            gc.collect()
            assert recorder.stop() and recorder not in gc.callbacks
            recorder.write("trace.json")
            print(json.dumps([each["args"] for each in functions() if "GC" in each["name"]]))
            """
        )
    )
    assert collection == {}


def test_a_profile_function_of_the_users_is_left_alone(python):
    """Whether it is there before, or comes in the middle of a window."""
    before, meanwhile = python(
        WINDOW
        + textwrap.dedent(
            """
            def mine(frame, what, arg):
                pass

            sys.setprofile(mine)
            assert recorder.stop()
            meanwhile = sys.getprofile() is mine
            recorder.write("meanwhile.json")
            assert recorder.begin(1)
            assert recorder.stop()
            before = sys.getprofile() is mine
            recorder.write("before.json")
            assert not functions("meanwhile.json") and not functions("before.json")
            print(json.dumps([before, meanwhile]))
            """
        )
    )
    assert before and meanwhile
