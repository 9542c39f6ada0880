"""What the records of a rehearsal prove to be wrong: one law for each kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from allranks.rehearse import laws
from allranks.rehearse.lines import short
from allranks.rehearse.records import GUARD, SAME_NUMBERS, Record, jobs


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


@dataclass(frozen=True)
class Law:
    """What must hold, of each job or of the whole run.

    Attributes:
        kind: names the findings.
        check: yields what is broken. It takes a ``laws.Job`` or the ``laws.Run``.
        scope: says which.
        compares: whether it compares ranks or numbers, which a dry run cannot.
    """

    kind: str
    check: Callable[[Any], laws.Broken]
    scope: Literal["job", "run"] = "job"
    compares: bool = False


def judge(records: list[Record], num_gpus: int) -> list[Finding]:
    """Return all that the laws find, each thing once.

    Args:
        records: of all processes, as ``gather`` returns them.
        num_gpus: of all nodes together.
    """
    scopes = {"job": jobs(records), "run": [laws.Run(records, num_gpus)]}
    findings = (
        Finding(law.kind, *broken)
        for law in LAWS
        if not (law.compares and any(record.dry for record in records))
        for part in scopes[law.scope]
        for broken in law.check(part)
    )
    return list(dict.fromkeys(findings))


LAWS = (  # in the order in which a report names them
    Law("shared-gpu", laws.one_rank_a_gpu),
    Law("stray-memory", laws.no_stray_memory),
    Law(
        "idle-gpu", laws.no_idle_gpu, "run", compares=True
    ),  # a later job may use the others
    Law("wrong-device", laws.tensors_meet_on_their_gpu),
    Law("not-entered", laws.device_contexts_are_entered),
    Law("gradients-not-averaged", laws.gradients_are_averaged, compares=True),
    Law("replicas-differ", laws.replicas_are_equal, compares=True),
    Law("back-and-forth", laws.no_copy_back_and_forth),
    Law(GUARD, laws.guard_finds(GUARD)),
    Law(SAME_NUMBERS, laws.guard_finds(SAME_NUMBERS)),
    Law("samples-twice", laws.no_sample_twice, compares=True),
    Law("samples-never", laws.no_sample_left_out, compares=True),
    Law("no-set-epoch", laws.order_changes, compares=True),
    Law("padded-evaluation", laws.evaluation_counts_once, compares=True),
    Law("ranks-missing", laws.ranks_are_started, compares=True),
    Law("sync-every-pass", laws.gradients_are_sent_once),
    Law("constant-buffers", laws.sent_buffers_change, compares=True),
    Law("gradients-over-gloo", laws.gradients_go_through_nccl),
    Law("one-file", laws.one_writer_a_file, compares=True),
    Law("wrapped-keys", laws.saved_keys_are_the_models),
    Law("little-to-shard", laws.sharding_saves_memory),
    Law("waits-every-step", laws.no_wait_in_every_step, "run"),  # most do
)
KINDS = [law.kind for law in LAWS]
