"""Rows of one exact matrix on several devices: the same numbers for any number of them, rounding away from one."""

import json
import os
import signal
import threading
from functools import partial

import pytest
import torch
from every_setting import DEFAULTS
from every_setting import run as approximated
from inputs import make
from operator_cases import cases
from pretend_device import AWAY, Pretended, pretending
from safetensors.torch import save_file

from attnprobe import exact, matrix_errors
from attnprobe.errors import SourceError, UsageError
from attnprobe.experiments.error import ErrorRequest, measure_errors
from attnprobe.experiments.error import measure as run_file
from attnprobe.linalg import differences as differences_file
from attnprobe.linalg.differences import Differences
from attnprobe.linalg.krylov import start_block
from attnprobe.methods import approximate, by_family
from attnprobe.methods.user.recovered import Recovered
from attnprobe.metrics import matrix as matrix_file
from attnprobe.metrics import shared_matrix_errors
from attnprobe.operators import CausalFeatures, Dense, Operator, RankOne, Stacked
from attnprobe.operators import threads as threads_file
from attnprobe.operators.threads import in_spans, located
from attnprobe.qkv import QKV
from attnprobe.reference import exact_output
from attnprobe.run import loop as running
from attnprobe.run.where.sites import row_devices

CPU = torch.device("cpu")
F64 = torch.float64
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, F64], ids=lambda dtype: str(dtype)[6:])
NAMES = ("nystromformer", "performer", "window", "topk", "amm", "vmean", "skeinformer")


@pytest.fixture
def short(monkeypatch):
    """Spans of 64 rows and blocks of 16, so that 150 queries are three spans, the last one shorter."""
    for file in (threads_file, differences_file):
        monkeypatch.setattr(file, "SPAN", 64)
    monkeypatch.setattr(differences_file, "CPU_BLOCK", 16)
    monkeypatch.setattr(matrix_file, "DENSE", 40)


