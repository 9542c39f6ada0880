"""Linear numbers of a tensor: the sketch of a mean is the mean of the sketches."""

import torch

from .digests import ODD, dense, local

WHOLE = 1 << 14  # elements; smaller tensors have a sign for each
_cache: dict = {}


def signs(count: int, device: torch.device) -> torch.Tensor:
    """+1 and -1, as if at random; without touching any generator."""
    mixed = torch.arange(1, count + 1, device=device) * ODD
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ (mixed >> shift)) * factor  # as in splitmix64
    return ((mixed >> 40) & 1).float() * 2 - 1


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


def flat(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's part of a gradient, as one row."""
    return dense(local(gradient)).reshape(1, -1)
