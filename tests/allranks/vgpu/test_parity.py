"""Virtual GPUs compute what the CPU computes, to the last bit."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import rnn
from torch.utils.checkpoint import checkpoint

from allranks import vgpu
from allranks.vgpu.tensor import VirtualTensor
from scripts import ch5_single


@pytest.fixture(autouse=True)
def _four():
    with vgpu.plugged_in(4, memory="256 MiB"):
        yield


class Transformer(nn.Module):
    """A model with embedding, causal attention, layer norms, an MLP and a tied head."""

    def __init__(self, size=16, vocabulary=11):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, size)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.attention = nn.MultiheadAttention(size, 2, 0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(size, 32), nn.GELU(), nn.Linear(32, size))
        self.head = nn.Linear(size, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        """Map (B, T) tokens to (B, T, vocabulary) scores."""
        num = tokens.shape[1]
        x = self.embed(tokens)
        mask = torch.ones(num, num, dtype=torch.bool, device=x.device).triu(1)
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return self.head(
            x + checkpoint(self.mlp, self.norms[1](x), use_reentrant=False)
        )


class Attention(nn.Module):
    """A model with the fused attention of F.scaled_dot_product_attention."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, tokens):
        """Map (B, T) tokens to (B, T, 11) scores."""
        x = F.one_hot(tokens, 16).to(torch.get_default_dtype())
        q, k, v = self.project(x).view(*tokens.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).flatten(2)[..., :11]