@pytest.fixture
def threads():
    """The threads that there are must be there afterwards, and no others."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def kind_of(name, n=150, dtype=F64):
    """Inputs and target by a word."""
    qkv = make(n=n, h=2, dtype=dtype)
    if name == "padded":
        qkv = QKV(qkv.q, qkv.k, qkv.v, mask=torch.arange(n) % 7 != 3)
    return qkv.replace(causal=name == "causal"), "gaussian" if name == "gaussian" else "softmax"


every_kind = pytest.mark.parametrize("kind", ["softmax", "gaussian", "causal", "padded"])


def operators(qkv, target):
    """An operator of every kind of structure that takes the inputs."""
    names = ("performer", "window") if qkv.causal else NAMES if target == "softmax" else ("skyformer", "svd", "vmean")
    return [approximate(name, qkv, 12, target=target).operator for name in names]


def every_number(errors):
    return [x for one in errors for x in one.metrics.values()]


# ---- the order of spans


@pytest.mark.parametrize("devices", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 64, 65, 300])
def test_spans_are_dealt_in_turn_and_taken_in_order(short, threads, n, devices):
    main, taken, begun = threading.get_ident(), [], []

    def begin(device):
        me = threading.get_ident()
        begun.append(me)
        return lambda start, stop: (start, stop, threading.get_ident(), begun.index(me))

    in_spans(n, CPU, [CPU] * devices, begin, lambda actual: taken.append((*actual, threading.get_ident())))
    expected = [(start, min(start + 64, n)) for start in range(0, n, 64)]
    assert [actual[:2] for actual in taken] == expected
    makers = [actual[2] for actual in taken]
    count = min(devices, len(expected))
    assert main not in makers and len(set(makers)) == len(begun) == count
    assert all(makers[i] == makers[i % count] for i in range(len(makers)))
    assert {actual[-1] for actual in taken} == {main}


def test_a_later_span_may_end_first_and_is_taken_after_and_no_device_runs_ahead(short, threads):
    ended, open_now, most, taken = threading.Event(), [0], [0], []

    def begin(device):
        def work(start, stop):
            open_now[0] += 1
            most[0] = max(most[0], open_now[0])
            if start == 0:
                assert ended.wait(20)  # the second device's first span ends while the first's is made: side by side
            elif start == 64:
                ended.set()
            return start

        return work

    def take(start):
        open_now[0] -= 1
        taken.append(start)

    in_spans(64 * 6, CPU, [CPU, CPU], begin, take)
    assert taken == [0, 64, 128, 192, 256, 320] and most[0] <= 3  # one more may begin before the last is taken


def test_without_devices_all_rows_are_one_span_in_the_callers_thread(short):
    actual = []
    in_spans(300, CPU, None, lambda device: lambda *span: (device, span, threading.get_ident()), actual.append)
    assert actual == [(CPU, (0, 300), threading.get_ident())]


@pytest.mark.parametrize("gradients", [False, True])
def test_threads_keep_the_callers_choice_about_gradients(short, gradients):
    actual = []
    with torch.set_grad_enabled(gradients):
        in_spans(100, CPU, [CPU] * 2, lambda device: lambda *span: torch.is_grad_enabled(), actual.append)
    assert actual == [gradients] * 2


def test_the_library_has_a_span_that_is_whole_blocks():
    assert threads_file.SPAN == differences_file.SPAN and threads_file.SPAN % differences_file.CPU_BLOCK == 0
    assert located(["cpu", CPU]) == (CPU, CPU) and located(None) is None


@pytest.mark.parametrize("devices", [[], "cpu", ["cpu", "cuda:77"], ["nowhere"]], ids=str)
def test_devices_that_are_none_or_not_there_are_refused(devices):
    with pytest.raises(UsageError, match="devices="):
        exact_output(make(n=5), devices=devices)
    with pytest.raises(UsageError, match="devices="):
        Differences(exact(make(n=5)), [None], devices=devices)


# ---- what goes wrong


class Gone(Exception):
    pass


@pytest.mark.parametrize("where", ["begin", "work", "take"])
def test_an_error_anywhere_is_the_callers_and_no_thread_stays(short, threads, where):
    made = []

    def fails(stage, start=128):
        if stage == where and start == 128:
            raise Gone(stage)

    def begin(device):
        fails("begin")

        def work(start, stop):
            made.append(start)
            fails("work", start)
            return start

        return work

    with pytest.raises(Gone, match=where):
        in_spans(64 * 50, CPU, [CPU] * 3, begin, partial(fails, "take"))
    assert len(made) <= 6  # what was not begun is left


def test_an_interruption_ends_the_threads(short, threads, hearing):
    made = []

    def begin(device):
        def work(start, stop):
            made.append(start)
            if start == 128:
                os.kill(os.getpid(), signal.SIGINT)
            return start

        return work

    def endless(actual):  # the main thread hears the signal here, or while it waits for a span
        if actual >= 128:
            threading.Event().wait(20)
            raise AssertionError("the signal was not heard")

    with pytest.raises(KeyboardInterrupt):
        in_spans(64 * 50, CPU, [CPU] * 2, begin, endless)
    assert len(made) <= 6


class Breaks(Dense):
    """A matrix one of whose rows cannot be made."""

    def _rows(self, start, stop):
        if start <= 100 < stop:
            raise Gone("row 100")
        return super()._rows(start, stop)

    def heads(self, some):
        return Breaks(self.matrix[some])

    def to(self, dtype):
        return Breaks(self.matrix.to(dtype))


def test_an_error_of_an_operator_in_a_thread_is_that_of_matrix_errors(short, threads):
    qkv = make(n=150)
    with pytest.raises(Gone, match="row 100"):
        matrix_errors(exact(qkv), Breaks(torch.zeros(2, 150, 150, dtype=F64)), devices=["cpu"] * 2)


# ---- the same numbers for any number of devices


@every_dtype
@every_kind
def test_numbers_are_equal_to_the_last_bit_for_any_number_of_devices(short, kind, dtype):
    qkv, target = kind_of(kind, dtype=dtype)
    ops = operators(qkv, target)
    one, *others = (
        [
            exact_output(qkv, target, [CPU] * count),
            *every_number(shared_matrix_errors(exact(qkv, target), ops, devices=[CPU] * count)),
        ]
        for count in (1, 2, 5)  # of three spans
    )
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@every_dtype
@every_kind
def test_one_pass_differs_from_that_without_spans_by_its_bound(short, kind, dtype):
    """Entries of E and EV₁ are the same on a CPU; only the order of sums over rows is another."""
    qkv, target = kind_of("softmax" if kind == "padded" else kind, dtype=dtype)  # padding is taken off before
    ops, n, s = [None, *operators(qkv, target)], 150, 16
    v1, _ = start_block(n, s, 0, dtype, CPU)
    full, split = (Differences(exact(qkv, target), ops, devices=devices) for devices in (None, [CPU] * 2))
    a, b = full.first(v1), split.first(v1)
    assert torch.equal(a.infinity, b.infinity)
    assert ((a.frobenius2 - b.frobenius2).abs() <= 2 * n * 2.0**-53 * a.frobenius2).all()
    assert ((a.size - b.size).abs() <= n * torch.finfo(dtype).eps * a.size).all()
    x = torch.randn(4, n, s, generator=torch.Generator().manual_seed(2), dtype=dtype)
    which = torch.tensor([2, 0, 1, 3])
    pairs = [
        (a.normal, b.normal, range(2 * len(ops)), [v1] * 2 * len(ops)),
        (full.normal(x, which), split.normal(x, which), which.tolist(), list(x)),
    ]
    matrix, u = exact(qkv.to(dtype=F64), target).dense(), torch.finfo(dtype).eps / 2
    for actual, other, numbers, starts in pairs:
        for place, i in enumerate(numbers):
            start, e = starts[place].double(), matrix[i % 2]
            size = e.mT @ (e @ start.abs())
            if ops[i // 2] is not None:
                less = ops[i // 2].dense()[i % 2].double()
                size, e = size + matrix[i % 2].mT @ (less @ start).abs(), e - less
            assert ((actual[place] - other[place]).double().abs() <= 2 * n * u * size).all()
            exactly, norm = e.mT @ (e @ start), float(matrix[i % 2].norm()) + float(e.norm())
            assert ((other[place].double() - exactly).abs() <= 100 * u * norm**2).all()
    assert not torch.equal(a.normal, b.normal)  # the control: spans were added in another order


@every_dtype
@every_kind
def test_errors_differ_from_those_without_spans_by_rounding(short, kind, dtype):
    """The slack that the interval's ends have for rounding covers it."""
    qkv, target = kind_of(kind, dtype=dtype)
    ops = operators(qkv, target)
    full, split = (shared_matrix_errors(exact(qkv, target), ops, devices=devices) for devices in (None, [CPU] * 3))
    for a, b in zip(full, split, strict=True):
        assert (a.metrics["matrix_spectral_lower"] <= b.metrics["matrix_spectral_upper"]).all()
        assert (b.metrics["matrix_spectral_lower"] <= a.metrics["matrix_spectral_upper"]).all()
        for name in ("matrix_spectral", "matrix_frobenius", "matrix_infinity"):
            one, other = a.metrics[name], b.metrics[name]
            slack = {torch.float32: 5e-6, F64: 1e-12}[dtype] if name == "matrix_spectral" else 150 * 2.0**-53
            assert ((one - other).abs() <= slack * one + 1e-14 * (dtype == F64)).all(), name


