"""The pages under docs: every command and every block of code on them does what the page says."""

import hashlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
import torch
from generated import generated_pages, write_pages
from golden.small_runs import said
from method_pages import method_pages
from paths import ROOT
from sources_helpers import SHARED, VOCABULARY, bert_config, needs_minilm, needs_shared, save, seeded

import attnprobe
from attnprobe.cli import COMMANDS, cli
from attnprobe.frame.records import read_records
from attnprobe.inputs.packaged import PACKAGES
from attnprobe.inputs.text import EMBEDDED_SHA256
from attnprobe.measure import EXPERIMENTS, experiment
from attnprobe.methods import KERNELS
from attnprobe.methods import METHODS as BUILT_IN
from attnprobe.methods.registry import TAGS
from attnprobe.methods.user.claims import GIVEN, Claims
from attnprobe.metrics import INPUT_STATISTICS, KERNEL_METRICS, MATRIX_METRICS, OUTPUT_METRICS
from attnprobe.show.styles import FILES

DOCS = ROOT / "docs"
TUTORIAL = DOCS / "start/tutorial.md"
PAGE, KERNELS_PAGE, DATA_PAGE = (DOCS / f"guide/{name}.md" for name in ("add-a-method", "kernels", "data"))
METRICS_PAGE = DOCS / "reference/metrics.md"
KERNELS_RESULTS = DOCS / "results/kernels.md"
INSTALL = DOCS / "start/install.md"
EVERY = {**BUILT_IN, **KERNELS}
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not in a checkout")
HERE = {**os.environ, "PYTHONPATH": str(Path(attnprobe.__file__).parents[1])}


def blocks(page: Path) -> list[tuple[str, str]]:
    """``(language, text)`` of every fenced block; one without a language shows numbers of a measured model."""
    return re.findall(r"```(\w*)\n(.*?)\n```", page.read_text(), re.S)


def commands(text: str) -> list[tuple[list[str], int]]:
    """The words of each command of a block, and the exit code that its comment announces."""
    actual = []
    for line in text.splitlines():
        announced = re.search(r"# exit (\d+)$", line)
        actual.append((shlex.split(line, comments=True), int(announced[1]) if announced else 0))
    return actual


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_the_page_from_nothing_to_measured_checked_and_plotted(run, no_hub, tmp_path):
    said = ""
    for language, text in blocks(PAGE):
        first = re.match(r"# (\w+\.py)\n", text)
        if language == "python" and first:
            (tmp_path / first[1]).write_text(text + "\n")
        elif language == "python":
            done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=HERE, capture_output=True, text=True)
            assert done.returncode == 0 and done.stdout.count("tensor(") == 2, done.stderr
        elif language == "sh":
            for words, code in commands(text):
                if words[0] == "pytest":
                    done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, env=HERE, capture_output=True)
                    assert done.returncode == code, done.stdout
                    continue
                assert words[0] == "attnprobe"
                got, said, err = run(*words[1:])
                assert got == code, (words, err)
        elif language == "text":
            for line in text.splitlines():
                assert flat(line) in flat(said), line
        elif language == "toml":
            points = tomllib.loads(text)["project"]["entry-points"]
            assert points == {"attnprobe.methods": {"longest": "kept:longest"}}
        else:
            assert not language
    assert {path.suffix for path in (tmp_path / "runs/kept/figures").iterdir()} == {*FILES}


def test_the_method_and_its_wrong_brother_take_under_fifty_lines():
    sources = [text for language, text in blocks(PAGE) if language == "python" and text.startswith("# ")]
    sources = [text for text in sources if not text.startswith(("# near.py", "# own.py"))]
    shell = [line for language, text in blocks(PAGE) if language == "sh" for line in text.splitlines()]
    shell.remove("attnprobe check ./near.py:near")
    lines = [line for text in sources for line in text.splitlines() if line.strip() and not line.startswith("# ")]
    assert len(sources) == 3 and len(lines) + len(shell) < 50


