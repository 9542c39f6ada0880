"""Autocast on virtual GPUs: CUDA's lists, applied before a function runs.

torch casts in C++, by the device type that it sees there, which is the CPU. So
``torch.autocast("cpu")`` is switched off for virtual tensors, and what
``torch.autocast("vgpu")`` casts is decided here. The lists are those of CUDA, from
ATen/autocast_mode.h. One thing differs: here weights are cast at each use, whereas CUDA
keeps the first cast until the context ends.
"""

import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from allranks.vgpu import machine
from allranks.vgpu.machine import is_virtual

# Names of torch's Python functions: the ops of CUDA's lists, then functions that call
# one of these.
LISTS = {
    "lower": """
        conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
        convolution conv_transpose3d _convolution prelu addmm addmv addr matmul
        einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul
        linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell
        gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
        scaled_dot_product_attention lstm gru rnn_tanh rnn_relu linalg_matmul
        inner""",
    "float": """
        acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt
        sinh tan pow softplus layer_norm native_layer_norm rms_norm group_norm
        frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss
        cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div
        l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
        multilabel_margin_loss soft_margin_loss triplet_margin_loss
        multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist
        renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d
        upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d
        _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
        _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
        _upsample_bicubic2d_aa norm arccos arcsin cross_entropy
        cross_entropy_loss nll_loss_nd pairwise_distance linalg_norm
        special_expm1 special_log1p special_logsumexp""",
    "float result": """
        prod softmax log_softmax cumprod cumsum linalg_vector_norm
        linalg_matrix_norm sum special_softmax special_log_softmax softmin""",
    "widest": """
        addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put
        tensordot scatter_add arctan2 grid_sample linalg_cross""",
}
KIND = {name: kind for kind, names in LISTS.items() for name in names.split()}
BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
    "autocast: use binary_cross_entropy_with_logits or BCEWithLogitsLoss"
)
CHECKS = ("has_torch_function", "has_torch_function_unary")
CHECKS += ("has_torch_function_variadic",)
_thread = threading.local()


def cast(
    func: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable, tuple[Any, ...], dict[str, Any], bool]:
    """Cast the arguments of a function as CUDA's autocast does.

    Returns:
        The function, its arguments, and whether the functions that it calls have to be
        cast instead.

    Raises:
        RuntimeError: for a function that autocast refuses on CUDA.
    """
    name = func.__name__
    if name.startswith("__"):  # x @ y is matmul
        name = name.strip("_")
    if name == "interpolate" and kwargs.get("mode", "nearest") != "area":
        name = "upsample_nearest2d"  # all modes are treated alike
    if name == "binary_cross_entropy":
        raise RuntimeError(BANNED)
    kind = KIND.get(name)
    if kind == "lower":
        args, kwargs = _to(torch.get_autocast_dtype(machine.kind()), args, kwargs)
    elif kind == "float":
        args, kwargs = _to(torch.float32, args, kwargs)
    elif kind == "widest":
        dtypes = {t.dtype for t in pytree.arg_tree_leaves(*args, **kwargs) if _may(t)}
        if torch.float32 in dtypes:
            args, kwargs = _to(torch.float32, args, kwargs)
    elif kind == "float result":
        given = [*args, kwargs.get("dtype")]
        if _may(args[0]) and not any(isinstance(a, torch.dtype) for a in given):
            kwargs = {**kwargs, "dtype": torch.float32}
    elif isinstance(func, types.FunctionType):
        return _without_its_check(func), args, kwargs, True
    return func, args, kwargs, False


def _may(leaf: Any) -> bool:
    """Tell whether autocast may change a leaf: on a device, floating, not double."""
    virtual = isinstance(leaf, torch.Tensor) and is_virtual(leaf.device)
    return virtual and leaf.is_floating_point() and leaf.dtype != torch.float64


def _to(
    dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(dtype) if _may(t) else t, (args, kwargs)
    )


def _without_its_check(func: types.FunctionType) -> Callable:
    """Return a copy of one of torch's Python functions that does not come here again.

    The functions that it calls still do, so each op in its body is cast on its own.
    """
    names = {**func.__globals__, **dict.fromkeys(CHECKS, lambda *args: False)}
    code = (func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    made = types.FunctionType(*code)
    made.__kwdefaults__ = func.__kwdefaults__

    def run(*args: Any, **kwargs: Any) -> Any:
        opened = vars(_thread).setdefault("opened", set())
        if func in opened:  # it calls itself through another function, as meshgrid does
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        opened.add(func)
        try:
            return made(*args, **kwargs)
        finally:
            opened.discard(func)

    return run


@contextmanager
def cpu_off() -> Iterator[None]:
    """Switch off the CPU's autocast, as C++ would apply it to virtual tensors."""
    before = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", before)
