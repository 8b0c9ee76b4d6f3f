"""What is the device's own: TF32, memory, streams, the clock, what Python waits for, how much is launched."""

from functools import partial
from time import perf_counter

import pytest
import torch
from every_setting import DEFAULTS
from every_setting import run as approximation
from inputs import make
from torch.utils._python_dispatch import TorchDispatchMode

from attnprobe import approximate, exact, matrix_errors
from attnprobe.methods import METHODS
from attnprobe.metrics.cost import interleaved, peak_bytes
from attnprobe.operators import UnnormalisedAttention, blocks
from attnprobe.operators.blocks import BLOCK_MEMORY, head_blocks
from attnprobe.run.limits import with_smaller_blocks

F32 = torch.float32


@pytest.fixture
def tf32():
    """The program's choice of TF32, put back."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def references(place, qkv, other):
    """What is exact and what judges, as numbers on the CPU."""
    operator = exact(qkv)
    actual = [operator @ qkv.v, operator.rmatmul(qkv.q), operator.rows(3, 40), operator.log_normalizer()]
    actual += list(matrix_errors(operator, other).values())
    return [place.back(x) for x in actual]


@pytest.mark.share
def test_the_choice_of_tf32_does_not_reach_references_and_metrics(place, tf32):
    """To the last bit the same numbers with and without it."""
    qkv = place.sent(make(h=1, n=300, p=64, p_v=64, dtype=F32))
    torch.set_float32_matmul_precision("highest")
    other = approximate("nystromformer", qkv, 16).operator
    expected = references(place, qkv, other)
    torch.set_float32_matmul_precision("high")
    got = references(place, qkv, other)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert torch.get_float32_matmul_precision() == "high"


def test_tf32_would_have_changed_them(gpu, tf32):
    """The control of the test above."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("a GPU without TF32")
    a = torch.randn(512, 512, generator=torch.Generator().manual_seed(0)).cuda()
    rounded = a @ a
    torch.set_float32_matmul_precision("highest")
    assert not torch.equal(rounded, a @ a)


@pytest.mark.share
def test_blocks_cover_every_row_and_fit(place):
    operator = exact(place.sent(make(h=3, n=257, dtype=F32)))
    seen, most = torch.zeros(3, 257), BLOCK_MEMORY.bytes(operator.device)
    for heads, start, stop in head_blocks(operator, 64):
        seen[heads, start:stop] += 1
        assert (heads.stop - heads.start) * (stop - start) * 257 * 4 <= most
    assert (seen == 1).all()


def test_a_block_is_a_share_of_the_free_memory(gpu):
    free, total = torch.cuda.mem_get_info()
    before = BLOCK_MEMORY.bytes(gpu.device)
    assert before & (before - 1) == 0 and before << BLOCK_MEMORY.halvings <= total // blocks.OF_ALL
    ballast = torch.empty(int(0.9 * free), dtype=torch.uint8, device=gpu.device)
    less = BLOCK_MEMORY.bytes(gpu.device)
    del ballast
    assert less < before or before << BLOCK_MEMORY.halvings <= 0.1 * free / blocks.OF_FREE
    assert BLOCK_MEMORY.bytes(gpu.device) == before  # what torch holds of it without need is free


