"""Two replicas of two ranks each: an all-reduce within the replica in forward, one across
replicas in backward."""

import torch.distributed as dist
from common import BATCH, Samples, end, network
from torch import optim
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
model = network()
model[2].register_forward_hook(
    lambda module, args, out: (
        dist.all_reduce(out.detach().clone(), group=mesh.get_group("tp")) and None
    )
)
model = DistributedDataParallel(model, process_group=mesh.get_group("dp"))
optimizer = optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Samples(), batch_size=BATCH):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
del model, optimizer
end()