@pytest.fixture
def decoder(tmp_path):
    """A tiny Llama that predicts the next word."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.3}
    config = LlamaConfig(vocab_size=len(VOCABULARY), **sizes)
    return str(save(seeded(lambda: LlamaForCausalLM(config)), tmp_path / "llama"))


def test_the_pages_policy_decodes_as_the_built_in_of_its_rule(run, decoder, text_file, tmp_path):
    [policy] = [text for _, text in blocks(PAGE) if text.startswith("# own.py")]
    [command] = [line for line in shown_commands(PAGE) if "--phase decode" in line]
    (tmp_path / "own.py").write_text(policy + "\n")
    small = ("--model", decoder, "--text", text_file, "--n", 40, "--d", 8, "--device", "cpu", "--out", "r")
    words = [word.replace("topk", "knorm") for word in shlex.split(command)[1:]]
    code, out, err = run(*words, *small, "--format", "json")
    assert code == 0, err
    own, built_in = (
        [row for row in record["rows"] if row["kind"] == "step"]
        for record in read_records(tmp_path / "r")
        if record["requested"]
    )
    assert len(own) == 8 and min(row["kl"] for row in built_in) > 1e-3
    for metric in ("kl", "loss"):
        assert [row[metric] for row in own] == pytest.approx([row[metric] for row in built_in], rel=1e-4), metric


def test_the_pages_causal_method_keeps_its_claims_and_is_measured_in_a_language_model(
    run, decoder, text_file, tmp_path
):
    [method] = [text for _, text in blocks(PAGE) if text.startswith("# near.py")]
    [command] = [line for line in shown_commands(PAGE) if "near.py" in line and "--model" in line]
    (tmp_path / "near.py").write_text(method + "\n")
    code, out, _ = run("check", "./near.py:near")
    assert code == 0 and "✓ causal " in out and "✓ causal-rows" in out and "✓ local" in out
    small = ("--model", decoder, "--text", text_file, "--n", 40, "--layer", 1, "--d", 8, "--device", "cpu")
    code, out, err = run(*shlex.split(command)[1:], *small, "--out", "r", "--format", "json")
    assert code == 0, err
    near = next(row for row in json.loads(out)["rows"] if row["method"] == "near.py:near")
    seen = sum(min(i + 1, 8) + (i >= 8) for i in range(40))
    assert near["visited_fraction.mean"] == pytest.approx(seen / 40**2)
    assert near["matrix_spectral.mean"] > 0


def test_a_function_without_a_causal_form_is_shown_the_page(run, decoder, text_file, tmp_path):
    (tmp_path / "own.py").write_text("def idea(v):\n    return v.clone()\n")
    small = ("--model", decoder, "--text", text_file, "--n", 40, "--device", "cpu")
    _, out, err = run("error", "--method", "./own.py:idea", *small, "--out", "r")
    said = flat(out + err)
    assert "no causal form; take qkv, hide what qkv.visible hides, and claim causal" in said
    assert f"{PAGE.relative_to(ROOT)}, A causal method" in said and "\n## A causal method\n" in PAGE.read_text()


@pytest.mark.parametrize(
    "claims, words",
    [
        ("", "does not claim the tag decodes"),
        ('@attnprobe.method(tags="decodes")', "return an Approximation with log_"),
    ],
)
def test_a_function_that_cannot_decode_is_shown_the_page(run, decoder, text_file, tmp_path, claims, words):
    (tmp_path / "own.py").write_text(f"import attnprobe\n\n{claims}\ndef policy(q):\n    return q.clone()\n")
    given = ("--model", decoder, "--text", text_file, "--n", 40, "--steps", 8, "--device", "cpu")
    _, out, err = run("inject", "--method", "./own.py:policy", "--phase", "decode", *given, "--out", "r")
    said = flat(out + err)
    assert words in said and str(PAGE.relative_to(ROOT)) in said


def test_the_page_names_everything_that_a_function_may_take_and_claim():
    text = PAGE.read_text()
    for name in (*set(GIVEN) - {"streams"}, *vars(Claims()), *set(TAGS) - {"psd_below", "causal_target"}):
        assert f"`{name}`" in text or f"({name}=True" in text, name
    for path in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (PAGE.parent / path).exists()


def follow(page: Path, run, folder: Path, but: str | None = None) -> None:
    """Write every file of a page into ``folder``, and run its other code and its commands, one after the other.

    Args:
        but: a command that is left out.
    """
    for language, text in blocks(page):
        first = re.match(r"# (\w+\.(py|yaml))\n", text)
        if first:
            (folder / first[1]).write_text(text + "\n")
        elif language == "python":
            done = subprocess.run([sys.executable, "-c", text], cwd=folder, env=HERE, capture_output=True, text=True)
            assert done.returncode == 0 and "tensor(" in done.stdout, done.stderr
        elif language == "sh":
            for words, code in commands(text):
                if words[0] != "attnprobe":
                    assert text in INSTALL.read_text()  # installs
                    continue
                if words[1] == but:
                    continue
                got, _, err = run(*words[1:])
                assert got == code or "torch refuses bfloat16" in err, (words, err)  # see tests/support/processors.py
        else:
            assert language in ("", "text")


@pytest.fixture(params=["small", pytest.param("whole", marks=pytest.mark.slow)])
def size(request, monkeypatch):
    """Whether a page's commands run as they stand, or on fewer tokens and heads where they name none."""
    if request.param == "small":
        monkeypatch.setenv("ATTNPROBE_N", "256")
        monkeypatch.setenv("ATTNPROBE_HEAD", "4-5")
    return request.param


