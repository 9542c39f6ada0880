"""Chapter 12 - Sharding: save with W ranks, and resume on any other number.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch12_reshard.py
"""

import job  # first, since importing torch takes seconds

import os
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from ch12_replicas import layers, off
from checkpoint import read_folder
from tasks import GPT, loss_on, read_text


class Run:
    """A training run, on the ranks of a mesh, or in one process without it."""

    def __init__(self, args, device, mesh: DeviceMesh | None = None) -> None:
        self.device, self.mesh, self.step = device, mesh, 0
        self.net = GPT(layers=args.layers).to(device, torch.double)
        for modules in [*layers(self.net), self.net] if mesh else ():
            fully_shard(modules, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.dice = torch.Generator().manual_seed(args.seed)

    def train(self, steps: int) -> None:
        """Take steps, each on 12 windows, which the ranks divide up."""
        mesh, text = self.mesh, read_text()[0]
        rank, size = (mesh.get_local_rank(), mesh.size()) if mesh else (0, 1)
        for _ in range(steps):
            starts = torch.randint(len(text) - 64, (12,), generator=self.dice)
            mine = starts.tensor_split(size)[rank]  # on 5 ranks: 3, 3, 2, 2, 2
            share = len(mine) * size / len(starts)  # FSDP2 divides by size
            loss = loss_on(self.net, text, mine, self.device)
            (loss * share).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1

    def state(self) -> dict:
        """Return all that a checkpoint needs; of sharded tensors, a part."""
        model, optim = state_dict.get_state_dict(self.net, self.optimizer)
        state = {"step": self.step, "dice": self.dice.get_state()}
        return state | {"model_state_dict": model, "optim_state_dict": optim}

    def save(self, folder: str) -> None:
        """Write a checkpoint: each rank writes its part."""
        group = self.mesh.get_group()
        dcp.save(self.state(), checkpoint_id=folder, process_group=group)

    def load(self, folder: str) -> None:
        """Read this rank's part, whichever ranks wrote the files."""
        state, group = self.state(), self.mesh.get_group()
        dcp.load(state, checkpoint_id=folder, process_group=group)
        self.step, dice = state.pop("step"), state.pop("dice")
        self.dice.set_state(dice)
        state_dict.set_state_dict(self.net, self.optimizer, **state)

    def whole(self) -> dict[str, torch.Tensor]:
        """Return whole weights and moments on rank 0; others get nothing."""
        how = "full_state_dict", "cpu_offload", "flatten_optimizer_state_dict"
        how = state_dict.StateDictOptions(**dict.fromkeys(how, True))
        both = state_dict.get_state_dict(self.net, self.optimizer, options=how)
        found = both[0] | both[1]
        return {n: t for n, t in found.items() if torch.is_tensor(t)}


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    parser = job.Flags(__doc__, steps=2, layers=1, seed=0)
    return read_folder(parser, argv, "ch12_reshard")


def main(args, rank: int, world_size: int, device: torch.device) -> None:
    """Train with W, W - 1, ..., 1 and W ranks in turn; compare with one."""
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    if world_size > 12:
        job.refuse(f"{world_size} ranks share 12 windows: start 12 at most")
    for leg, size in enumerate([*range(world_size, 0, -1), world_size]):
        torch.manual_seed(args.seed + leg)  # not the saved weights
        mesh = DeviceMesh(device.type, [*range(size)])
        if rank < size:
            run = Run(args, device, mesh)
            if leg:
                run.load(f"{args.folder}/{leg - 1}")
            run.train(args.steps)
            run.save(f"{args.folder}/{leg}")
        dist.barrier()  # all files are written before anybody reads
        if rank == 0:
            files = os.listdir(f"{args.folder}/{leg}")
            job.say(f"{size} ranks: step {run.step}, {len(files)} files")
    torch.manual_seed(args.seed)
    alone = Run(args, device)
    alone.train(args.steps * (world_size + 1))
    ours, theirs = run.whole(), alone.whole()
    if rank > 0:
        return
    same = torch.equal(run.dice.get_state(), alone.dice.get_state())
    gap = f"{len(ours)} tensors {off(ours, theirs):.0e} off"
    job.say(f"one process: {gap}; same windows next: {same}")
    plain = GPT(layers=args.layers).double()  # was never sharded
    path, names = f"{args.folder}/plain.safetensors", plain.state_dict()
    save_file({name: ours[name] for name in names}, path)
    plain.load_state_dict(load_file(path))
    job.say(f"{path}: {off(ours, plain.state_dict()):.0e} off")


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
