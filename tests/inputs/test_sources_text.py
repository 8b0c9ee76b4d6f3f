"""Texts, tokenizers, and which token stands where."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from sources_helpers import SHARED, SPECIALS, VOCABULARY, WORDS, clean_environment, needs_minilm, needs_shared

from attnprobe.errors import SourceError, UsageError
from attnprobe.inputs import SourceSpec, resolve
from attnprobe.inputs import text as text_module
from attnprobe.inputs.text import Text, embedded, open_text
from attnprobe.inputs.tokens import Layout, TokenStream, check_length
from attnprobe.inputs.vocabulary import Vocabulary, fallback_vocabulary, of_folder, open_tokenizer, wordpiece


def text(*lines):
    return Text("a test", "\n".join(lines), "0" * 64)


@pytest.fixture(scope="module")
def vocabulary(tiny_bert):
    return open_tokenizer(tiny_bert)


# texts


def test_a_file_is_read_byte_for_byte(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone é\r\ntwo\rthree\n\nfour".encode())
    got = open_text(str(path))
    assert got.content == "one é\r\ntwo\rthree\n\nfour"
    assert got.lines == ["one é", "two", "three", "", "four"]
    assert (got.name, got.split) == (str(path), None)
    assert got.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b" \n\t\r\n", "holds nothing but white space"),
        (b"abc\xff", "is not UTF-8: byte 3 is 0xff; convert it first"),
        ("grün".encode("latin-1"), "is not UTF-8: byte 2 is 0xfc"),
        ("wide".encode("utf-16"), "is not UTF-8: byte 0 is 0xff"),
    ],
)
def test_files_that_are_no_text(tmp_path, data, says):
    path = tmp_path / "bad.txt"
    path.write_bytes(data)
    with pytest.raises(SourceError) as caught:
        open_text(str(path))
    assert str(path) in str(caught.value) and says in str(caught.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(SourceError, match="no such text file: wikitext2; did you mean 'wikitext-2'"):
        open_text("wikitext2")
    with pytest.raises(SourceError, match="is a directory: name a text file"):
        open_text(str(tmp_path))


def test_the_embedded_text_is_one_fixed_file():
    got = embedded()
    assert got.name == "embedded" and got.sha256 == hashlib.sha256(text_module.EMBEDDED_FILE.read_bytes()).hexdigest()
    assert got.sha256.startswith("3ba6561d0056") and len(" ".join(got.lines).split()) > 42_000
    assert len(set(got.lines)) == len(got.lines) and all(line.isprintable() for line in got.lines)


def test_an_embedded_text_that_was_edited_is_refused(tmp_path, monkeypatch):
    edited = tmp_path / "embedded.txt"
    edited.write_bytes(text_module.EMBEDDED_FILE.read_bytes().replace(b"attention", b"attenti0n", 1))
    monkeypatch.setattr(text_module, "EMBEDDED_FILE", edited)
    with pytest.raises(SourceError, match="embedded.txt is not the published file .sha256.: reinstall attnprobe"):
        embedded()


def test_the_embedded_text_is_read_again_beyond_its_end_and_says_so(vocabulary):
    stream = TokenStream(Text("short", "word1 word2\nword3", "0" * 64, readings=3), vocabulary)
    assert stream.first(7) == [6, 7, 8, 6, 7, 8, 6] and len(stream.ids) == 3
    layout = Layout(None)
    assert check_length(stream, layout, 3, 1) is None
    assert check_length(stream, layout, 9, 1) == "the text 'short' is read again from its start after 3 tokens"
    assert check_length(stream, layout, 1, 3) is None
    with pytest.raises(
        UsageError, match="n=2 in 2 windows needs 4 tokens, but the text 'short' has 3: choose at most 1"
    ):
        check_length(stream, layout, 2, 2)  # the second would repeat the first, and count as a further text
    with pytest.raises(UsageError, match="n=10 needs 10 tokens, but the text 'short' has 9"):
        check_length(stream, layout, 10, 1)


@needs_minilm
def test_sixteen_thousand_tokens_of_the_embedded_text_are_read_once():
    stream = TokenStream(embedded(), open_tokenizer("minilm"))
    assert len(stream.first(16_384)) == 16_384
    assert len(stream.first(100_000)) == 100_000 and len(stream.ids) == 57_728


# tokenizers


@needs_shared
def test_hello_is_8667_in_the_cased_vocabulary():
    """transformers' BertTokenizerFast(vocab_file=…) gives 100, [UNK], for every word of this file."""
    cased = open_tokenizer(str(SHARED / "bert-base-cased-vocab.txt"))
    assert cased.read("Hello")[0] == [8667]
    assert cased.read("hello")[0] != [8667]
    assert cased.tokenizer.encode("Hello").ids == [101, 8667, 102]
    assert (cased.before, cased.after, cased.unknown) == ((101,), (102,), 100)


