"""A collective as an operator: its derivative, its registration, and its graphs."""

import pytest
import torch

from allranks import Ranks
from tests import shown

START = """
import warnings
import torch.distributed._functional_collectives as functional
from scripts.ch8_autograd import AllGather, ReduceScatter
from scripts.ch8_custom_op import *

warnings.filterwarnings("ignore", "Dynamo does not know")
W, cpu = world_size, torch.device("cpu")
SHAPES = {all_gather: (3,), reduce_scatter: (W, 3)}

def operator(name, call=get_rows, fake=None, backward=reduce_scatter):
    # An all_gather that may be wrong somewhere.
    op = torch.library.custom_op("tests::" + name, call, mutates_args=())
    op.register_fake(fake or (lambda x: x.new_empty(W, *x.shape)))
    op.register_autograd(lambda ctx, grad: backward(grad))
    return op

def said(call, *args):
    # What a call ends with, or "".
    try:
        call(*args)
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def checked(op):
    return said(torch.library.opcheck, op, (torch.ones(3, requires_grad=True),))
"""


@pytest.fixture(scope="module", params=[1, 2, 3], ids="W={}".format)
def ranks(request):
    """Yield live ranks that have our operators."""
    with Ranks(request.param) as ranks:
        ranks.run(START, quiet=True)
        yield ranks


@pytest.fixture(scope="module")
def two():
    """Yield two live ranks that have our operators."""
    with Ranks(2) as ranks:
        ranks.run(START, quiet=True)
        yield ranks


def test_gradcheck_across_ranks(ranks):
    """Of each operator inside something that is not linear, and of its backward."""
    source = """
[passes(call, shape, cpu) for op, shape in SHAPES.items() for call in (
    lambda x: op(x.sin()),
    lambda x: torch.autograd.grad(op(x.sin()).sin().sum(), x, create_graph=True)[0],
)]
"""
    assert ranks.run(source, quiet=True) == [[True] * 4] * ranks.world_size


def test_they_do_what_the_functions_do(ranks):
    """Outputs and gradients are those of AllGather and ReduceScatter, bit for bit."""
    source = """
def both(call, shape):
    torch.manual_seed(rank)
    x = torch.randn(*shape, 2).transpose(-1, -2)  # not contiguous
    y = call(x.requires_grad_())
    (grad,) = torch.autograd.grad(y, x, torch.randn(y.shape))
    return y, grad
[torch.equal(a, b) for op, function in zip(SHAPES, (AllGather, ReduceScatter))
 for a, b in zip(both(op, SHAPES[op]), both(function.apply, SHAPES[op]))]
"""
    assert ranks.run(source, quiet=True) == [[True] * 4] * ranks.world_size


def test_compiled_whole_they_give_the_same(ranks):
    """With eager as backend, and with one that traces the backward, too."""
    source = """
def both(call, shape):
    torch.manual_seed(rank)
    x = torch.randn(shape, requires_grad=True)
    y = call(x)
    return y, torch.autograd.grad((y * y).sum(), x)[0]
found = []
for op, shape in SHAPES.items():
    call = lambda x: op(x.sin()).cos()
    for backend in "eager", "aot_eager":
        torch._dynamo.reset()
        whole = torch.compile(call, backend=backend, fullgraph=True)
        pairs = zip(both(call, shape), both(whole, shape))
        found += [torch.allclose(a, b) for a, b in pairs]
found
"""
    assert ranks.run(source, quiet=True) == [[True] * 8] * ranks.world_size


def test_opcheck_finds_a_wrong_registration(two):
    """A fake with another shape, and a call that changes what it was given."""
    source = """
def changes(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x.expand(W, *x.shape).clone()
[checked(all_gather), checked(operator("shape", fake=lambda x: x.new_empty(x.shape))),
 checked(operator("changes", changes))]
"""
    for right, shape, changes in two.run(source, quiet=True):
        assert right == ""
        assert shape.startswith(
            "OpCheckError: opcheck(op, ...): test_faketensor failed"
        )
        assert "test_schema failed with Argument x is not defined as mutable" in changes


def test_opcheck_does_not_find_a_wrong_backward(two):
    """It passes all four parts of opcheck: none compares it with a derivative."""
    source = """
op = operator("own_row", backward=lambda grad: grad[rank].clone())
checked(op), passes(op, (3,), cpu), passes(all_gather, (3,), cpu)
"""
    assert two.run(source, quiet=True) == [("", False, True)] * 2


def test_what_is_missing_is_named(two):
    """Without a backward it raises there; without a fake the compiler does."""
    source = """
op = torch.library.custom_op("tests::bare", get_rows, mutates_args=())
compiled_op = torch.compile(op, backend="eager", fullgraph=True)
(said(lambda: op(torch.ones(3, requires_grad=True)).sum().backward()),
 said(compiled_op, torch.ones(3)))
"""
    for backward, fake in two.run(source, quiet=True):
        assert "no autograd formula was registered" in backward
        assert "no fake impl registered" in fake


