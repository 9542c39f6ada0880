"""Numbers that stand for tensors: digests of their bits, sketches of their values.

Tensors with equal bits have equal digests, on any device. A sketch is linear, so the
sketch of a mean is the mean of the sketches.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence

import torch

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # a torch without torch.distributed
    DTensor = ()

COLUMNS = 1021  # a prime, so that rows which change places change the digest
SMALL = 1 << 16  # bytes; smaller tensors are digested together
WHOLE = 1 << 14  # elements; in smaller tensors each has a random sign of its own
ODD = -7046029254386353131  # 2**64 / golden ratio, as int64
_cache: dict[
    tuple, torch.Tensor | tuple[torch.Tensor, ...]
] = {}  # by use, size, device
_reader: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach


def number(text: str | bytes) -> int:
    """Return a text's hash as an int64, the same in every process (``hash`` is not)."""
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def bits_of(value: float) -> int:
    """Return a float64's bits as an int64."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def float_of(bits: int) -> float:
    """Return the float64 that has these bits."""
    return struct.unpack("<d", struct.pack("<q", bits))[0]


def read_with(reader: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Read each tensor by a function, as where the host sees a GPU's own memory.

    Args:
        reader: takes a tensor, and returns one that holds the same numbers.
    """
    global _reader
    _reader = reader


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor: its own shard, or all of it."""
    tensor = tensor.detach()
    return _reader(tensor.to_local() if isinstance(tensor, DTensor) else tensor)


def layout(tensor: torch.Tensor) -> str:
    """Say how a tensor is laid out over the ranks; "" for one that is not sharded."""
    if not isinstance(tensor, DTensor):
        return ""
    return f"{tuple(tensor.device_mesh.shape)} {tensor.placements}"


def shard(tensor: torch.Tensor) -> int:
    """Return a number for this rank's shard; equal numbers have to hold equal bits."""
    if not isinstance(tensor, DTensor):
        return 0
    place = tensor.device_mesh.get_coordinate() or []
    pairs = zip(place, tensor.placements, strict=False)
    return number(str([at for at, how in pairs if not how.is_replicate()]))


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor with its zeros, and any other tensor unchanged."""
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    """List the plain tensors that a tensor is made of.

    There are none on the meta device, and several in a quantized tensor.
    """
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
    """Return the bytes of a tensor, flat, in the order of its elements."""
    tensor = dense(tensor).resolve_conj().resolve_neg()  # a lazy view has other bytes
    return tensor.contiguous().flatten().view(torch.uint8)


def fetch(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Bring tensors to the CPU, with one copy per device, however many there are."""
    fetched, away = list(tensors), {}
    for place, tensor in enumerate(tensors):
        if tensor.device.type != "cpu":
            away.setdefault(tensor.device, []).append(place)
    for places in away.values():
        parts = [as_bytes(tensors[place]) for place in places]
        host = torch.cat(parts).cpu().split([part.numel() for part in parts])
        for place, data in zip(places, host, strict=True):
            like = tensors[place]
            # It is cloned because data may begin at any byte, which a view can't.
            fetched[place] = data.clone().view(like.dtype).view(like.shape)
    return fetched


def canonical(tensor: torch.Tensor) -> torch.Tensor:
    """Replace every NaN by the same NaN, and negative zero by zero."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    small = tensor.element_size() < 4  # types of 8 bits cannot be added
    wide = tensor.to(torch.float32) + 0 if small else tensor + 0
    return torch.where(wide.isnan(), torch.full_like(wide, torch.nan), wide)


def weights(count: int, device: torch.device) -> torch.Tensor:
    """Return an odd int64 factor for each column; odd ones lose no flipped bit."""
    key = "weights", count, str(device)
    if key not in _cache:
        _cache[key] = (2 * torch.arange(count, device=device) + 1) * ODD
    return _cache[key]


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Sum a tensor's bits as int64, with a weight for each column.

    The tensor is read once. A single flipped bit, wherever it is, changes the sum.

    Returns:
        A tensor of shape ``()`` on the same device.
    """
    data = as_bytes(tensor)
    num_words = data.numel() // 8
    tail = data[num_words * 8 :]  # fewer than 8 bytes
    if data.storage_offset() % 8:
        data = data.clone()  # a view as int64 has to begin at a multiple of 8
    words = data[: num_words * 8].view(torch.int64)
    rows = num_words // COLUMNS
    factors = weights(COLUMNS, data.device)  # (COLUMNS,)
    total = factors[0] * data.numel()
    # int64 wraps around, so no carry is lost, and the order of the sum is free. As the
    # factors are odd, they have inverses modulo 2**64: no change of a word gets lost.
    if rows:
        sums = words[: rows * COLUMNS].view(rows, COLUMNS).sum(0)
        total = total + (sums * factors).sum()
    rest = words[rows * COLUMNS :]  # an incomplete row, with factors in another order
    if rest.numel():
        total = total + (rest * factors[: rest.numel()].flip(0)).sum() * 3
    if tail.numel():
        total = total + (tail.long() * factors[: tail.numel()]).sum() * 5
    return total


