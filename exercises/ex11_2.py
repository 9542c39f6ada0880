"""An evaluation that keeps nothing.

Ranks: 1
Minutes: 15

`batches` is a list of pairs: inputs `x`, of shape (samples, features), and classes `y`.
The batches are not all of one size. `model(x)` gives the logits of a batch, which are
large. Return two things:

- the mean loss over all samples, as a float (cross entropy);
- the predicted class of each sample, as one tensor of int64.

Evaluate as one should: dropout is off, and afterwards the model is in the mode in which
you found it. And mind the memory. Nothing may be kept for a backward, and when a
forward begins, no logits of an earlier batch may be alive.

Hint 1: Two calls are often taken for one another: which one turns dropout off, and
which one tells autograd to keep nothing?
Hint 2: Take from the logits what you need, the loss as a number and the classes, before
the next forward. What does `logits[:, 0]` keep alive?
Hint 3: A name lives until it is assigned anew, which is *after* the next forward:
`del logits` at the end of the loop's body.
"""


# %% solution
def ex11_2(model, batches):
    """Return the mean loss per sample, and the predicted classes."""
    training, total, classes = model.training, 0.0, []
    model.eval()
    with torch.no_grad():
        for x, y in batches:
            logits = model(x)
            total += F.cross_entropy(logits, y, reduction="sum").item()
            classes.append(logits.argmax(dim=1))
            del logits
    model.train(training)
    classes = torch.cat(classes)
    return total / len(classes), classes


# %% check
from torch.multiprocessing.reductions import StorageWeakRef

CASES = {  # sizes of the batches, and whether the model is in training
    "equal batches": ([8, 8, 8], True),
    "a small last batch": ([8, 8, 3], True),
    "a model that was in eval mode": ([8, 8], False),
    "one batch": ([5], True),
}


def check(answer, case):
    for name, (sizes, training) in case.each(CASES):
        model = nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 4))
        model.train(training)
        batches = [(torch.randn(n, 6), torch.randint(4, (n,))) for n in sizes]
        x, y = (torch.cat(parts) for parts in zip(*batches))
        model.eval()
        with torch.no_grad():
            logits = model(x)
        model.train(training)
        losses = F.cross_entropy(logits, y, reduction="none")
        kept, alive, held = [], [], []

        def before(*_):
            held.append(sum(not one.expired() for one in alive))

        def after(_, inputs, output):
            alive.append(StorageWeakRef(output.untyped_storage()))

        def keep(tensor):
            kept.append(tensor.nbytes)
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t)
        with model.register_forward_pre_hook(before), hooks:
            with model.register_forward_hook(after):
                mean, classes = unpack(answer(model, batches), 2, "a loss and classes")
        if kept:
            raise Wrong(f"""autograd keeps {len(kept)} tensors for a backward that never
                comes: eval() does not turn it off.""")
        if max(held) == 1:
            raise Wrong("""when a forward begins, the logits of the batch before are
                alive: a name still holds them, or a part of them.""")
        if max(held) > 1:
            raise Wrong(f"""when a forward begins, the logits of {max(held)} earlier
                batches are alive: take from them what you need at once.""")
        if not isinstance(mean, float):
            raise Wrong(f"the loss is a {type(mean).__name__}; it should be a float.")
        parts = [part.mean() for part in losses.split(sizes)]
        compare("the mean loss", mean, losses.mean().item(), {
            "This is the mean of the batches' means, which are not equally large.":
                (sum(parts) / len(parts)).item(),
            "This is the sum.": losses.sum().item(),
        }, rtol=1e-5)  # fmt: skip
        expect("the classes", classes, logits.argmax(1))
        if model.training != training:
            raise Wrong(f"the model was left with training={model.training}.")
