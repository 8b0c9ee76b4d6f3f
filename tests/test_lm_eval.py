"""`PolicyLM` in the lm-evaluation-harness: a local task, a tiny model, no hub."""

import json
import subprocess
import sys

import pytest
import tiny_models
import torch
from sources_helpers import WORDS, seeded

import attnprobe.lm_eval
from attnprobe import decoding
from attnprobe.errors import SourceError, Unsupported, UsageError

harness = pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install '.[lm-eval]'")
pytest.importorskip("accelerate", reason="lm_eval's models need accelerate: pip install '.[lm-eval]'")

NEW = 6
TASK = """
task: words
dataset_path: json
dataset_kwargs: {data_files: DATA}
test_split: train
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["never"], max_gen_toks: NEW}
metric_list: [{metric: exact_match}]
"""
CHOICE = """
task: choice
dataset_path: json
dataset_kwargs: {data_files: DATA}
test_split: train
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: ["the", "old"]
doc_to_target: 0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama with a tokenizer of whole words, and tasks of prompts of several lengths."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("harness")
    words = ["<pad>", "<s>", "</s>", *dict.fromkeys(WORDS)]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder / "model")
    settings = tiny_models.grouped(max_position_embeddings=64) | {"vocab_size": len(words), "hidden_size": 128}
    config = LlamaConfig(**settings | {"initializer_range": 0.2, "eos_token_id": None})
    model = seeded(lambda: LlamaForCausalLM(config).eval())
    model.lm_head.weight.data[:3] = 0  # no answer ends early
    model.save_pretrained(folder / "model")
    draws = torch.Generator().manual_seed(1)
    texts = [[words[3 + at] for at in torch.randperm(len(words) - 3, generator=draws)[:n]] for n in (24, 13, 20, 9, 17)]
    lines = [json.dumps({"text": " ".join(text), "answer": "none"}) for text in texts]
    (folder / "data.jsonl").write_text("\n".join(lines))
    for name, task in (("words", TASK), ("choice", CHOICE)):
        filled = task.replace("DATA", str(folder / "data.jsonl")).replace("NEW", str(NEW))
        (folder / f"{name}.yaml").write_text(filled)
    return folder


@pytest.fixture
def answers(folder, monkeypatch, tmp_path):
    """The answers of a model to the task, in the order of the prompts."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    tasks = TaskManager(include_path=str(folder), include_defaults=False)

    def answered(task="words", plain=False, **arguments):
        make = HFLM if plain else attnprobe.lm_eval.PolicyLM
        model = make(pretrained=str(folder / "model"), device="cpu", dtype="float32", **arguments)
        found = harness.simple_evaluate(model, tasks=[task], task_manager=tasks, bootstrap_iters=0)
        samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
        return [sample["resps"][0][0] for sample in samples]

    return answered


def test_whole_budgets_answer_as_the_model_and_small_ones_otherwise(answers):
    own = answers(plain=True, batch_size=2)
    assert all(len(answer.split()) == NEW for answer in own) and len({*own}) == 5
    assert answers(method="softmax") == own
    assert answers(method="snapkv:observe=4", d=1.0, batch_size=2) == own
    few = answers(method="snapkv:observe=4", d=0.5)
    assert sum(a != b for a, b in zip(few, own, strict=True)) >= 3
    assert [answer.split()[0] for answer in few] == [answer.split()[0] for answer in own], "the prompt is read exactly"
    assert answers(method="snapkv", observe=4, d=0.5, batch_size=5) == few


@pytest.mark.parametrize("given", [{"method": "random", "d": 6}, {"method": "turboquant", "bytes": 0.3}])
def test_batches_answer_as_single_prompts(answers, given):
    assert answers(**given) == answers(**given, batch_size=3)


def test_an_answer_is_that_of_generate_in_the_block(answers, folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    found = answers(method="knorm+q4_0", d=0.5)
    for line, answer in zip((folder / "data.jsonl").read_text().splitlines(), found, strict=True):
        read = tokenizer(json.loads(line)["text"], return_tensors="pt")
        ids, mask = read["input_ids"], read["attention_mask"]
        with decoding(model, "knorm+q4_0", 0.5):
            new = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
        assert tokenizer.decode(new[0, ids.shape[1] :], skip_special_tokens=True).split() == answer.split()


def test_what_the_shortest_prompt_cannot_take_is_refused_before_the_first_answer(answers, monkeypatch):
    calls = []
    own = attnprobe.lm_eval.CachePolicy._model_generate
    monkeypatch.setattr(
        attnprobe.lm_eval.CachePolicy, "_model_generate", lambda *a, **k: calls.append(1) or own(*a, **k)
    )
    with pytest.raises(Unsupported, match="observe=10 exceeds the prompt of 9 tokens"):
        answers(method="snapkv:observe=10", d=0.5)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "given, line",
    [
        ({"method": "snapkv"}, "snapkv needs a budget"),
        ({"method": "snapkv,h2o", "d": 4}, "a model has one method"),
        ({"method": "skyformer", "d": 4}, "skyformer cannot decode"),
        ({"method": "snapvk", "d": 4}, "did you mean 'snapkv'"),
        ({"method": "snapkv:observe=4", "d": 4, "task": "choice"}, "choose tasks with output_type generate_until"),
    ],
)
def test_what_is_impossible_is_refused_in_a_line(answers, given, line):
    with pytest.raises(UsageError, match=line):
        answers(**given)


@pytest.mark.slow  # the harness's command reads the files of all its tasks
def test_the_command_knows_the_model(folder, tmp_path):
    given = ["--model", "attnprobe", "--device", "cpu", "--include_path", folder]
    given += ["--model_args", f"pretrained={folder / 'model'},method=kivi:bits=2,group=4,exact=2"]

    def run(task):
        words = [sys.executable, "-m", "attnprobe.lm_eval", *map(str, given), "--tasks", task]
        return subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)

    done = run("words")
    assert done.returncode == 0 and "|words|" in done.stdout, done.stderr
    done = run("choice")
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("Error: a policy acts on tokens")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.models.huggingface", None)
    monkeypatch.delitem(vars(attnprobe.lm_eval), "PolicyLM", raising=False)
    with pytest.raises(SourceError, match="pip install"):
        _ = attnprobe.lm_eval.PolicyLM
