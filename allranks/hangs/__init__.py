"""Hangs: which tool finds which of them, measured on the clinic's specimens.

A hang has no message, so one needs a tool that makes the ranks say where they stand.
``tools`` lists these, ``attach`` has what they need on the ranks, ``verdicts`` has the
rules that decide whether a tool's output names a rank, ``measure`` runs one tool on one
specimen, and ``flight`` compares the flight recorder's dumps of all ranks.
``python tests/bench hangs`` measures all of them.
"""

from pathlib import Path

from allranks import clinic

DATA = "book/_data/hangs.json"  # the last measurement

# The ranks that the others wait for, in each case that hangs: all ranks, if they wait
# for each other; a pattern for the words that name an address, if that is at fault. The
# clinic calls a case a crash if its own short timeout ends the wait, although with the
# usual timeouts it would hang.
WAITED_FOR = {
    "collective-order": (0, 1),  # each is in another call
    "collective-timeout-gloo": (1,),  # has no more batches
    "ddp-barrier-in-rank0": (1,),  # never comes to rank 0's barrier
    "ddp-collective-in-rank0": (1,),  # never comes to rank 0's all_reduce
    "ddp-rank0-extra-forward": (1,),  # is done, while rank 0 is a step behind
    "ddp-uneven-inputs": (1,),  # has one batch fewer
    "duplicate-rank": (1,),  # calls itself 0
    "early-stop-one-rank": (1,),  # stopped
    "fsdp-full-state-rank0": (1,),  # never comes to rank 0's gathers
    "fsdp-rank0-eval": (0, 1),  # rank 0 is a forward behind
    "fsdp-rank0-forward": (1,),
    "hostname-not-resolved": r"gpu-node",
    "new-group-subset": (2,),  # is no member, so it does not call
    "node-missing-c10d": (1,),  # was never started
    "node-missing-static": (1,),
    "p2p-deadlock": (0, 1),  # both send, none receives
    "pp-rank-skips-step": (1,),  # makes one step fewer
    "rdzv-id-mismatch": (0, 1),  # each waits in a rendezvous of its own
    "worker-forked-lock": (0,),  # waits for its own worker
    "world-size-too-big": (1,),  # was never started
    "torchrun-without-srun": (1,),  # Slurm started the script on one machine
    "validation-uneven-fsdp": (1,),  # has one batch fewer
    "wrong-port-or-firewall": r"connect to \(",
}


def cases(root: Path) -> list[clinic.Specimen]:
    """List the clinic's hangs that run here, also those that a short timeout ends.

    Args:
        root: the folder that has ``clinic/``.

    Raises:
        LookupError: if ``WAITED_FOR`` does not say who is waited for in one of them.
    """
    found = [case for case in clinic.folder(Path(root, "clinic")) if case.runs]
    for case in found:
        if case.fields["symptom"] == "hang" and case.slug not in WAITED_FOR:
            raise LookupError(
                f"clinic/{case.path.name} hangs: say in allranks/hangs/__init__.py, "
                "WAITED_FOR, which ranks the others wait for; then measure it: "
                "python tests/bench hangs"
            )
    return [case for case in found if case.slug in WAITED_FOR]