@every_kind
@pytest.mark.parametrize("n", [50, 64, 150, 193])
def test_the_output_is_that_without_spans_up_to_rounding(short, kind, n):
    qkv, target = kind_of(kind, n)
    expected = exact_output(qkv, target)
    for devices in (["cpu"], ["cpu"] * 2):
        got = exact_output(qkv, target, devices)
        assert got.dtype == F64 and (got - expected).abs().max() <= 2e-14 * float(expected.abs().max())
    assert (expected - exact(qkv.to(dtype=F64), target).dense() @ qkv.v.double()).abs().max() <= 2e-14


def test_keys_may_be_others_than_queries_and_few_rows_are_one_span(short):
    qkv = make(n=150, n_k=90)
    zero = RankOne(qkv.q.new_zeros(2, 150), qkv.q.new_zeros(2, 90))
    one, two = (matrix_errors(exact(qkv), zero, devices=["cpu"] * count) for count in (1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    few = make(n=50)
    same = [
        matrix_errors(exact(few), approximate("vmean", few).operator, devices=devices)
        for devices in (None, ["cpu"] * 4)
    ]
    assert all(torch.equal(same[0][name], same[1][name]) for name in same[0])  # one span is all rows


@pytest.mark.parametrize(
    "name, target",
    [
        pytest.param(
            entry.name,
            target,
            marks=pytest.mark.slow if "softmax" in entry.targets[:place] or entry.name not in NAMES else (),
        )
        for entry in by_family()
        for place, target in enumerate(entry.targets)
        if entry.kind not in ("user", "kernel")
    ],
)
def test_every_method_is_measured_alike(short, name, target):
    qkv = make(n=100)
    op = approximated(name, target, qkv, {}).operator
    full, one, three = (
        matrix_errors(exact(qkv, target), op, devices=devices) for devices in (None, ["cpu"], ["cpu"] * 3)
    )
    assert all(torch.equal(one[metric], three[metric]) for metric in one)
    size = torch.linalg.matrix_norm(exact(qkv, target).dense())  # to which rounding is relative
    for metric in ("matrix_spectral", "matrix_frobenius"):
        assert ((full[metric] - one[metric]).abs() <= 1e-12 * full[metric] + 1e-14 * size).all()


def test_errors_that_float32_leaves_open_are_measured_again_in_float64_with_rows_split(short, monkeypatch):
    qkv = make(n=150, dtype=torch.float32)
    near = Dense(exact(qkv.to(dtype=F64)).dense() * (1 + 1e-6))
    requests, made = [], differences_file.Differences.__init__

    def seen(self, *args, **rest):
        requests.append((args[0].dtype, rest))
        made(self, *args, **rest)

    monkeypatch.setattr(differences_file.Differences, "__init__", seen)
    one, two = (matrix_errors(exact(qkv), near, devices=[CPU] * count) for count in (1, 2))
    assert {dtype for dtype, _ in requests} == {torch.float32, F64}
    assert {len(rest["devices"]) for _, rest in requests} == {1, 2}
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_with_the_librarys_own_span():
    """2500 rows are two spans."""
    qkv = make(n=2500, h=1, p=4, dtype=torch.float32)
    op = approximate("window", qkv, 64).operator
    full, one, two = (
        matrix_errors(exact(qkv), op, tol=0.1, devices=devices) for devices in (None, ["cpu"], ["cpu"] * 2)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(full["matrix_infinity"], one["matrix_infinity"])
    assert abs(float(full["matrix_spectral"] - one["matrix_spectral"])) <= 5e-6 * float(full["matrix_spectral"])


# ---- operators and passes on another device


class Kept(Operator):
    """What a user may write: tensors in a dict and a list, an operator in a tuple, a function, a device."""

    def __init__(self, matrix):
        self.held, self.more, self.parts = {"matrix": matrix}, [matrix.mT], (Dense(matrix),)
        self.shape, self.dtype, self.device, self.name = tuple(matrix.shape), matrix.dtype, matrix.device, "kept"

    def _apply(self, x):
        return self.held["matrix"] @ x

    def _apply_transpose(self, y):
        return self.more[0] @ y

    def _rows(self, start, stop):
        return self.parts[0]._rows(start, stop)


def everything():
    yield from cases()
    dense = torch.rand(2, 5, 7, generator=torch.Generator().manual_seed(3), dtype=F64)
    yield "a user's", Kept(dense), dense
    yield "stacked", Stacked([Dense(dense), Kept(dense)]), torch.cat([dense, dense])
    qkv = make(n=5, n_k=7, p_v=3)
    yield "recovered", Recovered(lambda v: dense @ v, qkv, "f"), dense
    causal = CausalFeatures(*torch.randn(2, 2, 70, 4, generator=torch.Generator().manual_seed(4), dtype=F64))
    yield "causal features", causal, causal.dense()


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Operator):
        yield from tensors_of(list(vars(value).values()))
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from tensors_of(inner)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))


