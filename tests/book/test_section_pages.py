"""A section page is numbered anew in each build, though the last one left numbers."""

from types import SimpleNamespace

from docutils import nodes

from book._ext.chapters import section_pages


def numbers(env) -> list:
    """Return the number of the page's title, and those of its entries in contents."""
    entries = env.tocs["book/ch8_1_x"].findall(nodes.reference)
    return [one.get("secnumber") for one in (env.titles["book/ch8_1_x"], *entries)]


def test_the_numbers_of_an_earlier_build_are_forgotten():
    """Titles and contents are pickled, and another extension counts on from them."""
    parts = [nodes.reference(anchorname=f"#{i}" * bool(i)) for i in range(2)]
    tocs = {"book/ch8_1_x": nodes.bullet_list("", *parts), "book/ch8_y": None}
    titles = {name: nodes.title() for name in tocs}
    titles["book/ch8_y"]["secnumber"] = 8
    env = SimpleNamespace(
        found_docs=set(tocs), titles=titles, tocs=tocs, toc_secnumbers={}
    )
    section_pages.number(None, env)
    assert numbers(env) == [(8, 1), (8, 1), None]
    assert env.toc_secnumbers == {"book/ch8_1_x": {"": (8, 1), "#1": ()}}
    section_pages.forget(None, env)
    assert numbers(env) == [None, None, None]
    assert titles["book/ch8_y"]["secnumber"] == 8
