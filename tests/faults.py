"""The planted faults: one wrong edit of the package each, which `mutation` applies and the tests must notice.

Every family has the seven kinds below. Where a family has nothing of that name, the fault is its nearest relative, and
``meaning`` says what it is.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = {
    "scale": "a wrong scale",
    "half-norm": "a missing norm, half-norm, or half of something",
    "axis": "a softmax or a sum over the wrong axis",
    "clamp": "a clamped normaliser, exponent or probability",
    "landmark": "a landmark, row or column of the wrong matrix",
    "generator": "a draw that forgot its generator, or its own stream",
    "in-place": "an edit in place of something that belongs to others",
}


@dataclass(frozen=True)
class Fault:
    """One wrong edit: ``old`` stands ``count`` times in ``file`` (within the package), and ``new`` takes its place."""

    family: str
    method: str
    kind: str
    file: str
    old: str
    new: str
    meaning: str
    count: int = 1

    @property
    def name(self) -> str:
        return f"{self.method}: {self.meaning}"


# The test files of a method beside the contract suite; without an entry it is test_<method>.py.
FILES = {
    "softmax": ("test_reference.py", "test_operators.py"),
    "kernelized": ("test_reference.py", "test_operators.py"),
    "skyformer": ("test_skyformer.py", "test_linalg.py"),
    "nystromformer": ("test_nystromformer.py", "test_linalg.py"),
    "skeinformer": ("test_skeinformer.py", "test_linalg.py"),
    "linformer-jlt": ("test_linformer.py",),
    "performer-relu": ("test_performer.py",),
    "linear": ("test_performer.py",),
    "efficient": ("test_performer.py",),
    "nystromformer-kmeans": ("test_spectral_shift.py", "test_nystromformer.py", "test_linalg.py"),
    "prototype": ("test_spectral_shift.py",),
    "mss": ("test_spectral_shift.py",),
    "mss-literal": ("test_spectral_shift.py",),
    "lsh-qk": ("test_reformer.py",),
    "bigbird": ("test_sparse_methods.py",),
    "longformer": ("test_sparse_methods.py",),
    "window": ("test_sparse_methods.py",),
    "topk": ("test_sparse_methods.py",),
    "vmean": ("test_metrics.py",),
    "svd": ("test_metrics.py",),
    "lower bound": ("test_metrics.py",),
    "theorems": (
        "test_theory_chen2022.py", "test_theory_chen2022_vectors.py", "test_theory_dong2021.py",
        "test_theory_figures.py", "test_theory_finding.py", "test_theory_verma2021.py",
    ),
}  # fmt: skip

EXACT = [
    Fault(
        "exact", "softmax", "scale", "operators/attention.py",
        "scores = torch.matmul(self.q[heads, start:stop] * self.scale,",
        "scores = torch.matmul(self.q[heads, start:stop] * self.scale**2,",
        "the scale is applied twice",
    ),
    Fault(
        "exact", "kernelized", "half-norm", "operators/attention.py",
        "exponent.sub_(self.half_q[heads, start:stop, None]).sub_(self.half_k[heads, None, :])",
        "exponent.sub_(self.half_q[heads, start:stop, None])",
        "the half-norms of the keys are left out of the exponent",
    ),
    Fault(
        "exact", "softmax", "axis", "operators/attention.py",
        "torch.softmax(self.scores(heads, start, stop, out), dim=-1, out=out)",
        "torch.softmax(self.scores(heads, start, stop, out), dim=-2, out=out)",
        "the softmax runs over the queries of a block",
    ),
    Fault(
        "exact", "softmax", "clamp", "operators/attention.py",
        "return torch.softmax(self.scores(heads, start, stop, out), dim=-1, out=out)",
        "scores = self.scores(heads, start, stop)\n"
        "        weights = torch.exp(scores - scores.amax())\n"
        "        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)",
        "the shift is that of a whole block, and the normaliser is clamped at 1e-6",
    ),
    Fault(
        "exact", "kernelized", "clamp", "operators/attention.py",
        "exponent.clamp_(max=0).exp_()",
        "exponent.clamp_(min=-30, max=0).exp_()",
        "the exponent is clamped from below at -30",
    ),
    Fault(
        "exact", "softmax", "landmark", "reference.py",
        "scaled_dot_product_attention(q[None], k[None], v[None], scale=scale, is_causal=causal)",
        "scaled_dot_product_attention(k[None], k[None], v[None], scale=scale, is_causal=causal)",
        "the keys stand for the queries, too",
    ),
    Fault(
        "exact", "softmax", "generator", "reference.py",
        "v[None], scale=scale, is_causal=causal)",
        "v[None], scale=scale, is_causal=causal, dropout_p=0.1)",
        "the dropout of a trained layer is left on, drawn from the global generator",
    ),
    Fault(
        "exact", "kernelized", "in-place", "operators/attention.py",
        "exponent = self.scores(heads, start, stop, out)",
        "exponent = self.q[heads, start:stop].mul_(self.scale) @ self.k[heads].mT",
        "the queries are scaled where they lie",
    ),
]  # fmt: skip

NYSTROM = [
    Fault(
        "Nyström", "nystromformer", "scale", "methods/landmark_attention.py",
        "a = torch.softmax(qkv.scale * q_marks @ k_marks.mT, -1)",
        "a = torch.softmax(q_marks @ k_marks.mT, -1)",
        "the core forgets the scale",
    ),
    Fault(
        "Nyström", "skyformer", "scale", "methods/skyformer.py",
        "scale = qkv.scale if scale_dim is None else scale_dim**-0.5",
        "scale = qkv.p**-0.5 if scale_dim is None else scale_dim**-0.5",
        "the scale is p^-½ whatever the model says",
    ),
    Fault(
        "Nyström", "skyformer", "half-norm", "methods/skyformer.py",
        "torch.baddbmm(-half[..., None], scale * landmarks, k.mT)",
        "torch.baddbmm(0 * half[..., None], scale * landmarks, k.mT)",
        "the half-norms of the landmarks are left out of the right factor",
    ),
    Fault(
        "Nyström", "skyformer", "half-norm", "methods/row_guard.py",
        "weight = torch.exp(torch.gather(half, 1, key.clamp(min=0)) - head_shift[:, None])",
        "weight = torch.exp(torch.zeros_like(key, dtype=half.dtype) - head_shift[:, None])",
        "the bound of the row guard leaves out the half-norms of the keys",
    ),
    Fault(
        "Nyström", "nystromformer", "axis", "methods/landmark_attention.py",
        "w = softmax_in_place((qkv.scale * q_marks).to(q) @ k.mT)",
        "w = torch.softmax((qkv.scale * q_marks).to(q) @ k.mT, -2)",
        "the right factor's softmax runs over the landmarks",
    ),
    Fault(
        "Nyström", "skyformer", "axis", "linalg/inverses.py",
        "columns = a.abs().sum(-2).amax(-1)[:, None, None]",
        "columns = a.abs().sum(-1).amax(-1)[:, None, None]",
        "the start divides by a row sum for a column sum",
    ),
    Fault(
        "Nyström", "skyformer", "clamp", "methods/skyformer.py",
        "operator = Scaled(low_rank, left=1 / mass)",
        "operator = Scaled(low_rank, left=1 / mass.clamp(min=1e-2))",
        "the normaliser is clamped at 1e-2",
    ),
    Fault(
        "Nyström", "skyformer", "clamp", "methods/row_guard.py",
        "bad = ~(mass >= bound * (1 - slack)) | ~(mass >= floor)",
        "bad = ~(mass >= floor)",
        "the guard forgets the bound and keeps its floor alone",
    ),
    Fault(
        "Nyström", "nystromformer", "landmark", "methods/nystromformer.py",
        "segment_means(qkv.q.double(), d), segment_means(qkv.k.double(), d)",
        "segment_means(qkv.q.double(), d), segment_means(qkv.q.double(), d)",
        "the landmarks of the keys are means of queries",
    ),
    Fault(
        "Nyström", "skyformer", "landmark", "methods/skyformer.py",
        'generator=stream("keys"), device="cpu") + n_q',
        'generator=stream("keys"), device="cpu")',
        "the landmarks that should be keys are queries",
    ),
    Fault(
        "Nyström", "skyformer", "generator", "methods/skyformer.py",
        'torch.randint(n_q, (d // 2,), generator=stream("queries"), device="cpu")',
        'torch.randint(n_q, (d // 2,), device="cpu")',
        "the landmarks among the queries come from the global generator",
    ),
    Fault(
        "Nyström", "skyformer", "generator", "methods/skyformer.py",
        'kmeans(torch.cat([q[row], k[row]]), d, stream("kmeans"))',
        'kmeans(torch.cat([q[row], k[row]]), d, streams.shared("kmeans"))',
        "the centroids of all heads start from the same draw",
    ),
    Fault(
        "Nyström", "nystromformer", "in-place", "methods/landmark_attention.py",
        "f = softmax_in_place(q @ (qkv.scale * k_marks).to(q).mT)",
        "f = softmax_in_place(q.mul_(qkv.scale) @ k_marks.to(q).mT)",
        "the queries are scaled where they lie",
    ),
    Fault(
        "Nyström", "skyformer", "in-place", "methods/skyformer.py",
        "k = k - k.mean(1, keepdim=True)",
        "k -= k.mean(1, keepdim=True)",
        "the keys are centred where they lie",
    ),
    Fault(
        "Nyström", "mss-literal", "scale", "methods/landmark_attention.py",
        "f = softmax_in_place(q @ (qkv.scale * k_marks).to(q).mT)",
        "f = softmax_in_place(q @ k_marks.to(q).mT)",
        "the left factor forgets the scale, as that of Nyströmformer does with it",
    ),
    Fault(
        "Nyström", "mss", "scale", "methods/mss.py",
        "discarded / missing.clamp(min=1)",
        "discarded / d",
        "the discarded eigenvalues are divided by d, not by their number",
    ),
    Fault(
        "Nyström", "spectral-shift", "scale", "linalg/shifting.py",
        "(kernel.trace() - top) / (total - d)",
        "(kernel.trace() - top) / total",
        "the first shift d̄ divides by N in place of N - d",
    ),
    Fault(
        "Nyström", "nystromformer-kmeans", "half-norm", "linalg/sampling.py",
        "size = (centroids * centroids).sum(-1)",
        "size = 0 * (centroids * centroids).sum(-1)",
        "the nearest centroid is the one with the largest inner product: its norm is left out",
    ),
    Fault(
        "Nyström", "prototype", "half-norm", "methods/spectral_shift.py",
        "h, t = span(_unit(matrix[:, columns])), span(_unit(matrix[rows].T))",
        "h, t = span(matrix[:, columns]), span(_unit(matrix[rows].T))",
        "the columns are not divided by their norms, and small ones fall out of the basis",
    ),
    Fault(
        "Nyström", "spectral-shift", "half-norm", "linalg/shifting.py",
        "return h, core - delta * torch.eye(d, dtype=kernel.dtype, device=kernel.device), delta",
        "return h, core, delta",
        "the half of U that the shift takes off is missing",
    ),
    Fault(
        "Nyström", "mss", "axis", "methods/mss.py",
        "s * (u.mT * v).sum(-1)",
        "s * (u.mT * v).sum(-2)",
        "the products u_iᵀ v_i of the singular vectors are summed over i",
    ),
    Fault(
        "Nyström", "mss-literal", "axis", "methods/mss.py",
        "operator = LowRank(f, g, w)",
        "operator = LowRank(f, g.mT, w)",
        "the pseudo-inverse lies on its side",
    ),
    Fault(
        "Nyström", "nystromformer-kmeans", "clamp", "linalg/sampling.py",
        "torch.where(sizes > 0, sums / sizes.clamp(min=1), centroids)",
        "sums / sizes.clamp(min=1)",
        "the size of an empty cluster is clamped at 1, so its centroid moves to 0",
    ),
    Fault(
        "Nyström", "spectral-shift", "clamp", "linalg/shifting.py",
        "return u * (s > max(columns.shape) * torch.finfo(s.dtype).eps * s[0])",
        "return u * (s > 1e-3 * s[0])",
        "singular values below 1e-3 of the largest count as zero",
    ),
    Fault(
        "Nyström", "mss", "clamp", "methods/mss.py",
        "torch.where(missing > 0, discarded / missing.clamp(min=1), torch.zeros_like(discarded)).clamp(min=0)",
        "torch.where(missing > 0, discarded / missing.clamp(min=1), torch.zeros_like(discarded))",
        "a negative shift is not clamped at 0",
    ),
    Fault(
        "Nyström", "nystromformer-kmeans", "landmark", "methods/nystromformer.py",
        '(("query_centroids", qkv.q), ("key_centroids", qkv.k))',
        '(("query_centroids", qkv.k), ("key_centroids", qkv.k))',
        "the landmarks of the queries are centroids of keys",
    ),
    Fault(
        "Nyström", "prototype", "landmark", "methods/spectral_shift.py",
        "parts = h[:n_q], h.T @ matrix @ h, h[n_q:].T",
        "parts = h[:n_q], h.T @ matrix @ h, h[: qkv.n_k].T",
        "for gaussian the columns of the block are queries",
    ),
    Fault(
        "Nyström", "mss", "landmark", "methods/mss.py",
        '(g if form == "eq8" else a)',
        "a",
        "the core stands for its inverse in the correction of equation 8",
    ),
    Fault(
        "Nyström", "mss", "landmark", "methods/mss.py",
        "key = torch.arange(n_q, device=delta.device).clamp(max=n_k - 1)",
        "key = torch.arange(n_q, device=delta.device) % n_k",
        "queries beyond the last key are shifted at the first keys",
    ),
    Fault(
        "Nyström", "nystromformer-kmeans", "generator", "methods/nystromformer.py",
        "streams.head(head, name)",
        'streams.head(head, "centroids")',
        "the centroids of queries and keys start from one draw",
    ),
    Fault(
        "Nyström", "prototype", "generator", "methods/spectral_shift.py",
        'torch.randperm(n_q + qkv.n_k, generator=streams.head(head, "order"), device="cpu")',
        'torch.randperm(n_q + qkv.n_k, device="cpu")',
        "the order of the tokens comes from the global generator",
    ),
    Fault(
        "Nyström", "spectral-shift", "in-place", "linalg/shifting.py",
        "sampled[columns, torch.arange(d, device=columns.device)] -= (kernel.trace() - top) / (total - d)",
        "kernel[columns, columns] -= (kernel.trace() - top) / (total - d)\n        sampled = kernel[:, columns]",
        "the first shift is taken off the kernel itself",
    ),
]  # fmt: skip

SAMPLING = [
    Fault(
        "sampling", "skeinformer", "scale", "methods/skeinformer.py",
        "scores = (qkv.scale * qkv.q) @ tokens(qkv.k, columns).mT",
        "scores = qkv.q @ tokens(qkv.k, columns).mT",
        "the scores of the sampled columns forget the scale",
    ),
    Fault(
        "sampling", "informer", "scale", "methods/informer.py",
        "products.amax(-1) - products.sum(-1) / len(k)",
        "products.amax(-1) - products.mean(-1)",
        "the sum in M̂ is divided by the size of the sample",
    ),
    Fault(
        "sampling", "skeinformer", "half-norm", "methods/skeinformer.py",
        "p = b.norm(dim=0) * v.norm(dim=1)",
        "p = b.norm(dim=0)",
        "the norms of the values are left out of p̂",
    ),
    Fault(
        "sampling", "informer", "half-norm", "methods/informer.py",
        "scores.logsumexp(-1) - log(scores.shape[1]) - scores.mean(-1)",
        "scores.logsumexp(-1) - log(scores.shape[1])",
        "the log-ratio lacks the half that is the geometric mean",
    ),
    Fault(
        "sampling", "skeinformer", "axis", "methods/skeinformer.py",
        "b = torch.softmax(qkv.scale * q[j] @ k.mT, -1)",
        "b = torch.softmax(qkv.scale * q[j] @ k.mT, 0)",
        "the softmax of the pilot rows runs over the pilots",
    ),
    Fault(
        "sampling", "skeinformer", "clamp", "methods/skeinformer.py",
        "mass = a.sum(-1) + (n_k - columns.shape[1]) * g",
        "mass = (a.sum(-1) + (n_k - columns.shape[1]) * g).clamp(min=2)",
        "the shifted normaliser D̂, which is at least 1, is clamped at 2",
    ),
    Fault(
        "sampling", "skeinformer", "landmark", "methods/skeinformer.py",
        "b = torch.softmax(qkv.scale * q[j] @ k.mT, -1)",
        "b = torch.softmax(qkv.scale * k[j] @ k.mT, -1)",
        "the pilot rows are keys, so p̂ is that of another matrix",
    ),
    Fault(
        "sampling", "informer", "landmark", "methods/informer.py",
        "SoftmaxAttention(tokens(qkv.q, rows), qkv.k, qkv.scale)",
        "SoftmaxAttention(tokens(qkv.k, rows), qkv.k, qkv.scale)",
        "the exact rows are those of keys",
    ),
    Fault(
        "sampling", "informer", "generator", "methods/informer.py",
        'torch.randint(qkv.n_k, (qkv.n_q, sample_k), generator=stream, device="cpu")',
        'torch.randint(qkv.n_k, (qkv.n_q, sample_k), device="cpu")',
        "the sampled keys come from the global generator",
    ),
    Fault(
        "sampling", "skeinformer", "generator", "methods/skeinformer.py",
        'columns.append(sample(p, d, streams.head(head, "columns")))',
        "columns.append(torch.multinomial(p.cpu(), d, replacement=with_repeats))",
        "torch.multinomial draws the columns, from the global generator",
    ),
    Fault(
        "sampling", "skeinformer", "in-place", "methods/skeinformer.py",
        "scores = (qkv.scale * qkv.q) @ tokens(qkv.k, columns).mT",
        "scores = qkv.q.mul_(qkv.scale) @ tokens(qkv.k, columns).mT",
        "the queries are scaled where they lie",
    ),
]  # fmt: skip

SKETCH = [
    Fault(
        "sketch", "linformer", "scale", "methods/linformer.py",
        "weights = torch.softmax(qkv.scale * qkv.q @ keys.mT, -1)",
        "weights = torch.softmax(qkv.q @ keys.mT, -1)",
        "the scores forget the scale",
    ),
    Fault(
        "sketch", "linformer-jlt", "scale", "linalg/sketches.py",
        "return signs[:, None] * (1 - 2 * odd).double() / sqrt(d)",
        "return signs[:, None] * (1 - 2 * odd).double() / sqrt(n)",
        "the Hadamard sketch is divided by √n for √d",
    ),
    Fault(
        "sketch", "amm", "half-norm", "methods/amm.py",
        "return total.sqrt()",
        "return total",
        "the weights are squared column norms: the root is missing",
    ),
    Fault(
        "sketch", "linformer", "axis", "methods/linformer.py",
        "weights = torch.softmax(qkv.scale * qkv.q @ keys.mT, -1)",
        "weights = torch.softmax(qkv.scale * qkv.q @ keys.mT, -2)",
        "the softmax runs over the queries",
    ),
    Fault(
        "sketch", "amm", "axis", "methods/amm.py",
        "total += torch.softmax(scale * q[start:stop] @ k.T, -1).square().sum(0)",
        "total += torch.softmax(scale * q[start:stop] @ k.T, 0).square().sum(0)",
        "the column norms are of a softmax over the queries",
    ),
    Fault(
        "sketch", "amm", "clamp", "methods/amm.py",
        "log_weights.append(-log(d) - probability.log())",
        "log_weights.append(-log(d) - probability.clamp(min=2e-2).log())",
        "probabilities are clamped at 0.02 where they divide",
    ),
    Fault(
        "sketch", "linformer", "landmark", "methods/linformer.py",
        'of_v = draws["sketch" if share else "sketch_values"]',
        'of_v = draws["sketch"]',
        "the values are projected by the matrix of the keys even where they have their own",
    ),
    Fault(
        "sketch", "amm", "landmark", "methods/amm.py",
        "keys = tokens(k, index)",
        "keys = tokens(q, index)",
        "the sampled columns are those of queries",
    ),
    Fault(
        "sketch", "linformer", "generator", "linalg/sketches.py",
        'torch.randn(d, n, generator=generator, dtype=torch.float64, device="cpu")',
        'torch.randn(d, n, dtype=torch.float64, device="cpu")',
        "the Gaussian sketch comes from the global generator",
    ),
    Fault(
        "sketch", "linformer", "generator", "methods/linformer.py",
        '_draw(qkv, d, streams, "sketch_values", std, share_heads)',
        '_draw(qkv, d, streams, "sketch", std, share_heads)',
        "the sketch of the values has the stream of the keys', and is the same",
    ),
    Fault(
        "sketch", "amm", "in-place", "methods/amm.py",
        "exponent = qkv.scale * q @ keys.mT",
        "exponent = q.mul_(qkv.scale) @ keys.mT",
        "the queries are scaled where they lie",
    ),
]  # fmt: skip

FEATURES = [
    Fault(
        "features", "performer", "scale", "methods/performer.py",
        "factor = qkv.scale if double_norm else qkv.scale**0.5",
        "factor = qkv.scale",
        "the scale is on both sides whole, so it is applied twice",
    ),
    Fault(
        "features", "performer", "half-norm", "methods/performer.py",
        "return (x @ w.mT).sub_((x * x).sum(-1, keepdim=True) / 2)",
        "return x @ w.mT",
        "the features lack their half-norm",
    ),
    Fault(
        "features", "performer", "half-norm", "methods/performer.py",
        'length = norms.norm(dim=-1) if scaling == "chi" else',
        'length = norms.norm(dim=-1)[:, :1].expand(-1, p) if scaling == "chi" else',
        "the rows of a block share one norm",
    ),
    Fault(
        "features", "efficient", "axis", "methods/efficient.py",
        "rho_k = torch.softmax(qkv.k * factor, 1)",
        "rho_k = torch.softmax(qkv.k * factor, -1)",
        "the softmax of the keys runs over their features",
    ),
    Fault(
        "features", "performer-relu", "axis", "methods/base.py",
        "right = torch.softmax(log_k, 1)",
        "right = torch.softmax(log_k, 2)",
        "the key features are normalised within each key",
    ),
    Fault(
        "features", "performer", "clamp", "methods/base.py",
        "total = log_k.logsumexp(1, keepdim=True)",
        "total = log_k.logsumexp(1, keepdim=True).clamp(min=-10)",
        "the logarithm of the normaliser is clamped at -10",
    ),
    Fault(
        "features", "linear", "clamp", "methods/linear.py",
        "return x.clamp(max=0) + torch.log1p(x.clamp(min=0))",
        "return x.clamp(min=-4, max=0) + torch.log1p(x.clamp(min=0))",
        "features of less than exp(-4) are raised to it",
    ),
    Fault(
        "features", "performer", "landmark", "methods/performer.py",
        "log_q, log_k = log_features(q, rows), log_features(k, rows)",
        "log_q, log_k = log_features(q, rows), log_features(q, rows)",
        "the features of the keys are those of the queries",
    ),
    Fault(
        "features", "performer", "landmark", "methods/performer.py",
        "(k @ rows.mT).amax((1, 2), keepdim=True)",
        "(k @ rows.mT).amax(-1, keepdim=True)",
        "with eps, each key has its own shift in place of its head's",
    ),
    Fault(
        "features", "performer", "generator", "methods/performer.py",
        "torch.randn(p, p, generator=g,",
        "torch.randn(p, p,",
        "the projection comes from the global generator",
    ),
    Fault(
        "features", "performer", "generator", "methods/performer.py",
        'stream("directions"), stream("norms")',
        'stream("directions"), stream("directions")',
        "norms and directions have one stream",
    ),
    Fault(
        "features", "performer-relu", "in-place", "methods/performer.py",
        "return qkv.q * factor, qkv.k * factor, torch.stack(drawn)",
        "return qkv.q.mul_(factor), qkv.k.mul_(factor), torch.stack(drawn)",
        "queries and keys are scaled where they lie",
    ),
    Fault(
        "features", "efficient", "in-place", "methods/efficient.py",
        "rho_q = torch.softmax(qkv.q * factor, -1)",
        "rho_q = torch.softmax(qkv.q.mul_(factor), -1)",
        "the queries are scaled where they lie, which only scale=true shows",
    ),
]  # fmt: skip

LSH = [
    Fault(
        "LSH", "reformer", "scale", "methods/reformer.py",
        'queries = qkv.q * qkv.scale if logits == "scaled" else qkv.q',
        "queries = qkv.q * qkv.scale",
        "the scale multiplies the logits of unit keys, too",
    ),
    Fault(
        "LSH", "lsh-qk", "scale", "methods/lsh_qk.py",
        "block_scores(qkv.scale * qkv.q[head], qkv.k[head], queries, window)",
        "block_scores(qkv.q[head], qkv.k[head], queries, window)",
        "the scores forget the scale",
    ),
    Fault(
        "LSH", "reformer", "half-norm", "methods/reformer.py",
        "keys = (qkv.q.double() / length.clamp(min=torch.finfo(torch.float64).tiny)).to(qkv.dtype)",
        "keys = qkv.q",
        "the keys are not divided by their norms",
    ),
    Fault(
        "LSH", "lsh-qk", "half-norm", "methods/lsh_qk.py",
        "q_rest, k_rest = (total - q_square).sqrt(), (total - k_square).sqrt()",
        "q_rest, k_rest = (total - q_square).sqrt(), total - k_square",
        "with hash=smyrf what is added to a key lacks its square root",
    ),
    Fault(
        "LSH", "reformer", "half-norm", "linalg/hashing.py",
        "step * (nearest + count // 2 * away)",
        "step * nearest",
        "half of the buckets are missing: both ends of an axis share one",
    ),
    Fault(
        "LSH", "reformer", "axis", "methods/reformer.py",
        'torch.softmax(logit.masked_fill(~used, float("-inf")), -1)',
        'torch.softmax(logit.masked_fill(~used, float("-inf")).unflatten(1, (rounds, -1)), -1).flatten(1) / rounds',
        "each round has a softmax of its own, and all rounds count alike",
    ),
    Fault(
        "LSH", "lsh-qk", "axis", "methods/lsh_qk.py",
        'masked_fill(index[-1] < 0, float("-inf")), -1)',
        'masked_fill(index[-1] < 0, float("-inf")), 0)',
        "the softmax runs over the queries that hold a slot",
    ),
    Fault(
        "LSH", "reformer", "clamp", "methods/reformer.py",
        "logit = scores.flatten(0, 1)[place].flatten(1)",
        "logit = scores.flatten(0, 1)[place].flatten(1).masked_fill(slots == token, -1e5)\n"
        "        used |= slots == token",
        "a token's own logit is -1e5, and no longer the smallest where queries are long",
    ),
    Fault(
        "LSH", "lsh-qk", "clamp", "methods/lsh_qk.py",
        "torch.cat(scores, 1).masked_fill(",
        "torch.cat(scores, 1).clamp(min=-30).masked_fill(",
        "scores are clamped from below at -30",
    ),
    Fault(
        "LSH", "reformer", "landmark", "methods/reformer.py",
        "window[:, -chunk:], window)",
        "window[:, :chunk], window)",
        "the queries of a block are those of the chunk before it",
    ),
    Fault(
        "LSH", "reformer", "landmark", "linalg/hashing.py",
        "chunks.roll(1, 0)",
        "chunks.roll(-1, 0)",
        "a chunk is joined by the one that follows, not by the one before",
    ),
    Fault(
        "LSH", "lsh-qk", "landmark", "methods/lsh_qk.py",
        "beside = rank * qkv.n_k // qkv.n_q // chunk",
        "beside = rank.clamp(max=qkv.n_k - 1) // chunk",
        "the query of rank r stands beside the key of rank r, however many keys there are",
    ),
    Fault(
        "LSH", "lsh-qk", "landmark", "methods/lsh_qk.py",
        "shown.masked_fill(back <= 1, -1)",
        "shown.masked_fill(back < 1, -1)",
        "keys of the earlier chunk that an earlier round has shown count twice",
    ),
    Fault(
        "LSH", "reformer", "generator", "methods/hashed.py",
        'rows, width, generator=streams.head(head, "rotations", str(turn)), dtype',
        "rows, width, dtype",
        "the rotations come from the global generator",
    ),
    Fault(
        "LSH", "lsh-qk", "generator", "methods/hashed.py",
        'streams.head(head, "rotations", str(turn))',
        'streams.head(head, "rotations")',
        "all rounds have one rotation",
    ),
    Fault(
        "LSH", "reformer", "in-place", "methods/reformer.py",
        'queries = qkv.q * qkv.scale if logits == "scaled" else qkv.q',
        'queries = qkv.q.mul_(qkv.scale) if logits == "scaled" else qkv.q',
        "the queries are scaled where they lie, which only logits=scaled shows",
    ),
    Fault(
        "LSH", "lsh-qk", "in-place", "methods/lsh_qk.py",
        "block_scores(qkv.scale * qkv.q[head], qkv.k[head], queries, window)",
        "block_scores(qkv.q[head].mul_(qkv.scale ** (turn == 0)), qkv.k[head], queries, window)",
        "the queries are scaled where they lie, in the first round",
    ),
]  # fmt: skip

SPARSE = [
    Fault(
        "sparse", "window", "scale", "methods/base.py",
        "scores = (scale * q[head, rows]).unflatten(0, (len(columns), -1))",
        "scores = q[head, rows].unflatten(0, (len(columns), -1))",
        "the sparse scores forget the scale",
    ),
    Fault(
        "sparse", "topk", "scale", "methods/topk.py",
        "scores = (qkv.scale * qkv.q[head, start:stop]) @ qkv.k[head].mT",
        "scores = qkv.q[head, start:stop] @ qkv.k[head].mT",
        "the scores forget the scale, which changes no choice but every weight",
    ),
    Fault(
        "sparse", "window", "half-norm", "methods/window.py",
        "(w // 2, (w - 1) // 2)",
        "(w // 2, w // 2)",
        "the right half of an even window is one too long",
    ),
    Fault(
        "sparse", "longformer", "half-norm", "methods/longformer.py",
        "half = (d - least) // 2",
        "half = d - least",
        "the whole window lies on each side in place of half of it",
    ),
    Fault(
        "sparse", "longformer", "axis", "methods/base.py",
        'torch.softmax(scores.masked_fill_(absent, float("-inf")), -1)',
        'torch.softmax(scores.masked_fill_(absent, float("-inf")), -2)',
        "the sparse softmax runs over the rows that share their columns",
    ),
    Fault(
        "sparse", "topk", "axis", "methods/topk.py",
        "torch.exp(over - shift).sum(-1, keepdim=True)",
        "torch.exp(over - shift).sum(0)[:d]",
        "the normaliser sums over the rows of a block",
    ),
    Fault(
        "sparse", "bigbird", "clamp", "methods/base.py",
        'row = torch.softmax(scores.masked_fill_(absent, float("-inf")), -1)',
        'a = torch.exp(scores.masked_fill_(absent, float("-inf")) - scores.amax())\n'
        "            row = a / a.sum(-1, keepdim=True).clamp(min=1e-6)",
        "the shift is that of a whole block, and the normaliser is clamped at 1e-6",
    ),
    Fault(
        "sparse", "longformer", "landmark", "methods/longformer.py",
        "SoftmaxAttention(qkv.q[:, :rows], qkv.k, qkv.scale, last)",
        "SoftmaxAttention(qkv.k[:, :rows], qkv.k, qkv.scale, last)",
        "the global rows are those of keys",
    ),
    Fault(
        "sparse", "bigbird", "landmark", "methods/bigbird.py",
        "ends = torch.tensor([0, nb - 1 if nb > 1 else -1],",
        "ends = torch.tensor([0, last_q if nb > 1 else -1],",
        "the last global block is the last one of the queries, where it should be one of the keys",
    ),
    Fault(
        "sparse", "bigbird", "generator", "methods/bigbird.py",
        "torch.rand(len(seen), count, generator=generator,",
        "torch.rand(len(seen), count,",
        "the random blocks come from the global generator",
    ),
    Fault(
        "sparse", "bigbird", "generator", "methods/bigbird.py",
        'streams.head(i, "blocks")',
        'streams.shared("blocks")',
        "all heads draw the same blocks",
    ),
    Fault(
        "sparse", "window", "in-place", "methods/base.py",
        "scores = (scale * q[head, rows]).unflatten(0, (len(columns), -1))",
        "scores = q[head, rows].mul_(scale).unflatten(0, (len(columns), -1))",
        "the queries are scaled where they lie",
    ),
    Fault(
        "sparse", "bigbird", "in-place", "operators/structured.py",
        "self.group = index.clamp(min=0), weight, group",
        "self.group = index.clamp_(min=0), weight, group",
        "the index of the caller loses its empty slots",
    ),
]  # fmt: skip

REFERENCE = [
    Fault(
        "reference", "vmean", "scale", "methods/vmean.py",
        "torch.full((qkv.h, qkv.n_k), 1 / qkv.n_k,",
        "torch.full((qkv.h, qkv.n_k), 1 / qkv.n_q,",
        "the mean of the values divides by the number of queries",
    ),
    Fault(
        "reference", "lower bound", "scale", "metrics/error.py",
        "tail = values[:, d:]",
        "tail = values[:, max(d - 1, 0) :]",
        "the bound is that of rank d - 1: σ_d in place of σ_{d+1}",
    ),
    Fault(
        "reference", "svd", "half-norm", "operators/attention.py",
        "exponent.sub_(self.half_q[heads, start:stop, None]).sub_(self.half_k[heads, None, :])",
        "exponent.sub_(self.half_k[heads, None, :])",
        "the Gaussian matrix that is decomposed lacks the half-norms of the queries",
    ),
    Fault(
        "reference", "lower bound", "half-norm", "metrics/error.py",
        "frobenius = tail.norm(dim=-1)",
        "frobenius = tail.square().sum(-1)",
        "the Frobenius bound lacks its square root",
    ),
    Fault(
        "reference", "svd", "axis", "methods/svd.py",
        "right.append(w[:d])",
        "right.append(w[:, :d].mT)",
        "the right vectors are columns of Wᵀ where they are its rows",
    ),
    Fault(
        "reference", "lower bound", "clamp", "metrics/error.py",
        '"output_spectral_relative": spectral / size,\n        "output_frobenius": frobenius,\n'
        '        "output_frobenius_relative": frobenius / size_frobenius,\n    }\n\n\ndef _exact',
        '"output_spectral_relative": spectral / size.clamp(min=1),\n        "output_frobenius": frobenius,\n'
        '        "output_frobenius_relative": frobenius / size_frobenius.clamp(min=1),\n    }\n\n\ndef _exact',
        "the relative bounds divide by no less than 1",
    ),
    Fault(
        "reference", "svd", "landmark", "methods/svd.py",
        "left.append(u[:, :d] * s[:d])",
        "left.append(w.mT[:, :d] * s[:d])",
        "the left vectors are the right ones",
    ),
    Fault(
        "reference", "svd", "generator", "methods/svd.py",
        "u, s, w = torch.linalg.svd(exact(qkv.select([head]).to(dtype=torch.float64), target).dense()[0])",
        "u, s, w = torch.svd_lowrank(exact(qkv.select([head]).to(dtype=torch.float64), target).dense()[0], q=d)\n"
        "        w = w.mT",
        "a randomised decomposition, from the global generator, stands for the exact one",
    ),
    Fault(
        "reference", "lower bound", "in-place", "metrics/error.py",
        "tail = values[:, d:]\n",
        "tail = values[:, d:]\n    values[:, :d] = 0\n",
        "the singular values of the caller lose their first d",
    ),
]  # fmt: skip

THEORY = [
    Fault(
        "theory", "theorems", "scale", "metrics/theory/dong2021.py",
        "return 2 * (ranges.sum(-1) * ranges.amax(-1) * base.amax(-1)).sqrt()",
        "return (ranges.sum(-1) * ranges.amax(-1) * base.amax(-1)).sqrt()",
        "the bound of rank collapse lacks its factor 2",
    ),
    Fault(
        "theory", "theorems", "scale", "metrics/theory/chen2022_vectors.py",
        "met=failure <= setting.delta",
        "met=failure <= epsilon",
        "ε stands for δ in the assumption of the JL guarantee",
    ),
    Fault(
        "theory", "theorems", "half-norm", "metrics/theory/sketched.py",
        "squares.sum(1).square()",
        "squares.sum(1)",
        "the hardest vector is a long one: its norm is squared once where it is twice",
    ),
    Fault(
        "theory", "theorems", "axis", "report/theory_curves.py",
        'extend(v for v in map(unspelt, point["details"][name]) if',
        'extend(v for v in map(unspelt, point["details"][name][:1]) if',
        "a curve shows the first head and not the median of all",
    ),
    Fault(
        "theory", "theorems", "axis", "metrics/theory/dong2021.py",
        "ranges.append(e.amax(1) - e.amin(1))",
        "ranges.append(e.amax(0) - e.amin(0))",
        "the range of scores is that of a column and not of a row",
    ),
    Fault(
        "theory", "theorems", "clamp", "metrics/theory/sketched.py",
        "return float((estimated[some] / optimal[some]).min().clamp(max=1))",
        "return float((estimated[some] / optimal[some]).max().clamp(max=1))",
        "β is the largest quotient of probabilities and not the least",
    ),
    Fault(
        "theory", "theorems", "clamp", "metrics/theory/finding.py",
        "NOT_MET if not met else VACUOUS if vacuous else None",
        "VACUOUS if vacuous else NOT_MET if not met else None",
        "a promise that is not made is called vacuous",
    ),
    Fault(
        "theory", "theorems", "landmark", "metrics/theory/verma2021.py",
        "tail = values.sort(descending=True).values[d:]",
        "tail = values.sort(descending=True).values[d - 1 :]",
        "the tail of the spectrum begins one eigenvalue too early",
    ),
    Fault(
        "theory", "theorems", "generator", "metrics/theory/sketched.py",
        'stream = setting.streams("skeinformer", seed).head(self.number, "pilot_rows")',
        'stream = setting.streams("skeinformer", seed).head(self.number, "columns")',
        "the pilots are drawn from the stream of the columns, and are not those of the method",
    ),
    Fault(
        "theory", "theorems", "in-place", "metrics/theory/verma2021.py",
        "bar = matrix.clone()",
        "bar = matrix",
        "the shift is taken from the kernel of the caller",
    ),
]  # fmt: skip

FAULTS = (*EXACT, *NYSTROM, *SAMPLING, *SKETCH, *FEATURES, *LSH, *SPARSE, *REFERENCE, *THEORY)