def near(away, here):
    return isinstance(away, Pretended) and away.shape == here.shape and bool((away.held - here).abs().max() <= 1e-10)


@pytest.mark.parametrize("operator, dense", [case[1:] for case in everything()], ids=[case[0] for case in everything()])
def test_an_operator_moves_with_all_that_it_holds(operator, dense):
    before = [x.clone() for x in tensors_of(operator)]
    with pretending():
        there = operator.on(AWAY)
        assert there.device == AWAY and there.shape == operator.shape and there.dtype == operator.dtype
        assert all(isinstance(x, Pretended) for x in tensors_of(there))
        h, n_q, n_k = dense.shape
        x, y = torch.linspace(-1, 1, h * n_k * 2, dtype=F64), torch.linspace(-1, 1, h * n_q * 2, dtype=F64)
        x, y = x.reshape(h, n_k, 2), y.reshape(h, n_q, 2)
        assert near(there.dense(), dense) and near(there.rows(1, 4), dense[:, 1:4])
        assert near(there @ x.to(AWAY), dense @ x) and near(there.rmatmul(y.to(AWAY)), dense.mT @ y)
    assert operator.device == CPU and not any(isinstance(x, Pretended) for x in tensors_of(operator))
    for mine, old in zip(tensors_of(operator), before, strict=False):
        assert torch.equal(mine.nan_to_num(), old.nan_to_num())
    here = operator.on(CPU)
    assert torch.equal(here.dense(), operator.dense())


