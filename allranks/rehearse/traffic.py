"""What a process sends, copies and saves: collectives, copies of its GPUs, files."""

import functools
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.optim.optimizer import register_optimizer_step_pre_hook

from allranks.backends import nccl
from allranks.rehearse import lines
from allranks.rehearse.records import (
    BegunCollective,
    Collective,
    Copy,
    GlooCollective,
    SavedFile,
)
from allranks.rehearse.replicas import Replicas

MOST_FOLLOWED = 10_000  # copies on the host that are followed at one time
WRAPPER = "module."  # with which DDP and DataParallel begin each key


class Traffic:
    """Counts calls by op, bytes, group and line, and copies by way and line.

    Args:
        replicas: which count steps.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.rank: int | None = None
        self.world_size = 0  # until there is a group
        # By address: host memory that was copied from a GPU, and the line that did it.
        self.copied_at: dict[int, str] = {}
        self.axes: dict[str, str] = {}  # of meshes, by the name of a group
        register_optimizer_step_pre_hook(lambda *_: self.note_rank())
        self.forget()

    def name_axes(self, mesh: DeviceMesh) -> None:
        """Know the groups of a mesh by its axes."""
        names = mesh.mesh_dim_names or ()
        groups = getattr(mesh, "_dim_group_names", ())
        self.axes |= dict(zip(groups, names, strict=False))

    def forget(self) -> None:
        """Begin anew, as a process does that was forked."""
        self.collectives: dict[tuple, Collective] = {}
        self.gloo_collectives: dict[tuple, GlooCollective] = {}
        self.copies: dict[tuple, Copy] = {}
        self.num_late = 0  # collectives after the first step
        self.rank = None
        self.uses_gloo = False  # so there may be collectives that nobody counts
        self.last: BegunCollective | None = None

    def called(self, call: nccl.Call) -> None:
        """Note a collective or a message."""
        self.note_rank()
        line, doing, _ = lines.place()
        in_backward = "backward" in doing
        # A loop makes the same calls again and again, so a record stays small.
        dtype = str(call.dtype).removeprefix("torch.")
        axis = self.axes.get(call.name, "")
        key = call.op, call.num_bytes, call.group, axis, dtype, line, in_backward
        if key not in self.collectives:
            self.collectives[key] = Collective(
                op=call.op,
                num_bytes=call.num_bytes,
                group=list(call.group),
                line=line,
                in_backward=in_backward,
                dtype=dtype,
                axis=axis,
            )
        self.collectives[key].count(self.replicas.num_steps)
        self.num_late += self.replicas.num_steps > 0
        # If the process hangs in it, the report says in which call, and for whom.
        self.last = BegunCollective(
            call.op, list(call.group), line, call.name, call.number, call.peer
        )

    def called_gloo(self, op: str, num_bytes: int) -> None:
        """Note a collective on GPU tensors for which the group has another backend."""
        line = lines.place().line
        key = op, num_bytes, line
        if key not in self.gloo_collectives:
            self.gloo_collectives[key] = GlooCollective(
                op=op, num_bytes=num_bytes, line=line
            )
        self.gloo_collectives[key].count(self.replicas.num_steps)

    def note_rank(self) -> None:
        """Note this process's rank, as long as there is a group."""
        if dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
            backends = distributed_c10d._world.pg_backend_config.values()
            self.uses_gloo |= any("gloo" in str(backend) for backend in backends)

    def on_copy(
        self,
        source: str,
        target: str,
        num_bytes: int,
        wait: bool,
        ends: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:
        """Note a copy between a GPU and the host, or between two GPUs.

        If the line asked for it directly, so that torch's own offloading is left out,
        a copy that comes back to a GPU is noted with the line at which it left.
        """
        line, _, direct = lines.place()
        left_at = ""
        # Which memory it is, and not which tensor: views and NumPy arrays share it.
        if direct and line and ends is not None:
            if target == "cpu":
                self._follow(ends[1], line)
            elif source == "cpu":
                left_at = self.copied_at.get(_address(ends[0]), "")
        key = source, target, line, wait and direct, left_at
        if key not in self.copies:
            self.copies[key] = Copy(
                source=source,
                target=target,
                line=line,
                waits=wait and direct,
                left_at=left_at,
            )
        self.copies[key].total_bytes += num_bytes
        self.copies[key].count(self.replicas.num_steps)

    def _follow(self, tensor: torch.Tensor, line: str) -> None:
        """Remember that memory of the host is a copy, as long as it is alive."""
        address = _address(tensor)
        if address and len(self.copied_at) < MOST_FOLLOWED:
            self.copied_at[address] = line
            # Another tensor may get the address later.
            forget = self.copied_at.pop, address, None
            weakref.finalize(tensor.untyped_storage(), *forget).atexit = False


def _address(tensor: torch.Tensor) -> int:
    """Return where a tensor's memory begins, which NumPy's arrays on it share."""
    return tensor.untyped_storage().data_ptr()


class SavedFiles:
    """Follows ``torch.save`` from now on."""

    def __init__(self) -> None:
        self.forget()
        save = torch.save

        @functools.wraps(save)
        def noted(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            self.note(obj, f)
            return save(obj, f, *args, **kwargs)

        torch.save = noted

    def forget(self) -> None:
        """Begin anew, as a process does that was forked."""
        self.files: dict[tuple[str, str], SavedFile] = {}  # by line and path

    def note(self, obj: Any, file: Any) -> None:
        """Note a file, and whether a state dict in it has a wrapper's keys."""
        name = getattr(file, "name", file)  # of an open file, or a path
        known = isinstance(name, (str, os.PathLike))
        path = os.path.realpath(name) if known else ""
        if path.startswith("/dev/"):
            return
        key = lines.place().line, path
        saved = self.files.setdefault(key, SavedFile(*key))
        saved.wrapped_keys |= any(map(_has_wrapped_keys, (obj, *_parts(obj))))


def _parts(obj: Any) -> Iterator[Any]:
    """Yield what a checkpoint has beside numbers: state dicts, by name."""
    yield from obj.values() if isinstance(obj, Mapping) else ()


def _has_wrapped_keys(obj: Any) -> bool:
    """Tell whether all tensors of a state dict have the keys of a wrapper."""
    if not isinstance(obj, Mapping):
        return False
    keys = [key for key, value in obj.items() if torch.is_tensor(value)]
    return bool(keys) and all(str(key).startswith(WRAPPER) for key in keys)
