"""The emulation against code that really runs in half precision, and its four traps."""

import copy
import threading
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnprobe.errors import Unsupported, UsageError
from attnprobe.rounding import Site, emulated, format_named, rounded
from attnprobe.rounding.following import Width

N, H, P, D = 96, 8, 16, 16
HALF = [("bf16", torch.bfloat16), ("fp16", torch.float16)]


def seeded(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@contextmanager
def default_dtype(dtype):
    """nystrom-attention makes its identity matrix in torch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def plain(q, k, v):
    return torch.softmax(q @ k.mT * P**-0.5, -1) @ v


def by_backend(backend):
    def attention(q, k, v):
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v)

    return attention


def linformer():
    package = pytest.importorskip("linformer", reason="linformer is not installed")
    module = package.LinformerSelfAttention(dim=H * P, seq_len=N, k=D, heads=H)
    module.to_out = nn.Identity()
    return module, (seeded(1, N, H * P),)


def nystrom_attention():
    package = pytest.importorskip("nystrom_attention", reason="nystrom-attention is not installed")
    module = package.NystromAttention(dim=H * P, dim_head=P, heads=H, num_landmarks=D, residual=False)
    module.to_out = nn.Identity()
    with torch.no_grad():
        module.to_qkv.weight.mul_(3)
    return module, (seeded(1, N, H * P),)


def performer(scale=1.0):
    package = pytest.importorskip("performer_pytorch", reason="performer-pytorch is not installed")
    q, k, v = seeded(3, 1, H, N, P)
    sizes = torch.linspace(0.2, 1.8, H, dtype=torch.float64)[None, :, None, None]
    return package.FastAttention(P, nb_features=2 * D), (q * sizes * scale, k * sizes * scale, v)


def function(run):
    return lambda: (run, tuple(seeded(3, 1, H, N, P, scale=1.5)))


CODE = {
    "plain": function(plain),
    "math": function(by_backend(SDPBackend.MATH)),
    "linformer": linformer,
    "nystrom-attention": nystrom_attention,
    "performer-pytorch": performer,
}


def heads(x):
    """(h, n, p) of an output (1, n, h·p) or (1, h, n, p)."""
    return x[0] if x.dim() == 4 else x[0].unflatten(-1, (H, -1)).transpose(0, 1)


def outputs(make, name, dtype):
    """The output in float64, really in half precision, and emulated."""
    torch.manual_seed(0)
    code, inputs = make()

    def of(kind):
        return copy.deepcopy(code).to(kind).eval() if isinstance(code, nn.Module) else code

    with torch.no_grad():
        with default_dtype(torch.float64):
            exact = heads(of(torch.float64)(*inputs))
            ours = heads(emulated(of(torch.float64), inputs, name)[0])
        with default_dtype(dtype):
            real = heads(of(dtype)(*(x.to(dtype) for x in inputs))).double()
    return exact, real, ours


@pytest.mark.parametrize("name, dtype", HALF)
@pytest.mark.parametrize("code", CODE)
def test_errors_are_those_of_really_running_the_code(code, name, dtype):
    """Norms of the error within 1.25 of each other in 95 % of the heads, and the same heads overflow."""
    exact, real, ours = outputs(CODE[code], name, dtype)
    lost = [~torch.isfinite(x).flatten(1).all(1) for x in (real, ours)]
    assert torch.equal(*lost)
    kept = ~lost[0]
    of_real, of_ours = (torch.linalg.matrix_norm((x - exact)[kept], 2) for x in (real, ours))
    ratio = of_ours / of_real
    assert ((ratio > 1 / 1.25) & (ratio < 1.25)).double().mean() >= 0.95 if len(ratio) else lost[0].all()


def test_some_heads_of_a_performer_overflow_and_some_do_not():
    """In float16 1/D~ overflows where the features are small; the emulation loses the same heads."""
    losses = []
    for scale in (0.6, 1.0, 1.6):
        exact, real, ours = outputs(lambda scale=scale: performer(scale), "fp16", torch.float16)
        lost = [~torch.isfinite(x).flatten(1).all(1) for x in (real, ours)]
        assert torch.equal(*lost)
        losses.append(int(lost[0].sum()))
    assert any(0 < count < H for count in losses)


def test_a_flash_kernel_is_one_operation():
    """It rounds its weights inside, so the errors agree in size alone."""
    for name, dtype in HALF:
        try:
            exact, real, ours = outputs(function(by_backend(SDPBackend.FLASH_ATTENTION)), name, dtype)
        except RuntimeError as error:
            pytest.skip(f"torch refuses its kernel here: {error}")
        ratio = (ours - exact).flatten(1).norm(dim=1) / (real - exact).flatten(1).norm(dim=1)
        assert ((ratio > 1 / 1.25) & (ratio < 1.25)).double().mean() >= 0.95


def test_an_operation_adds_in_float32():
    """A float32 product is torch's own, with its rounding of every sum; in float64 it would be 4 to 8 times better."""
    a, b = seeded(2, 4, 256, 256)
    ours, _ = emulated(torch.matmul, [a, b], "fp32")
    assert torch.equal(ours, (a.float() @ b.float()).double())
    exact = rounded(a, format_named("fp32")) @ rounded(b, format_named("fp32"))
    assert (ours - exact).norm() > 3 * (rounded(exact, format_named("fp32")) - exact).norm()


@pytest.mark.parametrize("name, dtype", HALF)
@pytest.mark.parametrize("keepdim", [True, False])
def test_logsumexp_is_the_operations_of_its_kernel(name, dtype, keepdim):
    x = seeded(4, 33, 17, scale=3)
    x[1, 2, 3], x[2, 5] = float("-inf"), float("-inf")
    for dim in (1, (0, 2), [-1]):
        real = x.to(dtype).logsumexp(dim, keepdim).double()
        ours, _ = emulated(lambda x, dim=dim: x.logsumexp(dim, keepdim), [x], name)
        assert torch.equal(ours, real)
        single = rounded(rounded(x, format_named(name)).float().logsumexp(dim, keepdim).double(), format_named(name))
        assert not torch.equal(ours, single)


def test_linear_algebra_is_an_island_of_float32():
    """Only the last result of a chain is rounded, whatever is computed from it alone."""
    x = seeded(3, 12, 12)
    kernel = rounded(x @ x.mT + 0.1 * torch.eye(12, dtype=torch.float64), format_named("bf16"))
    single = torch.cholesky_inverse(torch.linalg.cholesky(kernel.float()))
    ours, _ = emulated(lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)) * 1.0 + 0.0 * a, [kernel], "bf16")
    assert torch.equal(ours, rounded(single, format_named("bf16")).double())

    def by_root(a):
        values, vectors = torch.linalg.eigh(a)
        root = vectors * values.rsqrt()[..., None, :]
        return root @ root.mT @ a

    values, vectors = torch.linalg.eigh(kernel.float())
    root = vectors * values.rsqrt()[..., None, :]
    inverse = rounded(root @ root.mT, format_named("bf16"))
    expected = rounded(inverse @ kernel.float(), format_named("bf16")).double()
    assert torch.equal(emulated(by_root, [kernel], "bf16")[0], expected)


