"""Completions by vLLM, an extra: the only file that imports it, and only when it is asked for."""

from importlib import import_module
from typing import Any

from ..models.base import Model
from ..models.info import ModelError
from ..models.load import source_of
from ..statistics.arguments import derive_generator
from .decoding import Decoding, Finished, Row


class VllmEngine:
    """vLLM (an extra): fast, prompts as token ids, insertions only, as it shows no heads and no activations.

    It has no stopping by balanced boxes, so a completion runs to its end and is then cut after its first whole box,
    which gives the same text. Sampling is vLLM's own, seeded for each row. vLLM loads the weights a second time and takes most
    of a GPU: load the model itself with device="cpu".
    """

    name = "vllm"
    rows_at_once: int | None = 1024  # it batches by itself; finished rows are handed over once per so many
    hides_under: tuple[str, ...] = ()
    redraws = False
    shows_logits = False

    def __init__(self, model: Model) -> None:
        if model.info.loaded_from is None:
            raise ModelError(
                "engine='vllm' loads the weights itself, from a directory or a hub id, which a wrapped model does not "
                "tell, nor one in memory: save it and load it by its directory, or take another engine"
            )
        try:
            self.vllm: Any = import_module("vllm")
        except ImportError as error:
            raise ModelError(
                "engine='vllm' needs the extra: pip install 'mless_interp[vllm]' (Linux with a GPU); "
                "engine='hugging_face' runs without it"
            ) from error
        self.llm = self.vllm.LLM(
            model=source_of(model.info.loaded_from),
            dtype=model.info.dtype,
            max_model_len=model.info.context_length,
            skip_tokenizer_init=True,  # prompts are ids, and texts are made by the model's own tokenizer here
        )

    def run(self, rows: list[Row], decoding: Decoding, finished: Finished) -> None:
        parameters = [
            self.vllm.SamplingParams(
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                max_tokens=decoding.max_new_tokens,
                stop_token_ids=sorted(decoding.stop_ids),
                seed=_seed(decoding, row),
                detokenize=False,
            )
            for row in rows
        ]
        prompts = [{"prompt_token_ids": list(row.request.prompt)} for row in rows]
        for row, output in zip(rows, self.llm.generate(prompts, parameters, use_tqdm=False), strict=True):
            for token in output.outputs[0].token_ids:
                if row.stop is None:
                    row.accept(int(token))
            if row.stop is None:
                raise ModelError(
                    f"vLLM ended {row.request.key!r} after {len(row.tokens)} tokens ({output.outputs[0].finish_reason!r}) "
                    "without an end-of-sequence token of this model and before max_new_tokens"
                )
            finished([row])


def _seed(decoding: Decoding, row: Row) -> int | None:
    """A seed for each row, so that its draws do not depend on the rows beside it; greedy needs none."""
    if decoding.temperature == 0:
        return None
    return int(derive_generator(decoding.seed, "vllm", row.request.key).integers(2**31))
