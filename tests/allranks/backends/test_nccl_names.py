"""Every public function of torch.distributed works on "nccl", or says why not.

The test walks ``dir()``: a function of a new torch fails here until it has a row.
"""

import pytest
import torch.distributed as dist

from tests.allranks.backends.gpus import gpu_ranks

HELPERS = """
W, on = world_size, torch.device(gpu)
torch.cuda.set_device(on)
def ones(n=4):
    return torch.full((n,), rank + 1.0).to(gpu)
def room(n=4):
    return [torch.zeros(n).to(gpu) for _ in range(W)]
def peers(send, receive):
    return send(1) if rank == 0 else receive(0)
def neighbors():
    ends = (dist.isend, ones(), 1 - rank), (dist.irecv, ones(), 1 - rank)
    [work.wait() for work in dist.batch_isend_irecv(
        [dist.P2POp(call, x, peer, group) for call, x, peer in ends])]
def captured():
    x = ones()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        dist.all_reduce(x, group=group)
def mean(op):
    x = ones(); dist.all_reduce(x, op, group=group); return x[0].item()
"""
CALLS = {
    "all_gather": "dist.all_gather(room(), ones(), group=group)",
    "all_gather_coalesced": "dist.all_gather_coalesced([room()], [ones()], group)",
    "all_gather_into_tensor": "dist.all_gather_into_tensor(ones(8), ones(), group)",
    "all_gather_object": "dist.all_gather_object([None] * W, rank, group)",
    "all_gather_single": "dist.all_gather_single(ones(8), ones(), group)",
    "all_reduce": "dist.all_reduce(ones(), group=group)",
    "all_reduce_coalesced": "dist.all_reduce_coalesced([ones()], group=group)",
    "all_to_all": "dist.all_to_all(room(), room(), group)",
    "all_to_all_single": "dist.all_to_all_single(ones(3 - rank), ones(2 + rank), "
    "[1, 2 - rank], [1 + rank, 1] if rank == 0 else [2, 1], group)",
    "barrier": "dist.barrier(group, device_ids=[rank])",
    "batch_isend_irecv": "neighbors()",
    "broadcast": "dist.broadcast(ones(), group_src=1, group=group)",
    "broadcast_object_list": "dist.broadcast_object_list([rank], 1, group)",
    "gather": "dist.gather(ones(), room() if rank == 0 else None, 0, group)",
    "gather_object": "dist.gather_object(7, room() if rank == 0 else None, 0, group)",
    "get_backend": "dist.get_backend(group)",
    "get_backend_config": "dist.get_backend_config(group)",
    "get_default_backend_for_device": "dist.get_default_backend_for_device(gpu)",
    "get_global_rank": "dist.get_global_rank(group, 1)",
    "get_group_rank": "dist.get_group_rank(group, 1)",
    "get_process_group_ranks": "dist.get_process_group_ranks(group)",
    "get_rank": "dist.get_rank(group)",
    "get_world_size": "dist.get_world_size(group)",
    "init_device_mesh": "dist.init_device_mesh('cuda', (1, W))",
    "irecv": "peers(lambda to: dist.isend(ones(), to, group).wait(), "
    "lambda of: dist.irecv(ones(), of, group).wait())",
    "is_nccl_available": "dist.is_nccl_available()",
    "is_backend_available": "dist.is_backend_available('nccl')",
    "monitored_barrier": "dist.monitored_barrier(group)",
    "new_group": "dist.new_group([1], backend='nccl')",
    "new_subgroups": "dist.new_subgroups(1, backend='nccl')",
    "new_subgroups_by_enumeration": "dist.new_subgroups_by_enumeration([[0], [1]])",
    "recv": "peers(lambda to: dist.send(ones(), to, group), "
    "lambda of: dist.recv(ones(), of, group))",
    "recv_object_list": "peers(lambda to: dist.send_object_list([1], to, group), "
    "lambda of: dist.recv_object_list([0], of, group))",
    "reduce": "dist.reduce(ones(), 0, group=group)",
    "reduce_scatter": "dist.reduce_scatter(ones(), room(), group=group)",
    "reduce_scatter_single": "dist.reduce_scatter_single(ones(2), ones(), group=group)",
    "reduce_scatter_tensor": "dist.reduce_scatter_tensor(ones(2), ones(), group=group)",
    "scatter": "dist.scatter(ones(), room() if rank == 0 else None, 0, group)",
    "scatter_object_list": "dist.scatter_object_list([0], [0, 1], 0, group)",
    "shrink_group": "dist.shrink_group([1], group)",
    "split_group": "dist.split_group(group, [[0], [1]])",
    "supports_complex": "dist.supports_complex(dist.ReduceOp.SUM)",
    # what is not a function of torch.distributed itself
    "a receive from anybody": "dist.recv(ones(), None, group)",
    "a sum in a capture": "captured()",
    "AVG": "mean(dist.ReduceOp.AVG)",
    "MAX": "mean(dist.ReduceOp.MAX)",
    "MIN": "mean(dist.ReduceOp.MIN)",
    "PRODUCT": "mean(dist.ReduceOp.PRODUCT)",
    "PREMUL_SUM": "mean(dist._make_nccl_premul_sum(2.0))",
    "symmetric memory": "__import__('torch.distributed._symmetric_memory').distributed."
    "_symmetric_memory.empty(4, device=on)",
    "a split without a color": "group._get_backend(on).perform_nocolor_split(on)",
    "the future's judgement": "dist.all_reduce(ones(), group=group, async_op=True)"
    ".get_future_result().wait().name",
    "the future of a reduce_scatter": "dist.reduce_scatter_single(ones(2), "
    "ones(), group=group, async_op=True).get_future()"
    ".then(lambda ended: ended.value()[0].tolist()).wait()",
    "the future of a list's": "dist.reduce_scatter(ones(), room(), group=group, "
    "async_op=True).get_future().wait()[0].tolist()",
    "the future of a message": "len(peers(lambda to: dist.isend(ones(), to, group), "
    "lambda of: dist.irecv(ones(), of, group)).get_future().wait())",
    "a hook": "group._register_on_completion_hook(print)",
    "abort": "dist.distributed_c10d._abort_process_group(dist.new_group([0, 1], "
    "backend='nccl'))",
}
if hasattr(dist, "gather_single"):  # from torch 2.15 on
    whole = "dist.{}(ones(), ones(8) if rank == 0 else None, 0, group)"
    CALLS |= {n: whole.format(n) for n in ("gather_single", "gather_into_tensor")}
    NEWER = {"nccl2": "ProcessGroupNCCL2", "nccl-lazy": "ProcessGroupNCCLLazy"}
    CALLS |= {name: f"dist.new_group(backend={name!r})" for name in NEWER}