def test_what_is_there_already_is_shared_and_strides_are_those_of_a_copy():
    wide = torch.rand(2, 30, 8)
    for matrix in (wide, wide.mT, wide[1:], wide[1:].mT):  # dense in some order of the axes
        assert Dense(matrix).on(CPU).matrix.data_ptr() == matrix.data_ptr()
    for matrix in (wide, wide.mT, wide[..., :3], wide[..., :3].mT, wide[:, ::2], wide[:1].expand(3, -1, -1)):
        with pretending():
            there = Dense(matrix).on(AWAY).matrix
        assert Dense(matrix).on(CPU).matrix.stride() == there.held.stride()


def test_a_tensor_that_an_operator_holds_twice_is_moved_once():
    causal = CausalFeatures(*torch.randn(2, 1, 70, 4, generator=torch.Generator().manual_seed(4), dtype=F64))
    with pretending():
        there = causal.on(AWAY)
    assert there.triangles is there.parts[0] and there.carry is there.parts[3]


@pytest.mark.parametrize("name, target", [case.values[:2] for case in DEFAULTS])
def test_the_operator_of_every_method_moves(name, target):
    qkv = make(n=24)
    operator = approximated(name, target, qkv, {}).operator
    if operator is None:
        pytest.skip("it has no operator")
    with pretending():
        assert near(operator.heads(slice(1, 2)).on(AWAY).rows(3, 9), operator.rows(3, 9)[1:])


@pytest.fixture
def pretended_threads(short, monkeypatch):
    """Threads in which tensors may be made on the pretended device; the spans that each device made."""
    made, spans_of = threads_file._Thread._made, []

    def there(self, *span):
        spans_of.append((self.device, span))
        with pretending():
            return made(self, *span)

    monkeypatch.setattr(threads_file._Thread, "_made", there)
    return spans_of


@pytest.mark.parametrize(
    ("kind", "devices"),
    [
        ("causal", [CPU, AWAY]),
        *(pytest.param(kind, [CPU, AWAY], marks=pytest.mark.slow) for kind in ("softmax", "gaussian", "padded")),
        *(
            pytest.param(kind, [AWAY, AWAY], marks=pytest.mark.slow)
            for kind in ("softmax", "gaussian", "causal", "padded")
        ),
    ],
    ids=str,
)
def test_rows_are_made_where_they_should_be_and_results_come_home(pretended_threads, kind, devices):
    qkv, target = kind_of(kind)
    ops = operators(qkv, target)
    expected = shared_matrix_errors(exact(qkv, target), ops, devices=[CPU])
    output = exact_output(qkv, target, [CPU])
    del pretended_threads[:]
    with pretending():
        got = shared_matrix_errors(exact(qkv, target), ops, devices=devices)
        there = exact_output(qkv, target, devices)
    assert not isinstance(there, Pretended) and (there - output).abs().max() <= 1e-13
    for a, b in zip(every_number(expected), every_number(got), strict=True):
        assert not isinstance(b, Pretended) and torch.allclose(a.double(), b.double(), rtol=1e-10, atol=1e-12)
    n = exact(qkv, target).shape[1] if qkv.mask is None else int(qkv.mask.sum())
    dealt = {
        (start, stop): devices[i % len(devices)]
        for i, (start, stop) in enumerate((at, min(at + 64, n)) for at in range(0, n, 64))
    }
    assert dict((span, device) for device, span in pretended_threads) == dealt
    assert {device for device, _ in pretended_threads} == set(devices)