@needs_minilm
def test_the_page_of_figures_draws_its_figures(run, no_hub, tmp_path, every_file):
    """Each block is a file of its own, with no names of the others; `run` has made an empty folder the present one."""
    for language, text in blocks(DOCS / "guide/plots.md"):
        assert language == "python"
        names = {}
        exec(compile(text, "plots.md", "exec"), names)
    axis = names["axis"]  # of the last block
    assert axis.get_legend().get_window_extent().y1 < axis.get_window_extent().y0, "the legend covers no point"
    assert all(float(tick).is_integer() for tick in axis.get_xticks()), "there is no head 2.5"
    assert (tmp_path / "panels.pdf").stat().st_size > 5000 and (tmp_path / "heads.png").stat().st_size > 5000


@needs_minilm
def test_the_tutorial_from_install_to_a_figure_to_a_gate(run, no_hub, tmp_path, size):
    # test_testing_kit checks the same new method
    follow(TUTORIAL, run, tmp_path, but="check" if size == "small" else None)
    assert {path.suffix for path in (tmp_path / "runs/first/figures").iterdir()} == {*FILES}
    assert (tmp_path / "gates.xml").exists()


@pytest.mark.slow  # test_kernels judges kernels, with gates
def test_the_page_of_kernels_judges_them(run, no_hub, tmp_path, size):
    follow(KERNELS_PAGE, run, tmp_path)


def test_the_page_of_kernels_names_them_and_their_metrics():
    text = KERNELS_PAGE.read_text()
    for name in (*KERNELS, *KERNEL_METRICS):
        assert f"`{name}`" in text, name


@pytest.mark.slow
def test_the_table_of_kernels_has_the_rows_of_its_page(run, no_hub, tmp_path, monkeypatch, capsys):
    """On few tokens of one layer."""
    follow(KERNELS_RESULTS, run, tmp_path)
    results = KERNELS_RESULTS.read_text()
    [whole, table] = re.findall(r"^    (\S.*)$", results.split("<!-- table -->")[0], re.M)
    small = {
        "--model minilm --text wikitext-2:tokenised ": "",
        "--layer all": "--layer 0",
        "--n 512": "--n 24",
        "torch:flex,": "torch:flex:compiled=false,",
        "torch:flex:dtype=bfloat16": "torch:flex:compiled=false,dtype=bfloat16",
    }
    for before, after in small.items():
        assert before in whole
        whole = whole.replace(before, after)
    code, _, err = run(*shlex.split(whole)[1:])
    assert code == 0, err
    monkeypatch.setattr(sys, "argv", shlex.split(table)[1:])
    runpy.run_path(sys.argv[0], run_name="__main__")
    printed = capsys.readouterr().out
    shown = results.split("<!-- table -->")[1].split("<!-- /table -->")[0].strip().splitlines()[2:]

    def plain(line):
        return line.split("|")[1:3]

    made = [re.sub(":compiled=False(,)?", lambda end: ":" if end[1] else "", line) for line in printed.splitlines()]
    refused = {record["method"] for record in read_records(tmp_path / "runs/kernels") if record["status"] == "skipped"}
    expected = [line for line in shown if not any(f"`{name}:dtype=bfloat16`" in line for name in refused)]
    assert sorted(map(plain, made)) == sorted(map(plain, expected)) and len(shown) == 18
    assert refused <= {"torch:sdpa-flash"}  # in bfloat16, on a processor where torch refuses it


