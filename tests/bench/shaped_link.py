"""Compare the backend "link" with a real link that Linux shapes (needs root).

    sudo .venv/bin/python tests/bench/shaped_link.py [MBIT_PER_S]

Two network namespaces stand for two machines. A veth pair joins them, and ``tc tbf``
lets so many bits per second pass. gloo's all_reduce on it is measured; two of its sizes
set α and B of the backend, which then has to predict the others.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).parents[2]
SIZES = [250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000]
REPEATS, TURNS = 7, 3
NAMES, ADDRESSES = ("arlink0", "arlink1"), ("10.77.0.1", "10.77.0.2")


def measure() -> list[float]:
    """Return the median seconds of an all_reduce of each size, as one of two ranks."""
    taken = []
    for num_bytes in SIZES:
        x, times = torch.ones(num_bytes // 4), []
        for _ in range(REPEATS + 1):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(x)
            times.append(time.perf_counter() - start)
        taken.append(statistics.median(times[1:]))
    return taken


def rank(number: int, address: str, port: int, backend: str) -> None:
    """Join the other rank, measure, and print what was found."""
    sys.path.insert(0, str(ROOT))
    from allranks import backends

    if backend != "gloo":
        backends.register(backend)
    store = dist.TCPStore(address, port, 2, number == 0, timedelta(seconds=60))
    dist.init_process_group(backend, store=store, rank=number, world_size=2)
    found = torch.tensor(measure())
    dist.all_reduce(found, dist.ReduceOp.MAX)
    if number == 0:
        print(json.dumps(found.tolist()))
    dist.destroy_process_group()


def shell(line: str) -> None:
    """Run a command; show what it says if it fails."""
    subprocess.run(line.split(), check=True, capture_output=True)


def shaped(mbit: int) -> None:
    """Make the namespaces and the link between them."""
    for name in NAMES:
        shell(f"ip netns add {name}")
    shell("ip link add arv0 type veth peer name arv1")
    for i, (name, address) in enumerate(zip(NAMES, ADDRESSES, strict=True)):
        shell(f"ip link set arv{i} netns {name}")
        inside = f"ip netns exec {name}"
        shell(f"{inside} ip addr add {address}/24 dev arv{i}")
        shell(f"{inside} ip link set arv{i} up")
        shell(f"{inside} ip link set lo up")
        limits = f"rate {mbit}mbit burst 96kb latency 100ms"
        shell(f"{inside} tc qdisc add dev arv{i} root tbf {limits}")


def both(backend: str, port: int, link: str = "") -> list[float]:
    """Run both ranks, in the namespaces if it is gloo; return rank 0's seconds."""
    started = []
    for i, name in enumerate(NAMES):
        real = backend == "gloo"
        command = ["ip", "netns", "exec", name] if real else []
        where = ADDRESSES[0] if real else "127.0.0.1"
        command += [sys.executable, __file__, str(i), where, str(port), backend]
        device = f"arv{i}" if real else "lo"
        extra = {"GLOO_SOCKET_IFNAME": device, "ALLRANKS_LINK": link}
        env = os.environ | extra | {"OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE))
    out, _ = started[0].communicate(timeout=300)
    started[1].communicate(timeout=60)
    return json.loads(out.splitlines()[-1])


def main(mbit: int) -> None:
    """Measure both by turns, and print them side by side."""
    try:
        shaped(mbit)
        first = both("gloo", 29611)
        # T = 2 α + n / B for two ranks, through the smallest and the largest size.
        speed = (SIZES[-1] - SIZES[0]) / (first[-1] - first[0])
        alpha = max(1e-6, (first[0] - SIZES[0] / speed) / 2)
        link = f"{1e6 * alpha:.1f}us+{speed / 1e9:.6f}GB/s"
        print(f"shaped to {mbit} Mbit/s; the backend is set to {link}")
        real, ours = [], []
        for turn in range(TURNS):
            real.append(both("gloo", 29620 + turn))
            ours.append(both("link", 29640 + turn, link))
        print("   bytes   shaped     link  ratio")
        for i, num_bytes in enumerate(SIZES):
            a, b = (statistics.median(run[i] for run in runs) for runs in (real, ours))
            print(f"{num_bytes:8} {1e3 * a:6.2f} ms {1e3 * b:6.2f} ms  {b / a:.3f}")
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        rank(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
