"""Packing: how many more bytes a second a model learns from, if less is padding.

Each round trains on the same sentences in all ways, in an order that is new each
time. The clock counts what this thread computes, so other programs disturb it little.
Packed rows are given to the model in as many passes as buckets, or one row a pass; and
without the mask, which computes something else, to see what the mask costs.
"""

import random
import statistics
import time

import torch
from torch import nn

from scripts import ch9_packing, ch9_padding

from tasks import GPT, read_text

SENTENCES, BATCH, ROUNDS = 128, 16, 9


def padded(texts: list[torch.Tensor]) -> tuple:
    """Return a batch of texts, (B, T), each with what follows, and -100 as padding."""
    x = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    ends = [torch.cat([text[1:], torch.tensor([-100])]) for text in texts]
    return x, nn.utils.rnn.pad_sequence(ends, batch_first=True, padding_value=-100)


def train(net: nn.Module, batches: list[tuple]) -> float:
    """Compute all gradients of a pass over the batches; return the seconds."""
    start = time.thread_time()
    for x, wanted, mask, places in batches:
        logits = net(x, mask, places)
        nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten()).backward()
    return time.thread_time() - start


def packed(texts: list[torch.Tensor], passes: int, masked: bool = True) -> list[tuple]:
    """Return batches of full rows, in so many passes.

    x and places are (B, T), the mask is (B, 1, T, T). What fills up a row looks at all
    that is before it, so that no line of the mask is empty; nobody looks at it.
    """
    rows, found = ch9_padding.fill(texts), []
    for some in ch9_padding.in_batches(rows, -(-len(rows) // passes)):
        parts = [ch9_packing.pack_row(row) for row in some]
        x, wanted = padded([torch.cat(row) for row in some])
        mask = torch.ones(len(some), 1, x.shape[1], x.shape[1], dtype=torch.bool).tril()
        places = torch.zeros_like(x)
        for i, (row, (_, own, counts)) in enumerate(zip(some, parts, strict=True)):
            num = len(counts)
            mask[i, 0, :num, :num], places[i, :num] = own, counts
            wanted[i, torch.tensor([len(text) for text in row]).cumsum(0) - 1] = -100
        found.append((x, wanted, mask if masked else None, places))
    return found


def run() -> dict:
    """Measure on the chapter's sentences, with its small GPT."""
    torch.manual_seed(0)
    texts = ch9_padding.sentences(read_text()[0])
    random.Random(0).shuffle(texts)
    texts = texts[:SENTENCES]
    net = GPT(context=ch9_padding.CONTEXT)
    buckets, rows = ch9_padding.bucket(texts, BATCH), len(ch9_padding.fill(texts))
    plain = ch9_padding.in_batches(texts, BATCH)
    ways = {
        "plain": [(*padded(batch), None, None) for batch in plain],
        "buckets": [(*padded(batch), None, None) for batch in buckets],
        "packed": packed(texts, len(buckets)),
        "unmasked": packed(texts, len(buckets), masked=False),
        "single": packed(texts, rows),
        "single_unmasked": packed(texts, rows, masked=False),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name in random.sample(list(ways), len(ways)):
            times[name].append(train(net, ways[name]))
    torch.set_num_threads(threads)
    results = {"sentences": SENTENCES, "batch_size": BATCH, "rounds": ROUNDS}
    used = sum(map(len, texts))
    places = {name: sum(x.numel() for x, *_ in some) for name, some in ways.items()}
    for name in list(ways)[1:]:
        ratios = [a / b for a, b in zip(times["plain"], times[name], strict=True)]
        results[name] = {
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "places": places["plain"] / places[name],
            "passes": len(ways[name]),
        }
    results["padding"] = 1 - used / places["plain"]
    return results


def report(results: dict) -> str:
    """Return a line for each way."""
    return "\n".join(
        f"{name}: {one['ratio']:.2f} times as many bytes a second "
        f"({one['ratio_min']:.2f} to {one['ratio_max']:.2f}), "
        f"with {one['places']:.2f} times fewer places, in {one['passes']} passes"
        for name, one in results.items()
        if isinstance(one, dict)
    )
