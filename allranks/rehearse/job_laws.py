"""Laws on what a job sends, saves and starts, most of it for nothing."""

from collections.abc import Iterator
from typing import Any

from allranks.base.report import name_ranks
from allranks.base.units import amount
from allranks.rehearse import formulas

Record = dict[str, Any]
Found = Iterator[tuple[str, str]]
STEPS = 4  # a loop has as many, and not a first step that is unlike the others
LARGE = 16e6  # bytes of a peak that is worth a word
SMALL = 0.1  # of a peak, which nobody would miss
FEW = 0.05  # of the gradients' bytes
STATE = "parameters", "gradients", "optimizer"
REDUCES = "all_reduce", "reduce", "reduce_scatter", "all_gather"
ABSENT = "clients joined", "while trying to connect"  # torch's words of ranks' store


def each_pass(records: list[Record], gpus: int, nodes: int) -> Found:
    """DDP averages gradients once in a step, not in each pass that adds to them."""
    for record in records:
        if len(record["ddp"]) != 1 or record["fsdp"] or record["steps"] < 2:
            continue
        model, passes = record["ddp"][0], record["backwards"]
        sent, _ = formulas.sum_of(record, "all_reduce", model["group"])
        if record["added"] < record["steps"] or len(model["group"]) < 2:
            continue
        if abs(sent - passes * model["bytes"]) > 0.01 * sent:
            continue
        calls = [c for c in record["calls"] if c["op"] == "all_reduce" and c["in"]]
        yield (
            f"DDP averages the gradients in each of the {passes / record['steps']:.3g} "
            "backward passes of a step, where once would do. Put all passes but the "
            "last one of a step into `with model.no_sync():`, with their forward",
            calls[0]["line"],
        )
        return


