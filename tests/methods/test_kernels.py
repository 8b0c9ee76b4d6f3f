"""Kernels: exact attention by other means, and the numbers by which they are judged."""

import json

import numpy as np
import pytest
import torch
from inputs import make
from torch.nn import functional

from attnprobe import QKV, approximate, kernel_errors, method
from attnprobe.errors import Unsupported, UsageError
from attnprobe.frame.records.read import read_records
from attnprobe.measure.error import EXPERIMENT
from attnprobe.methods import KERNELS, METHODS, get, kernels
from attnprobe.metrics.kernel import KERNEL_METRICS, ROW_TOLERANCES, KernelReference, eager_output
from attnprobe.reference import own_output
from attnprobe.run.plan import parse_methods
from attnprobe.testing import check_method

FUSED = ("torch:sdpa-flash", "torch:sdpa-math", "torch:flex")
HALF = (torch.bfloat16, torch.float16)


def options(name, **others):
    return ({"compiled": False} if name == "torch:flex" else {}) | others


def exact(qkv, dtype=torch.float64):
    """Softmax attention of the inputs rounded to a dtype, in float64, densely."""
    q, k, v = (x.to(dtype).double() for x in (qkv.q, qkv.k, qkv.v))
    scores = qkv.scale * q @ k.mT
    if qkv.causal:
        scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), float("-inf"))
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["own", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_kernel_is_exact_but_for_the_rounding_of_its_dtype(name, dtype, causal):
    made = make(n=70)
    qkv = QKV(made.q, made.k, made.v, causal=causal)
    wide = torch.float64 if dtype == "own" else getattr(torch, dtype)
    got = approximate(name, qkv, **options(name, dtype=dtype))
    expected = exact(qkv, wide)
    assert got.operator is None and "kernel" in got.no_operator and got.output.dtype == qkv.dtype
    # scores in float32 or wider, up to 6, lose 2^-20 of a weight; of weights and outputs 3 halves of an eps
    band = 4 * torch.finfo(wide).eps + 2.0 ** (-20 if wide != torch.float64 else -46)
    size = qkv.v.abs().amax((1, 2), keepdim=True)
    assert ((got.output - expected).abs() <= band * size).all()
    if wide in HALF:  # and it is not better than its dtype: what was asked for is what ran
        assert ((got.output - exact(qkv)).abs() > torch.finfo(wide).eps / 64 * size).any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("per", ["row", "head"])
def test_int8_is_attention_of_whole_numbers(per, causal):
    made = make(n=300, score=3.0)
    q = made.q.clone()
    q[0, 3] = 0
    qkv = QKV(q, made.k, made.v, causal=causal)
    got = approximate("torch:int8", qkv, per=per).output
    for head in range(qkv.h):
        rows = []
        for x in (qkv.q[head], qkv.k[head]):
            step = x.abs().amax(1) / 127 if per == "row" else x.abs().max().expand(len(x)) / 127
            full = torch.zeros(x.shape, dtype=torch.int64)
            for i, row in enumerate(x):
                if step[i] > 0:
                    full[i] = (row / step[i]).round().long()
            assert full.abs().max() == 127
            rows.append((full, step))
        (q8, s_q), (k8, s_k) = rows
        scores = (q8 @ k8.T).double() * s_q[:, None] * s_k * qkv.scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
        expected = torch.softmax(scores, -1) @ qkv.v[head]
        assert torch.allclose(got[head], expected, atol=1e-12)
    assert (got - exact(qkv)).abs().max() > 1e-4


def test_int8_in_half_precision_rounds_inputs_weights_and_output_and_sums_in_float32():
    qkv = make(n=40, dtype=torch.float32)
    half = QKV(qkv.q.bfloat16(), qkv.k.bfloat16(), qkv.v.bfloat16())
    got = approximate("torch:int8", qkv, dtype="bfloat16").output
    assert torch.equal(got.bfloat16().float(), got)
    assert torch.equal(got.bfloat16(), approximate("torch:int8", half).output)
    assert kernel_errors(got, qkv, dtype=torch.bfloat16)["relative_frobenius"].max() < 0.05
    (q8, q_step), (k8, k_step) = (kernels._quantised(x.float(), "row") for x in (half.q, half.k))
    weights = torch.softmax((q8 @ k8.mT) * (q_step * k_step.mT * qkv.scale), -1)
    rounded = (weights.bfloat16().float() @ half.v.float()).bfloat16().float()
    unrounded = (weights @ half.v.float()).bfloat16().float()
    assert (got == rounded).float().mean() > 0.98 > 0.9 > (got == unrounded).float().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_framework_is_eager_softmax_attention_in_the_dtype(dtype):
    qkv = make(n=300, dtype=dtype)
    dense = torch.softmax(qkv.q @ qkv.k.mT * qkv.scale, -1) @ qkv.v
    got = eager_output(qkv)
    assert got.dtype == dtype
    assert torch.allclose(got.double(), dense.double(), atol=8 * torch.finfo(dtype).eps, rtol=0)
    hidden = torch.ones(300, 300, dtype=torch.bool).triu(1)
    masked = torch.softmax((qkv.q @ qkv.k.mT * qkv.scale).masked_fill(hidden, float("-inf")), -1) @ qkv.v
    causal = eager_output(QKV(qkv.q, qkv.k, qkv.v, causal=True))
    assert torch.allclose(causal.double(), masked.double(), atol=8 * torch.finfo(dtype).eps, rtol=0)


def test_every_number_is_its_formula():
    qkv = make(n=50, dtype=torch.float32)
    rounded = [x.bfloat16() for x in (qkv.q, qkv.k, qkv.v)]
    eager = torch.softmax(rounded[0] @ rounded[1].mT * qkv.scale, -1) @ rounded[2]
    got = qkv.v.new_zeros(2, 50, qkv.p_v).copy_(exact(qkv, torch.bfloat16)) * 1.01
    got[0, 7] += 0.3
    actual = kernel_errors(got, qkv, dtype=torch.bfloat16, row_tolerance=0.0100001)
    assert list(actual) == list(KERNEL_METRICS) and set(KERNEL_METRICS) <= set(EXPERIMENT.gated.names)
    stricter = kernel_errors(got, qkv, dtype=torch.bfloat16, row_tolerance=0.0099999)
    assert not stricter["rows_within"].any()
    for head in range(2):
        expected = exact(qkv, torch.bfloat16)[head].numpy()
        x, y = got[head].double().numpy(), eager[head].double().numpy()
        rows = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(x, expected, strict=True)]
        frobenius, framework = np.linalg.norm(x - expected), np.linalg.norm(y - expected)
        by_hand = {
            "cosine": (x * expected).sum() / np.linalg.norm(x) / np.linalg.norm(expected),
            "max_abs": np.abs(x - expected).max(),
            "relative_frobenius": frobenius / np.linalg.norm(expected),
            "row_error_p50": np.quantile(rows, 0.5),
            "row_error_p99": np.quantile(rows, 0.99),
            "row_error_p99_9": np.quantile(rows, 0.999),
            "rows_within": (49 if head == 0 else 50) / 50,
            "ratio_to_framework": np.abs(x - expected).max() / np.abs(y - expected).max(),
            "ratio_to_framework_frobenius": frobenius / framework,
            "framework_max_abs": np.abs(y - expected).max(),
            "framework_relative_frobenius": framework / np.linalg.norm(expected),
        }
        for name, value in by_hand.items():
            assert float(actual[name][head]) == pytest.approx(value, rel=1e-9), name


