"""Launch the doctor and the chapters' scripts as their pages do, a GPU per rank."""

import json
import re
import sys

from tests.gpu.play import FAILED, PASSED, ROOT, TORCHRUN, Ended, Item

ALONE = {  # started with python
    "ch10_sums": (),
    "ch2_before": (),
    "ch2_data_parallel": (),
    "ch3_save_load": (),
    "ch5_single": (),
    "ch6_model_parallel": (),
}
RANKS = {  # started by torchrun, with this number of ranks or more
    "ch1_environment": 1,
    "ch2_after": 1,
    "ch3_resume": 1,
    "ch4_ranks": 1,
    "ch5_async": 2,
    "ch5_ddp": 1,
    "ch6_by_hand": 2,
    "ch6_pipeline": 2,
    "ch6_tensor": 1,
    "ch7_backend": 1,
    "ch7_broadcast": 1,
    "ch7_collectives": 1,
    "ch7_hierarchy": 1,
    "ch7_measure": 2,
    "ch8_autograd": 1,
    "ch8_buckets": 1,
    "ch8_compile": 1,
    "ch8_compress": 1,
    "ch8_custom_op": 1,
    "ch8_ddp_by_hand": 1,
    "ch8_flat": 1,
    "ch8_local_sgd": 1,
    "ch8_per_parameter": 1,
    "ch8_powersgd": 1,
    "ch8_trace": 2,
    "ch9_balance": 1,
    "ch9_data": 1,
    "ch9_loader": 1,
    "ch9_packing": 1,
    "ch9_seeds": 1,
    "ch9_shards": 1,
    "ch9_uneven": 1,
    "ch10_accumulate": 1,
    "ch10_amp": 1,
    "ch10_autocast": 1,
    "ch10_batch": 2,
    "ch10_clip": 1,
    "ch10_determinism": 1,
    "ch10_precision": 1,
}
SPAWNS = "ch5_ddp_spawn"  # starts its ranks itself


def doctor(ended: Ended) -> tuple[str, dict]:
    """Judge the doctor: it passes if it answered and no check failed.

    The facts are what it found, check by check.
    """
    try:
        found = json.loads(ended.text[ended.text.index("{") :])
        checks = {c["name"]: [c["status"], c["found"]] for c in found["checks"]}
    except (ValueError, KeyError, TypeError):
        return FAILED, {"why": f"no JSON came from it; its last line: {ended.last}"}
    bad = [name for name, (status, _) in checks.items() if status == "fail"]
    why = {"why": f"these checks fail: {', '.join(bad)}"} if bad else {}
    return (FAILED if bad else PASSED), {"checks": checks} | why


def launched(ended: Ended) -> tuple[str, dict]:
    """Judge a launch: it passes with exit code 0.

    The facts are the devices that it named, and NCCL's version.
    """
    outcome = PASSED if ended.code == 0 else FAILED
    facts = {"last": ended.last}
    if devices := sorted(set(re.findall(r"\bcuda:\d+", ended.text))):
        facts["devices"] = devices
    if version := re.search(r"NCCL version (\S+)", ended.text):
        facts["nccl"] = version[1]
    return outcome, facts


def items(num_gpus: int) -> list[Item]:
    """Return items for the doctor, and for each script on 1 to ``num_gpus`` ranks."""
    scripts = ROOT / "scripts"
    command = (sys.executable, "-m", "allranks.doctor", "--json")
    found = [Item("doctor", "allranks.doctor --json", 1, command, judge=doctor)]
    for name, arguments in ALONE.items():
        command = (sys.executable, str(scripts / f"{name}.py"), *arguments)
        found.append(Item("scripts", name, 1, command, judge=launched))
    for name, least in sorted([*RANKS.items(), (SPAWNS, 1)]):
        for world_size in range(least, max(least, num_gpus) + 1):
            size = ("--nproc-per-node", str(world_size))
            script = str(scripts / f"{name}.py")
            command = (*TORCHRUN, *size, script)
            if name == SPAWNS:
                command = (sys.executable, script, *size)
            ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
            item = Item("scripts", f"{name}, {ranks}", world_size, command)
            found.append(Item(**vars(item) | {"judge": launched}))
    return found
