"""Rounding errors of methods: every method, its failures, its choices, and the floor of rounded inputs."""

from dataclasses import replace

import pytest
import torch
from thinned import others_slow

from attnprobe import QKV
from attnprobe.errors import Unsupported, UsageError
from attnprobe.methods import KERNELS, METHODS, approximate, get
from attnprobe.operators.linalg.order import largest_scores
from attnprobe.rounding import Choices, Computation, computation_of, format_named, measured, rounded, rounding_errors
from attnprobe.rounding.emulation import Emulation
from attnprobe.rounding.following import Follow
from attnprobe.rounding.measured import first_failure
from attnprobe.rounding.site import INPUTS

BUDGET = {"tri-shape": 112}
EVERY = [name for name in (*METHODS, *KERNELS) if name != "torch:flex"]  # torch has no rule for it in float64


def made(n=128, h=3, p=8, seed=0, scale=1.0, causal=False):
    g = torch.Generator().manual_seed(seed)
    q, k, v = scale * torch.randn(3, h, n, p, generator=g)
    return QKV(q, k, v, causal=causal)


def of(name, qkv, d=12, **options):
    target = "softmax" if "softmax" in get(name).targets else "gaussian"
    return computation_of(qkv, name, BUDGET.get(name, d), target=target, **options)


@pytest.mark.parametrize("format", others_slow(["fp32", "tf32"], lambda format: format[0] == "tf32"))
@pytest.mark.parametrize("name", EVERY)
def test_every_method_runs_emulated(name, format):
    """float64 changes no bit; other formats change the output by some units of theirs; every operation is rounded."""
    computation = of(name, made())
    plain, choices = computation.plain
    assert torch.equal(plain, computation.run().output)
    assert torch.equal(computation.followed(Emulation(format_named("float64"))), plain)
    mode = Emulation(format_named(format), choices=choices.replay(hold=True))
    difference = (computation.followed(mode) - plain).norm() / plain.norm()
    assert mode.report.emulated
    assert 0 < difference < 1e5 * mode.to.unit or name == "magicpig"


FORMS = [name for name in METHODS if METHODS[name].is_causal]
#: the first of each family, whose code the others share, and those with draws or with hashes of their own
FIRST = {*{METHODS[name].family: name for name in FORMS[::-1]}.values(), "magicpig", "vattention", "random"}


@pytest.mark.parametrize("name", others_slow(FORMS, lambda name: name[0] in FIRST))
def test_every_causal_form_runs_emulated(name):
    computation = of(name, made(causal=True))
    mode = Emulation(format_named("bf16"))
    assert torch.equal(computation.followed(Emulation(format_named("float64"))), computation.run().output)
    assert computation.followed(mode).shape == computation.exact.shape and mode.report.emulated


def test_numbers_of_a_kernel_by_hand():
    """torch's attention is one operation: rounded inputs, float32, and one rounding."""
    qkv = made()
    errors = rounding_errors(qkv, "torch:sdpa-flash", format="bf16")
    to = format_named("bf16")
    near = [rounded(x, to).double() for x in (qkv.q, qkv.k, qkv.v)]
    output = rounded(torch.softmax(near[0] @ near[1].mT * qkv.scale, -1) @ near[2], to)
    exact = torch.softmax(qkv.q.double() @ qkv.k.double().mT * qkv.scale, -1) @ qkv.v.double()
    expected = torch.linalg.matrix_norm(output - exact, 2) / torch.linalg.matrix_norm(exact, 2)
    assert torch.allclose(errors.rounding, expected, rtol=0.02)  # float32 inside rounds a few results the other way
    assert torch.allclose(errors.total, errors.rounding, rtol=1e-6) and (errors.approximation < 1e-12).all()
    assert errors.bits.isnan().all() and errors.decides.all()
    assert torch.equal(errors.amplification, errors.rounding / 2**-8)


def test_errors_add_up_and_bits_follow_from_them():
    errors = rounding_errors(made(), "nystromformer", 12, "bf16", goal=0.2)
    assert (errors.total <= errors.approximation + errors.rounding + 1e-12).all()
    assert (errors.total >= (errors.approximation - errors.rounding).abs() - 1e-12).all()
    needed = 2**errors.bits
    assert torch.allclose(errors.amplification / needed, 0.2 * errors.approximation)
    assert errors.is_rounded and errors.flips == 0 and torch.equal(errors.held, errors.rounding)
    finer = rounding_errors(made(), "nystromformer", 12, "fp16", goal=0.2)
    assert (finer.rounding < errors.rounding / 3).all() and (finer.bits - errors.bits).abs().max() < 1.5


def test_the_floor_is_that_of_rounded_inputs():
    qkv = made()
    errors = rounding_errors(qkv, "linformer", 12, "bf16")
    near = qkv.replace(**{name: rounded(getattr(qkv, name), format_named("bf16")).double() for name in "qkv"})
    output = approximate("linformer", near, 12).output
    plain = approximate("linformer", qkv.double(), 12).output
    exact = torch.softmax(qkv.q.double() @ qkv.k.double().mT * qkv.scale, -1) @ qkv.v.double()
    expected = torch.linalg.matrix_norm(output - plain, 2) / torch.linalg.matrix_norm(exact, 2)
    assert torch.allclose(errors.input_floor, expected, rtol=1e-9) and (expected < errors.rounding).all()
    already = rounding_errors(near, "linformer", 12, "bf16")
    assert not already.input_floor.any()


def naive(q, k, v, scale):
    """Softmax without its largest score, as code that overflows in float16 has it."""
    weights = torch.exp(scale * q @ k.mT)
    return weights @ v / weights.sum(-1, keepdim=True)


