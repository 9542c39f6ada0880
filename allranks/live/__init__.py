"""Live ranks: processes that stay alive from cell to cell and share a process group.

``ranks`` is what a caller sees, ``processes`` starts, watches and ends the processes,
``worker`` is the loop inside each of them, ``jobs`` packs what they are sent, ``magic``
has the cells, and ``preload`` what the fork server imports once.
"""