def sums(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a digest for each device, which stays there; join small tensors first."""
    parts: dict = {}  # by device: bytes of small tensors, digests of large ones
    for place, tensor in enumerate(x for t in tensors for x in pieces(t)):
        small, large = parts.setdefault(tensor.device, ([], []))
        if tensor.numel() * tensor.element_size() < SMALL:
            small.append(as_bytes(tensor))
        elif tensor.numel():
            large.append(digest(tensor) * (2 * place + 1))  # odd, and by its place
    # A kernel for each of a thousand biases would take longer than one for all.
    for small, large in parts.values():
        for first in range(0, len(small), 256):
            joined = torch.cat(small[first : first + 256])
            large.append(digest(joined) * (2 * first + 1))
    return [torch.stack(large).sum() for _, large in parts.values() if large]


def fold(by_device: list[torch.Tensor]) -> int:
    """Add up the digests of several devices, as one int64."""
    return (sum(map(int, by_device)) + (1 << 63)) % (1 << 64) - (1 << 63)


def settle(
    rows: list[list[int | list[torch.Tensor]]], more: Sequence[torch.Tensor] = ()
) -> tuple[list[list[int]], list[torch.Tensor]]:
    """Replace what ``sums`` returned by numbers, wherever a row has it.

    All of it comes to the CPU in one copy, together with other tensors.

    Args:
        rows: each with numbers and with results of ``sums``.
        more: the other tensors.

    Returns:
        The rows, with numbers only, and the other tensors on the CPU.
    """
    waiting = [x for row in rows for item in row if type(item) is list for x in item]
    host = fetch([*waiting, *more])
    left = iter(host)

    def number_of(item: int | list[torch.Tensor]) -> int:
        return fold([next(left) for _ in item]) if type(item) is list else item

    settled = [[number_of(item) for item in row] for row in rows]
    return settled, host[len(waiting) :]


def digest_all(tensors: Sequence[torch.Tensor]) -> int:
    """Return one number for many tensors."""
    return settle([[sums(tensors)]])[0][0][0]


def signs(count: int, device: torch.device) -> torch.Tensor:
    """Return +1 and -1 as if drawn at random, without touching any generator."""
    mixed = torch.arange(1, count + 1, device=device) * ODD
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ (mixed >> shift)) * factor  # as in splitmix64
    return ((mixed >> 40) & 1).float() * 2 - 1


def sketch(tensor: torch.Tensor) -> torch.Tensor:
    """Return two linear numbers and the squared norm of each row: (rows, 3).

    The linear numbers are sums of the elements with random signs, so each is about as
    large as the norm. The tensor is read twice.

    Args:
        tensor: (rows, n), where n may be several dimensions.
    """
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = flat.reshape(len(tensor), -1).float()
    rows, count = flat.shape
    # Each element has a sign of its own; in a large tensor it is the product of one
    # for its row and one for its column.
    width = 1 if count <= WHOLE else 1024
    blocks, key = count // width, ("signs", count, str(flat.device))
    if key not in _cache:
        two = signs(2 * (blocks + count % width), flat.device).view(-1, 2)
        # So that the two numbers tell the first two elements apart.
        two[1:2, 0], two[1:2, 1] = two[:1, 0], -two[:1, 1]
        _cache[key] = signs(width, flat.device), two
    column, two = _cache[key]
    with torch.autocast(flat.device.type, enabled=False):  # 16 bits are not enough
        body = flat[:, : blocks * width].reshape(rows * blocks, width) @ column
        tail = flat[:, blocks * width :] @ two[blocks:]
        total = body.view(rows, blocks) @ two[:blocks] + tail
    norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return torch.cat([total, norm.square()], dim=1)
