"""Run one check so that it can neither break nor hang the others."""

from __future__ import annotations

import sys
import threading

from allranks.doctor import checks, nvidia_smi, wheels
from allranks.doctor.facts import in_a_line

CHECKS = checks.CHECKS


def there_is(need: str) -> bool:
    """Tell whether this machine has what a check needs.

    Args:
        need: one of the words that ``Check`` lists.
    """
    if need == "gpus":
        return bool(nvidia_smi.survey()[0])
    if need == "linux":
        return sys.platform == "linux"
    torch, _ = wheels.load()
    if need == "torch" or torch is None:
        return torch is not None
    built = bool(torch.version.cuda)
    return built if need == "cuda" else built and torch.cuda.is_available()


def examine(name: str) -> dict[str, str]:
    """Run a check; if it raises an error or hangs, the result says so.

    Returns:
        ``name``, ``status`` (ok, warn, fail or skip), ``found``, ``fix`` and ``why``.
    """
    check = CHECKS[name]
    if check.loads_torch:
        wheels.load()  # outside the check's time limit, as a disk may be slow
    late = f"no answer in {check.seconds} s"
    result = ["warn", late, "try again when it is idle"]

    def work() -> None:
        try:
            lacks = [need for need in check.needs if not there_is(need)]
            result[:] = ("skip", f"no {lacks[0]}") if lacks else check.answer()
        except BaseException as error:
            found = f"this check broke: {in_a_line(error)}"
            result[1:] = found, "please report this line"

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(check.seconds)
    status, found, *fix = list(result)  # a copy, because a late answer changes the list
    facts = {"name": name, "status": status, "found": found}
    return {**facts, "fix": "".join(fix), "why": check.why}
