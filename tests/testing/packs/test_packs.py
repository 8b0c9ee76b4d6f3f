"""Packs of cases for kernels: what is exact, what is wrong, and which bytes they have."""

import os
import subprocess
import sys
from math import inf

import pytest
import torch
from planted_kernels import CORRECT, PLANTED, naive
from processors import SETTINGS

from attnprobe import QKV
from attnprobe.errors import SourceError, UsageError
from attnprobe.reference import exact_output
from attnprobe.testing.packs import Case, Pack, expected, judged, made, read_outputs, read_pack, save_pack
from attnprobe.testing.packs.making import HARD, hard_cases, normal


@pytest.fixture(scope="module")
def smoke() -> Pack:
    return Pack("smoke", list(hard_cases(small=True)))


@pytest.fixture(scope="module")
def full() -> Pack:
    return Pack("full", list(hard_cases(small=False)))


def outputs_of(kernel, pack):
    return {f"{case.name}.o": kernel(case) for case in pack.cases}


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_kernel_passes_every_case(name, smoke):
    assert judged(smoke, outputs_of(CORRECT[name], smoke)).failed == {}


def test_planted_faults_are_seen_by_the_small_pack(smoke):
    cases = [Pack("smoke", [case]) for case in smoke.cases]  # one is enough to see a fault
    missed = [
        name
        for name, kernel in PLANTED.items()
        if not any(judged(case, outputs_of(kernel, case)).failed for case in cases)
    ]
    assert len(PLANTED) >= 50 and len(missed) <= 0.1 * len(PLANTED), missed


@pytest.mark.slow
def test_planted_faults_are_seen_by_the_full_pack_and_correct_kernels_pass(full):
    missed = [name for name, kernel in PLANTED.items() if not judged(full, outputs_of(kernel, full)).failed]
    assert len(missed) <= 0.02 * len(PLANTED), missed
    assert {name: judged(full, outputs_of(kernel, full)).failed for name, kernel in CORRECT.items()} == {
        name: {} for name in CORRECT
    }


def test_exact_outputs_are_those_of_the_operators(full):
    """Another implementation: every case without a cap, as Q, K and V of the library."""
    for case in full.cases:
        if case.softcap is None:
            qkv = QKV(
                *(x.double() for x in (case.q, case.k, case.v)),
                scale=case.scale,
                causal=case.causal,
                sliding_window=case.window,
                sinks=case.sink_tokens,
                sink_logits=None if case.sink_logits is None else case.sink_logits.double(),
                positions=case.positions if case.causal or case.window else None,
            )
            if case.keys_seen is not None:  # the padding is behind all other keys
                length = int(case.keys_seen.sum())
                rows = case.judged
                qkv = qkv.replace(
                    q=qkv.q[:, rows],
                    k=qkv.shared_k[:, :length],
                    v=qkv.shared_v[:, :length],
                    positions=case.positions[rows].clamp(max=length - 1) if case.causal else None,
                )
            output = exact_output(qkv)
            want = full.expected[case.name].output[:, case.judged]
            largest = want.abs().amax()
            torch.testing.assert_close(output, want, rtol=1e-9, atol=float(1e-9 * largest), msg=case.name)


def test_the_tolerance_is_the_stated_bound():
    """One query and two keys, by hand."""
    q, k, v = (torch.tensor([[x]], dtype=torch.float32) for x in ([1.0], [2.0], [3.0]))
    k, v = torch.cat([k, k], 1), torch.cat([v, -v], 1)
    case = Case("two", q, k, v, 0.5, torch.tensor([1]), causal=True)
    want = expected(case)
    eps, u = 2.0**-24, 2.0**-24
    scores = eps * (6 + 8) * 0.5 * 2
    sums = u + eps * (6 * 2**0.5 + 8) + 2 * scores
    assert float(want.output) == 0.0
    assert float(want.tolerance) == pytest.approx(sums * 3 + 2.0**-150 * 7, rel=1e-12)
    assert float(want.lse) == pytest.approx(1 + torch.log(torch.tensor(2.0, dtype=torch.float64)).item())


def test_sums_in_the_dtype_itself_are_wrong(smoke):
    half = [case for case in smoke.cases if case.dtype != torch.float32]
    failed = judged(Pack("half", half), {f"{case.name}.o": naive(case, case.dtype) for case in half}).failed
    assert len(failed) >= len(half) / 2


