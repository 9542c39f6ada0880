"""Live ranks: processes that stay alive from cell to cell and share a process group.

What runs when, and in which module:

``%load_ext allranks``
    ``magic`` registers the cells, and ``server`` has a fork server import what
    ``preload`` names, once for all ranks to come.
``%ranks 4``
    ``magic`` makes a ``Ranks`` (in ``ranks``), once ``capacity`` has seen that this
    machine can have them. Its ``processes`` are forked. Each of them runs ``serve`` in
    ``worker``, which joins the process group, connects IPython's displays (``shell``),
    and starts the ``clock``.
``%%ranks``
    ``magic`` hands the cell to ``Ranks.run_cell``. ``jobs`` checks its syntax and packs
    it; on each rank ``worker`` receives it, ``jobs`` executes it, and the answer goes
    back. Meanwhile ``collect`` waits for the answers, as long as ``patience`` lets it,
    and notices who fails, dies or hangs, while a ``transcript`` of each rank grows,
    which a ``screen`` shows. What ranks call of ``torch.distributed`` stands in
    ``calls``, which outlive them.
    Ctrl-C may come at any moment; where it has to wait, ``interrupts`` sees to that.
A failure
    ``base.report`` tells it. If nobody is left waiting, which ``desync`` knows from
    what each rank has joined, the ranks go on; else they end, and the next cell starts
    fresh ones. Before that, ``debugger`` can look at a rank that failed.
"""
