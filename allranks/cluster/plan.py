"""What a cluster should do: the command line, as the processes on its nodes get it."""

import json
import re
from dataclasses import asdict, dataclass, field

NETWORK = "10.18.0"  # exists inside the namespaces only
LOGIN = "login"  # the machine that the reader sits at: the switch's address
NAMES = re.compile(rf"\b(?:{LOGIN}|node\d+)(?=[:\s]|$)")  # in a command


@dataclass(frozen=True)
class Plan:
    """What each node runs.

    num_nodes: they are called node0, node1, ….
    command: words that all nodes run; "{node}" in a word stands for the node's number.
    instead: by node, a shell line that this node runs in place of the command.
    before: by node, a shell line that this node runs first.
    rate: bytes or bits per second of each node's link in both directions, as tc(8)
        writes them ("100mbit"); "" for as fast as the laptop.
    slurm: whether the nodes are a Slurm cluster: each runs slurmd, and the login node
        runs the command, with whose end all ends.
    apart: whether each node has namespaces of its own. Otherwise all are on loopback:
        each name is 127.0.0.1, ports and /dev/shm are shared, and no link can be slow.
    grace_s: seconds from SIGTERM to the end of a node, which nothing survives.
    """

    num_nodes: int
    command: list[str]
    instead: dict[int, str] = field(default_factory=dict)
    before: dict[int, str] = field(default_factory=dict)
    slurm: bool = False
    rate: str = ""
    apart: bool = True
    grace_s: float = 10.0

    def words(self, node: int) -> list[str]:
        """Return what a node runs, as the words of a command."""
        words = ["bash", "-c", self.instead[node]] if node in self.instead else []
        words = words or [w.replace("{node}", str(node)) for w in self.command]
        return words if self.apart else [NAMES.sub("127.0.0.1", w) for w in words]

    def address(self, node: int) -> str:
        """Return the address of a node's link."""
        return f"{NETWORK}.{node + 1}"

    def hosts(self) -> str:
        """Return the nodes' /etc/hosts: each name, and what it stands for."""
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{NETWORK}.254 {LOGIN}"]
        for n in range(self.num_nodes):  # as IPv6 as well: torch's sockets are
            lines += [f"{self.address(n)} node{n}", f"::ffff:{self.address(n)} node{n}"]
        return "\n".join(lines) + "\n"

    def dump(self) -> str:
        """Write the plan as one word for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> "Plan":
        """Read what `dump` wrote."""
        plan = json.loads(text)
        for by_node in "instead", "before":  # JSON's keys are text
            plan[by_node] = {int(node): line for node, line in plan[by_node].items()}
        return cls(**plan)
