"""What meaningless tokens do inside language models, and which attention heads carry it.

Every public name is imported from here and resolved when it is first used, so that `import mless_interp` is light: no
torch, transformer_lens, nnsight, matplotlib or circuitsvis is loaded before it is needed. A result is saved under its
name in this list (`running.store`), so this is also where a saved folder finds its classes.
"""

from typing import Any

import lazy_loader

PUBLIC = {
    "heads": ["Head"],
    "prompts": [
        "Insertion",
        "Problem",
        "Prompt",
        "PromptPair",
        "Template",
        "build_prompt",
        "insert_tokens",
        "insertions",
        "load_problems",
        "make_pairs",
        "problems",
        "problems_from_file",
        "problems_from_texts",
        "with_examples",
    ],
    "models.base": ["Model"],
    "models.info": ["ModelError"],
    "models.inputs": ["Inputs"],
    "models.load": ["load_model", "wrap_model"],
    "models.checks": ["check_model"],
    "ground_truth.planted": ["PlantedModel", "planted_examples", "planted_model", "random_planted"],
    "identities.certificate": ["Certificate", "certify_model"],
    "scores": [
        "AttentionProfile",
        "HeadScores",
        "SegmentAttention",
        "attention_between_segments",
        "attention_profile",
        "score_cache",
        "score_heads",
    ],
    "patching": ["PatchScores", "interventions", "patch_heads"],
    "patching.attribution": ["HeadAttribution", "attribute_heads"],
    "patching.dose": ["DoseResponse", "dose_response"],
    "patching.joint": ["JointKnockout", "joint_knockout"],
    "patching.reads": ["ReadEffects", "read_effects"],
    "patching.transplant": ["Transplant", "transplant_span"],
    "mechanism": [
        "ARM",
        "ActivationShift",
        "AttentionDecomposition",
        "AttentionParts",
        "Mediation",
        "activation_shift",
        "attention_parts",
        "decompose_attention",
        "mediate",
    ],
    "locating.curves": ["CircuitCurve", "circuit_curve"],
    "locating.confirmation": ["Confirmation"],
    "locating.locate": ["locate_heads"],
    "locating.located": ["LocatedHeads"],
    "circuits.direct": ["DirectEffects", "direct_effects"],
    "circuits.head_writes": ["HeadWrites", "what_it_writes"],
    "circuits.head_sets": ["HeadSet", "MinimalSets"],
    "circuits.head_transfer": ["HeadTransfer"],
    "circuits.minimal_sets": ["minimal_sets"],
    "circuits.transfer": ["Transfer", "transfer"],
    "circuits.paths": ["Edge", "PathEffects", "trace_paths"],
    "circuits.site_patches": ["PositionMap", "SitePatches", "map_positions", "patch_sites"],
    "grading": ["grade_lenient", "grade_paper", "grade_strict"],
    "accuracy": ["AccuracyResults", "Comparison", "Comparisons", "LinkedAccuracy", "Treatment", "evaluate_accuracy"],
    "studies.asked": ["read_study"],
    "studies.conduct": ["run_study"],
    "studies.studied": ["StudyResult"],
    "paper": ["ClaimChecks", "Enrichment", "enrichment"],
    "running": ["store"],
    "running.folders": ["new_folder", "refuse_existing"],
    "generation.vllm": ["Vllm"],
    "running.store": ["load", "provenance"],
    "running.work": ["Shard", "ShardDone"],
    "running.workers": ["RayWorkers"],
    "views.report": ["Report"],
    "command_line": [
        "chosen_heads",
        "chosen_names",
        "chosen_numbers",
        "chosen_problems",
        "one_line_errors",
        "repeat_command",
    ],
}
"""module -> its public names."""
ROOMS = [
    "accuracy",
    "circuits",
    "command_line",
    "commands",
    "generation",
    "grading",
    "ground_truth",
    "heads",
    "identities",
    "locating",
    "mechanism",
    "metrics",
    "models",
    "paper",
    "patching",
    "prompts",
    "running",
    "scores",
    "shapes",
    "statistics",
    "studies",
    "views",
]

SHOWN = ("grading", "metrics", "paper", "statistics", "views")
"""Rooms that a notebook offers after `mi.`; the others, and what scripts alone use, are there without being offered."""
FOR_SCRIPTS = ("command_line", "running", "running.folders")

_attribute, _, __all__ = lazy_loader.attach(__name__, ROOMS, PUBLIC)
__all__ += ["__version__", "save"]


def __dir__() -> list[str]:
    """What a researcher uses."""
    hidden = {name for module in FOR_SCRIPTS for name in PUBLIC[module]} | set(ROOMS) - set(SHOWN)
    return sorted(set(__all__) - hidden)


def save(path: Any, *results: Any, **options: Any) -> Any:
    """Save results of this toolkit in one folder; see `mless_interp.running.store.save`.

    The one name that is not lazy: importing nnsight gives every Python object, this module too, a method `save`, which
    would be found before `__getattr__` is asked.
    """
    from .running.store import save as save_results

    return save_results(path, *results, **options)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("mless_interp")
    return _attribute(name)
