"""Hooks into PyTorch.

Each hook is set on its own and one that fails leaves the others; what failed is said beside
the verdict. What runs in a training step is in ``_native``; nothing here is on that path
except the thin functions that call it.
"""

import atexit
import contextlib
import functools
import itertools
import json
import os
import socket
import sys
import time
import weakref
import zlib

import laggard_autoload

from . import _device, _events, _issues, _megatron, _native, _profile
from ._native import mark

# Numbers of MarkKind in crates/core/model.
FORWARD_BEGIN, FORWARD_END = 4, 5
OPTIMIZER_BEGIN, OPTIMIZER_END = 8, 9

# Number of CollectiveOp there.
_ALLREDUCE = 3

# Identifies our hook on a process group among those of others.
_HOOK_ID = 0x1A66A2D

# What pipeline and expert groups are called by DeviceMesh and by Megatron-Core. Ranks that
# differ in one of them do different work and are not compared.
_ROLE_GROUPS = {
    "mesh_pp": "pp",
    "mesh_ep": "ep",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
}

# Room of a Flight Recorder, in collectives: that of PyTorch 2.15.
_RECORDS = "2000"

# What the group of all ranks is known by while it is made.
_INIT = zlib.crc32(b"init_process_group")

_watched = weakref.WeakSet()
_roles = {}
_pipelines = weakref.WeakKeyDictionary()
_notes = []
_groups = []
# Ranks of each group whose collectives have no hooks, by its number, and the group whose they are
# if all groups have the same ranks.
_sizes = {}
_only_group = None
_inits = itertools.count(1)
_after_activation = []
# The server of this process's Flight Recorder, and the process that made it.
_server = _server_pid = None
_given_up = False
_forward_events = None


def _directory():
    return os.environ.get("LAGGARD_DIR") or None


@functools.lru_cache(maxsize=1)
def _job():
    # Without the wrapper, the launcher that started all ranks of this host names the job.
    return os.environ.get("LAGGARD_JOB") or f"job-{os.getppid()}"


def _number(name, default):
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default


def become_rank(rank=None, world_size=None):
    """Starts recording in this process, unless it is a helper of one that trains."""
    global _given_up
    if _given_up or _native.is_active():
        return
    try:
        # A loop that names its steps may be one without PyTorch.
        torch = sys.modules.get("torch")
        if torch is not None:
            if torch.utils.data.get_worker_info() is not None:
                return
            group = torch.distributed
            if rank is None and group.is_available() and group.is_initialized():
                rank, world_size = group.get_rank(), group.get_world_size()
        _native.activate(
            directory=_directory(),
            job=_job(),
            host=socket.gethostname(),
            rank=rank,
            world_size=world_size,
            attempt=_number("TORCHELASTIC_RESTART_COUNT", 0),
            slots=_number("LAGGARD_RING_SLOTS", None),
        )
        atexit.register(_native.close)
        helpers = sys.modules.get("multiprocessing.util")
        if helpers is not None:
            # Its forked children end without what else is done at exit.
            helpers.Finalize(None, _native.close, exitpriority=0)
        for note in _notes:
            _native.note(note)
        for group in _groups:
            _native.group(*group)
        if _roles:
            _tell_role()
        for call in _after_activation:
            call()
    except Exception as error:
        _given_up = True
        print(f"laggard: training continues unrecorded: {error}", file=sys.stderr)


def _at_exit():
    # PyTorch keeps process groups in a C++ registry that is torn down after the interpreter;
    # a hook still set then crashes the process in its last moment.
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    groups = set(_watched)
    groups.update(c10d._world.pg_map if c10d is not None else ())
    for group in groups:
        with contextlib.suppress(Exception):  # not ours, or a PyTorch without hooks
            group.unregister_pre_hook(_HOOK_ID)
    # A forked child's is its parent's, and works on.
    if _server_pid == os.getpid():
        _server.shutdown()
    # A thread of gloo frees its last collective under the interpreter's lock, and aborts the
    # process if the interpreter is gone by then. The lock is its, if it waits for it.
    time.sleep(0.01)


