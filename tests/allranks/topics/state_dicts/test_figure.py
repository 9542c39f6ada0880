"""Live ranks get the answer that the state-dict explorable shows."""

from allranks.topics import StateDictKeys
from allranks.topics.state_dicts import figure


def test_live_ranks_answer_as_shown_and_are_repaired():
    """They agree with two wrappers on one side, and shards in a third on the other."""
    x = StateDictKeys(saved=["DDP", "compile"], loaded=["FSDP2", "DataParallel"])
    x.repaired = True  # which the ranks try anyway
    x._run(None)
    measured = x.measured
    assert measured["same"] and measured["repaired"] == [True, True]
    assert measured["text"].startswith(
        "RuntimeError: Error(s) in loading state_dict for DataParallel:\n\tMissing"
    )
    assert "word for word" in measured["summary"]


def test_another_answer_is_said(monkeypatch):
    """If torch answered differently, the summary would say so."""
    answer = {"text": "?", "num": 0, "keys": [], "repaired": [True, False]}
    monkeypatch.setattr(figure, "_run", lambda *args: answer)
    measured = StateDictKeys().measure()
    assert not measured["same"] and measured["repaired"] == [True, False]
    assert "NOT what is shown" in measured["summary"]
    assert "saving plainly: its outputs DIFFER" in measured["summary"]


def test_strict_false_hides_the_error_and_loads_nothing():
    """Without an error, only the answer says that nothing was loaded."""
    x = StateDictKeys(strict=False)
    assert (x.facts["raises"], x.facts["num"]) == (False, 0)
    assert "nothing is loaded" in x.facts["summary"]
    x.loaded = ["DataParallel"]  # another wrapper with the same prefix
    assert (x.facts["raises"], x.facts["num"]) == (False, 2)
    x.change(saved=["FSDP2"], loaded=[])  # equal keys, other values
    assert x.facts["raises"] and "mixed torch.Tensor and DTensor" in x.facts["text"]


def test_a_repair_is_needed_only_where_it_does_not_load():
    """Then torch's answer is that of the repaired file."""
    x = StateDictKeys(strict=False, repaired=True)
    assert x.facts["repaired"] and x.facts["num"] == 2 and not x.facts["raises"]
    assert x.facts["summary"].endswith("Once repaired, it loads.")
    x.loaded = ["DDP"]
    assert not x.facts["repaired"] and x.facts["summary"].endswith("It loads.")


def test_the_picture_holds_keys_answer_and_repair():
    text = repr(StateDictKeys())
    assert "module.hidden.weight" in text and "Missing key(s)" in text
    assert 'consume_prefix_in_state_dict_if_present(state, "module.")' in text