def test_the_rounding_of_the_inputs_is_not_the_kernels():
    """An exact kernel on rounded inputs has no error; against the inputs themselves every ratio would be near 1."""
    qkv = make(n=64)
    perfect = exact(qkv, torch.bfloat16)
    actual = kernel_errors(perfect, qkv, dtype=torch.bfloat16)
    assert actual["ratio_to_framework"].max() < 1e-9 and (actual["rows_within"] == 1).all()
    eager = KernelReference.of(qkv, torch.bfloat16)
    assert (actual["framework_relative_frobenius"] == eager.frobenius).all() and eager.frobenius.min() > 1e-4
    assert (perfect - exact(qkv)).norm() > 0.5 * (eager.exact - exact(qkv)).norm()


def test_padding_has_no_part_and_lost_values_are_not_hidden():
    plain = make(n=20, dtype=torch.float32)
    mask = torch.arange(20) < 13
    padded = QKV(plain.q, plain.k, plain.v, mask=mask)
    inner = QKV(plain.q[:, :13], plain.k[:, :13], plain.v[:, :13], scale=plain.scale)
    for name in KERNELS:
        ours = kernel_errors(approximate(name, padded, **options(name)), padded)
        alone = kernel_errors(approximate(name, inner, **options(name)), inner)
        assert all(torch.equal(ours[key], alone[key]) for key in ours), name
    lost = exact(plain)
    lost[0, 4] = float("nan")
    actual = kernel_errors(lost, plain)
    assert actual["max_abs"].isnan().tolist() == [True, False] and float(actual["rows_within"][0]) == 0.95
    huge = QKV(plain.q * 1e6, plain.k, plain.v)  # float16 cannot hold it
    actual = kernel_errors(exact(huge), huge, dtype=torch.float16)
    assert actual["max_abs"].isnan().all() and not actual["rows_within"].any()
    zero = QKV(plain.q, plain.k, torch.zeros_like(plain.v))
    actual = kernel_errors(zero.v, zero)
    assert (actual["cosine"] == 1).all() and (actual["ratio_to_framework"] == 1).all() and not actual["max_abs"].any()
    with pytest.raises(UsageError, match="shape"):
        kernel_errors(plain.v[:, :3], plain)
    with pytest.raises(UsageError, match="row-tolerance=0"):
        kernel_errors(plain.v, plain, row_tolerance=0)


