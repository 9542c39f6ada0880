"""The rules hold when torch wraps, saves, loads and repairs models in every order."""

import itertools

import pytest

from allranks import Ranks
from allranks.topics.state_dicts import sums


def valid(depth: int) -> list[list[str]]:
    """Return the orders that torch accepts, by the rules."""
    found = []
    for length in range(depth + 1):
        for order in itertools.product(sums.PREFIX, repeat=length):
            try:
                sums.check(list(order))
            except ValueError:
                continue
            found.append(list(order))
    return found


@pytest.fixture(scope="module")
def ranks():
    """Yield two ranks, so that DTensors have two shards."""
    with Ranks(2) as ranks:
        yield ranks


def wrap_all(orders: list) -> list:
    """Return what torch makes of each order, on a live rank."""
    from allranks.topics.state_dicts import runs

    found = []
    for order in orders:
        try:
            net = runs.wrap(order, seed=0)
            state = net.state_dict()
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
            continue
        kinds = {type(value).__name__ for value in state.values()}
        found.append([list(state), type(net).__name__, *kinds])
    return found


def test_every_order_gives_these_keys_or_is_refused(ranks):
    """Up to three wrappers give these keys, class and values, or torch's own error."""
    depths = range(sums.MOST + 1)
    orders = [list(o) for n in depths for o in itertools.product(sums.PREFIX, repeat=n)]
    first, second = ranks.run(wrap_all, orders, timeout=120, quiet=True)
    assert first == second
    refused = 0
    for order, found in zip(orders, first, strict=True):
        try:
            sums.check(order)
        except ValueError as error:
            refused += 1
            words = str(error).partition(": ")[2]
            if str(error).startswith(f"torch refuses {sums.call_of(order)}:"):
                assert found.startswith(words), order
            else:  # a part of it was refused; DataParallel takes even a function
                assert isinstance(found, str) or found[0] == [], order
            continue
        shown = sums.describe(order)
        assert found == [shown["keys"], shown["class"], shown["values"]], order
    assert (len(orders), refused) == (85, 27)


def play(pairs: list) -> list:
    """Load every file into every model on a live rank, as shown and repaired.

    Each writer saves twice, as shown and plainly, and all its readers follow. Outputs
    are compared too, but only with at most one wrapper, because compiling takes long.
    """
    import contextlib

    import torch

    from allranks.topics.state_dicts import runs, sums

    nets = {}
    for pair in pairs:
        for order in pair:
            if tuple(order) not in nets:
                nets[tuple(order)] = runs.wrap(order, 0), runs.wrap(order, 1)
    wrong, x = [], torch.ones(1, 4)
    with runs.shared_folder() as folder, contextlib.chdir(folder):
        for writer in dict.fromkeys(tuple(saved) for saved, _ in pairs):
            net = nets[writer][0]
            aim, from_ = runs.weights(net), sums.describe(writer)
            readers = [loaded for saved, loaded in pairs if tuple(saved) == writer]
            for save in "save", "save_plain":
                runs.save(sums.programs(from_, from_, True)[save], net)
                for order in readers:
                    into, reader = sums.describe(order), nets[tuple(order)][1]
                    loads = [("load_plain", True)]
                    if save == "save":
                        loads = [("repair", True), ("load", True), ("load", False)]
                    for load, strict in loads:
                        program = sums.programs(from_, into, strict)[load]
                        text, num = runs.load(program, reader, aim)
                        if load == "load":
                            shown = sums.answer(from_, into, strict)
                            right = (text, num) == (shown["text"], shown["num"])
                        else:
                            right = (text, num) == (sums.MATCHED, len(aim))
                        if load != "load" and len(writer) < 2 and len(order) < 2:
                            right &= torch.equal(net(x), reader(x))
                        if not right:
                            wrong.append([writer, order, load, strict, text, num])
    return wrong


def test_every_pair_answers_as_shown_and_is_repaired(ranks):
    """It covers all pairs of up to two wrappers, and each of three on both sides."""
    two, three = valid(2), valid(3)
    pairs = [[saved, loaded] for saved in two for loaded in two]
    pairs += [[order, three[i * 7 % len(three)]] for i, order in enumerate(three)]
    pairs += [[three[i * 11 % len(three)], order] for i, order in enumerate(three)]
    assert ranks.run(play, pairs, timeout=300, quiet=True) == [[], []]


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_every_pair_of_three(ranks):
    """It covers all 3,364 pairs of up to three wrappers."""
    three = valid(3)
    pairs = [[saved, loaded] for saved in three for loaded in three]
    assert ranks.run(play, pairs, timeout=1200, quiet=True) == [[], []]
