"""What every test may use: shapes checked everywhere, no network, tiny models of each architecture, the shared data."""

import gc
import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Before torch, transformers or matplotlib are imported by anything. Several test processes share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")  # tests compare with tensors on the CPU; test_gpu.py asks for a GPU
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "agg"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import beartype  # noqa: F401 - before nnsight, which puts on every object what beartype cannot read
import checked_types
import pytest
from jaxtyping import config

import mless_interp.models.traced_ops  # noqa: F401 - sent to servers as it is written, so nothing is put around its functions

# Before anything else imports the package: every shape and type in its signatures is checked whenever a test calls it.
checked_types.install("mless_interp")


def pytest_collection_finish() -> None:
    """Look for garbage less often, and never in what the imports made: a million objects that stay."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture
def untyped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users call the package: no check of types, so that its own messages about wrong input are heard."""
    monkeypatch.setattr(config, "jaxtyping_disable", True)


ROOT = Path(__file__).resolve().parents[1]


needs_hooked_transformer = pytest.mark.skipif(
    int(version("transformer-lens").split(".")[0]) >= 4,
    reason=f"transformer-lens {version('transformer-lens')} has no HookedTransformer (3.9 is the last that has)",
)
BACKENDS = [pytest.param("hooked_transformer", marks=needs_hooked_transformer), "bridge", "nnsight"]
"""For `@pytest.mark.parametrize("backend", BACKENDS)`; import it with `from conftest import BACKENDS`."""


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend's name in turn; skipped with the reason where it is not installed."""
    return request.param


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Data that is not part of the project: `../shared` beside the checkout, or where MLESS_SHARED says."""
    folder = Path(os.environ.get("MLESS_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent (real tokenizers and MATH-500); set MLESS_SHARED to its place")
    return folder


@pytest.fixture(scope="session")
def tokenizer_dir(shared_dir: Path) -> Callable[[str], Path]:
    """`tokenizer_dir("qwen2_5" | "llama3_1" | "gemma3")`: the folder of a published tokenizer."""

    def folder_of(name: str) -> Path:
        folder = shared_dir / "tokenizers" / name
        if not folder.is_dir():
            pytest.skip(f"{folder} is absent")
        return folder

    return folder_of


@pytest.fixture(scope="session")
def math500_path(shared_dir: Path) -> Path:
    """MATH-500 as one .jsonl file."""
    path = shared_dir / "data" / "math500" / "test.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    return path


ARCHITECTURES = ("qwen2", "llama", "gemma3")
ONE_OF_EACH = [pytest.param("qwen2", "hooked_transformer", marks=needs_hooked_transformer), ("llama", "bridge")]
ONE_OF_EACH += [("gemma3", "nnsight")]
"""(architecture, backend): each of both once, for what depends on neither by itself."""

WORDS = """
    system user assistant You are a helpful assistant Please reason step by and put your final answer within boxed
    Question Answer Problem Solution Explain Express the of to is as What what How many much does have has he she they
    it Find Compute Let If then for each all with from at on number numbers sum total one two three four five six seven
    apples pears plums books coins cards red blue green more less Anna Ben Cleo Dan gets gives loses shares left first
    next day week river stone quiet lamp window table garden paper yellow morning bridge letter cloud winter road music
""".split()
SIGNS = list("/?!.,:;-+*=<>(){}[]\\$^#_")

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
COMMON = {
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "eos_token": "<eos>",
    "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    "clean_up_tokenization_spaces": False,
    "model_max_length": 512,
    "padding_side": "right",
}


def qwen2_tokenizer() -> Any:
    """Byte-level merges as Qwen's: " word", " /", "/" and each digit are one token, any other text is bytes; no BOS.

    It must be a Qwen2Tokenizer: for this architecture AutoTokenizer takes no other class, and this one takes from
    `tokenizer.json` only the vocabulary and the merges, never a pre-tokenizer of our own.
    """
    import json

    from tokenizers import pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    tokenizer = Qwen2Tokenizer(vocab={}).backend_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=5000, min_frequency=1, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([f" {word}" for word in WORDS + SIGNS], trainer)
    merged = json.loads(tokenizer.to_str())["model"]
    return Qwen2Tokenizer(
        vocab=merged["vocab"], merges=[tuple(pair) for pair in merged["merges"]], chat_template=CHATML, **COMMON
    )


def word_tokenizer() -> Any:
    """Words, digits and signs, one token each; white space only separates; a BOS begins every text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<pad>", "<eos>", "<bos>", *COMMON["additional_special_tokens"]]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys([*special, *"0123456789", *SIGNS, *WORDS]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", chat_template="{{ bos_token }}" + CHATML, **COMMON
    )


def tiny_model(architecture: str, tokenizer: Any) -> Any:
    """Three layers, eight query heads over two key-value heads; random weights large enough for uneven attention."""
    import torch
    import transformers

    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "original_max_position_embeddings": 256}
    rope |= {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    windows = {"sliding_window": 16, "head_dim": 16, "query_pre_attn_scalar": 16}
    windows |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    made, config, own = {
        "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {"tie_word_embeddings": True}),
        "llama": ("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": rope}),
        "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", windows),
    }[architecture]
    model = getattr(transformers, made)(getattr(transformers, config)(**own, **shape))
    generator = torch.Generator().manual_seed(0)
    norm = 0.0 if architecture == "gemma3" else 1.0  # Gemma's norms multiply by 1 + weight
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.1 if "norm" in name else 0.3 if name.endswith("bias") else 0.12
            weight.normal_(norm if "norm" in name else 0.0, spread, generator=generator)
    return model.eval()


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny_model_dir("qwen2" | "llama" | "gemma3")`: a folder with a random model, under 1 MB, and its tokenizer.

    The folder is shared by all tests of a process: read from it only.
    """
    made: dict[str, Path] = {}

    def directory(architecture: str) -> Path:
        if architecture not in made:
            folder = tmp_path_factory.mktemp(f"tiny-{architecture}")
            tokenizer = qwen2_tokenizer() if architecture == "qwen2" else word_tokenizer()
            tiny_model(architecture, tokenizer).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            made[architecture] = folder
        return made[architecture]

    return directory


architecture = pytest.fixture(lambda: "qwen2")
dtype = pytest.fixture(lambda: "float32")
attention = pytest.fixture(lambda: "eager")


@pytest.fixture
def model(request: pytest.FixtureRequest, architecture: str, dtype: str, attention: str, tiny_model_dir: Any) -> Any:
    """A tiny model of the kind that the test's parameters name, on its `backend` or a bridge; tests must not change it."""
    from models_under_test import loaded

    backend = request.getfixturevalue("backend") if "backend" in request.fixturenames else "bridge"
    return loaded(tiny_model_dir(architecture), backend, dtype, attention)


@pytest.fixture(scope="module")
def demo() -> Any:
    """The model of this package, on a bridge."""
    from mless_interp.models.load import load_model

    return load_model("demo", backend="bridge")


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from browser import browser

    with browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="session")
def planted_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small planted model (reader L0H2, mediator L1H4) and its 28 problems."""
    from mless_interp.core.heads import Head
    from mless_interp.ground_truth.planted import planted_model

    folder = tmp_path_factory.mktemp("planted") / "model"
    made = planted_model(readers=[Head(0, 2)], mediators=[Head(1, 4)], n_heads=8, n_key_value_heads=2, seed=5)
    made.save(folder, n_problems=28)
    return folder


@pytest.fixture
def nothing_is_remembered() -> None:
    """No answer of math-verify that an earlier test got."""
    from mless_interp.answers import math_verify_process

    math_verify_process._asked.cache_clear()
