"""Ranks with virtual GPUs: what a CUDA script finds there, and what it must not do."""

import pytest

from allranks import Ranks


@pytest.fixture(scope="module")
def two():
    """Yield two ranks with virtual GPUs."""
    with Ranks(2, gpus=True) as ranks:
        yield ranks


def test_ranks_find_what_torchrun_would_give_them(two):
    """There is a GPU for each rank, an nccl group, and cuda:0 until set_device."""
    source = """
before = torch.cuda.current_device()
torch.cuda.set_device(local_rank)
x = torch.ones(2, device="cuda") * (rank + 1)
dist.all_reduce(x)
found = torch.cuda.device_count(), before, str(device), str(x.device), x.tolist()
found, dist.get_backend(), torch.cuda.is_available()
"""
    for rank, (found, backend, available) in enumerate(two.run(source)):
        assert found == (2, 0, f"cuda:{rank}", f"cuda:{rank}", [3.0, 3.0])
        assert (backend, available) == ("nccl", True)


def test_a_broken_rule_leaves_the_ranks_their_variables(two):
    """The engine's own barrier is on each rank's own GPU, whatever is current."""
    two.run("kept = rank; torch.cuda.set_device(0)")
    with pytest.raises(RuntimeError, match="No backend type associated with device"):
        two.run("dist.all_reduce(torch.ones(1))")
    with pytest.raises(RuntimeError, match="of the group is all_reduce"):
        two.run("dist.all_reduce(torch.ones(rank + 1, device=device))")
    assert two.run("kept") == [0, 1]


def test_messages_are_no_collectives():
    """Two of three ranks have sent and received one, and yet all are in step."""
    source = """
kept, x = rank, torch.ones(1, device=device)
dist.recv(x, 0) if rank == 1 else rank == 0 and dist.send(x, 1)
raise ValueError("after the message")
"""
    with Ranks(3, gpus=True) as three:
        with pytest.raises(RuntimeError, match="after the message"):
            three.run(source)
        assert three.run("kept") == [0, 1, 2]


def test_a_value_on_a_gpu_stays_there(two):
    """The notebook has no such GPU; one sentence says how the value gets there."""
    with pytest.raises(ValueError, match=r"only its rank has: bring it with \.cpu\(\)"):
        two.run("torch.ones(2, device=device)")
    assert two.run("torch.ones(2, device=device).cpu().tolist()") == [[1.0, 1.0]] * 2


def test_status_says_where_ranks_are(two):
    """It names the GPUs, since the machine has none."""
    where = "virtual GPUs cuda:0–1, backend nccl"
    assert two.status().startswith(f"2 ranks live on {where}, process ids ")


@pytest.mark.parametrize("other", [{"backend": "shm"}, {"device": "cuda"}])
def test_gpus_leave_no_choice_of_device_and_backend(other):
    """One sentence names what has to be left out."""
    [(name, value)] = other.items()
    with pytest.raises(ValueError, match=f"{name} '{value}': virtual GPUs have cuda"):
        Ranks(2, gpus=True, **other)
