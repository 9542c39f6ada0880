"""Who is who: nodes, their processes, and the numbers of each process."""

from allranks.openings.sheet import NARROW, SIZE, Sheet, halves

ALT = (
    "A job on two machines with two GPUs each: four processes, one per GPU. Node 0 has "
    "rank 0 (local rank 0, GPU 0) and rank 1 (local rank 1, GPU 1). Node 1 has rank 2 "
    "(local rank 0, GPU 0) and rank 3 (local rank 1, GPU 1). The world size is 4. A "
    "rank is the number of processes on earlier nodes plus the local rank: 3 = 2 + 1."
)
CARD, HIGH = 156, 268


def node(number: int) -> Sheet:
    """Draw a machine with its processes, and each process on its GPU."""
    sheet = Sheet(NARROW, HIGH)
    sheet.frame(0, 0, NARROW, HIGH)
    sheet.words(14, 26, f"node {number}", bold=True, size=SIZE + 2)
    sheet.words(NARROW - 14, 26, "one machine", "end")
    for local in range(2):
        x, rank = 14 + local * (CARD + 12), 2 * number + local
        middle = x + CARD / 2
        sheet.box(x, 42, CARD, 98, rank=rank, strong=0.3)
        sheet.words(middle, 68, f"rank {rank}", "middle", bold=True, size=SIZE + 4)
        sheet.words(middle, 94, f"= {2 * number} on earlier nodes", "middle")
        sheet.words(middle, 122, f"+ local rank {local}", "middle", bold=True)
        sheet.arrow(f"{middle},142 {middle},176")
        sheet.box(x, 178, CARD, 40, f"GPU {local}", rank=rank)
    note = "local rank = its number on this machine"
    sheet.words(NARROW / 2, 246, note, "middle")
    return sheet


def draw(width: int) -> Sheet:
    """Draw two machines, and the group that joins their processes."""
    nodes = halves(width, node(0), node(1), apart=16)
    sheet = Sheet(width, 0)
    lines = ["world size 4: all processes of the job"]
    if width > NARROW:
        lines = ["world size 4: all processes of the job run the same script"]
    sheet.box(0, 0, width, 40, *lines)
    sheet.put(nodes, 0, 56)
    return sheet
