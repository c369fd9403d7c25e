"""What meaningless tokens do inside language models, and through which attention heads.

Every public name is imported from here and resolved when it is first used, so that `import mless_interp` is light: no
torch, transformer_lens, nnsight, matplotlib or circuitsvis is loaded before it is needed. What is typed less often stands
in its room: `mi.prompts.build_prompt`.
"""

from typing import Any

import lazy_loader

PUBLIC = {
    "core.heads": ["Head"],
    "prompts.insertions": ["Insertion"],
    "prompts.own_ids": ["pairs_from_ids"],
    "prompts.pairs": ["PromptPair", "make_pairs"],
    "prompts.problems": ["Problem", "load_problems"],
    "prompts.texts": ["problems_from_texts", "with_examples"],
    "models.base": ["Model"],
    "models.info": ["ModelError"],
    "models.load": ["load_model", "untrained_twin", "wrap_model"],
    "ground_truth.planted": ["planted_model"],
    "ground_truth.certificate": ["certify_model"],
    "ground_truth.compare_hook": ["compare_capture", "compare_hook"],
    "scores": ["attention_between_segments", "attention_profile", "score_cache", "score_heads"],
    "patching": ["patch_heads"],
    "patching.attribution": ["attribute_heads"],
    "patching.dose": ["dose_response"],
    "patching.knockouts": ["joint_knockout", "read_effects"],
    "patching.transplant": ["transplant_span"],
    "mechanism": ["ARM", "activation_shift", "decompose_attention", "mediate", "read_span"],
    "circuits.locate": ["locate_heads"],
    "circuits.circuit": ["trace_circuit"],
    "circuits.head_sets": ["circuit_curve", "minimal_sets"],
    "circuits.transfer": ["transfer"],
    "circuits.head_writes": ["what_it_writes"],
    "circuits.paths": ["Edge", "direct_effects", "load_importances", "save_importances", "trace_paths"],
    "circuits.site_patches": ["map_positions", "patch_sites"],
    "answers": ["Treatment", "evaluate_accuracy", "grade_paper", "grade_strict"],
    "app.runs_compared": ["compare_runs"],
    "app.study_runner": ["read_study", "run_study"],
    "app.estimates": ["Plan", "plan_run"],
    "paper": ["enrichment"],
    "answers.vllm": ["Vllm"],
    "runtime.store": ["load"],
    "runtime.workers": ["Processes", "RayWorkers", "Shard"],
    "views.report": ["Report"],
}
"""module -> its public names: what a researcher types."""
RESULTS = {
    "ground_truth.certificate": ["Certificate"],
    "ground_truth.compare_hook": ["HookComparison"],
    "scores": ["AttentionProfile", "HeadScores"],
    "patching": ["PatchScores"],
    "patching.attribution": ["HeadAttribution"],
    "patching.dose": ["DoseResponse"],
    "patching.knockouts": ["JointKnockout", "ReadEffects"],
    "patching.transplant": ["Transplant"],
    "mechanism": ["ActivationShift", "AttentionDecomposition", "Mediation", "SpanReadings"],
    "circuits.located": ["Confirmation", "LocatedHeads"],
    "circuits.circuit": ["Circuit"],
    "circuits.head_sets": ["CircuitCurve", "MinimalSets"],
    "circuits.transfer": ["Transfer"],
    "circuits.head_writes": ["HeadWrites"],
    "circuits.paths": ["DirectEffects", "PathEffects"],
    "circuits.site_patches": ["PositionMap", "SitePatches"],
    "answers": ["AccuracyResults", "Comparison", "Comparisons"],
    "app.runs_compared": ["RunsCompared"],
    "app.study_runner": ["StudyResult"],
    "paper": ["ClaimChecks", "Enrichment"],
}
"""module -> classes of results: by these names folders are read (`runtime.store`); functions give them."""
ROOMS = ["metrics", "statistics", *dict.fromkeys(name.partition(".")[0] for name in PUBLIC)]

SHOWN = ("answers", "metrics", "paper", "statistics", "views")
"""Rooms that a notebook offers after `mi.`; the others are there without being offered."""

_attribute, _, _ = lazy_loader.attach(
    __name__, ROOMS, {name: [*PUBLIC.get(name, ()), *RESULTS.get(name, ())] for name in {**PUBLIC, **RESULTS}}
)
__all__ = ["__version__", "save", *(name for names in PUBLIC.values() for name in names)]


def __dir__() -> list[str]:
    """What a researcher uses."""
    return sorted([*__all__, *SHOWN])


def save(path: Any, *results: object, **options: Any) -> Any:
    """Save results of this toolkit in one folder; see `mless_interp.runtime.store.save`."""
    # not lazy: nnsight gives every Python object a method `save`, which would be found before `__getattr__` is asked
    from .runtime.store import save as save_results

    return save_results(path, *results, **options)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("mless_interp")
    return _attribute(name)
