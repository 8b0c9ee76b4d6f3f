"""Every number that is an option of a method: its limits are accepted where they are allowed, what is beyond is not."""

from typing import Any

import pytest
import torch

from attnprobe import QKV, approximate
from attnprobe.errors import UsageError
from attnprobe.methods import METHODS, get

TINY = 1e-9
NOT_NEGATIVE, POSITIVE = ([0], [-1]), ([1], [0])
SHARE = ([TINY, 1.0], [0.0, 1 + TINY])  # above 0, up to 1
OPEN = ([TINY, 1 - TINY], [0.0, 1.0])
CUT = ([0.0, 1 - TINY], [-TINY, 1.0])  # from 0, below 1
BITS, BYTE = ([1, 16], [0, 17]), ([1, 8], [0, 9])
PINV, SCHULZ, PYRAMID = {"inverse": "pinv"}, {"inverse": "schulz"}, {"allocation": "pyramid"}

Limits = tuple[list[Any], list[Any]]
LIMITS: dict[str, dict[str, Limits]] = {
    "thinformer": {"delta": OPEN},
    "wildcat": {"tau": ([TINY], [0.0])},
    "hyper": {"bits": BITS, "block": SHARE},
    "kdeformer": {"bits": BITS, "block": SHARE},
    "magicpig": {
        "bits": ([1, 32], [0, 33]),
        "tables": ([2, 256], [1, 257]),
        "sinks": NOT_NEGATIVE,
        "window": NOT_NEGATIVE,
        "floor": ([0.0], [-TINY]),
        "least_hits": ([1, 2], [0, 3]),
    },
    "vattention": {
        "heavy": CUT,
        "sinks": NOT_NEGATIVE,
        "window": NOT_NEGATIVE,
        "epsilon": ([TINY], [0.0]),
        "delta": OPEN,
        "most": SHARE,
    },
    "performer": {"eps": ([0.0], [-TINY])},
    "performer-relu": {"eps": ([0.0], [-TINY])},
    "lsh-qk": {"rounds": POSITIVE, "buckets": ([2, 4], [0, 1, 3])},
    "reformer": {"rounds": POSITIVE, "buckets": ([2, 4], [0, 1, 3]), "eps": ([0.0], [-TINY])},
    "mss": {"rank": ([], [0]), "rtol": CUT, "n_iter": NOT_NEGATIVE, "delta_override": ([0.0], [-TINY])},
    "nystromformer": {"n_iter": NOT_NEGATIVE, "rtol": CUT},
    "nystromformer-kmeans": {"n_iter": NOT_NEGATIVE, "rtol": CUT, "steps": NOT_NEGATIVE},
    "skyformer": {"gamma": ([0.0], [-TINY]), "n_iter": NOT_NEGATIVE, "rtol": CUT, "scale_dim": POSITIVE},
    "block-topk": {"block": POSITIVE},
    "expected": {
        "observe": POSITIVE,
        "first": NOT_NEGATIVE,
        "rope": ([1.0], [0.5, 0.0]),
        "every": POSITIVE,
        "layers": POSITIVE,
    },
    "flexprefill": {"mass": SHARE, "tau": ([0.0], [-TINY]), "block": POSITIVE},
    "h2o": {"observe": POSITIVE, "every": POSITIVE, "layers": POSITIVE},
    "keydiff": {"every": POSITIVE, "layers": POSITIVE},
    "knorm": {"every": POSITIVE, "layers": POSITIVE},
    "moba": {"block": POSITIVE},
    "nsa": {"block": POSITIVE, "window": POSITIVE},
    "quest": {"page": POSITIVE},
    "random": {"first": NOT_NEGATIVE, "every": POSITIVE},
    "snapkv": {"observe": POSITIVE, "kernel": ([1, 3], [0, 2]), "every": POSITIVE, "layers": POSITIVE},
    "topp": {"p": SHARE},
    "tova": {"every": POSITIVE},
    "vertical-slash": {"vertical": OPEN, "probe": POSITIVE, "first": NOT_NEGATIVE, "near": POSITIVE},
    "xattention": {"stride": ([1, 128], [0, 129]), "block": ([8, 16], [0, 12]), "mass": SHARE},
    **{name: {"exact": NOT_NEGATIVE} for name in ("fp8", "mxfp4", "nvfp4", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0")},
    "kivi": {"bits": BYTE, "group": POSITIVE, "exact": NOT_NEGATIVE},
    "turboquant": {"bits": BYTE, "exact": NOT_NEGATIVE},
    "linformer-jlt": {"density": SHARE, "terms": POSITIVE},
    "bigbird": {"random_blocks": NOT_NEGATIVE},
    "longformer": {"global_tokens": NOT_NEGATIVE},
    "tri-shape": {"first": NOT_NEGATIVE, "last": NOT_NEGATIVE},
    "window": {"sinks": NOT_NEGATIVE},
}
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("mss", "n_iter"): SCHULZ,
    ("nystromformer", "rtol"): PINV,
    ("nystromformer-kmeans", "rtol"): PINV,
    ("skyformer", "gamma"): {"inverse": "cholesky"},
    ("skyformer", "n_iter"): SCHULZ,
    ("skyformer", "rtol"): PINV,
    ("linformer-jlt", "terms"): {"sketch": "accumulate"},
    ("linformer-jlt", "density"): {"sketch": "sparse"},
    ("h2o", "layers"): {**PYRAMID, "streaming": False},
    **{(name, "layers"): PYRAMID for name in ("expected", "keydiff", "knorm", "snapkv")},
}


def numbers():
    """Every option that is a number, of every method of the package."""
    return {
        (name, option.name)
        for name, entry in METHODS.items()
        if entry.kind != "user"
        for option in entry.options.values()
        if not option.choices and {int, float} & set(option.kinds)
    }


def test_every_number_has_its_limits_here():
    assert numbers() == {(name, option) for name, options in LIMITS.items() for option in options}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_accepted_and_what_is_beyond_is_refused(name):
    entry = get(name)
    for option, (accepted, refused) in LIMITS[name].items():
        beside = BESIDE.get((name, option), {})
        for value in accepted:
            default = entry.options[option].default
            assert entry.check(entry.targets[0], {**beside, option: value}).get(option, default) == value
        for value in refused:
            with pytest.raises(UsageError, match=f"{name}"):
                entry.check(entry.targets[0], {**beside, option: value})


CASES = [
    ("moba", {}, 512, True),
    ("moba", {}, 513, False),
    ("moba", {"block": 8}, 16, False),
    ("vertical-slash", {}, 128, True),
    ("vertical-slash", {}, 202, False),
    ("vertical-slash", {"first": 4, "near": 8}, 20, False),
    ("quest", {}, 2, False),
]


@pytest.mark.parametrize(("name", "options", "d", "warns"), CASES)
def test_a_method_warns_where_its_budget_means_little(name, options, d, warns):
    assert (METHODS[name].warning(d, options) is not None) is warns


def test_mobas_rows_are_the_same_where_it_warns_and_others_beyond():
    tensors = torch.randn(3, 1, 64, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    outputs = {d: approximate("moba", QKV(*tensors, causal=True), d, block=8).output for d in (1, 8, 9)}
    assert torch.equal(outputs[1], outputs[8]) and not torch.equal(outputs[1], outputs[9])
    assert METHODS["moba"].warning(8, {"block": 8}) and not METHODS["moba"].warning(9, {"block": 8})


def test_a_run_says_it_once(run, tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "qkv.safetensors"
    save_file(dict(zip("qkv", torch.randn(3, 1, 32, 8), strict=True)), path, metadata={"causal": "true"})
    words = ("--method", "moba,quest", "--d", "4,8", "--scale-inputs", "1,2", "--no-matrix")
    code, _, err = run("error", "--qkv", path, *words)
    assert code == 0 and err.count("moba: every d up to block=512 gives the same rows") == 1
    assert "quest:" not in err
