"""The arithmetic of the book: pure functions, tested as laws.

They know no torch: ``tests/allranks/test_layers.py`` fails if one of them imports it.

A topic has the same file name in every layer: ``pictures`` draws it, ``runs`` checks it
on real ranks, and ``explorables`` makes a figure with controls of it.
"""
