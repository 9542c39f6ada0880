"""Pictures: what the sums describe, drawn as SVG and told as text.

Each takes the colours of the page that it stands on. ``held`` draws who holds what,
``curves`` lines in a plot; the others draw the topic of the sums with their name.
"""

from allranks.pictures.curves import curves
from allranks.pictures.data_parallel import steps
from allranks.pictures.held import Picture, cluster, exchange, table
from allranks.pictures.svg import RANK_COLORS

__all__ = ["RANK_COLORS", "Picture", "cluster", "curves", "exchange", "steps", "table"]
