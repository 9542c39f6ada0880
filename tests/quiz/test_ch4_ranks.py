"""What backs the quizzes of chapter 4."""

import datetime
import re
import signal
import socket

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from allranks.base.paths import ROOT
from allranks.topics.batches.sums import global_batch_size
from allranks.topics.topology.sums import device_of, equal_nodes, visible_devices
from tests.quiz.proofs import C10D, hang, law, rendezvous


def test_ch4_device():
    """Local ranks 0 to 3 are the four GPUs of a machine; a 4 is no device there."""
    gpus = visible_devices(None, num_gpus=4)
    assert [device_of(local_rank, gpus) for local_rank in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="is 4"):
        device_of(4, gpus)


def test_ch4_rank_or_local():
    """If samplers get the local rank, two machines read the same half of the data."""

    def read(place):
        samplers = [
            DistributedSampler(range(80), 8, rank=place(node, local), shuffle=False)
            for node in range(2)
            for local in range(4)
        ]
        return {index for sampler in samplers for index in sampler}

    assert len(read(lambda node, local: node * 4 + local)) == 80
    assert len(read(lambda node, local: local)) == 40


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [
        ([*C10D, "--rdzv-conf=is_host=1"], 600),
        ([*C10D, "--rdzv-conf=is_host=1,timeout=60"], 600),
        ([*C10D, "--rdzv-conf=is_host=1,join_timeout=60"], 60),
        (["--master-port=29500"], 900),
        (["--master-port=29500", "--rdzv-conf=timeout=60"], 60),
        (["--master-port=29500", "--rdzv-conf=join_timeout=60"], 900),
    ],
)
def test_each_rendezvous_has_a_limit_of_its_own_name(flags, seconds):
    """c10d reads join_timeout, static reads timeout; both ignore the other's option.

    Source: create_handler in torch.distributed.elastic.rendezvous.dynamic_rendezvous
    and create_rdzv_handler in static_tcp_rendezvous; torch.distributed.launcher.api's
    LaunchConfig sets timeout to 900 if the user doesn't set it.
    """
    handler = rendezvous("--nnodes=2", *flags)
    static = handler.get_backend() == "static"
    limit = handler.timeout if static else handler._settings.timeout.join
    assert limit == datetime.timedelta(seconds=seconds)


def test_no_page_gives_c10d_the_limit_of_a_static_rendezvous():
    """A line that gives ``timeout=`` on its own says that it is for static."""
    lines = "\n".join(p.read_text("utf8") for p in ROOT.glob("book/*.md")).splitlines()
    found = [line for line in lines if re.search(r"rdzv-conf \S*timeout=", line)]
    bare = re.compile(r"[\s`,]timeout=")
    assert found and not [x for x in found if bare.search(x) and "static" not in x]


def test_torchrun_starts_no_rank_before_all_nodes_are_there():
    """It waits for the second node in its rendezvous, and gives up there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    how = "--nnodes=2", "--nproc-per-node=4", f"--master-port={port}"
    handler = rendezvous(*how, "--rdzv-conf=timeout=1")
    assert handler.get_backend() == "static"
    with pytest.raises(dist.DistStoreError, match="1/2 clients joined"):
        handler.next_rendezvous()


def test_ch4_skipped_collective(two):
    """Rank 0 waits in its collective, while rank 1 has finished."""
    with hang(two, match="rank 1 finished"):
        two.run("if rank == 0: dist.all_reduce(torch.ones(1))", timeout=60)


def test_minus_fifteen_is_sigterm():
    """Exit code -15, which torchrun reports for the ranks that it ended, is SIGTERM."""
    assert signal.SIGTERM == 15


@law
def test_ch4_global_batch(nodes, gpus, batch):
    return global_batch_size(batch, sum(equal_nodes(nodes, gpus)))


@law
def test_ch4_mean_of_means(many, few, low, high):
    losses = torch.cat([torch.full((many,), low), torch.full((few,), high)])
    return losses.double().mean().item()
