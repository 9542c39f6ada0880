"""Pictures: what the sums describe, drawn as SVG and written as text.

A picture takes the colours of its page. ``held`` draws who holds what, and ``curves``
draws lines in a plot; each other module draws the topic of the sums of its name.
"""

from allranks.pictures.curves import curves
from allranks.pictures.data_parallel import steps
from allranks.pictures.held import Picture, cluster, exchange, table
from allranks.pictures.svg import RANK_COLORS

__all__ = ["RANK_COLORS", "Picture", "cluster", "curves", "exchange", "steps", "table"]
