"""``attnprobe select``: the keys of a sparse method, in a file that `selection:FILE` judges."""

import json

import pytest


@pytest.fixture
def source(tiny_bert, text_file):
    return ("--model", tiny_bert, "--text", text_file, "--n", "96", "--layer", "0,1", "--device", "cpu")


def test_the_written_keys_have_the_errors_of_the_method(run, tmp_path, source):
    code, _, err = run("select", "quest:page=8", *source, "--d", "24", "--windows", "2", "--out", "keys.safetensors")
    assert code == 0 and "wrote the keys of layer 0, 1, 2 window(s), n=96, to keys.safetensors" in err
    assert [path.name for path in tmp_path.iterdir() if "keys" in path.name] == ["keys.safetensors"]
    methods = ("selection:keys.safetensors", "quest:page=8")
    _, out, _ = run("error", *methods, *source, "--d", "24", "--windows", "2", "--format", "json", "--no-matrix")
    file, quest = (
        [row["output_spectral.mean"] for row in json.loads(out)["rows"] if row["family"] == family]
        for family in ("user", "selection")
    )
    assert len(file) == 2 and file == quest


def test_some_queries_are_selected_for(run, source):
    code, _, err = run("select", "topk", *source, "--d", "4", "--queries", "last:10", "--out", "keys.safetensors")
    assert code == 0, err
    from safetensors import safe_open

    with safe_open("keys.safetensors", "pt") as file:
        assert file.get_tensor("layer1.window0.indices").shape == (4, 10, 4)
        assert file.metadata()["source"] == "topk d=4 seed=0"


def test_a_text_that_is_read_again_is_told(run, tmp_path, tiny_bert):
    given = ("--model", tiny_bert, "--text", "embedded", "--layer", 0, "--device", "cpu", "--queries", "last:4")
    for n, told in ((200, False), (260_000, True)):
        code, _, err = run("extract", *given, "--n", n, "--out", tmp_path / f"{n}.safetensors")
        assert code == 0 and ("attnprobe: the text 'embedded' is read again from its start after" in err) == told, err
    code, _, err = run("extract", *given, "--n", 2000, "--windows", 130, "--out", tmp_path / "many.safetensors")
    assert code == 2 and "n=2000 in 130 windows needs 227500 tokens, but the text 'embedded' has" in err


@pytest.mark.parametrize(
    "method, message",
    [
        ("vmean", "the method has no set of keys for each row; choose a sparse method, such as topk"),
        ("quest,topk", "select takes one method, and quest,topk names 2; name one"),
        ("qeust", "unknown method 'qeust'; did you mean 'quest'?"),
    ],
)
def test_what_selects_no_keys_is_refused(run, tmp_path, source, method, message):
    code, _, err = run("select", method, *source, "--d", "4", "--out", "keys.safetensors")
    assert code == 2 and message in err and "Traceback" not in err
    assert not (tmp_path / "keys.safetensors").exists()


def test_a_file_that_exists_is_replaced_only_with_force(run, tmp_path, source):
    (tmp_path / "keys.safetensors").write_text("mine")
    arguments = ("select", "topk", *source, "--d", "4", "--out", "keys.safetensors")
    code, _, err = run(*arguments)
    assert code == 2 and "keys.safetensors exists: choose another name, or --force" in err
    assert (tmp_path / "keys.safetensors").read_text() == "mine"
    assert run(*arguments, "--force")[0] == 0
