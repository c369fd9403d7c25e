"""What meaningless tokens do inside language models, and which attention heads carry it.

Every public name is imported from here and resolved when it is first used, so that `import mless_interp` is light: no
torch, transformer_lens, nnsight, matplotlib or circuitsvis is loaded before it is needed.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Head": "heads",
    "Problem": "problems",
    "load_problems": "problems",
    "Prompt": "prompts",
    "Template": "prompts",
    "build_prompt": "prompts",
    "Insertion": "insertions",
    "PromptPair": "pairs",
    "insert_tokens": "pairs",
    "make_pairs": "pairs",
    "Model": "models.base",
    "ModelError": "models.base",
    "Inputs": "models.base",
    "load_model": "models.load",
    "wrap_model": "models.load",
    "check_model": "models.checks",
    "certify_model": "certificate",
    "Certificate": "certificate",
    "score_heads": "scores",
    "HeadScores": "scores",
    "attention_profile": "scores",
    "AttentionProfile": "scores",
    "score_cache": "scores",
    "attribute_heads": "attribution",
    "HeadAttribution": "attribution",
    "planted_model": "models.planted",
    "random_planted": "models.planted",
    "PlantedModel": "models.planted",
    "locate_heads": "locate",
    "LocatedHeads": "located",
    "enrichment": "located",
    "joint_knockout": "joint",
    "JointKnockout": "joint",
    "circuit_curve": "circuits",
    "CircuitCurve": "circuits",
    "decompose_attention": "mechanism",
    "AttentionDecomposition": "mechanism",
    "attention_parts": "mechanism",
    "mediate": "mechanism",
    "Mediation": "mechanism",
    "ARM": "mechanism",
    "activation_shift": "mechanism",
    "ActivationShift": "mechanism",
    "dose_response": "dose",
    "DoseResponse": "dose",
    "grade_strict": "accuracy",
    "grade_lenient": "accuracy",
    "grade_paper": "accuracy",
    "AccuracyResults": "accuracy",
    "Condition": "accuracy",
    "evaluate_accuracy": "accuracy",
    "patch_heads": "patching",
    "PatchScores": "patch_scores",
    "one_line_errors": "command_line",
    "chosen_heads": "command_line",
    "chosen_numbers": "command_line",
    "chosen_problems": "command_line",
    "repeat_command": "command_line",
    "save": "store",
    "load": "store",
    "new_folder": "store",
    "refuse_existing": "store",
    "Report": "views.report",
    "provenance": "store",
}
_MODULES: tuple[str, ...] = (
    "accuracy",
    "command_line",
    "heads",
    "identities",
    "insertions",
    "interventions",
    "mechanism",
    "metrics",
    "models",
    "paper",
    "patching",
    "problems",
    "prompts",
    "shapes",
)
_MODULES += ("scores", "statistics", "store", "views")

__all__ = [*_PUBLIC, *_MODULES, "__version__"]


def save(path: Any, *results: Any, **options: Any) -> Any:
    """Save results of this toolkit in one folder; see `mless_interp.store.save`.

    The one name that is not lazy: importing nnsight gives every Python object, this module too, a method `save`, which
    would be found before `__getattr__` is asked.
    """
    from .store import save as save_results

    return save_results(path, *results, **options)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("mless_interp")
    if name in _PUBLIC:
        value = getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
