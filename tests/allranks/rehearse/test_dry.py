"""A dry run counts what a real one counts, to the byte, and says what it cannot run."""

import functools
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from allranks.rehearse.__main__ import main
from allranks.rehearse.dry import blank, is_hollow, is_unknown
from tests.allranks.rehearse.running import SCRIPTS, forked, sentences, torchrun

MODELS = {  # by the number of ranks; with four, titan.py's mesh has two axes
    2: ("titan.py --steps=3", "hf_loop.py", "gpt.py"),
    4: ("titan.py --steps=3", "gpt.py"),
}
SAME = (  # of the records of rank 0
    "num_steps",
    "num_backwards",
    "num_late_collectives",
    "collectives",
    "copies",
    "ddp",
    "fsdp",
    "gpus",
)


def first_records(gpus, *words):
    """Rehearse jobs of so many GPUs; return what rank 0 of each of them has left."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        told = f"--gpus={gpus}", "--timeout=240", "--quiet", f"--json={report}"
        assert main([*told, *words]) == 0
        processes = json.loads(report.read_text("utf8"))["processes"]
    return [one for one in processes if one["rank"] == 0 and one["gpus"]]


@functools.cache
def dry_records(ranks):
    """Return the records of dry runs to the scripts' own end, as in a real run."""
    dry = "--dry", "--steps=0", f"--world-size={ranks}"
    return first_records(ranks, *dry, *forked(*MODELS[ranks], ranks=1))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", MODELS)
def test_a_dry_run_counts_what_gloo_really_sent(ranks):
    """Every call, byte, copy and holder of memory is that of ranks that computed."""
    real = first_records(ranks, "--no-guard", *forked(*MODELS[ranks], ranks=ranks))
    for one, dry in zip(real, dry_records(ranks), strict=True):
        for name in SAME:
            assert dry[name] == one[name], name
        assert one["collectives"] and one["gpus"][0]["peak_bytes"] > 1e5
        assert dry["dry"] and not one["dry"]


def by_torch(call):
    """Return op, bytes and dtype of a call in the trace of torch's flight recorder.

    The bytes are what goes in, as gloo's entries do not tell what comes out.
    """
    (size,), (kind,) = call["input_sizes"], call["input_dtypes"]
    op = call["profiling_name"].removeprefix("gloo:")
    return op, math.prod(size) * {"Float": 4, "BFloat16": 2}[kind], kind


