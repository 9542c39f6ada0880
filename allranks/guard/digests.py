"""Numbers that stand for tensors: equal bits, equal digest, on any device."""

import hashlib
import struct

import torch

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # a torch without torch.distributed
    DTensor = ()

COLUMNS = 1021  # a prime: rows that change places change the digest
SMALL = 1 << 16  # bytes; smaller tensors are digested together
ODD = -7046029254386353131  # 2**64 / golden ratio, as int64
_cache: dict = {}


def number(text: str | bytes) -> int:
    """A text as an int64, the same in every process (``hash`` is not)."""
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def bits_of(value: float) -> int:
    """A float64's bits, as an int64."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def float_of(bits: int) -> float:
    """The float64 that has these bits."""
    return struct.unpack("<d", struct.pack("<q", bits))[0]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor: its own shard, or all of it."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def layout(tensor: torch.Tensor) -> str:
    """How a tensor lies on the ranks: empty for a plain one."""
    if not isinstance(tensor, DTensor):
        return ""
    return f"{tuple(tensor.device_mesh.shape)} {tensor.placements}"


def shard(tensor: torch.Tensor) -> int:
    """Which part this rank holds: ranks with equal numbers must hold equal bits."""
    if not isinstance(tensor, DTensor):
        return 0
    place = tensor.device_mesh.get_coordinate() or []
    pairs = zip(place, tensor.placements, strict=False)
    return number(str([at for at, how in pairs if not how.is_replicate()]))


def weights(count: int, device: torch.device) -> torch.Tensor:
    """Odd int64 factors, one for each column: no flipped bit is multiplied away."""
    key = "weights", count, str(device)
    if key not in _cache:
        _cache[key] = (2 * torch.arange(count, device=device) + 1) * ODD
    return _cache[key]


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """A sparse tensor with its zeros; any other as it is."""
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a tensor holds, as plain tensors: none on meta, several if quantised."""
    if tensor.is_meta:
        return []
    if tensor.is_quantized:
        if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            steps = torch.tensor([tensor.q_scale(), tensor.q_zero_point()])
        else:
            steps = tensor.q_per_channel_scales()
        return [tensor.int_repr(), steps]
    if hasattr(tensor, "__tensor_flatten__"):  # a subclass of several tensors
        return [
            piece
            for name in tensor.__tensor_flatten__()[0]
            for piece in pieces(getattr(tensor, name).detach())
        ]
    return [dense(tensor)]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, flat, in the order of its elements."""
    tensor = dense(tensor).resolve_conj().resolve_neg()  # no lazy view: real bytes
    return tensor.contiguous().flatten().view(torch.uint8)


def fetch(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Bring tensors to the CPU: one copy from each device, however many they are."""
    found, away = list(tensors), {}
    for place, tensor in enumerate(tensors):
        if tensor.device.type != "cpu":
            away.setdefault(tensor.device, []).append(place)
    for places in away.values():
        parts = [as_bytes(tensors[place]) for place in places]
        host = torch.cat(parts).cpu().split([part.numel() for part in parts])
        for place, data in zip(places, host, strict=True):
            like = tensors[place]  # a clone, since data may begin at any byte
            found[place] = data.clone().view(like.dtype).view(like.shape)
    return found


def canonical(tensor: torch.Tensor) -> torch.Tensor:
    """One NaN for all NaNs, and no negative zero."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    small = tensor.element_size() < 4  # 8 bits have no promotion of their own
    wide = tensor.to(torch.float32) + 0 if small else tensor + 0
    return torch.where(wide.isnan(), torch.full_like(wide, torch.nan), wide)


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Sum the bits as int64, each column with a weight: ``()`` on the same device.

    It reads the tensor once. Any single flipped bit changes it.
    """
    data = as_bytes(tensor)
    whole = data.numel() // 8
    tail = data[whole * 8 :]
    if data.storage_offset() % 8:
        data = data.clone()
    words = data[: whole * 8].view(torch.int64)
    rows = whole // COLUMNS
    factors = weights(COLUMNS, data.device)
    total = factors[0] * data.numel()
    if rows:
        sums = words[: rows * COLUMNS].view(rows, COLUMNS).sum(0)
        total = total + (sums * factors).sum()
    rest = words[rows * COLUMNS :]
    if rest.numel():
        total = total + (rest * factors[: rest.numel()].flip(0)).sum() * 3
    if tail.numel():
        total = total + (tail.long() * factors[: tail.numel()]).sum() * 5
    return total


def sums(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """One digest for each device, still there; small tensors are joined first."""
    parts: dict = {}
    for place, tensor in enumerate(x for t in tensors for x in pieces(t)):
        found = parts.setdefault(tensor.device, ([], []))
        if tensor.numel() * tensor.element_size() < SMALL:
            found[0].append(as_bytes(tensor))
        elif tensor.numel():
            found[1].append(digest(tensor) * (2 * place + 1))
    for small, large in parts.values():
        for first in range(0, len(small), 256):
            joined = torch.cat(small[first : first + 256])
            large.append(digest(joined) * (2 * first + 1))
    return [torch.stack(large).sum() for _, large in parts.values() if large]


def fold(found: list[torch.Tensor]) -> int:
    """What ``sums`` found, as one int64."""
    return (sum(map(int, found)) + (1 << 63)) % (1 << 64) - (1 << 63)


def settle(rows: list[list], more: list = ()) -> tuple[list, list]:
    """Put numbers where a row holds what ``sums`` found; fetch more with them."""
    waiting = [x for row in rows for item in row if type(item) is list for x in item]
    host = fetch([*waiting, *more])
    left = iter(host)

    def number_of(item) -> int:
        return fold([next(left) for _ in item]) if type(item) is list else item

    rows = [[number_of(item) for item in row] for row in rows]
    return rows, host[len(waiting) :]


def digest_all(tensors: list[torch.Tensor]) -> int:
    """One number for many tensors."""
    return settle([[sums(tensors)]])[0][0][0]
