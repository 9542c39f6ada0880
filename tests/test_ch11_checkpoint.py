"""Computing twice gives the same bits, keeps what is predicted, and costs as much."""

import re

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from scripts import ch11_selective  # which puts their folder on the path

import ch11_checkpoint as script
import ch11_ledger
import ch11_memory
import recompute

SIZES = ["--width 64", "--width 32 --layers 5", "--width 96 --tokens 32 --words 700"]
WAYS = ["keep all", "ours", "torch, to the end", "torch", "torch, selective"]
OTHERS = WAYS[1:]


def make(flags: str):
    """Return flags, and a small net behind dropout with its batch."""
    args = script.parse_args(flags.split(), words=256, rounds=1)
    net, *rest = ch11_memory.make(args)
    net.blocks = nn.ModuleList(map(recompute.DropoutBlock, net.blocks))
    return args, net, *rest


def choose(net, way: str) -> None:
    """Let blocks run in a way."""
    args = script.parse_args(["--width", str(net.head.in_features)])
    run, *_ = ch11_selective.by_torch(args)[way]
    for block in net.blocks:
        block.run = run


def gradients(way, net, *rest):
    """Return the gradients of a way, and the state of the dice afterwards."""
    choose(net, way)
    net.zero_grad()
    recompute.forward_backward(net, *rest)
    return [p.grad for p in net.parameters()], torch.get_rng_state()


@pytest.mark.parametrize("way", OTHERS)
def test_gradients_are_equal_bit_for_bit_with_dropout(way):
    """And the dice go on as if nothing had been computed twice."""
    _, *made = make("--width 64")
    right, dice = gradients("keep all", *made)
    found, after = gradients(way, *made)
    assert all(map(torch.equal, found, right)) and torch.equal(after, dice)


@pytest.mark.parametrize("way", OTHERS)
def test_autocast_is_the_same_the_second_time(way):
    """Backward runs outside of autocast, as torch recommends."""
    _, net, _, x, y = make("--width 64 --layers 1")
    found = []
    for name in "keep all", way:
        choose(net, name)
        net.zero_grad()
        torch.manual_seed(0)
        with torch.autocast(x.device.type, torch.bfloat16):
            logits = net(x).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, y.flatten())
        loss.backward()
        found.append([p.grad for p in net.parameters()])
    assert all(map(torch.equal, *found))


def test_frozen_weights_and_inputs_get_no_gradients():
    """Weights have theirs even if the input needs none, as a first layer's."""
    body = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    body[0].bias.requires_grad_(False)
    found = []
    for call in script.ours, lambda body, x: body(x):
        body.zero_grad()
        call(body, torch.ones(2, 4)).sum().backward()
        found.append([p.grad for p in body.parameters()])
    assert found[0][1] is None
    for ours, right in zip(*found, strict=True):
        assert ours is right is None or torch.equal(ours, right)


@pytest.mark.parametrize("flags", SIZES)
def test_what_is_kept_is_as_predicted(flags):
    """By torch's tracker; our ledger agrees, but for what selective caches."""
    args, net, *rest = make(flags)
    ledger = ch11_ledger.Ledger(ch11_ledger.parts_of(net), rest[0])
    wanted = {
        way: recompute.forecast(args, *numbers)[0]
        for way, (_, *numbers) in ch11_selective.by_torch(args).items()
    }
    assert [*wanted] == WAYS
    for way, kept in wanted.items():
        choose(net, way)
        found = ch11_memory.track(net, *rest, recompute.forward_backward)["loss"]
        assert found["Activation"] + found["Other"] - 4 == kept, way
        with ledger.watch():
            recompute.forward_backward(net, *rest, ledger.note)
        by_hooks = dict(ledger.rows)["loss"]["activations"]
        if way != "torch, selective":
            assert by_hooks == kept, way
        else:  # its cache is a list of outputs, of which autograd does not know
            assert by_hooks == wanted["ours"]
        assert ledger.activations == 0


class Products(TorchDispatchMode):
    """Count operations of matrix products, and calls of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.attentions = 0, []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        """Count one."""
        name = op.name().split(".")[0]
        if name in ("aten::mm", "aten::addmm"):
            a, b = args[-2:]
            self.operations += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        if "attention" in name:
            self.attentions.append(name.endswith("backward"))
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("flags", SIZES)
def test_products_are_as_many_as_predicted(flags):
    """Ours and torch's to the end redo all of a block; torch stops before down."""
    args, net, *rest = make(flags)
    tokens = args.batch_size * args.tokens
    forward = tokens * args.layers * 24 * args.width**2
    forward += tokens * 2 * args.width * args.words
    for way, squares in zip(WAYS, (0, 12, 12, 8, 1), strict=True):
        with Products() as counted:
            gradients(way, net, *rest)
        redone = tokens * args.layers * squares * 2 * args.width**2
        assert counted.operations == 3 * forward + redone, way
        again = way in ("ours", "torch, to the end", "torch")
        assert counted.attentions.count(False) == args.layers * (1 + again)
        assert counted.attentions.count(True) == args.layers
        attention = args.layers * tokens * 2 * args.tokens * args.width
        total = counted.operations + attention * (3 + again)
        numbers = ch11_selective.by_torch(args)[way][1:]
        ratio = total / (3 * (forward + attention))
        assert recompute.forecast(args, *numbers)[1] == pytest.approx(ratio)


def test_a_module_that_draws_anew_would_be_found():
    """The same check, without the states of the dice, fails."""
    _, *made = make("--width 64")
    right, _ = gradients("keep all", *made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "generators", lambda *_: [])
        found, _ = gradients("ours", *made)
    assert not all(map(torch.equal, found, right))


@pytest.mark.parametrize("num", [2, 5])
def test_the_scripts_print_a_line_for_each_way(num, capsys):
    threads = torch.get_num_threads()
    args = script.parse_args(["--width", "32"], words=256, rounds=1)
    ways = script.by_hand if num == 2 else ch11_selective.by_torch
    recompute.compare(args, ways(args))
    torch.set_num_threads(threads)
    _, *rows, last = capsys.readouterr().out.splitlines()
    assert [re.split("  +", row)[0] for row in rows] == WAYS[:num]
    for row in rows:
        numbers = re.split("  +", row)[1:]
        assert numbers[0] == numbers[1] and len(numbers) == 5
    assert last == "all gradients are equal, bit for bit"


def test_a_way_with_other_gradients_is_refused(capsys):
    """Before it is called equal; the rows above it stay."""
    threads = torch.get_num_threads()
    args = script.parse_args(["--width", "32"], words=256, rounds=1)
    kept = recompute.per_token(args)[0]
    plain = script.by_hand(args)["keep all"]
    ways = {"keep all": plain, "double": (lambda body, x: 2 * body(x), kept, 0)}
    with pytest.raises(SystemExit, match=r"^double: other gradients: that is a bug$"):
        recompute.compare(args, ways)
    torch.set_num_threads(threads)
    assert "equal" not in capsys.readouterr().out


def test_no_rounds_are_refused_in_a_sentence():
    with pytest.raises(SystemExit, match=r"^--rounds 0: must be 1 to 65536$"):
        script.parse_args(["--rounds", "0"], rounds=5)
