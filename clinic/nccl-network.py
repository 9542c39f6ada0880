r"""Call to ibv_modify_qp failed: NCCL can't connect over InfiniBand.

class: multi-node
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `NCCL WARN Call to ibv_modify_qp failed`, with `Connection timed out`, `Network
is unreachable`, `No such device` or `Invalid argument`, then `unhandled system error`.
The ranks did meet, and each machine works on its own.

Or, in the middle of a run, `Got completion ... with status=12`: a peer no longer answers.

Cause: the ranks meet over TCP, but their tensors go through the network cards' own
protocol, and NCCL found one that it cannot use: cards on separate rails, a GID index
whose address is not routed, an MTU that differs, a device that the container does not
have. A `system error` is a call to the operating system that failed; the line above it
names the call.

Cure: tell NCCL what to use: `NCCL_IB_HCA` (cards), `NCCL_IB_GID_INDEX` (mostly 3 for
RoCE v2), `NCCL_CROSS_NIC=0` (rails), `NCCL_SOCKET_IFNAME` (the interface for the start).
Status 12 is a retry limit: the
link is bad or overloaded (`NCCL_IB_TIMEOUT=22` waits longer), or the peer has died.
`NCCL_IB_DISABLE=1` goes over TCP: slow, but if it works the fault is in the fabric.

Next time: `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET`, and look for the first `NCCL
WARN`. `ib_write_bw` between the two machines fails in the same way, without NCCL.

Links: https://github.com/NVIDIA/nccl/issues/2013 (RoCE with rails; cured by NCCL_CROSS_NIC=0)
https://github.com/NVIDIA/nccl-tests/issues/185 (Network is unreachable)
https://github.com/NVIDIA/nccl/issues/925 (No such device, from a container)
"""

# %% quoted
# host-01:4026:4711 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110
# Connection timed out, on dev mlx5_2:1, curr state INIT, next state RTR

# %% broken
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint host-01 train.py

# %% fixed
# NCCL_IB_HCA=mlx5_0,mlx5_1 NCCL_IB_GID_INDEX=3 \
#     torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint host-01 train.py

# %% signs
# Call to ibv_(?!open_device)\w+ failed
# ibv_modify_qp failed
# maybe: ncclSystemError|unhandled system error
# with: Call to ibv_open_device failed
# with: NET/IB ?: (?:Got|Unable|No)|NCCL WARN NET/|socketProgress|socketPollConnect|Net : Connect
# NET/IB ?: Got (?:completion|async event) (?:from peer .{0,90})?with (?:error|status)[= ]12\b
# maybe: NCCL WARN NET/(?:IB|Socket) ?: .*(?:error|failed|timed out|refused|unreachable)
# unless: /dev/shm|shared memory segment|posix_fallocate
