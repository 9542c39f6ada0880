"""Chapter 11 - Where memory goes: keep it in the CPU's memory.

Run it (no GPU needed):
    python scripts/ch11_offload.py
"""

import job  # first, since importing torch takes seconds

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from ch11_ledger import Ledger, parts_of
from ch11_memory import make, parse_args

# Bytes per second, one way: PCI-SIG's 32 GT/s x 16 lanes x 128/130, and half
# of the 900 GB/s in NVIDIA's white paper on Grace Hopper. FLOP/s: 40 % of the
# 989e12 in bf16 on the H100 SXM's data sheet. All read in November 2026.
LINKS, FLOPS = {"PCIe 5 x16": 63e9, "NVLink-C2C": 450e9}, 400e12


class Sent:
    """The copy of a storage in the CPU's memory."""

    def __init__(self, flat: torch.Tensor) -> None:
        self.copy, self.version = flat.to("cpu", copy=True), flat._version
        self.users, self.back = 0, None  # back: on the device once more


class Offload(saved_tensors_hooks):
    """Send what autograd keeps to the CPU's memory; fetch it in backward.

    Weights stay, for they are on the device anyway. What several operations
    keep is sent once, and fetched once.
    """

    def __init__(self, params) -> None:
        self.weights = {p.untyped_storage().data_ptr() for p in params}
        self.sent, self.bytes = WeakIdKeyDictionary(), 0
        super().__init__(self.send, self.fetch)

    def send(self, tensor: torch.Tensor) -> tuple:
        """Return what it takes to have the tensor again."""
        storage, tensor = tensor.untyped_storage(), tensor.detach()
        if storage.data_ptr() in self.weights:
            return None, tensor, ()
        sent = self.sent.get(storage)
        if not sent or sent.version != tensor._version:  # or it has changed
            size = storage.nbytes() // tensor.itemsize
            sent = Sent(tensor.as_strided((size,), (1,), 0))
            self.sent[storage] = sent
            self.bytes += sent.copy.nbytes
        sent.users += 1
        view = tensor.size(), tensor.stride(), tensor.storage_offset()
        return sent, tensor.device, view

    def fetch(self, packed: tuple) -> torch.Tensor:
        """Return the tensor; the last user lets it go from the device."""
        sent, where, view = packed  # where: a weight, or the device
        if not sent:
            return where
        if sent.back is None:
            sent.back = sent.copy.to(where, copy=True)
        tensor = sent.back.as_strided(*view)
        sent.users -= 1
        if not sent.users:
            sent.back = None
        return tensor


def gradients(net, x, y, hooks, note=lambda _: None) -> list[torch.Tensor]:
    """Compute gradients, while the hooks keep what backward needs."""
    net.zero_grad()
    with hooks:
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    note("loss")
    loss.backward()
    return [p.grad for p in net.parameters()]


def main(args) -> None:
    """Keep no activations on the device: by our hooks, and by torch's."""
    net, optimizer, x, y = make(args)
    ledger = Ledger(parts_of(net), optimizer)
    right = gradients(net, x, y, ledger.watch(), ledger.note)
    kept = dict(ledger.rows)["loss"]["activations"]
    ours, theirs, sent = Offload(net.parameters()), save_on_cpu(), []
    pack = theirs.pack_hook
    theirs.pack_hook = lambda t: sent.append(t.nbytes) or pack(t)
    for hooks in ours, theirs:
        if not all(map(torch.equal, gradients(net, x, y, hooks), right)):
            job.refuse(f"{hooks}: other gradients: that is a bug")
    job.put("all gradients are equal, bit for bit")
    job.put(f"activations kept: {kept:,} bytes")
    job.put(f"sent to the CPU's memory: {ours.bytes:,} bytes by us")
    job.put(f"sent by torch: {sum(sent):,}, also weights, and some twice")
    for name, rate in LINKS.items():
        # A layer's forward hides it if 32 width / rate <= 24 width^2 / FLOPS:
        # per token 16 numbers of 2 bytes, and 24 operations, per width.
        width = 32 / 24 * FLOPS / rate
        there = f"{ours.bytes / rate * 1e6:.0f} us each way"
        least = f"hidden if the width is at least {width:,.0f}"
        job.put(f"{name}: {there}, {least}")


if __name__ == "__main__":
    main(parse_args(None, __doc__))
