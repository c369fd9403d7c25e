"""What runs in vLLM's own environment, as a script: prompts come as token ids, answers go as they end.

Imports nothing of this toolkit, and is spoken to in lines of JSON. The first holds the options of `vllm.LLM`, and is answered
with vLLM's version. Each further one is a batch, `[{"key", "ids", "sampling"}, ...]`, answered by a line per completion,
`{"key", "token_ids", "why"}`, and then `{"ended": n}`. What goes wrong is said as `{"error"}`. It ends with its input.
"""

import json
import os
import sys


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)  # a line each
    os.dup2(2, 1)  # whatever else is printed goes where errors go
    sys.path.pop(0)  # this script's folder, where vllm.py is the toolkit's

    def say(**line: object) -> None:
        answers.write(json.dumps(line) + "\n")

    try:
        import vllm  # type: ignore[import-not-found]

        llm = vllm.LLM(**json.loads(sys.stdin.readline()))
        say(version=vllm.__version__)
        for line in sys.stdin:
            batch = json.loads(line)
            prompts = [{"prompt_token_ids": each["ids"]} for each in batch]
            sampling = [vllm.SamplingParams(**each["sampling"]) for each in batch]
            ids = llm.enqueue(prompts, sampling, use_tqdm=False)
            keys = {
                id.partition("-")[0]: each["key"] for id, each in zip(ids, batch, strict=True)
            }  # "7-1a2b3c" ends as "7"
            while llm.llm_engine.has_unfinished_requests():
                for found in llm.llm_engine.step():
                    if found.finished:
                        (output,) = found.outputs
                        key = keys[found.request_id.partition("-")[0]]
                        say(key=key, token_ids=list(output.token_ids), why=output.finish_reason)
            say(ended=len(batch))
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
