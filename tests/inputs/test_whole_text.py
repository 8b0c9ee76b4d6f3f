"""The ids of a text are those of its tokenizer on the whole text, with line breaks, also if only a start is read."""

import json
import string
import time

import pytest
from sources_helpers import SPECIALS
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from attnprobe.errors import SourceError
from attnprobe.inputs.text import Text, embedded
from attnprobe.inputs.tokens import TokenStream
from attnprobe.inputs.vocabulary import MARGIN, Vocabulary, open_tokenizer, wordpiece

TIKTOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
FROM_THE_RIGHT = r"\p{L}+|\d{1,3}(?=(?:\d{3})*\b)|\s+|."  # digits in threes, counted from the end of the number
PIECES = ["th", "the", "in", "he", "er", "an", "on", "\n\n", " \n", ".\n", "  ", "   ", "12", "123", "aa", "aaa"]


def byte_pairs(pieces, alphabet):
    """A BPE model of letters, pieces and the starts of pieces; each is a start and a letter."""
    tokens = list(dict.fromkeys([*alphabet, *(p[:i] for p in pieces for i in range(2, len(p) + 1))]))
    merges = [(token[:-1], token[-1]) for token in tokens if len(token) > 1]
    return models.BPE({token: number for number, token in enumerate(tokens)}, merges)


def bytes_of(pattern=None):
    """The tokenizer of GPT-2, or of a later model if it has a pattern."""
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    spelled = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(p) for p in PIECES]
    pieces = ["".join(word for word, _ in words) for words in spelled]
    tokenizer = Tokenizer(byte_pairs(pieces, pre_tokenizers.ByteLevel.alphabet()))
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, byte])
    return tokenizer


def words_of():
    """BERT's tokenizer."""
    letters = [letter for letter in LETTERS if not letter.isspace()]
    return wordpiece([*SPECIALS, *letters, *("##" + letter for letter in letters), "the", "##er", "12"], cased=False)


def unigram():
    """A tokenizer as of T5: white space and line breaks begin a word."""
    letters = [letter for letter in LETTERS if letter != " "]
    scored = [("<unk>", 0.0), *((letter, -9.0) for letter in letters), *((piece, -6.0) for piece in PIECES)]
    tokenizer = Tokenizer(models.Unigram([*scored, ("▁the", -4.0), ("▁in", -4.5)], unk_id=0))
    tokenizer.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return tokenizer


