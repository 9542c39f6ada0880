"""What a process sends: collectives and messages, and copies to and from its GPUs."""

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.optim.optimizer import register_optimizer_step_pre_hook

from allranks.backends import nccl
from allranks.rehearse import lines
from allranks.rehearse.training import Training

CALL = "op", "bytes", "group", "line", "in"
COPY = "source", "target", "line", "waits", "back"
MOST_ORIGINS = 10_000  # copies on the host that are followed at one time


class Traffic:
    """Counts calls by op, bytes, group and line, and copies by way and line.

    Args:
        training: which counts steps.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        self.origins: dict[int, str] = {}  # host memory that was copied from a GPU
        self.rank: int | None = None
        self.world_size = 0  # until there is a group
        register_optimizer_step_pre_hook(lambda *_: self.meet())
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a process does that was forked."""
        self.calls: dict[tuple, list[int]] = {}  # times, steps, and the last step
        self.through_host: dict[tuple, list[int]] = {}  # GPU tensors over gloo
        self.copies: dict[tuple, list[int]] = {}
        self.late_calls = 0  # after the first step
        self.rank = None
        self.unseen = False  # whether there may be calls that nobody counts
        self.last: dict[str, Any] | None = None  # call that was begun

    def called(self, call: nccl.Call) -> None:
        """Note a collective or a message."""
        self.meet()
        line, doing, _ = lines.place()
        about = "backward" if "backward" in doing else ""
        self._count(self.calls, (call.op, call.num_bytes, call.group, line, about))
        self.late_calls += self.training.num_steps > 0
        about = {"op": call.op, "group": call.group, "line": line, "peer": call.peer}
        self.last = about | {"name": call.name, "number": call.number}

    def other(self, op: str, num_bytes: int) -> None:
        """Note a collective on GPU tensors for which the group has another backend."""
        self._count(self.through_host, (op, num_bytes, lines.place()[0]))

    def _count(self, counts: dict[tuple, list[int]], key: tuple) -> None:
        count, step = counts.setdefault(key, [0, 0, -1]), self.training.num_steps
        count[0] += 1
        if count[2] != step:
            count[1], count[2] = count[1] + 1, step

    def meet(self) -> None:
        """Note this process's rank, as long as there is a group."""
        if dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
            backends = distributed_c10d._world.pg_backend_config.values()
            self.unseen |= any("gloo" in str(backend) for backend in backends)

    def copied(
        self,
        source: str,
        target: str,
        num_bytes: int,
        wait: bool,
        ends: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:
        """Note a copy between a GPU and the host, or between two GPUs.

        If the line asked for it directly, so that torch's own offloading is left out,
        a copy that comes back to a GPU is noted with the line at which it went.
        """
        line, _, direct = lines.place()
        back = ""
        if direct and line and ends is not None:
            if target == "cpu":
                self._follow(ends[1], line)
            elif source == "cpu":
                back = self.origins.get(_address(ends[0]), "")
        key = source, target, line, wait and direct, back
        steps = self.training.num_steps
        count = self.copies.setdefault(key, [0, 0, 0, -1])
        count[0], count[1] = count[0] + 1, count[1] + num_bytes
        if count[3] != steps:
            count[2], count[3] = count[2] + 1, steps

    def _follow(self, tensor: torch.Tensor, line: str) -> None:
        """Remember that memory of the host is a copy, as long as it is alive."""
        address = _address(tensor)
        if address and len(self.origins) < MOST_ORIGINS:
            self.origins[address] = line
            forget = self.origins.pop, address, None
            weakref.finalize(tensor.untyped_storage(), *forget).atexit = False

    def facts(self) -> dict[str, Any]:
        """Return what a record has of it."""
        calls, copies = self.calls.items(), self.copies.items()
        return {
            "calls": [
                dict(zip(CALL, key, strict=True), times=times, steps=steps)
                for key, (times, steps, _) in calls
            ],
            "through_host": [
                [*key, times, steps]
                for key, (times, steps, _) in self.through_host.items()
            ],
            "copies": [
                dict(zip(COPY, key, strict=True))
                | dict(zip(("times", "bytes", "steps"), count[:3], strict=True))
                for key, count in copies
            ],
            "late_calls": self.late_calls,
            "unseen": self.unseen,
            "last_call": self.last,
        }


def _address(tensor: torch.Tensor) -> int:
    """Return where a tensor's memory begins, which NumPy's arrays on it share."""
    return tensor.untyped_storage().data_ptr()
