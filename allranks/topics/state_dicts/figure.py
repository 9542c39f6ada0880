"""State-dict keys: what wrappers do to them, what torch says, and what repairs them."""

import itertools
from typing import Any

import traitlets

from allranks.base.picture import Picture, table
from allranks.live.ranks import Ranks
from allranks.topics.kit.explorable import Explorable
from allranks.topics.state_dicts import sums
from allranks.topics.state_dicts.sums import MOST, PREFIX


class StateDictKeys(Explorable):
    """A model that is saved and one that loads, each in its wrappers.

    Traits:
        saved, loaded: wrappers from the inside out, at most three: "DDP", "compile",
            "DataParallel", "FSDP2". The model has two layers.
        strict: the argument of ``load_state_dict``.
        repaired: whether the file is repaired first, if it does not load as it is.
    """

    name = "state_dicts"

    saved = traitlets.List(traitlets.Unicode(), ["DDP"]).tag(sync=True)
    loaded = traitlets.List(traitlets.Unicode(), []).tag(sync=True)
    strict = traitlets.Bool(True).tag(sync=True)
    repaired = traitlets.Bool(False).tag(sync=True)

    @staticmethod
    def compute(
        saved: list[str], loaded: list[str], strict: bool, repaired: bool = False
    ) -> dict[str, Any]:
        """Return the keys, torch's answer, and the programs that do it right.

        Raises:
            ValueError: if torch refuses an order of wrappers.

        >>> facts = StateDictKeys.compute(["DDP", "compile"], [], strict=False)
        >>> facts["saved"]["keys"][0], facts["raises"], facts["num"]
        ('_orig_mod.module.hidden.weight', False, 0)
        """
        for order in saved, loaded:
            sums.check(order)
        writer, reader = map(sums.describe, (saved, loaded))
        found = sums.answer(writer, reader, strict)
        mended = repaired and not found["num"]
        if mended:
            found = {"raises": False, "text": sums.MATCHED, "num": len(sums.SHAPES)}
        # The worst outcome: strict=False returns the keys that do not fit, and hardly a
        # program looks at what is returned.
        lost = not found["raises"] and not found["num"]
        ending = "torch raises an error" if found["raises"] else "It loads"
        if mended:
            ending = "Once repaired, it loads"
        if lost:
            ending = "No error, and nothing is loaded: the weights stay as they were"
        values = {"Tensor": "", "DTensor": " (DTensors)"}
        return {
            "saved": writer,
            "loaded": reader,
            **found,
            "repaired": mended,
            "programs": sums.programs(writer, reader, strict),
            "summary": f"Saved from {writer['call']}: keys like {writer['keys'][0]}"
            f"{values[writer['values']]}. {reader['call']} wants keys like "
            f"{reader['keys'][0]}{values[reader['values']]}. {ending}.",
        }

    @staticmethod
    def picture(**state: Any) -> Picture:
        """Set a table of the keys of both sides, torch's answer and the repair."""
        facts = StateDictKeys.compute(**state)
        sides = facts["saved"], facts["loaded"]
        head = [f"{side['call']} ({side['values']}s)" for side in sides]
        head = [f"saved: {head[0]}", f"loads: {head[1]}"]
        rows = list(zip(*(side["keys"] for side in sides), strict=True))
        repair = " ⏎ ".join(filter(None, facts["programs"]["repair"].split("\n")))
        text = [("torch says", " ".join(facts["text"].split())), ("repair", repair)]
        return table(head, rows + text)

    def measure(self) -> dict[str, Any]:
        """Wrap, save, load and repair on two live ranks.

        Returns:
            ``text``, torch's answer; ``same``, whether the answer, the keys and the
            tensors loaded are those shown; ``repaired``, whether each of the two ways
            to do it right works.
        """
        args = list(self.saved), list(self.loaded), self.strict
        facts = self.compute(*args)
        with Ranks(2) as ranks:
            found = ranks.run(_run, *args, timeout=90, quiet=True)
        keys = [facts[side]["keys"] for side in ("saved", "loaded")]
        expected = {"text": facts["text"], "num": facts["num"], "keys": keys}
        # A rank's answer has more in it, so only the expected keys are compared.
        same = all(answer | expected == answer for answer in found)
        right = [
            all(ways) for ways in zip(*(a["repaired"] for a in found), strict=True)
        ]
        words = "word for word what is shown" if same else "NOT what is shown"
        ends = ["its outputs equal" if ok else "its outputs DIFFER" for ok in right]
        return {
            "text": found[0]["text"],
            "same": same,
            "repaired": right,
            "summary": f"Two live ranks wrapped, saved and loaded. Torch's answer is "
            f"{words}:\n{found[0]['text']}\nAfter the repair of the file: {ends[0]}. "
            f"After saving plainly: {ends[1]}.",
        }


def _run(*args: Any) -> dict[str, Any]:
    """Run ``runs.run`` on a live rank, which imports it there."""
    from allranks.topics.state_dicts.runs import run

    return run(*args)


def cases() -> list[dict]:
    """Return states, refused orders too, in which Python and JavaScript must agree."""
    orders = [
        list(order)
        for length in range(MOST + 1)
        for order in itertools.product(PREFIX, repeat=length)
    ]
    partners = [], ["DDP"], ["compile", "DDP"], ["FSDP2"], ["DDP", "FSDP2", "compile"]
    pairs = [(order, partner) for order in orders for partner in partners]
    pairs += [(loaded, saved) for saved, loaded in pairs]
    pairs += [(["ddp"], []), ([], [""]), (["DDP"] * 4, []), ([], ["DataParallel"] * 5)]
    pairs += [(["FSDP2", last], []) for last in ("FSDP2", "DDP")]
    return [
        {"saved": saved, "loaded": loaded, "strict": i % 3 > 0, "repaired": i % 4 == 1}
        for i, (saved, loaded) in enumerate(pairs)
    ]