def test_a_head_that_overflows_is_named_with_its_first_step():
    qkv = made(scale=0.5)
    loud = qkv.replace(q=torch.cat([qkv.q[:1], 30 * qkv.q[1:2], qkv.q[2:]]))
    errors = rounding_errors(loud, naive, format="fp16")
    assert errors.first_failed[0] is None and errors.first_failed[2] is None
    assert errors.first_failed[1] is not None and errors.first_failed[1].endswith(" exp")
    assert "naive" in errors.first_failed[1]
    assert (
        errors.rounding.isinf().tolist() == [False, True, False]
        and errors.bits.isnan().tolist() == [False] * 0 + [True] * 3
    )
    assert errors.decides[1]
    quiet = rounding_errors(qkv, naive, format="fp16")
    assert torch.equal(quiet.rounding[[0, 2]], errors.rounding[[0, 2]])


def test_an_input_that_overflows_is_named():
    qkv = made()
    v = qkv.v.clone()
    v[1, 3, 2] = 1e5
    errors = rounding_errors(qkv.replace(v=v), "linformer", 12, "fp16")
    assert errors.first_failed == (None, str(INPUTS), None)
    alone = rounding_errors(qkv, "linformer", 12, "fp16")
    assert torch.equal(errors.rounding[[0, 2]], alone.rounding[[0, 2]])


def test_hidden_scores_are_no_failure():
    """Their -∞ is on purpose; the step that fails is the one that is infinite in the format alone."""
    qkv = made(causal=True, scale=0.5)
    loud = qkv.replace(q=40 * qkv.q)

    def masked(q, k, v, scale):
        scores = scale * q @ k.mT
        scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), float("-inf"))
        weights = torch.exp(scores)
        return weights @ v / weights.sum(-1, keepdim=True)

    method = replace(get(naive), function=get(masked).function, tags=("causal",))
    computation = Computation(loud.double(), method, None)
    found, _ = first_failure(computation, Emulation(format_named("fp16")))
    assert found is not None and found.endswith(" exp")


def test_choices_are_told_apart_from_numbers():
    """Keys whose scores are a unit of bf16 apart: rounding takes others, and with the choices held it does not."""
    qkv = made(n=160, scale=1.5)
    errors = rounding_errors(qkv, "topk", 12, "bf16")
    assert 0 < errors.flips < 0.2
    assert (errors.held < 0.5 * errors.rounding).all() and (errors.held > 0).all()
    random = rounding_errors(qkv, "random", 12, "bf16")
    assert random.flips == 0 and torch.equal(random.held, random.rounding)


def test_equal_scores_are_one_choice():
    """Scores that rounding makes equal: the recorded places are held, which of the equal ones is none of torch's."""
    scores = torch.linspace(1, 1.0001, 64, dtype=torch.float64).repeat(2, 1)
    record = Choices()

    def chosen(mode):
        x = mode.start(scores)
        with torch.no_grad(), mode:
            return largest_scores(x * 1.0, 5)

    _, places = chosen(Follow(choices=record))
    held = record.replay(hold=True)
    of_values, of_places = chosen(Emulation(format_named("bf16"), choices=held))
    assert places[0].tolist() == [63, 62, 61, 60, 59]
    assert torch.equal(of_places, places) and held.flips == 10 and held.share == 1.0
    assert of_values.tolist() == [[1.0] * 5] * 2


def test_flips_of_a_set_do_not_count_its_order():
    record = Choices()
    record.met(INPUTS, torch.tensor([[3, 1, 2], [0, 1, 2]]), of_a_set=True)
    for own, flips in (([[2, 3, 1], [0, 1, 2]], 0), ([[2, 3, 7], [5, 6, 2]], 3)):
        choices = record.replay(hold=False)
        choices.met(INPUTS, torch.tensor(own), of_a_set=True)
        assert choices.flips == flips and choices.total == 6


def test_a_method_that_leaves_torch_is_refused_by_name():
    def by_numpy(q, k, v):
        return torch.from_numpy((q.numpy() @ k.mT.numpy()) @ v.numpy())

    with pytest.raises(Unsupported, match="by_numpy.*leave torch"):
        rounding_errors(made(), by_numpy)


def test_operations_of_the_codes_own_dtype_are_said():
    def wide(q, k, v, scale):
        weights = torch.softmax(scale * q.float() @ k.float().mT, -1)
        return (weights @ v.float()).to(q.dtype)

    errors = rounding_errors(made(), wide)
    assert not errors.is_rounded and sum(errors.report.as_written.values()) == 4  # a factor, two products, softmax
    assert torch.allclose(errors.rounding, errors.input_floor, rtol=1)


def test_impossible_settings_are_refused():
    with pytest.raises(UsageError, match="unknown arithmetic 'autocats'; did you mean 'autocast'"):
        rounding_errors(made(), "linformer", 8, "bf16:autocats")
    with pytest.raises(UsageError, match="goal=0"):
        rounding_errors(made(), "linformer", 8, goal=0)
    with pytest.raises(UsageError, match="did you mean 'linformer'"):
        rounding_errors(made(), "linfromer", 8)


def test_heads_have_the_same_errors_alone():
    qkv = made()
    errors = rounding_errors(qkv, "performer", 12, "bf16")
    alone = rounding_errors(qkv.select([1]), "performer", 12, "bf16")
    assert torch.allclose(alone.rounding, errors.rounding[1:2], rtol=1e-6)


def test_a_computation_is_measured_in_several_formats():
    computation = of("linear", made())
    coarse, fine = (measured(computation, format_named(name)) for name in ("fp8-e4m3", "fp16"))
    assert (coarse.rounding > 20 * fine.rounding).all() and torch.equal(coarse.approximation, fine.approximation)
