"""Literal twins of the methods that select keys: sets made key by key, then a softmax over them; merged into `twins`.

``TWINS`` has them with the options that the methods have on few tokens (``small``), and ``CAUSAL`` for causal inputs,
with all queries of the text.
"""

from math import exp, log

import torch
from torch import Tensor
from twins_sparse import over_mask

from attnprobe.qkv import QKV

EVERYTHING = None  # what a row of inputs that are not causal sees


def _dot(x, y) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def seen_by(qkv: QKV) -> list[list[int]]:
    """The keys that each row sees."""
    if qkv.visible is None:
        return [list(range(qkv.n_k))] * qkv.n_q
    return [row.nonzero()[:, 0].tolist() for row in ~qkv.visible.hidden(qkv.n_k)]


def own_key(qkv: QKV, i: int) -> int:
    """The key at the place of query i."""
    return i + qkv.n_k - qkv.n_q if qkv.causal else min(i, qkv.n_k - 1)


def pages_of(keys: list[int], size: int) -> dict[int, list[int]]:
    pages: dict[int, list[int]] = {}
    for key in keys:
        pages.setdefault(key // size, []).append(key)
    return pages


def best_pages(score: dict[int, float], own: int, pages: dict[int, list[int]], d: int, size: int) -> list[int]:
    """The keys of the own page, and of the best others while whole pages fit in d; all if d has room for all."""
    seen = sum(map(len, pages.values()))
    if seen <= d:
        return [key for page in pages.values() for key in page]
    kept, room = list(pages[own]), d - len(pages[own])
    for page in sorted((page for page in pages if page != own), key=lambda page: -score[page]):
        if room >= size:
            kept, room = kept + pages[page], room - size
    return kept


def over(qkv: QKV, sets: list[list[int]]) -> Tensor:
    """The softmax of each row over its set of keys, dense."""
    return over_mask(qkv, [[j in set(keys) for j in range(qkv.n_k)] for keys in sets])


def quest(qkv: QKV, d, draws, target, *, page=3, share="head") -> Tensor:
    sets = []
    for i, seen in enumerate(seen_by(qkv)):
        q, pages = qkv.q[0, i].tolist(), pages_of(seen, page)
        bounds = {}
        for number, keys in pages.items():
            columns = list(zip(*(qkv.k[0, j].tolist() for j in keys), strict=True))
            bounds[number] = sum(max(x * min(column), x * max(column)) for x, column in zip(q, columns, strict=True))
        sets.append(best_pages(bounds, own_key(qkv, i) // page, pages, d, page))
    return over(qkv, sets)


def topp(qkv: QKV, d, draws, target, *, p=0.95) -> Tensor:
    sets = []
    for i, seen in enumerate(seen_by(qkv)):
        scores = [qkv.scale * _dot(qkv.q[0, i].tolist(), qkv.k[0, j].tolist()) for j in seen]
        row = dict(zip(seen, torch.softmax(torch.tensor(scores), 0).tolist(), strict=True))
        kept, mass = [], 0.0
        for j in sorted(seen, key=lambda j: -row[j]):  # noqa: B023
            if (mass < p or p == 1) and len(kept) < d:
                kept, mass = [*kept, j], mass + row[j]
        sets.append(kept)
    return over(qkv, sets)


def mean_of(x: Tensor, tokens: list[int]) -> list[float]:
    return [sum(column) / len(tokens) for column in zip(*(x[j].tolist() for j in tokens), strict=True)]


def block_topk(qkv: QKV, d, draws, target, *, block=3) -> Tensor:
    sets = []
    seen = seen_by(qkv)
    for i in range(qkv.n_q):
        own = own_key(qkv, i) // block
        together = [j for j in range(qkv.n_q) if own_key(qkv, j) // block == own]
        query = mean_of(qkv.q[0], together)
        last = min(own * block + block, qkv.n_k)
        pages = pages_of(list(range(last)) if qkv.causal else list(range(qkv.n_k)), block)
        score = {number: _dot(query, mean_of(qkv.k[0], keys)) for number, keys in pages.items()}
        sets.append([j for j in best_pages(score, own, pages, d, block) if j in seen[i]])
    return over(qkv, sets)


def weights_of(qkv: QKV, i: int, keys: list[int]) -> list[float]:
    """The softmax of row i over some keys."""
    q = qkv.q[0, i].tolist()
    return torch.softmax(torch.tensor([qkv.scale * _dot(q, qkv.k[0, j].tolist()) for j in keys]), 0).tolist()


def largest(score: list[float], room: int, first: int = 0, last: int = 0) -> list[int]:
    """The keys of the largest scores, first and last ones before others; last ones take at most half of the room."""
    end = len(score)
    room = min(room, end)
    forced = {*range(min(first, room)), *range(max(0, end - min(last, room // 2)), end)}
    return sorted(range(end), key=lambda j: (j not in forced, -score[j]))[:room]


def by_segments(qkv: QKV, d: int, score, *, every=64, first=0, last=0) -> Tensor:
    """Rows over their segment and the best keys before it; ``score(queries before, end)`` scores the first keys."""
    if not qkv.causal:
        kept = largest(score(list(range(qkv.n_q)), qkv.n_k), d, first, last)
        return over(qkv, [kept] * qkv.n_q)
    size, sets = min(every, (d + 1) // 2), []
    for i in range(qkv.n_q):
        end = i // size * size
        kept = largest(score(list(range(end)), end), d - size, first, last) if end else []
        sets.append([*kept, *range(end, i + 1)])
    return over(qkv, sets)


def knorm(qkv: QKV, d, draws, target) -> Tensor:
    return by_segments(qkv, d, lambda rows, end: [-float(qkv.k[0, j].norm()) for j in range(end)])


def random(qkv: QKV, d, draws, target, *, first=4) -> Tensor:
    return by_segments(qkv, d, lambda rows, end: draws["scores"][:end].tolist(), first=first)


def keydiff(qkv: QKV, d, draws, target) -> Tensor:
    def score(rows, end):
        unit = [qkv.k[0, j] / qkv.k[0, j].norm() for j in range(end)]
        mean = sum(unit) / end
        return [-float(x @ mean / mean.norm()) for x in unit]

    return by_segments(qkv, d, score)


def snapkv(qkv: QKV, d, draws, target, *, observe=3, kernel=3) -> Tensor:
    def score(rows, end):
        recent = rows[-observe:]
        mean = [0.0] * (end + 2 * (kernel // 2))  # zeros beyond both ends
        for i in recent:
            for j, weight in zip(seen_by(qkv)[i], weights_of(qkv, i, seen_by(qkv)[i]), strict=True):
                if j < end:
                    mean[j + kernel // 2] += weight / len(recent)
        return [sum(mean[j : j + kernel]) / kernel for j in range(end)]

    return by_segments(qkv, d, score, last=observe)


def expected(qkv: QKV, d, draws, target, *, observe=3, first=1) -> Tensor:
    def score(rows, end):
        queries = qkv.q[0, rows[-observe:]]
        mean = queries.mean(0)
        log_weights = []
        for key in qkv.k[0, :end]:
            second = sum(float((query - mean) @ key) ** 2 for query in queries) / len(queries)
            log_weights.append(qkv.scale * float(mean @ key) + qkv.scale**2 / 2 * second)
        weights = torch.softmax(torch.tensor(log_weights), 0).tolist()
        return [weight * float(qkv.v[0, j].norm()) for j, weight in enumerate(weights)]

    return by_segments(qkv, d, score, first=first)


def h2o(qkv: QKV, d, draws, target) -> Tensor:
    if qkv.causal:
        return token_by_token(qkv, d, recent=d // 2, accumulate=True)

    def score(rows, end):
        sums = [0.0] * end
        for i in rows:
            sums = [a + b for a, b in zip(sums, weights_of(qkv, i, list(range(end))), strict=True)]
        return sums

    return by_segments(qkv, d, score, last=d // 2)


def tova(qkv: QKV, d, draws, target) -> Tensor:
    if qkv.causal:
        return token_by_token(qkv, d, recent=0, accumulate=False)
    return by_segments(qkv, d, lambda rows, end: weights_of(qkv, rows[-1], list(range(end))))


def token_by_token(qkv: QKV, d: int, recent: int, accumulate: bool) -> Tensor:
    """A cache that drops, when it is full, its least key that is not recent."""
    cache: dict[int, float] = {}
    sets = []
    for i in range(qkv.n_q):
        if len(cache) == d:
            old = [j for j in cache if j < i - recent]
            del cache[min(old, key=lambda j: cache[j])]
        cache[i] = 0.0
        keys = list(cache)
        for j, weight in zip(keys, weights_of(qkv, i, keys), strict=True):
            cache[j] = cache[j] * accumulate + weight
        sets.append(keys)
    return over(qkv, sets)


def moba(qkv: QKV, d, draws, target, *, block=3) -> Tensor:
    sets = []
    for i, seen in enumerate(seen_by(qkv)):
        q, pages = qkv.q[0, i].tolist(), pages_of(seen, block)
        gates = {number: _dot(q, mean_of(qkv.k[0], keys)) for number, keys in pages.items()}
        sets.append(best_pages(gates, own_key(qkv, i) // block, pages, d, block))
    return over(qkv, sets)


def distances(qkv: QKV) -> list[int]:
    """The distances of diagonals, the nearest first: 0, 1, -1, 2, -2 …, or 0, 1, 2 … if attention is causal."""
    return [o for far in range(qkv.n_k) for o in ((far, -far) if far and not qkv.causal else (far,))]


def vertical_slash(qkv: QKV, d, draws, target, *, vertical=0.5, probe=3, first=1, near=1) -> Tensor:
    column = [0.0] * qkv.n_k
    slash = dict.fromkeys(distances(qkv), 0.0)
    for i in range(qkv.n_q - min(probe, qkv.n_q), qkv.n_q):
        for j, weight in zip(seen_by(qkv)[i], weights_of(qkv, i, seen_by(qkv)[i]), strict=True):
            column[j] += weight
            slash[own_key(qkv, i) - j] += weight
    count = min(max(1, int(d * vertical)), d - 1)
    columns = sorted(range(qkv.n_k), key=lambda j: (j >= first, -column[j] if j >= first else 0))[:count]
    diagonals = sorted(slash, key=lambda o: (abs(o) >= near, -slash[o] if abs(o) >= near else 0))[: d - count]
    sets = []
    for i, seen in enumerate(seen_by(qkv)):
        chosen = {*columns, *(own_key(qkv, i) - o for o in diagonals)}
        sets.append([j for j in seen if j in chosen])
    return over(qkv, sets)


def dsa_oracle(qkv: QKV, d, draws, target) -> Tensor:
    sets = []
    for i, seen in enumerate(seen_by(qkv)):
        weights = weights_of(qkv, i, seen)
        sets.append(sorted(seen, key=lambda j: -weights[j])[:d])  # noqa: B023  (they start at key 0)
    return over(qkv, sets)


def nsa(qkv: QKV, d, draws, target, *, branch="merge", block=3, window=512) -> Tensor:
    near = {"merge": min(window, d // 2), "window": d, "selected": 0, "compressed": 0}[branch]
    room = {"merge": d - near, "window": 0, "selected": d, "compressed": 0}[branch]
    out = torch.zeros(qkv.n_q, qkv.n_k, dtype=torch.float64)
    for i, seen in enumerate(seen_by(qkv)):
        own, q = own_key(qkv, i), qkv.q[0, i].tolist()
        pages = pages_of(seen, block)
        earlier = [number for number in pages if number < own // block or not qkv.causal]
        score = {number: qkv.scale * _dot(q, mean_of(qkv.k[0], pages[number])) for number in earlier}
        right = 0 if qkv.causal else (near - 1) // 2
        keys = {j for j in seen if near and own + right - near < j <= own + right}
        if room:
            keys |= set(best_pages(score, own // block, pages, room, block))
        if branch == "compressed" and not earlier:
            keys = set(seen)
        weight = {(j,): exp(qkv.scale * _dot(q, qkv.k[0, j].tolist())) for j in keys}
        for number in earlier if branch in ("merge", "compressed") else ():
            weight[tuple(pages[number])] = len(set(pages[number]) - keys) * exp(score[number])
        for tokens, one in weight.items():
            for j in tokens:
                out[i, j] += one / len(tokens) / sum(weight.values())
    return out


def block_mass(qkv: QKV, stride: int, block: int) -> list[dict[int, float]]:
    """The estimate of `xattention` for each block row, by block of keys."""
    query_at: dict[int, list[float]] = {}
    for i in range(qkv.n_q):
        query_at.setdefault(own_key(qkv, i), qkv.q[0, i].tolist())
    cells = -(-qkv.n_k // stride)
    rows: dict[int, list[dict[int, float]]] = {}
    for a in sorted({token // stride for token in query_at}):
        logits = []
        for b in range(a + 1 if qkv.causal else cells):
            pairs = [(a * stride + stride - 1 - r, min(b * stride + r, qkv.n_k - 1)) for r in range(stride)]
            scores = [_dot(query_at[i], qkv.k[0, j].tolist()) for i, j in pairs if i in query_at]
            tokens = min(stride, qkv.n_k - b * stride)
            logits.append(qkv.scale * sum(scores) / len(scores) + log(tokens / stride))
        mass: dict[int, float] = {}
        for b, weight in enumerate(torch.softmax(torch.tensor(logits), 0).tolist()):
            mass[b * stride // block] = mass.get(b * stride // block, 0.0) + weight
        rows.setdefault(a * stride // block, []).append(mass)
    number = max(rows) + 1
    return [
        {j: sum(one[j] for one in rows[i] if j in one) / len(rows[i]) for j in set().union(*rows[i])}
        if i in rows
        else {}
        for i in range(number)
    ]


def xattention(qkv: QKV, d, draws, target, *, stride=2, block=2, mass=0.9) -> Tensor:
    estimate, sets = block_mass(qkv, stride, block), []
    for i, seen in enumerate(seen_by(qkv)):
        own = own_key(qkv, i) // block
        kept = [0, own] if own else [0]
        held = sum(estimate[own][j] for j in kept)
        others = sorted((j for j in estimate[own] if j not in kept), key=lambda j: -estimate[own][j])  # noqa: B023
        for j in others:
            if (held < mass or mass == 1) and len(kept) < max(2, d // block):
                kept, held = [*kept, j], held + estimate[own][j]
        sets.append([j for j in seen if j // block in kept])
    return over(qkv, sets)


def until(score: dict[int, float], forced: list[int], count: int, enough: float) -> list[int]:
    """Forced items and then the largest ones, at most ``count``, until they hold ``enough``."""
    kept: list[int] = []
    for item in sorted(score, key=lambda item: (item not in forced, -score[item])):
        if len(kept) < count and (item in forced or sum(score[one] for one in kept) < enough):
            kept.append(item)
    return kept


def softmax_over_blocks(qkv: QKV, query: list[float], blocks: list[int], size: int) -> dict[int, float]:
    pages = pages_of(list(range(qkv.n_k)), size)
    scores = [qkv.scale * _dot(query, mean_of(qkv.k[0], pages[number])) for number in blocks]
    return dict(zip(blocks, torch.softmax(torch.tensor(scores), 0).tolist(), strict=True))


def flexprefill(qkv: QKV, d, draws, target, *, mass=0.95, tau=0.1, block=3) -> Tensor:
    count, seen = -(-qkv.n_k // block), seen_by(qkv)
    probe = list(range(max(0, qkv.n_q - block), qkv.n_q))
    column, slash, true = [0.0] * qkv.n_k, {}, [0.0] * count
    for i in probe:
        for j, weight in zip(seen[i], weights_of(qkv, i, seen[i]), strict=True):
            column[j] += weight
            true[j // block] += weight / len(probe)
            slash[own_key(qkv, i) - j] = slash.get(own_key(qkv, i) - j, 0.0) + weight
    slash = {o: slash.get(o, 0.0) for o in distances(qkv)}
    guess = softmax_over_blocks(qkv, mean_of(qkv.q[0], probe), list(range(count)), block)
    middle = [(a + guess[j]) / 2 for j, a in enumerate(true)]
    terms = [(a, m) for a, m in zip(true, middle, strict=True)] + [(guess[j], m) for j, m in enumerate(middle)]
    distance = max(0.0, sum(a * log(a / m) for a, m in terms if a) / 2) ** 0.5
    sets = []
    if distance >= tau:
        enough = mass * len(probe) if mass < 1 else float("inf")
        columns = until(dict(enumerate(column)), [0], d // 2, enough)
        diagonals = until(slash, [0], d - d // 2, enough)
        for i in range(qkv.n_q):
            chosen = {*columns, *(own_key(qkv, i) - o for o in diagonals)}
            sets.append([j for j in seen[i] if j in chosen])
        return over(qkv, sets)
    weights: dict[tuple[int, int], float] = {}
    for row in sorted({own_key(qkv, i) // block for i in range(qkv.n_q)}):
        together = [i for i in range(qkv.n_q) if own_key(qkv, i) // block == row]
        blocks = list(range(row + 1 if qkv.causal else count))
        found = softmax_over_blocks(qkv, mean_of(qkv.q[0], together), blocks, block)
        weights |= {(row, j): weight for j, weight in found.items()}
    rows = len({row for row, _ in weights})
    pooled, held = set(), 0.0
    for place in sorted(weights, key=lambda place: -weights[place]):
        if held < mass * rows or mass == 1:
            pooled.add(place)
        held += weights[place]
    for i in range(qkv.n_q):
        row = own_key(qkv, i) // block
        mine = {j: weight for (at, j), weight in weights.items() if at == row and ((at, j) in pooled or j == row)}
        kept = until(mine, [row], max(1, d // block), float("inf"))
        sets.append([j for j in seen[i] if j // block in kept])
    return over(qkv, sets)


TWINS = {"flexprefill": flexprefill, "xattention": xattention}
TWINS |= {"dsa-oracle": dsa_oracle, "moba": moba, "nsa": nsa, "vertical-slash": vertical_slash}
TWINS |= {"block-topk": block_topk, "expected": expected, "h2o": h2o, "keydiff": keydiff, "knorm": knorm}
TWINS |= {"quest": quest, "snapkv": snapkv, "topp": topp, "tova": tova, "random": random}
CAUSAL = TWINS
