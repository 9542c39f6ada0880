"""Whose code a line is: the reader's, torch's, or somebody else's."""

import torch

from allranks.backends.nccl import calls
from allranks.rehearse import lines
from allranks.vgpu import autograd, dispatch

STEP = "def step(): pass"


def whose(path, name="step"):
    """Return whose a function of a file is."""
    space = {}
    exec(compile(STEP.replace("step", name), path, "exec"), space)
    return lines.whose(space[name].__code__)


def test_a_folder_called_torch_is_the_readers():
    """Only the package that is imported is torch's."""
    installed = torch.__file__.removesuffix("__init__.py")
    assert whose(f"{installed}optim/adam.py") == (lines.TORCH, "step")
    assert whose(f"{installed}_tensor.py") == (lines.OURS, "")
    assert whose("/readers/torch/optim/adam.py") == (lines.READER, "")


def test_what_is_installed_is_not_the_readers():
    """It may be installed for this user alone."""
    user = "/readers/.local/lib/python3.11/site-packages/transformers/trainer.py"
    assert whose(user) == (lines.OURS, "")
    assert whose("/readers/project/trainer.py") == (lines.READER, "")


def test_equal_code_of_two_files_is_told_apart():
    """Python holds code for equal that stands at the same line of another file."""
    installed = torch.__file__.removesuffix("__init__.py")
    assert whose(f"{installed}copied.py")[0] == lines.TORCH
    assert whose("/readers/copied.py")[0] == lines.READER


def test_what_ddp_flattens_for_a_broadcast_is_a_collectives():
    """It is no activation, though no collective has begun."""
    place = f"{lines.TORCHS}distributed/utils.py", "_sync_params_and_buffers"
    assert lines._whose(*place) == (lines.TORCH, "collective")


def test_functions_of_ours_say_what_torch_is_doing():
    """An op, backward and a collective are known by our functions that run them."""
    assert lines.whose(dispatch.run.__code__) == (lines.OURS, "op")
    assert lines.whose(autograd.run_engine.__code__) == (lines.OURS, "backward")
    assert lines.whose(calls.watch.__code__) == (lines.OURS, "collective")
    assert lines.whose(dispatch.call.__code__) == (lines.OURS, "")
