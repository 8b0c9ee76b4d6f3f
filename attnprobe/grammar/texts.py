"""Names of texts that mean Wikitext-2."""

from __future__ import annotations

#: the names of Wikitext-2, and the configuration of the data set that each is
WIKITEXT = {"wikitext-2": "wikitext-2-raw-v1", "wikitext-2:tokenised": "wikitext-2-v1"}


def wikitext_name(name: str) -> str | None:
    """The canonical name of Wikitext-2 for ``name``, in British or American spelling; None for another text.

    >>> wikitext_name("wikitext-2:tokenized"), wikitext_name("./tokenized.txt")
    ('wikitext-2:tokenised', None)
    """
    name = name.replace("tokenized", "tokenised")
    return name if name in WIKITEXT else None
