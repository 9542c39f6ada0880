"""Scripts as they are written for GPUs, in many styles: each runs, without a finding.

They assert what they compute; that a rehearsal computes what CPU tensors do is proved
in tests/allranks/vgpu.
"""

import json
import re

import pytest

from tests.allranks.rehearse.running import SCRIPTS, forked

ALONE = {  # start their ranks themselves, or have none
    "imagenet.py": r"epoch 1: loss \d\.\d{3}, accuracy 0\.\d(?s:.*)Samples\n.*\n.* 2 +",
    "data_parallel.py": r"Let's use 2 GPUs!(?s:.*)\nloss 0\.",
}
RANKS = {
    "gpt.py": r"loss 3\.\d{3}, at most 0\.\d MiB(?s:.*) 4 +\d+(\.\d+)? kB a sample",
    "fsdp2.py": r"loss 1\.\d{3} to \d\.\d{3}, norm",
    "tensor_parallel.py": r"step 5: loss 2\.",
    "pipeline.py": r"\nloss 0\.\d{3}\n",
    "zero.py": r"loss \d+\.\d{3}, 6 states, Virtual GPU",
    "collectives.py": r"\['rank 0 on cuda:0', 'rank 1 on cuda:1'\] nccl",
}


@pytest.mark.parametrize("script", ALONE)
def test_a_script_for_gpus_runs(rehearse, script, tmp_path, monkeypatch):
    """It ends as on GPUs, and a strict rehearsal has nothing to say."""
    monkeypatch.chdir(tmp_path)  # some write a checkpoint
    code, out, err = rehearse("--strict", str(SCRIPTS / script))
    assert code == 0 and re.search(ALONE[script], out), out + err
    assert "Findings: none" in out


def test_scripts_for_torchrun_run(rehearse, tmp_path):
    """The same of each of these jobs, whose ranks have a GPU each."""
    words = "--strict", "--full", f"--json={tmp_path / 'r.json'}"
    code, out, err = rehearse(*words, *forked(*RANKS))
    assert code == 0 and "Findings: none" in out, out + err
    for script, printed in RANKS.items():
        assert re.search(printed, out), script + out + err
    processes = json.loads((tmp_path / "r.json").read_text("utf8"))["processes"]
    gpus = [[gpu["index"] for gpu in one["gpus"]] for one in processes]
    assert gpus == [[0], [1]] * len(RANKS)