FUNCTIONS = """
AllReduce = function(total, total)
AllGather = function(get_rows, get_sum)
ReduceScatter = function(get_sum, get_rows)
class Into(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_gather_single(y := x.new_empty(W * 3), x.contiguous())
        return y
    @staticmethod
    def backward(ctx, grad):
        dist.reduce_scatter_single(y := grad.new_empty(3), grad.contiguous())
        return y
class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.broadcast(y := x.clone(), 0)
        return y
    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(y := grad.clone())
        return y * (rank == 0)
Into, Broadcast = Into.apply, Broadcast.apply
"""


GATHER, SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"
KNOWN = {"AllReduce": ["all_reduce"] * 2, "Into": [GATHER, SCATTER]}
UNKNOWN = ["Broadcast"]
if torch.__version__.startswith("2.13."):
    UNKNOWN += ["AllGather", "ReduceScatter"]
else:  # 2.15 knows the collectives of lists, too
    KNOWN |= {"AllGather": [GATHER, SCATTER], "ReduceScatter": [SCATTER, GATHER]}


@pytest.mark.parametrize("name", KNOWN)
def test_dynamo_rewrites_the_collectives_that_it_knows(two, name):
    """Inside a Function they become torch's functional ones, forward and backward."""
    shape = (2, 3) if name == "ReduceScatter" else (3,)
    for found in two.run(f"{FUNCTIONS}\ncompiled({name}, {shape}, cpu)", quiet=True):
        forward, backward = found.split(", backward: ")
        assert KNOWN[name][0] in forward.split() and KNOWN[name][1] in backward.split()


@pytest.mark.parametrize("name", UNKNOWN)
def test_dynamo_refuses_those_that_it_does_not_know(two, name):
    """reduce_scatter of a list, and broadcast; without fullgraph they cut the graph."""
    source = f"""{FUNCTIONS}
torch._dynamo.reset()
graphs = []
backend = lambda graph, _: graphs.append(graph) or graph.forward
call = lambda x: {name}(x.sin()).cos()
shape = (W, 3) if "{name}" == "ReduceScatter" else (3,)
torch.compile(call, backend=backend)(torch.ones(shape, requires_grad=True))
compiled(call, shape, cpu), len(graphs)
"""
    for refusal, graphs in two.run(source, quiet=True):
        assert refusal == "refused: Unsupported"
        assert graphs == 3


def test_a_compiler_drops_what_nobody_uses(two):
    """Ours, and in training torch's own; a side effect keeps it, and doubles it."""
    source = """
def unused(x):
    all_gather(x)
    return x.cos()
def theirs(x):
    functional.all_gather_single(x, 0, dist.group.WORLD)
    return x.cos()
op = operator("kept")
torch.fx.node.has_side_effect(torch.ops.tests.kept.default)
def kept(x):
    op(x)
    return x.cos()
[compiled(call, (3,), cpu) for call in (unused, theirs, kept)]
"""
    gone, kept = "cos, backward: sin neg mul", "kept cos, backward: kept sin neg mul"
    assert two.run(source, quiet=True) == [[gone, gone, kept]] * 2


def test_then_the_other_ranks_wait_for_it():
    """Not compiled, all is well; compiled, rank 0 waits for a rank that has gone on."""
    source = """
def some(x):
    rows = all_gather(x)
    return rows.sum() if rank == 0 else x.sum()
alone = some(torch.ones(3)).item()
torch._dynamo.reset()
whole = torch.compile(some, backend="aot_eager", fullgraph=True)
if rank == 1:
    y = whole(torch.ones(3)).item()
    dist.send(torch.ones(1), 0)  # it was not held up
    dist.recv(torch.empty(1), 0)
    all_gather(torch.ones(3))  # the call that was dropped
else:
    dist.recv(torch.empty(1), 1)
    dist.send(torch.ones(1), 1)
    y = whole(torch.ones(3)).item()
alone, y
"""
    with Ranks(2) as ranks:
        ranks.run(START, quiet=True)
        assert ranks.run(source, quiet=True) == [(6, 6), (3, 3)]


def test_the_script_shows_all_that_the_page_says():
    *lines, lists, unused = shown.lines("ch8_custom_op", 2)
    assert lines == [
        "[rank 0/2] all_gather passes 4 parts of opcheck, and gradcheck",
        "[rank 0/2] reduce_scatter passes 4 parts of opcheck, and gradcheck",
        "[rank 0/2] operator: sin all_gather, backward: reduce_scatter cos mul",
        "[rank 0/2] Function with all_reduce: sin clone all_reduce wait_tensor copy, "
        "backward: sin clone clone all_reduce wait_tensor copy cos mul",
    ]
    name, what = "[rank 0/2] Function with all_gather: ", "refused: Unsupported"
    assert lists.startswith(name) and (lists == name + what) is ("AllGather" in UNKNOWN)
    assert unused == "[rank 0/2] operator, result not used: cos, backward: sin neg mul"
