"""Train the demo model: `python tools/demo_training/train.py --out DIR --seed 0`.

Two phases: the task itself, then the same with drafts, stories in which a row of slashes says that their numbers cannot
be trusted (`task.py`). The same seed, settings, number of threads, torch build and kind of processor give the same
weights. A run that was stopped goes on from its last checkpoint and ends at the weights of an uninterrupted one.
"""

import hashlib
import json
import math
import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import task
import torch
import transformers
import typer
from measure import measure
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

N_PROBLEMS = 564
CHECKPOINT = "checkpoint.pt"
POOL = 8  # batches drawn together and sorted by length
FRAME_WEIGHT = 0.1  # weight of the loss on the answer's other words, next to 1 on its number
PERSON_WEIGHT = 0.5  # weight of the loss on whom a word is about, in drills
PERSON_LAYERS = 2  # the layers after which that is to be known
IGNORED = -100
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<' + message['role'] + '> ' + message['content'] }}"
    "{% if not loop.last or add_generation_prompt %}{{ ' ' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


@dataclass(frozen=True)
class Settings:
    """What decides the weights, beside the number of threads and the torch build."""

    seed: int = 0
    steps: int = 560
    batch: int = 128
    learning_rate: float = 2e-3
    warmup: int = 50
    weight_decay: float = 0.01
    drills: float = 0.22  # share of the steps with drills
    lookup_only: float = 0.35  # share of the steps before copies come in
    smoothing: float = 0.1  # of the answers' labels: keeps the model from becoming certain
    draft_steps: int = 160  # the second phase, after `steps`
    draft_batch: int = 96
    draft_learning_rate: float = 5e-4
    draft_warmup: int = 10
    drafts: float = 0.35  # share of the second phase's stories that are drafts
    untrue: float = 0.7  # share of the drafts' answers that are random numbers
    hidden: int = 224
    intermediate: int = 256
    layers: int = 4
    heads: int = 28
    key_value_heads: int = 4

    @property
    def last(self) -> int:
        """Steps of both phases together."""
        return self.steps + self.draft_steps


@dataclass(frozen=True)
class Batch:
    """Token ids, position ids, tokens to predict (or `IGNORED`), their weights, people (or `IGNORED`), all `[b, t]`."""

    ids: Tensor
    position_ids: Tensor
    targets: Tensor
    weights: Tensor
    people: Tensor


