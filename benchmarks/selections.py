"""The CPU time of eighteen selectors next to exact attention, on the last rows of 32,768 tokens.

    OMP_NUM_THREADS=1 python benchmarks/selections.py

The heads are those of a Llama with random weights, whose rows are flat: the queries are scaled so that the scores of a
head have standard deviation 3. 64 queries before the measured rows choose keys.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.resources import files
from typing import Any

import torch
from measuring import Goal, arguments, finish, timed

from attnprobe import QKV, approximate
from attnprobe.reference import own_output

SPREAD = 3.0  # standard deviation of the scores of a head
N, ROWS, BEFORE = 32768, 256, 64
BUDGETS = (256, 2048)
BLOCK = 64
ROUNDS = 3
SETTINGS: dict[str, dict[str, Any]] = {
    "topk": {},
    "topp": {},
    "quest": {},
    "moba": {"block": BLOCK},
    "block-topk": {"block": BLOCK},
    "vertical-slash": {},
    "window": {},
    "tri-shape": {"last": BLOCK},
    "xattention": {"block": BLOCK, "stride": 8},
    "flexprefill": {"block": BLOCK},
    "nsa": {"block": BLOCK},
    "dsa-oracle": {},
    "snapkv": {},
    "h2o": {"streaming": False, "observe": BEFORE},
    "tova": {"streaming": False},
    "expected": {},
    "knorm": {},
    "keydiff": {},
}


def llama(n: int, first: int) -> QKV:
    """Layer 0 of a Llama with random weights on the bytes of the embedded text: 4 query heads, 2 KV heads of 64."""
    from transformers import LlamaConfig, LlamaModel
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = LlamaConfig(**sizes, num_hidden_layers=1, vocab_size=256, max_position_embeddings=n)
    model: Any = LlamaModel(config).eval()
    text = (files("attnprobe.inputs") / "embedded.txt").read_bytes()
    ids = torch.tensor(list((text * (n // len(text) + 1))[:n]))[None]
    attention = model.layers[0].self_attn
    with torch.no_grad():
        states = model.layers[0].input_layernorm(model.embed_tokens(ids))
        cos, sin = model.rotary_emb(states, torch.arange(n)[None])

        def shaped(x):
            return x.view(1, n, -1, 64).transpose(1, 2)

        q, k, v = (shaped(project(states)) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
    some = torch.randint(n, (512,), generator=torch.Generator().manual_seed(0))
    keys = k[0].repeat_interleave(2, 0)
    scores = q[0][:, some] @ keys[:, some].mT / 8
    q = q[0] * (SPREAD / scores.std(dim=(1, 2)))[:, None, None]
    return QKV(q, k[0].contiguous(), v[0].contiguous(), causal=True).queries(torch.arange(first, n))


def measure(methods: list[str]) -> dict[tuple[str, int], tuple[float, float, bool]]:
    """The ratio of times and its spread by method and budget, and whether it scores fewer keys than exact attention."""
    qkv, found = llama(N, N - ROWS - BEFORE).select([0, 1]), {}
    for method in methods:
        for d in BUDGETS:
            run = partial(approximate, method, qkv, d, **SETTINGS[method])
            times = timed({"method": run, "exact": partial(own_output, qkv)}, ROUNDS)
            scored = times.results["method"].diagnostics["scored"] * qkv.n_q / qkv.entries
            found[method, d] = (*times.ratio("method", "exact"), bool((scored < 1).all()))
        print(f"{method:16}", *(f"{found[method, d][0]:8.2f}" for d in BUDGETS), flush=True)
    return found


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--method", choices=list(SETTINGS), action="append", help="a method; repeat for more")
    args = parser.parse_args()
    found = measure(args.method or list(SETTINGS))
    goals = [
        Goal(f"time of {method} over exact attention, {N} keys, d={d}", ratio, 1.0, False, spread)
        for (method, d), (ratio, spread, fewer) in found.items()
        if fewer and d == BUDGETS[0]
    ]
    return finish(goals, args.json)


if __name__ == "__main__":
    sys.exit(main())
