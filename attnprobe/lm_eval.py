"""A model for EleutherAI's lm-evaluation-harness that answers with a cache policy or a format: ``PolicyLM``.

``python -m attnprobe.lm_eval`` is the harness's command ``lm_eval`` with this model, under the name ``attnprobe``. The
package ``lm_eval`` is imported with `PolicyLM`; ``pip install 'attnprobe[lm-eval]'`` installs it.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn
from zlib import crc32

from . import decoding
from .errors import AttnprobeError, SourceError, Unsupported, UsageError

NO_LIKELIHOOD = (
    "a policy acts on tokens that are generated behind a prompt, and a likelihood is computed in one forward of the "
    "whole text: choose tasks with output_type generate_until, or --model hf"
)


class CachePolicy:
    """What `PolicyLM` adds to the harness's ``HFLM``, whose other arguments it takes.

    Args:
        pretrained: as for ``HFLM``: a folder, a hub id, or a model of transformers.
        method: as ``--method`` takes it. Its options may be arguments too, since the harness cuts
            ``method=kivi:bits=2,group=32`` at the comma.
        d, bytes, layer, seed: as in `attnprobe.decoding`. Random methods draw by the tokens of a prompt.

    Raises:
        UsageError: an unknown method or option, or an impossible budget. Unsupported: an encoder-decoder.
    """

    def __init__(
        self,
        pretrained: Any,
        method: str,
        d: float | None = None,
        bytes: float | None = None,
        layer: str | int = "all",
        seed: int = 0,
        **arguments: Any,
    ) -> None:
        from .run.plan import parse_methods

        requests = parse_methods([method], "softmax")
        if len(requests) > 1:
            raise UsageError(f"method={method}: a model has one method; choose one, or POLICY+FORMAT")
        entry, options = requests[0].entry, requests[0].options
        further = {name: arguments.pop(name) for name in entry.options if name in arguments}
        super().__init__(pretrained, **arguments)  # type: ignore[call-arg]  # of HFLM
        self._decoding = {"method": entry, "d": d, "bytes": bytes, "layer": layer, "seed": seed, **options, **further}
        harness: Any = self
        if harness.backend != "causal":
            raise Unsupported(
                f"{pretrained}: an encoder-decoder has no prompt before its answer; choose a causal model"
            )
        with decoding(harness.model, **self._decoding):
            pass  # refuses an impossible budget before a task is read

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The answers. Two tokens behind the shortest prompt come first: what it cannot take would end a long run."""
        harness: Any = self
        prompts = [request.args[0] for request in requests]
        shortest = min((harness.tok_batch_encode([prompt]) for prompt in prompts), key=lambda read: read[0].shape[1])
        ids, mask = (x.to(harness.device) for x in shortest)
        self._model_generate(ids, ids.shape[1] + 2, [], attention_mask=mask, min_new_tokens=2)
        return super().generate_until(requests, disable_tqdm)  # type: ignore[misc]  # of HFLM

    def _model_generate(self, context: Any, max_length: int, stop: list[str], **arguments: Any) -> Any:
        """The tokens of a batch of prompts (b, n), padded on the left, with their answers."""
        harness: Any = self
        valid = zip(context.cpu(), arguments["attention_mask"].cpu().bool(), strict=True)
        texts = [crc32(ids[mask].numpy().tobytes()) for ids, mask in valid]
        with decoding(harness.model, **self._decoding, texts=texts):
            return super()._model_generate(context, max_length, stop, **arguments)  # type: ignore[misc]  # of HFLM

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> NoReturn:
        """Refused.

        Raises:
            Unsupported: always.
        """
        raise Unsupported(NO_LIKELIHOOD)

    loglikelihood_rolling = loglikelihood


def __getattr__(name: str) -> Any:
    """``PolicyLM``, a subclass of the harness's ``HFLM``, is made at the first use."""
    if name != "PolicyLM":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        from lm_eval.models.huggingface import HFLM  # type: ignore[import-not-found]
    except ModuleNotFoundError as error:
        raise SourceError(f"{error.name} is not installed: pip install 'attnprobe[lm-eval]'") from error
    made = type(name, (CachePolicy, HFLM), {"__module__": __name__, "__doc__": CachePolicy.__doc__})
    globals()[name] = made
    return made


def main() -> None:
    """The command ``lm_eval``, with ``--model attnprobe``."""
    try:
        model = __getattr__("PolicyLM")
        from lm_eval.__main__ import cli_evaluate  # type: ignore[import-not-found]
        from lm_eval.api.registry import register_model  # type: ignore[import-not-found]

        register_model("attnprobe")(model)
        cli_evaluate()
    except AttnprobeError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
