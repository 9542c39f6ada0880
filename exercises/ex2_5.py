"""DataParallel's forward.

Ranks: 1
Minutes: 40
Level: hard

Now put the stages together: scatter, replicate, apply, gather. Write the forward pass
of `nn.DataParallel`.

`ex2_5(module, batch, devices)` gets a module whose parameters and buffers are all on
`devices[0]`, a batch on the CPU, and a list of devices. Return the output for the whole
batch, on `devices[0]`. The check compares it, and the gradients after
`loss.backward()`, with those of a single device.

- Cut the batch as `torch.chunk` does. If there are fewer shards than devices, the last
  devices do nothing.
- Compute each shard on its own device, with weights that are there. One device may wait
  for the other.
- After `loss.backward()`, the gradients are in `module`'s own parameters. Frozen
  parameters get none. Tied parameters stay tied.
- The module stays as it was: its parameters are the same objects, on the same device.
  If its weights change, the next call uses the **new** ones.
- What the first replica writes into its buffers, such as BatchNorm's running mean,
  stays in the module. What the other replicas write is lost.

You may use `torch.func.functional_call`, but not `nn.DataParallel` or `data_parallel`.

Hint 1: `copy.deepcopy(module).to(device)` makes a replica. After backward, where are
    its gradients?
Hint 2: Autograd records `p.to(device)` like any other operation, so backward moves the
    gradient back through it, and adds it to what the other devices sent. So give the
    module other tensors to compute with, rather than other parameters.
Hint 3: `functional_call(module, {name: t.to(device) for ...}, (shard,))` computes with
    these tensors, and then restores the module's own. `t.to` the device on which it
    already is returns `t` itself, so what the first replica writes stays.
"""


# %% solution
def ex2_5(module, batch, devices):
    """Return module(batch), computed on all devices, on the first one."""
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    outputs = []
    for device, shard in zip(devices, batch.chunk(len(devices))):
        replica = {name: tensor.to(device) for name, tensor in tensors.items()}
        output = torch.func.functional_call(module, replica, (shard.to(device),))
        outputs.append(output.to(devices[0]))
    return torch.cat(outputs)


# %% check
WHERE = []  # (device of the shard, device of the weight, samples) of each forward


class Spy(nn.Linear):
    """Compute a linear layer, and note on which device."""

    def forward(self, x):
        WHERE.append((str(x.device), str(self.weight.device), len(x)))
        if x.device != self.weight.device:
            raise Wrong(f"""a shard on {x.device} meets weights on {self.weight.device}:
                replicas need weights of their own device.""")
        return super().forward(x)


class Chain(nn.Sequential):
    """Run layers one after the other; stay on the device once handed to the answer."""

    given = None

    def to(self, *args, **kwargs):
        if Chain.given is self and str(args[0]) != "vgpu:0":
            raise Wrong(f"""you move the module itself to {args[0]}: the graph of the
                shards before, the optimizer and the caller need it where it is.""")
        return super().to(*args, **kwargs)


def plain():
    return Chain(Spy(3, 5), nn.Tanh(), nn.Linear(5, 2))


def frozen():
    module = plain()
    module[0].requires_grad_(False)
    return module


def tied():
    module = Chain(Spy(3, 3), nn.Tanh(), Spy(3, 3, bias=False))
    module[2].weight = module[0].weight
    return module


CASES = {  # the module, samples, devices
    "an even cut": (plain, 8, 4),
    "uneven shards": (plain, 7, 3),
    "fewer samples than devices": (plain, 2, 4),
    "5 samples on 4 devices": (plain, 5, 4),
    "one device": (plain, 3, 1),
    "frozen parameters": (frozen, 6, 2),
    "tied parameters": (tied, 6, 2),
}


def check(answer, case):
    from allranks import vgpu

    vgpu.plug_in(4)
    hand = "write the forward by hand."
    forbid(nn.parallel, ["data_parallel"], hand, "torch's own {}")
    forbid(nn.DataParallel, ["__init__"], hand, "nn.DataParallel")
    for name, (make, num_samples, num_devices) in case.each(CASES):
        step(answer, make(), num_samples, num_devices)
    case("weights that changed since the last call")
    module, devices = plain().to("vgpu:0"), [torch.device("vgpu", i) for i in range(2)]
    batch = torch.randn(4, 3)
    answer(module, batch, devices)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(1.0)
    want = copy.deepcopy(module)(batch.to("vgpu:0")).detach()
    expect("the output with the new weights", answer(module, batch, devices), want)
    case("BatchNorm's running mean")
    module, want = Chain(nn.BatchNorm1d(3), Spy(3, 2)).to("vgpu:0"), nn.BatchNorm1d(3)
    batch = torch.randn(6, 3)
    answer(module, batch, devices)
    want(batch[:3])
    for key, value in want.state_dict().items():
        got = module[0].state_dict()[key].cpu()
        expect(f"`{key}`, after the first shard,", got, value.detach())
    case("evaluation")
    module.eval()
    want = copy.deepcopy(module)(batch.to("vgpu:0")).detach()
    expect("the output", answer(module, batch, devices), want)


def step(answer, module, num_samples, num_devices):
    """Compare a step on one device with one on all: outputs and gradients."""
    batch, alone = torch.randn(num_samples, 3), copy.deepcopy(module)
    devices = [torch.device("vgpu", i) for i in range(num_devices)]
    Chain.given = module.to(devices[0])
    before = dict(module.named_parameters())
    WHERE.clear()
    got, output = answer(module, batch, devices), alone(batch)
    seen = {shard: num for shard, _, num in WHERE if shard.startswith("vgpu")}
    expect("the output", got, output.detach().to(devices[0]))
    sizes = {str(d): len(s) for d, s in zip(devices, batch.chunk(num_devices))}
    if seen != sizes:
        lists = [", ".join(f"{n} on {d}" for d, n in s.items()) for s in (seen, sizes)]
        raise Wrong("the samples on each device: {}; it should be {}.".format(*lists))
    weights, first = torch.randn_like(output), copy.deepcopy(module)
    (output * weights).sum().backward()
    shard, share = (t.chunk(num_devices)[0].to(devices[0]) for t in (batch, weights))
    (first(shard) * share).sum().backward()
    if not got.requires_grad:
        raise Wrong("the output has no graph: nothing can be trained with it.")
    (got * weights.to(devices[0])).sum().backward()
    first, now = dict(first.named_parameters()), dict(module.named_parameters())
    for name, want in alone.named_parameters():
        if now.get(name) is not before[name]:
            raise Wrong(f"`{name}` of the module is another object after your call.")
        if now[name].device != devices[0]:
            raise Wrong(f"`{name}` of the module is on {now[name].device} now.")
        grad = want.grad if want.grad is None else want.grad.to(devices[0])
        mistake = {"This is the first shard's alone.": first[name].grad}
        what = f"the gradient of `{name}`"
        compare(what, now[name].grad, grad, mistake, rtol=1e-4, atol=1e-5)
