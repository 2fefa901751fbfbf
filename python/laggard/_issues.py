"""Where collectives are issued, for the clock of the device, in a PyTorch without hooks on them.

What C++ issues by itself, as DistributedDataParallel does, does not pass through here.
"""

import contextlib
import functools
import sys

import laggard_autoload

# What is issued, as CollectiveOp in crates/core/model numbers it, by which function of
# ``torch.distributed``: what it is called since PyTorch 2.15, and before. FSDP2 uses them, too.
_C10D = {
    2: ["broadcast"],
    3: ["all_reduce"],
    4: ["reduce"],
    5: ["all_gather"],
    6: ["reduce_scatter"],
    7: ["all_to_all"],
    8: ["barrier"],
    14: ["all_gather_single", "all_gather_into_tensor"],
    17: ["reduce_scatter_single", "reduce_scatter_tensor"],
    19: ["all_to_all_single"],
}
# The same of the functions that DTensor uses, and the place of the group among their arguments.
_FUNCTIONAL = {
    2: (2, ["broadcast"]),
    3: (2, ["all_reduce"]),
    14: (2, ["all_gather_single", "all_gather_tensor"]),
    17: (3, ["reduce_scatter_single", "reduce_scatter_tensor"]),
    19: (3, ["all_to_all_single"]),
}
_FUNCTIONAL_MODULE = "torch.distributed._functional_collectives"


def watch(torch, is_sampled, issued):
    """Has ``issued(op, group_name)`` called before each of these functions.

    :param is_sampled: Whether this is a sampled step, in which the device is marked.
    """
    if not hasattr(getattr(torch, "compiler", None), "is_compiling"):
        return
    c10d = torch.distributed.distributed_c10d

    def note(op, args, kwargs):
        groups = kwargs.get("group"), *args, c10d._world.default_pg
        group = next(it for it in groups if isinstance(it, c10d.ProcessGroup))
        issued(op, group.group_name)

    for op, names in _C10D.items():
        # Both modules' names are in use.
        _replace(torch, [c10d, torch.distributed], names, is_sampled, functools.partial(note, op))
    laggard_autoload.when_imported(
        _FUNCTIONAL_MODULE, functools.partial(_watch_functional, torch, is_sampled, issued)
    )


def _watch_functional(torch, is_sampled, issued):
    module = sys.modules[_FUNCTIONAL_MODULE]

    def note(op, place, args, kwargs):
        group = kwargs["group"] if "group" in kwargs else args[place]
        issued(op, module._resolve_group_name(group))

    for op, (place, names) in _FUNCTIONAL.items():
        _replace(torch, [module], names, is_sampled, functools.partial(note, op, place))


def _replace(torch, modules, names, is_sampled, note):
    """Has ``note(args, kwargs)`` called before the first of these functions that there is."""
    name = next((name for name in names if hasattr(modules[0], name)), None)
    if name is None:
        return
    original = getattr(modules[0], name)

    @functools.wraps(original)
    def issue(*args, **kwargs):
        # Compiled code runs without this, and a trace of it must not change.
        if not torch.compiler.is_compiling() and is_sampled():
            with contextlib.suppress(Exception):  # a group of an unknown kind has no mark
                note(args, kwargs)
        return original(*args, **kwargs)

    for module in modules:
        setattr(module, name, issue)
