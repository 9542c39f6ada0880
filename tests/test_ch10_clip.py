"""Clipped gradients are those of one process in float64, or the page says why not."""

import re

import pytest

from allranks import Ranks, RanksError
from tests.ranks import run_script

RIGHT = {
    *("DDP, after it", "DDP, after the last part", "DDP, unscaled first"),
    *("FSDP2, shards added up", "FSDP2, clip_grad_norm_", "TP, clip_grad_norm_"),
}
LINE = re.compile(r"\] (.+?) +norm +([\d.]+), (\S+) off")


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("most", ["1.0", "100.0"])
def test_the_right_ways_equal_one_process_and_the_others_do_not(world_size, most):
    """With one rank only the scaled norm is wrong; a high threshold clips nothing."""
    flags = "--most", most, "--seed", "3"
    lines = run_script("ch10_clip", world_size, *flags)[0]
    found = {name: (norm, float(off)) for name, norm, off in map(of, lines)}
    assert len(found) == 11 and found.keys() > RIGHT
    norms = {found[name][0] for name in RIGHT}
    assert len(norms) == 1 and 3 < float(*norms) < 30
    assert max(found[name][1] for name in RIGHT) < 1e-14
    if most == "1.0":
        wrong = {name for name, (_, off) in found.items() if off > 1e-5}
        expected = found.keys() - RIGHT if world_size > 1 else {"DDP, still scaled"}
        expected |= {"DDP, after each of 4 parts"}  # one rank's parts, too
        assert wrong == expected


def of(line):
    """Return a line's name, norm and error."""
    return LINE.search(line).groups()


def test_norms_of_shards_differ_between_ranks_and_add_up():
    """Squares of FSDP2's shards are that of the whole gradient."""
    source = """
from scripts import ch10_clip as script

x, y = script.make_hard(24, 1, torch.device("cpu"))
own, added = script.make_tanh("cpu"), script.make_tanh("cpu")
mine = slice(rank, None, world_size)
ours = lambda net, most: script.clip_shards(net, most, add=False)
both = lambda net, most: script.clip_shards(net, most, add=True)
norms = script.sharded(own, x[mine], y[mine], 1e9, ours).item()
norms, script.sharded(added, x[mine], y[mine], 1e9, both).item()
"""
    with Ranks(3) as ranks:
        parts, wholes = zip(*ranks.run(source, quiet=True), strict=True)
    assert len({f"{part:.3f}" for part in parts}) == 3
    assert sum(part**2 for part in parts) ** 0.5 == pytest.approx(wholes[0])
    assert len(set(wholes)) == 1


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_what_is_not_finite_spoils_all_shards_as_in_torch(bad):
    """NaN makes all of it NaN, inf makes zeros and a NaN; or it is an error."""
    source = """
from scripts import ch10_clip as script

def spoil(ours):
    def clip(net, most):
        if rank == 1:
            net[0].weight.grad.to_local()[0, 0] = float(bad)
        return ours(net, most)

    net = script.make_tanh("cpu")
    x, y = script.make_hard(8, 1, torch.device("cpu"))
    script.sharded(net, x, y, 1.0, clip)
    return script.in_a_row(net)

def strict(net, most):
    torch.nn.utils.clip_grad_norm_(net.parameters(), most, error_if_nonfinite=True)

try:
    spoil(strict)
except RuntimeError as error:
    why = str(error)
both = spoil(lambda net, most: script.clip_shards(net, most, add=True)), spoil(
    script.clip
)
[(g.isnan().sum().item(), (g == 0).sum().item()) for g in both], why
"""
    with Ranks(2) as ranks:
        ranks.push({"bad": bad})
        for (ours, torchs), why in ranks.run(source, quiet=True):
            assert ours == torchs == ((836, 0) if bad == "nan" else (1, 835))
            assert "non-finite" in why


def test_samples_must_fill_all_parts_of_all_ranks():
    with pytest.raises(RanksError, match="--samples 20: must be 4 x ranks, or a mul"):
        run_script("ch10_clip", 2, "--samples", "20")