def test_what_is_judged(smoke):
    outputs = outputs_of(naive, smoke)
    first, second = (case.name for case in smoke.cases[:2])
    del outputs[f"{first}.o"]
    outputs[f"{second}.o"] = outputs[f"{second}.o"].clone()
    outputs[f"{second}.o"][1, 7, 2] = inf
    result = judged(smoke, outputs)
    assert result.failed == {first: "no output", second: "an entry is not finite: head 1, query 7"}
    rows = result.frame.set_index(["case", "q_head"])
    assert set(rows.loc[first, "verdict"]) == {"missing"}
    assert list(rows.loc[second, "verdict"]) == ["passes", "wrong"]
    assert rows.loc[(second, 1), ["entries_not_finite", "worst_row", "excess"]].tolist() == [1, 7, inf]
    assert rows.loc[(second, 0), "ratio_to_framework"] > 0


def test_a_log_sum_exp_is_judged_too(smoke):
    lse = {f"{case.name}.lse": expected(case).lse.float() for case in smoke.cases}
    outputs = outputs_of(naive, smoke)
    assert judged(smoke, outputs | lse).failed == {}
    name = smoke.cases[0].name
    wrong = {f"{name}.lse": lse[f"{name}.lse"] / 2.0**0.5}
    assert judged(smoke, outputs | lse | wrong).failed.keys() == {name}


def test_numbers_are_nearly_normal_and_exact():
    numbers = normal("a", 4, 2000)
    assert float(numbers.mean()) == pytest.approx(0, abs=4 / 8000**0.5)
    assert float(numbers.var()) == pytest.approx(1, abs=4 * (2 / 8000) ** 0.5)
    assert torch.equal(numbers * 2.0**17, (numbers * 2.0**17).round())
    assert not torch.equal(numbers, normal("b", 4, 2000))


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_pack_has_the_same_bytes_on_every_processor(setting):
    sums, instructions, threads = SETTINGS[setting]
    processor = {"MKL_CBWR": sums, "ATEN_CPU_CAPABILITY": instructions, "OMP_NUM_THREADS": f"{threads}"}
    code = "from attnprobe.testing.packs import made; print(made('full').id)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **processor})
    if "not installed" in run.stderr:
        pytest.skip("the packaged models are not installed")
    assert run.stdout.strip() == "d7b7b61f841d5c79", run.stderr


def test_sizes_and_hard_cases(smoke, full):
    sizes = {pack.name: sum(x.numel() * x.element_size() for x in pack.tensors.values()) for pack in (smoke, full)}
    assert sizes["smoke"] <= 2 * 2**20 and sizes["full"] <= 20 * 2**20
    assert {case.name for case in smoke.cases} <= {case.name for case in full.cases}
    assert {hard.p for hard in HARD.values()} >= {32, 64, 80, 96, 128, 256}
    assert all(torch.isfinite(full.expected[case.name].output.to(case.dtype)).all() for case in full.cases)


def test_a_file_gives_the_pack_back(smoke, tmp_path):
    path = save_pack(smoke, tmp_path / "smoke.safetensors")
    again = read_pack(path)
    assert again.id == smoke.id and [case.name for case in again.cases] == [case.name for case in smoke.cases]
    before = path.read_bytes()
    save_pack(again, path)
    assert path.read_bytes() == before


def write(tensors, path, metadata=None):
    from safetensors.torch import save_file

    save_file(tensors, path, metadata)
    return path


def test_impossible_files_are_refused_in_one_line(smoke, tmp_path):
    pack = save_pack(smoke, tmp_path / "pack.safetensors")
    name = smoke.cases[0].name
    good = naive(smoke.cases[0])
    other = write({f"{name}.o": good}, tmp_path / "other.safetensors", {"pack": "0" * 16})
    shape = write({f"{name}.o": good[:, 1:].contiguous()}, tmp_path / "shape.safetensors")
    dtype = write({f"{name}.o": good.to(torch.float16)}, tmp_path / "dtype.safetensors")
    strange = write({"x.o": good}, tmp_path / "strange.safetensors")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(other.read_bytes()[:-9])
    for path, reason in (
        (other, "has outputs of pack 0000"),
        (shape, "has shape"),
        (dtype, "is float16, not float32 or float64"),
        (strange, "is no output of pack smoke"),
        (cut, "cannot be read"),
        (tmp_path / "none.safetensors", "does not exist"),
    ):
        with pytest.raises(SourceError, match=reason) as raised:
            read_outputs(path, smoke)
        assert "\n" not in str(raised.value)
    with pytest.raises(SourceError, match="is no pack"):
        read_pack(other)
    changed = bytearray(pack.read_bytes())
    changed[-1] ^= 1
    pack.write_bytes(changed)
    with pytest.raises(SourceError, match="are not those of pack"):
        read_pack(pack)
    with pytest.raises(UsageError, match="unknown pack"):
        made("large")
