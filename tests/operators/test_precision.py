"""What is exact and what judges is made in full precision, whatever the program has chosen, which stands afterwards."""

import threading
import warnings

import pytest
import torch
from inputs import make
from torch.utils._python_dispatch import TorchDispatchMode

from attnprobe import approximate, exact
from attnprobe.measure.inject import InjectRequest, measure_drift
from attnprobe.measure.theory import TheoryRequest, measure_theory
from attnprobe.measure.theory.setting import findings
from attnprobe.metrics import (
    KernelReference,
    attention_maps,
    input_statistics,
    kernel_errors,
    matrix_errors,
    output_errors,
    sensitivity,
    spectra,
)
from attnprobe.operators import GaussianAttention, UnnormalisedAttention
from attnprobe.operators.linalg.dimension import largest_leverage, statistical_dimension
from attnprobe.operators.linalg.spectra import leading_singular_values
from attnprobe.operators.precision import full_precision, ordered_sums
from attnprobe.reference import exact_output

aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.addmm_.default, aten.baddbmm.default}
PRODUCTS |= {aten.baddbmm_.default, aten.addmv_.default, aten.mv.default, aten.mm.out, aten.bmm.out, aten.addmm.out}
PLACES = ["cuda.matmul", "mkldnn.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.conv", "mkldnn.rnn"]

CHOICES = {
    "allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "cudnn without": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
}
NEWER = {
    "all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "products": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "convolutions": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "mixed": lambda: [NEWER["products"](), CHOICES["high"](), NEWER["convolutions"]()],
}
if hasattr(torch.backends, "fp32_precision"):
    CHOICES |= NEWER


def read(call):
    """What torch says, or that it refuses to."""
    try:
        return call()
    except RuntimeError:
        return "refused"


def place(name):
    module, operation = name.split(".")
    return getattr(getattr(torch.backends, module), operation)


def chosen():
    """All choices, as torch tells them; those that it has from 2.9 on too."""
    actual = [read(torch.get_float32_matmul_precision)]
    actual += [read(lambda: torch.backends.cuda.matmul.allow_tf32), read(lambda: torch.backends.cudnn.allow_tf32)]
    if hasattr(torch.backends, "fp32_precision"):
        actual += [torch.backends.fp32_precision, *(place(name).fp32_precision for name in PLACES)]
    return actual


def is_full():
    if hasattr(torch.backends, "fp32_precision"):
        return all(place(name).fp32_precision == "ieee" for name in PLACES)
    return torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32


@pytest.fixture
def untouched():
    """The choices of the process that runs the tests, put back."""
    if hasattr(torch.backends, "fp32_precision"):
        before = [torch.backends.fp32_precision, *(place(name).fp32_precision for name in PLACES)]
    older = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision(older[0])
        torch.backends.cudnn.allow_tf32 = older[1]
        if hasattr(torch.backends, "fp32_precision"):
            torch.backends.fp32_precision = before[0]
            for name, value in zip(PLACES, before[1:], strict=True):
                place(name).fp32_precision = value


class Watching(TorchDispatchMode):
    """Which float32 products were made, and which of them not in full precision."""

    def __init__(self):
        super().__init__()
        self.seen, self.loose = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in PRODUCTS and args[0].dtype == torch.float32:
            self.seen += 1
            if not is_full():
                self.loose.append(func)
        return func(*args, **(kwargs or {}))


def made(n=300):
    return make(n=n, dtype=torch.float32)


def an_operator(qkv):
    return approximate("nystromformer", qkv, 8).operator


