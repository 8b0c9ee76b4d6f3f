"""Condition numbers: chosen spectra, singular matrices, certificates, Lemma 3, residuals, sensitivity, the command."""

import json
import math
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
import torch
from golden.small_runs import INPUTS
from inputs import make, with_spectrum
from safetensors.torch import save_file

from attnprobe import QKV, approximate, exact, load_qkv, open_run, output_errors, rounding_errors
from attnprobe.errors import UsageError
from attnprobe.measure.condition import ConditionRequest, measure, measure_conditions
from attnprobe.metrics import (
    EXACT,
    core_matrices,
    exact_matrices,
    inverse_gradient,
    iteration_gradient,
    lemma3_interval,
    schulz_residuals,
    sensitivity,
)
from attnprobe.operators.linalg.condition import condition, repeats
from attnprobe.rng import Streams, generator
from attnprobe.show.catalogue.condition import FIGURES, TABLES
from attnprobe.show.figure import sheets
from attnprobe.show.grid import Selection, grids
from attnprobe.show.page import views

EPS = torch.finfo(torch.float64).eps
CONDITIONS, CHANGES, RESIDUALS = TABLES
NUMBERS, ERRORS, ITERATIONS = FIGURES
if find_spec("flint") is not None:
    from certified import certified_condition, largest_row
needs_flint = pytest.mark.skipif(
    find_spec("flint") is None, reason="python-flint is not installed: pip install 'attnprobe[test]'"
)


