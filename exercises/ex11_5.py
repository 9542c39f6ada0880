"""Fit it.

Ranks: 1
Minutes: 60
Level: hard

A virtual GPU has 64 MiB. The step below runs out of memory on it, with each of the
check's models. Write `ex11_5(net, make, x, y)`, which takes the same step and fits:

    optimizer = make(net.parameters())
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()

`net(x)` runs `net.first`, an embedding; then each of `net.blocks`; `net.norm`; and
`net.head`, a linear layer to the words. `x` and `y` are one sample, of shape (tokens,).
In a block, each token sees those before it, so the sample cannot be cut. `make` takes
parameters and returns an optimizer that updates each of them on its own.

- One model has many words, one many layers, one many weights, and one has all three.
  Your function has to fit them all.
- The weights afterwards, and the loss that you return as a float, are those of the step
  above.
- You may spend at most 1.4 times its operations. The check tells you what you took.

Hint 1: What fills the memory of each model: logits, activations, or gradients? There is
a means for each of the three, and they don't get into each other's way.
Hint 2: Checkpoint each block. Cut the tokens before the head, and checkpoint each
chunk's loss. Let each weight step as soon as its gradient is there.
Hint 3: For each parameter `p`, `optimizer = make([p])`, and a hook with
`p.register_post_accumulate_grad_hook`, which calls `optimizer.step()` and
`optimizer.zero_grad()`. Chunks of 64 tokens are small enough.
"""


# %% solution
def ex11_5(net, make, x, y):
    """Take one step in 64 MiB; return the loss."""
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    again = partial(checkpoint, use_reentrant=False)

    def step(optimizer, parameter):
        optimizer.step()
        optimizer.zero_grad()

    def loss_of(hidden, words):
        logits = net.head(net.norm(hidden))
        return F.cross_entropy(logits, words, reduction="sum")

    hooks = [
        p.register_post_accumulate_grad_hook(partial(step, make([p])))
        for p in net.parameters()
    ]
    hidden, total = net.first(x), 0
    for block in net.blocks:
        hidden = again(block, hidden)
    for chunk in zip(hidden.split(64), y.split(64)):
        total = total + again(loss_of, *chunk)
    loss = total / len(y)
    loss.backward()
    for hook in hooks:
        hook.remove()
    return loss.item()


# %% check
class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        places = torch.arange(1, len(x) + 1, device=x.device)
        x = 0.9 * x + 0.1 * x.cumsum(0) / places[:, None]  # the mean so far
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, dim, layers, words):
        super().__init__()
        self.first = nn.Embedding(words, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, words)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


CASES = {  # width, layers, words, tokens
    "many words": (32, 1, 8192, 1900),
    "many layers": (64, 40, 256, 600),
    "many weights": (256, 16, 256, 16),
    "all three": (128, 20, 4096, 500),
}
MiB = 2**20


def plain(net, make, x, y):
    optimizer = make(net.parameters())
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def run(function, given, make, x, y, memory):
    """Return the loss, the weights, the peak, and the operations as seconds."""
    from allranks import vgpu

    costs = vgpu.Costs(memory=1e30, latency_s=0)  # arithmetic alone takes time
    with vgpu.plugged_in(1, memory, costs):
        net = copy.deepcopy(given).to("vgpu:0")
        x, y = x.to("vgpu:0"), y.to("vgpu:0")
        vgpu.clear_events()
        torch.vgpu.reset_peak_memory_stats()
        loss = function(net, make, x, y)
        seconds = sum(e.end_s - e.start_s for e in vgpu.events() if not e.source)
        weights = {name: p.detach().cpu() for name, p in net.named_parameters()}
        return loss, weights, torch.vgpu.max_memory_allocated(), seconds


def check(answer, case):
    def make(parameters):
        return torch.optim.SGD(parameters, lr=0.5, foreach=False)

    for name, (dim, layers, words, tokens) in case.each(CASES):
        torch.manual_seed(0)
        net = Net(dim, layers, words)
        x, y = torch.randint(words, (2, tokens))
        want, right, most, once = run(plain, net, make, x, y, "1 GiB")
        assert most > 64 * MiB
        loss, weights, peak, seconds = run(answer, net, make, x, y, "64 MiB")
        expect("the loss", loss, want, rtol=1e-4)
        for key, before in net.named_parameters():
            step, mine = right[key] - before, weights[key] - before
            if not mine.any():
                raise Wrong(f"{key} did not move.")
            off = (mine - step).norm() / step.norm()
            if off > 1e-3:
                raise Wrong(f"""{key} went another way: its step is off by {off:.2g} of
                    its length.""")
        if seconds > 1.4 * once:
            raise Wrong(f"""it fits, in {peak / MiB:.0f} MiB, but takes
                {seconds / once:.2f} times the operations.""")
        took = f"{peak / MiB:.0f} of 64 MiB, {seconds / once:.2f} × the operations"
        case.names[-1] = f"{name} ({took})"
