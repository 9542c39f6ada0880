"""A loss whose logits never exist.

Ranks: 1
Minutes: 25

`head` is a linear layer from the model's width d to V words, and V is large. Write
`loss = ex11_4(hidden, head, targets, size)`. It returns the mean cross entropy of the N
tokens in `hidden`, of shape (N, d), for `targets`, of shape (N,). `loss.backward()`
gives `hidden` and the head their gradients.

- A target of −100 does not count, as in `F.cross_entropy`: neither in the sum nor in
  the number by which it is divided. At least one target counts.
- At no time, from the beginning of forward to the end of backward, may logits (or
  probabilities, or gradients of logits) of more than 4 · `size` tokens be in memory.

N need not be a multiple of `size`. You may use `torch.utils.checkpoint`.

Hint 1: Cut `hidden` and `targets` with `split(size)`. What does autograd keep of each
chunk, if you only add up the losses?
Hint 2: The log-probabilities of each, so all of them are in memory when backward
begins. A checkpoint around each chunk keeps only the chunk of `hidden`.
Hint 3: Add up sums, with `reduction="sum"`, and divide once, by
`(targets != -100).sum()`.
"""


# %% solution
def ex11_4(hidden, head, targets, size):
    """Return the mean loss of the tokens that count, a chunk at a time."""
    from torch.utils.checkpoint import checkpoint

    def loss_of(hidden, targets):
        return F.cross_entropy(head(hidden), targets, reduction="sum")

    total = 0
    for chunk in zip(hidden.split(size), targets.split(size)):
        total = total + checkpoint(loss_of, *chunk, use_reentrant=False)
    return total / (targets != -100).sum()


# %% check
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WORDS, DIM = 500, 6


class Rows(TorchDispatchMode):
    """Count the rows of V numbers that are alive, after each operation."""

    def __init__(self):
        super().__init__()
        self.alive, self.most = {}, 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        for found in tree_leaves(result):
            if (
                torch.is_tensor(found)
                and found.shape[-1:] == (WORDS,)
                and found.ndim > 1
            ):
                storage = found.untyped_storage()
                rows = storage.nbytes() // (WORDS * found.element_size())
                if rows != DIM:  # the weight is (V, d), and may be transposed
                    self.alive[storage.data_ptr()] = StorageWeakRef(storage), rows
        self.alive = {k: v for k, v in self.alive.items() if not v[0].expired()}
        self.most = max(self.most, sum(rows for _, rows in self.alive.values()))
        return result


CASES = {  # tokens, size, tokens that do not count
    "a multiple of the size": (64, 8, []),
    "not a multiple": (67, 8, []),
    "tokens that don't count": (67, 8, [0, 3, 4, 20, 66]),
    "a chunk of which none counts": (64, 8, range(16, 24)),
    "all but one don't count": (40, 8, range(1, 40)),
    "one chunk": (7, 8, []),
}


def check(answer, case):
    for name, (num, size, ignored) in case.each(CASES):
        head = nn.Linear(DIM, WORDS).double()
        targets = torch.randint(WORDS, (num,))
        targets[list(ignored)] = -100
        given = torch.randn(num, DIM, dtype=torch.float64)

        def grads(loss_of):
            head.zero_grad()
            hidden = given.clone().requires_grad_()
            loss = loss_of(hidden * 1.0)
            if not torch.is_tensor(loss) or loss.shape != ():
                raise Wrong(f"it returned {loss!r:.60}, not a loss.")
            yield loss.detach().clone()
            (3 * loss).backward()
            named = {
                "hidden": hidden,
                "head.weight": head.weight,
                "head.bias": head.bias,
            }
            for what, tensor in named.items():
                if tensor.grad is None:
                    raise Wrong(f"{what} has no gradient.")
            yield {what: tensor.grad.clone() for what, tensor in named.items()}

        want, right = grads(lambda h: F.cross_entropy(head(h), targets))
        with Rows() as rows:
            got, mine = grads(lambda h: answer(h, head, targets, size))
        losses = F.cross_entropy(head(given), targets, reduction="none").detach()
        means = [
            part[which != -100].mean() if (which != -100).any() else torch.tensor(0.0)
            for part, which in zip(losses.split(size), targets.split(size))
        ]
        compare("the loss", got.item(), want.item(), {
            "This is divided by all tokens, also those that don't count.":
                losses.mean().item(),
            "This is the mean of the chunks' means, which don't count equally many.":
                (sum(means) / len(means)).item(),
            "This is the sum.": losses.sum().item(),
        })  # fmt: skip
        for what, tensor in right.items():
            expect(f"the gradient of {what}", mine[what], tensor, rtol=1e-9, atol=1e-12)
        if rows.most > 4 * size:
            raise Wrong(f"""{rows.most} rows of {WORDS} numbers were in memory at one
                time; {4 * size} are allowed.""")
