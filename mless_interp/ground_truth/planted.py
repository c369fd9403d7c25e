"""Planted models: real Hugging Face language models, weights set in code, whose true heads are known.

A prompt is `system, inserted span, question, answer prefix`; the model answers with the largest number of the question. Its
parts, all exact functions of content, not of position:

- embeddings hold a large constant (it fixes RMSNorm's scale), the token's classes and the number's identity; all key-value
  heads expose the same features, in dimensions that RoPE hardly turns: any query head can play any role;
- the `copier` reads the numbers of the question, the larger the stronger, and writes them down;
- a `reader` writes what it reads of the unit's tokens to the *signal* channel; a head `against` with the opposite sign;
- a `mediator` attends to the question's numbers, never to the unit, and carries their *signal* on to the *carried* channel;
- `conditional` readers act behind a `switch`, `relay` heads behind a `span writer`, `recaller` heads behind a `thinker`;
- the last MLP multiplies the copied numbers by `2 + 2 (signal + carried)` (`4 - 2 (...)` with `sign=-1`), or by a step at one
  contribution (`combine="any"`) or at all of them (`"all"`), and the unembedding reads the product;
- decoys: `silent` attends to the unit more than any reader and has no output weights, `unread` writes where nobody reads,
  `avoids` has a larger output on the answer than any reader, but never attends to the unit;
- all else is small random weights, and a random rotation turns the residual basis.

Source: methods §8, §10, §17.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ..core.arguments import Arguments, check_count, checked
from ..core.heads import Head
from ..patching.prepared import Settings
from ..prompts.problems import Problem
from ..runtime.checkpoint import plain
from .roles import Roles, shares_and_gains
from .tokenizer import EOS, PAD, Vocabulary, build_tokenizer, draw_records, draw_vocabulary
from .weights import ROPE_THETA, PlantedWeights

MAX_POSITIONS = 2048


@dataclass(frozen=True, eq=False)
class PlantedModel:
    """A model with known heads; those without a role are idle. `shares`: the nominal part of the span's effect that each
    reader contributes and each mediator carries; `settings`: what `planted_model` was called with, defaults filled in."""

    hf_model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    roles: Roles
    shares: Mapping[Head, float]
    vocabulary: Vocabulary
    settings: Settings

    @property
    def truth(self) -> dict[Head, str]:
        """Each planted head's kind."""
        return self.roles.kinds

    @property
    def edges(self) -> dict[tuple[str, str], str]:
        """(sender, receiver) -> by which input of the receiver ("q", "v", "") it acts: all that carry anything."""
        return self.roles.edges()

    @property
    def name(self) -> str:
        return f"planted-{self.settings['seed']}"

    @checked
    def problems(
        self, n: int, *, seed: int = 0, n_clauses: tuple[int, int] = (0, 3), swap: bool = False
    ) -> tuple[Problem, ...]:
        """Draw `n` problems; problem i depends on `seed` and i only.

        A question names 2 or 3 of the numbers 2 to 13 and, by `n_clauses` (fewest, most), other clauses; the answer is the
        largest number, the distractor the second largest. `swap` exchanges them in half of all: a null for `logit_diff`.
        """
        check_count(n, name="n")
        records = draw_records(self.vocabulary, n, seed=seed, name=self.name, n_clauses=n_clauses, swap=swap)
        return tuple(map(Problem.from_dict, records))

    @checked
    def save(self, directory: str | Path, *, n_problems: int = 128) -> Path:
        """Write the model (safetensors), the tokenizer and `problems.jsonl`; the folder must be new."""
        directory = Path(directory)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ValueError(f"{directory} exists and is not an empty folder; choose another one or remove it")
        directory.mkdir(parents=True, exist_ok=True)
        self.hf_model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        records = draw_records(self.vocabulary, n_problems, seed=0, name=self.name)
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (directory / "problems.jsonl").write_text(lines, encoding="utf-8")
        return directory

    def __repr__(self) -> str:
        roles, s = ", ".join(f"{head} {kind}" for head, kind in self.truth.items()), self.settings
        shape = f"{s['n_layers']} layers, {s['n_heads']} query heads, {s['n_key_value_heads']} key-value heads"
        return f"PlantedModel({shape}, seed {s['seed']}: {roles})"