JUDGES = {
    "exact": lambda qkv: exact(qkv) @ qkv.v,
    "exact transposed": lambda qkv: exact(qkv).rmatmul(qkv.q),
    "exact rows": lambda qkv: exact(qkv).rows(3, 9),
    "exact normaliser": lambda qkv: exact(qkv).log_normalizer(),
    "Gaussian": lambda qkv: GaussianAttention(qkv.q, qkv.k, qkv.scale).dense(),
    "unnormalised": lambda qkv: UnnormalisedAttention(qkv.q, qkv.k, qkv.scale),
    "matrix errors": lambda qkv: matrix_errors(exact(qkv), FIXED["operator"]),
    "matrix errors, held": lambda qkv: matrix_errors(exact(qkv.select([0])), FIXED["operator"].heads(slice(0, 1))),
    "maps": lambda qkv: attention_maps(FIXED["operator"], 4),
    "input statistics": input_statistics,
    "kernel reference": KernelReference.of,
    "dimension": lambda qkv: statistical_dimension(GaussianAttention(qkv.q, qkv.q, qkv.scale), torch.ones(2, 1)),
    "leverage": lambda qkv: largest_leverage(GaussianAttention(qkv.q, qkv.q, qkv.scale), torch.ones(2, 1)),
}
WITHOUT = {  # all of their products are float64
    "exact output": exact_output,
    "output errors of an operator": lambda qkv: output_errors(FIXED["operator"], FIXED["output"], qkv),
    "output errors": lambda qkv: output_errors(exact_output(qkv), FIXED["output"], qkv),
    "kernel errors": lambda qkv: kernel_errors(FIXED["output"], qkv, reference=FIXED["kernel"]),
    "sensitivity": lambda qkv: sensitivity(exact, qkv, directions=1),
    "spectrum of an approximation": lambda qkv: spectra(qkv, FIXED["operator"]),
    "leading values": lambda qkv: leading_singular_values(exact(qkv.select([0])), 4),
}
FIXED = {}


@pytest.fixture(scope="module", autouse=True)
def fixed():
    qkv = made()
    FIXED.update(operator=an_operator(qkv), output=exact_output(qkv).float(), kernel=KernelReference.of(qkv))


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_is_put_back_and_full_inside(choice, untouched, recwarn):
    CHOICES[choice]()
    before = chosen()
    recwarn.clear()
    with full_precision():
        assert is_full()
        with full_precision():
            assert is_full()
        assert is_full()
    assert chosen() == before
    with pytest.raises(ZeroDivisionError), full_precision():
        raise ZeroDivisionError
    assert chosen() == before and not recwarn.list


@pytest.mark.parametrize("choice", ["high"] + ["products"] * ("products" in CHOICES))
@pytest.mark.parametrize("name", JUDGES)
def test_every_float32_product_of_a_reference_and_of_a_metric_is_full(name, choice, untouched):
    qkv = made()
    CHOICES[choice]()
    before = chosen()
    with Watching() as watching:
        JUDGES[name](qkv)
    assert watching.seen and not watching.loose
    assert chosen() == before


@pytest.mark.parametrize("name", WITHOUT)
def test_these_have_no_float32_product(name):
    with Watching() as watching:
        WITHOUT[name](made())
    assert not watching.seen


def test_a_method_runs_under_the_choice_of_the_program(untouched):
    """The control of the test above."""
    CHOICES["high"]()
    with Watching() as watching:
        an_operator(made())
    assert watching.seen and len(watching.loose) == watching.seen


def test_autocast_does_not_reach_inside():
    a = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with full_precision():
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16


def test_sums_are_ordered_on_a_gpu_alone_and_the_choice_is_put_back():
    def choice():
        enabled, warns = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        return enabled, warns, torch.utils.deterministic.fill_uninitialized_memory

    before = choice()
    with ordered_sums(torch.device("cuda")):
        assert choice() == (True, True, False)
        with ordered_sums(torch.device("cuda")):
            pass
        assert choice() == (True, True, False)
    assert choice() == before
    with ordered_sums(torch.device("cpu")):
        assert choice() == before


def test_threads_share_it_and_the_last_puts_back(untouched):
    CHOICES["high"]()
    before, inside, ended = chosen(), threading.Event(), threading.Event()
    seen = []

    def other():
        with full_precision():
            inside.set()
            ended.wait(10)
            seen.append(is_full())

    thread = threading.Thread(target=other)
    with full_precision():
        thread.start()
        assert inside.wait(10)
    ended.set()
    thread.join()
    assert seen == [True] and chosen() == before


COMMANDS = {
    "theory": lambda facts, out, model, text: measure_theory(
        TheoryRequest(qkv=facts, out=out, device="cpu", theorems=("shift-bound",), d=(8,), repeats=1)
    ),
    "inject": lambda facts, out, model, text: measure_drift(
        InjectRequest(model=model, text=text, out=out, device="cpu", methods=("vmean",), n=(12,))
    ),
    "a theorem by itself": lambda facts, out, model, text: findings(made(40), "shift-bound", d=(8,)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_compares_with_is_full(name, qkv, tmp_path, tiny_bert, text_file, untouched):
    CHOICES["high"]()
    with Watching() as watching:
        COMMANDS[name](str(qkv), str(tmp_path / "run"), tiny_bert, text_file)
    assert watching.seen and not watching.loose