@needs_shared
def test_our_word_pieces_are_those_of_transformers_for_the_papers_text():
    from transformers import BertTokenizerFast

    path = SHARED / "bert-base-cased-vocab.txt"
    tokens = {token: number for number, token in enumerate(path.read_text().splitlines())}
    other = BertTokenizerFast(vocab=tokens, do_lower_case=False)
    lines = (SHARED / "wikitext-2-test.txt").read_text().splitlines()[:400]
    vocabulary = open_tokenizer(str(path))
    assert [vocabulary.read(line)[0] for line in lines] == other(lines, add_special_tokens=False)["input_ids"]


def test_case_is_read_off_the_vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, "word", "Word"]))
    assert open_tokenizer(str(path)).read("word Word WORD")[0] == [5, 6, 1]
    path.write_text("\n".join([*SPECIALS, "word", "[unused7]", "cafe"]))
    assert open_tokenizer(str(path)).read("word Word café")[0] == [5, 5, 7]


def test_a_published_tokenizer_neither_cuts_nor_fills_lines(tmp_path):
    """MiniLM's tokenizer.json truncates to 128 tokens and pads to 128."""
    tokenizer = wordpiece(VOCABULARY, cased=True)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=6)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 12}))
    actual = of_folder("x", tmp_path)
    assert [actual.read(line)[0] for line in ("word1", " ".join(WORDS[:9]))] == [[6], list(range(5, 14))]
    assert actual.longest == 12
    assert actual.sha256 == hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()


def test_the_tokenizer_can_shorten_the_positions(tiny_bert, text_file, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    for longest, positions in ((12, 12), (10**30, 16), (500, 16), (None, 16)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": longest}))
        source = resolve(SourceSpec(model=tiny_bert, text=text_file, tokenizer=str(tmp_path), device="cpu"))
        assert source.facts["max_positions"] == positions


def test_byte_pair_files_go_through_transformers(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "Ġ": 3, "<|endoftext|>": 4}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    actual = of_folder("bpe", tmp_path)
    assert [actual.read(line)[0] for line in ("ab a", "b")] == [[2, 3, 0], [1]]
    assert (actual.before, actual.after) == ((), ()) and len(actual.sha256) == 64


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("vocab.txt", b"one\ntwo\n", "is not a WordPiece vocabulary: it has no line [UNK]"),
        ("vocab.txt", b"[UNK]\n\xff\n", "is not a vocabulary: byte 6 is not UTF-8"),
        ("tokenizer.json", b"{}", "is not a tokenizer.json"),
    ],
)
def test_files_that_are_no_tokenizer(tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError) as caught:
        open_tokenizer(str(tmp_path / name))
    assert says in str(caught.value)


def test_tokenizers_that_are_not_there(tmp_path):
    with pytest.raises(SourceError, match="no such tokenizer file"):
        open_tokenizer("nowhere/vocab.txt")
    with pytest.raises(SourceError, match="no such directory"):
        open_tokenizer(str(tmp_path / "nowhere"))
    with pytest.raises(SourceError, match="has no tokenizer: no tokenizer.json and no vocab.txt"):
        open_tokenizer(str(tmp_path))


def test_a_vocabulary_that_does_not_fit_the_text_is_refused(tiny_bert, tmp_path):
    path = tmp_path / "greek.txt"
    path.write_text("μῆνιν ἄειδε θεὰ word1\n" * 50)
    with pytest.raises(SourceError, match="75% of the text .* is unknown to it; use another --tokenizer or --text"):
        resolve(SourceSpec(model=tiny_bert, text=str(path), device="cpu"))
    path.write_text("word1 word2 word3 word4 ἄειδε\n" * 50)
    assert resolve(SourceSpec(model=tiny_bert, text=str(path), device="cpu")).facts["unk_fraction"] == 0.2


# the vocabulary made from the text


