"""Whether values that came from several ranks are equal."""

from typing import Any


def same(a: Any, b: Any) -> bool:
    """Tell whether two values are equal, also if they are or contain tensors.

    Values whose comparison fails or is undecided count as different. NaN is equal to
    itself here, because ranks that agree on NaN agree.
    """
    import torch

    if type(a) is not type(b):
        return False
    match a:
        case torch.Tensor():
            try:
                return _same_tensors(a, b)
            except (RuntimeError, NotImplementedError):  # of a layout without equality
                return False
        case dict():
            return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
        case list() | tuple():
            return len(a) == len(b) and all(map(same, a, b))
    try:
        return bool(a == b) or bool(a != a and b != b)
    except Exception:  # an array says neither yes nor no
        return _equal_arrays(a, b)


def _same_tensors(a: Any, b: Any) -> bool:
    import torch

    if a.is_nested and b.is_nested:
        return same(a.unbind(), b.unbind())
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.layout != b.layout:
        return False
    if a.layout is torch.sparse_coo:
        a, b = a.coalesce(), b.coalesce()
        return same(a.indices(), b.indices()) and same(a.values(), b.values())
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    nan = a.is_floating_point() or a.is_complex()
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=nan)


def _equal_arrays(a: Any, b: Any) -> bool:
    try:
        return a.shape == b.shape and bool((a == b).all())
    except Exception:
        return False
