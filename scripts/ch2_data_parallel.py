"""Chapter 2 - DataParallel: one process, one module, a thread per device.

Run it (no GPU needed):
    python scripts/ch2_data_parallel.py
"""

import job  # first, since importing torch takes seconds

from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import torch
from torch import nn

from tasks import make_task


def scatter(value, devices: list[torch.device]) -> list:
    """Cut each tensor in value along dim 0; share everything else."""
    if isinstance(value, torch.Tensor):
        parts = value.chunk(len(devices))  # fewer parts if the batch is small
        return list(map(torch.Tensor.to, parts, devices))
    if isinstance(value, (tuple, list, dict)) and value:
        items = value.items() if isinstance(value, dict) else value
        parts = zip(*(scatter(item, devices) for item in items), strict=False)
        return [type(value)(part) for part in parts]
    return [value for _ in devices]


def replicate(module: nn.Module, devices: list[torch.device]) -> list:
    """Return a replica per device; the first shares the module's memory."""
    replicas = []
    for k, device in enumerate(devices):
        twin = {m: m._replicate_for_data_parallel() for m in module.modules()}
        for t in chain(module.parameters(), module.buffers()):
            twin[t] = t.to(device, copy=True) if k else t.view_as(t)
        for old in module.modules():
            parts = old._modules | old._parameters | old._buffers
            for name, part in parts.items():
                setattr(twin[old], name, twin.get(part))
        replicas.append(twin[module])
    return replicas


def parallel_apply(replicas: list, shards: list, devices: list) -> list:
    """Run each replica on its shard, in a thread of its own."""
    grad, on = torch.is_grad_enabled(), torch.accelerator.device_index

    def work(replica, shard, device):  # a new thread starts with defaults
        with torch.set_grad_enabled(grad), on(device.index):
            return replica(*shard[0], **shard[1])

    with ThreadPoolExecutor(len(replicas)) as threads:
        return list(threads.map(work, replicas, shards, devices))


def gather(outputs: list, device: torch.device):
    """Join the replicas' tensors on one device; make scalars a vector."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return torch.cat([torch.atleast_1d(o).to(device) for o in outputs])
    if first is None:
        return None
    if isinstance(first, dict):
        return {k: gather([o[k] for o in outputs], device) for k in first}
    return type(first)(gather(o, device) for o in zip(*outputs, strict=True))


class MiniDataParallel(nn.Module):
    """Do what nn.DataParallel does on any devices, even ["cpu", "cpu"]."""

    def __init__(self, module, devices: list, output_device=None):
        super().__init__()
        self.module, self.output_device = module, output_device or devices[0]
        self.devices = [torch.empty(0, device=d).device for d in devices]

    def forward(self, *args, **kwargs):
        for tensor in chain(self.module.parameters(), self.module.buffers()):
            if tensor.device != (home := self.devices[0]):
                raise RuntimeError(f"module on {tensor.device}, not on {home}")
        shards = scatter((args, kwargs), self.devices)  # (B / W, ...) each
        replicas = replicate(self.module, self.devices[: len(shards)])
        outputs = parallel_apply(replicas, shards, self.devices)
        return gather(outputs, self.output_device)


def train(args) -> list[torch.Tensor]:
    """Train with each batch cut across the devices; return the losses."""
    devices = " ".join(map(str, args.devices))
    job.put(f"devices: {devices} ({len(set(args.devices))} distinct)")
    torch.manual_seed(args.seed)
    train_set, test_set, net = make_task(args.samples)
    wrap = nn.DataParallel if args.real else MiniDataParallel
    model = wrap(net.to(args.devices[0]), args.devices)
    optimizer = torch.optim.SGD(net.parameters(), args.lr, 0.9)
    losses = []
    for epoch in range(args.epochs):
        generator = torch.Generator().manual_seed(args.seed + epoch)
        order = torch.randperm(len(train_set), generator=generator)
        for x, y in map(train_set.__getitem__, order.split(args.batch_size)):
            output = model(x)  # the labels go where the outputs are
            loss = nn.functional.cross_entropy(output, y.to(output.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        loss = torch.stack(losses).view(epoch + 1, -1)[-1].mean()
        job.finite(loss, f"{epoch=}")
        with torch.no_grad():
            hits = model(test_set[:][0]).argmax(dim=1).cpu() == test_set[:][1]
        job.put(f"{epoch=} {loss=:.4f} accuracy={hits.double().mean():.4f}")
    return losses


def parse_args(argv: list[str] | None = None):
    """Read the flags; refuse impossible values."""
    numbers = {"epochs": 2, "batch_size": 48, "samples": 1440, "seed": 0}
    parser = job.Flags(__doc__, **numbers, lr=0.05)
    num = torch.accelerator.device_count()
    kind = torch.accelerator.current_accelerator()
    gpus = ",".join(f"{kind}:{index}" for index in range(num))
    parser.add_argument("--devices", default=gpus if num > 1 else "cpu,cpu")
    parser.add_argument("--real", action="store_true", help="nn.DataParallel")
    args = parser.parse_args(argv)
    try:
        names = args.devices.split(",")
        args.devices = [torch.empty(0, device=d).device for d in names]
    except (AssertionError, RuntimeError, ValueError) as error:
        why = f"{args.devices or repr('')} cannot be used: {error}"
        job.refuse(f"--devices {why}".splitlines()[0])
    return args


if __name__ == "__main__":
    train(parse_args())
