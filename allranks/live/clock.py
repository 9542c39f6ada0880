"""Stub."""


def install():
    pass


def begin():
    pass


def end():
    pass


def spans():
    return {}


def issued():
    return {}


def in_step(x):
    return None
