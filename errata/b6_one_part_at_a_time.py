"""Two devices, of which one works.

runs on: 2 virtual GPUs
outcome: runs
hardware: GPU
chapter: ch6_model_parallel

The model is split, but the batch is not. The second device waits for the first one's
output, and the first has nothing to do while the second works: memory is split, time is
not. Cut the batch into micro-batches, and the first device starts the next while the
second works on the last. ({ref}`Virtual GPUs <app_vgpu>` do one op after another, as a
GPU does; their clock is a model, and only its overlap is printed here.)
"""

# %% given
import torch
from allranks import vgpu
from torch import nn

first = nn.Linear(1024, 1024).to("cuda:0")
second = nn.Linear(1024, 1024).to("cuda:1")
x = torch.ones(256, 1024, device="cuda:0")
vgpu.clear_events()


def share_of_time_in_which_both_compute():
    spans = [[], []]
    for event in vgpu.events():
        if event.op == "addmm":
            spans[int(event.device[-1])].append((event.start_s, event.end_s))
    both = sum(max(0, min(b, d) - max(a, c)) for a, b in spans[0] for c, d in spans[1])
    return f"{both / max(e.end_s for e in vgpu.events()):.2f}"


# %% wrong
second(first(x).to("cuda:1"))
print("both compute:", share_of_time_in_which_both_compute())

# %% right
for part in x.chunk(4):
    second(first(part).to("cuda:1"))
print("both compute:", share_of_time_in_which_both_compute())
