"""How a quiz is proved: the test that has its name runs its answer.

A chapter's file has a test for each of its quizzes: ``test_ch4_device`` proves the quiz
``ch4_device``. Of a quiz with numbers, ``@law`` computes the answer without using its
formula, and the two are compared for every draw. What can't be proved here is in the
file's ``BACKED``, each with what backs it.
"""

import contextlib

import pytest

from allranks import RanksError
from book._ext.quiz.formula import evaluate
from tests.book.quizzes import NUMBERS

C10D = "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"


def law(compute):
    """Return a test that a quiz's formula gives what this function computes."""
    name = compute.__name__.removeprefix("test_")

    def test():
        numbers = NUMBERS[name]
        draws = numbers.draws()
        for draw in draws:
            answer = evaluate(numbers.right, draw)
            assert compute(**draw) == pytest.approx(answer, abs=1e-9), draw
        assert len(draws) >= 6

    test.answer = compute
    return test


@contextlib.contextmanager
def hang(ranks, **how):
    """Expect a hang: for one second no rank computes, however slow the machine is."""
    ranks.stall = 1.0
    with pytest.raises(RanksError, **how):
        yield
    ranks.stall = None


def rendezvous(*flags):
    """Return the rendezvous handler that torchrun would use with these flags."""
    from torch.distributed import run
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    config, *_ = run.config_from_args(run.parse_args([*flags, "train.py"]))
    return get_rendezvous_handler(
        RendezvousParameters(
            config.rdzv_backend,
            config.rdzv_endpoint,
            config.run_id,
            config.min_nodes,
            config.max_nodes,
            **config.rdzv_configs,
        )
    )
