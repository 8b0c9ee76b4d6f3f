"""The spelling of methods, ``NAME[:k=v,…]``, ``torch:KERNEL[:k=v,…]``, ``selection:FILE``, ``PATH.py:FUNCTION``, and of
texts that mean Wikitext-2.
"""

from __future__ import annotations

import re

SELECTION = "selection:"  # starts the names of methods that are sets of keys in a file

SPELLING = re.compile(r"(?P<name>(?:torch|selection):[^:]*|.*?\.py(?::[^:]*)?|[^:]*)(?P<colon>:?)(?P<options>.*)", re.S)


def parts(text: str) -> tuple[str, str | None]:
    """The name of a method and the text of its options, None without a colon after the name.

    >>> parts("skyformer:ridge=0.1,guard=none"), parts("./mine.py:fn:width=4"), parts("torch:flex")
    (('skyformer', 'ridge=0.1,guard=none'), ('./mine.py:fn', 'width=4'), ('torch:flex', None))
    """
    match = SPELLING.fullmatch(text)
    assert match is not None  # the pattern takes every text
    return match["name"].strip(), match["options"] if match["colon"] else None


def file_and_function(name: str) -> tuple[str, str] | None:
    """The file and the function of ``PATH.py:FUNCTION``; the function may be empty. None for other names.

    >>> file_and_function("a/mine.py:fn"), file_and_function("mine.py"), file_and_function("svd")
    (('a/mine.py', 'fn'), ('mine.py', ''), None)
    """
    file, py, rest = name.rpartition(".py")
    return (file + py, rest[1:]) if py and (not rest or rest[0] == ":") else None


def short_name(name: str) -> str:
    """The name in rows and legends: without the folder of a file.

    >>> short_name("a/mine.py:fn"), short_name("svd"), short_name("selection:a/sets.safetensors")
    ('mine.py:fn', 'svd', 'selection:sets.safetensors')
    """
    if name.startswith(SELECTION):
        return SELECTION + re.split(r"[/\\]", name.removeprefix(SELECTION))[-1]
    where = file_and_function(name)
    if where is None:
        return name
    file = re.split(r"[/\\]", where[0])[-1]
    return f"{file}:{where[1]}"


#: the names of Wikitext-2, and the configuration of the data set that each is
WIKITEXT = {"wikitext-2": "wikitext-2-raw-v1", "wikitext-2:tokenised": "wikitext-2-v1"}


def wikitext_name(name: str) -> str | None:
    """The canonical name of Wikitext-2 for ``name``, in British or American spelling; None for another text.

    >>> wikitext_name("wikitext-2:tokenized"), wikitext_name("./tokenized.txt")
    ('wikitext-2:tokenised', None)
    """
    name = name.replace("tokenized", "tokenised")
    return name if name in WIKITEXT else None
