"""Texts with a needle: their statements, their length, and where the tokens of the needle are."""

import re

import pytest
import torch
from thinned import others_slow

from attnprobe.errors import UsageError
from attnprobe.inputs import load_qkv
from attnprobe.inputs.needle import parse_needle
from attnprobe.inputs.text import embedded, open_text

PROSE = [" ".join(f"w{i}.{j}." if j == 6 else f"w{i}.{j}" for j in range(7)) for i in range(40)]


class Words:
    """Every word of a text is a token."""

    def __init__(self):
        self.words: list[str] = []

    def __call__(self, text):
        found = list(re.finditer(r"\S+", text))
        return [self._id(word[0]) for word in found], [word.span() for word in found]

    def _id(self, word):
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)


@pytest.mark.parametrize(
    "name",
    [
        "needle:pairs=5,seed=3",
        "needle:chain=3,chains=4",
        "needle:chain=2,chains=1,answer=1",
        "needle:answer=1",
        "needle:copy=3,answer=1",
        "needle:pairs=4,first=1",
        "needle:chain=3,chains=2,first=1,answer=1",
        "needle",
    ],
)
@pytest.mark.parametrize("count", [260, 700])
@pytest.mark.parametrize("window", [0, 2])
def test_the_marked_tokens_are_the_statements_that_are_asked_for(name, count, window):
    needle, encode = parse_needle(name), Words()
    ids, marked = needle.compose(encode, PROSE, count, window)
    words = [encode.words[token] for token in ids]
    groups, question, arguments = needle.statements(window)
    answer = needle.ending(window)[1]
    if needle.answered:
        asked = " ".join(groups[arguments])
        assert all(number in asked and number not in question for number in re.findall(r"[0-9]{5}", answer))
        assert len(answer.split()) == (needle.copied or needle.links)
        question += answer
    assert len(words) == count and words[-len(question.split()) :] == question.split()
    assert [words[index] for index in marked] == " ".join(groups[arguments]).split()
    assert not needle.first or marked == list(range(len(marked)))
    text = " ".join(words)
    for group in groups:
        places = [text.index(statement.strip()) for statement in group]
        assert places == sorted(places) and len(set(places)) == len(places)
    numbers = re.findall(r"[0-9]{5}", needle.ending(window)[0])
    assert all(number in " ".join(groups[arguments]) for number in numbers)
    assert not any(number in " ".join(g) for number in numbers for i, g in enumerate(groups) if i != arguments)


def test_seeds_and_windows_are_other_texts():
    def of(name, window):
        return parse_needle(name).compose(Words(), PROSE, 400, window)[0]

    texts = [of("needle:pairs=5,seed=0", 0), of("needle:pairs=5,seed=0", 1), of("needle:pairs=5,seed=1", 0)]
    marked = [parse_needle(f"needle:pairs=5,seed={s}").compose(Words(), PROSE, 400, 0)[1] for s in range(4)]
    assert len({tuple(one) for one in marked}) > 1 and texts[0] == of("needle:pairs=5", 0)
    questions = {parse_needle(f"needle:pairs=5,seed={s}").statements(w)[1] for s in (0, 1) for w in (0, 1)}
    assert len(questions) == 4


def test_the_global_generator_moves_no_word():
    def words(number):
        torch.manual_seed(number)
        encode = Words()
        return [encode.words[token] for token in parse_needle("needle").compose(encode, PROSE, 400, 0)[0]]

    assert all(words(number) == words(0) for number in range(1, 6))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("needle:paris=3", "unknown setting of the text needle 'paris'; did you mean 'pairs'"),
        ("needle:pairs=x", "pairs=x is not a whole number"),
        ("needle:pairs=2,chain=3", "choose pairs, or chain and chains, or copy"),
        ("needle:copy=2,chain=3", "choose pairs, or chain and chains, or copy"),
        ("needle:copy=0", "choose a list of 1 to 20000 numbers"),
        ("needle:first=2", "choose 1 for a text that begins with it"),
        ("needle:pairs=2,pairs=3", "pairs is given twice"),
        ("needle:pairs=0", "at least one pair"),
        ("needle:pairs=2,answer=2", "choose 1 for a text that ends with the answer"),
        ("needle:chain=1", "a chain of two statements"),
        ("needle:pairs=99999", "more than 20000 statements"),
    ],
)
def test_settings_that_it_does_not_have(name, says):
    with pytest.raises(UsageError) as caught:
        open_text(name)
    assert says in str(caught.value)


