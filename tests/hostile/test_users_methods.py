"""Methods of users that do what no method should: a row or a property that failed, or one line; never a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from conftest import SECONDS, Broken, deadline
from safetensors.torch import save_file

from attnprobe import QKV, BadResult, approximate, exact
from attnprobe.cli import cli, main
from attnprobe.frame.records.read import read_records

LONGEST = 2000  # characters of a reason in a record
HEAD = """
import os, sys, time, math, warnings
import numpy as np
import torch
import attnprobe
from attnprobe import Approximation, Operator, method, approximate, exact, BadResult, SourceError, Unsupported
from attnprobe.operators import Dense, LowRank

class Touchy:
    def __getattribute__(self, name):
        raise RuntimeError("two\\nlines")

class Untold(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class Ending(BaseException):
    pass

def good(v):
    return v.mean(1, keepdim=True).expand_as(v)

class Good:
    def __call__(self, v):
        return v

def matrix(q, k, scale):
    return torch.softmax(scale * q @ k.mT, -1)

class Mine(Operator):
    def __init__(self, q, k, scale):
        self.matrix = torch.softmax(scale * q @ k.mT, -1)
        self.shape, self.dtype, self.device = tuple(self.matrix.shape), q.dtype, q.device
    def heads(self, index):
        return Dense(self.matrix[index])
    def to(self, dtype):
        return Dense(self.matrix.to(dtype))
    def _apply(self, x):
        return self.matrix @ x
    def _apply_transpose(self, y):
        return self.matrix.mT @ y
    def _rows(self, start, stop):
        return self.matrix[:, start:stop]
"""
RETURNED = (  # in place of the output
    "None",
    "1",
    "'x'",
    "[v]",
    "(v, v)",
    "{'output': v}",
    "object()",
    "Touchy()",
    "Touchy",
    "good",
    "v.numpy()",
    "np.float64(1)",
    "(x for x in v)",
    "iter([v])",
    "v[0]",
    "v[:, :-1]",
    "v[..., :1]",
    "v[:0]",
    "v[None]",
    "v.sum()",
    "torch.tensor(1.0)",
    "v.long()",
    "v.bool()",
    "v.half()",
    "v.double()",
    "v.to(torch.complex64)",
    "v.to(torch.float8_e4m3fn)",
    "v.to('meta')",
    "v.to_sparse()",
    "torch.nested.nested_tensor(list(v))",
    "torch.quantize_per_tensor(v.float(), 0.1, 0, torch.qint8)",
    "v * float('nan')",
    "v / 0",
    "v * 1e38 * 1e38",
    "v.expand(2, *v.shape[1:])",
    "v.mT.contiguous().mT",
    "torch.nn.Parameter(v)",
    "v.requires_grad_()",
    "v.requires_grad_() * 2",
    "v",
    "Mine(q, k, scale)",
    "Dense(matrix(q, k, scale))",
    "Dense(matrix(q, k, scale)[:, :-1])",
    "Dense(matrix(q, k, scale).to(torch.complex64))",
    "Dense(matrix(q, k, scale).to('meta'))",
    "Dense(matrix(q, k, scale).long())",
    "Dense(matrix(q, k, scale).to_sparse())",
    "Dense(None)",
    "Dense(Touchy())",
    "LowRank(q, None, k.mT[:, :1])",
    "matrix(q, k, scale).to_sparse()",
    "matrix(q, k, scale) * float('nan')",
    "Approximation(None, None)",
    "Approximation(None, v)",
    "Approximation(None, v[0])",
    "Approximation(None, v.to(torch.complex64))",
    "Approximation(None, v.to('meta'))",
    "Approximation(None, [1])",
    "Approximation(1, v)",
    "Approximation(Touchy(), v)",
    "Approximation(Approximation(None, v), v)",
    "Approximation(Mine(q, k, scale), v)",
    "Approximation(Dense(matrix(q, k, scale)[:1]), v)",
    "Approximation(None, v, draws=1)",
    "Approximation(None, v, draws={1: 2})",
    "Approximation(None, v, draws={'a': None})",
    "Approximation(None, v, draws={'a': v[0, 0, 0]})",
    "Approximation(None, v, draws={'a\\nb\\x1b[31m': v})",
    "Approximation(None, v, draws={'a': v.to('meta')})",
    "Approximation(None, v, diagnostics={'visited': 1})",
    "Approximation(None, v, diagnostics={'visited': torch.ones(99)})",
    "Approximation(None, v, diagnostics={'visited': torch.ones(v.shape[0], 3)})",
    "Approximation(None, v, diagnostics={'visited': torch.ones(v.shape[0]) * float('nan')})",
    "Approximation(None, v, diagnostics={'bad_rows': torch.ones(99)})",
    "Approximation(None, v, diagnostics={'bad_rows': torch.ones(v.shape[0]) * 1e30})",
    "Approximation(None, v, diagnostics={'realised_d': v.to(torch.complex64)})",
    "Approximation(None, v, cores={'A': v[0]})",
    "Approximation(None, v, cores={'A': None})",
    "Approximation(None, v, inverses={'B': v})",
    "Approximation(None, v, no_operator=None)",
    "Approximation(None, v, no_operator=1)",
    "Approximation(None, v, no_operator='x\\n' * 10**6)",
    "Approximation(None, v, log_normalizer=1)",
    "Approximation(Mine(q, k, scale), v, log_normalizer=lambda: None)",
    "Approximation(Mine(q, k, scale), v, log_normalizer=lambda: v)",
    "Approximation(Mine(q, k, scale), v, log_normalizer=lambda: 1 / 0)",
    "Approximation(Mine(q, k, scale), v, keys=lambda: 1 / 0)",
    "Approximation(Mine(q, k, scale), v, keys=1)",
    "Approximation(None, v, sampling=1)",
    "Approximation.of(None, None)",
)
DONE = (  # before a good output is returned
    "raise ValueError('a\\nb\\x1b[31m')",
    "raise ValueError",
    "raise Untold",
    "raise Ending('end')",
    "raise SystemExit",
    "raise SystemExit(0)",
    "raise SystemExit(70)",
    "sys.exit('bye')",
    "exit(3)",
    "raise RecursionError('deep')",
    "raise MemoryError",
    "raise GeneratorExit",
    "raise StopIteration",
    "raise StopAsyncIteration",
    "raise AssertionError",
    "raise NotImplementedError",
    "raise Unsupported('not here')",
    "raise BadResult('a\\nb')",
    "raise SourceError('gone')",
    "raise BrokenPipeError",
    "raise FileNotFoundError(2, 'no', 'x')",
    "raise OSError(24, 'too many files')",
    "raise torch.OutOfMemoryError('x')",
    "raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'x')",
    "raise ValueError('x' * 10**6)",
    "raise ValueError('\\ud800')",
    "raise ExceptionGroup('two', [ValueError('a'), ValueError('b')])",
    "raise 1",
    "e = ValueError('noted'); e.add_note('x' * 10**6); raise e",
    "e = ValueError('noted'); e.__notes__ = [1]; raise e",
    "e = ValueError('noted'); e.__notes__ = 5; raise e",
    "def deep(): deep()\n    deep()",
    "1 / 0",
    "assert False, v",
    "nothing",
    "torch.zeros(2) @ torch.zeros(3)",
    "torch.empty(10**15)",
    "print('hello')",
    "print('\\x1b[31m{')",
    "print('x' * 10**5)",
    "sys.stdout.write('half a line')",
    "sys.stdout.buffer.write(b'\\xff\\x1b')",
    "sys.stdout = None",
    "sys.stdout.close()",
    "warnings.warn('a\\nb\\x1b[31m')",
    "v.zero_()",
    "q.add_(1)",
    "k[0, 0, 0] = 5",
    "v.resize_(1)",
    "torch.manual_seed(0)",
    "attnprobe.approximate('nosuch', None)",
    "attnprobe.QKV(1, 2, 3)",
)
OPERATORS = (  # a method of an operator in place of a good one
    "_apply = lambda self, x: None",
    "_apply = lambda self, x: 1",
    "_apply = lambda self, x: self.matrix @ x.double()",
    "_apply = lambda self, x: (self.matrix @ x)[:1]",
    "_apply = lambda self, x: (self.matrix @ x)[..., :1]",
    "_apply = lambda self, x: (self.matrix @ x).to('meta')",
    "_apply = lambda self, x: (self.matrix @ x).to(torch.complex64)",
    "_apply = lambda self, x: (self.matrix @ x) * float('nan')",
    "_apply = lambda self, x: 1 / 0",
    "_apply = lambda self, x: exit(0)",
    "_apply = lambda self: 1",
    "_apply = 5",
    "_apply_transpose = lambda self, y: None",
    "_apply_transpose = lambda self, y: 1 / 0",
    "_apply_transpose = lambda self, y: y",
    "_rows = lambda self, a, b: None",
    "_rows = lambda self, a, b: 1 / 0",
    "_rows = lambda self, a, b: exit(1)",
    "_rows = lambda self, a, b: self.matrix",
    "_rows = lambda self, a, b: self.matrix[:1, a:b]",
    "_rows = lambda self, a, b: self.matrix[:, a:b].to_sparse()",
    "_rows = lambda self, a, b: self.matrix[:, a:b].long()",
    "heads = lambda self, i: None",
    "heads = lambda self, i: self",
    "heads = lambda self, i: 1 / 0",
    "heads = lambda self, i: self.matrix[i]",
    "to = lambda self, dtype: None",
    "to = lambda self, dtype: self",
    "to = lambda self, dtype: 1 / 0",
    "on = lambda self, device: None",
    "matmul_shared = lambda self, x: None",
    "rmatmul = lambda self, y: None",
    "row_sums = lambda self: None",
    "dense = lambda self: 1 / 0",
    "__matmul__ = lambda self, x: 'x'",
    "__repr__ = lambda self: 1 / 0",
    "__getattr__ = lambda self, name: 1 / 0",
    "__len__ = lambda self: -1",
    "__bool__ = lambda self: 1 / 0",
    "__eq__ = lambda self, other: 1 / 0",
    "shape = property(lambda self: None, lambda self, x: None)",
    "shape = property(lambda self: (1, 2), lambda self, x: None)",
    "shape = property(lambda self: 1 / 0, lambda self, x: None)",
    "shape = property(lambda self: ('a', 'b', 'c'), lambda self, x: None)",
    "dtype = property(lambda self: None, lambda self, x: None)",
    "dtype = property(lambda self: torch.int64, lambda self, x: None)",
    "device = property(lambda self: 'nowhere', lambda self, x: None)",
    "device = property(lambda self: torch.device('meta'), lambda self, x: None)",
)
SIGNATURES = (  # of f, with what it is given
    "f = 5",
    "f = None",
    "f = 'x'",
    "f = torch",
    "f = Touchy()",
    "f = Touchy",
    "f = len",
    "f = print",
    "f = torch.nn.Linear(2, 2)",
    "f = torch.softmax",
    "f = lambda *a, **k: k",
    "f = lambda: 1",
    "f = lambda q, /, k, *, v: v",
    "f = lambda x: x",
    "f = lambda v, x=None: v",
    "f = lambda v, x=[]: v",
    "f = lambda v, x=object(): v",
    "f = lambda v, x=float('nan'): v",
    "f = lambda v, x=10**5000: v",
    "f = lambda v, x='a\\nb\\x1b': v",
    "f = lambda v, method=1, seed=2, n=3, target=4: v",
    "f = lambda v, self=1, qkv=None, d=2, streams=3: v",
    "f = lambda mask, generator, v: v",
    "async def f(v): return v",
    "def f(v): yield v",
    "def f(v, x: 'nosuch' = 1): return v",
    "def f(v, x: list[int] = 1): return v",
    "def f(v, d: str = 5): return v",
    "class f:\n    def __init__(self, v): pass",
    "class f:\n    __signature__ = 5\n    def __call__(self, v): return v\nf = f()",
    "class f(Good):\n    @property\n    def __signature__(self): raise RuntimeError('x')\nf = f()",
    "class f(Good):\n    @property\n    def linear_in_v(self): raise RuntimeError('x')\nf = f()",
    "class f(Good):\n    @property\n    def __name__(self): raise RuntimeError('x')\nf = f()",
    "class f:\n    __name__ = 5\n    def __call__(self, v): return v\nf = f()",
    "f = lambda v: v\nf.attnprobe_claims = 5",
    "f = lambda v: v\nf.attnprobe_claims = Touchy()",
    "f = lambda v: v\nf.kind = 5",
    "f = lambda v: v\nf.kind = 'kernel'",
    "f = lambda v: v\nf.linear_in_v = 'no'",
    "f = lambda v: v\nf.__doc__ = 5",
    "f = lambda v: v\nf.__doc__ = 'a\\x1b[31m'",
    "f = lambda v: v\nf.__wrapped__ = f",
    "f = method(lambda v, d: v, limit=5)",
    "f = method(lambda v, d: v, limit=lambda n_q, n_k: 1 / 0)",
    "f = method(lambda v, d: v, limit=lambda n_q, n_k: exit(0))",
    "f = method(lambda v, d: v, limit=lambda n_q, n_k: None)",
    "f = method(lambda v, d: v, limit=lambda n_q, n_k: 'x')",
    "f = method(lambda v, d: v, limit=lambda n_q, n_k: float('nan'))",
    "f = method(lambda v, d: v, limit=lambda n_q, n_k: torch.ones(2))",
    "f = method(lambda v, d: v, limit=lambda n: n)",
    "f = method(lambda v, d: v, limit=lambda n_q, n_k: Touchy())",
    "f = method(lambda v, d: v, least='x')",
    "f = method(lambda v, d: v, least=-5)",
    "f = method(lambda v, d: v, least=10**30)",
    "f = method(lambda v, d: v, budget=None)",
    "f = method(lambda v, d: v, budget='a\\x1b[31m')",
    "f = method(lambda v: v, tags=('nosuch',))",
    "f = method(lambda v: v, tags=5)",
    "f = method(lambda v: v, tags=(5,))",
    "f = method(lambda v: v, targets=())",
    "f = method(lambda v: v, targets=('x',))",
    "f = method(lambda v: v, targets=5)",
    "f = method(lambda v: v, year='x')",
    "f = method(lambda v: v, paper=None)",
    "f = method(lambda v: v, cost=None)",
    "f = method(lambda v: v, kind=5)",
    "f = method(lambda v: v, kind='nosuch')",
    "f = method(lambda v: v, linear_in_v='yes')",
    "f = method(lambda v: v, linear_in_v=True)",
    "f = method(lambda v: v ** 2, linear_in_v=True)",
    "f = method(matrix, linear_in_v=True)",
    "f = method(lambda v, d: v, exact_at=lambda n: 1 / 0, tags=('exact_at_full_budget',))",
    "f = method(lambda v, d: v, exact_at=lambda n: None, tags=('exact_at_full_budget',))",
    "f = method(lambda v, d: v, exact_at=lambda n: ('x', {}), tags=('exact_at_full_budget',))",
    "f = method(lambda v, d: v, exact_at=lambda n: (n, {'x': 1}), tags=('exact_at_full_budget',))",
    "f = method(lambda v, d: v, exact_at=5, tags=('exact_at_full_budget',))",
    "f = method(lambda v: v, nosuch=1)",
    "f = method(len)",
    "f = method(5)",
)
AT_IMPORT = tuple(line for line in DONE if not any(word in line for word in ("v.", "q.", "k[", ", v")))
FILES = (  # whole files
    b"",
    b"\x00",
    b"\xff\xfe",
    b"def f(v): return v\n\x00",
    b"# coding: nosuch\ndef f(v): return v",
    b"# coding: utf-16\ndef f(v): return v",
    b"def f(v:\n",
    b"def f(v): return v\n" + b"(" * 500,
    b"x = " + b"-" * 5000 + b"1",
    b"import nosuch\ndef f(v): return v",
    b"from . import x\ndef f(v): return v",
    b"import f\ndef f(v): return v",
    b"__name__ = 5\ndef f(v): return v",
    b"def __getattr__(name): raise RuntimeError(name)",
    b"def __getattr__(name): return 5",
    b"del __builtins__\ndef f(v): return v",
    b"f = print",
    b"\xef\xbb\xbfdef f(v): return v",
    b"def f(v):\r\n    return v\r\n",
    b"def f(v):\n\treturn v\n        ",
    "def f(v): return v  # \u202e".encode(),
)


def bodies() -> Iterator[bytes]:
    """Files with a function f each."""
    for value in RETURNED:
        yield f"{HEAD}\ndef f(q, k, v, scale):\n    return {value}\n".encode()
    for line in DONE:
        yield f"{HEAD}\ndef f(q, k, v, scale):\n    {line}\n    return good(v)\n".encode()
    for line in OPERATORS:
        broken = f"class Broken(Mine):\n    {line}\n"
        yield f"{HEAD}\n{broken}\ndef f(q, k, v, scale):\n    return Broken(q, k, scale)\n".encode()
        returned = "Approximation(Broken(q, k, scale), matrix(q, k, scale) @ v)"
        yield f"{HEAD}\n{broken}\ndef f(q, k, v, scale):\n    return {returned}\n".encode()
    for text in SIGNATURES:
        yield f"{HEAD}\n{text}\n".encode()
    for line in AT_IMPORT:
        yield f"{HEAD}\nif True:\n    {line}\ndef f(v): return good(v)\n".encode()
    yield from FILES


@pytest.fixture
def attempt(capsys, monkeypatch, tmp_path):
    """Measure and check the function f of a file with this text."""
    monkeypatch.chdir(tmp_path)
    made = torch.Generator().manual_seed(0)
    save_file({axis: torch.randn(2, 32, 4, generator=made) for axis in "qkv"}, "qkv.safetensors")
    source = ("--qkv", "qkv.safetensors", "--n", "32", "--d", "4", "--head", "0,1")
    numbers = iter(range(10**6))

    def call(text: bytes) -> None:
        number = next(numbers)
        Path(f"m{number}.py").write_bytes(text)
        with deadline(SECONDS):
            _holds(capsys, "error", f"./m{number}.py:f", *source, "--out", f"run{number}", "--format", "json")
            _holds(capsys, "check", f"./m{number}.py:f", "--only", "shapes,determinism", "--format", "json")
        for path in Path(f"run{number}").glob("rows.jsonl"):
            for line in path.read_text().splitlines():
                if len(json.loads(line).get("reason") or "") > LONGEST:
                    raise Broken("a reason of a record is long")

    return call


def _holds(capsys: pytest.CaptureFixture[str], *args: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    code = stop.value.code or 0
    out, err = capsys.readouterr()
    if code not in (0, 1, 2, 3, 4):
        raise Broken(f"{args[0]}: code {code}: {err.strip()[-300:]}")
    if "Traceback" in err:
        raise Broken(f"{args[0]}: a traceback")
    if code and not [line for line in err.splitlines() if line.startswith("attnprobe: ")] and not out:
        raise Broken(f"{args[0]}: code {code} without a line that says why: {err[-300:]!r}")
    if any(ord(letter) < 32 and letter not in "\n\t" for letter in out + err):
        raise Broken(f"{args[0]}: a control character reaches the terminal")
    if out or code in (0, 1, 4):
        try:
            json.loads(out)
        except ValueError:
            raise Broken(f"{args[0]}: code {code}, and stdout is no JSON: {out[:80]!r}") from None


def test_a_method_prints_to_stderr_and_moves_no_cursor(run, qkv):
    Path("loud.py").write_text("print('loaded')\ndef f(v):\n    print('\\x1b[31mcalled')\n    return v\n")
    code, out, err = run("error", "./loud.py:f", "--qkv", qkv, "--d", "4", "--out", "r", "--format", "json")
    assert code == 0 and json.loads(out)
    assert "loaded\n" in err and "\\x1b[31mcalled\n" in err and "\x1b" not in err


def test_an_answer_reaches_stdout_without_the_program_s_main(qkv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loud.py").write_text("def f(v):\n    print('called')\n    return v\n")
    done = CliRunner().invoke(cli, ["error", "./loud.py:f", "--qkv", str(qkv), "--d", "4", "--format", "json"])
    assert json.loads(done.stdout) and "called\n" in done.stderr


@pytest.mark.slow
def test_a_process_of_a_method_prints_to_stderr_too(qkv, tmp_path):
    (tmp_path / "loud.py").write_text("def f(v):\n    print('\\x1b[31mcalled')\n    return v\n")
    command = ["error", "./loud.py:f", "--qkv", str(qkv), "--d", "4", "--jobs", "1", "--cell-timeout", "60"]
    done = subprocess.run(
        [sys.executable, "-m", "attnprobe", *command, "--out", "r", "--format", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) and "\\x1b[31mcalled\n" in done.stderr and "\x1b" not in done.stderr


WRONG_RESULTS = {
    "broadcast rows": ("Broken(q, k, scale)", "_rows = lambda self, a, b: self.matrix[:1]", "_rows of its operator"),
    "heads of others": ("Broken(q, k, scale)", "heads = lambda self, i: self", "heads of its operator gives"),
    "diagnostics": ("Approximation(None, v, diagnostics={'visited': torch.ones(99)})", "x = 1", "diagnostic 'visited'"),
    "keys": (
        "Approximation(None, v, keys=lambda: torch.full((*v.shape[:2], 3), 99))",
        "x = 1",
        r"its keys 99 … 99 are not all among the 8 keys",
    ),
    "keys that raise": (
        "Approximation(None, v, keys=lambda: 1 / 0)",
        "x = 1",
        r"its keys\(\) raises ZeroDivisionError",
    ),
    "normaliser": ("Approximation(None, v, log_normalizer=lambda: v)", "x = 1", "log_normalizer has shape"),
    "complex": ("v.to(torch.complex64)", "x = 1", "returned complex64"),
    "sparse": ("v.to_sparse()", "x = 1", "layout sparse_coo"),
}


@pytest.mark.parametrize("returned, line, words", WRONG_RESULTS.values(), ids=WRONG_RESULTS)
def test_a_wrong_result_is_refused_with_the_method_s_name(returned, line, words, tmp_path):
    body = f"class Broken(Mine):\n    {line}\n\ndef f(q, k, v, scale):\n    return {returned}\n"
    (tmp_path / "m.py").write_text(HEAD + body)
    inputs = QKV(*torch.randn(3, 2, 8, 4, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(BadResult, match=words) as stop:
        result = approximate(f"{tmp_path}/m.py:f", inputs)
        for ask in (result.keys, result.log_normalizer):
            if ask is not None:
                ask()
        assert result.operator is not None
        result.operator.dense()
        result.operator.heads(slice(0, 1))
    assert "m.py:f" in str(stop.value)


def test_a_good_operator_of_a_user_is_measured_as_its_matrix(tmp_path):
    (tmp_path / "m.py").write_text(HEAD + "def f(q, k, scale):\n    return Mine(q, k, scale)\n")
    inputs = QKV(*torch.randn(3, 2, 8, 4, generator=torch.Generator().manual_seed(0)))
    actual, expected = approximate(f"{tmp_path}/m.py:f", inputs).matrix(), exact(inputs).dense()
    torch.testing.assert_close(actual.dense(), expected)
    torch.testing.assert_close(actual.rmatmul(inputs.v), expected.mT @ inputs.v)
    torch.testing.assert_close(actual.heads(slice(1, 2)).to(torch.float64).dense(), expected[1:].double())


def test_an_exception_s_text_of_a_megabyte_is_cut(run, qkv):
    Path("long.py").write_text("def f(v):\n    raise ValueError('x' * 10**6)\n")
    assert run("error", "./long.py:f", "--qkv", qkv, "--d", "4", "--out", "r")[0] == 4
    reason = next(record["reason"] for record in read_records("r") if record["status"] == "failed")
    assert reason.startswith("ValueError: xxx") and reason.endswith("…") and len(reason) <= 1000


@pytest.mark.parametrize("share", [slice(None, None, 24), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_methods(share, attempt, held):
    held(attempt, [(text,) for text in list(bodies())[share]])


def test_a_row_may_have_empty_slots_for_keys(tmp_path):
    body = "def f(v):\n    return Approximation(None, v, keys=lambda: torch.full((*v.shape[:2], 3), -1))\n"
    (tmp_path / "m.py").write_text(HEAD + body)
    inputs = QKV(*torch.randn(3, 2, 8, 4, generator=torch.Generator().manual_seed(0)))
    assert bool((approximate(f"{tmp_path}/m.py:f", inputs).keys() == -1).all())
