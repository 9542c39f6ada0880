"""Invariant: a restart continues with everything that was saved, under its own name."""

from typing import Any

from allranks.guard.agreement import Agreement
from allranks.guard.buffers import Buffers
from allranks.guard.digests import local, pieces, settle, shard, sums
from allranks.guard.exchange import Exchange, GuardError
from allranks.guard.targets import Targets
from allranks.guard.wrappers import bare

LOAD = "Was the checkpoint loaded, with strict=True, into this very model?"
WHY = {
    "parameter": LOAD,
    "buffer": LOAD,
    "optimizer state": "Load the optimizer's state_dict too, into an optimizer that "
    "got the parameters in the same order: states go by position, not by name.",
    "setting": "Load the optimizer's state_dict, and then the scheduler's; "
    'skip=("optimizer",) if you changed it.',
}
KINDS = "parameter", "buffer", "optimizer state"


class Checkpoints:
    """Describes the state in a mark, and compares with it after a restart.

    A mark is saved with the checkpoint, so it holds nothing but numbers and strings.
    """

    def __init__(
        self,
        exchange: Exchange,
        targets: Targets,
        buffers: Buffers,
        agreement: Agreement,
    ) -> None:
        self.exchange, self.targets = exchange, targets
        self.buffers, self.agreement = buffers, agreement

    def mark(self, steps: int) -> dict[str, Any]:
        """Describe the state of all ranks after a number of steps."""
        passing = {
            f"{prefix}.{name}" if prefix else name
            for prefix, module in self.targets.model.named_modules()
            for name in module._non_persistent_buffers_set
        }
        keys, own = [], []
        for kind, tensors in self.targets.tensors(KINDS, self.buffers).items():
            for name, tensor in tensors.items():
                if name not in passing:
                    key, of, parameter = name.rpartition(" of ")
                    keys.append(f"{kind} {key}{of}{bare(parameter)}")
                    own += [shard(tensor), sums(pieces(local(tensor)))]
        rows = self.exchange.integers("a mark of the state", settle([own])[0][0])
        digests: dict[str, dict[str, int]] = {}
        for place, key in enumerate(keys):
            pairs = [row[2 * place : 2 * place + 2] for row in rows]  # shard, digest
            if key.startswith("buffer"):
                pairs = pairs[:1]  # only one rank's statistics are saved
            else:
                # Of several copies the last in the dict counts: this rank's own.
                pairs.append(pairs[self.exchange.rank])
            digests[key] = {str(part): digest for part, digest in pairs}
        text = ""
        if "optimizer" not in self.targets.skip:
            text = self.agreement.optimizers()
        lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return {"tensors": digests, "settings": lines, "steps": steps}

    def compare(self, mark: dict[str, Any]) -> None:
        """Raise on all ranks if one of them does not continue with what was saved.

        Args:
            mark: what ``mark`` returned before the restart.

        Raises:
            GuardError: with the first difference of each kind.
        """
        said = _differences(mark, self.mark(mark["steps"]))
        rows = self.exchange.integers("resumed", [int(bool(said))])
        failed = [row[0] == 1 for row in rows]
        if any(failed):
            who, text = self.exchange.first_of(failed, said)
            raise GuardError(f"resumed at step {mark['steps']}: on {who}, {text}")


def _differences(mark: dict[str, Any], now: dict[str, Any]) -> str:
    """Say what is missing or has changed, naming the first of each kind."""
    saved, present = mark["tensors"], now["tensors"]
    differences = []
    for kind in KINDS:
        keys = [key for key in saved if key.startswith(f"{kind} ")]
        lost = [key for key in keys if key not in present]
        other = [k for k in keys if k in present and _apart(saved[k], present[k])]
        for what, bad in (("missing", lost), ("not what was saved", other)):
            if bad:
                more = f" (and {len(bad) - 1} more of {len(keys)})" if bad[1:] else ""
                differences.append((kind, f"the {bad[0]}{more} is {what}"))
    for key, value in mark["settings"].items():
        if key in now["settings"] and now["settings"][key] != value:
            differences.append(
                ("setting", f"{key}={now['settings'][key]}, saved was {value}")
            )
            break
    if not differences:
        return ""
    whys = dict.fromkeys(WHY[kind] for kind, _ in differences)
    return f"{'; '.join(text for _, text in differences)}. {' '.join(whys)}"


def _apart(saved: dict[str, int], present: dict[str, int]) -> bool:
    """Tell whether a shard that both marks know has different bits in them."""
    return any(present[part] != saved[part] for part in saved if part in present)