else:
    NEWER = {}
ELSEWHERE = {  # which other rows use, or which concern the whole job and no backend
    *("GroupName", "breakpoint", "destroy_process_group", "get_debug_level"),
    *("get_node_local_rank", "get_pg_count", "init_process_group", "is_available"),
    *("is_gloo_available", "is_initialized", "is_mpi_available", "is_ucc_available"),
    *("is_torchelastic_launched", "is_xccl_available", "isend", "record_comm"),
    *("register_rendezvous_handler", "rendezvous", "send", "send_object_list"),
    *("set_debug_level", "set_debug_level_from_env"),
    *("get_backend_impl", "set_timeout"),  # from torch 2.15 on
}
NEEDS = "NotImplementedError: {} needs a real GPU"
REFUSED = {
    "monitored_barrier": "ValueError: monitored_barrier ",  # 2.15 has other words
    "shrink_group": NEEDS.format("torch.distributed.shrink_group"),
    "a receive from anybody": "RuntimeError: ProcessGroupNCCL does not support recvAny",
    "a sum in a capture": NEEDS.format("all_reduce while a CUDA graph is captured"),
    "symmetric memory": NEEDS.format("torch.distributed._symmetric_memory"),
    "a hook": NEEDS.format("ProcessGroup._register_on_completion_hook"),
    **{name: NEEDS.format(f"torch.distributed.{c}") for name, c in NEWER.items()},
}
RESULTS = {  # of ranks 0 and 1, which bring 1 and 2
    "get_backend": "nccl",
    "get_default_backend_for_device": "nccl",
    "is_nccl_available": True,
    "is_backend_available": True,
    "get_process_group_ranks": [0, 1],
    "AVG": 1.5,
    "MAX": 2.0,
    "MIN": 1.0,
    "PRODUCT": 2.0,
    "PREMUL_SUM": 6.0,
    "the future's judgement": "SUCCESS",
    "the future of a reduce_scatter": [3.0, 3.0],
}


def test_no_function_is_forgotten():
    """Each has a row, or is named among those that need none."""
    functions = {
        name
        for name in dir(dist)
        if not name.startswith("_")
        and callable(getattr(dist, name))
        and not isinstance(getattr(dist, name), type)
    }
    assert functions - set(CALLS) - ELSEWHERE == set()


@pytest.fixture(scope="module")
def told():
    """Return what each call gave on each rank: an error in words, and a value."""
    with gpu_ranks(2) as ranks:
        ranks.run(HELPERS)
        yield {
            name: ranks.run(
                f"value = []\nsaid = error(lambda: value.append({call}))\n"
                "said, [v for v in value if isinstance(v, (bool, float, str, list))]"
            )
            for name, call in CALLS.items()
        }


def test_each_works_or_says_why_not(told):
    """Refusals begin with a sentence of NCCL's, or with the name of what is refused."""
    for name, ranks in told.items():
        for said, value in ranks:
            assert said.startswith(REFUSED.get(name, "")), (name, said)
            assert bool(said) == (name in REFUSED), (name, said)
            if name in RESULTS:
                assert value == [RESULTS[name]], name
