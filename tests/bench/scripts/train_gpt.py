"""Train a small GPT, on CPU tensors or on a GPU, and print the seconds of each step."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from scripts.ch8_local_sgd import GPT


def main() -> None:
    """Train on the device, for as many steps as the command line says."""
    device, steps = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = GPT(dim=256, layers=4, heads=4, context=128).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    x = torch.randint(256, (8, 129), device=device)
    seconds, start = [], time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        logits = net(x[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()).backward()
        optimizer.step()
        now = time.perf_counter()
        seconds.append(now - start)
        start = now
    print(json.dumps(seconds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
