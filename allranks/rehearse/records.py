"""What passes between a rehearsal and its processes: a stage in, a record out.

The stage is JSON in an environment variable. Each process leaves a record, a JSON file
in the stage's folder, and torchrun's agents leave the exit codes of their ranks.
"""

import dataclasses
import functools
import json
import operator
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

VARIABLE = "ALLRANKS_REHEARSAL"
EXIT_CODES = ".exit_codes"  # ends the name of a file with exit codes by process id
MOST_INDICES = 200_000  # of an epoch that are kept; a longer one is not judged
# Kinds of what allranks.guard finds: stated here, too, as its import takes a second
GUARD, SAME_NUMBERS = "guard", "same-random-numbers"
# errors of a process that only says that another one has failed
ECHOES = ("ProcessRaisedException", "ProcessExitedException", "ChildFailedError")


@dataclass(frozen=True)
class Stage:
    """What a rehearsal was asked for.

    Attributes:
        folder: where each process leaves its record.
        gpus: of each node.
        nodes: how many.
        memory: of each GPU; "" for what the card has.
        card: the name of a GPU, or "".
        watch_s: seconds after which a collective that nobody joins is a hang.
        guard: whether ``allranks.guard`` runs inside.
        stubs: modules to put in place of others, by name.
        full: whether everything is printed that there is.
        world_size: of a dry run, in which one process plays one of so many ranks; else
            0.
        num_steps: of the optimizers, after which a dry run ends; 0 for the script's.
    """

    folder: str
    gpus: int
    nodes: int = 1
    memory: str = ""
    card: str = ""
    watch_s: float = 60.0
    guard: bool = True
    stubs: dict[str, str] = field(default_factory=dict)
    full: bool = False
    world_size: int = 0
    num_steps: int = 0

    def environment(self) -> dict[str, str]:
        """Return the variables for its processes."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}


def stage() -> Stage:
    """Return the stage of the rehearsal that this process is part of.

    Raises:
        RuntimeError: if it is part of none.
    """
    if VARIABLE not in os.environ:
        raise RuntimeError(
            f"{VARIABLE} is not set: start with python -m allranks.rehearse"
        )
    return Stage(**json.loads(os.environ[VARIABLE]))


@dataclass(kw_only=True)
class Counted:
    """How often something happened, and in how many of the optimizer's steps."""

    times: int = 0
    num_steps: int = 0
    last_step: int = -1

    def count(self, step: int) -> None:
        """Count it once more, in a step."""
        self.times += 1
        if self.last_step != step:
            self.num_steps, self.last_step = self.num_steps + 1, step


@dataclass(kw_only=True)
class Collective(Counted):
    """A collective or message: one for each op, size, group and line."""

    op: str
    num_bytes: int  # in one call
    group: list[int]  # ranks in the world
    line: str
    in_backward: bool
    dtype: str = ""
    axis: str = ""  # of a mesh, whose group it is; "" for no mesh's


@dataclass(kw_only=True)
class GlooCollective(Counted):
    """A collective on GPU tensors that gloo sent, so by way of the host."""

    op: str
    num_bytes: int  # in one call
    line: str


@dataclass(kw_only=True)
class Copy(Counted):
    """Copies of one line from one device to another.

    Attributes:
        source, target: "cpu" or "cuda:N".
        line: of the reader's code.
        waits: whether the line itself asked for the data, and waits for the GPU.
        left_at: the line at which the data had left a GPU before; "" if they had not.
        total_bytes: of all times together.
    """

    source: str
    target: str
    line: str
    waits: bool
    left_at: str
    total_bytes: int = 0


@dataclass
class BegunCollective:
    """The collective or message that a process has begun last.

    Attributes:
        name: of the group.
        number: of the call in its group.
        peer: the rank of a message's other end; None for a collective.
    """

    op: str
    group: list[int]
    line: str
    name: str
    number: int
    peer: int | None = None


@dataclass
class BatchGrowth:
    """What a GPU's memory was at its worst moments, and how much grows with the batch.

    Attributes:
        batch: samples.
        moments: bytes in use, and those of them that grow with the batch.
        lacking: batch, and the moment at which memory ran out.
    """

    batch: int = 0
    moments: list[tuple[int, int]] = field(default_factory=list)
    lacking: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass
