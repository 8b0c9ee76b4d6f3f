"""Published code, really run in half precision: the same in float64 as our method, and rows beside ours."""

from dataclasses import replace

import pytest
import torch

from attnprobe import QKV, approximate, open_run, rounding_errors
from attnprobe.errors import Unsupported
from attnprobe.measure.rounding import RoundingRequest, measure_rounding
from attnprobe.rounding import computation_of, format_named
from attnprobe.rounding.published import PUBLISHED, _output, published_errors

N, D = 48, 8
SAME = 1e-12  # relative, in float64, as the packages' twins hold


@pytest.fixture(scope="module")
def qkv():
    q, k, v = torch.randn(3, 3, N, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return QKV(2 * q, k, v, scale=0.3)  # not the scale that the code has


def computed(qkv, method):
    pytest.importorskip(PUBLISHED[method].module.partition(".")[0])
    return computation_of(qkv, method, D, **PUBLISHED[method].options)


@pytest.mark.parametrize("method", PUBLISHED)
def test_the_code_computes_the_method_of_its_row(qkv, method):
    """With the options in its facts, and the same draws; its own error is therefore that of the method."""
    computation = computed(qkv, method)
    known = PUBLISHED[method]
    got = _output(known, known.opened(), computation, torch.float64)
    expected = approximate(method, qkv, D, **known.options).output
    assert (got - expected).abs().max() <= SAME * expected.abs().max()


@pytest.mark.parametrize("method", PUBLISHED)
@pytest.mark.parametrize("format, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)])
def test_it_really_runs_in_the_dtype(qkv, method, format, dtype, monkeypatch):
    """Its inputs and outputs have the dtype, and the errors are those of this output."""
    computation, seen = computed(qkv, method), []
    made = PUBLISHED[method].make

    def watched(*args):
        module = made(*args)
        module.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0].dtype, output.dtype)))
        return module

    monkeypatch.setitem(PUBLISHED, method, replace(PUBLISHED[method], make=watched))
    errors = published_errors(computation, format_named(format))
    assert set(seen) == {(torch.float64, torch.float64), (dtype, dtype)}
    emulated = rounding_errors(qkv, method, D, format, **PUBLISHED[method].options)
    assert torch.allclose(errors["approximation"], emulated.approximation, rtol=1e-9)
    unit = format_named(format).unit
    if (method, format) == ("performer", "fp16"):  # 1 / D of performer-pytorch overflows
        assert errors["rounding"].tolist() == [float("inf")] * 3
    else:
        assert (unit / 10 < errors["rounding"]).all() and (errors["rounding"] < 100 * unit).all()


def test_an_overflow_is_a_head_that_is_not_finite(qkv):
    """The scores of one head overflow fp16."""
    large = qkv.replace(q=qkv.q * torch.tensor([1.0, 1e4, 1.0], dtype=torch.float64)[:, None, None])
    errors = published_errors(computed(large, "linformer"), format_named("fp16"))
    assert torch.isfinite(errors["rounding"]).tolist() == [True, False, True]


def test_a_package_that_is_not_installed_is_named(qkv, monkeypatch):
    monkeypatch.setattr("attnprobe.rounding.published.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"^nystrom-attention is not installed; pip install nystrom-attention$"):
        published_errors(computation_of(qkv, "nystromformer", D), format_named("bf16"))


@pytest.mark.parametrize(
    ("changes", "format", "arithmetic", "says"),
    [
        ({}, "tf32", "every", "torch computes nothing in tf32"),
        ({}, "bf16", "autocast", "runs as it is written; choose arithmetic=every"),
        ({"causal": True}, "bf16", "every", "no form for causal"),
    ],
)
def test_what_the_code_cannot_do_is_said(qkv, changes, format, arithmetic, says):
    computation = computation_of(qkv.replace(**changes), "nystromformer", D)
    with pytest.raises(Unsupported, match=f"^nystrom-attention .*{says}"):
        published_errors(computation, format_named(format), arithmetic)


def test_its_rows_stand_beside_ours(tmp_path, qkv_file):
    pytest.importorskip("linformer")
    given = {"qkv": str(qkv_file), "d": (4,), "formats": ("bf16",), "methods": ("linformer,performer,linear",)}
    measure_rounding(RoundingRequest(**given, published=True, estimate=False, out=str(tmp_path / "r")))
    frame = open_run(tmp_path / "r").frame(kind="head")
    assert frame["method"].unique().tolist() == [
        "linformer",
        "performer",
        "linear",
        "pip:linformer",
        "pip:performer-pytorch",
    ]
    ours, theirs = (frame[frame["method"] == name] for name in ("linformer", "pip:linformer"))
    own = "output_spectral_relative"
    assert theirs[own].tolist() == pytest.approx(ours[own].tolist(), rel=1e-5)  # of float32 Q, K and V
    ratios = theirs["rounding_error"].to_numpy() / ours["rounding_error"].to_numpy()
    assert ((ratios > 1 / 1.25) & (ratios < 1.25)).all()  # it runs operation by operation, as the emulation does


def test_published_code_of_no_method_is_one_line(run, qkv_file):
    code, _, err = run("rounding", "--qkv", qkv_file, "--d", "4", "--method", "linear,topk", "--published")
    line = "published: no method has published code here; choose nystromformer, performer, linformer"
    assert (code, err) == (2, f"attnprobe: {line}\n")


@pytest.fixture
def qkv_file():
    from golden.small_runs import INPUTS

    return INPUTS / "qkv.safetensors"
