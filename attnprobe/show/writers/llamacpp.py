"""llama.cpp's block of statistics of a divergence: what ``llama-perplexity --kl-divergence`` prints at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

LEAST = 100  # tokens; llama.cpp prints no block of fewer
OF_KL = (("99.9%", 0.999), ("99.0%", 0.99), ("95.0%", 0.95), ("90.0%", 0.9), ("Median", 0.5), ("10.0%", 0.1))
OF_KL = (*OF_KL, (" 5.0%", 0.05), (" 1.0%", 0.01), (" 0.1%", 0.001))
OF_P = (("99.9%", 0.999), ("99.0%", 0.99), ("95.0%", 0.95), ("90.0%", 0.9), ("75.0%", 0.75), ("Median", 0.5))
OF_P = (*OF_P, ("25.0%", 0.25), ("10.0%", 0.1), (" 5.0%", 0.05), (" 1.0%", 0.01), (" 0.1%", 0.001))


def block(kl: ArrayLike, loss: ArrayLike, loss_own: ArrayLike, same: ArrayLike) -> str:
    """The block of some tokens, in the form of ``llama-perplexity``, without a final newline.

    Each ± is llama.cpp's: the standard error of a mean of independent tokens; for a function of means, the standard
    error to first order. Tokens of one text are not independent, so it is too small.

    Args:
        kl: the divergence of each token's prediction.
        loss, loss_own: ``-ln p`` of the right token, in the model with the approximation and in the model itself.
        same: whether the likeliest token is the same, 0 or 1.

    Raises:
        ValueError: fewer tokens than `LEAST`, or numbers that are not finite.
    """
    import numpy as np

    kl, q, base, same = (np.asarray(values, float) for values in (kl, loss, loss_own, same))
    if len(kl) < LEAST:
        raise ValueError(f"{len(kl)} tokens; llama.cpp writes no statistics of fewer than {LEAST}")
    if not all(np.isfinite(values).all() for values in (kl, q, base)):
        raise ValueError("some numbers are not finite")
    return "\n".join([*_perplexities(q, base), "", *_divergences(kl), "", *_probabilities(q, base, same)])


def _perplexities(q: np.ndarray, base: np.ndarray) -> list[str]:
    import numpy as np

    (mean, error), (mean_own, error_own) = _mean(q), _mean(base)
    shared = float(np.mean(q * base) - q.mean() * base.mean()) / (len(q) - 1)
    ratio, own, ppl = mean - mean_own, np.exp(mean_own), np.exp(mean)
    of_ratio = np.sqrt(max(error**2 + error_own**2 - 2 * shared, 0.0))
    gap = np.sqrt(max((ppl * error) ** 2 + (own * error_own) ** 2 - 2 * ppl * own * shared, 0.0))
    sizes = error * error_own
    rows = [("PPL(Q)", ppl, ppl * error), ("PPL(base)", own, own * error_own)]
    further = [
        ("ln(PPL(Q)/PPL(base))", ratio, of_ratio),
        ("PPL(Q)/PPL(base)", np.exp(ratio), np.exp(ratio) * of_ratio),
        ("PPL(Q)-PPL(base)", ppl - own, gap),
    ]

    def line(name: str, value: float, error: float) -> str:
        return f"{f'Mean {name}':30}: {value:10.6f} ± {error:10.6f}"

    correlation = shared / sizes if sizes else np.nan
    return [
        "====== Perplexity statistics ======",
        *(line(*row) for row in rows),
        f"{'Cor(ln(PPL(Q)), ln(PPL(base)))':30}: {100 * correlation:6.2f}%",
        *(line(*row) for row in further),
    ]


def _divergences(kl: np.ndarray) -> list[str]:
    import numpy as np

    mean, error = _mean(kl)
    return [
        "====== KL divergence statistics ======",
        f"Mean    KLD: {mean:10.6f} ± {error:10.6f}",
        f"Maximum KLD: {kl.max():10.6f}",
        *(f"{name:7} KLD: {np.quantile(kl, share):10.6f}" for name, share in OF_KL),
        f"Minimum KLD: {kl.min():10.6f}",
    ]


def _probabilities(q: np.ndarray, base: np.ndarray, same: np.ndarray) -> list[str]:
    import numpy as np

    change = np.exp(-q) - np.exp(-base)  # of the right token
    (mean, error), (square, of_square) = _mean(change), _mean(change**2)
    rms, equal = float(np.sqrt(square)), float(same.mean())
    of_rms = 0.5 / rms * of_square if rms else 0.0
    of_equal = float(np.sqrt(equal * (1 - equal) / (len(same) - 1)))
    return [
        "====== Token probability statistics ======",
        f"Mean    Δp: {100 * mean:6.3f} ± {100 * error:5.3f} %",
        f"Maximum Δp: {100 * change.max():6.3f}%",
        *(f"{name:7} Δp: {100 * np.quantile(change, share):6.3f}%" for name, share in OF_P),
        f"Minimum Δp: {100 * change.min():6.3f}%",
        f"RMS Δp    : {100 * rms:6.3f} ± {100 * of_rms:5.3f} %",
        f"Same top p: {100 * equal:6.3f} ± {100 * of_equal:5.3f} %",
    ]


def _mean(values: np.ndarray) -> tuple[float, float]:
    """The mean, and its standard error if the values are independent."""
    import numpy as np

    return float(values.mean()), float(np.sqrt(values.var() / (len(values) - 1)))