class Gpu:
    """What a process has held on one GPU.

    Attributes:
        index: by which the process knows it.
        physical: by which the host knows it, without CUDA_VISIBLE_DEVICES.
        first_line: that put something on it.
        holders: bytes at the peak by holder, such as "parameters".
        lines: bytes at the peak by line, the largest first.
        state: bytes by holder after the last of the optimizers' steps 1, 2, 4, 8, ...
    """

    index: int
    physical: int
    peak_bytes: int = 0
    capacity_bytes: int = 0
    reserved_bytes: int = 0
    first_line: str = ""
    holders: dict[str, int] = field(default_factory=dict)
    lines: list[tuple[str, int]] = field(default_factory=list)
    state: dict[str, int] = field(default_factory=dict)
    growth: BatchGrowth = field(default_factory=BatchGrowth)


@dataclass
class Epoch:
    """One pass over a loader: the samples' indices, in their order.

    Attributes:
        loader: number of the loader in this process.
        num_samples: of the data set; -1 if that is not known.
        first_step, last_step: of the optimizer, when it began and at its last batch.
        batch: samples of the largest batch.
        whole: whether all indices are known.
        finished: whether the loop came to the loader's end.
        distributed, shuffles, drop_last: of the sampler; False if it is not known.
        data: a number for the data set's contents, and whether it covers them all; None
            if they are not known.
    """

    line: str
    num_samples: int
    loader: int = 0
    indices: list[int] = field(default_factory=list)
    first_step: int = 0
    last_step: int = 0
    batch: int = 0
    whole: bool = True
    finished: bool = False
    distributed: bool = False
    shuffles: bool = False
    drop_last: bool = False
    data: tuple[int, bool] | None = None

    @property
    def trains(self) -> bool:
        """Whether the optimizer stepped while the epoch went on."""
        return self.last_step > self.first_step

    def add(self, batch: Any) -> None:
        """Note one batch's indices, of any type; a sampler may also give keys."""
        batch = batch if isinstance(batch, (list, tuple)) else [batch]
        try:
            indices = [operator.index(i) for i in batch]
        except TypeError:
            indices = []
        if len(self.indices) > MOST_INDICES or len(indices) < len(batch):
            self.whole = False
        else:
            self.indices += indices


@dataclass
class Bucket:
    """Gradients that DDP averages in one all_reduce, named by their parameters."""

    num_bytes: int
    num_parameters: int
    first: str
    last: str


@dataclass
class DdpModel:
    """What DDP sends for a model.

    Attributes:
        num_bytes: of the gradients.
        group: ranks in the world.
        buckets: which DDP forms anew after the first backward; until then none.
        buffer_bytes: that it sends in each forward pass.
        constant_buffers: whether none of the buffers has ever changed.
    """

    num_bytes: int
    num_parameters: int
    group: list[int]
    buckets: list[Bucket] = field(default_factory=list)
    buffer_bytes: int = 0
    constant_buffers: bool = True


@dataclass
class FsdpModel:
    """What FSDP2 gathers for a model.

    Attributes:
        num_bytes: of all parameters, unsharded.
        trained_bytes: of those that need gradients.
        regathered_bytes: of those that backward gathers, too, as forward has resharded
            them.
        group: ranks in the world.
    """

    num_bytes: int
    num_parameters: int
    trained_bytes: int
    regathered_bytes: int
    group: list[int]


@dataclass
class ParameterSums:
    """Sums over what an optimizer holds that nothing wraps, before one of its steps."""

    step: int  # that have been made before
    optimizer: int  # its number in this process
    num_parameters: int  # with gradients
    gradients: float
    weights: float
    line: str


@dataclass
class GuardFinding:
    """What ``allranks.guard`` has found wrong, at the line of the check."""

    kind: str
    text: str
    line: str


@dataclass
class GuardNotes:
    """What ``allranks.guard`` has looked at, and what it found.

    Attributes:
        models: "DDP" or "FSDP2" for each model that it has met.
        findings: what is wrong.
        remarks: what may be on purpose.
        ended: sentences that say why it ended early.
    """

    models: list[str] = field(default_factory=list)
    findings: list[GuardFinding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)


