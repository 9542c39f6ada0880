"""What the records of a rehearsal prove to be wrong: one law for each kind.

A finding is never a guess. Each law says what must hold in the records, and is silent
where they do not tell (a data set that only this rank knows, a sampler that draws with
replacement, a job that is not data-parallel).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.base.report import name_ranks
from allranks.rehearse import data_laws, job_laws
from allranks.rehearse.agent import DEATHS
from allranks.rehearse.kinds import GUARD, SAME_NUMBERS
from allranks.rehearse.lines import short

Record = dict[str, Any]
Law = Callable[[list[Record], int, int], Iterator[tuple[str, str]]]

# errors of a process that only says that another one has failed
ECHOES = ("ProcessRaisedException", "ProcessExitedException", "ChildFailedError")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: the law's name, which ``--allow`` takes.
        text: one sentence, and what to do.
        line: of the reader's code, "project/train.py:31"; "" if there is none.
    """

    kind: str
    text: str
    line: str = ""

    @property
    def place(self) -> str:
        """What a sentence about it begins with: "train.py:31: ", or ""."""
        return self.line and f"{short(self.line)}: "


def gather(folder: str | Path) -> list[Record]:
    """Return the records of all ranks, and of whoever used a GPU or a group, by job.

    A process that only started others, such as the parent of ``mp.spawn`` or a worker
    of a DataLoader, is left out, unless there is no other.
    """
    found = [json.loads(p.read_text("utf8")) for p in Path(folder).glob("*.json")]
    told = [json.loads(p.read_text("utf8")) for p in Path(folder).glob(f"*{DEATHS}")]
    told += [record["deaths"] for record in found]
    deaths = {int(pid): code for each in told for pid, code in each.items()}
    for record in found:
        record["processes"] = len(found)
        if not record["ended"] and not record["error"]:
            record["exit"] = deaths.get(record["pid"], 0)
    used = [r for r in found if r["gpus"] or r["calls"] or _own_error(r) or _is_rank(r)]
    return [record for job in jobs(used or found) for record in job]


def jobs(records: list[Record]) -> list[list[Record]]:
    """Tell the ranks of one job from those of the next, each in the order of ranks.

    A script may start ranks again and again, for each learning rate, and torchrun does
    when one has failed. A rank's second process belongs to the second job.
    """
    found: dict[int, list[Record]] = {}
    before: Counter = Counter()
    for record in sorted(records, key=lambda r: (r["began"], r["pid"])):
        found.setdefault(before[record["rank"]], []).append(record)
        before[record["rank"]] += record["rank"] is not None
    return [sorted(found[number], key=_place) for number in sorted(found)]


def _place(record: Record) -> tuple[int, str, int]:
    return record["rank"] or 0, record["host"], record["pid"]


def _is_rank(record: Record) -> bool:
    """Tell whether a launcher started a process as a rank, whatever it has done."""
    return record["of_command"] and record["rank"] is not None


def _own_error(record: Record) -> bool:
    """Tell whether a process failed, and not because of one that it started."""
    error = record["error"]
    return bool(error) and error["type"] not in ECHOES


def judge(records: list[Record], gpus: int, nodes: int = 1) -> list[Finding]:
    """Return all that the laws find.

    Args:
        records: of all processes, as ``gather`` returns them.
        gpus: of each node.
        nodes: how many.
    """
    found = {}
    for kind, law in LAWS.items():
        for job in [records] if law in WHOLE else jobs(records):
            for text, line in law(job, gpus, nodes):
                found[Finding(kind, text, line)] = None
    return list(found)


def owner(record: Record) -> int | None:
    """Return the GPU that a process works on: the one on which it holds most."""
    if not record["gpus"]:
        return None
    return max(record["gpus"], key=lambda g: g["peak"])["physical"]


def shared(records: list[Record], gpus: int, nodes: int) -> Iterator[tuple[str, str]]:
    """No two ranks of a host work on one GPU."""
    places: dict[tuple, list[Record]] = {}
    for record in records:
        if record["rank"] is not None and record["gpus"]:
            places.setdefault((record["host"], owner(record)), []).append(record)
    for (host, gpu), there in places.items():
        ranks = [r["rank"] for r in there]
        if len(set(ranks)) > 1:
            local = {r["local_rank"] for r in there}
            though = ", though LOCAL_RANK differs" if len(local) > 1 else ""
            yield (
                f"{name_ranks(ranks)} work on one GPU, cuda:{gpu} of {host}{though}. "
                'Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before '
                "anything uses a GPU",
                _gpu(there[-1], gpu)["first_line"],
            )


def stray(records: list[Record], gpus: int, nodes: int) -> Iterator[tuple[str, str]]:
    """No rank holds memory on the GPU of another."""
    owners = {(r["host"], owner(r)): r["rank"] for r in records if r["gpus"]}
    for record in records:
        for gpu in record["gpus"]:
            where = record["host"], gpu["physical"]
            other = owners.get(where)
            if gpu["physical"] == owner(record) or other in (None, record["rank"]):
                continue
            yield (
                f"rank {record['rank']} works on cuda:{owner(record)}, and holds "
                f"memory on rank {other}'s cuda:{gpu['physical']} too. Call "
                "torch.cuda.set_device(local_rank) before anything uses a GPU, and let "
                "torch.load have a map_location",
                gpu["first_line"],
            )


