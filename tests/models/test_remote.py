"""Models that run elsewhere: each path against a server without this package, equal to the same model here bit for bit."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models_under_test import loaded, pairs_for, without_stepper
from ndif_under_test import Server, hosting, strictly

import mless_interp as mi
from mless_interp.models.info import Inputs, ModelError, Tap
from mless_interp.models.load_options import Loading
from mless_interp.models.nnsight import NnsightModel, hosted

TOKENS = torch.arange(5, 29)[None]
MEGABYTE = 2**20


def weightless(folder: Path, there: Path) -> str:
    """The same folder without its weights: what a hub shows before they are fetched."""
    shutil.copytree(folder, there, ignore=shutil.ignore_patterns("*.safetensors"))
    return str(there)


@pytest.fixture
def both(tiny_model_dir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Server]:
    """A model here, the same on a server, and the server; what is here of the second has no weights."""
    here = loaded(tiny_model_dir("gemma3"), "nnsight")
    server = strictly(monkeypatch, Server(here))
    folder = weightless(tiny_model_dir("gemma3"), tmp_path / "elsewhere")
    hosting(monkeypatch, folder)
    there = mi.load_model(folder, remote=True)
    assert all(weight.is_meta for weight in there.underlying._module.parameters())
    assert server.requests and there.weights is None and there.info.weights_hash is None
    return here, there, server


def test_runs_records_and_sweeps_are_equal_to_those_here(both: Any) -> None:
    here, there, server = both
    pairs = pairs_for(here, count=2)
    n_loading = len(server.requests)

    sites = [f"blocks.1.{name}" for name in ("hook_resid_pre", "attn.hook_pattern", "attn.hook_rot_k", "mlp.hook_post")]
    capture = dict.fromkeys(sites) | {"blocks.2.attn.hook_z": lambda z: z.mean(1)}
    for inputs in (Inputs(TOKENS), pairs[0].condition("masked"), pairs[0].condition("gap")):
        ours, theirs = (model.run(inputs, capture=capture) for model in (here, there))
        assert torch.equal(ours.logits, theirs.logits)
        assert all(torch.equal(ours.captured[name], theirs.captured[name]) for name in capture)
    assert len(server.requests) == n_loading + 3

    first, second = (model.record(pairs[0].condition("masked"), start=20, logits_at="last") for model in (here, there))
    for name in ("resid_pre", "q", "k", "v", "z", "masks"):
        assert all(map(torch.equal, getattr(first, name), getattr(second, name))), name

    for edit in ("z", "knockout"):
        whole = without_stepper(here)
        whole.remote = False
        before = len(server.requests)
        heads = [mi.Head(layer, head) for layer in range(3) for head in range(8)]
        options: dict[str, Any] = {"edit": edit, "heads": heads, "progress": False, "max_rows": 28}
        ours, theirs = (mi.patch_heads(model, pairs[:1], **options) for model in (whole, there))
        assert (ours.patched == theirs.patched).all() and ours.receiving == theirs.receiving
        assert len(server.requests) == before + 3, "two runs, and one pass for all heads"

    assert server.largest < MEGABYTE
    known = "torch nnsight cloudpickle transformers collections functools _functools typing builtins".split()
    assert {name.partition(".")[0] for name in server.modules} <= {*known, "operator", "_operator", "types"}


def test_edits_that_cannot_be_written_down_and_weights_are_refused(both: Any) -> None:
    _, there, _ = both
    name = "blocks.0.attn.hook_z"
    with pytest.raises(ModelError, match=rf"the edit of {name} is a function of this process, which cannot be sent"):
        there.run(TOKENS, edits={name: lambda z: z * 2})
    with pytest.raises(ModelError, match="runs remotely, so its output weights are not here"):
        there.attention_output(0)
    assert there.identity["weights"].startswith("not read here") and there.identity["computed_on"] == "elsewhere"


def test_a_model_that_ndif_does_not_run_is_refused_with_those_that_it_does(
    tiny_model_dir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = loaded(tiny_model_dir("qwen2"), "nnsight")
    hosting(monkeypatch, key=None)
    with pytest.raises(ModelError, match="needs an API key of NDIF, .* NDIF_API_KEY"):
        mi.load_model("some/model", remote=True)
    folder = weightless(tiny_model_dir("qwen2"), tmp_path / "elsewhere")
    hosting(monkeypatch, folder)
    hosting(monkeypatch, "one/model", "two/model")
    with pytest.raises(ModelError, match="NDIF does not run .*elsewhere now; it runs a/model, one/model, two/model"):
        mi.load_model(folder, remote=True)
    hosting(monkeypatch, folder)
    halves = lambda self, tokens, capture, logits_at: SimpleNamespace(captured=dict.fromkeys(capture, tokens.half()))  # noqa: E731
    monkeypatch.setattr(NnsightModel, "run", halves)
    there = hosted(folder, Loading())
    assert (there.remote, there.positions, there.info.dtype, there.info.name) == (True, None, "float16", folder)
    assert there.operations == here.operations and there.tokenizer("a b").input_ids == here.tokenizer("a b").input_ids
    (step,) = there._steps(0, {"blocks.0.attn.hook_z": Tap(torch.zeros_like)}, None)
    assert step[-2:] == (torch.zeros_like, None), "an edit alone keeps nothing"
