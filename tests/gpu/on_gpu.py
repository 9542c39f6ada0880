"""Measure on a device: python tests/gpu/on_gpu.py amp|memory|guard cuda|cpu|vgpu."""

import gc
import itertools
import json
import os
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SIZES = {"cuda": (4096, 1024, 20), "cpu": (64, 32, 3), "vgpu": (256, 32, 3)}
ROUNDS = 7  # blocks of each kind, in turns
KINDS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def network(width: int, device: torch.device) -> nn.Module:
    """Return four square layers with the same weights each time."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*layers).to(device)


def milliseconds(device: torch.device, work) -> float:
    """Time some work on a device, on a GPU by the GPU's own clock."""
    if device.type == "cuda":
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop)
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def amp(device: torch.device) -> dict:
    """Return a step's median milliseconds and the last loss for each kind of number.

    Each kind trains a network of its own from the same weights on the same batches.
    """
    width, batch, steps = SIZES[device.type]
    dice = torch.Generator().manual_seed(1)
    x = torch.randn(batch, width, generator=dice).to(device)
    times, losses, trainings = {kind: [] for kind in KINDS}, {}, {}
    for kind, dtype in KINDS.items():
        model = network(width, device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler(device.type, enabled=kind == "float16")
        trainings[kind] = model, optimizer, scaler, dtype

    def train(kind: str) -> None:
        model, optimizer, scaler, dtype = trainings[kind]
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype, enabled=dtype is not None):
                loss = (model(x).float() - x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses[kind] = loss.detach()

    for number in range(ROUNDS + 1):
        for kind in KINDS:
            took = milliseconds(device, lambda kind=kind: train(kind)) / steps
            if number > 0:  # the first warms up
                times[kind].append(took)
    found = {"width": width, "batch": batch, "steps": steps * (ROUNDS + 1)}
    found["float32_matmul"] = torch.get_float32_matmul_precision()
    right = losses["float32"].item()
    for kind in KINDS:
        found[kind] = {
            "step_ms": statistics.median(times[kind]),
            "step_ms_min": min(times[kind]),
            "step_ms_max": max(times[kind]),
            "loss": losses[kind].item(),
            "off_float32": losses[kind].item() / right - 1,
        }
    return found


def memory(device: torch.device) -> dict:
    """Return bytes of weights, gradients and AdamW's state, counted and by formula."""
    width, batch, _ = SIZES[device.type]
    accelerator, index = torch.accelerator, 0
    before = accelerator.memory_allocated(index)
    model = network(width, torch.device(device.type, index))
    weights = accelerator.memory_allocated(index)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    sum(p.sum() for p in model.parameters()).backward()
    gradients = accelerator.memory_allocated(index)
    optimizer.step()
    state = accelerator.memory_allocated(index)
    x = torch.randn(batch, width).to(torch.device(device.type, index))
    accelerator.reset_peak_memory_stats(index)
    model(x).square().mean().backward()
    size = 4 * sum(p.numel() for p in model.parameters())
    found = {
        "formula": {"weights": size, "gradients": size, "optimizer": 2 * size},
        "allocated": {
            "weights": weights - before,
            "gradients": gradients - weights,
            "optimizer": state - gradients,
        },
        "peak_allocated": accelerator.max_memory_allocated(index),
        "peak_reserved": accelerator.max_memory_reserved(index),
    }
    for what, want in found["formula"].items():
        got = found["allocated"][what]
        # Not exactly equal: blocks are rounded up, and AdamW also counts its steps.
        if abs(got / want - 1) > 0.02:
            found["fault"] = f"{what} take {got} bytes; by the formula it is {want}"
    return found


def guard(device: torch.device) -> dict:
    """Return how long steps take with allranks.guard and without, in turns.

    The figures are rank 0's; all other ranks return {}.
    """
    from allranks.guard import Guard

    width, batch, steps = SIZES[device.type]
    local_rank, ours = int(os.environ.get("LOCAL_RANK", 0)), None
    if device.type == "cuda":
        device = ours = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    backend = dist.get_default_backend_for_device(device)
    if alone := not dist.is_initialized():
        limit = timedelta(seconds=60)
        dist.init_process_group(backend, timeout=limit, device_id=ours)
    world_size, every = dist.get_world_size(), 2 * steps
    dice = torch.Generator().manual_seed(2)  # one data set for all ranks
    data = torch.randn(batch * world_size * steps, width, generator=dice)
    data = TensorDataset(data)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch, sampler=sampler, drop_last=True)
    model = network(width, device)
    ids = None if device.type == "cpu" else [device.index]
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=ids)
    optimizer = torch.optim.AdamW(ddp.parameters(), 1e-4)
    epochs = itertools.count()

    def block(watch) -> float:
        sampler.set_epoch(epoch := next(epochs))
        feed = watch.epoch(loader, epoch) if watch else loader

        def train() -> None:
            for (x,) in feed:
                optimizer.zero_grad()
                ddp(x.to(device)).square().mean().backward()
                if watch:
                    watch.step()
                optimizer.step()

        dist.barrier()
        return milliseconds(device, train) / steps

    block(None)
    times = {"without": [], "with": []}
    with Guard(ddp, optimizer, every=every) as watch:
        block(watch)  # the guard checks the first steps more often, so skip them
        for number in range(ROUNDS):
            ways = [("without", None), ("with", watch)][:: 1 if number % 2 else -1]
            for way, one in ways:
                times[way].append(block(one))
    medians = {f"step_ms_{way}": statistics.median(t) for way, t in times.items()}
    pairs = [b / a for a, b in zip(times["without"], times["with"], strict=True)]
    found = {"backend": backend, "every": every, "megabytes": 64 * width**2 / 4e6}
    found |= medians | {"ratio": statistics.median(pairs)}
    found |= {"ratio_min": min(pairs), "ratio_max": max(pairs), "pairs": len(pairs)}
    rank = dist.get_rank()
    if alone:
        del ddp, watch
        gc.collect()
        dist.destroy_process_group()
    return found if rank == 0 else {}


if __name__ == "__main__":
    what, device = sys.argv[1:]
    measure = {"amp": amp, "memory": memory, "guard": guard}[what]
    if device == "vgpu":
        from allranks import vgpu

        vgpu.plug_in(1)
    if found := measure(torch.device(device)):
        print(f"FIGURES {json.dumps(found)}\n", end="", flush=True)