def test_out_of_memory_makes_smaller_blocks(gpu, monkeypatch):
    """Of a process that may have a quarter of a block more than it has, and is told that the whole device is free."""
    block = BLOCK_MEMORY.bytes(gpu.device)
    qkv = make(h=1, n=int((block // 4) ** 0.5), dtype=F32)  # the matrix fills a block
    there = gpu.sent(qkv)
    operator, total = exact(there), torch.cuda.get_device_properties(gpu.device).total_memory
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + block // 4
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        got = with_smaller_blocks(lambda: operator @ there.v)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert BLOCK_MEMORY.halvings > 0
    assert (got.cpu() - exact(qkv) @ qkv.v).abs().max() <= 1e-5


GREEDY = """
import torch

def greedy(q, k, v):
    return torch.empty(2**45, dtype=torch.uint8, device=q.device)[: q.numel()].view_as(q)
"""


@pytest.mark.share
def test_a_cell_that_needs_more_than_there_is_fails_and_the_run_goes_on(run, qkv, command_place, tmp_path, monkeypatch):
    pytest.importorskip("pydantic")
    from attnprobe.frame.records.read import read_records

    (tmp_path / "greedy.py").write_text(GREEDY)
    arguments = ("--method", "./greedy.py:greedy,nystromformer", "--d", "8", "--out", "r")
    code, _, err = run("error", "--qkv", qkv, "--device", command_place.device.type, *arguments)
    status = {one["method"]: (one["status"], one["reason"]) for one in read_records("r")}
    assert code == 4 and status["nystromformer"] == ("ok", None), err
    ((how, reason),) = [value for name, value in status.items() if "greedy" in name]
    assert how == "failed" and "memory" in reason.lower()


@pytest.mark.parametrize("name, target", [case.values[:2] for case in DEFAULTS])
def test_in_a_stream_of_its_own(name, target, gpu):
    qkv = gpu.sent(make(n=96))
    expected = approximation(name, target, qkv, {}).output
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = approximation(name, target, qkv, {}).output
    stream.synchronize()
    assert torch.equal(got, expected) or bool(expected.isnan().any())


def test_a_call_is_timed_by_events_of_the_device(gpu):
    """A call returns long before the device has ended it."""

    def call():
        return torch.cuda._sleep(40_000_000)

    call()
    torch.cuda.synchronize()
    begin = perf_counter()
    call()
    torch.cuda.synchronize()
    total = perf_counter() - begin
    actual = interleaved({"sleep": call}, rounds=3, device="cuda")["sleep"]
    assert all(0.5 * total <= seconds <= 1.5 * total for seconds in actual)


def test_the_peak_of_a_call_is_that_of_the_device(gpu):
    def make_call():
        return lambda: torch.empty(16 * 2**20, device="cuda").sum()

    actual = peak_bytes(make_call, device="cuda")
    assert actual is not None and 64 * 2**20 <= actual <= 70 * 2**20


class Launches(TorchDispatchMode):
    """How many operations are called."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def launched(place, call):
    """How many kernels a call launches on a GPU, by torch's profiler; on a stand-in, how many operations it calls."""
    call()
    if not place.real:
        with Launches() as launches:
            call()
        return launches.count
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    place.settle()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as actual:
        call()
        place.settle()
    return sum(event.device_type == DeviceType.CUDA for event in actual.events())


PRODUCTS = {
    "product": lambda qkv: exact(qkv) @ qkv.v,
    "transposed": lambda qkv: exact(qkv).rmatmul(qkv.q),
    "Gaussian": lambda qkv: exact(qkv, "gaussian") @ qkv.v,
    "normaliser": lambda qkv: exact(qkv).log_normalizer(),
    "largest score": lambda qkv: UnnormalisedAttention(qkv.q, qkv.k, qkv.scale),
}


@pytest.mark.share
@pytest.mark.parametrize("name", PRODUCTS)
def test_eight_heads_launch_what_one_launches(name, place):
    if place.name == "cpu":
        pytest.skip("a CPU goes head by head")
    counts = [launched(place, partial(PRODUCTS[name], place.sent(make(h=h, n=200, dtype=F32)))) for h in (1, 8)]
    assert counts[0] > 0 and counts[1] <= counts[0] + (4 if place.real else 0)  # libraries choose kernels by shapes


@pytest.mark.parametrize("name", PRODUCTS)
def test_python_waits_for_nothing(name, gpu):
    qkv = gpu.sent(make(n=200, dtype=F32))
    PRODUCTS[name](qkv)  # libraries are loaded
    torch.cuda.set_sync_debug_mode("error")
    try:
        PRODUCTS[name](qkv)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["nystromformer", "window", "linear", "linformer", "performer"])
def test_a_product_of_a_method_waits_for_nothing(name, gpu):
    qkv = gpu.sent(make(n=200, dtype=F32))
    operator = approximate(name, qkv, None if METHODS[name].budget is None else 16).operator

    def one():
        return (operator @ qkv.v, operator.rmatmul(qkv.q), operator.heads(slice(0, 1)).to(torch.float64))

    one()
    torch.cuda.set_sync_debug_mode("error")
    try:
        one()
    finally:
        torch.cuda.set_sync_debug_mode("default")
