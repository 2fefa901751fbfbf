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
    """By how long PyTorch takes to stop after the first step. The second one passes."""
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
                while recorder.step(step, 4 - step) != _profile.ENOUGH:
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
    assert others == ["ProfilerStep#2", "ProfilerStep#3"]


def test_ranges_that_are_open_as_a_step_begins_write_to_no_freed_memory(python):
    """As that of ``DistributedDataParallel.forward`` is, where no data loader begins the steps."""
    written, steps = python(
        WINDOW
        + textwrap.dedent(
            """
            import ctypes

            libc = ctypes.CDLL(None)
            libc.malloc.restype = ctypes.c_void_p

            def pass_boundary(step):
                "In the middle of ranges; how many blocks of memory were written to meanwhile."
                ranges = [torch.profiler.record_function(f"range {at}") for at in range(64)]
                for each in ranges:
                    each.__enter__()
                ended = recorder.step(step, 4 - step)
                # What is free, blocks of all sizes.
                sizes = [*range(24, 2000, 8), *(1 << power for power in range(11, 18))] * 40
                blocks = [(libc.malloc(size), size) for size in sizes]
                for place, size in blocks:
                    ctypes.memset(place, 0xAB, size)
                for each in reversed(ranges):
                    each.__exit__(None, None, None)
                return ended, sum(
                    ctypes.string_at(place, size) != bytes([0xAB]) * size for place, size in blocks
                )

            _profile.STALL_S = 1e9
            passed = [pass_boundary(step) for step in (1, 2, 3, 4)]
            kept = [_profile.NOT_KEPT, _profile.NOT_KEPT, _profile.RECORDED, _profile.ENOUGH]
            assert [ended for ended, _ in passed] == kept
            assert recorder.stop()
            recorder.write("ranges.json")
            with open("ranges.json") as file:
                names = {event["name"] for event in json.load(file)["traceEvents"]}
            steps = sorted(name for name in names if name.startswith("ProfilerStep#"))
            print(json.dumps([[count for _, count in passed], steps]))
            """
        )
    )
    assert written == [0, 0, 0, 0]
    assert steps == ["ProfilerStep#2", "ProfilerStep#3"]


def test_collectives_under_way_write_to_no_freed_memory(python):
    """Of gloo, whose threads close their ranges once the other rank has come. If they did, one of
    these windows would end the process."""
    names = python(
        """
        import itertools, json, subprocess, sys
        import torch
        import torch.distributed as dist
        from laggard import _profile

        is_other = "other" in sys.argv
        if not is_other:
            other = subprocess.Popen([sys.executable, __file__, "other"])
        store = dist.FileStore("store", 2)
        dist.init_process_group("gloo", store=store, rank=int(is_other), world_size=2)

        def reduce():
            return [dist.all_reduce(torch.ones(8), async_op=True) for _ in range(40)]

        for window in itertools.count() if is_other else ():
            store.wait([f"come {window}"])
            for work in reduce():
                work.wait()

        _profile.SETTLE_STEPS, _profile.SETTLE_S = 1, 0.0
        recorder = _profile.Recorder(torch)
        for window in range(200):
            assert recorder.begin(0)
            works = reduce()
            assert recorder.step(1, 1) == _profile.NOT_KEPT
            store.set(f"come {window}", "now")
            for work in works:
                work.wait()
            assert recorder.step(2, 1) == _profile.ENOUGH
            assert recorder.settles(2) and recorder.stop()
        recorder.write("ranges.json")
        other.kill()
        with open("ranges.json") as file:
            names = {event["name"] for event in json.load(file)["traceEvents"]}
        print(json.dumps(sorted(names)))
        """
    )
    assert {"gloo:all_reduce", "ProfilerStep#0"} <= set(names)


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
