"""How the tests of Accelerate's rows train: as ranks of ``accelerate launch``.

Without a GPU, Accelerate passes over its FSDP options and uses DDP. So these ranks tell
it that they have GPUs.
"""

import logging
import os
from argparse import Namespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from rows import DIM, Weights, batches, build, optimize
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

USED = "--use_fsdp", "--num_processes", "2", "--num_machines", "1"
USED += "--mixed_precision", "no", "--dynamo_backend", "no"
TWO = "--fsdp_version", "2"
BLOCKS = *TWO, "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"
BLOCKS += "--fsdp_transformer_layer_cls_to_wrap", "Block"


def parse(*flags: str) -> Namespace:
    """Return the options of ``accelerate launch``."""
    words = *USED, *flags, "script.py"
    return _validate_launch_command(launch_command_parser().parse_args(words))[0]


def default(option: str) -> str:
    """Return an option's default."""
    return getattr(parse(), option)


def launched(*flags: str) -> dict[str, str]:
    """Return the variables with which ``accelerate launch`` starts a rank."""
    env = prepare_multi_gpu_env(parse(*flags))
    return {n: v for n, v in env.items() if n.startswith(("FSDP_", "ACCELERATE_"))}


def join(flags: tuple[str, ...], **how) -> Accelerator:
    """Return what a launched rank has with these flags."""
    os.environ |= launched(*flags)
    PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
    return Accelerator(**how)


def plugin(**options: str) -> FullyShardedDataParallelPlugin:
    """Return what Accelerate makes of a launched rank's options."""
    words = [w for name, value in options.items() for w in (f"--{name}", value)]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in launched(*words).items():
            patch.setenv(name, value)
        return FullyShardedDataParallelPlugin()


def warned(rank: int, *flags: str) -> tuple[list[str], list]:
    """Return what a rank is warned of, and which options it has."""
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("accelerate.utils").addHandler(handler)
    found = vars(join(TWO + flags).state.fsdp_plugin)
    names = "use_orig_params", "sync_module_states", "forward_prefetch"
    return said, [found[name] for name in (*names, "backward_prefetch")]


class Block(nn.Sequential):
    """A block, as a Transformer has many."""


class Model(nn.Sequential):
    """Two blocks between an embedding and a head, named as transformers does."""

    def __init__(self) -> None:
        blocks = (Block(nn.Linear(DIM, DIM)) for _ in range(2))
        super().__init__(nn.Embedding(5, DIM), *blocks, nn.Linear(DIM, 5))

    def get_input_embeddings(self) -> nn.Module:
        return self[0]

    def get_output_embeddings(self) -> nn.Module:
        return self[-1]


def train(
    rank: int, flags: tuple[str, ...], num: int, clip: float
) -> tuple[Weights, bool]:
    """Train; return whole weights, and whether FSDP2 shards all of them."""
    accelerator = join(flags, gradient_accumulation_steps=num)
    net = build()
    net, optimizer = accelerator.prepare(net, optimize(net))
    for part in batches(num)[:, :, rank].flatten(0, 1):
        with accelerator.accumulate(net):
            accelerator.backward(net(part).square().mean())
            if accelerator.sync_gradients and clip:
                accelerator.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    cut = all(isinstance(p, DTensor) for p in net.parameters())
    whole = {name: p.full_tensor().detach() for name, p in net.named_parameters()}
    return whole, cut and isinstance(net, FSDPModule)


def prepare(rank: int, flags: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the units of a model, and what has whole weights after forward."""
    accelerator, net = join(flags), Model()
    net, _ = accelerator.prepare(net, optimize(net))
    net(torch.zeros(2, dtype=torch.int64))
    units = [m for m in [net, *net] if isinstance(m, FSDPModule)]
    kept = [m for m in net if not isinstance(next(m.parameters()), DTensor)]
    return (
        *([type(m).__name__.removeprefix("FSDP") for m in ms] for ms in (units, kept)),
    )