@checked
def planted_model(
    readers: Iterable[Head] | None = None,
    mediators: Iterable[Head] | None = None,
    *,
    decoys: Mapping[str, Iterable[Head]] | None = None,
    copier: Head | None = None,
    n_layers: int | None = None,
    n_heads: int = 28,
    n_key_value_heads: int = 4,
    seed: int = 0,
    sign: int = 1,
    reads: Sequence[str] = ("/",),
    noise: float = 5e-4,
    null: bool = False,
    conditional: Mapping[Head, Head] | None = None,
    against: Iterable[Head] = (),
    relayed: Mapping[Head, Head] | None = None,
    recalls: Mapping[Head, Head] | None = None,
    reads_from: Mapping[Head, Iterable[str]] | None = None,
    combine: str = "sum",
) -> PlantedModel:
    """Build a model whose readers, mediators and decoys are exactly the given heads (zero-based).

    Left out: two readers in layer 0 (with 28 heads `L0H13` and `L0H21`), one mediator in the layer after the first reader, if
    there is one, one decoy of each kind, the copier on a free head, and as many layers as the heads need, at least 2.

    - `seed`: vocabulary, token ids and every random weight; never which heads have which role.
    - `sign`: +1, the span raises the answer's log-probability; -1, it lowers it.
    - `reads`: the tokens that readers (and decoys) read, words or signs that stand in no prompt.
    - `noise`: standard deviation of the weights that should do nothing (output weights of idle heads, MLPs).
    - `null`: no reader and no mediator. Idle heads do about 0.005 nats; with `noise=0` the span changes nothing.
    - `conditional`: each conditional reader -> the earlier head that must see the span for it to look at it.
    - `against`: readers that take back a quarter of what all readers bring.
    - `relayed`: each reader of what the span's own rows hold -> the earlier head that writes it there.
    - `recalls`: each reader of what a span after the question made of it -> the earlier head that makes it there.
    - `reads_from`: reader -> the tokens in whose rows alone it looks at the span: `"\\boxed{"` (which predicts the answer),
      numbers "2" to "13" (only mediators hand on what is written there), or both. One number: it acts in a few problems.
    - `combine`: "sum", contributions add up; "any", each is enough; "all", all are needed. The last two for two or more
      readers without mediators, or one reader from rows of numbers and two or more mediators.

    Readers' nominal `.shares` of the span's effect add up to 1, a mediator's is the part of theirs that passes through it. One
    below 0.1 is refused: such heads do not differ from noise. Weights are computed in float64 and held in float32.

    >>> planted_model(n_heads=8, n_key_value_heads=2).truth
    {L0H0: 'silent', L0H1: 'unread', L0H3: 'reader', L0H6: 'reader', L1H0: 'avoids', L1H1: 'mediator', L1H2: 'copier'}
    """
    if n_heads < 1 or n_key_value_heads < 1 or n_heads % n_key_value_heads:
        raise ValueError(f"n_heads must be a multiple of n_key_value_heads, got {n_heads} and {n_key_value_heads}")
    if sign not in (1, -1):
        raise ValueError(f"sign must be 1 (the span helps the answer) or -1 (it hurts), got {sign}")
    asked: Arguments = {"readers": readers, "mediators": mediators, "decoys": decoys, "copier": copier}
    asked |= {"conditional": conditional, "against": against, "relayed": relayed, "recalls": recalls}
    asked |= {"reads_from": reads_from, "combine": combine}
    roles = Roles.fill(n_layers=n_layers, n_heads=n_heads, null=null, **asked)
    shares, gains = shares_and_gains(roles, seed)
    vocabulary = draw_vocabulary(seed)
    if not reads:
        raise ValueError("reads must name tokens, such as '/'")
    if unfit := [token for token in reads if token not in vocabulary.tokens or vocabulary.in_prompts(token)]:
        raise ValueError(f"reads: {unfit[0]!r} is part of the prompts or unknown to this model; choose one such as '/'")
    plan = PlantedWeights(vocabulary, roles, gains, reads, n_heads, n_key_value_heads, seed, sign, noise)
    config = LlamaConfig(
        vocab_size=len(vocabulary.tokens),
        hidden_size=plan.d_model,
        intermediate_size=plan.d_mlp,
        num_hidden_layers=roles.n_layers,
        num_attention_heads=n_heads,
        num_key_value_heads=n_key_value_heads,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        pad_token_id=vocabulary.tokens.index(PAD),
        eos_token_id=vocabulary.tokens.index(EOS),
        bos_token_id=None,
        architectures=[LlamaForCausalLM.__name__],
        dtype=torch.float32,
    )
    # the random initialisation is replaced, and the caller's generator left alone
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    model.float().load_state_dict(plan.state_dict())
    said = vars(roles) | {"n_heads": n_heads, "n_key_value_heads": n_key_value_heads, "seed": seed, "sign": sign}
    said |= {"reads": reads, "noise": noise, "null": null}
    tokenizer = build_tokenizer(vocabulary.tokens, model_max_length=MAX_POSITIONS)
    return PlantedModel(model.eval(), tokenizer, roles, shares, vocabulary, settings=plain(said))