def summary():
    """Return the verdict over the last steps of the ranks on this host.

    :returns: The document that ``laggard run --json`` prints, as a dictionary; docs/json.md
        describes it. ``None`` if laggard is switched off.
    :raises OSError: if the rings of the ranks cannot be read.
    """
    return json.loads(_native.job_verdict(directory=_directory(), job=_job()))


def _of_device(name):
    """A call of the device channel, if this PyTorch can have a device; a fault ends the channel."""
    if not sys.modules["torch"].backends.cuda.is_built():
        return None

    def call():
        global _forward_events
        if _forward_events is None:
            return
        try:
            getattr(_forward_events, name)()
        except Exception as error:
            _forward_events = None
            _note(f"no device times of the forward pass: {error!r}")

    return call


def _patch_profiler(torch):
    recorder = _profile.Recorder(torch)
    _native.set_recorder(recorder)
    atexit.register(recorder.close)


def _patch_device(torch):
    global _forward_events
    if not torch.backends.cuda.is_built():
        return

    def settle(in_use):
        global _forward_events
        _forward_events = _events.ForwardEvents(torch.cuda, _native) if in_use else None

    _forward_events = _events.AwaitDevice(torch.cuda, settle)


def _patch_accelerator(torch):
    accelerator = _device.Accelerator(torch, _note)
    accelerator.watch_captures()
    _native.set_accelerator(accelerator)
    _device.watch_read_backs(torch, _native)


def _patch_data_loader(torch):
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    _native.hook_next(_BaseDataLoaderIter, _of_device("begin"))


def _patch_backward(torch):
    from torch.autograd.variable import Variable

    engine = Variable._execution_engine
    is_alone = not torch.distributed.is_available()
    # With hooks on collectives it is known when each is issued.
    before_waits = None if is_alone or _has_hooks(torch) else _before_waits(engine)
    Variable._execution_engine = _native.EngineProxy(engine, _of_device("end"), before_waits)


def _before_waits(engine):
    """Marks where a device has done its part of a backward pass and waits for what is reduced.

    Callbacks of the engine run behind the pass, in the order in which they were queued.
    DistributedDataParallel and FSDP wait in theirs.
    """

    def queue(*_):
        with contextlib.suppress(Exception):  # then there is no such mark
            engine.queue_callback(functools.partial(_issued, _ALLREDUCE))

    def before_waits(roots):
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        if getattr(compiled, "compiled_autograd_enabled", False):
            # What is hooked into a pass would have it compiled once more.
            return
        if roots is None:
            queue()
            return
        node = getattr(roots[0], "grad_fn", None) or getattr(roots[0], "node", None)
        if node is not None:
            node.register_prehook(queue)

    return before_waits


def _issued(op, group=None):
    """Marks on the device that a collective is issued, of which no hook tells.

    :param group: The name of its process group; ``None`` if it is not known.
    """
    number = _only_group if group is None else _native.group_number(group)
    if number in _sizes:
        _native.issued_on_device(op, number)


def _patch_issues(torch):
    if torch.distributed.is_available() and not _has_hooks(torch):
        _issues.watch(torch, _native.records_device, _issued)


def _patch_optimizer(torch):
    from torch.optim import optimizer

    begin = _native.OptimizerHook(OPTIMIZER_BEGIN, become_rank)
    optimizer.register_optimizer_step_pre_hook(begin)
    optimizer.register_optimizer_step_post_hook(_native.OptimizerHook(OPTIMIZER_END))


def _patch_grad_scaler(torch):
    # A scaler that finds infinities skips the optimizer; the step is one all the same.
    scaler = torch.amp.GradScaler
    original = scaler.step
    begin, end = _native.OptimizerHook(OPTIMIZER_BEGIN), _native.OptimizerHook(OPTIMIZER_END)

    @functools.wraps(original)
    def step(self, optimizer, *args, **kwargs):
        begin(optimizer, args, kwargs)
        try:
            return original(self, optimizer, *args, **kwargs)
        finally:
            end(optimizer, args, kwargs)

    scaler.step = step