def test_constants_are_those_of_float64():
    """A cutoff that follows the dtype is the same in every format: another one is another method."""
    basis = torch.linalg.qr(seeded(20, 20))[0]
    a = basis * torch.logspace(0, -5, 20, dtype=torch.float64) @ basis.mT

    def rank(a):
        values = torch.linalg.svdvals(a)
        return (values > torch.finfo(a.dtype).eps * 20 * values[:1]).sum()

    for name in ("bf16", "fp16", "fp32"):
        assert emulated(rank, [a], name)[0] == 20
        inverse = emulated(torch.linalg.pinv, [a], name)[0]
        assert torch.linalg.matrix_rank(inverse) == 20
    narrow = torch.linalg.pinv(a, rtol=20 * torch.finfo(torch.bfloat16).eps)
    assert torch.linalg.matrix_rank(narrow) < 15  # what the cutoff of the format would give


@pytest.mark.parametrize("name, dtype", HALF)
def test_operations_in_place_and_into_given_memory(name, dtype):
    x, y = seeded(2, 6, 8, 8)

    def run(x, y):
        scores = torch.empty_like(x)
        torch.matmul(x, y, out=scores)
        scores.mul_(0.3)
        torch.softmax(scores, -1, out=scores)
        out = x.new_zeros(x.shape[0], 8, 12)
        out[:, :, 2:10] = scores @ y
        out[:, ::2].add_(0.1, alpha=2).sub_(x[:, :4, :1])
        rows = torch.tensor([0, 2, 0], device=x.device)
        out.index_put_((rows,), out[rows] * 0.7, accumulate=True)
        out.scatter_add_(1, torch.zeros(6, 1, 12, dtype=torch.int64), x[:, :1].repeat(1, 1, 2)[..., :12])
        total = torch.sum(out, 1, dtype=x.dtype)
        return torch.cat([total, out.amax(1), torch.where(total > 0, total, total.new_tensor(0.1))], 1)

    real = run(x.to(dtype), y.to(dtype)).double()
    assert torch.equal(emulated(run, [x, y], name)[0], real)


def test_a_number_that_is_added_is_rounded_and_a_factor_is_not():
    x = seeded(64).abs()
    for name, dtype in HALF:
        for run in (lambda x: x + 1e-4, lambda x: 0.3 - x, lambda x: x * 0.3, lambda x: x / 0.7, lambda x: x**0.3):
            assert torch.equal(emulated(run, [x], name)[0], run(x.to(dtype)).double())


def test_what_the_inputs_do_not_change_is_not_rounded():
    """Draws and constants; a constant with an axis is rounded where an operation reads it."""
    weights = seeded(5, 5, seed=1)

    def run(x):
        constant = weights * 1.1
        return constant, x @ constant

    (constant, product), report = emulated(run, [seeded(5, 5)], "bf16")
    assert torch.equal(constant, weights * 1.1)
    x = rounded(seeded(5, 5), format_named("bf16")).float()
    expected = rounded(x @ rounded(constant, format_named("bf16")).float(), format_named("bf16"))
    assert torch.equal(product, expected.double()) and sum(report.emulated.values()) == 1


