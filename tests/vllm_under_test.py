"""Stands for the vllm module, which needs a GPU."""

from dataclasses import dataclass
from typing import Any


@dataclass
class Output:
    """What it says of one completion."""

    token_ids: list[int]
    finish_reason: str = "stop"


@dataclass
class Answered:
    """What it gives for one prompt."""

    outputs: list[Output]


class FakeVllm:
    """Records what it is given and answers the prompts with these ids, one after the other."""

    def __init__(self, answers: list[list[int]]) -> None:
        self.made: dict[str, Any] = {}
        self.parameters: list[dict[str, Any]] = []
        self.prompts: list[Any] = []
        fake = self

        class LLM:
            def __init__(self, **options: Any) -> None:
                fake.made = options

            def generate(self, prompts: Any, parameters: Any, use_tqdm: bool) -> list[Any]:
                assert len(prompts) == len(parameters) and not use_tqdm
                fake.prompts = prompts
                return [Answered([Output(ids)]) for ids, _ in zip(answers, prompts, strict=True)]

        def sampling_parameters(**options: Any) -> dict[str, Any]:
            fake.parameters.append(options)
            return options

        self.LLM, self.SamplingParams = LLM, sampling_parameters
