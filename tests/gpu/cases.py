"""Play the clinic's quoted cases on GPUs, and compare their messages.

Each program makes the mistake of a case on as few GPUs as will show it. It passes if it
fails (unless the mistake only causes a warning), if a sign of the case matches what it
prints, and if ``allranks.diagnose`` names the case first.
"""

import re
import sys
from dataclasses import dataclass

from allranks import clinic
from allranks.clinic.cases import AND
from allranks.diagnose.suspects import diagnose
from allranks.diagnose.text import Log
from tests.gpu.play import FAILED, PASSED, ROOT, TORCHRUN, Ended, Item

HEAD = """
import os
import torch
import torch.distributed as dist
from torch import nn
"""
WATCHDOG = """
import time
from datetime import timedelta
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", timeout=timedelta(seconds=10))
dist.all_reduce(torch.ones(1, device="cuda"))
if dist.get_rank() == 0:
    time.sleep(60)
dist.all_reduce(torch.ones(1, device="cuda"))
torch.cuda.synchronize()
"""


@dataclass(frozen=True)
class Program:
    """A mistake: its code, its ranks (0: no torchrun), and the GPUs it needs.

    ``says`` is what it must print if the clinic has no case of this name.
    """

    code: str
    ranks: int = 0
    needs: int = 1
    warns: bool = False
    says: str = ""


PLAYED = {
    "cuda-oom": Program(
        # Only a fraction of the memory, so that no other job on the GPU suffers.
        "torch.cuda.set_per_process_memory_fraction(0.02)\n"
        "total = torch.cuda.get_device_properties(0).total_memory\n"
        "torch.empty(total // 8, device='cuda')\n"
    ),
    "invalid-device-ordinal": Program(
        "torch.cuda.set_device(torch.cuda.device_count())\n"
    ),
    "duplicate-gpu": Program(
        "dist.init_process_group('nccl')\n"
        "dist.all_reduce(torch.ones(1, device='cuda'))\n",
        ranks=2,
    ),
    "no-backend-for-device": Program(
        "torch.cuda.set_device(0)\ndist.init_process_group('nccl')\n"
        "dist.all_reduce(torch.ones(1))\n",
        ranks=1,
    ),
    "two-devices": Program("nn.Linear(2, 2).cuda()(torch.ones(1, 2))\n"),
    "cuda-fork": Program(
        "import torch.multiprocessing as mp\n"
        "def worker(rank):\n    torch.ones(1, device='cuda')\n"
        "torch.ones(1, device='cuda')\n"
        "mp.start_processes(worker, nprocs=2, start_method='fork')\n"
    ),
    "dp-rnn-flatten": Program(
        "rnn = nn.LSTM(8, 8, 2).cuda()\n"
        "for p in rnn.parameters():\n    p.data = p.data.clone()\n"
        "rnn(torch.ones(3, 1, 8, device='cuda'))\n",
        warns=True,
    ),
    "device-side-assert": Program(
        "logits = torch.randn(4, 3, device='cuda')\n"
        "labels = torch.tensor([0, 1, 2, 3], device='cuda')\n"
        "nn.functional.cross_entropy(logits, labels).item()\n",
        says="device-side assert triggered",
    ),
    "nccl-watchdog": Program(WATCHDOG, ranks=2, needs=2),
}
NOT_PLAYED = {
    "ascend-hccl": "it is of Huawei's NPUs",
    "compile-ddp-optimizer": "it needs a model that torch.compile cannot split",
    "deepspeed-op-not-built": "it needs DeepSpeed, and a compiler that fails",
    "gpu-hardware-fault": "it needs a GPU that is broken",
    "illegal-memory-access": "it needs a kernel that writes where it must not",
    "no-distributed-build": "it needs a torch that was built without distributed",
    "no-libuv": "it is of Windows",
    "deepspeed-batch": "it takes DeepSpeed, which this book does not install",
    "device-map-auto": "it takes transformers, which this book does not install",
    "exclusive-gpu": "it takes a GPU in exclusive mode, which only root can set",
    "exit-barrier": "it takes two machines, of which one ends late",
    "memory-fragmented": "it takes hours until memory is in pieces",
    "loss-scale-floor": "it takes DeepSpeed, which this book does not install",
    "nccl-network": "it takes two machines and a network that fails",
    "nccl-symbol": "it takes an installation with two NCCLs",
    "no-peer-access": "it takes two GPUs that cannot reach each other",
    "pp-layers-indivisible": "it takes Megatron-LM, which this book does not install",
    "zero3-empty-weights": "it takes DeepSpeed, which this book does not install",
    "gloo-wrong-address": "it takes two machines, one with a wrong name",
    "map-location-gpu0": "its symptom is a table of nvidia-smi, and no message",
    "nccl-shm": "it takes a container with a /dev/shm that is too small",
    "nccl-unhandled-cuda-error": "it takes a GPU or a driver that is broken",
}


def judge(case: clinic.Specimen | None, all_cases: list, program: Program):
    """Return a judge that compares a case's output with its signs and diagnosis."""

    def compare(ended: Ended) -> tuple[str, dict]:
        log = Log(("log", ended.text))
        suspects = [suspect.case.slug for suspect in diagnose(log, all_cases)]
        signs = (
            [sign.partition(AND)[0] for _, sign in case.signs]
            if case
            else [program.says]
        )
        facts = {"said": said(ended, signs), "diagnosis": suspects[:3]}
        if not program.warns and ended.code == 0:
            return FAILED, facts | {"why": f"the mistake went through: {ended.last}"}
        if case is None and not re.search(program.says, ended.text):
            return FAILED, facts | {"why": f"no {program.says!r}: {facts['said']}"}
        if case is None:
            return PASSED, facts
        hits = [hit for s in diagnose(log, [case]) for hit in s.hits]
        facts["signs"] = [sign.pattern for sign, _ in hits]
        if not hits:
            return FAILED, facts | {"why": f"no sign matches: {facts['said']}"}
        if suspects[:1] != [case.slug]:
            first = suspects[0] if suspects else "nothing"
            return FAILED, facts | {"why": f"the diagnosis says {first} first"}
        return PASSED, facts

    return compare


def said(ended: Ended, signs: list[str]) -> str:
    """Return the line that a sign matches, or else the last line."""
    lines = [line.strip() for line in ended.text.splitlines() if line.strip()]
    for sign in signs:
        for line in lines:
            if re.search(sign, line):
                return line[:400]
    return ended.last


def items(num_gpus: int) -> list[Item]:
    """Return an item for each quoted case, with the reason if it can't be played."""
    cases = {case.slug: case for case in clinic.folder(ROOT / "clinic")}
    found = []
    for slug, program in PLAYED.items():
        command = (sys.executable, "-c", HEAD + program.code)
        if program.ranks:
            size = ("--nproc-per-node", str(program.ranks))
            starter = "import sys; exec(sys.argv[1])"
            command = (*TORCHRUN, *size, "--no-python", sys.executable, "-c", starter)
            command += (HEAD + program.code,)
        compare = judge(cases.get(slug), list(cases.values()), program)
        item = Item("clinic", slug, program.needs, command, "", 120.0, compare)
        found.append(item)
    return found + [Item("clinic", slug, why=why) for slug, why in NOT_PLAYED.items()]
