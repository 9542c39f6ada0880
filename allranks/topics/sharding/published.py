"""What others published about machines and runs, for the rule of ``tokens_to_hide``.

Sources, each at the commit that was read in November 2026: ``SCALING`` (Google's
"How to scale your model", its page on GPUs: dense bf16 FLOP/s, and the bytes per second
that leave a GPU, or a machine), ``TITAN`` (torchtitan's benchmarks of December 2024).
"""

from typing import NamedTuple

SCALING = (
    "https://github.com/jax-ml/scaling-book/blob/"
    "1a55377affc9ee8f10b549f689ad57e813623a7e/gpus.md"
)
TITAN = (
    "https://github.com/pytorch/torchtitan/blob/"
    "31a17bfdb70bab6f62a13d21816a5339b911d6e3/benchmarks/llama3_h100_202412_torchtitan.md"
)


class Machine(NamedTuple):
    """What collectives and matrices reach at most, per second.

    Attributes:
        flops: of a GPU, in bf16.
        bandwidth: bytes of a ring's link. Between machines, all GPUs of a machine send
            at once, each through its own card, so this is the sum of its cards.
    """

    flops: float
    bandwidth: float


MACHINES = {
    "H100, within a machine": Machine(990e12, 450e9),
    "H100, between machines": Machine(990e12, 400e9),
}


class Run(NamedTuple):
    """A published run of FSDP2: tokens per second and GPU of a Llama 3.1 8B."""

    num_gpus: int
    num_params: float
    tokens: int  # of a rank in a step
    tokens_per_s: float
    bandwidth: float  # bytes per second of a ring's link

    @property
    def flops(self) -> float:
        """Return the useful FLOP/s that each GPU reaches, attention left out."""
        return 6 * self.num_params * self.tokens_per_s


# Without torch.compile and float8; 2 samples of 8192 tokens; the cards have 400 Gbit/s.
RUNS = [
    Run(8, 8.03e9, 2 * 8192, 5762, 450e9),
    Run(128, 8.03e9, 2 * 8192, 5605, 400e9),
]
