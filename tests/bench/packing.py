"""Packing: how many more bytes a second a model learns from, if less is padding.

Each round trains on the same sentences in all three ways, in an order that is new each
time. The clock counts what this thread computes, so other programs disturb it little.
"""

import random
import statistics
import time

import torch
from torch import nn

from scripts import ch9_packing as chapter

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


def packed(texts: list[torch.Tensor]) -> list[tuple]:
    """Return batches of one full row."""
    found = []
    for row in chapter.fill(texts):
        x, mask, places = chapter.pack_row(row)
        ends = [torch.cat([text[1:], torch.tensor([-100])]) for text in row]
        found.append((x, torch.cat(ends)[None], mask, places))
    return found


def run() -> dict:
    """Measure on the chapter's sentences, with its small GPT."""
    torch.manual_seed(0)
    texts = chapter.sentences(chapter.read_text()[0])
    random.Random(0).shuffle(texts)
    texts = texts[:SENTENCES]
    net = chapter.GPT(context=chapter.ROOM)
    buckets = chapter.bucket(texts, BATCH)
    plain = chapter.in_batches(texts, BATCH)
    ways = {
        "plain": [(*padded(batch), None, None) for batch in plain],
        "buckets": [(*padded(batch), None, None) for batch in buckets],
        "packed": packed(texts),
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
    for name in "buckets", "packed":
        ratios = [a / b for a, b in zip(times["plain"], times[name], strict=True)]
        results[name] = {
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "places": places["plain"] / places[name],
        }
    results["padding"] = 1 - used / places["plain"]
    return results


def report(results: dict) -> str:
    """Return a line for each way."""
    return "\n".join(
        f"{name}: {results[name]['ratio']:.2f} times as many bytes a second "
        f"({results[name]['ratio_min']:.2f} to {results[name]['ratio_max']:.2f}), "
        f"with {results[name]['places']:.2f} times fewer places"
        for name in ("buckets", "packed")
    )
