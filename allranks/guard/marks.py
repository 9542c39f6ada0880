"""Invariant: a restart goes on with what was saved, all of it, under its own names."""

from .checks import Checks
from .digests import local, pieces, settle, shard, sums
from .exchange import GuardError, names
from .settings import OPTIMIZER
from .sharded import bare
from .tensors import tensors_of

WHY = {
    "parameter": "Was the checkpoint loaded, with strict=True, into this very model?",
    "buffer": "Was the checkpoint loaded, with strict=True, into this very model?",
    "optimizer state": "Load the optimizer's state_dict too, into an optimizer that "
    "got the parameters in the same order: states go by position, not by name.",
    "setting": "Load the optimizer's state_dict, and then the scheduler's; "
    'skip=("optimizer",) if you changed it.',
}


def made(checks: Checks) -> dict:
    """Describe the state of all ranks in plain numbers and words."""
    passing = {
        f"{prefix}{'.' * bool(prefix)}{name}"
        for prefix, module in checks.model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    keys, own = [], []
    kinds = tensors_of(checks, ("parameter", "buffer", "optimizer state"))
    for kind, tensors in kinds.items():
        for name, tensor in tensors.items():
            if name not in passing:
                key, of, parameter = name.rpartition(" of ")
                keys.append(f"{kind} {key}{of}{bare(parameter)}")
                own += [shard(tensor), sums(pieces(local(tensor)))]
    rows = checks.exchange.integers("a mark of the state", settle([own])[0][0])
    settings = "" if "optimizer" in checks.skip else checks.settings.texts()[OPTIMIZER]
    found: dict[str, dict[str, int]] = {}
    for place, key in enumerate(keys):
        pairs = [row[2 * place : 2 * place + 2] for row in rows]
        if key.startswith("buffer"):
            pairs = pairs[:1]  # the others' statistics are their own; one is saved
        else:
            pairs.append(pairs[checks.exchange.rank])  # of copies, this rank's own
        found[key] = {str(part): digest for part, digest in pairs}
    lines = dict(line.split("=", 1) for line in settings.splitlines() if "=" in line)
    return {"tensors": found, "settings": lines, "steps": checks.steps}


def compare(checks: Checks, mark: dict) -> None:
    """Raise on all ranks if one of them goes on with something else than was saved."""
    exchange, said = checks.exchange, _differences(mark, made(checks))
    failed = [row[0] for row in exchange.integers("resumed", [int(bool(said))])]
    if not any(failed):
        return
    texts = exchange.texts(said)
    who = [rank for rank, bad in zip(exchange.ranks, failed, strict=True) if bad]
    text = next(text for text, bad in zip(texts, failed, strict=True) if bad)
    raise GuardError(f"resumed at step {mark['steps']}: on {names(who)}, {text}")


def _differences(mark: dict, now: dict) -> str:
    """Say what is missing or other than it was: the first of each kind."""
    saved, held = mark["tensors"], now["tensors"]
    found = []
    for kind in ("parameter", "buffer", "optimizer state"):
        keys = [key for key in saved if key.startswith(f"{kind} ")]
        lost = [key for key in keys if key not in held]
        other = [k for k in keys if k in held and _apart(saved[k], held[k])]
        for what, bad in (("missing", lost), ("not what was saved", other)):
            if bad:
                more = f" (and {len(bad) - 1} more of {len(keys)})" if bad[1:] else ""
                found.append((kind, f"the {bad[0]}{more} is {what}"))
    for key, value in mark["settings"].items():
        if key in now["settings"] and now["settings"][key] != value:
            found.append(
                ("setting", f"{key}={now['settings'][key]}, saved was {value}")
            )
            break
    whys = dict.fromkeys(WHY[kind] for kind, _ in found)
    return "; ".join(text for _, text in found) + ". " * bool(found) + " ".join(whys)


def _apart(saved: dict, held: dict) -> bool:
    """Whether a part that both know has other bits; other shards cannot be compared."""
    return any(held[part] != saved[part] for part in saved if part in held)