@dataclass(frozen=True)
class Spent:
    """What training has taken so far; the CPU time is that of all threads together."""

    wall_seconds: float
    cpu_seconds: float


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The word-level tokenizer: split on whitespace, one token per word."""
    words = task.vocabulary()
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=task.UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=task.UNKNOWN,
        pad_token=task.PAD,
        eos_token=task.EOS,
        additional_special_tokens=[task.SYSTEM_TURN, task.USER_TURN, task.ASSISTANT_TURN],
        clean_up_tokenization_spaces=False,
        model_max_length=512,
        padding_side="left",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(settings: Settings) -> Qwen2ForCausalLM:
    """A Qwen2 with random weights, drawn from the seed."""
    words = task.vocabulary()
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=settings.hidden,
        intermediate_size=settings.intermediate,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.key_value_heads,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        initializer_range=0.05,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=words.index(task.EOS),
        pad_token_id=words.index(task.PAD),
        architectures=["Qwen2ForCausalLM"],
    )
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = Qwen2ForCausalLM(config)
        _towards_lookup(model)
    return model


def _towards_lookup(model: Qwen2ForCausalLM) -> None:
    """Bend the random start towards attention to like content and towards copying it, which a lookup needs.

    Half of every query and output projection becomes that of its key and value head (after Trockman and Kolter 2023,
    arXiv 2305.09828), and a word's own embedding is made to stand out from what the untrained layers add to it.
    """
    n_heads = model.config.num_attention_heads
    with torch.no_grad():
        model.model.embed_tokens.weight *= 3
        for layer in model.model.layers:
            attention = layer.self_attn
            share = attention.num_key_value_groups
            like = attention.k_proj.weight.chunk(n_heads // share)
            copied = attention.v_proj.weight.chunk(n_heads // share)
            queries = attention.q_proj.weight.chunk(n_heads)
            outputs = attention.o_proj.weight.chunk(n_heads, dim=1)
            for head in range(n_heads):
                queries[head].add_(like[head // share])
                outputs[head].add_(copied[head // share].T).mul_(0.3)
            attention.k_proj.weight *= 1.5
            layer.mlp.down_proj.weight *= 0.3


def pool_of_batches(pool: int, settings: Settings) -> list[Batch]:
    """The batches of steps `pool * POOL` and following: a function of the seed and the pool's number alone."""
    rng = random.Random(f"demo training {settings.seed} {pool}")
    done = pool * POOL / settings.steps
    mixture = task.LOOKUP_ONLY if done < settings.lookup_only else task.TRAINED
    ids = {word: i for i, word in enumerate(task.vocabulary())}
    if done < settings.drills:
        size = settings.batch // 2
        prompts = [task.draw_drill(rng) for _ in range(POOL * size)]
    elif done >= 1:
        size = settings.draft_batch
        shares = {"drafts": settings.drafts, "untrue": settings.untrue}
        prompts = [task.draw_training_prompt(rng, **shares) for _ in range(POOL * size)]
    else:
        size = settings.batch
        prompts = [task.draw_training_prompt(rng, mixture) for _ in range(POOL * size)]
    prompts.sort(key=lambda prompt: len(prompt.words))
    batches = []
    for start in range(0, len(prompts), size):
        chunk = prompts[start : start + size]
        length = max(len(prompt.words) for prompt in chunk)
        tokens = torch.full((len(chunk), length), ids[task.PAD])
        targets = torch.full((len(chunk), length), IGNORED)
        people = targets.clone()
        weights = torch.zeros(len(chunk), length)
        positions = torch.arange(length).repeat(len(chunk), 1)
        for row, prompt in enumerate(chunk):
            n = len(prompt.words)
            tokens[row, :n] = torch.tensor([ids[word] for word in prompt.words])
            targets[row, :n] = torch.tensor([ids[word] if word else IGNORED for word in prompt.targets])
            weights[row, :n] = torch.tensor([1.0 if word in task.NUMBERS else FRAME_WEIGHT for word in prompt.targets])
            people[row, :n] = torch.tensor([ids[word] if word else IGNORED for word in prompt.people])
            if rng.random() < 0.25:
                positions[row] += rng.randint(0, 40)
            if rng.random() < 0.5:
                positions[row, prompt.n_before :] += rng.randint(0, 100)
        batches.append(Batch(tokens, positions, targets, weights, people))
    rng.shuffle(batches)
    return batches


