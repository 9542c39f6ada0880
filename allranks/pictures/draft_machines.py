"""The picture of the draft on many machines: where the launchers put the ranks."""

from allranks.base.picture import Picture
from allranks.openings.sheet import NARROW, Sheet
from allranks.pictures.app_rehearse import machines
from allranks.pictures.chart import claim, plate, read


def placed(output: str) -> Picture:
    """Draw which ranks run on which node."""
    place = r"(node\d+)\| \[rank (\d+)/\d+\] node_rank \d+, local_rank (\d+)"
    lines = read(output, place, 2)
    each: dict[str, dict] = {}
    for node, rank, local in (line.groups() for line in lines):
        each.setdefault(node, {})[int(rank)] = local
    numbers = [rank for ranks in each.values() for rank in ranks]
    title = claim(
        numbers == sorted(numbers) and len(each) > 1,
        f"{len(numbers)} ranks on {len(each)} nodes, numbered node by node",
    )

    def draw(width: int) -> Sheet:
        local = "local rank" if width > NARROW else "local"
        return machines(
            {
                node: {r: (f"rank {r}", f"{local} {i}") for r, i in ranks.items()}
                for node, ranks in each.items()
            },
            width,
        )

    alt = "; ".join(f"rank {r} on {n}" for n, ranks in each.items() for r in ranks)
    return plate(title, f"{alt}.", draw)