@pytest.mark.parametrize("ranks", MODELS)
def test_torch_itself_counts_the_same_on_gloo(tmp_path, ranks):
    """The script runs on the CPU, without any rehearsal; torch's recorder looks on."""
    titan, trace = MODELS[ranks][0], tmp_path / "trace.json"
    command = forked(f"{titan} --trace {trace}", ranks=ranks)
    env = os.environ | {"TORCH_FR_BUFFER_SIZE": "10000"}
    subprocess.run([sys.executable, *command], env=env, check=True)
    real = json.loads(trace.read_text("utf8"))
    dry = dry_records(ranks)[0]
    names = {"float32": "Float", "bfloat16": "BFloat16"}
    counted = Counter()
    for call in dry["collectives"]:
        # gloo makes an all_reduce, and keeps a part of it.
        op = call["op"].replace("reduce_scatter", "all_reduce")
        # What a GPU alone does: DTensor sends the state of its random numbers.
        if op not in ("barrier", "broadcast"):
            parts = len(call["group"]) if op == "all_gather" else 1
            key = op, call["num_bytes"] // parts, names[call["dtype"]]
            counted[key] += call["times"]
    calls = [c for c in real["calls"] if c["profiling_name"] != "gloo:barrier"]
    assert counted == Counter(map(by_torch, calls))
    assert sum(counted.values()) > 100
    blocks = {
        kind: sum(-(-size // 512) * 512 for size in sizes.values())
        for kind, sizes in real["held"].items()
    }
    state = dry["gpus"][0]["state"]
    assert {kind: state[kind] for kind in blocks} == blocks


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--dry"], "--dry needs --world-size, such as --world-size 1024"),
        (["--world-size=8"], "--world-size and --steps need --dry"),
        (["--dry", "--world-size=0"], "--world-size 0: choose 1 to 1,048,576"),
        (["--dry", "--world-size=8", "--steps=-1"], "--steps -1: choose 1 or more"),
        (["--dry", "--world-size=8", "--nodes=2"], "say --world-size alone"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(rehearse, capfd, words, sentence):
    """It is said before anything runs."""
    with pytest.raises(SystemExit):
        rehearse(*words, *torchrun("titan.py"))
    assert sentence in sentences(capfd.readouterr().err)


def test_a_world_that_nodes_do_not_make_is_refused(rehearse):
    """torchrun's ranks of a node have to make the world."""
    code, _, err = rehearse("--dry", "--world-size=6", *torchrun("titan.py", ranks=4))
    assert code == 2
    assert "--world-size 6 is no multiple of the 4 ranks of a node" in sentences(err)


def line_of(script, text):
    """Return "script:line" of a text in it."""
    lines = (SCRIPTS / script).read_text("utf8").splitlines()
    return f"{script}:{1 + next(i for i, line in enumerate(lines) if text in line)}"


def test_a_large_world_takes_seconds_and_no_memory(rehearse):
    """3 GB of weights, and a loop of 1,000 steps, of which it takes 3."""
    words = "--dim=4096", "--heads=32", "--kv_heads=8", "--vocab=64000", "--seq=4096"
    sizes = *words, "--layers=1", "--tp=8", "--steps=1000"
    code, out, err = rehearse(
        *("--dry", "--world-size=1024"), *torchrun("titan.py", *sizes, ranks=8)
    )
    assert code == 0, out + err
    said = sentences(out)
    assert "One process was rank 0 of 1,024, and took 3 steps" in said
    assert f"were read at {line_of('titan.py', 'whole.item()')} (2x)" in said
    assert re.search(r"all_gather \S+ [kM]B bfloat16 tp, 8 ranks \d+ a step", said)
    assert re.search(r"reduce_scatter .backward. \S+ MB float32 dp, 128 ranks", said)
    # 776 M parameters of 4 bytes, and twice as much for AdamW, over 1,024 ranks
    assert re.search(r"optimizer 6\.\d+ MB", said)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak < 1.5e9 / (1 if sys.platform == "darwin" else 1024)


def test_a_tensor_may_be_larger_than_this_computer():
    """Its memory is addressed and never touched; each number of it is 0."""
    made = blank((25, 2**30), torch.float32)
    assert made.untyped_storage().nbytes() == 100 * 2**30
    assert is_hollow(made) and is_unknown(made)


def test_a_shape_that_depends_on_numbers_is_refused_at_its_line(rehearse):
    """The sentence says how to go on; that going on works, the next test shows."""
    command = torchrun("router.py")
    code, out, _ = rehearse("--dry", "--world-size=64", *command)
    assert code == 1
    line = line_of("router.py", "torch.nonzero(")
    assert (
        f"{line}: NotComputed: the shape of what nonzero makes depends on numbers that "
        "a dry run does not compute: keep the shape fixed, as torch.where(mask, x, 0) "
        "does, or rehearse with all ranks, without --dry"
    ) in sentences(out)


def test_what_was_not_computed_is_not_saved(rehearse, tmp_path):
    """Neither by torch.save nor by a checkpoint that is imported late."""
    command = torchrun("saves.py", str(tmp_path))
    code, out, err = rehearse("--dry", "--world-size=64", *command)
    assert code == 0, out + err
    assert [*tmp_path.iterdir()] == []


def test_a_run_without_a_gpu_or_a_step_says_so(rehearse):
    """There is nothing to count then."""
    world = "--dry", "--world-size=64"
    code, out, err = rehearse(*world, *torchrun("router.py", "--cpu"))
    assert code == 0, out + err
    assert "The script put nothing on a GPU, so nothing was counted." in sentences(out)
    code, out, err = rehearse(*world, *torchrun("router.py", "--fixed", "--no-step"))
    assert code == 0, out + err
    assert "Does a loader have a batch left for each of 64 ranks?" in sentences(out)


def test_a_mesh_that_does_not_fill_the_world_fails_at_its_line(rehearse):
    """The sentence has the mesh and the world."""
    line = line_of("titan.py", "= init_device_mesh(")
    command = torchrun("titan.py", "--tp=4", ranks=2)
    code, out, _ = rehearse("--dry", "--world-size=6", *command)
    assert code == 1
    assert (
        f"{line}: ValueError: the mesh (1, 4) has 4 ranks, and --world-size "
        "6 is no multiple of it"
    ) in sentences(out)
