"""The brick wall says what the sums say."""

import itertools
import re

import pytest

from allranks.base.units import amount
from allranks.topics import BrickWall
from allranks.topics.sharding.sums import MIXED, STAGES, held, peak, sent


def test_its_facts_are_those_of_the_sums():
    """For each stage: the peak, what is sent, and what a rank has between layers."""
    for stage, reshard in itertools.product(range(4), (True, False)):
        x = BrickWall(stage=stage, reshard=reshard)
        facts, given = x.facts, (4, MIXED)
        for one, (most, num) in enumerate(facts["each"]):
            assert most == peak(one, 7e9, 4, *given, reshard)
            assert num == sent(one, 7e9, 4, 1, MIXED, reshard).inside
        assert facts["between"] == sum(held(stage, 7e9, *given))
        most, num = facts["each"][stage]
        assert max(map(sum, facts["memory"])) == most
        assert facts["peaks"][stage] in facts["memory"]
        assert [sum(kinds) for kinds in facts["peaks"]] == [m for m, _ in facts["each"]]
        assert facts["sent"][-1] == pytest.approx(num)
        assert f"up to {amount(most, 'B')}" in facts["summary"]


def test_only_zero_3_sends_more_and_only_if_it_lets_go():
    """Half as much again; as much as DDP if each layer is gathered once."""
    ratios = {}
    for reshard in True, False:
        each = BrickWall(reshard=reshard).facts["each"]
        ratios[reshard] = [num / each[0][1] for _, num in each]
    assert ratios == {True: [1, 1, 1, 1.5], False: [1, 1, 1, 1]}


def test_the_first_state_does_not_fit_and_the_knife_makes_it_fit():
    """What is drawn in black on yellow is gone from ZeRO-1 on."""
    facts = BrickWall().facts
    assert facts["fits"] == 1 and "more than 80 GB" in facts["summary"]
    assert "of 80 GB" in BrickWall(stage=1).facts["summary"]
    assert BrickWall(billions=500.0).facts["fits"] is None


def test_the_ranks_wait_where_nothing_hides_what_travels():
    """With DDP for the last gradients; with ZeRO-3 also twice for a layer."""
    waits = {
        name: [m[0] for m, still in zip(f["moments"], f["waits"], strict=True) if still]
        for stage, name in enumerate(STAGES)
        for f in [BrickWall(stage=stage).facts]
    }
    assert waits == {
        "DDP": ["reduce"],
        "ZeRO-1": ["reduce", "end"],
        "ZeRO-2": ["reduce", "end"],
        "ZeRO-3": ["start", "loss", "reduce"],
    }


def test_each_moment_says_what_happens():
    """No two moments of a step say the same, and a late step is the last one."""
    for stage in range(4):
        steps = len(BrickWall(stage=stage).facts["moments"])
        said = [BrickWall(stage=stage, step=i).facts["summary"] for i in range(steps)]
        assert len(set(said)) == steps == 13
        assert BrickWall(stage=stage, step=999).facts["summary"] == said[-1]


def test_the_still_picture_has_a_bar_per_rank_and_marks_what_does_not_fit():
    """Each rank in its hue; yellow on each of DDP's bars, and on no other."""
    html, text = (
        BrickWall().picture(**BrickWall().state)._repr_html_(),
        repr(BrickWall()),
    )
    for rank in range(4):
        assert html.count(f'style="fill:var(--rank-{rank}') == 3 * 4
    assert html.count("#ffe45c") == 4
    assert re.search(r"DDP .* 112 GB +no ", text) and "40.3 GB  yes" in text
