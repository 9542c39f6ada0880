"""Chapter 11 - Where memory goes: a step in bytes, by formula and by torch.

Run it (no GPU needed):
    python scripts/ch11_memory.py
"""

import job  # first, since importing torch takes seconds

from collections import Counter

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from tasks import GPT, cut, read_text

HEADS = 4


def predict(args) -> dict[str, int]:
    """Return the bytes of each kind, by formula."""
    dim, layers, words = args.width, args.layers, args.words
    tokens = args.batch_size * args.tokens  # of the whole batch
    numbers = (2 * words + args.tokens + 2) * dim + words  # outside blocks
    numbers += layers * (12 * dim + 13) * dim  # matrices, biases, two norms
    # A block keeps for each token: inputs of two norms, qkv, mix and up (5),
    # queries, keys, values (3), gelu's input and output (8) times the width,
    # and two numbers for each norm, one for each head.
    kept = layers * (16 * dim + 4 + HEADS) + 2 * dim + 2
    logits = 4 * tokens * words  # kept as log-probabilities
    batch, places = 16 * tokens, 8 * args.tokens  # x, y and places: int64
    found = {
        "weights": 4 * numbers,
        "gradients": 4 * numbers,
        "optimizer": 8 * numbers + 4 * (12 * layers + 6),  # step counters
        "activations": 4 * tokens * kept + logits + batch + places + 4,
    }
    # Backward begins with two gradients of the logits beside what is kept;
    # the optimizer ends with two copies of the head beside the gradients.
    begin = found["activations"] + 2 * logits
    end = found["gradients"] + batch + 4 * dim * (2 * words + 1)
    peak = found["weights"] + found["optimizer"] + max(begin, end)
    return found | {"peak": peak}


def make(args) -> tuple:
    """Return a GPT that knows so many words, its optimizer, and a batch."""
    torch.manual_seed(0)
    net = GPT(args.width, args.layers, HEADS, args.tokens)
    net.bytes = nn.Embedding(args.words, args.width)
    net.head = nn.Linear(args.width, args.words)
    text, _ = read_text()
    starts = torch.randint(len(text) - args.tokens, (args.batch_size,))
    gpu = torch.accelerator.current_accelerator(check_available=True)
    net.to(device := gpu or torch.device("cpu"))
    x, y = (part.to(device) for part in cut(text, starts, args.tokens))
    return net, torch.optim.AdamW(net.parameters(), foreach=False), x, y


def step(net, optimizer, x, y, note) -> None:
    """Train one step; call note where memory is worth a look."""
    loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
    note("loss")
    loss.backward()
    optimizer.step()
    note("step")
    optimizer.zero_grad()
    note("zero_grad")


def track(net, optimizer, x, y, step=step) -> dict[str, Counter]:
    """Return the bytes of each kind at each moment, as torch counts them."""
    tracker, found = MemTracker(), {}
    tracker.track_external(net, optimizer, x, y)

    def note(moment: str, which="current") -> None:
        found[moment] = Counter()
        for kinds in tracker.get_tracker_snapshot(which).values():
            for kind, size in kinds.items():
                found[moment][getattr(kind, "value", kind)] += size

    with tracker:
        step(net, optimizer, x, y, note)
    note("peak", "peak")
    return found


def parse_args(argv: list[str] | None = None, doc=__doc__, **numbers):
    """Read the flags, which the chapter's other scripts have too."""
    sizes = {"width": 128, "layers": 3, "tokens": 64, "words": 2048}
    sizes |= {"batch_size": 8} | numbers
    args = job.Flags(doc, **sizes).parse_args(argv)
    if args.width % HEADS:
        job.refuse(f"--width {args.width}: must be a multiple of {HEADS}")
    if args.words < 256:
        job.refuse(f"--words {args.words}: must be 256 to 65536, for bytes")
    if (size := predict(args)["peak"]) > 4e9:
        job.refuse(f"a step of {size / 1e9:.0f} GB: must be 4; lower a flag")
    return args


def main(args) -> None:
    """Compare the formula with torch, at the second step."""
    net, optimizer, x, y = make(args)
    step(net, optimizer, x, y, lambda _: None)  # now Adam has its state
    found, wanted = track(net, optimizer, x, y), predict(args)
    loss, peak = found["loss"], found["peak"]
    counted = [loss["Parameter"], found["step"]["Gradient"]]
    counted += [loss["Optstate"], loss["Activation"] + loss["Other"]]  # x, y
    counted += [peak["Total"]]  # the loss itself is 4 bytes, which it counts
    job.put(f"{'bytes':12}{'formula':>13}{'torch':>13}{'difference':>13}")
    for (kind, size), torchs in zip(wanted.items(), counted, strict=True):
        job.put(f"{kind:12}{size:>13,}{torchs:>13,}{torchs - size:>+13,}")
    total = peak.pop("Total")
    when = "the optimizer's step" if peak["Gradient"] else "backward"
    shares = [f"{k} {v / total:.0%}" for k, v in peak.items() if v]
    job.put(f"the peak is in {when}: {', '.join(shares)}")


if __name__ == "__main__":
    main(parse_args())