@pytest.mark.parametrize("devices", [[AWAY, CPU], [CPU], [AWAY, AWAY]], ids=str)
@pytest.mark.parametrize("kind", ["softmax", "gaussian", "causal"])
def test_home_may_be_the_other_device(pretended_threads, kind, devices):
    qkv, target = kind_of(kind)
    ops = [None, *operators(qkv, target)]
    v1, _ = start_block(150, 16, 0, F64, CPU)
    which, x = torch.tensor([2, 0, 1]), v1.expand(3, 150, 16).contiguous()
    here = Differences(exact(qkv, target), ops)
    first, normal, output = here.first(v1), here.normal(x, which), exact_output(qkv, target)
    with pretending():
        away = qkv.replace(**{axis: getattr(qkv, axis).to(AWAY) for axis in "qkv"})
        there = Differences(exact(away, target), [op and op.on(AWAY) for op in ops], devices=devices)
        actual = there.first(v1.to(AWAY))
        pairs = [(getattr(actual, name), getattr(first, name)) for name in vars(first)]
        pairs += [(there.normal(x.to(AWAY), which), normal), (exact_output(away, target, devices), output)]
        for one, other in pairs:
            assert near(one, other)


# ---- the command


@pytest.fixture
def long_file(tmp_path):
    """Q, K and V of one head and 2500 tokens: two spans."""
    q, k, v = torch.randn(3, 1, 2500, 4, generator=torch.Generator().manual_seed(0))
    save_file({"q": q.contiguous(), "k": k.contiguous(), "v": v.contiguous()}, tmp_path / "long.safetensors")
    return tmp_path / "long.safetensors"


def records_of(folder):
    lines = (folder / "records.jsonl").read_text().splitlines()
    selected = {}
    for record in map(json.loads, lines):
        record["metrics"].pop("seconds", None)
        selected[record["key"]] = {**record, "run": "", "seconds": None}
    return selected


def test_the_command_gives_the_same_numbers_with_and_without(run, long_file, tmp_path, monkeypatch):
    made, dealt = threads_file._Thread._made, []
    monkeypatch.setattr(threads_file._Thread, "_made", lambda self, *span: (dealt.append(span), made(self, *span))[1])
    arguments = ["error", "--qkv", long_file, "--device", "cpu", "--method", "window,vmean", "--d", 64, "--tol", 0.1]
    actual = {}
    for name, more in (("whole", []), ("one", ["--split-rows", 1]), ("two", ["--split-rows", 2])):
        code, _, err = run(*arguments, *more, "--out", tmp_path / name)
        assert code == 0, err
        assert set(dealt) == (set() if name == "whole" else {(0, 2048), (2048, 2500)})
        actual[name] = records_of(tmp_path / name)
        shown = json.loads((tmp_path / name / "manifest.json").read_text())["config"]["split_rows"]["value"]
        assert shown == {"whole": None, "one": 1, "two": 2}[name]
    assert actual["one"] == actual["two"] and actual["one"].keys() == actual["whole"].keys()
    for key, record in actual["whole"].items():
        assert record["metrics"].keys() == actual["two"][key]["metrics"].keys()
        for name, values in record["metrics"].items():
            assert actual["two"][key]["metrics"][name] == pytest.approx(values, rel=1e-5, abs=1e-14), name
    assert run(*arguments, "--split-rows", 2, "--out", tmp_path / "whole")[0] == 0  # its cells are done
    assert records_of(tmp_path / "whole") == actual["whole"]