def _patch_data_parallel(torch):
    # What DistributedDataParallel itself calls as its forward pass begins and ends. A hook on
    # modules would cost every submodule a slow path and break the graphs of torch.compile.
    if not torch.distributed.is_available():
        return
    reducer = torch._C._distributed_c10d.Reducer
    reducer.prepare_for_backward = _marked(reducer.prepare_for_backward, FORWARD_END)
    parallel = torch.nn.parallel.distributed
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if is_compiling is None:
        reducer.prepare_for_forward = _marked(reducer.prepare_for_forward, FORWARD_BEGIN)
        return
    # Unlike the reducer, this is called while gradients are accumulated, too.
    original = parallel.Join.notify_join_context

    @functools.wraps(original)
    def notify(joinable):
        if not is_compiling() and isinstance(joinable, parallel.DistributedDataParallel):
            _forward_begins(torch)
        return original(joinable)

    parallel.Join.notify_join_context = staticmethod(notify)


def _forward_begins(torch):
    # An evaluation needs no gradients.
    if torch.is_grad_enabled():
        mark(FORWARD_BEGIN)


def _marked(original, kind):
    def call(*args):
        mark(kind)
        return original(*args)

    return call


def _patch_sharded(torch):
    name = "torch.distributed.fsdp._fully_shard._fsdp_state"
    laggard_autoload.when_imported(name, functools.partial(_patch_shards, torch, name))


def _patch_shards(torch, name):
    # What each module of FSDP2 calls before its own forward pass.
    try:
        state = sys.modules[name].FSDPState
        original = state._root_pre_forward

        @functools.wraps(original)
        def root_pre_forward(self, *args):
            if self._state_ctx.iter_forward_root is None:
                _forward_begins(torch)
            return original(self, *args)

        state._root_pre_forward = root_pre_forward
    except Exception as error:
        _note(f"the forward pass of FSDP2 is not recorded: {error!r}")


def _patch_pipelines(torch):
    laggard_autoload.when_imported("torch.distributed.pipelining.stage", _patch_stages)


def _patch_stages():
    # Every schedule of torch.distributed.pipelining works its blocks off through these.
    stage = sys.modules["torch.distributed.pipelining.stage"]._PipelineStageBase
    for name, passes in (
        ("forward_one_chunk", 0),
        ("backward_one_chunk", 1),
        ("backward_weight_one_chunk", 2),
    ):
        try:
            setattr(stage, name, _as_block(getattr(stage, name), passes))
        except Exception as error:
            _note(f"blocks of pipelines are not recorded: {error!r}")


def _patch_megatron(torch):
    blocks = _megatron.Blocks(_note)
    for name, watch in _megatron.WATCHES.items():
        laggard_autoload.when_imported(
            name, functools.partial(_watch_megatron, name, watch, blocks)
        )


def _watch_megatron(name, watch, blocks):
    try:
        watch(sys.modules[name], blocks)
    except Exception as error:
        _note(f"blocks of Megatron's pipelines are not recorded: {error!r}")


def _as_block(original, passes):
    @functools.wraps(original)
    def block(stage, microbatch, *args, **kwargs):
        place = _place_of(stage, microbatch)
        _native.block(True, passes, place)
        try:
            return original(stage, microbatch, *args, **kwargs)
        finally:
            _native.block(False, passes, place)

    return block


def _place_of(stage, microbatch):
    """Where a block is, as ``_native.block`` has it; learns the rank's role on the way."""
    try:
        if stage not in _pipelines:
            group = sys.modules["torch.distributed"].distributed_c10d.get_process_group_ranks
            _pipelines[stage] = min(group(stage.group)) if stage.group is not None else 0
            if "pp" not in _roles:
                _roles["pp"] = stage.group_rank
                _tell_role()
        return stage.stage_index, microbatch, stage.num_stages, _pipelines[stage]
    except Exception as error:
        _note(f"a block of a pipeline is not recorded: {error!r}")
        return 0, 0, 0, 0