def test_products_alone_are_rounded_on_tensor_cores():
    a, b = seeded(2, 16, 16)
    single = [rounded(x, format_named("tf32")).float() for x in (a, b)]
    ours, _ = emulated(lambda a, b: (a @ b).exp(), [a, b], "tf32:tensor-cores")
    assert torch.equal(ours, (single[0] @ single[1]).exp().double())
    ours, _ = emulated(lambda a, b: a + b, [a, b], "fp8-e4m3:tensor-cores")
    assert torch.equal(ours, (a.float() + b.float()).double())


def test_autocast_keeps_softmax_and_sums_in_float32():
    x, v = seeded(2, 12, 12)
    bf16 = format_named("bf16")

    def near(x):
        return rounded(x, bf16)

    ours, _ = emulated(lambda x, v: torch.softmax(x @ v, -1), [x, v], "bf16:autocast")
    scores = near(near(x).float() @ near(v).float())
    weights = torch.softmax(scores, -1)
    assert torch.equal(ours, weights.double())
    ours, _ = emulated(lambda x, v: torch.softmax(x @ v, -1) @ v, [x, v], "bf16:autocast")
    assert torch.equal(ours, near(near(weights) @ near(v).float()).double())
    ours, _ = emulated(lambda x, v: x * v + x.sum(), [x, v], "bf16:autocast")
    assert torch.equal(ours, (near(near(x).float() * near(v).float()) + near(x).float().sum()).double())


def test_autocast_is_that_of_torch_for_products():
    x, v = seeded(2, 12, 12)
    with torch.autocast("cpu", torch.bfloat16):
        real = torch.softmax((x.float() @ v.float()).float(), -1) @ v.float()
    ours, _ = emulated(lambda x, v: torch.softmax(x @ v, -1) @ v, [x, v], "bf16:autocast")
    assert torch.equal(ours, real.double())


def test_sites_that_are_kept_stay_in_float32():
    x, v = seeded(2, 12, 12)

    def run(x, v):
        return torch.softmax(x @ v, -1)

    def kept(sites):
        return emulated(run, [x, v], "bf16", keep=sites)

    sites = frozenset(kept(frozenset())[1].emulated)
    assert {site.operation for site in sites} == {"mm", "_softmax"}
    assert {site.callee for site in sites} == {run.__qualname__.replace("<locals>.", "")}
    ours, _ = kept(sites)
    near = [rounded(one, format_named("bf16")).float() for one in (x, v)]
    assert torch.equal(ours, run(*near).double())


def test_sites_are_read_from_their_names():
    site = Site("softmax_factors", 43, "product", 167, "bmm")
    assert Site.read(str(site)) == site and Site.read("f:3 mm") == Site("", 0, "f", 3, "mm")


def test_numbers_that_leave_torch_are_refused():
    for leave in (lambda x: x.numpy(), lambda x: x.tolist(), lambda x: x[0].data_ptr()):
        with pytest.raises(Unsupported, match="leave torch"):
            emulated(lambda x, leave=leave: leave(x * 2), [seeded(3, 3)], "bf16")
    emulated(lambda x: x.argsort(-1).tolist(), [seeded(3, 3)], "bf16")  # a choice may


def test_what_the_code_computes_in_its_own_dtype_is_said():
    x = seeded(8, 8)
    ours, report = emulated(lambda x: torch.softmax(x.float(), -1).to(x.dtype) @ x, [x], "bf16")
    near = rounded(x, format_named("bf16"))
    inner = rounded(torch.softmax(near.float(), -1), format_named("bf16"))
    assert torch.equal(ours, rounded(inner @ near.float(), format_named("bf16")).double())
    assert [site.operation for site in report.as_written] == ["_softmax"]
    cast, _ = emulated(lambda x: torch.softmax(x.float(), -1).to(x.dtype), [x], "bf16")
    assert torch.equal(cast, inner.double())  # the cast stores the numbers in the format


def test_another_threads_operations_are_not_seen():
    """So a result made there is no function of the inputs, and the report says that nothing was rounded."""
    x, made = seeded(4, 4), []

    def run(x):
        thread = threading.Thread(target=lambda: made.append(x / 3))
        thread.start()
        thread.join()
        return made[0]

    _, report = emulated(run, [x], "bf16")
    assert not report.emulated


def test_compiled_code_runs_as_it_is_written():
    compiled = torch.compile(lambda x: x / 3 + 0.1)
    x = seeded(8)
    ours, report = emulated(compiled, [x], "bf16")
    assert torch.equal(ours, (x.bfloat16() / 3 + 0.1).double()) and sum(report.emulated.values()) == 2


def test_inputs_are_float64():
    with pytest.raises(UsageError, match="float32"):
        emulated(lambda x: x, [torch.ones(2)], "bf16")


def test_widths_are_ordered():
    """A tensor of several parts is as wide as its widest part."""
    assert Width.NARROW < Width.ISLAND < Width.WIDE
