"""Chapter 11 - Where memory goes: a ledger of one training step.

Run it (no GPU needed):
    python scripts/ch11_ledger.py
"""

import job  # first, since importing torch takes seconds

from collections import Counter
from functools import partial

import torch
from torch.autograd.graph import saved_tensors_hooks

from ch11_memory import make, parse_args, predict, step


class Saved:
    """A tensor that autograd keeps for backward, counted until it is freed."""

    def __init__(self, tensor: torch.Tensor, ledger: "Ledger") -> None:
        self.tensor, self.ledger = tensor.detach(), ledger
        ledger.count(tensor.untyped_storage(), 1)

    def __del__(self) -> None:
        self.ledger.count(self.tensor.untyped_storage(), -1)


class Ledger:
    """Write down the bytes of each kind, after each part of a step.

    parts   {name: modules}, in the order of forward: together, the model
    rows    (moment, {kind: bytes})
    """

    def __init__(self, parts: dict, optimizer) -> None:
        self.rows, self.users, self.activations = [], Counter(), 0
        self.optimizer, self.params = optimizer, {}  # keys: tied count once
        for name, modules in parts.items():
            own = [p for module in modules for p in module.parameters()]
            self.params |= dict.fromkeys(own)
            note = partial(self.note, f"forward {name}")
            modules[-1].register_forward_hook(note)
            for p in own:
                ready = partial(self.ready, f"backward {name}", own)
                p.register_post_accumulate_grad_hook(ready)
        self.weights = {p.untyped_storage().data_ptr() for p in self.params}

    def count(self, storage: torch.UntypedStorage, change: int) -> None:
        """Add a storage at its first user; remove it at its last."""
        pointer = storage.data_ptr()
        if pointer in self.weights:  # kept as well, but counted already
            return
        before = self.users[pointer]
        self.users[pointer] += change
        if not before or not self.users[pointer]:
            self.activations += change * storage.nbytes()

    def watch(self) -> saved_tensors_hooks:
        """Return a context: what autograd keeps in it is counted."""
        keep, give = (lambda t: Saved(t, self)), (lambda saved: saved.tensor)
        return saved_tensors_hooks(keep, give)

    def ready(self, moment: str, own: list, _) -> None:
        """Write a row when the last gradient of a part is there."""
        if all(p.grad is not None for p in own):
            self.note(moment)

    def note(self, moment: str, *_) -> None:
        """Write a row: what there is now."""
        grads = [p.grad for p in self.params if p.grad is not None]
        states = [t for s in self.optimizer.state.values() for t in s.values()]
        row = {
            "weights": sum(p.nbytes for p in self.params),
            "gradients": sum(g.nbytes for g in grads),
            "optimizer": sum(t.nbytes for t in states if torch.is_tensor(t)),
            "activations": self.activations,
        }
        self.rows.append((moment, row | {"sum": sum(row.values())}))


def parts_of(net) -> dict:
    """Name the parts of a GPT."""
    blocks = {f"block {i}": [block] for i, block in enumerate(net.blocks)}
    first, last = [net.bytes, net.positions], [net.norm, net.head]
    return {"embeddings": first, **blocks, "head": last}


def main(args) -> None:
    """Print the ledger of the second step, when Adam has its state."""
    net, optimizer, x, y = make(args)
    ledger = Ledger(parts_of(net), optimizer)
    for _ in range(2):
        ledger.rows.clear()
        with ledger.watch():
            step(net, optimizer, x, y, ledger.note)
    kinds = "".join(f"{kind:>12}" for kind in ledger.rows[0][1])
    job.put(f"{'MB':19}{kinds}")
    every = max(1, args.layers // 3)  # a row for each, or for every so many
    for moment, row in ledger.rows:
        *_, name = moment.split()
        if not name.isdigit() or int(name) % every == 0:
            numbers = "".join(f"{v / 1e6:12.2f}" for v in row.values())
            job.put(f"{moment:19}{numbers}")
    moment, row = max(ledger.rows, key=lambda one: one[1]["sum"])
    share = f"{row['activations'] / row['sum']:.0%} of it activations"
    job.put(f"the peak is at: {moment}, {row['sum']:,} bytes, {share}")
    most = {k: max(r[k] for _, r in ledger.rows) for k in row}
    gaps = [most[k] - v for k, v in predict(args).items() if k in most]
    job.put(f"largest difference from the formula: {max(gaps, key=abs)} bytes")


if __name__ == "__main__":
    main(parse_args(doc=__doc__))
