"""Pictures of chapter 4: how ranks meet."""

from allranks.base.picture import Picture
from allranks.openings.sheet import LINE, Sheet
from allranks.pictures.chart import plate, wide


def meeting(given: str) -> Picture:
    """Draw how the ranks of several machines meet at rank 0's store.

    Args:
        given: machines, and processes on each, such as ``2 2``.
    """
    nodes, per_node = map(int, given.split())

    def draw(width: int) -> Sheet:
        sheet = Sheet(width, 0)
        room = width / nodes
        cell = (room - 24) / per_node
        for node in range(nodes):
            x = room * node + 2
            sheet.frame(x, 0, room - 8, 112)
            sheet.words(x + 12, 22, f"node {node}", bold=True)
            for local in range(per_node):
                rank = node * per_node + local
                left = x + 8 + cell * local
                text = f"rank {rank}" if wide(sheet) else f"{rank}"
                sheet.box(left, 36, cell - 8, 60, text, rank=rank, strong=0.3)
                start = f"{left + cell / 2 - 4:.4g},98"
                # The arrows end beside each other.
                end = width / 2 + (rank - (nodes * per_node - 1) / 2) * 40
                sheet.arrow(f"{start} {end:.4g},162", both=True, thick=2)
        box = min(width, 420)
        left = (width - box) / 2
        sheet.box(left, 166, box, 78, "the store, at",
            "MASTER_ADDR:MASTER_PORT",
                  "“I am rank 2 of 4: reach me at …”", strong=0.1)  # fmt: skip
        y = 268
        for text in (
            "1. The store is opened on rank 0's machine; all ranks connect to it.",
            "2. Each writes where it can be reached, and reads where the others are.",
            "3. Then they talk to each other, and no longer through the store.",
        ):
            y = sheet.lines(0, y, text, width) + 4
        sheet.height = y - LINE + 4
        return sheet

    num = nodes * per_node
    return plate(
        "All ranks go to one address first; there they learn where the others are",
        f"{num} ranks on {nodes} nodes connect to a store at MASTER_ADDR and "
        f"MASTER_PORT, "
        "on rank 0's machine. Each writes its own address and reads the others'.",
        draw,
    )
