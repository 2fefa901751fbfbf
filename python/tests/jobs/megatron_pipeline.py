"""A pipeline of Megatron-Core on the CPU, a stage or two on each rank; one block may be slow.

torchrun --nproc-per-node 4 megatron_pipeline.py [chunks]
"""

import itertools
import sys

import torch
import torch.distributed as dist
from blocks import Part, Work
from common import STEPS, end

# Its schedules know CUDA alone.
torch.cuda.current_device = lambda: "cpu"
zeros = torch.zeros
torch.zeros = lambda *size, device=None, **more: zeros(*size, **more)

from megatron.core import parallel_state  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.timers import Timers  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

MICROBATCHES, WIDTH, LENGTH, BATCH = 8, 32, 4, 2


class Chunk(Part):
    model_type = ModelType.encoder_or_decoder
    share_embeddings_and_output_weights = False
    received = None

    def set_input_tensor(self, received):
        self.received = received[0] if isinstance(received, list) else received

    def forward(self, x):
        return super().forward(x if self.received is None else self.received)


def samples():
    return (torch.randn(LENGTH, BATCH, WIDTH, requires_grad=True) for _ in itertools.count())


def forward_step(data, chunk):
    return chunk(next(data)), lambda x: (x.square().mean(), {})


dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
chunks = int(sys.argv[1]) if len(sys.argv) > 1 else 1
layout = {
    "pipeline_model_parallel_size": ranks,
    "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
}
parallel_state.initialize_model_parallel(**layout)
config = TransformerConfig(
    num_layers=ranks * chunks,
    hidden_size=WIDTH,
    num_attention_heads=1,
    pipeline_dtype=torch.float32,
    batch_p2p_comm=False,
    timers=Timers(0, "minmax"),
    **layout,
)
works = [Work(rank + chunk * ranks) for chunk in range(chunks)]
model = [Chunk(WIDTH, work) for work in works]
for chunk in model:
    chunk.config = config
data = [samples() for _ in model]
optimizer = torch.optim.SGD([it for chunk in model for it in chunk.parameters()], lr=0.01)
forward_and_backward = get_forward_backward_func()
for step in range(STEPS):
    for work in works:
        work.begin(step)
    optimizer.zero_grad()
    forward_and_backward(
        forward_step_func=forward_step,
        data_iterator=data if chunks > 1 else data[0],
        model=model if chunks > 1 else model[0],
        num_microbatches=MICROBATCHES,
        seq_length=LENGTH,
        micro_batch_size=BATCH,
        forward_only=False,
    )
    optimizer.step()
end()