def test_a_framework_that_overflows_does_not_condemn_a_kernel_that_does_not():
    made = make(n=32, dtype=torch.float32)
    qkv = QKV(made.q * 100, made.k * 100, made.v, scale=1e-4 * made.scale)  # float16 scores overflow before the scale
    qkv = QKV(qkv.q * 5, qkv.k * 5, qkv.v, scale=qkv.scale / 25)
    actual = kernel_errors(exact(qkv, torch.float16), qkv, dtype=torch.float16)
    assert actual["framework_max_abs"].isnan().all() and not actual["ratio_to_framework"].any()


def test_all_leaves_kernels_out_and_each_is_listed(run):
    assert not set(KERNELS) & set(METHODS) and all(entry.kind == "kernel" for entry in KERNELS.values())
    assert not {request.name for request in parse_methods(["all"], "softmax")} & set(KERNELS)
    spelt = "torch:sdpa-flash:dtype=bfloat16,torch:flex:dtype=float16,compiled=false"
    [flash, flex] = parse_methods([spelt], "softmax")
    assert flash.options == {"dtype": "bfloat16"} and flex.options == {"dtype": "float16", "compiled": False}
    with pytest.raises(UsageError, match="did you mean 'torch:sdpa-flash'"):
        get("torch:sdpa-flesh")
    code, out, _ = run("methods", "torch:int8")
    assert code == 0 and "per=row" in out and "kind kernel" in out


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_kernel_does_what_every_method_must(name):
    spelt = f"{name}:compiled=false" if name == "torch:flex" else name
    selected = [
        key
        for key in ("shapes", "finite", "heads", "padding", "inputs", "scale", "large-scores", "low-scores", "one-key")
        + (() if name == "torch:int8" else ("half-precision",))
        if (name, key) != ("torch:flex", "one-key")  # a mask for each key takes a while; test_every_form has some
    ]
    verdicts = check_method(spelt, only=selected)
    assert {one.status for one in verdicts} == {"ok"}


