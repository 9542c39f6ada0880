"""What backs the quizzes of chapter 9."""

import pytest
import torch
from torch.utils.data import DataLoader

from tests.quiz.proofs import law


@law
def test_ch9_step(load, workers, compute):
    """Play the queue, event by event, and look at its later half."""
    free, now, times = [0.0] * workers, 0.0, []
    for step in range(400):
        free[step % workers] += load
        now = max(now, free[step % workers])  # next() has waited for it
        times.append(now)
        now += compute
    span = 24 * workers  # whole turns of all workers
    return (times[-1] - times[-1 - span]) / span


@law
def test_ch9_mean(short, long, high, low):
    losses = [high] * short + [low] * long
    return sum(losses) / len(losses)


def test_ch9_generator():
    """Two workers, two epochs: each draws its own rank's first numbers, again."""
    from scripts import ch9_seeds

    args = ch9_seeds.parse_args(["--samples=8"])
    ranks = []
    for seed in (0, 1):  # two ranks, whose generators have another seed
        args.seed = seed
        drawn = ch9_seeds.read_all(args, "own generator", 0, 1, workers=2)
        first, second = ([drawn[e, i] for i in range(8)] for e in (0, 1))
        assert first == second and first[::2] == first[1::2]
        assert len(set(first)) == 4
        ranks.append(set(first))
    assert ranks[0].isdisjoint(ranks[1])


def test_ch9_ahead():
    given = []

    class Counting(torch.utils.data.Sampler):
        def __iter__(self):
            for i in range(100):
                given.append(i)
                yield i

    loader = DataLoader(range(100), sampler=Counting(), num_workers=2)
    batches = iter(loader)
    assert loader.prefetch_factor == 2
    assert [next(batches).item() for _ in range(10)] == list(range(10))
    assert len(given) == 14


def test_ch9_tar(tmp_path):
    import tarfile

    from scripts import ch9_shards

    path = tmp_path / "x.tar"
    ch9_shards.write_tar(str(path), [b"x" * 500] * 40)
    data = path.read_bytes()
    path.write_bytes(data[: 2048 * 20 + 300])  # a sample has four blocks of 512
    assert len(list(ch9_shards.read_tar(str(path)))) == 20
    path.write_bytes(data[: 2048 * 20 + 700])
    with pytest.raises(tarfile.ReadError, match="unexpected end of data"):
        list(ch9_shards.read_tar(str(path)))
