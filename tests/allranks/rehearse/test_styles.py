"""Scripts as they are written for GPUs, in many styles: each runs, without a finding.

They assert what they compute; that a rehearsal computes what CPU tensors do is proved
in tests/allranks/vgpu.
"""

import re

import pytest

from tests.allranks.rehearse.running import SCRIPTS, torchrun

STYLES = {
    "imagenet.py": r"epoch 1: loss \d\.\d{3}, accuracy 0\.\d(?s:.*)Samples\n.*\n.* 2 +",
    "data_parallel.py": r"Let's use 2 GPUs!(?s:.*)\nloss 0\.",
    "gpt.py": r"loss 3\.\d{3}, at most 0\.\d MiB(?s:.*) 4 +\d+(\.\d+)? kB a sample",
    "fsdp2.py": r"loss 1\.\d{3} to \d\.\d{3}, norm",
    "tensor_parallel.py": r"step 5: loss 2\.",
    "pipeline.py": r"loss 0\.\d{3}",
    "zero.py": r"loss \d+\.\d{3}, 6 states, Virtual GPU",
}
ALONE = {
    "imagenet.py",
    "data_parallel.py",
}  # start their ranks themselves, or have none


@pytest.mark.parametrize("script", STYLES)
def test_a_script_for_gpus_runs(rehearse, script, tmp_path, monkeypatch):
    """It ends as on GPUs, and a strict rehearsal has nothing to say."""
    monkeypatch.chdir(tmp_path)  # some write a checkpoint
    words = [str(SCRIPTS / script)] if script in ALONE else torchrun(script)
    code, out, err = rehearse("--strict", "--gpus=2", *words)
    assert code == 0 and re.search(STYLES[script], out), out + err
    assert "Findings: none" in out