SPECTRA = {
    "flat": torch.ones(40),
    "steep": torch.logspace(0, -9, 40),
    "clusters": torch.cat([torch.full((10,), 5.0), torch.full((20,), 1.0), torch.full((10,), 1e-6)]),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_the_condition_of_a_chosen_spectrum(name, size):
    values = SPECTRA[name].double()
    actual = condition(with_spectrum(values) * size)
    expected = float(values[0] / values[-1])
    assert actual.value == pytest.approx(expected, rel=40 * EPS * expected + 1e-13) and actual.flag is None
    assert actual.rank == 40 and actual.cond_eff == actual.value
    torch.testing.assert_close(actual.values / size, values, rtol=0, atol=40 * EPS * float(values[0]))
    for k in (1, 11, 31, 40):
        at = float(values[0] / values[k - 1])
        assert actual.cond_at(k) == pytest.approx(at, rel=40 * EPS * at + 1e-13)
    assert actual.cond_at(0) is None and actual.cond_at(41) is None


def test_numpy_agrees():
    matrix = torch.randn(30, 30, generator=generator(3, "m"), dtype=torch.float64)
    import numpy as np

    assert condition(matrix).value == pytest.approx(float(np.linalg.cond(matrix.numpy())), rel=1e-10)


@pytest.mark.parametrize("rank", [1, 7, 39])
def test_a_singular_matrix_has_a_flag_and_its_rank(rank):
    values = torch.cat([torch.logspace(0, -4, rank, dtype=torch.float64), torch.zeros(40 - rank)])
    actual = condition(with_spectrum(values))
    assert actual.value is None and actual.flag == "singular (>1e14)" and actual.rank == rank
    assert actual.cond_eff == pytest.approx(1e4 if rank > 1 else 1.0, rel=1e-8)
    assert actual.cond_at(rank) is not None and actual.cond_at(rank + 1) is None


def test_the_flag_begins_where_float64_ends():
    """1/(m eps) is the limit: a matrix at half of it has a value, one at twice it has none."""
    limit = 1 / (16 * EPS)
    for factor, flagged in ((0.5, False), (2.0, True)):
        actual = condition(torch.diag(torch.cat([torch.ones(15), torch.tensor([1 / (factor * limit)])]).double()))
        assert (actual.flag is not None) is flagged and (actual.value is None) is flagged
        assert actual.rank == 16 - flagged


def test_repeated_rows_make_a_singular_matrix_of_the_rank_that_is_left():
    qkv = make(h=1, n=24, p=6)
    index = torch.tensor([*range(20), 0, 0, 5, 7])
    twice = QKV(qkv.q[:, index], qkv.k[:, index], qkv.v[:, index])
    for name, matrix, repeated in exact_matrices(twice, 0):
        actual = condition(matrix)
        assert repeated == 4 and actual.rank == 20 and actual.value is None, name
    assert repeats(twice.q[0]) == 4


def test_what_is_no_number_is_no_condition():
    assert condition(torch.tensor([[1.0, float("nan")], [0.0, 1.0]])).flag == "not finite"
    actual = condition(torch.zeros(3, 3))
    assert (actual.flag, actual.value, actual.rank) == ("zero", None, 0)
    with pytest.raises(UsageError):
        condition(torch.ones(3))
    assert condition(torch.ones(1, 1)).value == 1.0


HILBERT = {4: 15513.73873892924, 6: 14951058.6424659, 8: 15257575538.060041}  # rounded entries move cond of the last


@needs_flint
@pytest.mark.parametrize("m", HILBERT)
def test_certified_hilbert_matrices(m):
    """Known condition numbers; the rounding of the entries, of relative size eps, moves them by cond eps."""
    matrix = 1 / (torch.arange(m)[:, None] + torch.arange(m) + 1).double()
    actual = certified_condition(matrix)
    assert actual.lower <= actual.value <= actual.upper <= actual.lower * (1 + 1e-9) and actual.rank == m
    assert actual.value == pytest.approx(HILBERT[m], rel=4 * m * EPS * HILBERT[m] + 1e-9)


@needs_flint
@pytest.mark.parametrize("top", [1, 4, 8])
def test_float64_agrees_with_the_certificate(top):
    matrix = with_spectrum(torch.logspace(0, -top, 32, dtype=torch.float64))
    proved, plain = certified_condition(matrix), condition(matrix)
    assert plain.value == pytest.approx(proved.value, rel=32 * EPS * 10**top + 1e-12)


@needs_flint
def test_a_certificate_resolves_what_float64_cannot():
    matrix = torch.diag(torch.tensor([1.0, 0.5, 2.0**-70], dtype=torch.float64))
    proved, actual = certified_condition(matrix), condition(matrix)
    assert proved.value == pytest.approx(2.0**70, rel=1e-12) and proved.rank == 3
    assert actual.value is None and actual.flag == "singular (>2e15)" and actual.rank == 2  # beyond what entries say
    triangle = torch.eye(60, dtype=torch.float64) - torch.ones(60, 60, dtype=torch.float64).triu(1)  # cond about 60·2⁵⁸
    exact_value = certified_condition(triangle)
    inverse = torch.eye(60, dtype=torch.float64)
    for i in range(58, -1, -1):  # back substitution in integers, which float64 holds
        inverse[i] += inverse[i + 1 :].sum(0)
    expected = float(torch.linalg.matrix_norm(triangle, 2) * torch.linalg.matrix_norm(inverse, 2))
    assert exact_value.value == pytest.approx(expected, rel=1e-12) and expected > 1e16


@needs_flint
def test_a_certificate_tells_an_exactly_singular_matrix():
    matrix = torch.randn(12, 12, generator=generator(0, "rows"), dtype=torch.float64)
    matrix[3] = matrix[8]
    proved = certified_condition(matrix)
    assert proved.rank == 11 and proved.lower == proved.value == math.inf


@needs_flint
def test_a_condition_beyond_float64_is_not_called_singular_by_a_certificate():
    matrix = torch.diag(torch.tensor([1e308, 1e-308], dtype=torch.float64))
    proved = certified_condition(matrix)
    assert condition(matrix).flag == "singular (>2e15)" and proved.rank == 2
    assert proved.lower > 1e308 and proved.value == math.inf


@needs_flint
def test_a_certificate_takes_the_bits_that_its_width_needs():
    """Integers with a condition of 2²³⁰: 256 bits invert them, but leave an interval wider than 1e-9."""
    factor = torch.eye(54, dtype=torch.float64) - torch.ones(54, 54, dtype=torch.float64).triu(1)
    gram = factor @ factor.mT
    actual = certified_condition(gram @ gram)
    assert actual.bits == 512 and actual.upper <= actual.lower * (1 + 1e-9)
    assert math.log2(actual.value) == pytest.approx(229.9, abs=0.1)


@needs_flint
@pytest.mark.parametrize("row", range(4))
def test_every_row_counts_towards_gershgorins_radius(row):
    from flint import arb

    table = [[arb(1), arb(-2), arb(3)] for _ in range(4)]
    table[row][1] = arb(-9, 0.5)  # a ball: its largest absolute value is 9.5
    assert float(largest_row(table)) == pytest.approx(13.5, rel=1e-8) and float(largest_row(table)) >= 13.5


@pytest.mark.parametrize("size, places", [(1, [1]), (2, [1, 2]), (6, [1, 2, 3, 4])])
def test_a_condition_is_told_at_powers_of_two_and_at_half_of_the_values(size, places):
    values = torch.logspace(0, -3, size, dtype=torch.float64)
    [row, *at] = measure._condition_rows(condition(torch.diag(values)), {"head": 0, "matrix": "A"})
    assert [one["k"] for one in at] == places and row["size"] == size
    assert [one["cond_at"] for one in at] == pytest.approx([float(values[0] / values[k - 1]) for k in places])
    assert row["cond_half"] == pytest.approx(float(values[0] / values[max(1, size // 2) - 1]))


@pytest.mark.parametrize("score", [1.0, 6.0])
def test_the_exact_matrices_are_what_they_say(score):
    qkv = make(h=2, n=17, score=score, dtype=torch.float32)
    s = qkv.scale * qkv.q.double() @ qkv.k.double().mT
    square = torch.cdist(qkv.q.double(), qkv.k.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    expected = {"A": torch.exp(s), "B": torch.softmax(s, -1), "C": torch.exp(-square * qkv.scale / 2)}
    for row in range(2):
        actual = {name: matrix for name, matrix, _ in exact_matrices(qkv, row)}
        assert tuple(actual) == EXACT
        for name, matrix in actual.items():
            factor = expected["A"][row].max() if name == "A" else 1.0
            assert matrix.dtype == torch.float64
            assert torch.allclose(matrix * factor, expected[name][row], rtol=1e-11 * score, atol=0), name


def by_name(qkv, approx, **options):
    return {core.name: core for core in core_matrices(qkv, approx, options)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inverse": "schulz"},
        {"inverse": "cholesky", "gamma": 0.3},
        {"center_keys": True},
        {"scale_dim": 32},
        {"sampler": "kmeans"},
        {"inverse": "schulz", "gamma": 0.02, "z0": "identity"},
        {"sampler": "wor"},
    ],
)
def test_skyformers_cores_are_the_methods_own_and_what_stands_beside_them(options):
    qkv = make(h=2, n=20)
    approx = approximate("skyformer", qkv, 12, **options)
    cores = by_name(qkv, approx, **options)
    assert tuple(cores) == ("SAS", "SCS", "SCS+ridge", "N0", "N")
    inverse, gamma = options.get("inverse", "pinv"), options.get("gamma", 0.1)
    used = {"pinv": "SCS", "cholesky": "SCS+ridge", "schulz": "N"}[inverse]
    assert [core.name for core in cores.values() if core.inverted] == [used]
    own = approx.cores["scaled" if inverse == "schulz" else "core"]
    assert torch.equal(cores[used].matrix, own)
    eye = torch.eye(12, dtype=torch.float64)

    def close(x, y):
        return torch.allclose(x, y, rtol=1e-12, atol=1e-13)

    assert close(cores["SCS+ridge"].matrix, cores["SCS"].matrix + gamma * eye)
    for plain, scaled in (("SCS", "N0"), ("SCS+ridge", "N")):
        matrix = cores[plain].matrix
        for row in range(2):
            for i, j in ((0, 1), (3, 3), (11, 2)):
                expected = matrix[row, i, j] / (matrix[row, i].sum() * matrix[row, j].sum()).sqrt()
                assert cores[scaled].matrix[row, i, j] == pytest.approx(float(expected), rel=1e-12)
    # SᵀĀS = E SᵀC̄S E with E = diag(exp(‖x‖²·scale/2)): the diagonal of SᵀĀS is E²
    raw = cores["SAS"].matrix * cores["SAS"].log_scale.exp()[:, None, None]
    e = raw.diagonal(dim1=1, dim2=2).sqrt()
    assert torch.allclose(raw, e[:, :, None] * cores["SCS"].matrix * e[:, None, :], rtol=1e-11, atol=0)


def test_the_raw_core_is_the_softmax_kernel_of_the_landmarks_drawn():
    qkv = make(h=2, n=20)
    approx = approximate("skyformer", qkv, 9)
    core = by_name(qkv, approx)["SAS"]
    x = torch.cat([qkv.q, qkv.k], 1)
    for row in range(2):
        drawn = approx.draws["indices"][row].tolist()
        assert core.repeated[row] == len(drawn) - len(set(drawn))
        for i, a in enumerate(drawn):
            for j, b in enumerate(drawn):
                expected = math.exp(qkv.scale * float(x[row, a] @ x[row, b]))
                assert float(core.matrix[row, i, j] * core.log_scale[row].exp()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("method, options", [("nystromformer", {}), ("mss", {}), ("nystromformer", {"z0": "global"})])
def test_softmax_cores_are_the_methods_own(method, options):
    qkv = make(h=2, n=20)
    approx = approximate(method, qkv, 6, **options)
    (core,) = core_matrices(qkv, approx, options)
    assert core.name == "A_S" and core.inverted and torch.equal(core.matrix, approx.cores["A"])
    assert core.start == options.get("z0", "norms")
    assert core_matrices(qkv, approximate("performer", qkv, 8), {}) == []


@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize("gamma", [0.1, 1e-3])
def test_lemma_3_holds_for_the_ridged_core_with_its_top_at_one(score, gamma):
    qkv = make(h=3, n=60, score=score)
    options = {"inverse": "schulz", "gamma": gamma}
    core = by_name(qkv, approximate("skyformer", qkv, 40, **options), **options)["N"]
    low, high, verdicts = lemma3_interval(core.matrix)
    assert verdicts == ["holds"] * 3
    assert (low > 0).all() and ((high - 1).abs() <= 40 * EPS).all()
    d = torch.linalg.inv(torch.diag_embed(core.matrix.sum(-1)))  # 1 belongs to D^½ 1, not to 1
    assert ((d @ core.matrix).sum(-1) - 1).abs().max() < 1e-12


def test_lemma_3_fails_where_it_must():
    qkv = make(h=1, n=30)
    cores = by_name(qkv, approximate("skyformer", qkv, 40, sampler="iid"))
    assert cores["N0"].repeated[0] > 0
    low, _, verdicts = lemma3_interval(cores["N0"].matrix)
    assert verdicts == ["zero"] and abs(float(low)) < 1e-13
    assert lemma3_interval(cores["SCS"].matrix)[2] == ["violated"]  # unscaled: above 1
    negative = torch.diag(torch.tensor([1.0, -0.5]))[None]
    assert lemma3_interval(negative)[2] == ["violated"]


@pytest.mark.parametrize("rule", ["norms", "columns", "identity"])
def test_residuals_are_those_of_the_literal_loop(rule):
    qkv = make(h=2, n=30)
    core = by_name(qkv, approximate("skyformer", qkv, 8, inverse="schulz"), inverse="schulz")["N"].matrix
    actual = schulz_residuals(core, rule, 7)
    assert actual.shape == (2, 8)
    for row in range(2):
        m = core[row]
        one, inf_norm = m.abs().sum(0).max(), m.abs().sum(1).max()
        z = {"norms": m.T / (one * inf_norm), "columns": m.T / one, "identity": torch.eye(8, dtype=torch.float64)}[rule]
        for t in range(8):
            expected = math.sqrt(float(((torch.eye(8) - m @ z) ** 2).sum()) / 8)
            assert float(actual[row, t]) == pytest.approx(expected, rel=1e-9, abs=1e-14)
            x = m @ z
            z = 0.25 * z @ (13 * torch.eye(8) - x @ (15 * torch.eye(8) - x @ (7 * torch.eye(8) - x)))


def test_the_residual_at_the_methods_steps_is_its_own_diagnostic():
    qkv = make(h=2, n=30)
    for method, options in (("nystromformer", {}), ("skyformer", {"inverse": "schulz"})):
        approx = approximate(method, qkv, 10, **options)
        core = next(core for core in core_matrices(qkv, approx, options) if core.inverted)
        expected = approx.diagnostics["inverse_residual"]
        assert torch.allclose(schulz_residuals(core.matrix, core.start, 6)[:, 6], expected.double(), rtol=1e-10, atol=0)


def test_the_gradient_through_an_inverse_is_its_norm_squared():
    """The Jacobian of the inverse by autograd, whose spectral norm is the largest that a change can grow by."""
    for seed in range(3):
        m = torch.randn(5, 5, generator=generator(seed, "m"), dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(torch.linalg.inv, m).reshape(25, 25)
        expected = float(torch.linalg.matrix_norm(jacobian, 2))
        assert inverse_gradient(condition(m)) == pytest.approx(expected, rel=1e-9)
        assert inverse_gradient(condition(m * math.exp(-7.0)), 7.0) == pytest.approx(expected, rel=1e-9)
    assert inverse_gradient(condition(torch.ones(3, 3))) is None


def test_the_gradient_through_the_iteration_takes_as_many_products_as_it_needs(monkeypatch):
    calls, jvp = [], torch.func.jvp
    monkeypatch.setattr(torch.func, "jvp", lambda *args: calls.append(0) or jvp(*args))
    iteration_gradient(torch.eye(2, dtype=torch.float64)[None] / 2, "identity", 12)
    assert len(calls) == 2  # the second confirms the first


@pytest.mark.parametrize("rule", ["norms", "columns"])
@pytest.mark.parametrize("steps", [0, 6, pytest.param(25, marks=pytest.mark.slow)])
def test_the_gradient_through_the_iteration_is_that_of_its_jacobian(rule, steps):
    square = torch.randn(3, 5, 5, generator=generator(1, "m"), dtype=torch.float64)
    cores = square @ square.mT / 10 + 0.1 * torch.eye(5)
    actual = iteration_gradient(cores, rule, steps)

    def literal(m):
        one, inf_norm = m.abs().sum(0).max(), m.abs().sum(1).max()
        z = m.T / (one * inf_norm) if rule == "norms" else m.T / one
        for _ in range(steps):
            x = m @ z
            z = 0.25 * z @ (13 * torch.eye(5) - x @ (15 * torch.eye(5) - x @ (7 * torch.eye(5) - x)))
        return z

    for row in range(3):
        jacobian = torch.autograd.functional.jacobian(literal, cores[row]).reshape(25, 25)
        expected = float(torch.linalg.matrix_norm(jacobian, 2))
        assert expected * 0.98 <= float(actual[row]) <= expected * (1 + 1e-9)
        if steps == 25:
            assert float(actual[row]) == pytest.approx(inverse_gradient(condition(cores[row])), rel=0.02)


def directions(qkv, index, seed=0):
    """The changes of `sensitivity`, made anew."""
    out, streams = [], Streams(seed, "sensitivity", qkv.layer, qkv.window)
    for name, x in (("q", qkv.q), ("k", qkv.k)):
        u = torch.stack(
            [
                torch.randn(x.shape[1:], generator=streams.head(head, str(index), name), dtype=torch.float64)
                for head in qkv.heads
            ]
        )
        out.append(u * (x.norm(dim=(1, 2)) / u.norm(dim=(1, 2)))[:, None, None])
    return out


def softmax(q, k, scale):
    return torch.softmax(scale * q @ k.mT, -1)


def gaussian(q, k, scale):
    square = (q * q).sum(-1)[..., None] + (k * k).sum(-1)[..., None, :] - 2 * q @ k.mT
    return torch.exp(-square * scale / 2)


def nystrom(q, k, scale):
    def means(x):
        return x.unflatten(1, (6, -1)).mean(2)

    core = torch.linalg.inv(softmax(means(q), means(k), scale))
    return softmax(q, means(k), scale) @ core @ softmax(means(q), k, scale)


@pytest.mark.parametrize("score", [1.0, 6.0])
@pytest.mark.parametrize("name", ["softmax", "gaussian", "nystromformer"])
def test_sensitivity_is_the_derivative_that_autograd_gives(name, score):
    qkv = make(h=2, n=24, score=score)
    run, formula = {
        "softmax": (lambda x: exact(x), softmax),
        "gaussian": (lambda x: exact(x, "gaussian"), gaussian),
        "nystromformer": (lambda x: approximate("nystromformer", x, 6, inverse="pinv").operator, nystrom),
    }[name]
    actual = sensitivity(run, qkv, directions=3, seed=5)
    for index in range(3):
        value, change = torch.func.jvp(
            lambda q, k: formula(q, k, qkv.scale), (qkv.q, qkv.k), tuple(directions(qkv, index, 5))
        )
        expected = change.norm(dim=(1, 2)) / value.norm(dim=(1, 2))
        assert torch.allclose(actual[:, index], expected, rtol=1e-6, atol=0)


def test_sensitivity_does_not_depend_on_which_heads_are_measured_nor_on_dtype():
    qkv = make(h=3, n=20, dtype=torch.float32)
    whole = sensitivity(exact, qkv, directions=2)
    assert torch.allclose(sensitivity(exact, qkv.select([2]), directions=2)[0], whole[2], rtol=1e-9)
    assert torch.equal(sensitivity(exact, qkv.to(dtype=torch.float64), directions=2), whole)
    assert not torch.equal(sensitivity(exact, qkv, directions=2, seed=1), whole)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Q, K, V of 3 heads and 80 tokens, four of which repeat."""
    folder = tmp_path_factory.mktemp("qkv")
    q, k, v = torch.randn(3, 3, 80, 8, generator=generator(2, "qkv"))
    for x in (q, k, v):
        x[:, 76:] = x[:, :4]
    save_file({name: x.contiguous() for name, x in zip("qkv", (q, k, v), strict=True)}, folder / "qkv.safetensors")
    return folder / "qkv.safetensors"


@pytest.fixture(scope="module")
def sensitive(file, tmp_path_factory):
    """The run with all that takes time: twelve iterations, and the sensitivity."""
    return measured(file, tmp_path_factory.mktemp("sensitive"), iterations=12, sensitivity=True)


def measured(file, tmp_path, name="r", **rest):
    spec = {"qkv": str(file), "device": "cpu"}
    measure_conditions(ConditionRequest(**spec, out=str(tmp_path / name), **{"d": (8,), **rest}))
    return open_run(tmp_path / name)


def test_rows_hold_what_the_contract_says(file, tmp_path):
    run = measured(file, tmp_path)
    frame, at = run.frame("matrix"), run.frame("at")
    assert len(frame) == 3 * (3 + 5 + 1)
    qkv = load_qkv(qkv=str(file), n=80)
    for _, row in frame.iterrows():
        own = at[(at["key"] == row["key"]) & (at["matrix"] == row["matrix"]) & (at["head"] == row["head"])]
        if row["matrix"] in EXACT:
            assert pd.isna(row["method"]) and pd.isna(row["output_spectral_relative"]) and row["repeated"] == 4
            assert row["cond"] == math.inf and row["flag"] == "singular (>6e13)" and row["rank"] == 76
            assert own["cond_at"].max() < math.inf and own["k"].max() == 64 and not row["inverted"]
        else:
            approx = approximate(row["method"], qkv, 8)
            core = by_name(qkv, approx)[row["matrix"]]
            expected = condition(core.matrix[row["head"]])
            assert row["cond"] == pytest.approx(expected.value, rel=1e-12) and row["rank"] == 8
            assert own["k"].tolist() == [1, 2, 4, 8]
            assert own["cond_at"].tolist() == pytest.approx([expected.cond_at(k) for k in (1, 2, 4, 8)])
            errors = output_errors(exact(qkv), approx, qkv)["output_spectral_relative"]
            assert row["output_spectral_relative"] == pytest.approx(float(errors[row["head"]]), rel=1e-12)
            assert row["bad_rows"] == int(approx.diagnostics["bad_rows"][row["head"]])
    heads = run.frame()
    assert heads["method"].tolist() == ["skyformer"] * 3 + ["nystromformer"] * 3 and heads["bad_rows"].notna().all()
    guarded = measured(file, tmp_path, "g", methods=("skyformer:guard=sampled",)).frame()
    assert "bad_rows" not in guarded, "a guard replaces them"


def matrices(cond, error, matrix="SCS", method="skyformer", **columns):
    """Rows of a matrix, a head each."""
    cond, error = np.asarray(cond, float), np.asarray(error, float)
    place = {"source": "", "scale_inputs": 1.0, "target": "softmax", "n": 8, "d": 4, "layer": 0, "window": 0}
    place |= {"repeat": 0, "status": "ok", "reason": pd.NA, "method": method, "name": method, "options": ""}
    place |= {"family": "nystrom", "reference": False, "matrix": matrix, "size": 4, "inverted": True, "bad_rows": 0}
    rows = pd.DataFrame({"head": range(len(cond)), "cond": cond, "output_spectral_relative": error, "rank": 4.0})
    rows["flag"] = [None if known else "singular (>1e15)" for known in np.isfinite(cond)]
    rows = rows.assign(**{**place, **columns}, key=[f"{method}{columns}{head}" for head in rows["head"]])
    words = ("source", "target", "status", "reason", "method", "name", "options", "family", "matrix", "flag")
    return rows.astype({**dict.fromkeys(words, "string"), "cond": "Float64", "inverted": "boolean", "d": "Int64"})


def cells(frame, table=CONDITIONS):
    """The cells of the lines of a table, by the names of its columns."""
    [grid] = grids(Selection.of(frame, table), [f"+{column.name}" for column in table.more])
    return grid, [dict(zip([column.name for column in grid.columns], line, strict=True)) for line in grid.cells]


def test_the_table_counts_a_singular_head_as_infinite():
    cond, error = [1.0, 2.0, math.inf, 3.0, math.inf, math.inf], [0.1, 0.2, 0.3, 0.25, 0.9, 0.5]
    _, [line] = cells(matrices(cond, error))
    assert (line["singular.sum"].value, line["singular.sum"].of) == (3, 6)
    middle = line["cond.median"]
    assert (middle.value, middle.low, middle.high) == (math.inf, pytest.approx(1.5), math.inf)
    assert "rho" not in line, "singular heads have no order"
    regular = [1.0, 2.0, 6.0, 3.0, 8.0, 9.0]
    both = pd.concat([matrices(regular, error), matrices([math.inf], [0.3], window=1)])
    _, [line] = cells(both)
    from scipy.stats import spearmanr

    assert line["rho"].value == pytest.approx(float(spearmanr(regular, error).statistic))
    assert line["singular.sum"].of == 7


@pytest.mark.parametrize("sign, word", [(1, "grows"), (-1, "falls")])
def test_the_sentence_ranks_heads_within_their_core(sign, word):
    """Levels of methods cancel: the worse method has the better condition here, while heads of each say the reverse."""
    ranks = np.arange(1, 9.0)
    rows = [
        matrices(level * ranks, ranks[::sign] / level, method=name, layer=layer, window=window)
        for name, level in (("skyformer", 1.0), ("nystromformer", 1e3))
        for layer in (0, 1)
        for window in (0, 1)
    ]
    grid, _ = cells(pd.concat(rows))
    assert grid.sentence.startswith(f"The error {word} with the condition number: ρ = {sign:+d}.00, p = ")
    assert grid.sentence.endswith("(32 heads, ranked in each of 2 cores).")
    beside = pd.concat([matrices(ranks, ranks, inverted=False), matrices([1.0, math.inf], [1.0, 2.0])])
    assert not cells(beside)[0].sentence  # of regular heads of inverted cores, of which there is one


def test_heads_without_a_relation_are_said_to_have_none():
    grid, _ = cells(matrices([1, 2, 3, 4, 5, 6, 7, 8], [4, 8, 1, 5, 7, 2, 6, 3]))
    assert grid.sentence.startswith("The error has no clear relation to the condition number: ρ = -0.")


def test_a_note_counts_the_verdicts_of_lemma_3():
    verdicts = ["holds", "holds", "zero", "violated"]
    rows = matrices([1.0] * 4, [0.1] * 4, matrix="N0").assign(lemma3=pd.array(verdicts, "string"))
    grid, _ = cells(pd.concat([rows, matrices([1.0], [0.1])]))
    [note] = grid.reasons
    assert note.startswith("Lemma 3 (eigenvalues of N at γ = 0 in (0, 1]): 2 hold, 1 ") and "1 violated" in note


def test_a_figure_of_errors_has_the_rank_correlation_of_regular_heads():
    parts = [
        matrices(
            [*([math.inf] * singular), *range(8 - singular, 0, -1)], 0.1 * np.arange(1, 9), method=method, layer=layer
        )
        for layer in (0, 1)
        for method, singular in (("skyformer", 2), ("nystromformer", 1))
    ]

    def drawn(frame):
        [sheet] = sheets(frame, ERRORS)
        return sheet, [text.get_text() for legend in sheet.legends for text in legend.get_texts()]

    sheet, names = drawn(pd.concat(parts))
    for name, method, singular in zip(names, ("skyformer", "nystromformer"), (4, 2), strict=False):
        assert name == f"{method} (ρ = −1.00; {singular} outside)"
    assert len(sheet.axes) == 2 and not any("hollow" in name for name in names)
    parts[0]["bad_rows"] = [*[0] * 7, 1]
    assert any("hollow: bad rows" in name for name in drawn(pd.concat(parts))[1])


@pytest.fixture
def run(run):
    """``attnprobe condition`` in this process: ``(code, stdout, stderr)``."""
    return lambda *args: run("condition", *args)


def test_a_matrix_of_one_landmark_is_recorded_and_read(run, file):
    code, out, err = run("--qkv", file, "--d", "1", "--method", "nystromformer", "--out", "r", "--format", "json")
    assert code == 0 and json.loads(out)["rows"], err
    code, again, err = run("--qkv", file, "--d", "1", "--method", "nystromformer", "--out", "r", "--format", "json")
    assert code == 0 and json.loads(again)["rows"] == json.loads(out)["rows"], err


def test_iterations_and_sensitivity_are_recorded_where_they_are_asked_for(sensitive, file, tmp_path):
    frame, steps, trials = (sensitive.frame(kind) for kind in ("matrix", "iteration", "trial"))
    scaled = frame[frame["matrix"] == "N"]
    assert (scaled["lemma3"] == "holds").all() and (scaled["gradient_six"] > 0).all()
    of_scaled = steps[steps["matrix"] == "N"]
    assert (of_scaled.groupby("head")["iteration"].apply(list).map(lambda some: some == [*range(13)])).all()
    changes = {
        *trials.loc[trials["sensitivity"].notna(), ["matrix", "name"]].fillna("").itertuples(index=False, name=None)
    }
    assert changes == {("B", ""), ("C", ""), ("B~", "skyformer"), ("B~", "nystromformer")}
    _, lines = cells(steps, RESIDUALS)
    of_core = steps[(steps["matrix"] == "A_S")]
    [line] = [line for line in lines if line["matrix"].value == "A_S"]
    for name, step in (("residual_0", 0), ("residual_6", 6), ("residual_10", 10), ("residual_last", 12)):
        assert line[name].value == pytest.approx(of_core.loc[of_core["iteration"] == step, "residual"].median())
    assert "residual_15" not in line
    _, lines = cells(trials, CHANGES)
    assert lines[-1]["sensitivity.max"].value == trials.loc[trials["matrix"] == "C", "sensitivity"].max()
    plain = measured(file, tmp_path, methods=("nystromformer",))
    for kind, table in (("iteration", RESIDUALS), ("trial", CHANGES)):
        assert not grids(Selection.of(plain.frame(kind), table))


@pytest.mark.parametrize("name, heading", [("cond", r"σ₁/σ\_m [p10 – p90]"), ("sensitivity", "change [p10 – p90]")])
def test_a_median_is_shown_with_its_range_where_its_column_is_asked_for(sensitive, name, heading):
    [view] = views(sensitive)
    assert f"| {heading} |" in view.text("md", columns=[name])


def test_exact_matrices_that_are_too_large_are_skipped_with_a_reason(file, tmp_path, monkeypatch):
    monkeypatch.setattr("attnprobe.measure.condition.measure.DENSE", 40)
    [first, *others] = measured(file, tmp_path, methods=("nystromformer",)).records["condition"]
    assert first["method"] is None and first["status"] == "skipped" and "n=40" in first["reason"]
    assert all(cell["status"] == "ok" for cell in others)
    changed = measured(file, tmp_path, "changed", methods=("nystromformer",), sensitivity=True)
    [first, _] = changed.records["condition"]
    assert first["status"] == "ok" and "n=40" in first["reason"] and {row["kind"] for row in first["rows"]} == {"trial"}
    [view] = views(changed)
    assert first["reason"] in " ".join(view.text("table").split())


def test_methods_without_a_core_and_budgets_beyond_the_sequence_are_skipped_with_a_reason(file, tmp_path):
    run = measured(file, tmp_path, methods=("linear", "skyformer"), d=(8, 400))
    cells = run.records["condition"][1:]
    actual = {(cell["method"], cell["d"]): cell["reason"] for cell in cells if cell["status"] == "skipped"}
    assert actual["linear", None] == "linear inverts no core" and len(actual) == 2
    assert "d=400 exceeds" in actual["skyformer", 400]
    heads = run.frame().set_index("name")
    assert (heads.loc["linear", "output_spectral_relative"] > 0).all()  # it has an error, and no core


def test_gradients_of_the_raw_core_are_those_of_the_unscaled_one(sensitive, file):
    frame = sensitive.frame("matrix")
    qkv = load_qkv(qkv=str(file), n=80)
    core = by_name(qkv, approximate("skyformer", qkv, 8))["SAS"]
    whole = core.matrix * core.log_scale.exp()[:, None, None]
    expected = iteration_gradient(whole, core.start)
    rows = frame[frame["matrix"] == "SAS"]
    assert len(rows) == 3
    for _, row in rows.iterrows():
        assert row["gradient_six"] == pytest.approx(float(expected[row["head"]]), rel=1e-6)
        assert row["gradient"] == pytest.approx(inverse_gradient(condition(whole[row["head"]])), rel=1e-9)


def test_singular_cores_have_no_finite_numbers(file, tmp_path):
    """Five landmarks of which the iid sampler draws some twice."""
    frame = measured(file, tmp_path, methods=("skyformer:sampler=iid",), d=(60,)).frame("matrix")
    singular = frame[(frame["matrix"] == "SCS") & (frame["repeated"] > 0)]
    assert len(singular) and np.isinf(singular[["cond", "gradient"]].astype(float)).all().all()
    assert singular["flag"].str.startswith("singular").all() and (singular["rank"] < 60).all()
    assert np.isfinite(singular["cond_eff"].astype(float)).all()


def test_a_value_of_zero_draws_what_it_can(run, tmp_path):
    """V = 0 has no relative error, so that figure is left out and the others are drawn."""
    q, k = torch.randn(2, 2, 48, 8, generator=torch.Generator().manual_seed(0))
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": torch.zeros(2, 48, 8)}, tmp_path / "zero.safetensors")
    code, _, err = run("--qkv", "zero.safetensors", "--d", "8", "--plot", "--out", "r")
    assert code == 0 and (tmp_path / "r/figures/condition-numbers.svg").exists(), err
    assert not list((tmp_path / "r/figures").glob("condition-error*"))


def test_the_options_of_a_core_stand_in_the_figure():
    wor = "skyformer:sampler=wor"
    [sheet] = sheets(pd.concat([matrices([1.0, 2.0], [0.1, 0.2]), matrices([3.0], [0.1], name=wor)]), NUMBERS)
    names = [text.get_text() for legend in sheet.legends for text in legend.get_texts()]
    assert {"skyformer", wor} <= {*names}


def test_a_figure_counts_the_singular_matrices_of_each_line():
    rows = matrices([math.inf, math.inf, 10.0, 3.0], [0.1] * 4)
    [sheet] = sheets(rows, NUMBERS)
    assert r"2 $\infty$" in " ".join(text.get_text() for text in sheet.axes[0].texts)


def test_a_figure_of_iterations_is_of_the_inverted_cores(file, tmp_path):
    steps = measured(file, tmp_path, iterations=7).frame("iteration")
    [sheet] = sheets(steps, ITERATIONS)
    inverted = steps[steps["inverted"].fillna(False)]
    expected = {
        name: rows.groupby("iteration")["residual"].median().tolist() for name, rows in inverted.groupby("name")
    }
    lines = [line.get_ydata().tolist() for line in sheet.axes[0].get_lines() if len(line.get_xdata()) == 8]
    assert all(any(line == pytest.approx(values) for line in lines) for values in expected.values())


def test_a_causal_form_has_no_core_of_all_keys(tmp_path, run):
    made = torch.Generator().manual_seed(0)
    file = tmp_path / "causal.safetensors"
    save_file({axis: torch.randn(1, 16, 4, generator=made) for axis in "qkv"}, file, {"causal": "true"})
    code, out, err = run("--qkv", file, "--d", "2,4", "--out", "r")
    assert code == 0, err
    assert "a causal form inverts a core for each block of keys" in " ".join(out.split())
    frame = open_run("r").frame("matrix")
    skipped = frame[frame["status"] == "skipped"]
    assert {*skipped["name"]} == {"skyformer", "nystromformer"} and len(skipped) == 4
    assert skipped["reason"].str.contains("a causal form inverts a core for each block of keys").all()
    assert {*frame.loc[frame["status"] == "ok", "matrix"]} == {*EXACT}


def test_a_figure_of_iterations_shows_residuals_down_to_rounding_and_no_overflow(file, tmp_path):
    steps = measured(file, tmp_path, methods=("nystromformer",), iterations=9).frame("iteration")
    falling = steps.assign(
        residual=np.where(steps["iteration"] < 8, 10.0 ** -(2.0 * steps["iteration"].astype(float)), 1e200)
    )
    [sheet] = sheets(falling, ITERATIONS)
    low, high = sheet.axes[0].get_ylim()
    assert 1e-17 < low < 1e-14 and 1 < high < 1e3


@pytest.mark.parametrize("method, options", [("nystromformer", {}), ("skyformer", {"sampler": "wor"})])
def test_the_amplification_of_rounding_stands_beside_each_core(tmp_path, method, options):
    """It is that of ``rounding_errors`` on the same Q, K and V; without the option keys of cells are as they were."""
    name = method + "".join(f":{key}={value}" for key, value in options.items())
    given = {"qkv": str(INPUTS / "qkv.safetensors"), "d": (4,), "methods": (name,), "seed": 3}
    run = measure_conditions(ConditionRequest(**given, amplification="fp16", out=str(tmp_path / "a"))).outcome
    plain = measure_conditions(ConditionRequest(**given, out=str(tmp_path / "b"))).outcome
    of_method, before = ([cell for cell in one.records if cell["method"] == method] for one in (run, plain))
    errors = rounding_errors(load_qkv(qkv=given["qkv"]), method, 4, "fp16", seed=3, **options)
    [cell] = of_method
    cores = {row["matrix"] for row in cell["rows"] if row["kind"] == "matrix"}
    for core in cores:
        rows = [row for row in cell["rows"] if row["kind"] == "matrix" and row["matrix"] == core]
        assert [row["amplification"] for row in rows] == pytest.approx(errors.amplification.tolist(), rel=1e-9)
    assert cores and before[0]["key"] != cell["key"]
    assert not any("amplification" in row for row in before[0]["rows"])


def test_an_amplification_in_no_format_is_one_line(run):
    code, _, err = run("condition", "--qkv", INPUTS / "qkv.safetensors", "--amplification", "bf17")
    assert (code, err) == (2, "attnprobe: unknown format 'bf17'; did you mean 'bf16'?\n")
