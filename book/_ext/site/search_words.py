"""Search finds ``set_epoch`` by "set epoch" too, and ``CUDA_VISIBLE_DEVICES`` by parts.

For Sphinx a word with underscores is one word, in pages and in what a reader types. And
it leaves words out of its index that it then asks for: a single letter, as in "key(s)",
and those whose stem is a word like "on". Nobody looks for these, so they are left out
of the question, too.
"""

from string import ascii_lowercase

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish


class Words(SearchEnglish):
    """English, in which a name is also its parts."""

    stopwords = SearchEnglish.stopwords | {"one", "ones", "being", *ascii_lowercase}

    def split(self, input: str) -> list[str]:
        """Split a text into words, and names into their parts as well.

        >>> Words({}).split("call set_epoch(1)")
        ['call', 'set_epoch', '1', 'set', 'epoch']
        """
        words = super().split(input)
        parts = [part for word in words if "_" in word for part in word.split("_")]
        return words + [part for part in parts if part]


def setup(app: Sphinx) -> None:
    """Take the place of Sphinx's English."""
    app.add_search_language(Words)
