"""What checks share says what is wrong in one sentence, and lets the rest pass."""

import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from allranks import check
from allranks.exercises import files, oracle, watch
from allranks.exercises.oracle import Wrong
from allranks.exercises.patches import Patches
from allranks.exercises.rank_side import Known
from tests.answers import function


class Owner:
    """What a check watches."""

    def send(self) -> str:
        """Return what was sent."""
        return "sent"


def test_a_text_over_several_lines_is_one_sentence():
    error = Wrong("""it is 3;
        it should be  4.""")
    assert str(error) == "it is 3; it should be  4."


@pytest.mark.parametrize("got", [None, 3, [1, 2, 3], (1,)])
def test_a_pair_is_two_elements(got):
    assert oracle.unpack((1, 2), 2, "a pair") == [1, 2]
    with pytest.raises(Wrong, match=r"it returned .*, not a pair\."):
        oracle.unpack(got, 2, "a pair")


def test_integers_are_what_int_takes():
    assert oracle.integers(torch.tensor([1, 2]), "a list") == [1, 2]
    with pytest.raises(Wrong, match=r"it returned \['a'\], not a list\."):
        oracle.integers(["a"], "a list")


def test_right_values_in_another_tensor_are_told_from_none():
    held, want = torch.zeros(2), torch.ones(2)
    (fault,) = oracle.in_place(want.clone(), held, want, "returned")
    assert fault == "returned"
    (fault,) = oracle.in_place(None, held, want, "returned")
    assert fault == "It holds what it held before."


def test_the_end_of_a_with_looks_for_changes_unless_something_was_raised():
    given = [1]
    changed = pytest.raises(Wrong, match="your function changed `given`")
    with changed, oracle.Untouched(given=given):
        given.append(2)
    with pytest.raises(ZeroDivisionError), oracle.Untouched(given=given):
        given.append(3)
        given.append(1 / 0)


@pytest.mark.parametrize(
    ("draw", "whose"), [(lambda: torch.rand(1), "torch's"), (random.random, "Python's")]
)
def test_a_global_generator_must_not_move(draw, whose):
    with watch.undrawn():
        torch.rand(1, generator=watch.dice(3))
    moved = pytest.raises(Wrong, match=f"it moved {whose} global generator, from which")
    with moved, watch.undrawn():
        draw()


def test_a_forward_comes_after_the_backward_of_the_one_before():
    model, x = nn.Linear(2, 1), torch.ones(3, 2)
    with watch.one_at_a_time(model) as sizes:
        model(x).sum().backward()
        model(x[:2]).sum().backward()
    assert sizes == [3, 2]
    with watch.one_at_a_time(model, lambda x: len(x) < 3):
        model(x)  # has no backward, as the check knows
        model(x[:1])
        with pytest.raises(Wrong, match=r"forward number 3 comes before .* number 2"):
            model(x)
    with watch.one_at_a_time(model, fault="one at a time."):
        model(x)
        with pytest.raises(Wrong, match=r"^one at a time\.$"):
            model(x)


def test_a_missing_gradient_is_named():
    model = nn.Linear(2, 1)
    model.weight.grad = torch.ones(1, 2)
    with pytest.raises(Wrong, match=r"^`bias` lacks one$"):
        watch.grads(model, "`{}` lacks one")
    model.bias.requires_grad_(False)
    assert watch.grads(model, "").tolist() == [1, 1]
    assert watch.gradient(model, model(torch.ones(3, 2)).sum()).tolist() == [3, 3]


def test_a_frozen_parameter_gets_no_gradient():
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    assert [name for name, _ in watch.trainable(model)] == ["weight"]
    model.bias.grad = torch.ones(1)
    with pytest.raises(Wrong, match=r"^`bias` is frozen, and now it has a gradient\.$"):
        list(watch.trainable(model))


def test_buckets_leave_in_their_order_among_the_gradients_that_come(monkeypatch):
    monkeypatch.setattr(watch, "_all_reduce", lambda *_, **__: torch.futures.Future())
    monkeypatch.setattr(watch.dist, "get_rank", lambda: 3)
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2))
    buckets = watch.Buckets([1, 2], [first, second])
    first.sum().backward()
    buckets.send(torch.ones(1))
    second.sum().backward()
    fault = r"^all_reduce number 2 of this step has 1 numbers on rank 3; the buckets "
    with pytest.raises(Wrong, match=fault + r"have \[1, 2\], and leave in this order "):
        buckets.send(torch.ones(1))
    work = buckets.send(torch.ones(2))
    assert [buckets.num_gradients(number) for number in (0, 1, None)] == [1, 2, 2]
    assert buckets.num_idle() == 2
    with pytest.raises(AttributeError):  # a future of torch has no such method
        work.get_future()
    assert buckets.num_idle() == 1
    buckets.begin()
    assert (buckets.num_gradients(), buckets.num_idle()) == (0, 0)


def test_a_work_knows_whether_anybody_waited():
    work = watch.Work(torch.futures.Future())
    work.done()
    assert not work.waited
    work.is_completed = None  # of the wrapper, not of the work
    with pytest.raises(AttributeError):
        work.get_future()
    assert work.waited


def test_a_spy_notes_and_a_ban_refuses():
    noted, patches = [], Patches()
    real = Owner.send
    patches.spy(Owner, "send none_such", lambda *args: noted.append(args))
    owner = Owner()
    assert (owner.send(), noted) == ("sent", [(owner,)])
    patches.forbid(Owner, ["send"], "wait instead.")
    with pytest.raises(Wrong, match=r"^it calls send; wait instead\.$"):
        owner.send()
    patches.forbid(Owner, ["send"], "wait instead.", "the {} of old")
    with pytest.raises(Wrong, match=r"^it calls the send of old; wait instead\.$"):
        owner.send()
    patches.patch(Owner, "send", real)
    assert owner.send() == "sent"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_names_no_mistake(value):
    with pytest.raises(Wrong, match=r"^it is 2; it should be 1, .* that\.$"):
        oracle.compare("it", 2.0, 1.0, {"Not this one.": value})


def test_mistakes_are_tried_only_for_what_is_wrong_somewhere(monkeypatch):
    """One that fails is left out; a check has each of the others by its sentence."""
    exercise = files.find("ex2_3")
    _, solution, *_ = exercise.cells
    head = "def ex2_3(x):\n    "
    found = [replace(solution, code=f"{head}return 2 * x")]
    for sentence, body in ("Once.", "return x"), ("Never.", "return x / 0"):
        found.append(files.Cell("mistake", "", head + body, sentence))
    known = Known(replace(exercise, cells=tuple(found)))
    tried, rights = [], [True, True]

    def outcome(function, x):
        tried.append(function)
        return function(x)

    monkeypatch.setattr(watch, "everyone", lambda value: [value, not rights.pop()])
    assert known.reference(6, outcome, 3) == (6, {})
    assert len(tried) == 1
    assert known.reference(5, outcome, 3) == (6, {"Once.": 3})
    rights.append(False)  # it is another rank that is wrong
    assert known.reference(6, outcome, 3) == (6, {"Once.": 3})


def test_a_wait_in_a_watched_call_is_told_by_the_line_that_called_it():
    code = "import torch\nimport torch.distributed as dist\n\n\ndef ex4_2(x, src):\n"
    code += "    if dist.get_world_size() > 1:\n"
    code += "        dist.recv(torch.empty_like(x), 1 - dist.get_rank())\n"
    found = check(function("ex4_2", code))
    assert found.status == "hang"
    assert "Ranks 0–1 wait in line 3 of your ex4_2: dist.recv(" in found.message
    assert "patches.py" not in found.message
