"""Live ranks: processes that stay alive from cell to cell and share a process group.

What runs when, and in which module:

``%load_ext allranks``
    ``magic`` registers the cells, and ``processes`` has a fork server import what
    ``preload`` names, once for all ranks to come.
``%ranks 4``
    ``magic`` makes a ``Ranks`` (in ``ranks``), whose ``processes`` are forked. Each of
    them runs ``serve`` in ``worker``, which joins the process group.
``%%ranks``
    ``magic`` hands the cell to ``Ranks.run_cell``. ``jobs`` checks its syntax and packs
    it; on each rank ``worker`` receives it, ``jobs`` executes it, and the answer goes
    back. ``ranks`` collects the answers, notices who fails, dies or hangs, and prints
    what ``allranks.report`` folds.
"""
