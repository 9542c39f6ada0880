"""Play on this machine's GPUs all that the book could only quote (``make gpu``).

That is the doctor on a real nvidia-smi, the scripts with NCCL on 1 to all GPUs, AMP,
memory, the guard's cost, and the failures of the clinic that a GPU can play. Results go
to book/_data/gpu.json, and book/app_status.md shows them: failures with their last
line, and items that were not run with the reason. Without a GPU, nothing is run or
written.

    python tests/gpu                                   # make gpu
    python tests/gpu --only doctor memory              # some groups; others are kept
    python tests/gpu --rehearse out.json --gpus 2      # on CPUs, into another file
"""

import argparse
import json
import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[2])  # for tests.gpu

from tests.gpu import cases, hardware, launches, measures  # noqa: E402
from tests.gpu.play import FAILED, PASSED, ROOT, Item, play  # noqa: E402

DATA = ROOT / "book" / "_data" / "gpu.json"
GROUPS = "doctor", "scripts", "AMP", "memory", "guard", "clinic"


def items(num_gpus: int, device: str) -> list[Item]:
    """Return all items, in the order of the groups."""
    found = launches.items(num_gpus) + measures.items(num_gpus, device)
    return found + cases.items(num_gpus)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line, where --rehearse and --gpus go together."""
    parser = argparse.ArgumentParser(
        "python tests/gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--rehearse", type=Path, metavar="FILE")
    parser.add_argument("--gpus", type=int, default=0, metavar="N")
    args = parser.parse_args(argv)
    if bool(args.rehearse) != (args.gpus > 0):
        parser.error("--rehearse FILE and --gpus N (1 or more) go together")
    if args.rehearse and args.rehearse.resolve() == DATA:
        parser.error(f"a rehearsal is no run on a GPU: not into {DATA.name}")
    return args


def main(argv: list[str] | None = None) -> int:
    """Play and record all items; return 1 without a GPU, or if an item fails."""
    args = parse_args(argv)
    try:
        machine = hardware.look()
    except RuntimeError as error:
        print(f"make gpu: {error}. Nothing was run, and nothing written.")
        return 1
    num_gpus, device, path = machine["num_gpus"], "cuda", DATA
    if args.rehearse:
        num_gpus, device, path = args.gpus, "cpu", args.rehearse
        names = ["a CPU in its place"] * num_gpus
        machine |= {"num_gpus": num_gpus, "names": names, "rehearsal": True}
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the cores
    if not num_gpus:
        print(
            f"make gpu: PyTorch {machine['torch']} sees no GPU on this machine, so "
            "nothing was run, and nothing written."
        )
        return 1
    records = []
    env = {"NCCL_DEBUG": "VERSION"} if "NCCL_DEBUG" not in os.environ else {}
    for item in items(num_gpus, device):
        if item.group in args.only:
            records.append(play(item, num_gpus, env))
            print(line(records[-1]), flush=True)
    write(path, machine, records, set(args.only))
    counts = [sum(r["outcome"] == end for r in records) for end in (PASSED, FAILED)]
    print(f"{counts[0]} passed, {counts[1]} failed; written to {path}")
    return 1 if counts[1] else 0


def line(record: dict) -> str:
    """Return one item's line for the terminal."""
    end, why = record["outcome"], record.get("why", "")
    took = f" ({record['seconds']} s)" if "seconds" in record else ""
    because = f": {why}" if why else ""
    return f"{end:8} {record['group']}: {record['name']}{took}{because}"


def write(path: Path, machine: dict, records: list[dict], played: set[str]) -> None:
    """Write the records, and keep old groups if they are from the same machine.

    Results of another GPU, driver or torch are not kept beside the new ones.
    """
    old = json.loads(path.read_text("utf8")) if path.is_file() else {}
    same = ("names", "driver", "torch", "cuda", "nccl")
    if all(old.get("machine", {}).get(key) == machine.get(key) for key in same):
        kept = [r for r in old["items"] if r["group"] not in played]
        records = sorted(kept + records, key=lambda r: GROUPS.index(r["group"]))
    text = json.dumps({"machine": machine, "items": records}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(text + "\n", "utf8")
    os.replace(new, path)


if __name__ == "__main__":
    sys.exit(main())