def idle(records: list[Record], gpus: int, nodes: int) -> Iterator[tuple[str, str]]:
    """Every GPU is used, by one job or another, if all processes ended well.

    Ranks that are started one by one, each in a rehearsal of its own, may use the rest.
    """
    if not records or any(r["error"] or r["exit"] or not r["ended"] for r in records):
        return
    ranks = {r["rank"] for r in records}
    if any(r["asked"] > len(ranks) for r in records):
        return
    used = {(r["host"], g["physical"]) for r in records for g in r["gpus"]}
    if not used:
        yield "the script put nothing on a GPU: it ran on the CPU", ""
        return
    missing = gpus * nodes - len(used)
    if missing > 0:
        were = "was" if missing == 1 else "were"
        yield (
            f"{missing} of {gpus * nodes} GPUs {were} not used: start a rank for each, "
            "or ask for fewer",
            "",
        )


def synchronising(
    records: list[Record], gpus: int, nodes: int
) -> Iterator[tuple[str, str]]:
    """No line of the reader's waits for a GPU in every step; all are one finding.

    If each pass over the data has one step, it may wait once in a pass.
    """
    found: dict[str, None] = {}
    for record in records:
        steps = record["steps"]
        passes = [e for e in record["epochs"] if e["last_step"] > e["first_step"]]
        if len(passes) >= steps - 1:
            continue
        for copy in record["copies"]:
            wait = copy["waits"] and copy["target"] == "cpu" and copy["line"]
            if wait and steps >= 4 and copy["steps"] >= steps - 1:
                found[copy["line"]] = None
    if found:
        first, *others = sorted(found, key=_file_and_number)
        too = f", and so at {', '.join(map(short, others))}" if others else ""
        yield (
            "the program waits for the GPU in every step, since data go to the host "
            f"(.item(), .cpu(), print){too}. Do it every so many steps",
            first,
        )


def _file_and_number(line: str) -> tuple[str, int]:
    file, _, number = line.rpartition(":")
    return file, int(number)


def back_and_forth(
    records: list[Record], gpus: int, nodes: int
) -> Iterator[tuple[str, str]]:
    """No tensor goes to the host and back to a GPU in every step."""
    for record in records:
        steps = record["steps"]
        for copy in record["copies"]:
            if copy["back"] and steps >= 4 and copy["steps"] >= steps - 1:
                yield (
                    "what this line copies to a GPU has come from a GPU before, at "
                    f"{short(copy['back'])}, in every step. Leave it there, unless "
                    "the host is where it is kept on purpose",
                    copy["line"],
                )


def elsewhere(
    records: list[Record], gpus: int, nodes: int
) -> Iterator[tuple[str, str]]:
    """Tensors that meet in an op are on the GPU of their rank."""
    for record in records:
        error = record["error"] or {}
        for tensor in error.get("made", ()):
            if tensor["device"] != f"cuda:{record['current']}" and tensor["line"]:
                name = tensor["name"] or "what this line makes"
                yield (
                    f"{name} is on {tensor['device']}, and meets a tensor on another "
                    f"device at {short(error['line'])}. Make it there, or move it",
                    tensor["line"],
                )


def guarded(kind: str) -> Law:
    """Return the law of what ``allranks.guard`` has found between the ranks."""

    def law(records: list[Record], gpus: int, nodes: int) -> Iterator[tuple[str, str]]:
        """All that must be equal on the ranks, or differ on them, does."""
        for record in records:
            for found, text, line in (record["guard"] or {"found": ()})["found"]:
                if found == kind:
                    yield text.rstrip("."), line

    return law


def apart(records: list[Record], gpus: int, nodes: int) -> Iterator[tuple[str, str]]:
    """Replicas hold equal parameters after each step, in DDP or averaged by hand."""
    yield from job_laws.own_apart(records)
    wrapped = [r for r in records if r["wrapped"]]
    told = any(guarded(GUARD)(records, gpus, nodes))  # it names the parameter
    if len(wrapped) < 2 or told:
        return
    for step in sorted(wrapped[0]["digests"], key=int):
        sums = {r["digests"].get(step) for r in wrapped}
        if None in sums or any(s != s for s in sums):
            continue
        if len(sums) > 1:
            yield (
                f"after step {step} the ranks' parameters differ, though DDP keeps "
                "them equal: something changes or steps them on one rank alone",
                "",
            )
            return


def alone(records: list[Record], gpus: int, nodes: int) -> Iterator[tuple[str, str]]:
    """Ranks that train talk to each other between their first step and the last.

    What goes through gloo, between tensors on the host, is not counted.
    """
    ranks = [r for r in records if r["rank"] is not None and r["world_size"] > 1]
    if any(r["unseen"] for r in ranks):
        return
    if len(ranks) > 1 and all(r["steps"] > 1 and not r["late_calls"] for r in ranks):
        yield (
            f"{name_ranks([r['rank'] for r in ranks])} train, and nothing is sent "
            "between them after the first step: the gradients are never averaged. "
            "Wrap the model in DistributedDataParallel, and call the wrapper",
            "",
        )


def not_entered(
    records: list[Record], gpus: int, nodes: int
) -> Iterator[tuple[str, str]]:
    """A context manager for a device is entered."""
    for record in records:
        for name, line, _ in record["not_entered"]:
            yield (
                f"{name}(...) without `with` does nothing. Use `with`, or "
                "torch.cuda.set_device",
                line,
            )


def _gpu(record: Record, physical: int) -> Record:
    return next(g for g in record["gpus"] if g["physical"] == physical)


LAWS: dict[str, Law] = {
    "shared-gpu": shared,
    "stray-memory": stray,
    "idle-gpu": idle,
    "wrong-device": elsewhere,
    "not-entered": not_entered,
    "gradients-not-averaged": alone,
    "replicas-differ": apart,
    "back-and-forth": back_and_forth,
    GUARD: guarded(GUARD),
    SAME_NUMBERS: guarded(SAME_NUMBERS),
    **data_laws.LAWS,
    **job_laws.LAWS,
    "waits-every-step": synchronising,  # last, as most programs do it
}
WHOLE = idle, synchronising  # are told of all jobs together
