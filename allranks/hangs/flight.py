"""The flight recorder on any backend: dump each rank's, compare, name who is behind.

In the job, before the training (a thread writes; the main thread may hang):

    from allranks.hangs import flight
    flight.dump_after(300, "dumps")

Afterwards, in a shell:

    python -m allranks.hangs.flight dumps

torch records each collective of each group with its number, its sizes and the line
that called it, in a ring of ``TORCH_FR_BUFFER_SIZE`` entries (2000 unless you say
otherwise). Equal numbers of a group belong to the same collective, so the rank whose
numbers end first is the one that the others wait for.
"""

import pickle
import re
import sys
import threading
from pathlib import Path

from allranks.base.report import is_user_code, name_ranks

PREFIX = "rank_"  # of the files; the rank follows


def dump(folder: Path | str) -> Path:
    """Write what this rank's recorder holds to a file in a folder; return the file.

    The groups' names and members are added, because gloo leaves them out, and torch's
    own analyzer, ``torchfrtrace``, stops with a KeyError without them.
    """
    import torch
    import torch.distributed as dist

    record = torch._C._distributed_c10d._dump_fr_trace(True, True, False)
    found = pickle.loads(record)
    world = dist.distributed_c10d._world
    for group, members in world.pg_group_ranks.items():
        name = world.pg_names[group]
        ranks = sorted(members)
        found["pg_config"][name] = {
            "name": name,
            "desc": group.group_desc,
            "ranks": str(ranks),
        }
    path = Path(folder) / f"{PREFIX}{dist.get_rank()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    part.write_bytes(pickle.dumps(found))
    part.rename(path)  # so that nobody can read a file that is half written
    return path


def dump_after(seconds: float, folder: Path | str) -> threading.Timer:
    """Dump after a number of seconds, unless the timer is canceled before.

    Args:
        seconds: from now on.
        folder: where the file goes.

    Returns:
        The timer; call its ``cancel()`` when all went well.
    """
    timer = threading.Timer(seconds, dump, [folder])
    timer.daemon = True
    timer.start()
    return timer


def read(folder: Path | str) -> dict[int, dict]:
    """Read all dumps of a folder, by rank.

    Raises:
        FileNotFoundError: if the folder has none.
    """
    files = {}
    for path in Path(folder).glob("*"):
        if match := re.search(r"^[^.].*?(\d+)$", path.name):
            files[int(match[1])] = path
    if not files:
        raise FileNotFoundError(
            f"no dump in {folder}: files whose names end with the rank, as rank_0"
        )
    return {rank: pickle.loads(files[rank].read_bytes()) for rank in sorted(files)}


def compare(dumps: dict[int, dict]) -> tuple[list[str], list[int]]:
    """Return a sentence for each group whose ranks parted ways, and the suspects.

    The suspects are the ranks that have not begun a collective that others have begun.
    Where ranks began different collectives under one number, all of those are suspects.

    Args:
        dumps: what ``read`` returns.
    """
    sentences, suspects = [], set()
    for group, members in sorted(_groups(dumps).items()):
        calls = {rank: _calls(dumps.get(rank), group) for rank in members}
        last = {rank: max(calls[rank], default=0) for rank in members}
        first = min(last.values())
        for number in sorted({n for by_number in calls.values() for n in by_number}):
            here = {r: calls[r][number] for r in members if number in calls[r]}
            if len({_kind(entry) for entry in here.values()}) > 1:
                what = [f"rank {r} {_words(e)}" for r, e in here.items()]
                text = f"group {group}, collective {number} differs: {'; '.join(what)}"
                sentences.append(text)
                suspects |= set(here)
                break
            if number > first:  # the first collective that not all have begun
                behind = [rank for rank in members if last[rank] < number]
                entry = next(iter(here.values()))
                verb = "is" if len(behind) == 1 else "are"
                sentences.append(
                    f"group {group}, collective {number}: {name_ranks(behind)} {verb} "
                    f"behind (last: {first}); {name_ranks(list(here))} began "
                    f"{_words(entry)}"
                )
                suspects |= set(behind)
                break
    return sentences, sorted(suspects)


def _groups(dumps: dict[int, dict]) -> dict[str, list[int]]:
    """Return the members of each group that any rank recorded, by the group's name."""
    found = {}
    for record in dumps.values():
        for name, config in record["pg_config"].items():
            ranks = [int(r) for r in re.findall(r"\d+", config["ranks"])]
            if ranks and name:
                found[name] = ranks
    return found


def _calls(record: dict | None, group: str) -> dict[int, dict]:
    """Return the collectives of a group that one rank recorded, by their numbers."""
    entries = record["entries"] if record else []
    mine = [e for e in entries if e["process_group"][0] == group and not e["is_p2p"]]
    return {entry["collective_seq_id"]: entry for entry in mine}


def _kind(entry: dict) -> str:
    """Return what has to be the same on all ranks."""
    return entry["profiling_name"]


def _words(entry: dict) -> str:
    """Describe a collective: name, sizes, and the reader's line that called it."""
    frames = [f for f in entry["frames"] if is_user_code(f["filename"])]
    where = ""
    if frames:
        where = f" at {Path(frames[0]['filename']).name} line {frames[0]['line']}"
    return f"{entry['profiling_name']} of {entry['input_sizes']}{where}"


def main(arguments: list[str]) -> None:
    """Compare the dumps of a folder, and print what was found."""
    if len(arguments) != 1:
        raise SystemExit("python -m allranks.hangs.flight FOLDER: one folder of dumps")
    try:
        sentences, suspects = compare(read(arguments[0]))
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from None
    print("\n".join(sentences) or "all ranks began the same collectives")
    if suspects:
        print(f"look at {name_ranks(suspects)}")


if __name__ == "__main__":
    main(sys.argv[1:])