def _patch_collectives(torch):
    if not torch.distributed.is_available():
        return
    if not _has_hooks(torch):
        _after_activation.append(_serve_flight_recorder)
    c10d = torch.distributed.distributed_c10d
    original = c10d._new_process_group_helper

    @functools.wraps(original)
    def helper(*args, **kwargs):
        init = None
        try:
            init = _begin_init(*args, **kwargs)
        except Exception as error:
            _note(f"the start of the job is not watched: {error!r}")
        try:
            made = original(*args, **kwargs)
        finally:
            if init is not None:
                _native.init(False, *init)
        try:
            _on_group(c10d, made[0], *args, **kwargs)
        except Exception as error:
            _note(f"a process group is not watched: {error!r}")
        return made

    c10d._new_process_group_helper = helper
    _patch_splits(c10d)
    update = getattr(c10d, "_update_default_pg", None)
    if update is not None:

        @functools.wraps(update)
        def update_default(group):
            update(group)
            # Who leaves the group of all ranks has left the training, however its process ends.
            _native.set_closed(group is None)

        c10d._update_default_pg = update_default
    for group in list(c10d._world.pg_map):
        _watch(group, sorted(c10d._world.pg_group_ranks.get(group, ())))


def _patch_splits(c10d):
    """Watches groups that are cut out of others, as meshes do whose job names its device."""
    users = c10d, sys.modules["torch.distributed"], sys.modules.get("torch.distributed.device_mesh")
    for name in "split_group", "shrink_group":
        original = getattr(c10d, name, None)
        if original is None:
            continue

        def split(*args, original=original, **kwargs):
            group = original(*args, **kwargs)
            try:
                ranks = c10d._world.pg_group_ranks.get(group)
                if ranks is not None and group not in _watched:
                    desc = getattr(group, "group_desc", None)
                    _on_group(c10d, group, len(ranks), group.rank(), ranks, group_desc=desc)
            except Exception as error:
                _note(f"a process group is not watched: {error!r}")
            return group

        split = functools.wraps(original)(split)
        for user in users:
            if getattr(user, name, None) is original:
                setattr(user, name, split)


def _begin_init(group_size, group_rank, global_ranks_in_group, *args, **kwargs):
    """Takes note if the group of all ranks is made: a job can stand still before it has begun."""
    if global_ranks_in_group:
        return None
    become_rank(group_rank, group_size)
    _name_group(_INIT, "default", _fold(range(group_size)))
    init = _INIT, next(_inits)
    _native.init(True, *init)
    return init


def _on_group(
    c10d, group, group_size, group_rank, global_ranks_in_group, *args, group_desc=None, **kwargs
):
    if group is None or group == c10d.GroupMember.NON_GROUP_MEMBER:
        return
    ranks = list(global_ranks_in_group) or list(range(group_size))
    _watch(group, ranks)
    dimension = _ROLE_GROUPS.get(group_desc)
    if dimension is not None:
        _roles[dimension] = group_rank
        _tell_role()


def _has_hooks(torch):
    # LAGGARD_HOOKS=0 takes the way of older versions, to try it.
    has = hasattr(torch.distributed.ProcessGroup, "register_pre_hook")
    return has and os.environ.get("LAGGARD_HOOKS") != "0"


def _switch_on_flight_recorder(torch):
    """Before 2.15 it has no room unless it is given some; what the user says of that holds."""
    if not torch.distributed.is_available() or _has_hooks(torch):
        return
    names = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
    if not any(name in os.environ for name in names):
        # The first name came with 2.8, and since then the second one is warned of.
        name = names[0] if torch.__version__ >= (2, 8) else names[1]
        os.environ[name] = _RECORDS


