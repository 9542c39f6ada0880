"""Predict the traffic of a step.

Ranks: 1
Minutes: 15

In every step, device 0 of `nn.DataParallel` exchanges data with all other devices. How
many bytes are these?

`ex2_4(module, output_bytes, num_devices)` gets a module, the number of bytes of the
outputs of a whole batch, and the number of devices. Return `(sent, received)`: the
bytes that device 0 sends to the other devices, and receives from them, in **one
training step**, forward and backward.

- The batch is cut evenly: each device computes `output_bytes / num_devices` of the
  output.
- The batch and the labels come from the host, so they don't count.
- All parameters are trained. Some may be tied, and there may be buffers of any type.

The check compares your numbers with what the real `nn.DataParallel` moves between
virtual GPUs.

Hint 1: What goes out in forward, and for what part of it does a gradient come back in
    backward? And what arrives in forward, so that its gradient leaves in backward?
Hint 2: Out: every parameter and every buffer, and the gradient of the others' outputs.
    In: the others' outputs, and a gradient for each parameter.
Hint 3: `t.numel() * t.element_size()`, over `module.parameters()` and
    `module.buffers()`, which name a tied tensor only once. Multiply all of it by
    `num_devices - 1`.
"""


# %% solution
def ex2_4(module, output_bytes, num_devices):
    """Return the bytes that device 0 sends and receives in one training step."""

    def size(tensors):
        return sum(t.numel() * t.element_size() for t in tensors)

    others, share = num_devices - 1, output_bytes // num_devices
    gradients = size(module.parameters())
    sent = size(module.parameters()) + size(module.buffers()) + share
    return others * sent, others * (gradients + share)


# %% check
def tied():
    module = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6))
    module[1].weight = module[0].weight
    return module


def mask():
    module = nn.Sequential(nn.Linear(6, 3))
    module.register_buffer("mask", torch.ones(1000, dtype=torch.bool))
    return module


CASES = {
    "2 devices": (lambda: nn.Linear(6, 100), 2),
    "4 devices": (lambda: nn.Linear(6, 100), 4),
    "one device": (lambda: nn.Linear(6, 100), 1),
    "buffers of BatchNorm":
        (lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), 4),
    "a buffer of booleans": (mask, 2),
    "tied parameters": (tied, 2),
}  # fmt: skip


def size(tensors):
    return sum(tensor.nbytes for tensor in tensors)


def measure(module, num_devices):
    """Return the output's bytes, and what device 0 really sent and received."""
    from allranks import vgpu

    with vgpu.plugged_in(num_devices):
        ids = list(range(num_devices))
        model = nn.DataParallel(module.to("vgpu:0"), device_ids=ids)
        x = torch.randn(4 * num_devices, 6)
        vgpu.clear_events()
        output = model(x)
        output.sum().backward()
        ends = [(e.source, e.target, e.num_bytes) for e in vgpu.events()]
        gpus = [(a, b, n) for a, b, n in ends if a and b and "cpu" not in (a, b)]
        sent = sum(n for source, _, n in gpus if source == "vgpu:0")
        received = sum(n for _, target, n in gpus if target == "vgpu:0")
        return size([output]), sent, received


def check(answer, case):
    for name, (make, num_devices) in case.each(CASES):
        module = make()
        out, *want = measure(copy.deepcopy(module), num_devices)
        got = unpack(answer(module, out, num_devices), 2, "a pair (sent, received)")
        for verb, number, right in zip(("sends", "receives"), got, want):
            if number != right:
                why = explain(number, right, module, num_devices, out)
                raise Wrong(f"device 0 {verb} {right} bytes; you say {number:g}. {why}")


def explain(number, want, module, n, out):
    """Return a sentence on how a wrong number may have come about."""
    params = size(module.parameters())
    if number * (n - 1) == want * n:
        return "Device 0 sends nothing to itself."
    if number * (n - 1) == want:
        return f"There are {n - 1} other devices."
    off = (number - want) / max(1, n - 1)
    twice = size(p for _, p in module.named_parameters(remove_duplicate=False))
    kinds = {
        size(module.buffers()): "the buffers",
        twice - params: "the tied parameters, once more",
        params: "the parameters, or their gradients",
        out // n: "a share of the outputs, or of their gradients",
    }
    what = f": as much as {kinds[abs(off)]}" if kinds.get(abs(off)) else ""
    fault = "too many" if off > 0 else "missing"
    return f"Per other device, {abs(off):g} bytes are {fault}{what}."