@dataclass
class NotEntered:
    """A context manager for a device that a line made and nobody entered."""

    name: str
    line: str
    times: int


@dataclass
class SavedFile:
    """A file that ``torch.save`` has written.

    Attributes:
        path: "" if it was no file.
        wrapped_keys: whether a state dict in it has the keys of DDP's wrapper.
    """

    line: str
    path: str
    wrapped_keys: bool = False


@dataclass
class TensorOrigin:
    """A tensor that an error is about: name and line are "" if they are not known."""

    device: str
    name: str
    line: str


@dataclass
class Failure:
    """The error that has ended a process.

    Attributes:
        type: the name of its class.
        text: its message, with advice if there is any.
        line: of the reader's code, the innermost one.
        log: the traceback.
        tensors: that it is about.
    """

    type: str
    text: str
    line: str = ""
    log: str = ""
    tensors: list[TensorOrigin] = field(default_factory=list)


@dataclass
class Record:
    """What one process of a rehearsal did. Lines are of the reader's code, "" for none.

    Attributes:
        began: seconds since 1970.
        of_command: whether a launcher started it as a rank, and not the script.
        rank, local_rank: None for a process that is no rank.
        declared_world_size: by WORLD_SIZE; ``world_size`` is that of the group.
        in_rendezvous: whether it waits for other ranks to join its group.
        current_device: index of the GPU on which tensors are made.
        num_steps: of the optimizers; those that step in turn make one.
        num_backwards: backward passes.
        num_accumulations: backward passes that added to gradients of an earlier one.
        num_scaler_steps: of a GradScaler, which may leave out the optimizer's.
        unwrapped_sums: before steps 1, 2, 4, 8, ... of optimizers that hold nothing of
            a model in DDP or FSDP2.
        replicated: whether DDP keeps a model equal on all ranks.
        data_parallel: whether DDP or FSDP spans all ranks.
        digests: sums of the parameters in DDP by step, after steps 1, 2, 4, 8, ...
        guard: None if it was left out.
        num_late_collectives: after the first step.
        uses_gloo: whether there may be collectives that are not counted.
        modelled_s: seconds of the GPUs' estimated clock.
        ended: whether it came to its end, and was not killed or stopped.
        exit_code: negative for a signal.
        exit_codes: of processes that it started, by process id.
        standing_line: at which the main thread stood, when it was last written.
        num_processes: that have left a record in the rehearsal.
        dry: whether it played one rank of many, and computed nothing.
        unknown_reads: by line, how often a dry run read a number that was not computed.
    """

    host: str = ""
    pid: int = 0
    began: float = 0.0
    of_command: bool = False
    rank: int | None = None
    local_rank: int | None = None
    world_size: int = 1
    declared_world_size: int = 1
    in_rendezvous: bool = False
    gpus: list[Gpu] = field(default_factory=list)
    current_device: int = 0
    num_steps: int = 0
    num_backwards: int = 0
    num_accumulations: int = 0
    num_scaler_steps: int = 0
    unwrapped_sums: list[ParameterSums] = field(default_factory=list)
    replicated: bool = False
    data_parallel: bool = False
    digests: dict[int, float] = field(default_factory=dict)
    ddp: list[DdpModel] = field(default_factory=list)
    fsdp: list[FsdpModel] = field(default_factory=list)
    guard: GuardNotes | None = None
    collectives: list[Collective] = field(default_factory=list)
    gloo_collectives: list[GlooCollective] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    num_late_collectives: int = 0
    uses_gloo: bool = False
    last_collective: BegunCollective | None = None
    epochs: list[Epoch] = field(default_factory=list)
    saved: list[SavedFile] = field(default_factory=list)
    not_entered: list[NotEntered] = field(default_factory=list)
    modelled_s: float = 0.0
    error: Failure | None = None
    ended: bool = False
    exit_code: int = 0
    exit_codes: dict[int, int] = field(default_factory=dict)
    standing_line: str = ""
    num_processes: int = 1
    dry: bool = False
    unknown_reads: dict[str, int] = field(default_factory=dict)

    @property
    def main_gpu(self) -> Gpu | None:
        """The GPU that it works on, which is where it holds most."""
        return max(self.gpus, key=lambda gpu: gpu.peak_bytes, default=None)

    def sent_bytes(self, op: str, group: list[int], forward: bool = False) -> int:
        """Return the bytes of an op that a group was sent in backward.

        Args:
            op: such as "all_reduce".
            group: the ranks.
            forward: whether calls outside of backward count, too, as FSDP2's do.
        """
        return sum(
            call.num_bytes * call.times
            for call in self.collectives
            if call.op == op and call.group == group and (call.in_backward or forward)
        )