def test_what_torch_cannot_run_here_is_skipped_by_name(run, qkv, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found")

    monkeypatch.setattr(kernels, "_compiled", lambda: broken)
    with pytest.raises(Unsupported, match=r"torch:flex cannot run here \(RuntimeError: InvalidCxxCompiler"):
        approximate("torch:flex", make())
    code, out, err = run("error", "--qkv", qkv, "--method", "torch:flex,torch:sdpa-math", "--format", "json")
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    assert code == 0 and rows["torch:sdpa-math"]["status"] == "ok", err
    assert rows["torch:flex"]["status"] == "skipped" and "compiled=false" in rows["torch:flex"]["reason"]
    monkeypatch.setattr(kernels, "attention", lambda *args: (_ for _ in ()).throw(RuntimeError("No available kernel.")))
    with pytest.raises(Unsupported, match="torch:sdpa-flash: torch has no such kernel for float64 on cpu at p=8"):
        approximate("torch:sdpa-flash", make())


REFUSAL = "pack_vnni2 is only supported when avx512 is supported"


def refusing(monkeypatch):
    """torch's fused kernel in bfloat16 as on a processor with AMX under ``ATEN_CPU_CAPABILITY=default``."""
    fused = functional.scaled_dot_product_attention

    def refused(q, *args, **options):
        if q.dtype == torch.bfloat16 and torch.backends.cuda.flash_sdp_enabled():
            raise RuntimeError(REFUSAL)
        return fused(q, *args, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", refused)


def test_a_kernel_that_torch_refuses_on_this_processor_is_skipped_with_its_reason(run, qkv, monkeypatch):
    refusing(monkeypatch)
    spelt = "torch:sdpa-flash:dtype=bfloat16,torch:sdpa-math:dtype=bfloat16,softmax"
    code, out, err = run("error", "--qkv", qkv, "--method", spelt, "--format", "json")
    rows = {row["method"]: row for row in json.loads(out)["rows"]}
    assert code == 0 and rows["torch:sdpa-flash"]["status"] == "skipped", err
    assert REFUSAL in rows["torch:sdpa-flash"]["reason"]
    assert rows["torch:sdpa-math"]["status"] == rows["softmax"]["status"] == "ok"


@pytest.mark.parametrize("causal", [False, True])
def test_exact_attention_in_bfloat16_needs_no_fused_kernel(monkeypatch, causal):
    qkv = make(n=70, p=16, p_v=16, dtype=torch.bfloat16).replace(causal=causal)
    fused = own_output(qkv)
    refusing(monkeypatch)
    unfused = own_output(qkv)
    assert unfused.dtype == torch.bfloat16
    errors = [kernel_errors(output, qkv)["ratio_to_framework"] for output in (fused, unfused)]
    assert torch.stack(errors).max() < 4


@pytest.mark.slow
def test_compiled_flex_attention_is_exact_but_for_rounding():
    qkv = make(n=64, p=16, p_v=16, dtype=torch.float32)
    try:
        got = approximate("torch:flex", qkv)
    except Unsupported as refusal:
        pytest.skip(str(refusal))
    assert kernel_errors(got, qkv)["ratio_to_framework"].max() < 4


MINE = '''
import torch
import attnprobe

@attnprobe.method(kind="kernel")
def half(q, k, v, scale, dtype="bfloat16"):
    q, k, w = (x.to(getattr(torch, dtype)) for x in (q, k, v))
    return (torch.softmax(q @ k.mT * scale, -1) @ w).to(v.dtype)

def sloppy(q, k, v, scale):
    """Weights rounded to two digits."""
    weights = (100 * torch.softmax(scale * q @ k.mT, -1)).round() / 100
    return weights @ v
sloppy.kind = "kernel"
'''


@pytest.fixture
def mine(tmp_path, qkv):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


def test_a_users_kernel_is_judged_in_its_own_dtype(run, qkv, mine):
    methods = "./mine.py:half,./mine.py:sloppy,torch:sdpa-flash,nystromformer"
    base = ("error", f"--qkv {qkv} --method {methods} --d 4 --out r")
    code, out, err = run(*base, "--format", "json")
    ratios = {row["method"]: row.get("ratio_to_framework.max") for row in json.loads(out)["rows"]}
    cells = {cell["method"]: cell for cell in read_records("r")}
    assert code == 0, err
    half, sloppy = cells["mine.py:half"], cells["mine.py:sloppy"]
    assert ratios["mine.py:half"] == pytest.approx(1)
    assert half["kernel_dtype"] == "bfloat16" and half["row_tolerance"] == ROW_TOLERANCES[torch.bfloat16]
    assert half["family"] == "user" and half.get("matrix_skipped") is None
    assert sloppy["kernel_dtype"] == "float32" and ratios["mine.py:sloppy"] > 1e3
    assert ratios["nystromformer"] is None and cells["nystromformer"].get("kernel_dtype") is None
    code, out, _ = run(*base)
    assert code == 0 and "× plain torch" in out and "matrix errors skipped" not in out
    assert out.index("Kernels against exact attention") < out.index("mine.py:half")  # not among methods
    for form, figures in (("md", "all"), ("latex", "none")):
        code, out, _ = run("report", "r", "--format", form, "--plot", figures)
        assert code == 0 and "Kernels against exact attention in float64" in out
    cosines = [row["cosine"] for row in half["rows"] if row["kind"] == "head"]
    assert len(cosines) == len(half["heads"])


def test_gates_judge_kernels_and_a_tolerance_is_part_of_a_cell(run, qkv, mine):
    base = ("error", "--qkv", qkv, "--out", "r", "--method")
    assert run(*base, "./mine.py:half", "--fail-above", "ratio_to_framework.max=2")[0] == 0
    code, _, err = run(*base, "./mine.py:sloppy", "--fail-above", "ratio_to_framework.max=2")
    assert code == 1 and "gate failed: ratio_to_framework.max <= 2: mine.py:sloppy" in err
    code, _, err = run(*base, "nystromformer", "--d", "4", "--fail-above", "ratio_to_framework=2")
    assert code == 1 and "ratio_to_framework was not measured" in err
    code, _, err = run(*base, "./mine.py:half", "--fail-above", "rows_within=1")
    assert code == 2 and "larger is better" in err
    before = {one["key"] for one in read_records("r")}
    code, out, _ = run(*base, "./mine.py:half,nystromformer", "--d", "4", "--row-tolerance", "1e-9", "--format", "json")
    new = [one for one in read_records("r") if one["key"] not in before]
    assert code == 0 and [one["method"] for one in new] == ["mine.py:half"]
    assert new[0]["row_tolerance"] == 1e-9 and {row["rows_within"] for row in new[0]["rows"]} == {0.0}
    for value in ("0", "-1", "2", "nan"):
        code, _, err = run(*base, "./mine.py:half", "--row-tolerance", value)
        assert code == 2 and "choose a relative error above 0 and below 1" in err


def test_what_a_kernel_cannot_say_is_refused():
    for claims, message in (
        ({"kind": "kernal"}, "there is no kind 'kernal'"),
        ({"kind": "kernel", "targets": ("gaussian",)}, "drop its targets"),
    ):

        @method(**claims)
        def fn(q, k, v):
            return v

        with pytest.raises(UsageError, match=message):
            approximate(fn, make())
