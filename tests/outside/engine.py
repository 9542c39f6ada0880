"""How the tests of DeepSpeed's rows train the net of rows.py: with its engine."""

from collections import Counter
from collections.abc import Callable

import deepspeed
import torch.distributed as dist
from deepspeed.comm import comm
from rows import DIM, Weights, batches, build, optimize, share
from torch import nn

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo, uncompiled
THREE = {"stage": 3, "stage3_param_persistence_threshold": 0}  # else all stays whole
FREE = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
NUMBERS = 3 * (DIM * DIM + DIM)  # of the net
SENDS = "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"


def start(net: nn.Module, zero: dict, num: int = 1, **config: object):
    """Return DeepSpeed's engine around a net and SGD."""
    config |= {"train_micro_batch_size_per_gpu": 5, "gradient_accumulation_steps": num}
    config |= {"zero_optimization": zero, "zero_allow_untested_optimizer": True}
    config |= {"zero_force_ds_cpu_optimizer": False}  # it would be compiled
    return deepspeed.initialize(model=net, optimizer=optimize(net), config=config)[0]


def whole(engine) -> Weights:
    """Return whole weights."""
    params = dict(engine.module.named_parameters())
    cut = hasattr(engine.module[1].weight, "ds_id")
    with deepspeed.zero.GatheredParameters([*params.values()], enabled=cut):
        return {name: p.detach().clone() for name, p in params.items()}


def count_calls() -> Counter:
    """Return a counter of the collectives that DeepSpeed calls from here on."""
    calls = Counter()

    def counted(name: str, fn: Callable) -> Callable:
        return lambda *args, **how: calls.update([name]) or fn(*args, **how)

    for name in SENDS:
        setattr(comm.cdb, name, counted(name, getattr(comm.cdb, name)))
    return calls


def train(rank: int, zero: dict, num: int = 1, after=lambda _: None, clip=0, loud=1):
    """Train; return the weights, what the last step saw, and what ``after`` returns."""
    clipping = {} if clip is None else {"gradient_clipping": clip}  # else DeepSpeed's
    engine = start(build(), zero, num, **clipping)
    calls, matrix = count_calls(), engine.module[1].weight
    for parts in batches(num, dist.get_world_size()):
        calls.clear()
        for part in parts:
            loss = loud * engine(part[rank]).square().mean()
            second = getattr(matrix, "ds_secondary_tensor", None)
            second = 0 if second is None else share(second)
            seen = {"live": share(matrix), "second": second}
            engine.backward(loss)
            engine.step()
    states = engine.optimizer.optimizer.state.values()
    seen["momentum"] = sum(state["momentum_buffer"].numel() for state in states)
    seen |= {"between": share(matrix), **calls}
    return whole(engine), seen, after(engine)
