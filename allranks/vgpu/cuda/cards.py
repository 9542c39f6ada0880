"""GPUs by name: what torch.cuda.get_device_properties says of them.

Memory is what the data sheet says, in units of 10⁹ bytes; a driver shows a little more
or less. Sources: NVIDIA's data sheets of the products, and the table of compute
capabilities in the CUDA C++ Programming Guide.
"""

import uuid
from typing import NamedTuple


class Card(NamedTuple):
    """A kind of GPU.

    Attributes:
        name: as the driver says it.
        memory: in bytes.
        capability: the compute capability, major and minor.
        processors: streaming multiprocessors.
    """

    name: str
    memory: int
    capability: tuple[int, int]
    processors: int


GB = 10**9
CARDS = {
    "b200": Card("NVIDIA B200", 180 * GB, (10, 0), 148),
    "h200": Card("NVIDIA H200", 141 * GB, (9, 0), 132),
    "h100-80": Card("NVIDIA H100 80GB HBM3", 80 * GB, (9, 0), 132),
    "a100-80": Card("NVIDIA A100-SXM4-80GB", 80 * GB, (8, 0), 108),
    "a100-40": Card("NVIDIA A100-SXM4-40GB", 40 * GB, (8, 0), 108),
    "l40s": Card("NVIDIA L40S", 48 * GB, (8, 9), 142),
    "rtx4090": Card("NVIDIA GeForce RTX 4090", 24 * GB, (8, 9), 128),
    "v100-32": Card("Tesla V100-SXM2-32GB", 32 * GB, (7, 0), 80),
    "t4": Card("Tesla T4", 16 * GB, (7, 5), 40),
}
# by compute capability: threads of a multiprocessor, and KiB of its shared memory, in
# all and for one block (CUDA C++ Programming Guide, technical specifications)
LIMITS = {
    (7, 0): (2048, 96, 96),
    (7, 5): (1024, 64, 64),
    (8, 0): (2048, 164, 163),
    (8, 9): (1536, 100, 99),
    (9, 0): (2048, 228, 227),
    (10, 0): (2048, 228, 227),
}
VIRTUAL = Card("Virtual GPU", 0, (9, 0), 132)  # no product; an H100's capability


def find(name: str) -> Card:
    """Return the card of a name.

    Raises:
        ValueError: if there is none.

    >>> find("a100-40").memory
    40000000000
    """
    if name not in CARDS:
        raise ValueError(f"there is no card {name!r}: {', '.join(CARDS)}")
    return CARDS[name]


class Properties:
    """What ``torch.cuda.get_device_properties`` returns, with the names that it has."""

    warp_size = 32
    max_threads_per_block = 1024
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 48 * 1024
    L2_cache_size = 50 * 2**20
    is_integrated = is_multi_gpu_board = 0
    clock_rate = memory_clock_rate = memory_bus_width = 0  # speed is not rehearsed
    pci_domain_id = 0
    gcnArchName = ""

    def __init__(self, card: Card, total_memory: int, index: int) -> None:
        self.name, self.total_memory = card.name, total_memory
        self.major, self.minor = card.capability
        self.multi_processor_count = card.processors
        threads, shared, optin = LIMITS[card.capability]
        self.max_threads_per_multi_processor = threads
        self.shared_memory_per_multiprocessor = shared * 1024
        self.shared_memory_per_block_optin = optin * 1024
        self.pci_bus_id = self.pci_device_id = index
        self.uuid = uuid.uuid5(uuid.NAMESPACE_OID, f"virtual GPU {index}")

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, "
            f"minor={self.minor}, total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid})"
        )
