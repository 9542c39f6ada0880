"""Compute twice instead of keeping.

Ranks: 1
Minutes: 30

Write activation checkpointing yourself, as a `torch.autograd.Function`.
`ex11_3(block, x)` returns `block(x)`, and backward gives all gradients, bit for bit as
without a checkpoint. In between, autograd keeps `x` and nothing else of the block.

- The block runs twice: in forward, and again in backward.
- It may contain dropout. The second run throws the same dice as the first, and when
  backward is over, the global generator is where it was before backward.
- Some of its weights may be frozen, or `x` may need no gradient, as the output of
  frozen embeddings doesn't. All that needs a gradient gets one.

`torch.utils.checkpoint` is not allowed here.

Hint 1: Which tensors must `apply` be given, so that autograd asks your function for
their gradients? If `x` needs none, and the weights are not among them, it never asks.
Hint 2: In forward, a Function keeps only what you tell it: `ctx.save_for_backward(x)`
and `torch.get_rng_state()`. In backward, use `x.detach()`, and `torch.enable_grad()`.
Hint 3: `torch.autograd.grad(y, inputs, grad)` gives the gradients of those inputs that
need one. Return one value for each input of forward, None for the others.
"""


# %% solution
def ex11_3(block, x):
    """Run the block; keep only its input, and run it again in backward."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, *weights):
            ctx.save_for_backward(x)
            ctx.state = torch.get_rng_state()
            return block(x)

        @staticmethod
        def backward(ctx, grad):
            needs = ctx.needs_input_grad
            (x,) = ctx.saved_tensors
            x = x.detach().requires_grad_(needs[0])
            now = torch.get_rng_state()
            torch.set_rng_state(ctx.state)
            with torch.enable_grad():
                y = block(x)
            torch.set_rng_state(now)
            wanted = [t for t, need in zip((x, *weights), needs) if need]
            grads = iter(torch.autograd.grad(y, wanted, grad))
            return tuple(next(grads) if need else None for need in needs)

    weights = list(block.parameters())
    return Again.apply(x, *weights)


# %% check
import torch.utils.checkpoint

CASES = {  # dropout, the index of a frozen layer, whether x needs a gradient, blocks
    "one block": (0.0, None, True, 1),
    "three blocks": (0.0, None, True, 3),
    "dropout": (0.5, None, True, 1),
    "dropout in three blocks": (0.5, None, True, 3),
    "a frozen layer": (0.0, 0, True, 1),
    "an input without a gradient": (0.0, None, False, 1),
}


def build(dropout):
    layers = nn.Linear(6, 24), nn.GELU(), nn.Dropout(dropout), nn.Linear(24, 6)
    return nn.Sequential(*layers)


def check(answer, case):
    names = "checkpoint", "checkpoint_sequential"
    forbid(torch.utils.checkpoint, names, "write it yourself.")
    for name, (dropout, frozen, needs, num) in case.each(CASES):
        blocks = [build(dropout) for _ in range(num)]
        if frozen is not None:
            blocks[0][frozen].requires_grad_(False)
        given, runs, kept = torch.randn(5, 6), [], {}

        def train(run):
            torch.manual_seed(7)
            x = given.clone().requires_grad_(needs)
            for block in blocks:
                block.zero_grad()
            y = x
            for block in blocks:
                y = run(block, y)
            if not torch.is_tensor(y) or not y.requires_grad:
                raise Wrong("""backward stops at the block: its output needs no
                    gradient, though the block's weights do.""")
            before = torch.get_rng_state()
            yield y
            y.square().sum().backward()
            weights = {
                f"block {i}, {name}": p.grad
                for i, block in enumerate(blocks)
                for name, p in block.named_parameters()
            }
            yield weights | ({"x": x.grad} if needs else {}), before

        plain = train(lambda block, y: block(y))
        output, (grads, _) = next(plain).detach().clone(), next(plain)
        grads = {key: g if g is None else g.clone() for key, g in grads.items()}

        def keep(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        for block in blocks:
            block.register_forward_pre_hook(lambda *_: runs.append(1))
        mine = train(answer)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            y = next(mine)
        expect("the output", y.detach(), output)
        own = {p.untyped_storage().data_ptr() for b in blocks for p in b.parameters()}
        size = sum(s.nbytes() for key, s in kept.items() if key not in own)
        if size > num * given.nbytes:
            raise Wrong(f"""autograd keeps {size} bytes for backward; the inputs of the
                blocks are {num * given.nbytes}.""")
        first = len(runs)
        got, before = next(mine)
        second = len(runs) - first
        if (first, second) != (num, num):
            raise Wrong(f"""{num} blocks ran {first} times in forward and {second} times
                in backward.""")
        if not torch.equal(torch.get_rng_state(), before):
            raise Wrong("backward leaves the global generator somewhere else.")
        for key, want in grads.items():
            dice = " It threw other dice in backward." if dropout else ""
            if want is None and got[key] is not None:
                raise Wrong(f"{key} is frozen, and now it has a gradient.")
            if want is not None and got[key] is None:
                raise Wrong(f"{key} has no gradient; it should have one.")
            if want is not None and not torch.equal(got[key], want):
                raise Wrong(f"the gradient of {key} is not what it is without.{dice}")