def test_a_sweep_takes_it_and_its_folder_does_not_depend_on_it(run, long_file, tmp_path):
    text = f"qkv: {long_file}\ndevice: cpu\nmethod: vmean\nmatrix: false\n"
    for name, more in (("c.yaml", ""), ("d/c.yaml", "split-rows: 2\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + more)
        code, _, err = run("sweep", tmp_path / name)
        assert code == 0, err
    (folder,) = (tmp_path / "outputs").iterdir()
    assert folder.name.startswith("c-")


@pytest.mark.parametrize(
    "more, message",
    [
        (["--split-rows", 0], "split-rows=0: choose a number from 1 to 1024"),
        (["--split-rows", -1], "split-rows=-1: choose"),
        (["--split-rows", 1025], "split-rows=1025: choose"),
        (["--split-rows", "x"], "'x' is not a valid integer"),
        (["--split-rows", 2, "--jobs", 2], "--jobs and --split-rows exclude each other"),
        (
            ["--split-rows", 2, "--backend", "ray", "--ray-address", "local"],
            "--backend ray and --split-rows exclude each",
        ),
        (["--split-rows", 2, "--device", "cuda:1"], "--device and --split-rows exclude each other: cuda:1 is one GPU"),
    ],
)
def test_what_cannot_be_is_refused(run, qkv, tmp_path, more, message):
    device = [] if "--device" in more else ["--device", "cpu"]
    code, _, err = run("error", "--qkv", qkv, *device, *more, "--out", tmp_path / "r")
    assert code == 2 and message in err, err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "text, line, message",
    [
        ("split-rows: 2\njobs: 2", 2, "jobs and split-rows exclude each other"),
        ("device: cuda:0\nsplit-rows: 2", 1, "device and split-rows exclude each other: cuda:0 is one GPU"),
        ("split-rows: two", 1, "split-rows takes a whole number"),
        ("qkv: q.safetensors\nsplit-rows: 0", None, "split-rows=0: choose a number from 1 to 1024"),
        ("command: spectrum\nsplit-rows: 2", 2, "unknown key 'split-rows' of command spectrum"),
    ],
)
def test_a_file_is_refused_with_its_line(run, qkv, tmp_path, text, line, message):
    (tmp_path / "c.yaml").write_text(text.replace("q.safetensors", str(qkv)))
    where = "" if line is None else f"c.yaml:{line}: "
    for more in ([], ["--dry-run"]):
        code, _, err = run("sweep", "c.yaml", *more)
        assert code == 2 and where + message in err, err


def asking(device="cpu", **rest):
    return ErrorRequest(device=device, **rest)


def test_the_devices_are_the_first_visible_ones(monkeypatch):
    assert row_devices(asking()) is None and row_devices(asking(split_rows=3)) == (CPU,) * 3
    with pytest.raises(UsageError, match="split-rows=2 and jobs=2 exclude"):
        row_devices(asking(split_rows=2, jobs=2))
    with pytest.raises(UsageError, match="split-rows=2: .* backend ray"):
        row_devices(asking(split_rows=2, backend="ray"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for device in ("cuda", "auto"):
        assert row_devices(asking(device, split_rows=2)) == (torch.device("cuda:0"), torch.device("cuda:1"))
        with pytest.raises(UsageError, match=r"split-rows=4: 3 GPU\(s\) are visible; choose a number from 1 to 3"):
            row_devices(asking(device, split_rows=4))
    with pytest.raises(UsageError, match="split-rows=1: device cuda:2 is one GPU; give --device cuda"):
        row_devices(asking("cuda:2", split_rows=1))
    with pytest.raises(SourceError, match="cuda:7"):
        row_devices(asking("cuda:7", split_rows=1))
    with pytest.raises(UsageError, match=r"split-rows=4: 3 GPU\(s\)"):  # before a model is read
        measure_errors(asking("cuda", split_rows=4))


@pytest.mark.parametrize("name", ["exact_output", "shared_matrix_errors"])
def test_a_run_splits_both_passes_over_the_exact_matrix(qkv, tmp_path, monkeypatch, name):
    full, requests = getattr(run_file, name), []

    def seen(*args, **rest):
        requests.append(rest["devices"] if "devices" in rest else args[2])
        return full(*args, **rest)

    monkeypatch.setattr(run_file, name, seen)
    for number in (None, 2):
        spec, out = {"qkv": str(qkv), "device": "cpu"}, str(tmp_path / f"r{number}")
        measure_errors(ErrorRequest(**spec, methods=("vmean",), split_rows=number, out=out))
    assert requests == [None, (CPU, CPU)]


def test_split_rows_are_one_process_whatever_the_default(qkv, tmp_path, monkeypatch):
    """Several visible GPUs would be as many processes."""
    requests = []

    def site(request, notify, **rest):
        requests.append(request.jobs)
        return full(request, notify, **rest)

    full = running.site_of
    monkeypatch.setattr(running, "site_of", site)
    spec = {"qkv": str(qkv), "device": "cpu"}
    for number in (None, 2):
        out = str(tmp_path / f"r{number}")
        actual = measure_errors(ErrorRequest(**spec, methods=("vmean",), split_rows=number, out=out))
        assert len(actual.outcome.records) == 2  # with the lower bound
    assert requests == [None, 1]
