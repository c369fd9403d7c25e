"""What is known of each architecture, and the recipe that follows from it, against the model itself: no library runs it."""

from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from architectures_under_test import BUILDS, KEPT, described, random_model
from conftest import needs_hooked_transformer, word_tokenizer

from mless_interp.models.architectures import HuggingFaceLayers, Positions, decoder_layers, decoder_of
from mless_interp.models.attention_math import mix_values, pattern_of, visibility
from mless_interp.models.hugging_face import hugging_face_info
from mless_interp.models.info import Inputs, ModelError, Recording
from mless_interp.models.replay import Layers, Stepper, stage
from mless_interp.models.sites import site
from mless_interp.models.transformer_lens import CONVERTERS, hooked_transformer_from

TOKENS = (torch.arange(24) * torch.tensor([[7], [11]]) + 5) % 60  # two prompts, beyond a window of 16
START, HEADS = 9, 8
EACH = [name for name in BUILDS if "LoRA" not in name]


@cache
def plain(name: str) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A model, its logits, and the stream before its first layer."""
    model, seen = random_model(name), []
    first = next(getattr(decoder_of(model), at) for at in ("layers", "h") if hasattr(decoder_of(model), at))[0]
    hook = first.register_forward_pre_hook(
        lambda part, args, kwargs: seen.append(kwargs.get("hidden_states", args[0] if args else None)), with_kwargs=True
    )
    with torch.no_grad():
        logits = model(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS), use_cache=False).logits
    hook.remove()
    return model, logits, seen[0]


class Decoder:
    """A decoder by the recipe, every layer from the first on, every pattern written out."""

    def __init__(self, layers: Layers, resid: torch.Tensor, windows: Any, mask: Any = None, places: Any = None) -> None:
        self.layers, self.embedded, self.inputs = layers, resid, Inputs(TOKENS, places, mask)
        self.masks = [visibility(self.inputs, windows[layer]) for layer in range(layers.n_layers)]
        self.streams: list[torch.Tensor] = []

    @torch.no_grad()
    def __call__(self, z: Any = None, added: Any = None, gated: Any = None, moved: Any = None) -> torch.Tensor:
        """Logits; `z[layer]` takes the place of head outputs from START on, `added[stage]` is added to the stream there,
        `moved[layer]` to head outputs, and `gated` changes patterns."""
        layers, resid, self.streams, self.seen = self.layers, self.embedded, [], []
        later = lambda change: 0 if change is None else torch.nn.functional.pad(change, (0, 0, START, 0))  # noqa: E731
        for layer in range(layers.n_layers):
            resid = resid + later((added or {}).get(2 * layer))
            q, k, v = layers.project(layer, resid, self.inputs.positions)
            pattern = pattern_of(q, k, self.masks[layer], layers.rule(layer))
            out = mix_values(pattern if gated is None else gated(layer, pattern), v)
            out[:, START:] = (z or {}).get(layer, out[:, START:]) + (0 if moved is None else moved[layer])
            self.seen.append((resid[:, START:], q[:, START:], k, v, out[:, START:]))
            mid = resid + layers.attention_out(layer, out) + later((added or {}).get(2 * layer + 1))
            resid = mid + layers.mlp_out(layer, resid if layers.parallel(layer) else mid)
        return layers.unembed(resid + later((added or {}).get(2 * layers.n_layers)))

    def recorded(self) -> Recording:
        logits = self()
        resid, q, k, v, z = zip(*self.seen, strict=True)
        masks = tuple(mask[:, :, START:] for mask in self.masks)
        return Recording(self.inputs, START, logits, resid, q, k, v, z, masks)


@pytest.mark.parametrize("name", EACH)
def test_what_is_known_of_an_architecture_is_what_it_was(name: str) -> None:
    kept = dict(each.split("\n", 1) for each in KEPT.read_text(encoding="utf-8").strip().split("=== ")[1:])
    assert described(name, plain(name)[0]).split("\n", 1)[1] == kept[name].strip()


@pytest.mark.parametrize("name", EACH)
def test_a_decoder_layer_by_layer_is_the_model(name: str) -> None:
    """And queries and keys are taken back to where they came from."""
    model, logits, resid = plain(name)
    info = hugging_face_info(model)
    parts = decoder_layers(model, info)
    known = Positions.of(model, parts)
    layers = HuggingFaceLayers.of(model, parts, known, d_head=info.d_head)
    if name == "OPT, norms after":
        assert layers is None
        return
    torch.testing.assert_close(Decoder(layers, resid, info.windows)(), logits, rtol=1e-4, atol=1e-4)
    for layer in (0, 1):
        places = torch.arange(24)[None]
        x = torch.randn(2, 1, 24, 2, info.d_key or info.d_head, generator=torch.Generator().manual_seed(layer))
        there = known.enter(layer, *x, places)
        for mine, back in zip(x, known.enter(layer, *there, places, back=True), strict=True):
            torch.testing.assert_close(back, mine, rtol=1e-4, atol=1e-5)


@needs_hooked_transformer
@pytest.mark.parametrize("name", EACH)
def test_a_hooked_transformer_is_the_model_it_was_made_of(name: str) -> None:
    model, logits, _ = plain(name)
    kind, why = type(model).__name__, "cannot be converted: (its parts are not known|rotary scaling 'longrope')"
    if kind not in CONVERTERS or name in ("OPT, norms after", "Phi-3, longrope"):
        with pytest.raises(ModelError, match=why if kind in CONVERTERS else f"{kind} cannot be converted to a Hooked"):
            hooked_transformer_from(model, word_tokenizer(), name=name)
        return
    hooked = hooked_transformer_from(model, word_tokenizer(), name=name)
    run = hooked.run(TOKENS)
    assert hooked.info.backend == "hooked_transformer"
    torch.testing.assert_close(run.logits, logits, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(run.logits, hooked.underlying(TOKENS)), "bit for bit"
    gap = (torch.arange(24) >= START) * (3 if hooked.learned_positions else 2.5)
    for places in (None, (torch.arange(24) + gap)[None]):
        run = hooked.run(Inputs(TOKENS, places), capture={site(0, "hook_resid_pre"): None})
        made = Decoder(hooked.layers, run.captured[site(0, "hook_resid_pre")], hooked.info.windows, places=places)
        torch.testing.assert_close(made(), run.logits, rtol=1e-4, atol=1e-4)


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_row(found: torch.Tensor, expected: list[torch.Tensor], read: torch.Tensor) -> None:
    """Logits `[batch x row, read, vocab]` against a whole run per row."""
    wanted = torch.stack(expected, 1)[:, :, read + START].flatten(0, 1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert float(wanted.unflatten(0, (2, -1)).std(1).max()) > 1e-2, "the rows differ"


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("name", ["Llama", "GPT-OSS", "Gemma 2", "Falcon 7B", "GPT-NeoX (Pythia)"])
def test_a_continued_run_is_a_whole_one(name: str, per_head: bool) -> None:
    """From other head outputs, from changes of the stream at every stage, and with gates on attention to a span."""
    model, _, resid = plain(name)
    info = hugging_face_info(model)
    parts = decoder_layers(model, info)
    layers = HuggingFaceLayers.of(model, parts, Positions.of(model, parts), d_head=info.d_head)
    hidden = torch.rand(
        2 if per_head else 1, HEADS if per_head else 1, 24, 24, generator=torch.Generator().manual_seed(3)
    )
    whole = Decoder(layers, resid, info.windows, (hidden > 0.3) if per_head else None)
    recording, stepper, n = whole.recorded(), Stepper(layers, nullcontext), info.n_layers
    changed, read = 24 - START, torch.tensor([2, 11])  # nobody reads what comes later

    joins = [0, 1, 1, n - 1, n - 1]
    z = [recording.z[layer] + noise(at, 2, changed, HEADS, info.d_head) for at, layer in enumerate(joins)]
    with torch.no_grad():
        found = stepper.replay(recording, joins, torch.stack(z, 1).flatten(0, 1), read)
    by_row(found, [whole(z={layer: new}) for layer, new in zip(joins, z, strict=True)], read)

    stages = list(range(0, 2 * n + 1, 2 if layers.parallel(0) else 1))
    steps = [noise(at, 2, changed, info.d_model) for at in stages]
    with torch.no_grad():
        found = stepper.replay(recording, stages, torch.stack(steps, 1).flatten(0, 1), read)
    by_row(found, [whole(added={at: step}) for at, step in zip(stages, steps, strict=True)], read)
    halves = [stage(layers, 1, part) for part in ("input", "attention", "mlp", "output")]
    assert halves == [2, 4 if layers.parallel(1) else 3, 4, 4]

    span, rows = (
        torch.zeros(2, 24, dtype=torch.bool),
        torch.rand(2, 24, generator=torch.Generator().manual_seed(4)) > 0.4,
    )
    span[0, 2:7], span[1, 3:12] = True, True
    shares = torch.rand(4, n, HEADS, generator=torch.Generator().manual_seed(5))
    ones = torch.ones_like(shares)
    ones[0, 1, 2], ones[1, 1:, 4:], ones[2, 2, 1] = 0, 0, 0
    moved = [noise(10 + layer, 2, changed, HEADS, info.d_head) for layer in range(n)]
    for gates, only, of_rows, offsets in (
        (shares, (), None, None),
        (shares, (), rows, moved),
        (ones, (1, 2), None, None),
    ):
        given: Any = {"gates": gates, "span": span, "rows": of_rows, "gated_layers": only}
        if offsets is not None:
            given["offsets"] = [each.repeat_interleave(len(gates), 0) for each in offsets]
        expected = []
        for gate in gates:

            def gated(layer: int, pattern: torch.Tensor, gate: Any = gate, of_rows: Any = of_rows) -> torch.Tensor:
                asks = (torch.arange(24) >= START)[None] & (True if of_rows is None else of_rows)
                inside = (asks[:, :, None] & span[:, None])[:, None].float()
                kept = pattern * (1 - inside + inside * gate[layer][:, None, None])
                return kept / (kept.sum(-1, keepdim=True) + 1 - pattern.sum(-1, keepdim=True))

            expected.append(whole(gated=gated, moved=offsets))
        with torch.no_grad():
            by_row(stepper.tail(recording, read, **given), expected, read)
    with torch.no_grad():
        torch.testing.assert_close(
            stepper.tail(recording, read), recording.logits[:, read + START], rtol=1e-4, atol=1e-4
        )
