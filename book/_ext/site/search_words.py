"""Search finds ``set_epoch`` by "set epoch" too, and ``CUDA_VISIBLE_DEVICES`` by parts.

For Sphinx a word with underscores is one word, both in pages and in what a reader
types. Besides, it leaves some words out of its index and yet looks them up in a query,
where they can never match: single letters, as in "key(s)", and words whose stem is a
word like "on". Nobody searches for these, so they are dropped from the query, too.
"""

from string import ascii_lowercase

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish


class Words(SearchEnglish):
    """English, with each name also indexed by its parts."""

    stopwords = SearchEnglish.stopwords | {"one", "ones", "being", *ascii_lowercase}

    def split(self, input: str) -> list[str]:
        """Split a text into words, and add the parts of each name.

        >>> Words({}).split("call set_epoch(1)")
        ['call', 'set_epoch', '1', 'set', 'epoch']
        """
        words = super().split(input)
        parts = [part for word in words if "_" in word for part in word.split("_")]
        return words + [part for part in parts if part]


def setup(app: Sphinx) -> None:
    """Replace Sphinx's English by ours."""
    app.add_search_language(Words)
