"""Where collectives are issued, for the clock of the device, in a PyTorch without hooks on them.

What C++ issues by itself, as DistributedDataParallel does, does not pass through here.
"""

import contextlib
import functools
import sys

import laggard_autoload

# Functions of ``torch.distributed``, and what they issue: numbers of CollectiveOp in
# crates/core/model. FSDP2 gathers and reduces with them, too.
_C10D = {
    "broadcast": 2,
    "all_reduce": 3,
    "reduce": 4,
    "all_gather": 5,
    "reduce_scatter": 6,
    "all_to_all": 7,
    "all_gather_single": 14,
    "reduce_scatter_single": 17,
    "all_to_all_single": 19,
}
# Functions that DTensor issues them with, and the place of the group among their arguments.
_FUNCTIONAL = {
    "broadcast": (2, 2),
    "all_reduce": (3, 2),
    "all_gather_single": (14, 2),
    "reduce_scatter_single": (17, 3),
    "all_to_all_single": (19, 3),
}
# What some were called before PyTorch 2.15.
_C10D_BEFORE = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
_FUNCTIONAL_BEFORE = {
    "all_gather_single": "all_gather_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
_FUNCTIONAL_MODULE = "torch.distributed._functional_collectives"


def watch(torch, is_sampled, issued):
    """Has ``issued(op, group_name)`` called before each of these functions.

    :param is_sampled: Whether this is a sampled step, in which the device is marked.
    """
    if not hasattr(getattr(torch, "compiler", None), "is_compiling"):
        return
    c10d = torch.distributed.distributed_c10d

    def name_of(args, kwargs):
        groups = kwargs.get("group"), *args, c10d._world.default_pg
        return next(it for it in groups if isinstance(it, c10d.ProcessGroup)).group_name

    for name, op in _C10D.items():
        name = name if hasattr(c10d, name) else _C10D_BEFORE.get(name, name)
        if hasattr(c10d, name):
            watched = _before(torch, getattr(c10d, name), op, name_of, is_sampled, issued)
            # Both names are in use.
            setattr(c10d, name, watched)
            setattr(torch.distributed, name, watched)
    laggard_autoload.when_imported(
        _FUNCTIONAL_MODULE, functools.partial(_watch_functional, torch, is_sampled, issued)
    )


def _watch_functional(torch, is_sampled, issued):
    module = sys.modules[_FUNCTIONAL_MODULE]

    def name_of(place, args, kwargs):
        return module._resolve_group_name(kwargs["group"] if "group" in kwargs else args[place])

    for name, (op, place) in _FUNCTIONAL.items():
        name = name if hasattr(module, name) else _FUNCTIONAL_BEFORE.get(name, name)
        if hasattr(module, name):
            of_group = functools.partial(name_of, place)
            original = getattr(module, name)
            setattr(module, name, _before(torch, original, op, of_group, is_sampled, issued))


def _before(torch, original, op, name_of, is_sampled, issued):
    @functools.wraps(original)
    def issue(*args, **kwargs):
        # Compiled code runs without this, and a trace of it must not change.
        if not torch.compiler.is_compiling() and is_sampled():
            with contextlib.suppress(Exception):  # a group of an unknown kind has no mark
                issued(op, name_of(args, kwargs))
        return original(*args, **kwargs)

    return issue
