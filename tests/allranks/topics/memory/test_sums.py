"""What a step holds: as autograd saves it, and as storages of torch come and go."""

import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from allranks.topics.memory import sums
from scripts.tasks import GPT

# dim, layers, heads, kv_heads, hidden of a Llama, tokens, words; and samples.
SIZES = [
    (32, 2, 4, 2, 96, 64, 300, 4),
    (64, 3, 4, 4, 160, 32, 1024, 8),
    (96, 4, 8, 2, 256, 64, 64, 4),
]
FAMILIES = "gpt", "llama"
AGAIN = partial(checkpoint, use_reentrant=False)


class FusedNorm(torch.autograd.Function):
    """RMSNorm as one kernel, as on a GPU: it keeps its input and a scale per token."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = (x.float().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale * weight).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight, _ = ctx.saved_tensors
        with torch.enable_grad():
            x, weight = (one.detach().requires_grad_() for one in (x, weight))
            y = nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)
        return torch.autograd.grad(y, (x, weight), grad)


class Norm(nn.Module):
    """RMSNorm in one piece."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return FusedNorm.apply(x, self.weight)


class Layer(nn.Module):
    """A layer of Llama: rotated queries and keys, grouped heads, SwiGLU."""

    def __init__(self, model: sums.Model, norm) -> None:
        super().__init__()
        dim, hidden, heads = model.dim, model.hidden, (model.heads, model.kv_heads)
        self.heads, kv = heads, dim // heads[0] * heads[1]
        self.norm1, self.norm2 = norm(dim), norm(dim)
        shapes = {"q": (dim, dim), "k": (dim, kv), "v": (dim, kv), "mix": (dim, dim)}
        shapes |= dict.fromkeys(("gate", "up"), (dim, hidden)) | {"down": (hidden, dim)}
        for name, shape in shapes.items():
            setattr(self, name, nn.Linear(*shape, bias=False))
        angle = torch.arange(model.tokens)[:, None] / torch.arange(
            1, dim // heads[0] + 1
        )
        self.register_buffer("cos", angle.cos())  # (T, dim of a head)
        self.register_buffer("sin", angle.sin())

    def rotate(self, x):
        low, high = x.chunk(2, -1)
        return x * self.cos + torch.cat((-high, low), -1) * self.sin

    def attend(self, x):
        y, (heads, kv_heads) = self.norm1(x), self.heads
        parts = (self.q(y), heads), (self.k(y), kv_heads), (self.v(y), kv_heads)
        q, k, v = (part.unflatten(-1, (n, -1)).transpose(1, 2) for part, n in parts)
        q, k = self.rotate(q), self.rotate(k)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.mix(seen.transpose(1, 2).flatten(2))

    def think(self, x):
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))

    def forward(self, x):
        return self.think(self.attend(x))


class Net(nn.Module):
    """An embedding, layers, a norm and a head, which may share the embedding."""

    def __init__(self, model: sums.Model, norm=Norm) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.words, model.dim)
        self.blocks = nn.ModuleList(Layer(model, norm) for _ in range(model.layers))
        self.norm = norm(model.dim)
        self.head = nn.Linear(model.dim, model.words, bias=False)
        if model.tied:
            self.head.weight = self.embedding.weight

    def before(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, x):
        return self.head(self.before(x))


class Tracker(TorchDispatchMode):
    """Count the bytes of all storages that come to life, and the most of each phase."""

    def __init__(self, old) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in old}
        self.now, self.most, self.phase = 0, {}, "forward"

    def gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self.gone, storage._cdata, storage.nbytes())
        self.most[self.phase] = max(self.most.get(self.phase, 0), self.now)
        return result


