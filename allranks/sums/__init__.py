"""The arithmetic of the book: pure functions without torch, tested as laws.

A topic has the same file name in every layer: ``pictures`` draws it, ``runs`` checks it
on real ranks, and ``explorables`` makes a figure with controls of it.
"""
