"""DDP's reducer, whose C++ makes tensors "where the parameters are".

C++ takes a virtual tensor for a CPU tensor, so the buckets and the sizes that DDP
compares would be plain CPU tensors, and no group of NCCL's would take them. They are
made here with the mode on that puts new tensors on the parameters' device. So buckets
fill the GPU's memory as they do in a real job, and their all_reduces obey the rules.
"""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from allranks.vgpu.new_tensors import NewTensors
from allranks.vgpu.tensor import VirtualTensor

_verify_own = dist._verify_params_across_processes


def beside(tensors: Sequence[torch.Tensor]) -> AbstractContextManager[Any]:
    """Return the mode in which C++ makes its tensors on the device of the first."""
    home = getattr(tensors[0], "_home", None) if tensors else None
    if home is None:
        return contextlib.nullcontext()
    return NewTensors(VirtualTensor, lambda: home, by_anybody=True)


class Reducer(dist.Reducer):
    """DDP's reducer, with its buckets on the GPU of the parameters.

    Args:
        params: of the module.
        *args: as torch passes them.
        **kwargs: as torch passes them.
    """

    def __init__(
        self, params: Sequence[torch.Tensor], *args: Any, **kwargs: Any
    ) -> None:
        self._params = [*params[:1]]
        with beside(self._params):
            super().__init__(params, *args, **kwargs)

    def _rebuild_buckets(self) -> bool:
        """Make new buckets, in the order in which gradients came."""
        with beside(self._params):
            return super()._rebuild_buckets()

    def _set_static_graph(self) -> None:
        """Make the map of used parameters that a static graph needs once."""
        with beside(self._params):
            super()._set_static_graph()

    def _get_zeros_like_grad_buckets(self) -> list[Any]:
        """Return empty buckets, with which a rank that has no data left takes part."""
        with beside(self._params):
            return super()._get_zeros_like_grad_buckets()


def verify_params(group: Any, params: Sequence[torch.Tensor], *args: Any) -> None:
    """Compare the parameters' sizes between ranks, as DDP does at its start."""
    with beside(params):
        _verify_own(group, params, *args)


PATCHES = [
    (dist, "Reducer", Reducer),
    (dist, "_verify_params_across_processes", verify_params),
]
