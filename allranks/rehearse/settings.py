"""What a rehearsal was asked for; children find it in an environment variable."""

import dataclasses
import json
import os

VARIABLE = "ALLRANKS_REHEARSAL"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The stage of a rehearsal.

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
    """

    folder: str
    gpus: int
    nodes: int = 1
    memory: str = ""
    card: str = ""
    watch_s: float = 60.0
    guard: bool = True
    stubs: dict[str, str] = dataclasses.field(default_factory=dict)
    full: bool = False

    def environment(self) -> dict[str, str]:
        """Return the variables for its processes."""
        return {VARIABLE: json.dumps(dataclasses.asdict(self))}


def read() -> Settings:
    """Return the settings of the rehearsal that this process is part of.

    Raises:
        RuntimeError: if it is part of none.
    """
    if VARIABLE not in os.environ:
        raise RuntimeError(
            f"{VARIABLE} is not set: start with python -m allranks.rehearse"
        )
    return Settings(**json.loads(os.environ[VARIABLE]))
