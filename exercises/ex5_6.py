"""DDP, written by you.

Ranks: 1, 2, 4
Minutes: 45
Level: hard

The check calls `finish = ex5_6(model, bucket_size)` once on every rank. The ranks'
models have different weights. Your function gives all ranks rank 0's parameters and
buffers, installs hooks, and returns a function. Each step then calls `loss.backward()`
and `finish()`. After that, every gradient is the mean over the ranks. Do it as DDP
does:

- **Buckets.** Go through the trainable parameters from the last to the first. A bucket
  is full as soon as it holds `bucket_size` numbers or more; then the next one begins.
  Each bucket takes one `dist.all_reduce` of one flat tensor, with `async_op=True`.
- **Overlap.** A bucket leaves during backward, as soon as its last gradient is there
  and the buckets before it have left.
- **Order.** Ranks may compute their gradients in different orders, but the buckets must
  leave in the same order on all ranks.

Some parameters are frozen, and some are shared. All that are not frozen are used in
every step. All have one dtype.

Hint 1: Which hook tells you that a gradient is complete? When a bucket is full but the
one before is not, what must it do?
Hint 2: Note each parameter that is ready. After each, send as many buckets as can go:
those whose parameters are all ready, beginning with the first that has not left.
`finish` waits, copies the parts back, and prepares for the next step.
Hint 3: `weight.register_post_accumulate_grad_hook(on_ready)`; in `on_ready`: `while
len(works) < len(buckets) and ready.issuperset(buckets[len(works)]):` flatten with
`torch.cat`, start, append `(work, flat, bucket)`.
"""


# %% solution
def ex5_6(model, bucket_size):
    """Make model a replica whose gradients are averaged during backward.

    Returns finish(), to be called after each backward.
    """
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)

    buckets, ready, works = [[]], set(), []
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in reversed(trainable):
        if sum(other.numel() for other in buckets[-1]) >= bucket_size:
            buckets.append([])
        buckets[-1].append(weight)

    def on_ready(weight):
        ready.add(weight)
        while len(works) < len(buckets) and ready.issuperset(buckets[len(works)]):
            bucket = buckets[len(works)]  # the first that has not left
            flat = torch.cat([weight.grad.flatten() for weight in bucket])
            works.append((dist.all_reduce(flat, async_op=True), flat, bucket))

    def finish():
        for work, flat, bucket in works:
            work.wait()
            parts = flat.split([weight.numel() for weight in bucket])
            for weight, part in zip(bucket, parts, strict=True):
                weight.grad.copy_(part.view_as(weight) / dist.get_world_size())
        ready.clear()
        works.clear()

    for weight in trainable:
        weight.register_post_accumulate_grad_hook(on_ready)
    return finish


# %% check
class Net(nn.Module):
    """Four layers; some of them in an order that depends on the rank."""

    def __init__(self, r, kind):
        super().__init__()
        torch.manual_seed(100 + r)
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 2)
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
        self.register_buffer("scale", torch.rand(5) + 1)
        self.register_buffer("steps", torch.tensor(r))
        if kind == "frozen":
            self.a.requires_grad_(False)
        if kind == "tied":
            self.b.weight = self.a.weight
        self.backwards = kind == "order" and r % 2 == 1

    def forward(self, x):
        x = self.first(x).tanh() * self.scale
        order = (self.b, self.a) if self.backwards else (self.a, self.b)
        out = {layer: layer(x) for layer in order}
        return self.head(out[self.a].tanh() + out[self.b].sin())


CASES = {
    "small buckets": ("plain", 20),
    "one bucket for all": ("plain", 1000),
    "a bucket per weight": ("plain", 1),
    "frozen weights": ("frozen", 20),
    "tied weights": ("tied", 20),
    "another order of gradients on each rank": ("order", 20),
}


class Watch(Buckets):
    """Stand in for dist.all_reduce, which sends nothing but buckets."""

    def __call__(self, flat, *args, async_op=False, **kwargs):
        ordinal = f"all_reduce number {len(self.works) + 1} of this step"
        if not async_op:
            raise Wrong(f"{ordinal} has no async_op=True: backward would wait for it.")
        if len(self.works) == len(self.sizes):
            raise Wrong(f"{ordinal}: there are {len(self.sizes)} buckets only.")
        return self.send(flat, *args, **kwargs)


def sizes_of(weights, bucket_size):
    """Return how many numbers each bucket has."""
    sizes = [0]
    for weight in reversed(weights):
        if sizes[-1] >= bucket_size:
            sizes.append(0)
        sizes[-1] += weight.numel()
    return sizes


def gradients(r, kind, state, step):
    """Return the inputs and the gradients of a rank's own step, without DDP."""
    model = Net(r, kind)
    model.load_state_dict(state)
    x = torch.randn(3 + r, 4, generator=dice(10 * r + step))
    model(x).square().sum().backward()
    return x, {key: p.grad for key, p in model.named_parameters()}


def check(answer, case):
    for name, (kind, bucket_size) in case.each(CASES):
        model, state = Net(rank, kind), Net(0, kind).state_dict()
        weights = [weight for _, weight in trainable(model)]
        watch = Watch(sizes_of(weights, bucket_size), weights)
        own = {key: value.clone() for key, value in model.state_dict().items()}
        patch(dist, "all_reduce", watch)
        finish = answer(model, bucket_size)
        for key, value in [*model.named_parameters(), *model.named_buffers()]:
            what = f"before the first step, `{key}` on rank {rank}"
            mistakes = {"It is what it was; rank 0's should be there.": own[key]}
            compare(what, value.detach(), state[key], mistakes)
        if not callable(finish):
            raise Wrong(f"it returned {finish!r:.60}, not a function finish().")
        for step in range(3):
            play_step(model, finish, watch, step, (kind, state))


def play_step(model, finish, watch, step, task):
    """Run backward and finish; check what happened and what came out."""
    watch.begin()
    each = [gradients(r, *task, step) for r in range(world_size)]
    model.zero_grad(set_to_none=step != 1)
    model(each[rank][0]).square().sum().backward()
    num, when = len(watch.sizes), ("first", "second", "third")[step]
    if (left := len(watch.works)) < num:
        raise Wrong(f"""in the {when} step {left} of {num} buckets had left when
            backward ended.""")
    if num > 1 and watch.num_gradients(0) == watch.num_gradients():
        raise Wrong("""the first bucket left when all gradients were there; nothing
            overlaps.""")
    finish()
    if idle := watch.num_idle():
        raise Wrong(f"""finish() does not wait: {idle} of {num} all_reduces may still
            run.""")
    for key, weight in trainable(model):
        parts = [gradients[key] for _, gradients in each]
        what = f"after the {when} step, the gradient of `{key}` on rank {rank}"
        mistakes = {"This is its own gradient, not the mean.": parts[rank]}
        mistakes |= undivided(sum(parts))
        compare(what, weight.grad, sum(parts) / world_size, mistakes, 1e-4, 1e-5)