class Recurrent(nn.Module):
    """An LSTM over packed sequences of unequal length."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.lstm = nn.LSTM(8, 12, num_layers=2, batch_first=True)
        self.head = nn.Linear(12, 11)

    def forward(self, tokens):
        """Map (B, T) tokens to (B, T, 11) scores."""
        lengths = torch.arange(len(tokens)) % tokens.shape[1] + 1
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=tokens.shape[1]
        )
        return self.head(out)


def digits():
    """Return the digits CNN with batch norm, and its batches."""
    train_set, _, net = ch5_single.make_task(64)
    net.insert(1, nn.BatchNorm2d(64))
    return net, [train_set[i : i + 16] for i in range(0, 64, 16)]


def words(module):
    """Return a sequence model and its batches."""

    def make():
        tokens = torch.randint(0, 11, (4, 6, 8))
        return module(), [(t, t.roll(-1, 1)) for t in tokens]

    make.__name__ = module.__name__
    return make


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "task",
    [digits, *map(words, (Transformer, Attention, Recurrent))],
    ids=lambda f: f.__name__,
)
def test_training_is_the_cpus_to_the_last_bit(task, optimizer):
    """Losses, gradients, weights, buffers and optimizer state agree after 4 steps."""

    def train(device):
        torch.manual_seed(3)
        net, batches = task()
        steps = OPTIMIZERS[optimizer](net.parameters())  # before the move: same objects
        net.to(device)
        losses = []
        for x, y in batches:
            out = net(x.to(device))
            loss = F.cross_entropy(out.flatten(0, -2), y.to(device).flatten())
            steps.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            steps.step()
            losses += [loss.detach(), norm]
        state = [
            value
            for one in steps.state.values()
            for value in one.values()
            if torch.is_tensor(value) and value.dim()
        ]
        grads = [p.grad for p in net.parameters()]
        return losses + grads + state + list(net.state_dict().values())

    mine, truth = train("vgpu:3"), train("cpu")
    assert len(mine) == len(truth) > 10
    assert {str(t.device) for t in mine} == {"vgpu:3"}
    for a, b in zip(mine, truth, strict=True):
        assert torch.equal(a.cpu(), b)


def test_two_devices_train_as_one():
    """With activations and gradients crossing devices, weights stay the same."""

    def train(first, second):
        torch.manual_seed(0)
        parts = nn.Linear(10, 20).to(first), nn.Linear(20, 3).to(second)
        steps = torch.optim.Adam([p for part in parts for p in part.parameters()])
        for _ in range(5):
            x, y = torch.randn(8, 10), torch.randint(0, 3, (8,))
            hidden = parts[0](x.to(first)).relu()
            loss = F.cross_entropy(parts[1](hidden.to(second)), y.to(second))
            steps.zero_grad()
            loss.backward()
            steps.step()
        return [p.detach().cpu() for part in parts for p in part.parameters()]

    for a, b in zip(train("vgpu:0", "vgpu:2"), train("cpu", "cpu"), strict=True):
        assert torch.equal(a, b)


def test_second_derivatives_cross_devices():
    """A copy between devices can be differentiated twice."""
    x = torch.tensor([1.0, 2.0], device="vgpu:0", requires_grad=True)
    (grad,) = torch.autograd.grad((x.to("vgpu:1") ** 3).sum(), x, create_graph=True)
    grad.sum().backward()
    assert x.grad.tolist() == [6, 12] and x.grad.get_device() == 0


UNARY = [torch.relu, torch.exp, torch.neg, torch.sigmoid, torch.tanh, torch.abs]
UNARY += [lambda t: t.softmax(-1), lambda t: t.cumsum(0), lambda t: t.sort(0).values]
UNARY += [lambda t: t.float().double(), lambda t: t.contiguous(), torch.clone]
UNARY += [lambda t: t.flip(0), lambda t: t.roll(1, -1), lambda t: F.layer_norm(t, (4,))]
UNARY += [lambda t: t.new_ones(4, 4) * t, lambda t: torch.zeros_like(t) + t]
UNARY += [lambda t: t[torch.tensor([3, 0, 1, 1])], lambda t: t.gather(1, t.argsort(1))]
UNARY += [
    lambda t: torch.where(t > 0, t, -0.1 * t),
    lambda t: t.masked_fill(t > 1, 0.5),
]
UNARY += [
    lambda t: t.view(2, 8).T.reshape(4, 4),
    lambda t: t.T,
    lambda t: t[:, ::2].repeat(1, 2),
]
UNARY += [lambda t: t.sum(0, keepdim=True).expand(4, 4), lambda t: t / (t.norm() + 1)]
UNARY += [
    lambda t: torch.einsum("ij,kj->ik", t, t).clamp(-3, 3),
    lambda t: t * t.mean().item(),
]
UNARY += [lambda t: t + torch.arange(4.0, dtype=t.dtype, device=t.device)]
UNARY += [lambda t: torch.stack(t.unbind(1)), lambda t: torch.cat(t.chunk(2, 1), 1)]
UNARY += [lambda t: F.dropout(t, 0.5), lambda t: t * torch.rand_like(t)]
BINARY = [torch.add, torch.mul, torch.maximum, torch.atan2, torch.sub, torch.minimum]
BINARY += [lambda a, b: (a @ b).clamp(-3, 3), lambda a, b: torch.cat([a, b])[::2]]
BINARY += [
    lambda a, b: torch.lerp(a, b, 0.3),
    lambda a, b: a.index_add(0, torch.tensor([0, 2, 2, 1]).to(b.device), b),
]
INPLACE = [
    lambda t, o: t.add_(o, alpha=0.5),
    lambda t, o: t.mul_(0.9),
    lambda t, o: t[1].copy_(o[2]),
]
INPLACE += [lambda t, o: t.view(-1)[3:7].sub_(1), lambda t, o: t.T[0].clamp_(max=1.0)]
INPLACE += [
    lambda t, o: t.__setitem__((slice(None), 2), o[:, 0]),
    lambda t, o: t.zero_(),
]
INPLACE += [
    lambda t, o: t.__setitem__(t > 0.5, 0.25),
    lambda t, o: t.fill_diagonal_(2.0),
]
SEQUENCES = [
    lambda t: rnn.pad_sequence([t[:2], t[2:]]).reshape(4, 4),
    lambda t: rnn.pack_sequence([t[:3], t[3:]]).data,
    lambda t: rnn.pad_packed_sequence(
        rnn.pack_padded_sequence(t[..., None], torch.tensor([4, 2, 2, 1]), True), True
    )[0][..., 0],
    lambda t: torch.vander(t[0]),
    lambda t: t.sgn() * t,
]
LISTS = [
    lambda all: torch._foreach_mul(all, 0.5),
    lambda all: torch._foreach_add(all, all, alpha=0.1),
    lambda all: torch._foreach_lerp(all, torch._foreach_neg(all), 0.3),
]
DRAWS = [
    lambda t, dice: torch.rand(4, 4, generator=dice, device=t.device, dtype=t.dtype),
    lambda t, dice: t.detach().clone().exponential_(generator=dice),
    lambda t, dice: torch.multinomial(t.detach().abs() + 1, 4, generator=dice) * t,
    lambda t, dice: torch.distributions.Laplace(t, 1.0).rsample(),
    lambda t, dice: torch.distributions.Weibull(t.detach().abs() + 1, 1.0).sample(),
    lambda t, dice: torch.distributions.Multinomial(3, logits=t.detach()).sample(),
]
CASTS = [  # operations on which CUDA's list and the CPU's agree
    lambda t: (t.float() @ t.float()).double().clamp(-3, 3),
    lambda t: F.linear(t.float(), t[:, :4].float(), t[0].float()).double().clamp(-3, 3),
    lambda t: F.mse_loss(t.bfloat16(), t.bfloat16() * 0.5).double() * t,
]
STEPPERS = [
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    lambda p: torch.optim.Adam(p, 0.1),
    lambda p: torch.optim.RMSprop(p, 0.1, foreach=False),
]
KINDS = ["unary", "binary", "inplace", "move", "sequence", "list", "draw", "data"]
KINDS += ["cast", "shield", "optimize"]
STEP = st.tuples(st.sampled_from(KINDS), *[st.integers(0, 999)] * 3)


class Player:
    """One run of a program of ops on 4 x 4 tensors, with virtual devices or without."""

    def __init__(self, virtual: bool, seed: int):
        self.virtual, self.seed = virtual, seed
        torch.manual_seed(seed)
        leaves = [torch.randn(4, 4, dtype=torch.float64) for _ in range(2)]
        leaves = [leaf.to("vgpu:0") if virtual else leaf for leaf in leaves]
        self.leaves = [leaf.requires_grad_() for leaf in leaves]
        self.values = [(leaf * 1, 0) for leaf in leaves]  # each value with its place

    def bring(self, tensor, place, target):
        """Move a tensor to one of four places; without devices, copy it."""
        if place == target:
            return tensor
        return tensor.to(f"vgpu:{target}") if self.virtual else tensor.clone()

    def take(self, kind, which, first, second):
        """Take one step of the program, which may append a value."""
        (a, here), (b, there) = (
            self.values[i % len(self.values)] for i in (first, second)
        )

        def pick(ops):
            return ops[which % len(ops)]

        made, place = None, here
        if kind == "move":
            place = which % 4
            made = self.bring(a, here, place)
        elif kind == "unary":
            made = pick(UNARY)(a)
        elif kind == "sequence":
            made = pick(SEQUENCES)(a)
        elif kind == "binary":
            made = pick(BINARY)(a, self.bring(b, there, here))
        elif kind == "draw":
            where = f"vgpu:{here}" if self.virtual else "cpu"
            made = pick(DRAWS)(a, torch.Generator(where).manual_seed(self.seed))
        elif kind == "cast":
            with torch.autocast("vgpu" if self.virtual else "cpu", torch.bfloat16):
                made = pick(CASTS)(a)
        elif kind == "shield":  # the CPU's autocast does not reach a device
            with torch.autocast("cpu", torch.bfloat16, enabled=self.virtual):
                made = pick(CASTS[:2])(a)
        elif kind == "data":
            place = which % 4
            made = nn.Parameter(a.detach().clone())
            made.data = self.bring(made.data, here, place)
        elif kind == "list":
            some = self.values[-4:]
            found = pick(LISTS)([value for value, _ in some])
            self.values[-4:] = [(x, at) for x, (_, at) in zip(found, some, strict=True)]
        elif kind == "optimize":
            self.optimize(pick(STEPPERS), foreach=[None, True, False][first % 3])
        else:
            with torch.no_grad():
                pick(INPLACE)(a.detach(), self.bring(b, there, here).detach())
        if made is not None:
            self.values.append((made, place))

    def optimize(self, make, foreach):
        """Take one clipped optimizer step on copies of a few values, where they are."""
        params = [value.detach().clone() for value, _ in self.values[-4:]]
        params = [param.requires_grad_() for param in params]
        places = [place for _, place in self.values[-4:]]
        losses = [p.square().mean() for p in params]
        sum(
            self.bring(x, at, 3) for x, at in zip(losses, places, strict=True)
        ).backward()
        # torch sums the norms by device, so the run without devices takes the same
        # order
        by_place = [
            param
            for place in dict.fromkeys(places)
            for param, at in zip(params, places, strict=True)
            if at == place
        ]
        norm = nn.utils.clip_grad_norm_(by_place, 0.1, foreach=foreach)
        make(params).step()
        self.values += [(p * 1, at) for p, at in zip(params, places, strict=True)][:2]
        self.values.append((norm * params[0], places[0]))


def play(steps, virtual: bool, seed):
    """Run a program; return all values and gradients, their places, and all errors."""
    player, errors = Player(virtual, seed), []
    for step in steps:
        try:
            player.take(*step)
        except RuntimeError as error:  # e.g. a view that is not possible
            errors.append(str(error))
    total = sum(player.bring(value.sum(), at, 3) for value, at in player.values)
    values = [value for value, _ in player.values]
    places = [at for _, at in player.values]
    try:
        total.backward()
        values += [leaf.grad for leaf in player.leaves]
        places += [0, 0]
    except RuntimeError as error:  # an in-place op changed what autograd had saved
        errors.append(str(error).partition(":")[0])
    return values, places, errors


@settings(
    max_examples=300, deadline=None, derandomize=True, phases=[Phase.generate]
)  # no shrinking: a program has at most twelve steps
@given(st.lists(STEP, min_size=1, max_size=12), st.integers(0, 9))
def test_any_program_gives_the_cpus_values_and_gradients(steps, seed):
    """300 random programs agree: views, in-place ops, moves, draws, casts, steps."""
    mine, places, errors = play(steps, True, seed)
    truth, _, true_errors = play(steps, False, seed)
    assert errors == true_errors and len(mine) == len(truth)
    for a, b, place in zip(mine, truth, places, strict=True):
        if b is None:  # a program of "list" steps alone can leave a leaf unused
            assert a is None
            continue
        assert isinstance(a, VirtualTensor) and a.get_device() == place
        assert torch.equal(a.detach().cpu().nan_to_num(), b.detach().nan_to_num())


def test_a_checkpoint_finds_its_device_or_the_one_it_is_told():
    """torch.save keeps the device; torch.load restores or maps it; ties stay tied."""
    net = Transformer().to("vgpu:2")
    file = io.BytesIO()
    torch.save(net.state_dict(), file)

    def load(**options):
        file.seek(0)
        return torch.load(file, weights_only=True, **options)

    for where, options in {
        "vgpu:2": {},
        "cpu": {"map_location": "cpu"},
        "vgpu:0": {"map_location": "vgpu:0"},
        "vgpu:3": {"map_location": {"vgpu:2": "vgpu:3"}},
    }.items():
        state = load(**options)
        assert {str(t.device) for t in state.values()} == {where}
        for key, value in net.state_dict().items():
            assert torch.equal(state[key].cpu(), value.cpu())
        ties = {state[key].data_ptr() for key in ("embed.weight", "head.weight")}
        assert len(ties) == 1
    fresh = Transformer().to("vgpu:1")
    fresh.load_state_dict(load())
    assert torch.equal(fresh.head.weight.cpu(), net.head.weight.cpu())


def test_a_copied_module_is_its_own():
    """deepcopy keeps device, class and values, leaves gradients, shares no memory."""
    net = nn.Linear(3, 2).to("vgpu:1")
    net(torch.ones(1, 3, device="vgpu:1")).sum().backward()
    twin = copy.deepcopy(net)
    assert (
        isinstance(twin.weight, nn.Parameter)
        and twin.weight.device == net.weight.device
    )
    assert twin.weight.grad is None  # as of any device's parameters
    with torch.no_grad():
        twin.weight.zero_()
    assert net.weight.abs().sum().item() > 0


def test_dataparallel_of_torch_runs_and_agrees():
    """torch's own class puts the gradients of the full batch on vgpu:0."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    truth, x = copy.deepcopy(net), torch.randn(10, 6, dtype=torch.float64)
    parallel = nn.DataParallel(net.to("vgpu:0"), device_ids=[0, 3])
    out = parallel(x.to("vgpu:0"))
    out.square().sum().backward()
    truth(x).square().sum().backward()
    assert str(out.device) == "vgpu:0"
    for a, b in zip(net.parameters(), truth.parameters(), strict=True):
        assert str(a.grad.device) == "vgpu:0"
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=0, atol=1e-14)
    assert {e.device for e in vgpu.events() if e.op == "addmm"} == {"vgpu:0", "vgpu:3"}
    assert math.isfinite(out.sum().item())