def test_a_methods_page_has_its_options_claims_and_errors():
    pages = method_pages()
    page = pages["nystromformer.md"]
    assert pages.keys() == {"index.md", *(f"{name.replace(':', '-')}.md" for name in EVERY)}
    assert "| `inverse` | `schulz` | schulz \\| pinv | `schulz` is `n_iter` steps" in page
    assert "- exact at full budget (d=n, inverse=pinv)" in page and "## Errors\n\nUnsupported: d above n." in page
    for name, entry in EVERY.items():
        text = pages[f"{name.replace(':', '-')}.md"]
        for option in entry.options:
            row = next(line for line in text.splitlines() if line.startswith(f"| `{option}` |"))
            assert not row.endswith("|  |"), f"{name}: {option} has no meaning"
        assert "Options:" not in text and "Raises:" not in text


def test_generated_pages_are_written_once(tmp_path):
    write_pages(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")} == generated_pages().keys()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    write_pages(tmp_path)
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}


def test_the_schema_in_the_repository_is_that_of_the_rows_which_commands_write():
    text = (DOCS / "reference/rows.schema.json").read_text()
    assert text == generated_pages()["rows.schema.json"], "run python docs/_extensions/generated.py"
    schema = pytest.importorskip("jsonschema", reason="jsonschema is not installed").Draft202012Validator
    each = {one["title"]: schema({**one, "$defs": json.loads(text)["$defs"]}) for one in json.loads(text)["anyOf"]}
    for file in (ROOT / "tests/golden/runs").glob("*/rows.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        command = next(line["command"] for line in lines if line["kind"] == "cell")
        for line in lines:
            assert not list(each[f"{command}.{line['kind']}"].iter_errors(line)), (file, line["kind"])


def test_the_documentation_is_read_in_an_afternoon():
    """Of the pages that people wrote; the build makes the others."""
    made = {DOCS / "reference" / name for name in generated_pages()}
    words = {page: len(page.read_text().split()) for page in DOCS.rglob("*.md") if page not in made}
    longest = sorted(words, key=lambda page: -words[page])[:5]
    assert sum(words.values()) <= 32_000, f"shorten {', '.join(page.name for page in longest)}"


def test_the_metrics_page_has_every_metric_of_every_command():
    text = METRICS_PAGE.read_text()
    gated = [experiment(name).gated for name in EXPERIMENTS if experiment(name).gated is not None]
    expected = {metric.name for one in gated for metric in one.metrics} | set(INPUT_STATISTICS)
    expected |= {*OUTPUT_METRICS, *MATRIX_METRICS}
    for name in sorted(expected):
        assert f"`{name}`" in text, name


def test_the_data_page_has_the_hashes_that_the_code_holds_files_to():
    text = DATA_PAGE.read_text()
    assert f"`{EMBEDDED_SHA256}`" in text and f"`{PACKAGES['minilm'].published['model.safetensors']}`" in text


@needs_shared
def test_the_data_pages_recipe_makes_the_files_of_these_hashes():
    """The data set's rows are the file's lines with their line feeds, blank ones empty."""
    text, file = DATA_PAGE.read_text(), (SHARED / "wikitext-2-test.txt").read_bytes()
    rows = [line if line.strip() else "" for line in file.decode().split("\n")[:-1]]
    rows = [f"{row}\n" if row else "" for row in rows]
    joined = re.search(r"^data = (.*)$", text, re.M)[1]
    assert eval(joined, {"rows": rows}) == file and len(rows) == 4358
    for path in (SHARED / "wikitext-2-test.txt", SHARED / "bert-base-cased-vocab.txt"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() in text


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_and_pictures_of_every_page_exist(page):
    for path in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        there = (page.parent / path).resolve()
        assert there.exists() or str(there.relative_to(DOCS / "reference")) in generated_pages(), path


@pytest.mark.parametrize("page", sorted((DOCS / "results").glob("*.md")), ids=lambda page: page.name)
def test_results_say_what_they_were_measured_with(page):
    """Version, commit, date and command, before the first section."""
    head = re.split(r"^## ", page.read_text(), flags=re.M)[0]
    assert re.search(r"^\| version \| attnprobe \d+\.\d+\.\d+", head, re.M)
    assert re.search(r"^\| commit \| .*`[0-9a-f]{7,}`", head, re.M)
    assert re.search(r"^\| date \| \d{4}-\d\d-\d\d", head, re.M)
    assert re.search(r"^\| command \| \S", head, re.M) and re.search(r"attnprobe \w+|benchmarks/", page.read_text())


def shown_commands(page: Path) -> list[str]:
    """The lines of a page's blocks, fenced or indented, that begin with `attnprobe`; a line may go on in the next."""
    fenced = [text for language, text in blocks(page) if language in ("", "sh", "bash")]
    indented = re.findall(r"^    (.*)$", page.read_text(), re.M)
    lines = "\n".join([*fenced, *indented]).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("attnprobe ")]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_command_that_a_page_shows_has_these_options(page):
    for line in shown_commands(page):
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "--help":
            continue
        command = cli.get_command(click.Context(cli), words[0])
        assert command is not None, line
        with command.make_context(words[0], words[1:]) as context:  # raises where an option is not there
            assert context.params is not None, line


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_keeps_its_lists_and_shows_no_markup(name, run):
    code, out, _ = run(name, "--help")
    assert code == 0 and "\\b" not in out
    if name == "spectrum":
        assert "\n    gaussian         C_ij = exp" in out


PAGES_OF_PYTHON = [f"guide/{name}.md" for name in ("selections", "models", "inject", "report")] + [
    "reference/python.md"
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("measured") / "RUN"
    said(["error", "--method", "vmean", "--n", "32", "--head", "0", "--no-matrix", "--out", str(folder)])
    return folder


@needs_minilm
@pytest.mark.parametrize("page", PAGES_OF_PYTHON)
def test_the_python_of_a_page_runs_on_a_model_and_a_run(page, measured, no_hub, tmp_path, monkeypatch):
    """In the names that a reader has there: `model` and `batch`, and a run in outputs/RUN."""
    from transformers import BertModel

    monkeypatch.chdir(tmp_path)
    shutil.copytree(measured, "outputs/RUN")
    model = seeded(lambda: BertModel(bert_config(num_hidden_layers=6, max_position_embeddings=64))).eval()
    tokens = torch.arange(64).remainder(30).repeat(2, 1)
    names = {"model": model, "batch": {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}}
    codes = [text for language, text in blocks(DOCS / page) if language == "python"]
    codes = [text for text in codes if "read_budgets(" not in text]  # of a plan's file: test_records runs it
    assert codes
    for code in codes:
        exec(compile(code, page, "exec"), names)


@needs_minilm
@pytest.mark.parametrize("page", ["reference/config.md", "guide/ci.md"])
def test_the_file_of_a_sweep_on_a_page_is_one(page, run, tmp_path):
    """It is read, and its options and gates are checked, as before a run."""
    [text] = [text for language, text in blocks(DOCS / page) if language == "yaml" and "\ngates:" in text]
    (tmp_path / "file.yaml").write_text(text)
    code, out, err = run("sweep", "file.yaml", "--weights", "initialized", "--dry-run")
    assert code == 0 and "cells, 0 done" in out, err


def test_the_page_of_exit_codes_has_those_of_the_help(run):
    page = (DOCS / "reference/exit-codes.md").read_text()
    codes = re.findall(r"^\| (\d+) \|", page, re.M)
    said = run("--help")[1].split("Exit codes:")[1]
    assert set(re.findall(r"(?:^|; )\s*(\d+) ", " ".join(said.split()))) <= set(codes) == {*"01234", "70", "130", "143"}
