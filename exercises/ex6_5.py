"""1F1B, run by you.

Ranks: 1, 2, 4
Minutes: 45
Level: hard

Each rank holds one stage of a network. `pieces` is the list of the micro-batches `(x,
y)`. All ranks get the same list, but only rank 0 uses `x` and only the last rank uses
`y`. `order` lists what this rank has to do, step by step: `"F2"` is the forward pass of
micro-batch 2, `"B2"` its backward pass. The order may come from 1F1B, GPipe or another
schedule. The orders of all ranks match, so nobody waits for a message that is never
sent. The tensors between stages have the shape `(len(x), width)` and are float32.

After the call, each stage must have the gradients of one loss: the mean of
`cross_entropy` over all samples of all micro-batches. The micro-batches have unequal
sizes. Return this loss as a float on the last rank, and None on the others.

Take care with `dist.send`. Under 1F1B, a rank sends an activation down while its
neighbor sends a gradient up. With `dist.send`, each of the two would wait for the
other forever.

Hint 1: What must be kept from a forward pass until its backward? With what does a
stage's backward begin, where there is no loss?
Hint 2: `F`: receive (or take x), let the received tensor require a gradient, run the
stage, start a send with `isend`. `B`: receive the gradient of the output, call
`output.backward(gradient)`, send the gradient of the input. Wait for all sends at the
end.
Hint 3: On the last rank `output = F.cross_entropy(output, y) * len(y) / total`, whose
backward takes None. Keep `held[i] = piece, output`; `sends.append(dist.isend(...))`.
"""


# %% solution
def ex6_5(stage, order, pieces, width):
    """Run this rank's part of a pipeline step; return the loss on the last."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    total = sum(len(y) for _, y in pieces)
    held, sends, loss = {}, [], 0.0
    for work in order:
        i = int(work[1:])
        if work[0] == "F":
            piece, y = pieces[i]
            if rank > 0:
                piece = torch.empty(len(y), width)
                dist.recv(piece, rank - 1)
                piece.requires_grad_()
            output = stage(piece)
            if rank < last:
                sends.append(dist.isend(output.detach(), rank + 1))
            else:
                output = F.cross_entropy(output, y) * len(y) / total
                loss += output.item()
            held[i] = piece, output
        else:
            piece, output = held.pop(i)
            gradient = None  # a loss begins with 1 by itself
            if rank < last:
                gradient = torch.empty_like(output)
                dist.recv(gradient, rank + 1)
            output.backward(gradient)
            if rank > 0:
                sends.append(dist.isend(piece.grad, rank - 1))
    for send in sends:
        send.wait()
    return loss if rank == last else None


# %% check
from allranks.topics.pipelines import sums as pipelines

WIDTH = 5
CASES = {  # the order on each rank, the sizes of the micro-batches
    "one micro-batch": ("1F1B", [4]),
    "GPipe": ("GPipe", [3, 3, 3]),
    "1F1B": ("1F1B", [3] * 6),
    "1F1B with unequal micro-batches": ("1F1B", [4, 4, 4, 4, 1]),
    "fewer micro-batches than ranks": ("1F1B", [2, 3]),
    "backward from the last to the first": ("reverse", [2, 1, 3]),
}


def orders(kind, num):
    """What each rank does."""
    if kind == "1F1B":
        return pipelines.one_f_one_b(world_size, num)
    found = pipelines.gpipe(world_size, num)
    return found if kind == "GPipe" else [o[:num] + o[num:][::-1] for o in found]


def stages():
    """The same network on all ranks, in its stages."""
    torch.manual_seed(11)
    widths = [6, *[WIDTH] * (world_size - 1), 3]
    pairs = zip(widths, widths[1:])
    return [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairs]


def check(answer, case):
    for name, (kind, sizes) in case.each(CASES):
        whole, mine = stages(), stages()[rank]
        pieces = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in sizes]
        logits = [nn.Sequential(*whole)(x) for x, _ in pieces]
        inputs = [nn.Sequential(*whole[:rank])(x) for x, _ in pieces]
        facts = losses(logits, [y for _, y in pieces])
        each = {text: gradient(whole[rank], loss) for text, loss in facts.items()}
        log, order = [], orders(kind, len(sizes))[rank]

        def note(module, given, output, log=log, inputs=inputs):
            same = [x.shape == given[0].shape for x in inputs]
            found = [
                i for i, x in enumerate(inputs)
                if same[i] and torch.allclose(x, given[0], atol=1e-5)
            ]  # fmt: skip
            number = f"{found[0]}" if found else "?"
            log.append(f"F{number}")
            if output.requires_grad:  # else there is no way back, and no B
                output.register_hook(lambda grad: log.append(f"B{number}"))

        mine.register_forward_hook(note)
        loss = answer(mine, list(order), [(x.clone(), y) for x, y in pieces], WIDTH)
        got = grads(mine, f"on rank {rank}, `{{}}` has no gradient after the call.")
        want = each.pop("right")
        compare(f"the gradient of rank {rank}'s stage", got, want, each, 1e-4, 1e-6)
        if log != order:
            raise Wrong(f"""the gradients are right, but rank {rank} worked in the order
                {" ".join(log)}; its order was {" ".join(order)}.""")
        if rank < world_size - 1 and loss is not None:
            raise Wrong(f"rank {rank} returned {loss!r:.40}; only the last has a loss.")
        if rank == world_size - 1:
            values = {text: value.item() for text, value in facts.items()}
            want = values.pop("right")
            compare("the loss on the last rank", loss, want, values, 1e-5)


def losses(logits, labels):
    """The mean over all samples, and what mistakes make of it."""
    sums = [F.cross_entropy(a, b, reduction="sum") for a, b in zip(logits, labels)]
    means = [s / len(b) for s, b in zip(sums, labels)]
    return {
        "right": sum(sums) / sum(map(len, labels)),
        "The micro-batches' means are added up, and divided by nothing.": sum(means),
        "Each micro-batch's mean weighs the same, however small it is.":
            sum(means) / len(means),
        "The sums of the losses are divided by nothing.": sum(sums),
        "This is the last micro-batch only.": means[-1],
    }  # fmt: skip
