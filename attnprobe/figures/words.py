"""Names of metrics and beginnings of sentences in figures."""

from __future__ import annotations

SYMBOLS = {
    "output_spectral": r"$\|(B-\tilde{B})V\|_2$",
    "output_spectral_relative": r"$\|(B-\tilde{B})V\|_2\;/\;\|BV\|_2$",
    "output_frobenius": r"$\|(B-\tilde{B})V\|_F$",
    "output_frobenius_relative": r"$\|(B-\tilde{B})V\|_F\;/\;\|BV\|_F$",
    "matrix_spectral": r"$\|B-\tilde{B}\|_2$",
    "matrix_spectral_relative": r"$\|B-\tilde{B}\|_2\;/\;\|B\|_2$",
    "matrix_frobenius": r"$\|B-\tilde{B}\|_F$",
    "matrix_frobenius_relative": r"$\|B-\tilde{B}\|_F\;/\;\|B\|_F$",
}
PLAIN = {"$": "", r"\|": "‖", r"\tilde{B}": "B~", r"\;": " ", "_2": "₂", "_F": "F", "-": " − "}
WORDS = {"output": "output error", "matrix": "matrix error"}


def symbol(metric: str) -> str:
    """A metric as a formula, or in words."""
    return SYMBOLS.get(metric, metric.replace("_", " "))


def formula(metric: str) -> str:
    """A metric as a formula without the commands of mathematics, for captions.

    >>> formula("output_spectral")
    '‖(B − B~)V‖₂'
    """
    text = SYMBOLS.get(metric, metric)
    for tex, plain in PLAIN.items():
        text = text.replace(tex, plain)
    return text


def in_words(metric: str) -> str:
    """A metric's name in a title.

    >>> in_words("output_spectral_relative"), in_words("max_abs")
    ('relative output error (spectral norm)', 'max abs')
    """
    if metric not in SYMBOLS:
        return metric.replace("_", " ")
    of, norm, *rest = metric.split("_")
    norm = norm.title() if norm == "frobenius" else norm
    return f"{'relative ' if rest else ''}{WORDS[of]} ({norm} norm)"


def sentence(text: str) -> str:
    """A text with a capital first letter, unless it begins with a symbol or a file name.

    >>> sentence("layer 0"), sentence("n = 512"), sentence("q.safetensors, n = 512")
    ('Layer 0', 'n = 512', 'q.safetensors, n = 512')
    """
    first = text.split(" ")[0].rstrip(",:")
    return text[:1].upper() + text[1:] if len(first) > 1 and "." not in first else text


def escaped(text: str) -> str:
    r"""Text in which a dollar begins no mathematics and a leading underscore is shown.

    >>> print(escaped("a$b"), escaped("_c"))
    a\$b  _c
    """
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