def test_a_text_is_named_by_all_its_settings():
    text = open_text("needle:chain=3")
    assert text.name == "needle:chain=3,chains=4,seed=0" and text.lines == embedded().lines
    assert text.sha256 != open_text("needle:chain=3,seed=1").sha256
    assert open_text("needle").name == "needle:pairs=16,seed=0"


@pytest.mark.parametrize("queries", others_slow([None, "last:8"], lambda queries: queries[0] is not None))
def test_a_label_has_the_tokens_of_the_needle(queries):
    options = {"weights": "initialized", "text": "needle:pairs=2,seed=0", "device": "cpu", "queries": queries}
    qkv = load_qkv(n=600, notify=lambda line: None, **options)
    needle = qkv.label["needle"]
    assert qkv.n_k == 600 and needle == sorted(needle) and 8 <= len(needle) <= 60 and 0 < needle[0] < needle[-1] < 599
    with pytest.raises(UsageError, match="text needle:pairs=2,seed=0: its statements and its question have"):
        load_qkv(n=32, notify=lambda line: None, **options)


def test_a_text_of_a_needle_is_as_long_as_asked():
    """The marked tokens are the words of the statement, special tokens of segments counted."""
    from attnprobe.inputs import SourceSpec, resolve

    spec = SourceSpec(weights="initialized", text="needle:chain=3,chains=2", device="cpu")
    source = resolve(spec)
    for n in (700, 1100):
        tokens = [token for segment in source.segments(n, 1) for token in segment]
        marked = source.stream.needle(source.layout.text_tokens(n), 1)
        marked = [source.layout.places(n)[index] for index in marked]
        words = source.stream.vocabulary.tokenizer.decode([tokens[place] for place in marked])
        groups, _, arguments = source.text.needle.statements(1)

        def plain(text):
            return re.sub(r"[^a-z0-9]", "", text.lower().replace("##", ""))

        assert len(tokens) == n and plain(words) == plain("".join(groups[arguments]))


def test_a_question_fits_its_statements():
    """The literal last sentence: pairs ask for the code of an item, chains for the variables of a value."""
    for name, statement, asked in (
        (
            "needle:pairs=3",
            r" The code of item (?P<key>\d{5}) is \d{5}\.",
            " Question: what is the code of item {0}? The code of item {0} is",
        ),
        (
            "needle:chain=3,chains=2",
            r" Variable \d{5} has the value (?P<key>\d{5})\.",
            " Question: which variables have the value {0}? The variables of {0} are",
        ),
    ):
        groups, question, target = parse_needle(name).statements(0)
        found = re.fullmatch(statement, groups[target][0])
        assert found and question == asked.format(found["key"])


def test_the_shortest_text_is_its_statements_and_its_question():
    needle, encode = parse_needle("needle:pairs=3"), Words()
    groups, question, _ = needle.statements(0)
    alone = "".join(text for group in groups for text in group) + question
    ids, marked = needle.compose(encode, PROSE, len(alone.split()), 0)
    assert len(ids) == len(alone.split()) and sorted(encode.words[id] for id in ids) == sorted(alone.split()) and marked


def test_a_tokenizer_that_reads_no_prose_is_named():
    def deaf(text):
        return ([], []) if text.startswith(" ") and "The code" not in text else Words()(text)

    with pytest.raises(UsageError, match="text needle:pairs=16,seed=0: the tokenizer makes no tokens of its prose"):
        parse_needle("needle").compose(deaf, PROSE, 160, 0)


def test_prose_goes_round_and_no_sentence_is_left_out():
    needle = parse_needle("needle")
    sentences = [f" {line}" for line in PROSE]
    for seed in range(3):
        taken, ends = needle._filler(Words(), PROSE, 700, torch.Generator().manual_seed(seed))
        start = sentences.index(taken[0])
        assert start > 0 and len(ends) >= 700 and len(taken) > 2 * len(PROSE)
        assert taken == [sentences[(start + place) % len(PROSE)] for place in range(len(taken))]