def to_json(value: Any, indent: int | None = None) -> str:
    """Write records and what is in them; without an indent, in one go.

    A record is written while other threads fill it. The encoder in C runs no Python
    code, so none of them gets a turn meanwhile.
    """
    return json.dumps(value, default=vars, indent=indent)


def write(record: Record, folder: Path) -> None:
    """Write a record, in one move, so that nobody reads half of it."""
    path = folder / f"{record.pid}.json"
    part = path.with_suffix(".part")
    part.write_text(to_json(record), "utf8")
    part.replace(path)


def read(folder: str | Path) -> list[Record]:
    """Return the records that are in a folder now."""
    texts = (path.read_text("utf8") for path in Path(folder).glob("*.json"))
    return [_typed(Record, json.loads(text)) for text in texts]


def _typed(kind: Any, value: Any) -> Any:
    """Return what JSON has made of a value of some type as that type again."""
    if dataclasses.is_dataclass(kind):
        of = _hints(kind)
        return kind(**{name: _typed(of[name], part) for name, part in value.items()})
    inner = get_args(kind)
    if not inner or value is None:
        return value
    if isinstance(kind, UnionType):  # X | None
        return _typed(inner[0], value)
    if get_origin(kind) is dict:  # whose keys JSON has made strings
        return {inner[0](key): part for key, part in value.items()}
    if get_origin(kind) is tuple:
        return tuple(value)
    # An epoch has 200,000 indices, which are what they were.
    return value if inner[0] is int else [_typed(inner[0], part) for part in value]


_hints = functools.cache(get_type_hints)


def write_exit_codes(codes: Mapping[int, int], folder: str) -> None:
    """Leave the exit codes of processes that this one has started, by process id."""
    path = Path(folder, f"{os.getpid()}{EXIT_CODES}")
    path.write_text(json.dumps(codes), "utf8")


def gather(folder: str | Path) -> list[Record]:
    """Return the records of all ranks, and of whoever used a GPU or a group, by job.

    A process that only started others, such as the parent of ``mp.spawn`` or a worker
    of a DataLoader, is left out, unless there is no other.
    """
    records, exit_codes = read(folder), {}
    for path in Path(folder).glob(f"*{EXIT_CODES}"):
        codes = json.loads(path.read_text("utf8"))
        exit_codes |= {int(pid): code for pid, code in codes.items()}
    for record in records:
        exit_codes |= record.exit_codes
    for record in records:
        record.num_processes = len(records)
        # Whoever was killed could not say so, but its parent knows.
        if not record.ended and not record.error:
            record.exit_code = exit_codes.get(record.pid, 0)
    used = [record for record in records if _took_part(record)]
    return [record for job in jobs(used or records) for record in job]


def _took_part(record: Record) -> bool:
    """Tell whether a process was a rank, used a GPU or a group, or failed itself."""
    is_rank = record.of_command and record.rank is not None
    failed = record.error is not None and record.error.type not in ECHOES
    return bool(record.gpus or record.collectives or failed or is_rank)


def jobs(records: Iterable[Record]) -> list[list[Record]]:
    """Tell the ranks of one job from those of the next, each in the order of ranks.

    A script may start ranks again and again, for each learning rate, and torchrun does
    when one has failed. A rank's second process belongs to the second job.
    """
    by_number: dict[int, list[Record]] = {}
    earlier: Counter = Counter()  # processes of each rank that began before
    for record in sorted(records, key=lambda r: (r.began, r.pid)):
        by_number.setdefault(earlier[record.rank], []).append(record)
        earlier[record.rank] += record.rank is not None
    return [
        sorted(by_number[number], key=lambda r: (r.rank or 0, r.host, r.pid))
        for number in sorted(by_number)
    ]