def constant_buffers(records: list[Record], gpus: int, nodes: int) -> Found:
    """DDP does not send buffers in each forward that never change."""
    for record in records:
        for model in record["ddp"]:
            steady = [
                call
                for call in record["calls"]
                if call["op"] == "broadcast"
                and not call["in"]
                and list(call["group"]) == model["group"]
                and call["steps"] >= max(record["steps"] - 1, STEPS)
            ]
            # DDP makes a call for each dtype, in each of a step's forward passes.
            sent = sum(c["bytes"] * c["times"] // c["steps"] for c in steady)
            many = model["buffers"] > FEW * model["bytes"]
            whole = many and sent and sent % model["buffers"] == 0
            if whole and model["constant"]:
                yield (
                    f"DDP sends {amount(model['buffers'], 'B')} of buffers in each "
                    "forward pass, and none of them ever changes. Say "
                    "DDP(..., broadcast_buffers=False)",
                    steady[0]["line"],
                )
                return


def over_gloo(records: list[Record], gpus: int, nodes: int) -> Found:
    """What GPUs send each other in each step goes through NCCL."""
    for record in records:
        each = [
            (line, num_bytes)
            for op, num_bytes, line, _, steps in record["through_host"]
            if op.removesuffix("_coalesced") in ("allreduce", "reduce_scatter")
            and steps >= max(record["steps"] - 1, STEPS)
        ]
        if each and not record["late_calls"]:
            yield (
                f"{amount(sum(n for _, n in each), 'B')} on GPUs go through gloo in "
                "each step, so by way of the host. Name NCCL for them: "
                'init_process_group("nccl"), or "cpu:gloo,cuda:nccl" if the CPU '
                "sends, too",
                each[0][0],
            )
            return


def wrapped_keys(records: list[Record], gpus: int, nodes: int) -> Found:
    """A saved state dict has the keys of the model, and not of its wrapper."""
    for record in records:
        for line, _, wrapped in record["saved"]:
            if wrapped:
                yield (
                    'all keys of a saved state dict begin with "module.", so the model '
                    "without its wrapper cannot load it. Save "
                    "model.module.state_dict()",
                    line,
                )
                return


def one_file(records: list[Record], gpus: int, nodes: int) -> Found:
    """No two ranks of a host save to one file."""
    writers: dict[tuple[str, str, str], set[int]] = {}
    for record in records:
        for line, path, _ in record["saved"]:
            if path and record["rank"] is not None:
                key = record["host"], path, line
                writers.setdefault(key, set()).add(record["rank"])
    for (_, path, line), ranks in writers.items():
        if len(ranks) > 1:
            yield (
                f"{name_ranks(sorted(ranks))} save to one file, "
                f"{path.rpartition('/')[2]}: it is torn, or has what the last one "
                "wrote. Let rank 0 alone save, and the others wait for it, or give "
                "each rank a file of its own",
                line,
            )
            return


def little_to_shard(records: list[Record], gpus: int, nodes: int) -> Found:
    """What FSDP shards is a part of the memory that one would miss."""
    for record in records:
        if not record["fsdp"] or record["steps"] < 2:
            continue
        ranks = len(record["fsdp"][0]["group"])
        for gpu in record["gpus"]:
            held = gpu["holders"]
            whole = ranks * sum(held.get(name, 0) for name in STATE)
            most = max(held, key=held.get, default="")
            if gpu["peak"] < LARGE or whole > SMALL * gpu["peak"] or most in STATE:
                continue
            yield (
                f"FSDP saves almost nothing: of {amount(gpu['peak'], 'B')} at the "
                "peak, parameters, gradients and optimizer would take no more than "
                f"{amount(whole, 'B')} if they were whole. Most is {most} "
                f"({amount(held[most], 'B')}), which sharding leaves as it is: use "
                "activation checkpointing, or a smaller batch or input",
                "",
            )
            return


def never_came(records: list[Record], gpus: int, nodes: int) -> Found:
    """All ranks of a job are started."""
    came = {r["rank"] for r in records if r["rank"] is not None}
    for record in records:
        error = record["error"] or {"text": "", "line": record["stands"]}
        missing = sorted({*range(record["asked"])} - came)
        late = any(words in error["text"] for words in ABSENT) or (
            record["meeting"] and not record["ended"]
        )
        if late and missing and record["processes"] < record["asked"]:
            yield (
                f"WORLD_SIZE is {record['asked']}, and nobody started "
                f"{name_ranks(missing)}, for which {name_ranks(sorted(came))} waited. "
                f"Start a process for each rank: torchrun --nproc-per-node "
                f"{record['asked']}, or mp.spawn",
                error["line"],
            )
            return


def own_apart(records: list[Record]) -> Iterator[tuple[str, str]]:
    """Yield where weights differ, though the program has averaged their gradients."""
    ranks = [r for r in records if r["rank"] is not None and r["own"]]
    talk = all(any(c["op"] in REDUCES for c in r["calls"]) for r in ranks)
    if len(ranks) < 2 or len(ranks) < ranks[0]["world_size"] or not talk:
        return
    for (step, number), _, line in ranks[0]["own"]:
        sums = [own[1] for r in ranks for own in r["own"] if own[0] == [step, number]]
        counts, gradients, weights = (set(each) for each in zip(*sums, strict=True))
        told = len(sums) == len(ranks) and all(g == g and g for g in gradients)
        if told and len(counts) == len(gradients) == 1 and len(weights) > 1:
            yield (
                f"before step {step + 1} all ranks have the same gradients, so the "
                "program averages them, but their parameters differ: nobody made them "
                "equal. Broadcast them from rank 0 before the first step, or build the "
                "model from one seed",
                line,
            )
            return


LAWS = {
    "ranks-missing": never_came,
    "sync-every-pass": each_pass,
    "constant-buffers": constant_buffers,
    "gradients-over-gloo": over_gloo,
    "one-file": one_file,
    "wrapped-keys": wrapped_keys,
    "little-to-shard": little_to_shard,
}
