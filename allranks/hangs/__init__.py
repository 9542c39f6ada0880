"""Hangs: which tool finds which, measured on the clinic's specimens.

A hang has no message. ``tools`` has the tools that break the silence, ``attach`` what
they need on the ranks, ``verdicts`` the rules that read from a tool's words whom it
names, ``measure`` runs one tool on one specimen, and ``flight`` compares the flight
recorder's dumps of all ranks. ``python tests/bench hangs`` measures all of them.
"""

from pathlib import Path

from allranks import clinic

DATA = "book/_data/hangs.json"  # the last measurement

# Each case that waits, and for which ranks: all, where they wait for each other. Where
# an address is at fault: a pattern for the words that give it. If a short timeout of
# its own ends the wait, the clinic calls it a crash; in real life it hangs.
WAITED_FOR = {
    "collective-order": (0, 1),  # each is in another call
    "collective-timeout-gloo": (1,),  # has no more batches
    "ddp-barrier-in-rank0": (1,),  # never comes to rank 0's barrier
    "ddp-collective-in-rank0": (1,),  # nor to its all_reduce
    "ddp-rank0-extra-forward": (1,),  # is done; rank 0 is a step behind
    "ddp-uneven-inputs": (1,),  # has one batch less
    "duplicate-rank": (1,),  # calls itself 0
    "early-stop-one-rank": (1,),  # stopped
    "fsdp-full-state-rank0": (1,),  # does not come to rank 0's gathers
    "fsdp-rank0-forward": (1,),
    "hostname-not-resolved": r"gpu-node",
    "new-group-subset": (2,),  # is no member, so it does not call
    "node-missing-c10d": (1,),  # was never started
    "node-missing-static": (1,),
    "p2p-deadlock": (0, 1),  # both send, none receives
    "pp-rank-skips-step": (1,),  # has one step less
    "rdzv-id-mismatch": (0, 1),  # each waits in a meeting of its own
    "world-size-too-big": (1,),  # was never started
    "wrong-port-or-firewall": r"connect to \(",
}


def cases(root: Path) -> list[clinic.Specimen]:
    """List the clinic's hangs that run here, and those that their own timeout ends.

    Raises:
        LookupError: if it is not said who is waited for in one of them.
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