def _serve_flight_recorder():
    """Lets the agent read when collectives were issued, without a thread of ours.

    The server is PyTorch's own and needs no interpreter lock to answer.
    """
    global _server, _server_pid
    from torch._C import _distributed_c10d

    none = "this PyTorch has no collective hooks (they came with 2.15)"
    handlers = getattr(_distributed_c10d, "_get_handler_names", list)()
    if "fr_trace_json" in handlers:
        seen = "collectives"
    elif "dump_nccl_trace_json" in handlers:
        seen = "collectives (NCCL only)"
    else:
        _note(f"{none} and no Flight Recorder: hangs in its collectives are not detected")
        return
    _note(
        f"{none}: issue times of {seen} are read from its Flight Recorder every few seconds, "
        "and once more before a hang is reported"
    )
    ring = _native.ring_path()
    if ring is not None and _server is None:
        _server = _distributed_c10d._WorkerServer(f"{ring}.sock")
        _server_pid = os.getpid()
        # A forked child would shut down the socket that it shares. PyTorch dies of that.
        _native.keep(_server)


def _watch(group, ranks):
    members = _fold(sorted(ranks))
    if _after_activation:
        # The recorder tells groups by their names.
        number = _native.group_number(group.group_name)
        _learn_size(number, len(ranks))
    elif hasattr(group, "register_pre_hook"):
        _watched.add(group)
        number = zlib.crc32(f"{group.group_name} {members}".encode())
        functions = vars(sys.modules["torch.distributed.distributed_c10d"])
        group.register_pre_hook(_HOOK_ID, _native.CollectiveHook(number, functions))
    else:
        return
    name = getattr(group, "group_desc", "undefined")
    name = f"group_{group.group_name}" if name == "undefined" else name.removesuffix("_pg")
    _name_group(number, name, members)


def _learn_size(number, size):
    global _only_group
    if size > 1:
        _sizes[number] = size
        # Of several kinds of groups it is not known whose a collective is.
        _only_group = next(iter(_sizes)) if len(set(_sizes.values())) == 1 else None


def _name_group(number, name, members):
    entry = number, name, members if len(members) < 150 else ""
    # Beyond this the table of names would have no room for stages.
    if entry not in _groups and len(_groups) < 32:
        _groups.append(entry)
        _native.group(*entry)


def _fold(ranks):
    """Ranks as runs that go up evenly: ``0-3,8-120:8``."""
    runs = []
    for rank in ranks:
        if runs and runs[-1][2] in (0, rank - runs[-1][1]):
            runs[-1][1:] = rank, rank - runs[-1][1]
        else:
            runs.append([rank, rank, 0])
    forms = {0: "{0}", 1: "{0}-{1}"}
    return ",".join(forms.get(run[2], "{0}-{1}:{2}").format(*run) for run in runs)


def _tell_role():
    role = ",".join(f"{name}={value}" for name, value in sorted(_roles.items()))
    _native.set_role(role)


def _note(text):
    if text not in _notes:
        _notes.append(text)
        _native.note(text)


def _attach():
    torch = sys.modules["torch"]
    atexit.register(_at_exit)
    for patch in (
        _patch_data_loader,
        _patch_backward,
        _patch_optimizer,
        _patch_grad_scaler,
        _patch_data_parallel,
        _patch_sharded,
        _patch_pipelines,
        _patch_issues,
        _patch_megatron,
        _patch_collectives,
        _switch_on_flight_recorder,
        _patch_device,
        _patch_accelerator,
        _patch_profiler,
    ):
        try:
            patch(torch)
        except Exception as error:
            _note(f"{patch.__name__.strip('_')} failed: {error!r}")


def _attach_or_say():
    try:
        _attach()
    except Exception as error:  # of ours, so not the script's to handle
        print(f"laggard: not attached: {error!r}", file=sys.stderr)


laggard_autoload.when_imported("torch", _attach_or_say)
