"""The laws of sharding hold for any size, and the figures are those of the sources."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.topics.collectives import costs
from allranks.topics.collectives.sums import schedule
from allranks.topics.sharding.published import MACHINES, RUNS
from allranks.topics.sharding.sums import (
    FSDP_MIXED,
    MIXED,
    PRECISIONS,
    Precision,
    first_that_fits,
    held,
    leaves_node,
    memory,
    moves,
    peak,
    seconds,
    sent,
    tokens_to_hide,
    traffic,
    walk,
)

STAGES, SHARDS = st.integers(0, 3), st.integers(1, 9)
LAYERS, BYTES = st.integers(1, 9), st.integers(1, 16)
NUMBERS = st.builds(Precision, BYTES, BYTES, BYTES, st.none() | BYTES)
BIG = 1e9


@settings(max_examples=200, deadline=None)
@given(STAGES, LAYERS, SHARDS, NUMBERS, st.booleans())
def test_the_moments_of_a_step_send_what_the_formula_says(
    stage, num_layers, shards, numbers, reshard
):
    moments = walk(stage, num_layers, reshard)
    total = sum(moves(moment, stage, BIG, shards, numbers) for moment in moments)
    law = sent(stage, BIG, shards, precision=numbers, reshard=reshard)
    assert total == pytest.approx(law.inside) and law.across == 0


@settings(max_examples=200, deadline=None)
@given(STAGES, LAYERS, SHARDS, NUMBERS, st.booleans())
def test_a_step_holds_at_least_its_parts_and_at_most_two_layers_more(
    stage, num_layers, shards, numbers, reshard
):
    """When the optimizer steps, a rank has what ``held`` says; else no less at most."""
    moments = walk(stage, num_layers, reshard)
    at = {m.name: memory(m, stage, BIG, shards, numbers) for m in moments}
    # ZeRO-1's gradients are whole until they are added up.
    rest = at["step"] if stage != 1 else at["backward"]
    assert rest == pytest.approx(held(stage, BIG, shards, numbers))
    most = peak(stage, BIG, num_layers, shards, numbers, reshard)
    assert most >= sum(held(stage, BIG, shards, numbers)) * (1 - 1e-12)
    if stage == 3 and reshard:
        whole = 2 * (numbers.weight + numbers.grad) * BIG / num_layers
        assert most <= sum(held(3, BIG, shards, numbers)) + whole * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(LAYERS, st.booleans())
def test_a_layer_is_whole_when_it_computes_and_arrives_before(num_layers, reshard):
    """And each is gathered as often as ``reshard`` says."""
    before = walk(3, num_layers, reshard)
    for last, moment in itertools.pairwise(before):
        if moment.layer >= 0:
            assert moment.weights[moment.layer] == "w"
            assert last.weights[moment.layer] in "aw"
    for layer in range(num_layers):
        column = [moment.weights[layer] for moment in before]
        assert column.count("a") == (2 if reshard else 1)
        assert column[-1] == "p"  # between steps, only parts are there


def test_the_figures_of_the_zero_paper():
    """Its figure 1: 7.5 billion parameters on 64 ranks, in GB."""
    found = [sum(held(stage, 7.5e9, 64, MIXED)) / 1e9 for stage in range(4)]
    assert [round(num, 1) for num in found] == [120, 31.4, 16.6, 1.9]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5))
def test_a_hybrid_all_reduce_sends_what_a_flat_one_does(shards, replicas):
    """Inside first, then across: the same bytes, of which fewer leave the group."""
    whole = sum(sent(0, BIG, shards, replicas))
    assert whole == pytest.approx(sum(sent(0, BIG, shards * replicas)))
    assert sent(3, BIG, shards, replicas).inside == sent(3, BIG, shards).inside


@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (3, 2), (4, 1)])
def test_what_leaves_a_node_is_what_rings_send(shape):
    """Counted in the schedules: flat rings, and a ring for each part of a hybrid."""
    nodes, per_node = shape
    size = nodes * per_node

    def crossing(name, ranks, num, node_of):
        plan = schedule(name, "ring", ranks)
        links = costs.sent(costs.messages(plan, [num // ranks] * ranks), ranks)
        return sum(
            links[a][b]
            for a in range(ranks)
            for b in range(ranks)
            if node_of(a) == 0 != node_of(b)
        )

    num = 4 * 240 * size  # bytes of the parameters in float32
    flat = 2 * crossing("all_gather", size, num, lambda r: r // per_node)
    flat += crossing("reduce_scatter", size, num, lambda r: r // per_node)
    assert leaves_node(num / 4, nodes, per_node) == flat
    hybrid = per_node * crossing("all_reduce", nodes, num // per_node, lambda r: r)
    assert leaves_node(num / 4, nodes, per_node, hybrid=True) == hybrid < flat
    assert leaves_node(BIG, 1, 8) == leaves_node(BIG, 1, 8, hybrid=True) == 0


@settings(max_examples=100, deadline=None)
@given(STAGES, st.integers(2, 64), NUMBERS, st.booleans())
def test_from_the_rules_tokens_on_nothing_waits_but_what_comes_after(
    stage, shards, numbers, reshard
):
    flops, bandwidth, given = 400e12, 50e9, (shards, numbers, reshard)
    tokens = tokens_to_hide(stage, flops, bandwidth, *given)
    after = traffic(stage, numbers, reshard).after * BIG * (1 - 1 / shards) / bandwidth

    def waits(share):
        return seconds(stage, BIG, share * tokens, flops, bandwidth, *given)[1]

    assert waits(1.001) == pytest.approx(after)
    assert waits(0.999) > after or tokens == 0
    again = tokens_to_hide(stage, flops, bandwidth, *given, recompute=True)
    assert again <= tokens


def test_with_two_bytes_zero_3_needs_as_many_tokens_as_ddp():
    """It sends half as much again, but hides a third of it behind forward."""
    for shards in 2, 8, 1024:
        both = [tokens_to_hide(s, 990e12, 400e9, shards, MIXED) for s in (0, 3)]
        assert both[0] == both[1] == pytest.approx(990e12 / 400e9 * (1 - 1 / shards))


def test_between_many_machines_a_hybrid_needs_as_many_tokens_too():
    """With two machines half as many: an all_reduce of two sends what each has once."""
    link = MACHINES["H100, between machines"].bandwidth
    inside = MACHINES["H100, within a machine"].bandwidth
    for nodes in 2, 1000:
        flat = tokens_to_hide(3, 990e12, link, 8 * nodes)
        hybrid = tokens_to_hide(3, 990e12, inside, 8, replicas=nodes, across=link / 8)
        law = max(990e12 / inside * 7 / 8, 990e12 / link * (1 - 1 / nodes))
        assert hybrid == pytest.approx(law) and hybrid < flat
    assert hybrid > 0.99 * flat  # with 1000 machines


def test_the_rule_gives_the_source_s_tokens_and_agrees_with_a_published_run():
    """2,200 and 2,475 tokens; torchtitan had 16,384, and lost 3 % on 128 GPUs."""
    found = [tokens_to_hide(3, *machine, 10**9) for machine in MACHINES.values()]
    assert [round(num, -2) for num in found] == [2200, 2500]
    for run in RUNS:
        needs = tokens_to_hide(3, run.flops, run.bandwidth, run.num_gpus)
        assert 250e12 < run.flops < 300e12 and needs * 20 < run.tokens
    small, large = RUNS
    assert 0.97 < large.tokens_per_s / small.tokens_per_s < 1


def test_the_first_stage_that_fits():
    """Less memory needs a later stage, and with none it says so."""
    given = 8e9, 32, 8, MIXED
    peaks = [peak(stage, *given) for stage in range(4)]
    assert peaks == sorted(peaks, reverse=True)
    for stage, most in enumerate(peaks):
        assert first_that_fits(most, *given) == stage
        after = stage + 1 if stage < 3 else None
        assert first_that_fits(most - 1, *given) == after


def test_mixed_precision_of_fsdp_keeps_what_float32_keeps():
    """Parts in float32 are as large; only what is whole has two bytes."""
    assert held(3, BIG, 8, FSDP_MIXED) == held(3, BIG, 8)
    assert traffic(3, FSDP_MIXED).total * 2 == traffic(3).total
    assert {sum(numbers[:3]) for numbers in PRECISIONS.values()} == {16, 18, 8}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: held(4, 1, 2), "stage must be at most 3, not 4"),
        (lambda: held(-1, 1, 2), "stage must be at least 0, not -1"),
        (lambda: sent(3, 1, 0), "shards must be at least 1, not 0"),
        (lambda: sent(3, 1, 2, 0), "replicas must be at least 1, not 0"),
        (lambda: walk(3, 0), "num_layers must be at least 1, not 0"),
        (lambda: leaves_node(1, 0, 8), "num_nodes must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