def batches_from(step: int, settings: Settings) -> Iterator[Batch]:
    """The batches of step `step` and all following steps."""
    while step < settings.last:
        for batch in pool_of_batches(step // POOL, settings)[step % POOL :]:
            yield batch
            step += 1


def loss_and_accuracy(model: Qwen2ForCausalLM, batch: Batch, smoothing: float) -> tuple[Tensor, float]:
    """Loss in nats, and the share of numbers that are the argmax.

    The loss is the weighted mean cross-entropy over the answers' words; in drills also that of the people, read from
    the residual stream after `PERSON_LAYERS` layers: an answer can only be looked up by later layers once earlier ones
    have marked each number with its owner and the answer's place with the person asked about.

    The mask is ones although there are pads: they come last, so causality hides them. Without a mask, transformers
    would take the gaps in the position ids for the borders of packed sequences.
    """
    run = model.model(
        input_ids=batch.ids,
        attention_mask=torch.ones_like(batch.ids),
        position_ids=batch.position_ids,
        use_cache=False,
        output_hidden_states=True,
    )
    chosen = batch.targets != IGNORED
    logits = model.lm_head(run.last_hidden_state[chosen])
    targets, weights = batch.targets[chosen], batch.weights[chosen]
    losses = cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    right = (logits.argmax(-1) == targets)[weights == 1.0].float().mean().item()
    loss = (losses * weights).sum() / weights.sum()
    taught = batch.people != IGNORED
    if taught.any():
        early = run.hidden_states[min(PERSON_LAYERS, len(run.hidden_states) - 1)][taught]
        loss = loss + PERSON_WEIGHT * cross_entropy(model.lm_head(model.model.norm(early)), batch.people[taught])
    return loss, right


def learning_rate(step: int, settings: Settings) -> float:
    """In either phase a linear warm-up, then a cosine down to a fiftieth."""
    highest, warmup, steps = settings.learning_rate, settings.warmup, settings.steps
    if step >= settings.steps:
        step, highest = step - settings.steps, settings.draft_learning_rate
        warmup, steps = settings.draft_warmup, settings.draft_steps
    if step < warmup:
        return highest * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return highest * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


def train(
    out: Path, settings: Settings, *, save_every: int = 100, stop_at: int | None = None, progress: bool = False
) -> tuple[Qwen2ForCausalLM, Spent]:
    """Train to the end (or to step `stop_at`), from the checkpoint in `out` if there is one."""
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / CHECKPOINT
    model = build_model(settings)
    model.train()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98))
    step, before = 0, Spent(0.0, 0.0)
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        if state["settings"] != asdict(settings):
            raise ValueError(
                f"{checkpoint} was written under other settings: {state['settings']}, and now {asdict(settings)}. "
                "Use the same settings, or delete the checkpoint to start afresh."
            )
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, before = state["step"], Spent(**state["spent"])
    start = Spent(time.perf_counter(), time.process_time())
    last = settings.last if stop_at is None else min(stop_at, settings.last)

    def spent() -> Spent:
        wall, cpu = time.perf_counter() - start.wall_seconds, time.process_time() - start.cpu_seconds
        return Spent(before.wall_seconds + wall, before.cpu_seconds + cpu)

    for batch in batches_from(step, settings):
        if step >= last:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings)
        loss, accuracy = loss_and_accuracy(model, batch, settings.smoothing)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if progress and (step % 10 == 0 or step == last):
            so_far = f"step {step}/{settings.last}  loss {loss.item():.4f}  right {accuracy:.3f}"
            typer.echo(f"{so_far}  {spent().wall_seconds:.0f} s")
        if step % save_every == 0 or step == last:
            state = {
                "settings": asdict(settings),
                "step": step,
                "spent": asdict(spent()),
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            torch.save(state, checkpoint.with_suffix(".tmp"))
            os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
    model.eval()
    return model, spent()


def save(model: Qwen2ForCausalLM, out: Path) -> None:
    """Write the weights in bfloat16, the tokenizer, the generation settings and the held-out problems."""
    model.bfloat16()
    eos, pad = model.config.eos_token_id, model.config.pad_token_id
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad, do_sample=False, max_new_tokens=16)
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    build_tokenizer().save_pretrained(out)
    with (out / "problems.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for problem in task.draw_problems(N_PROBLEMS):
            file.write(json.dumps(problem) + "\n")


def main(
    out: Annotated[Path, typer.Option(help="Folder for the weights, the tokenizer, the problems and the figures.")],
    seed: Annotated[int, typer.Option(help="Decides the weights at the start and every batch.")] = 0,
    steps: Annotated[int, typer.Option(help="Optimizer steps of the first phase.")] = Settings.steps,
    threads: Annotated[int, typer.Option(help="Torch threads; another number gives slightly different weights.")] = 1,
    quiet: Annotated[bool, typer.Option(help="Print nothing while training.")] = False,
) -> None:
    """Train the demo model, round it to bfloat16, load it back, measure it, and hold it against the criteria."""
    torch.set_num_threads(threads)
    settings = Settings(seed=seed, steps=steps)
    model, spent = train(out, settings, progress=not quiet)
    save(model, out)
    figures = {
        "settings": asdict(settings),
        "parameters": model.num_parameters(),
        "wall_seconds": round(spent.wall_seconds),
        "cpu_seconds": round(spent.cpu_seconds),
        "threads": threads,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
        **measure(out),
    }
    (out / "training.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    (out / CHECKPOINT).unlink()
    if not quiet:
        typer.echo(json.dumps(figures, indent=2))
    missed = [f"{name}: {found['value']}" for name, found in figures["criteria"].items() if not found["met"]]
    if missed:
        typer.echo(f"These weights miss what was asked of them: {'; '.join(missed)}", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