class ChunkedLoss(torch.autograd.Function):
    """Head and loss, chunk by chunk; forward computes the gradients."""

    @staticmethod
    def forward(ctx, x, weight, y, chunks):
        grads = torch.empty_like(x), torch.zeros_like(weight)
        loss, size = torch.zeros(()), -(-len(x) // chunks)
        for i in range(0, len(x), size):
            part, logits = slice(i, i + size), (x[i : i + size] @ weight.T).float()
            log = logits.log_softmax(-1)
            loss += nn.functional.nll_loss(log, y[part], reduction="sum") / len(x)
            grad = log.exp()
            grad[torch.arange(len(grad)), y[part]] -= 1
            grad = grad.div_(len(x)).to(x.dtype)
            torch.mm(grad, weight, out=grads[0][part])
            grads[1].addmm_(grad.T, x[part])
            del logits, log, grad
        ctx.save_for_backward(*grads)
        return loss

    @staticmethod
    def backward(ctx, grad):
        return *(saved.mul_(grad) for saved in ctx.saved_tensors), None, None


def model_of(family: str, size: tuple, tied=False) -> sums.Model:
    """Return a model's sizes; a GPT's MLP is four times as wide as the model."""
    dim, layers, heads, kv_heads, hidden, tokens, words, _ = size
    if family == "gpt":
        kv_heads, hidden = heads, 4 * dim
    sizes = dim, layers, heads, kv_heads, hidden, tokens, words
    return sums.Model(family, *sizes, tied)


def net_of(model: sums.Model, dtype=torch.float32) -> nn.Module:
    """Return the real model."""
    torch.manual_seed(0)
    if model.family == "llama":
        return Net(model).to(dtype)
    net = GPT(model.dim, model.layers, model.heads, model.tokens)
    net.bytes = nn.Embedding(model.words, model.dim)
    net.head = nn.Linear(model.dim, model.words)
    if model.tied:
        net.head = nn.Linear(model.dim, model.words, bias=False)
        net.head.weight = net.bytes.weight
    return net.to(dtype)


def loss_of(net, x, chunks=1):
    """Return the loss, in float32, of a net that has to predict its own input."""
    if chunks > 1:
        return ChunkedLoss.apply(
            net.before(x).flatten(0, 1), net.head.weight, x.flatten(), chunks
        )
    return cross_entropy(net(x).float().flatten(0, 1), x.flatten())


def track(net, optimizer, x, chunks=1, release=False) -> tuple[dict, int]:
    """Return the most bytes beside weights and state, by phase; and after forward."""
    loss_of(net, x, chunks).backward()
    if not release:
        optimizer.step()
        optimizer.zero_grad()
    state = [t for one in optimizer.state.values() for t in one.values()]
    with Tracker([*net.parameters(), *net.buffers(), *state]) as tracker:
        loss = loss_of(net, x, chunks)
        tracker.phase, kept = "backward", tracker.now
        loss.backward()
        del loss
        tracker.phase = "step"
        if not release:
            optimizer.step()
    return tracker.most, kept


def predict(model: sums.Model, training: sums.Training) -> tuple[dict, float]:
    """Return the same as the sums have it."""
    most, spans = {}, sums.step(model, training)
    for span in spans:
        phase = {"again": "backward", "loss": "forward"}.get(span.phase, span.phase)
        phase = "backward" if "backward" in span.name else phase
        most[phase] = max(most.get(phase, 0), sum(span.held[3:]))
    (kept,) = (s.held for s in spans if s.name in ("loss", "head and loss"))
    return most, sum(kept[3:6])


def batch_of(model: sums.Model, samples: int):
    """Return random words, (B, T)."""
    return torch.randint(0, model.words, (samples, model.tokens))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_keeps_what_autograd_saves(family, size):
    """To the byte, for one block and a batch of it."""
    model = model_of(family, size)
    net, alive, found = net_of(model), [], {}
    own = {t.untyped_storage().data_ptr() for t in [*net.parameters(), *net.buffers()]}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    x = torch.randn(size[-1], model.tokens, model.dim, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net.blocks[0](x)
    assert sum(found.values()) == x[..., 0].numel() * sums.kept(model, 4)[0]


@pytest.mark.parametrize("again", ["none", "layer"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_holds_what_torch_holds(family, size, again):
    """After forward to a few bytes; at the peak of each phase within 0.2 or 1 %."""
    model, samples = model_of(family, size), size[-1]
    net, x = net_of(model), batch_of(model, samples)
    assert sum(p.numel() for p in net.parameters()) == sum(
        sum(layer.numbers) for layer in sums.layers(model)
    )
    optimizer = torch.optim.Adam(net.parameters(), foreach=True)
    if again == "layer":
        for block in net.blocks:
            block.forward = partial(AGAIN, block.forward)
    most, kept = track(net, optimizer, x)
    wanted, wanted_kept = predict(model, sums.Training(samples, "fp32", "adam", again))
    assert kept - wanted_kept in (4, 8)  # the loss, and its mean's weight
    rel = 0.002 if family == "gpt" else 0.01  # the norm above is not one kernel
    for phase in most:
        assert wanted[phase] == pytest.approx(most[phase], rel=rel), phase


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bf16_it_is_half_but_for_what_stays_in_float32(family):
    """Sums of heads, norms' statistics and the loss; on a CPU, a GPT's norms do not."""
    model, samples = model_of(family, SIZES[1]), SIZES[1][-1]
    net, x = net_of(model, torch.bfloat16), batch_of(model, samples)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    most, kept = track(net, optimizer, x)
    wanted, wanted_kept = predict(model, sums.Training(samples, "bf16", "fused"))
    assert wanted_kept == pytest.approx(kept, rel=0.003)
    assert wanted["backward"] == pytest.approx(most["backward"], rel=0.003)
    assert wanted["step"] == pytest.approx(most["step"], rel=0.003)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_head_has_one_gradient_that_comes_in_two_parts(family, tied):
    """Counted once in the end; for a moment, both parts and their sum are there."""
    model = model_of(family, (32, 2, 4, 2, 64, 8, 4000, 1), tied)
    net, x = net_of(model), batch_of(model, 1)
    optimizer = torch.optim.SGD(net.parameters(), foreach=True)
    most, _ = track(net, optimizer, x)
    wanted, _ = predict(model, sums.Training(1, "fp32", "sgd"))
    assert wanted["backward"] == pytest.approx(most["backward"], rel=0.002)
    assert wanted["step"] == pytest.approx(most["step"], rel=0.002)


def test_a_checkpoint_around_attention_keeps_the_mlps_part():
    """Attention runs again when the MLP's part is gone, so that has no peak."""
    model, samples = model_of("llama", SIZES[0]), SIZES[0][-1]
    net, x = net_of(model), batch_of(model, samples)
    for block in net.blocks:
        block.attend = partial(AGAIN, block.attend)
    most, kept = track(net, torch.optim.SGD(net.parameters()), x)
    training = sums.Training(samples, "fp32", "sgd", "attention")
    wanted, wanted_kept = predict(model, training)
    assert kept - wanted_kept in (4, 8)
    assert wanted["backward"] == pytest.approx(most["backward"], rel=0.002)


@pytest.mark.parametrize("chunks", [2, 8])
def test_a_loss_in_chunks_has_no_peak(chunks):
    """Only the gradients of the head and of its input are kept."""
    model, samples = model_of("llama", SIZES[1]), SIZES[1][-1]
    net, x = net_of(model), batch_of(model, samples)
    most, kept = track(net, torch.optim.SGD(net.parameters()), x, chunks)
    training = sums.Training(samples, "fp32", "sgd", loss_chunks=chunks)
    wanted, wanted_kept = predict(model, training)
    assert kept - wanted_kept in (4, 8)
    assert wanted["forward"] == pytest.approx(most["forward"], rel=0.01)
    # The last norm's backward, above, makes more vectors than a kernel does.
    assert wanted["backward"] == pytest.approx(most["backward"], rel=0.03)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gradient_may_be_used_and_freed_at_once(family):
    """The optimizer's step goes into backward: never are all gradients there."""
    model = model_of(family, (64, 6, 4, 4, 192, 4, 64, 1))
    net, x = net_of(model), batch_of(model, 1)
    optimizer = torch.optim.SGD(net.parameters())

    def use(parameter):
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.01)
        parameter.grad = None

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(use)
    most, _ = track(net, optimizer, x, release=True)
    training = sums.Training(1, "fp32", "sgd", release=True)
    wanted, _ = predict(model, training)
    assert "step" not in wanted
    assert wanted["backward"] == pytest.approx(most["backward"], rel=0.05)
    kept, _ = predict(model, training._replace(release=False))
    assert wanted["backward"] < kept["backward"] / 3


def test_a_norm_of_several_kernels_keeps_more():
    """On a CPU, nn.RMSNorm also keeps the normalized vector, in each of its norms."""
    model, samples = model_of("llama", SIZES[0]), SIZES[0][-1]
    x = batch_of(model, samples)
    kept = [
        track(net, torch.optim.SGD(net.parameters()), x)[1]
        for net in (Net(model), Net(model, partial(nn.RMSNorm, eps=1e-6)))
    ]
    norms = 2 * model.layers + 1
    assert kept[1] - kept[0] == norms * 4 * model.dim * x.numel()


@pytest.mark.parametrize(
    ("precision", "optimizer", "total"),
    [
        ("fp32", "adam", 16),
        ("mixed", "adam", 16),
        ("gradients", "adam", 18),
        ("bf16", "adam", 8),
        ("mixed", "sgd", 8),
        ("mixed", "momentum", 12),
        ("mixed", "adam8bit", 2 + 4 + 2 * (1 + 4 / 256) + 2),
    ],
)
def test_sixteen_bytes_per_parameter_are_one_case_of_many(precision, optimizer, total):
    """The step holds so many, beside what is temporary."""
    training = sums.Training(1, precision, optimizer)
    assert sum(sums.per_parameter(training)) == total
    model = sums.MODELS["gpt2"][1]
    last = sums.step(model, training)[-1]
    assert sum(last.held[:4]) == total * 124_439_808


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "fused"])
def test_optimizers_hold_what_torchs_do(optimizer):
    """After a step, beside Adam's counters; and for a moment, as foreach does."""
    parameter = nn.Parameter(torch.ones(1000))
    made = {
        "sgd": partial(torch.optim.SGD, lr=0.1, foreach=True),
        "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
        "adam": partial(torch.optim.Adam, foreach=True),
        "fused": partial(torch.optim.Adam, fused=True),
    }[optimizer]([parameter])
    for _ in range(2):
        parameter.grad = torch.ones(1000)
        state = [
            t for one in made.state.values() for t in one.values() if t is not None
        ]
        with Tracker([parameter, parameter.grad, *state]) as tracker:
            made.step()
    states = [t for t in made.state[parameter].values() if t is not None and t.dim()]
    size = sums.OPTIMIZERS[optimizer]
    assert sum(t.nbytes for t in states) == 4000 * size.states
    assert tracker.most.get("forward", 0) == pytest.approx(
        4000 * size.temporary, abs=40
    )


def test_models_have_as_many_parameters_as_published():
    """GPT-2 and Llama, as their configurations and cards say."""
    wanted = {"gpt2": 124_439_808, "gpt2xl": 1_557_611_200}
    wanted |= {"llama1b": 1_235_814_400, "llama8b": 8_030_261_248}
    counted = {
        name: sum(sum(layer.numbers) for layer in sums.layers(model))
        for name, (_, model) in sums.MODELS.items()
    }
    assert counted == wanted


def test_the_vocabulary_makes_the_peak_of_a_small_model():
    """GPT-2 in float32: logits three times, 4·B·T·V each; not so in chunks."""
    model, training = sums.MODELS["gpt2"][1], sums.Training(8, "fp32")
    spans = sums.step(model, training)
    top = spans[sums.peak(spans)]
    assert top.name == "loss, backward"
    assert top.held[5] + top.held[6] == 3 * 4 * 8 * 1024 * 50257
    least = sum(top.held[:5])
    spans = sums.step(model, training._replace(loss_chunks=64))
    assert sum(spans[sums.peak(spans)].held) < 1.05 * least


def test_heads_must_fit():
    with pytest.raises(ValueError, match="heads is 5: it must divide dim, 64"):
        sums.layers(sums.Model(dim=64, heads=5))
    with pytest.raises(ValueError, match="be a multiple of kv_heads, 3"):
        sums.step(sums.Model(dim=64, heads=4, kv_heads=3), sums.Training())
