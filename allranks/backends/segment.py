"""Memory that the ranks of one machine share, with a barrier that notices who is gone.

The segment has a line of counters for each rank, and after them two slots for each: a
rank writes to the one while others may still read from the other one.
"""

import fcntl
import mmap
import os
import stat
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache

import torch
import torch.distributed as dist

CHUNK = 2 << 20  # bytes of a slot: what a rank puts down at once stays in its cache
LINE = 8  # int64 in a cache line: no two ranks write to the same one
KINDS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"]
KINDS += ["reduce", "gather", "scatter", "all_to_all"]
KINDS += ["reduce_scatter of a list", "all_gather_coalesced"]
DTYPES = {str(v)[6:] for v in vars(torch).values() if isinstance(v, torch.dtype)}
DTYPES = ["", "sparse", *sorted(DTYPES)]
OPS = ["", *dist.ReduceOp.RedOpType.__members__]
SPIN_S = 5e-4  # how long a rank that waits only yields its core, before it naps
NAP_S = 1e-4
MOST_RANKS = 1 << 10
GIVEN_UP = 3  # where in a line; before it, the count, and twice what was called


class Segment:
    """Shared memory of a group of W ranks: counters, and 2 W slots of ``CHUNK`` bytes.

    Args:
        store: where the ranks find one another; its keys are this group's alone.
        rank, world_size: of this process in the group.
        timeout: how long a rank waits for the others, here and in ``meet``.

    Raises:
        RuntimeError: if there is no room for it, or the ranks are not on one machine.
    """

    def __init__(
        self, store: dist.Store, rank: int, world_size: int, timeout: timedelta
    ) -> None:
        self.rank, self.ranks, self.timeout = rank, range(world_size), timeout
        self._count, self._turn, self._broken = 0, 0, ""
        head = -(-world_size * LINE * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
        size = head + 2 * world_size * CHUNK
        try:
            path = self._open(store, size)
            # The system frees this lock when the process ends, however it ends.
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, rank)
            shared = mmap.mmap(self._fd, size)
        except OSError as error:
            why = f"rank {rank} cannot open rank 0's memory: {error.strerror}; "
            why += "'shm' needs all ranks on one machine"
            if rank == 0:
                why = f"no {size >> 20} MiB of shared memory: {error.strerror}"
            raise RuntimeError(why) from None
        self._counts = memoryview(shared)[:head].cast("q")
        slots = torch.frombuffer(shared, dtype=torch.uint8)[head:]
        self._slots = slots.view(2, world_size, CHUNK)
        store.set(f"{rank} is here", "")
        store.wait([f"{r} is here" for r in self.ranks], timeout)
        if rank == 0 and path.startswith(tempfile.gettempdir()):
            os.remove(path)  # the memory lives as long as somebody has it open

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._fd)

    def next_slots(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the slots (W, numbers) to use now; the last ones may still be read."""
        self._turn ^= 1
        return self._slots[self._turn].view(dtype)

    def meet(
        self,
        kind: str,
        num_bytes: int = 0,
        dtype: str = "",
        op: str = "",
        root: int = 0,
    ) -> None:
        """Wait until all ranks are here, and see that they came for the same.

        Args:
            kind: the collective, one of ``KINDS``.
            num_bytes: that it is about.
            dtype, op: one of ``DTYPES``, and one of ``OPS``.
            root: the rank that gives or gets, by its number in the group.
        Raises:
            RuntimeError: if a rank has come for something else, has died or given up,
                or does not come in time. From then on the group is of no use.
        """
        if self._broken:
            raise RuntimeError(f"this group cannot go on: {self._broken}")
        try:
            self._meet(encoded(kind, num_bytes, dtype, op, root))
        except BaseException as error:  # Ctrl-C too: its rank has left the meeting
            self._broken = str(error) or type(error).__name__
            self._counts[self.rank * LINE + GIVEN_UP] = True
            raise

    def _meet(self, what: int) -> None:
        """Say that this rank is here, and wait until all others have said so."""
        self._count += 1
        counts, mine, odd = self._counts, self.rank * LINE, self._count % 2
        # By turns in two places, as a rank may be one meeting ahead of another.
        counts[mine + 1 + odd] = what
        # A system call orders memory: what was written is seen before the count is.
        os.sched_yield()
        counts[mine] = self._count
        for rank in self.ranks:
            theirs, start = rank * LINE, 0.0
            while counts[theirs] < self._count:
                start = start or time.monotonic()
                if (waited := time.monotonic() - start) < SPIN_S:
                    os.sched_yield()  # to another rank, if there are too few cores
                else:
                    self._nap(rank, waited)
            if (called := counts[theirs + 1 + odd]) != what:
                raise RuntimeError(
                    f"rank {self.rank} has called {described(what)}, but rank {rank} "
                    f"{described(called)}"
                )
            if counts[theirs + GIVEN_UP]:
                raise RuntimeError(f"rank {rank} has given up")

    def _open(self, store: dist.Store, size: int) -> str:
        """Open the memory that rank 0 makes; return its path."""
        if self.rank == 0:
            if hasattr(os, "memfd_create"):  # no name in /dev/shm, so nothing to leave
                self._fd = os.memfd_create("allranks")
                path = f"/proc/{os.getpid()}/fd/{self._fd}"
            else:
                self._fd, path = tempfile.mkstemp(prefix="shm-allranks-")
            if hasattr(os, "posix_fallocate"):  # now, not when a rank writes to it
                os.posix_fallocate(self._fd, 0, size)
            else:
                os.ftruncate(self._fd, size)
            number = os.fstat(self._fd).st_ino
            store.set("memory", f"{number} {path}")
            return path
        store.wait(["memory"], self.timeout)
        number, _, path = store.get("memory").decode().partition(" ")
        self._fd = os.open(path, os.O_RDWR)
        found = os.fstat(self._fd)
        if found.st_ino != int(number) or not stat.S_ISREG(found.st_mode):
            raise OSError(0, "there is another file under that name")
        return path

    def _nap(self, rank: int, waited: float) -> None:
        """Sleep for a moment, unless that rank can no longer come."""
        if self._counts[rank * LINE + GIVEN_UP]:
            raise RuntimeError(f"rank {rank} has given up")
        if waited > (most := self.timeout.total_seconds()):
            raise RuntimeError(f"rank {rank} has not come within {most:g} s")
        with suppress(OSError):  # as long as it lives, nobody else gets its lock
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
            if self._counts[rank * LINE] < self._count:  # it had not come before
                raise RuntimeError(f"rank {rank} has ended")
        time.sleep(NAP_S)


@lru_cache
def encoded(kind: str, num_bytes: int, dtype: str, op: str, root: int) -> int:
    """Return in a number what a rank has come for."""
    what = num_bytes * MOST_RANKS + root
    for names, name in (OPS, op), (DTYPES, dtype), (KINDS, kind):
        what = what * len(names) + names.index(name)
    return what


def described(what: int) -> str:
    """Return in words what ``encoded`` has put into a number.

    >>> described(encoded("broadcast", 8, "float32", "", 1))
    'broadcast with 8 bytes of float32 from rank 1'
    """
    what, kind = divmod(what, len(KINDS))
    what, dtype = divmod(what, len(DTYPES))
    what, op = divmod(what, len(OPS))
    num_bytes, root = divmod(what, MOST_RANKS)
    text = KINDS[kind]
    if op:
        text += f" ({OPS[op]})"
    if dtype:
        text += f" with {num_bytes} bytes" * (num_bytes > 0) + f" of {DTYPES[dtype]}"
    way = {"broadcast": "from", "scatter": "from", "reduce": "to", "gather": "to"}
    if KINDS[kind] in way:
        text += f" {way[KINDS[kind]]} rank {root}"
    return text
