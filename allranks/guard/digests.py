"""Numbers that stand for tensors: equal bits, equal digest; and linear sketches."""

import hashlib

import torch

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # a torch without torch.distributed
    DTensor = ()

COLUMNS = 1021  # a prime: rows that change places change the digest
SMALL = 1 << 16  # bytes; smaller tensors are digested together
ODD = -7046029254386353131  # 2**64 / golden ratio, as int64
WHOLE = 1 << 14  # elements; smaller tensors have a sign for each
_cache: dict = {}


def number(text: str | bytes) -> int:
    """A text as an int64, the same in every process (``hash`` is not)."""
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


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


def signs(count: int, device: torch.device) -> torch.Tensor:
    """+1 and -1, as if at random; without touching any generator."""
    mixed = torch.arange(1, count + 1, device=device) * ODD
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ (mixed >> shift)) * factor  # as in splitmix64
    return ((mixed >> 40) & 1).float() * 2 - 1


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """A sparse tensor with its zeros; any other as it is."""
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, flat, in the order of its elements."""
    tensor = dense(tensor).resolve_conj().resolve_neg()  # no lazy view: real bytes
    return tensor.contiguous().flatten().view(torch.uint8)


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


def digest_all(tensors: list[torch.Tensor]) -> int:
    """One number for many tensors; small ones are joined first, to save calls."""
    parts: dict = {}
    for place, tensor in enumerate(tensors):
        found = parts.setdefault(tensor.device, ([], []))
        if tensor.numel() * tensor.element_size() < SMALL:
            found[0].append(as_bytes(tensor))
        elif tensor.numel():
            found[1].append(digest(tensor) * (2 * place + 1))
    total = 0
    for small, large in parts.values():
        for first in range(0, len(small), 256):
            joined = torch.cat(small[first : first + 256])
            large.append(digest(joined) * (2 * first + 1))
        if large:
            total += int(torch.stack(large).sum())
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)


def sketch(tensor: torch.Tensor) -> torch.Tensor:
    """Two linear numbers and the squared norm of each row: (rows, n) to (rows, 3).

    The linear numbers are sums with signs: the sketch of a mean is the mean of the
    sketches. Each is about as large as the norm. The tensor is read twice.
    """
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = flat.reshape(len(tensor), -1).float()
    rows, count = flat.shape
    # A sign for each element; in a large tensor one for each row and each column.
    width = 1 if count <= WHOLE else 1024
    blocks, key = count // width, ("signs", count, str(flat.device))
    if key not in _cache:
        two = signs(2 * (blocks + count % width), flat.device).view(-1, 2)
        two[1:2, 0], two[1:2, 1] = two[:1, 0], -two[:1, 1]  # two numbers tell two apart
        _cache[key] = signs(width, flat.device), two
    column, two = _cache[key]
    with torch.autocast(flat.device.type, enabled=False):  # 16 bits are too few
        body = flat[:, : blocks * width].reshape(rows * blocks, width) @ column
        tail = flat[:, blocks * width :] @ two[blocks:]
        total = body.view(rows, blocks) @ two[:blocks] + tail
    norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return torch.cat([total, norm.square()], dim=1)