def one_word():
    """A tokenizer as of Llama 2: the whole text is one word."""
    tokenizer = Tokenizer(
        byte_pairs([piece.replace(" ", "▁") for piece in PIECES], [letter for letter in LETTERS if letter != " "])
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


SHORT = (
    "The end.\nA new start:\n\n  def f(x):\r\n\treturn 12345 * x  # then\n\n\nthe inner 'thing', it's an émigré.   \n"
)
TEXT = (
    SHORT * 60
    + "\n"
    + " " * (2 * MARGIN)
    + "\nin"
    + "1234567" * MARGIN
    + " the end.\n"
    + "a" * (2 * MARGIN)
    + SHORT * 60
)
LETTERS = sorted({*string.printable, *TEXT, "▁"})
MAKERS = {
    "GPT-2": bytes_of,
    "tiktoken": lambda: bytes_of(TIKTOKEN),
    "from the right": lambda: bytes_of(FROM_THE_RIGHT),
    "BERT": words_of,
    "T5": unigram,
    "Llama 2": one_word,
}
LINES_MATTER = [name for name in MAKERS if name != "BERT"]


@pytest.fixture(scope="module")
def vocabularies():
    return {name: Vocabulary(name, make(), "0" * 64) for name, make in MAKERS.items()}


def whole(vocabulary, text):
    """The ids as transformers gives them."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=vocabulary.tokenizer)(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", MAKERS)
def test_the_ids_of_a_text_are_those_of_its_tokenizer(vocabularies, name):
    vocabulary, text = vocabularies[name], Text("a text", TEXT, "0" * 64)
    expected = whole(vocabulary, TEXT)
    for count in (1, 7, 100, 3000, 12_000, len(expected), len(expected) + 1):
        assert TokenStream(text, vocabulary).first(count) == expected[:count]
    stream = TokenStream(text, vocabulary)
    assert [stream.window(500, window) for window in range(4)] == [expected[500 * w : 500 * w + 500] for w in range(4)]
    short = TokenStream(Text("a text", SHORT, "0" * 64), vocabulary)
    assert short.first(10**6) == whole(vocabulary, SHORT)


@pytest.mark.parametrize("name", MAKERS)
def test_every_start_of_a_text_gives_ids_of_the_whole_text(vocabularies, name):
    """Wherever a start ends: inside words, numbers, white space and line breaks that are longer than the margin too."""
    vocabulary = vocabularies[name]
    expected = whole(vocabulary, TEXT)
    around = [len(SHORT) * 60 + place for place in (0, 1, 2, MARGIN, 2 * MARGIN, 2 * MARGIN + 2, 2 * MARGIN + 4)]
    ends = [*range(1, len(TEXT), 977), *(MARGIN + place for place in around), len(TEXT) - 1, len(TEXT)]
    counts = []
    for length in sorted(ends):
        ids = vocabulary.start(TEXT, length)
        assert ids == expected[: len(ids)]
        counts.append(len(ids))
    assert counts[-1] == len(expected)
    assert (counts[len(counts) // 2] > 0) == (name != "Llama 2")


@pytest.mark.parametrize("name", LINES_MATTER)
def test_line_breaks_are_read(vocabularies, name):
    vocabulary = vocabularies[name]
    lines = [number for line in SHORT.splitlines() for number in vocabulary.read(line)[0]]
    assert TokenStream(Text("a text", SHORT, "0" * 64), vocabulary).first(10**6) != lines
    assert not vocabulary.drops_line_breaks


def test_a_line_break_is_only_a_border_for_bert(vocabularies):
    vocabulary = vocabularies["BERT"]
    for text in (SHORT, TEXT, "\n\r\n\none\rtwo\u2028\n\u0301three\n"):
        of_text = Text("a text", text, "0" * 64)
        lines = [number for line in of_text.lines for number in vocabulary.read(line)[0]]
        assert TokenStream(of_text, vocabulary).first(10**6) == lines
    assert vocabulary.drops_line_breaks


def test_a_start_of_a_long_text_is_read_and_not_more():
    vocabulary, text = Vocabulary("bytes", bytes_of(), "0" * 64), Text("long", SHORT * 300_000, "0" * 64)
    begin = time.perf_counter()
    stream = TokenStream(text, vocabulary)
    assert len(stream.first(512)) == 512 and len(stream.ids) < 20_000
    assert time.perf_counter() - begin < 2


def test_a_long_text_of_one_word_is_refused(monkeypatch):
    from attnprobe.inputs import tokens

    monkeypatch.setattr(tokens, "MOST_WHOLE", 10_000)
    vocabulary = Vocabulary("one", one_word(), "0" * 64)
    assert len(TokenStream(Text("fits", TEXT[:9000], "0" * 64), vocabulary).first(100)) == 100
    with pytest.raises(SourceError) as caught:
        TokenStream(Text("long", TEXT, "0" * 64), vocabulary).first(100)
    assert str(caught.value) == (
        f"tokenizer one reads the text 'long' as one word of {len(TEXT)} characters: use a text of at most 10000"
    )


# a normaliser that lengthens a text without end


@pytest.mark.parametrize(
    "steps",
    [
        [normalizers.Replace("a", "a" * 20)] * 5,
        [normalizers.Replace(Regex("[a-z]"), "a" * 1000)],
        [normalizers.Prepend("a" * 20)] * 5,
        [normalizers.Sequence([normalizers.Replace("ﷺ", "ﷺ"), normalizers.NFKD()])] * 5,
        [normalizers.ByteLevel()] * 9,
    ],
    ids=["replace", "pattern", "prepend", "compatibility", "bytes"],
)
def test_a_normaliser_that_lengthens_a_text_beyond_measure_is_refused(tmp_path, steps):
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.normalizer = normalizers.Sequence(steps)
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_str())
    begin = time.perf_counter()
    with pytest.raises(SourceError, match="its normaliser may lengthen a text .* times, and 256 times is allowed"):
        open_tokenizer(str(path))
    assert time.perf_counter() - begin < 2


def test_a_map_of_sentencepiece_with_a_long_text_is_refused(tmp_path):
    """The map of one letter to 2000 letters, twice; the map alone is allowed up to 256 letters."""
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    data = json.loads(tokenizer.to_str())
    path = tmp_path / "tokenizer.json"
    for letters, fits in ((18, True), (300, False)):
        data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap("a" * letters)}
        path.write_text(json.dumps(data))
        if fits:
            assert open_tokenizer(str(path)).read("a")[0] == [0]
        else:
            with pytest.raises(SourceError, match="may lengthen a text 300 times"):
                open_tokenizer(str(path))


def charsmap(text):
    """A map as of SentencePiece: the size of an empty trie, the trie, and a text that it could give."""
    import base64

    trie = bytes(4 * 256)
    return base64.b64encode(len(trie).to_bytes(4, "little") + trie + text.encode() + b"\0").decode()


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.BertNormalizer(),
        normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        normalizers.Sequence(
            [
                normalizers.Replace("``", '"'),
                normalizers.NFKD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
                normalizers.ByteLevel(),
            ]
        ),
    ],
    ids=["BERT", "T5", "Llama", "ALBERT"],
)
def test_normalisers_of_models_are_accepted(normalizer):
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.normalizer = normalizer
    assert Vocabulary("a model", tokenizer, "0" * 64).read("a")[0] == [0]


# a needle


@pytest.mark.parametrize("name", ["GPT-2", "tiktoken", "BERT", "Llama 2"])
@pytest.mark.parametrize("wanted", ["needle:pairs=3,seed=2", "needle:chain=3,chains=2"])
def test_a_text_of_a_needle_is_tokenised_as_a_text(name, wanted):
    """The ids are those of the tokenizer on the text that they spell, and marked ones spell the statements."""
    from attnprobe.inputs.text import open_text

    vocabulary = Vocabulary(name, MAKERS[name](), "0" * 64)
    text = open_text(wanted)
    assert text.needle is not None
    for count, window in ((420, 0), (421, 0), (700, 1)):
        read = []

        def remember(one, read=read):
            read.append((one, *vocabulary.read(one)))
            return read[-1][1:]

        ids, marked = text.needle.compose(remember, text.lines, count, window)
        groups, question, target = text.needle.statements(window)
        composed, of_whole, spans = next(one for one in read if one[1][-count:] == ids)
        excess = len(of_whole) - count  # where no cut of the prose gives the exact number
        assert len(ids) == count and composed.endswith(question) and excess <= (name == "Llama 2")
        spans = spans[excess:]
        for statement in groups[target]:
            begin = composed.index(statement)
            places = range(begin, begin + len(statement))
            assert all(index in marked for index, span in enumerate(spans) if set(range(*span)) & set(places))
        inside = {place for index in marked for place in range(*spans[index])}
        assert len(inside) <= sum(map(len, groups[target])) + 2 * len(groups[target])


def test_the_embedded_text_is_that_of_its_file():
    from attnprobe.inputs.text import EMBEDDED_FILE

    assert embedded().content.encode() == EMBEDDED_FILE.read_bytes()
