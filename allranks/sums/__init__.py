"""The arithmetic of the book: pure functions, without torch, and tested as laws.

A topic has one name in all layers: ``pictures`` draws it, ``runs`` checks it on real
ranks, and ``explorables`` puts it into the reader's hand.
"""
