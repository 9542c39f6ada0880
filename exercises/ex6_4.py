"""Two layers, split over all ranks.

Ranks: 1, 2, 4
Minutes: 25

A network computes `down(relu(up(x)))`. Its hidden features are divided among the ranks,
and some ranks may get more of them than others. Each rank holds:

- `up`, a linear layer from `x` to the rank's own hidden features: its part of the
  weight and of the bias.
- `down`, a linear layer from these hidden features to all outputs: its part of the
  weight, and the whole bias, which is the same on all ranks.
- `x` of shape `(B, D)`, the same on all ranks.

Return the output `(B, D_out)` of the whole network, on every rank. Then all ranks call
backward on it, with the same gradient. Afterwards, every rank must have the whole
network's gradients in `x.grad` and `down.bias.grad`. In `up.weight.grad`,
`up.bias.grad` and `down.weight.grad`, it must have the gradients of its own parts. Use
one all_reduce in the forward pass and one in the backward pass.

Hint 1: Each rank computes one term of the output. For which gradient does it also have
only one term?
Hint 2: Two functions of your own. One sums in forward and does nothing in backward:
every rank has the whole gradient of the output already. The other does nothing in
forward and sums in backward. The bias is added once.
Hint 3: `Join.apply(down_without_bias(up(Fork.apply(x)).relu())) + down.bias`, where
`Fork` and `Join` are `torch.autograd.Function`s with an all_reduce in `backward`, or in
`forward`.
"""


# %% stub
# - from torch.nn import functional as F
# %% solution
class Fork(torch.autograd.Function):
    """Forward: nothing. Backward: the sum over the ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient


class Join(torch.autograd.Function):
    """Forward: the sum over the ranks. Backward: nothing."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def ex6_4(x, up, down):
    """Return down(relu(up(x))) of the whole network, from this rank's parts."""
    hidden = up(Fork.apply(x)).relu()
    return Join.apply(F.linear(hidden, down.weight)) + down.bias


# %% check
CASES = {  # hidden features, batch, whether x needs a gradient
    "equal parts": (8, 5, True),
    "unequal parts": (6, 3, True),
    "one sample": (9, 1, True),
    "the first layers of a network": (8, 4, False),
    "a residual connection": (8, 4, True),
}


def part_of(whole, dim):
    return nn.Parameter(whole.detach().tensor_split(world_size, dim)[rank].clone())


def check(answer, case):
    calls = []
    spy(dist, "all_reduce", lambda tensor, *args, **kwargs: calls.append(tensor))
    for name, (hidden, batch, needs) in case.each(CASES):
        torch.manual_seed(hidden)
        one, two = nn.Linear(4, hidden), nn.Linear(hidden, 4)
        x, slope = torch.randn(batch, 4), torch.randn(batch, 4)
        up, down = nn.Linear(4, 1), nn.Linear(1, 4)
        up.weight, up.bias = part_of(one.weight, 0), part_of(one.bias, 0)
        down.weight = part_of(two.weight, 1)
        down.bias = nn.Parameter(two.bias.detach().clone())
        given, x = x.clone().requires_grad_(needs), x.requires_grad_(needs)
        own = down(up(x).relu())
        (own_x,) = torch.autograd.grad((own * slope).sum(), x) if needs else (None,)
        right = two(one(x).relu())
        bias, residual = down.bias.detach(), "residual" in name
        calls.clear()
        with Untouched(x=given, up=up, down=down):
            got = answer(given, up, down)
        forward = len(calls)
        compare(f"the output on rank {rank}", got, right, {
            "This is the rank's own summand.": own,
            "The bias is in it once for each rank.": right + (world_size - 1) * bias,
            "The bias is missing.": right - bias,
            "The ranks' summands were averaged.": (right - bias) / world_size + bias,
        }, 1e-4, 1e-5)  # fmt: skip
        ((right + x if residual else right) * slope).sum().backward()
        ((got + given if residual else got) * slope).sum().backward()
        judge("up.weight.grad", up.weight.grad, part_of(one.weight.grad, 0))
        judge("up.bias.grad", up.bias.grad, part_of(one.bias.grad, 0))
        judge("down.weight.grad", down.weight.grad, part_of(two.weight.grad, 1))
        judge("down.bias.grad", down.bias.grad, two.bias.grad)
        if needs:
            fault = "This is the rank's own summand: backward must sum."
            summand = {fault: own_x + slope * residual}
            judge("x.grad", given.grad, x.grad, summand)
        backward = len(calls) - forward
        if world_size > 1 and (forward, backward) != (1, 1 if needs else backward):
            raise Wrong(f"""all is right, with {forward} all_reduces forward and
                {backward} in backward; one each will do.""")


def judge(what, got, want, mistakes={}):
    """Compare a gradient; summing in both directions makes it W times too large."""
    want = want.detach()
    if world_size > 1:
        fault = "The output's gradient is whole on every rank: don't sum it up again."
        mistakes = mistakes | {fault: want * world_size}
        mistakes["The ranks' summands were averaged."] = want / world_size
    compare(f"{what} on rank {rank}", got, want, mistakes, 1e-4, 1e-5)
