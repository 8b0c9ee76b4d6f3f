"""The hub: a real one on this machine (models and the data set, then only their caches), and none at all."""

import json
import shutil
import socket
import subprocess
import sys
import time

import pytest
from local_hub import COMMIT, serving
from sources_helpers import clean_environment, text_of

from attnprobe.errors import SourceError
from attnprobe.inputs import SourceSpec, hub, packaged_weights, resolve
from attnprobe.inputs.choose import BUILT_IN, describe_defaults

ASK = """
import json, os, sys, time
import attnprobe.inputs as sources
from attnprobe.errors import AttnprobeError
start, answers = time.perf_counter(), []
for spec in json.loads(sys.argv[1]):
    try:
        source = sources.resolve(sources.SourceSpec(device="cpu", **spec))
        answers.append({**source.facts, "first": float(source.qkv(20, [0], 0)[0].q[0, 0, 0])})
    except AttnprobeError as error:
        answers.append([type(error).__mro__[-4].__name__, error.exit_code, str(error)])
seconds = time.perf_counter() - start
print(json.dumps({"answers": answers, "seconds": seconds, "cached": sources.cached_models(),
                  "reachable": sources.hub_reachable(), "defaults": sources.describe_defaults()}))
"""


def ask(environment, *specs):
    """Resolve and capture in a fresh process, because the hub's libraries read their settings when imported."""
    command = [sys.executable, "-c", ASK, json.dumps(specs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def repositories(tiny_bert, tmp_path_factory):
    """A hub's folders: a model (with a pickle and code that must not be fetched) and Wikitext-2's two forms."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    root = tmp_path_factory.mktemp("hub")
    shutil.copytree(tiny_bert, root / "bert")
    (root / "bert" / "pytorch_model.bin").write_bytes(b"pickle")
    (root / "bert" / "modeling_own.py").write_text("raise SystemExit")
    configurations = ""
    for name, count in (("wikitext-2-raw-v1", 300), ("wikitext-2-v1", 200)):
        (root / "wikitext" / name).mkdir(parents=True)
        configurations += f"- config_name: {name}\n  data_files:\n"
        for split, words in (("test", count), ("validation", count - 50), ("train", count + 100)):
            lines = [line + "\n" for line in text_of(words).splitlines()]
            file = f"{name}/{split}-00000-of-00001.parquet"
            parquet.write_table(pa.table({"text": lines}), root / "wikitext" / file)
            configurations += f"  - split: {split}\n    path: {name}/{split}-*\n"
    (root / "wikitext" / "README.md").write_text(f"---\nconfigs:\n{configurations}---\n")
    return {"models/me/tiny": root / "bert", "datasets/Salesforce/wikitext": root / "wikitext"}


@pytest.mark.slow
def test_a_hub_and_then_its_cache(repositories, tiny_bert, tmp_path):
    expected = [
        {"model": "me/tiny"},
        {"model": "me/tiny", "text": "wikitext-2:tokenised", "split": "validation"},
        {"model": "me/no-such-model", "text": "embedded"},
    ]
    with serving(repositories) as (endpoint, arguments):
        environment = clean_environment(tmp_path, HF_ENDPOINT=endpoint)
        online = ask(environment, *expected)
    first, second, third = online["answers"]
    wanted = ("me/tiny", COMMIT, "wikitext-2", "test")
    assert (first["model"], first["revision"], first["text"], first["split"]) == wanted
    assert (second["text"], second["split"]) == ("wikitext-2:tokenised", "validation")
    assert first["text_sha256"] != second["text_sha256"] and first["fallback"] == second["fallback"] == []
    assert third[1:] == [3, "the hub has no model 'me/no-such-model' (or it is private)"]
    assert online["reachable"] is True and online["cached"] == ["me/tiny"]
    assert not any("pytorch_model" in line or "modeling_own" in line for line in arguments)

    local = resolve(SourceSpec(model=tiny_bert, text="embedded", device="cpu"))
    assert local.facts["model_sha256"] == first["model_sha256"]

    offline = ask(environment, *expected)  # the hub is gone; its address stays
    assert offline["answers"][:2] == online["answers"][:2]
    assert "cannot reach the hub for 'me/no-such-model': use --model DIR" in offline["answers"][2][2]
    assert offline["reachable"] is False and offline["seconds"] < 15


@pytest.mark.slow
def test_a_partly_cached_model_is_completed(repositories, tmp_path):
    with serving(repositories) as (endpoint, arguments):
        environment = clean_environment(tmp_path, HF_ENDPOINT=endpoint)
        assert (
            ask(environment, {"model": "me/tiny", "weights": "initialized", "text": "embedded"})["answers"][0]["p"] == 8
        )
        assert not any("model.safetensors" in line for line in arguments)
        assert ask(environment, {"model": "me/tiny", "text": "embedded"})["answers"][0]["revision"] == COMMIT
        assert any("model.safetensors" in line for line in arguments)


@pytest.fixture(scope="module")
def unreachable(tmp_path_factory):
    """What a fresh process finds where the hub's host refuses connections: every question in one process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        environment = clean_environment(
            tmp_path_factory.mktemp("home"), HF_ENDPOINT=f"http://127.0.0.1:{taken.getsockname()[1]}"
        )
        return ask(
            environment,
            {"model": "bert-base-cased", "text": "embedded"},
            {"model": "minilmm", "text": "embedded"},
            {"weights": "initialized", "text": "wikitext-2"},
            {"weights": "initialized", "text": "embedded", "tokenizer": "bert-base-cased"},
            {"strict": True},
            {"weights": "initialized", "text": "embedded", "strict": True},
            {"weights": "initialized"},
            {},
            {"weights": "initialized-qkv"},
        )


@pytest.fixture
def refused(no_hub, monkeypatch):
    """The hub's host refuses connections, in this process; its caches are empty."""
    for name in (*hub.OFFLINE, *hub.PROXIES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "_answers", {})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        yield


def facts_of(**spec):
    """What is read in this process, after a forward."""
    source = resolve(SourceSpec(device="cpu", **spec))
    assert source.qkv(20, [0], 0)[0].n == 20
    return source.facts


@pytest.mark.slow
def test_what_was_named_never_falls_back(unreachable):
    lines = [answer[2] for answer in unreachable["answers"][:6]]
    assert all(answer[1] == 3 for answer in unreachable["answers"][:6])
    assert lines[0] == (
        "cannot reach the hub for 'bert-base-cased': use --model DIR, --weights initialized without --model, "
        "or fetch it beforehand"
    )
    assert lines[1].endswith("; did you mean 'minilm'?")
    assert lines[2].startswith("cannot reach the hub for Wikitext-2 ('wikitext-2'): use --text FILE or --text embedded")
    assert "use --tokenizer with a vocab.txt or tokenizer.json file" in lines[3]


NO_MODEL = "bert-base-cased is out of reach, and --strict forbids a substitute"
NO_TOKENIZER = "the tokenizer of bert-base-cased is not at hand, and --strict"


def test_strict_refuses_every_substitute(refused):
    for spec, says in (({}, NO_MODEL), ({"weights": "initialized", "text": "embedded"}, NO_TOKENIZER)):
        with pytest.raises(SourceError, match=says):
            facts_of(**spec, strict=True)


def test_what_was_left_open_falls_back_and_says_so(refused):
    answers = facts_of(weights="initialized"), facts_of(), facts_of(weights="initialized-qkv")
    check_substitutes(*answers, describe_defaults())
    assert hub.hub_reachable() is False and hub.cached_models() == []


def check_substitutes(initialized, default, redrawn, defaults):
    assert initialized["fallback"] == [
        "using the prose that attnprobe carries (embedded): Wikitext-2 is out of reach",
        "using a vocabulary of the text's own words: the tokenizer of bert-base-cased is not at hand",
    ]
    assert (initialized["model"], initialized["weights"], initialized["text"]) == (BUILT_IN, "initialized", "embedded")
    assert len(default["fallback"]) == 2 + (default["model"] == BUILT_IN)
    if packaged_weights()["sha256_ok"]:
        assert (default["model"], default["weights"], default["tokenizer"]) == ("minilm", "pretrained", "minilm")
        assert (redrawn["model"], redrawn["weights"], redrawn["weights_seed"]) == ("minilm", "initialized-qkv", 0)
        assert default["fallback"][0] == (
            "using the packaged MiniLM weights (pretrained): bert-base-cased is out of reach"
        )
        assert defaults[0] == "model: minilm, weights pretrained"
        assert defaults[1] == ("  (using the packaged MiniLM weights (pretrained): bert-base-cased is out of reach)")
    else:
        assert (default["model"], default["weights"]) == (BUILT_IN, "initialized")
    assert "text: embedded (Wikitext-2 is out of reach)" in defaults


@pytest.mark.slow
def test_a_fresh_process_has_the_same_substitutes_and_waits_for_no_hub(unreachable):
    assert NO_MODEL in unreachable["answers"][4][2] and NO_TOKENIZER in unreachable["answers"][5][2]
    check_substitutes(*unreachable["answers"][6:9], unreachable["defaults"])
    assert unreachable["reachable"] is False and unreachable["cached"] == []
    assert unreachable["seconds"] < 30  # nine sources and five forwards; each retry of the libraries would add 20 s


def test_a_host_that_swallows_connections_costs_two_seconds(monkeypatch):
    """A listener whose queue is full leaves a connection hanging, like a firewall that drops packets."""
    for name in (*hub.OFFLINE, *hub.PROXIES):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{address[1]}")
        start = time.perf_counter()
        assert hub.hub_reachable(timeout=0.5) is False
        first = time.perf_counter() - start
        assert hub.hub_reachable(timeout=0.5) is False  # asked once per process
        assert first < 1.5 and time.perf_counter() - start - first < 0.1
        for filler in fillers:
            filler.close()


def test_the_users_settings_decide_without_a_probe(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for value, answer in (("1", False), ("true", False), ("0", True)):
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
        assert hub.hub_reachable() is answer
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "_answers", {})
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert hub.hub_reachable() is True
    with pytest.raises(hub.Unreachable, match="me/none"):
        hub.fetch("me/none", weights=False)
    assert hub.hub_reachable() is False


@pytest.mark.parametrize("endpoint", ["nonsense", "http://127.0.0.1", "http://["])
def test_an_endpoint_that_is_none_is_not_reachable(endpoint, monkeypatch):
    for name in (*hub.OFFLINE, *hub.PROXIES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "_answers", {})
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    asked = []
    monkeypatch.setattr(socket, "create_connection", lambda address, **_: asked.append(address) or refuse())
    assert hub.hub_reachable() is False
    assert asked == {"nonsense": [("", 443)], "http://127.0.0.1": [("127.0.0.1", 80)], "http://[": []}[endpoint]


def refuse():
    raise ConnectionRefusedError


def test_what_the_hubs_cache_holds_needs_no_hub(no_hub, tiny_bert, text_file, tmp_path):
    for name in ("me--tiny", "bert-base-cased"):
        snapshot = tmp_path / f"hub/models--{name}/snapshots" / COMMIT
        shutil.copytree(tiny_bert, snapshot)
        (tmp_path / f"hub/models--{name}/refs").mkdir()
        (tmp_path / f"hub/models--{name}/refs/main").write_text(COMMIT)
    (tmp_path / "datasets/Salesforce___wikitext/wikitext-2-raw-v1/0.0.0/1").mkdir(parents=True)
    (tmp_path / "datasets/Salesforce___wikitext/wikitext-2-raw-v1/0.0.0/1/test.arrow").touch()
    assert hub.cached_models() == ["bert-base-cased", "me/tiny"]
    assert describe_defaults()[:2] == ["model: bert-base-cased, in the hub's cache", "text: wikitext-2, in the cache"]
    source = resolve(SourceSpec(model="me/tiny", text=text_file, device="cpu"))
    assert source.describe()[0].startswith(f"model: me/tiny, revision {COMMIT}, weights pretrained, sha256 ")
    assert resolve(SourceSpec(weights="initialized", text=text_file)).facts["tokenizer"] == "bert-base-cased"
    (tmp_path / "hub/models--me--tiny/snapshots" / COMMIT / "model.safetensors").unlink()
    with pytest.raises(SourceError, match="cannot reach the hub for 'me/tiny'"):
        resolve(SourceSpec(model="me/tiny", text=text_file, device="cpu"))
    assert resolve(SourceSpec(model="me/tiny", weights="initialized", text=text_file)).facts["revision"] == COMMIT


def test_names_that_cannot_be_on_a_hub(no_hub):
    with pytest.raises(SourceError, match="'a b' is neither a directory nor a hub id"):
        resolve(SourceSpec(model="a b", device="cpu"))
