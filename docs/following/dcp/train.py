"""Train a model sharded over two processes: torchrun --nproc-per-node 2 train.py FOLDER."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from evals import examples, network
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = fully_shard(network())
optimizer = torch.optim.Adam(model.parameters(), 0.003)
x, y = (part[dist.get_rank() :: dist.get_world_size()] for part in examples(seed=1, count=2_000))
for step in range(1, 201):
    rows = torch.randint(len(x), (50,))
    loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        dcp.save({"model": model.state_dict()}, checkpoint_id=f"{sys.argv[1]}/step-{step}")
if dist.get_rank() == 0:
    Path(sys.argv[1], "done").touch()
dist.destroy_process_group()