def test_the_fallback_vocabulary_is_words_by_count_then_alphabet():
    made = fallback_vocabulary(text("b a b, Cc", "Cc dd cd b"), 1000)
    tokens = [made.tokenizer.id_to_token(i) for i in range(made.tokenizer.get_vocab_size())]
    characters = ["b", "c", "d", "C", ",", "a"]  # b c d three times, C twice, the others once
    assert tokens == [*SPECIALS, *characters, *("##" + x for x in characters), "Cc", "cd", "dd"]
    assert made.read("Cc dC z")[0] == [tokens.index("Cc"), tokens.index("d"), tokens.index("##C"), 1]
    assert made.unknown == 1 and made.before == (2,) and made.after == (3,)
    assert fallback_vocabulary(text("b a b, Cc"), 8).tokenizer.get_vocab_size() == 8


def test_the_fallback_vocabulary_knows_its_text():
    assert TokenStream(embedded(), fallback_vocabulary(embedded(), 28996)).unknown_fraction(50_000) == 0


@pytest.mark.slow
def test_the_fallback_vocabulary_is_the_same_in_every_process(tmp_path):
    code = (
        "from attnprobe.inputs.text import embedded; from attnprobe.inputs.vocabulary import fallback_vocabulary;"
        "v = fallback_vocabulary(embedded(), 28996); print(v.sha256, v.tokenizer.get_vocab_size())"
    )
    here = fallback_vocabulary(embedded(), 28996)
    another = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = clean_environment(tmp_path, PYTHONHASHSEED=another)
    there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.split() == [here.sha256, str(here.tokenizer.get_vocab_size())]


# windows and segments


def test_a_text_is_tokenised_only_as_far_as_needed(vocabulary):
    stream = TokenStream(text(*(f"word{i % 40}" for i in range(5000))), vocabulary)
    assert stream.first(3) == [5, 6, 7]
    assert len(stream.ids) < 1000
    assert len(stream.first(10**6)) == 5000 == len(stream.ids)


@pytest.mark.parametrize("around", [0, 1, 2])
@pytest.mark.parametrize("positions", [None, 3, 5, 16])
def test_windows_tile_the_text_without_gap_or_overlap(positions, around):
    """For every n: the segments have n tokens in all, and the text tokens of successive windows are the text."""
    layout = Layout(positions, before=(901,) * (around > 0), after=(902,) * (around > 1))
    ids = list(range(800))
    for n in range(2, 40):
        seen, longest = [], positions or n
        assert layout.lengths(n) == [min(longest, n - start) for start in range(0, n, longest)]
        for window in range(4):
            each = layout.text_tokens(n)
            segments = layout.segments(ids[window * each : (window + 1) * each], n)
            flat = [token for segment in segments for token in segment]
            assert [flat[place] for place in layout.places(n)] == ids[window * each : (window + 1) * each]
            assert sum(map(len, segments)) == n
            assert [len(segment) for segment in segments] == layout.lengths(n)
            assert all(len(segment) == (positions or n) for segment in segments[:-1])
            for segment in segments:
                specials = [token for token in segment if token > 900]
                assert len(specials) == (around if len(segment) > around else 0)
                if specials:
                    assert segment[0] == 901 and (around < 2 or segment[-1] == 902)
            seen += [token for segment in segments for token in segment if token < 900]
        assert seen == ids[: len(seen)] and len(seen) == 4 * layout.text_tokens(n)


def test_a_text_that_is_too_short_says_how_much_there_is(vocabulary):
    stream, layout = TokenStream(text("word1 " * 100), vocabulary), Layout(16, (2,), (3,))
    check_length(stream, layout, 112, 1)  # 7 segments of 14 words
    with pytest.raises(UsageError) as caught:
        check_length(stream, layout, 128, 1)
    assert str(caught.value) == (
        "n=128 needs 112 tokens, but the text 'a test' has 100: choose a smaller n or a longer text"
    )
    with pytest.raises(
        UsageError, match="n=32 in 4 windows needs 112 tokens, .* has 100: choose at most 3 windows or a"
    ):
        check_length(stream, layout, 32, 4)


def test_control_characters_alone_make_no_token(vocabulary):
    stream = TokenStream(text("\x01\x02"), vocabulary)
    assert stream.unknown_fraction() == 0
    with pytest.raises(UsageError, match="has 0: choose a smaller n or a longer text"):
        check_length(stream, Layout(16, (2,), (3,)), 16, 1)


def test_a_tokenizer_without_specials_or_unknown_token():
    from tokenizers import Tokenizer, models

    bare = Vocabulary("bare", Tokenizer(models.BPE({"a": 0}, [])), "0" * 64)
    assert (bare.before, bare.after, bare.unknown) == ((), (), None)
    assert TokenStream(text("a"), bare).unknown_fraction() == 0.0
