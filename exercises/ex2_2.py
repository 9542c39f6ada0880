"""Gather the outputs.

Ranks: 1
Minutes: 12

Each device has computed the output of its shard. The rest of the program expects
**one** output on one device, as if there had been no shards.

`ex2_2(outputs, device)` gets a list with the output of each device, in order, and the
device where the result belongs. An output is a tensor, or `None`, or a tuple or a
dictionary of outputs. It has the same structure on each device. Return one output of
this structure on `device`:

- Tensors are joined along their first dimension. They need not be equally long.
- Tensors without dimensions, such as a loss, become one vector with an element per
  device.
- `None` stays `None`.

Gradients must find their way back to each device.

Hint 1: What does your function do with a tuple? The same as with its elements, one by
    one.
Hint 2: Call yourself: for a dictionary, once per key, with the list of what the devices
    have under this key. Move tensors before you join them.
Hint 3: `torch.cat([t.to(device).reshape(-1, *t.shape[1:]) for t in outputs])` turns a
    scalar into a vector of one element, and leaves all other tensors as they are.
"""


# %% solution
def ex2_2(outputs, device):
    """Join the outputs of all devices on one."""
    head = outputs[0]
    if head is None:
        return None
    if isinstance(head, tuple):
        return tuple(ex2_2(list(parts), device) for parts in zip(*outputs))
    if isinstance(head, dict):
        return {key: ex2_2([o[key] for o in outputs], device) for key in head}
    tensors = [tensor.to(device) for tensor in outputs]
    return torch.cat(tensors) if head.dim() else torch.stack(tensors)


# %% check
def put(tensors):
    tensors = [t.to(f"vgpu:{i}") for i, t in enumerate(tensors)]
    return [t.requires_grad_() if t.is_floating_point() else t for t in tensors]


def shards(*sizes):
    return put([torch.randn(n, 3) for n in sizes])


def joined(tensors, device):
    whole = [t.detach().cpu() for t in tensors]
    return (torch.cat if whole[0].ndim else torch.stack)(whole).to(device)


def back(what, got, given):
    if not got.requires_grad:
        raise Wrong(f"{what} does not require grad: the way back is cut.")
    weights = torch.randn(got.shape)
    (got * weights.to(got.device)).sum().backward()
    parts = weights.split([len(t) if t.ndim else 1 for t in given])
    for i, (t, part) in enumerate(zip(given, parts, strict=True)):
        want = part.view(t.shape).to(t.device)
        expect(f"the gradient of {what} on device {i}", t.grad, want)
        t.grad = None


def check(answer, case):
    from allranks import vgpu

    vgpu.plug_in(4)
    first = torch.device("vgpu", 0)

    def ask(name, given, what="the output", want=None, device=first):
        case(name)
        got = answer(given, device)
        expect(what, got, want or joined(given, device))
        return got

    ask("shards of one size", shards(2, 2))
    ask("uneven shards", shards(3, 3, 1))
    given = shards(3, 3, 1)
    back("the output", ask("gradients", given), given)
    ask("on another device than the first", given, device=torch.device("vgpu", 2))
    ask("one device", shards(2))
    ask("labels: integers, one dimension", put([torch.arange(3), torch.arange(2)]))
    given, what = put(torch.tensor([1.5, 2.5, 4.0])), "the vector of losses"
    back(what, ask("a loss of each device", given, what), given)
    a, b = shards(2, 1), put(torch.tensor([1.0, 2.0]))
    logits, loss = joined(a, first), joined(b, first)
    got = ask("a tuple", list(zip(a, b)), "the tuple", (logits, loss))
    back("the tuple's first element", got[0], a)
    back("the tuple's second element", got[1], b)
    given = [({"logits": x, "loss": y}, None) for x, y in zip(a, b)]
    want = {"logits": logits, "loss": loss}, None
    got, _ = ask("a dictionary in a tuple, and None", given, "the tuple", want)
    back("`logits`", got["logits"], a)
    back("`loss`", got["loss"], b)
