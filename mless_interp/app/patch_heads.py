"""`mless-interp locate`: which attention heads carry the effect of inserted tokens; heads patched, named, confirmed."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..core.arguments import Arguments, count_of, one_of
from ..prompts.conditions import CONTRASTS, LOCATED, as_words
from ..prompts.problems import Problem
from .command_line import LIMITS, NAMES, Pairing, option
from .run_folder import Computed, Kept, Presented, Report, program, shown_attention

if TYPE_CHECKING:
    from ..answers import AccuracyResults

N_RANDOM_SETS = 5  # random sets that answers are compared with, at most: each costs an answer per problem
N_SHOWN = 4  # heads whose attention is shown, at most: the named ones or, where none is, the largest


@dataclass(frozen=True, kw_only=True)
class Options(Pairing):
    mode: Literal["locate", "sweep"] = option("locate", "locate: name heads, with controls. sweep: one sweep.")
    confirm: int = option(0, "locate: test the named heads again on this many fresh problems. 0: none.", min=0)
    answers: int = option(0, "locate: other problems to answer, also with readers or random heads cut off.", min=0)
    limit: int | None = option(
        None, f"Number of problems. [default: {LIMITS['locate']} to locate, {LIMITS['sweep']} to sweep]", min=1
    )  # type: ignore[assignment]
    by: str | None = None
    layers: str | None = None
    heads: str | None = None
    contrast: str = option("content", f"{as_words(CONTRASTS)}. To locate: {', '.join(LOCATED)}.", of="contrasts")
    direction: Literal["denoising", "noising"] | None = option(None, "sweep: clean into corrupted, or the reverse.")
    edit: str | None = option(None, "sweep: what is patched. [default: z]", of="edits")
    outcome: str = option("answer_logprob", "Outcome to measure; kl and kl_last only for sweeps.", of="outcomes")
    out: Path = Path("results/locate")

    def parts(self) -> list[tuple[Problem, ...]]:
        """Return the problems that name heads, confirm them and are answered; `ValueError` for what makes no sense together."""
        locating = self.mode == "locate"
        if locating:
            one_of(self.contrast, LOCATED, "contrast to locate heads by")
            one_of(self.outcome, NAMES["signed_outcomes"], "outcome to locate heads by")
        if locating and (self.direction or self.edit):
            raise ValueError("--direction and --edit go with --mode sweep; locating runs both directions of both edits")
        if not locating and (self.by or self.confirm or self.answers):
            raise ValueError("--by, --confirm and --answers are about named heads, so they need --mode locate")
        if self.answers and (self.contrast != "content" or self.pairs is not None):
            raise ValueError(
                "--answers grades texts and cuts heads off from the span: --contrast content, without --pairs"
            )
        counts = {"limit": self.limit or LIMITS[self.mode], "confirm": self.confirm, "answers": self.answers}
        if locating and 1 in counts.values():
            raise ValueError(f"--{next(name for name in counts if counts[name] == 1)} takes 2 or more problems, got 1")
        found = self.in_parts(**counts)
        if lacking := [each.id for each in found[2] if not each.answer.strip()]:
            first = f"first: {lacking[0]!r}"
            raise ValueError(f"--answers: {len(lacking)} problems have no answer to grade against ({first})")
        return found


def compute(options: Options) -> Computed:
    """Name the attention heads that carry more than 5 % of the insertion's effect in most problems, by exact patching.

    Writes heads.csv (a row per head), patches.parquet (a row per problem and head), head_map.png, attention.html (offline;
    the top heads with and without the insertion); with --confirm also confirmed.csv (the named heads on fresh
    problems) and controls.csv, with --answers answers.csv and completions.jsonl.
    """
    parts = options.parts()
    from ..answers import evaluate_accuracy
    from ..answers.treatments import INSERTED, cut_off
    from ..circuits.locate import locate_heads
    from ..patching.sweep import patch_heads
    from ..runtime.loop import stage, stages

    model, (pairs, fresh, others) = options.begin(*parts)
    for pair in others:
        pair.one_block("answering with heads cut off (--answers)")
    heads = options.heads_of((model.info.n_layers, model.info.n_heads))
    common, partial = options.chosen("outcome", "contrast") | options.common, options.partial
    results: dict[str, Any] = {}
    notes: list[str] = []
    with stages(2 + bool(others)):
        if options.mode == "sweep":
            how: Arguments = {"direction": options.direction or "denoising", "edit": options.edit or "z"}
            swept = patch_heads(model, pairs, heads=heads, checkpoint=partial / "sweep.jsonl", **how, **common)
            results["PatchScores"], named = swept, []
        else:
            how = {"confirm": fresh or None, "by": options.by, "checkpoint": partial}
            found = locate_heads(model, pairs, heads=heads, **how, **common)
            results["LocatedHeads"], swept = found, found.patches
            by_size = [label for label in found.table()["label"] if label in map(str, found.found)]
            named = sorted(by_size, key=lambda label: label not in map(str, found.confirmed))
            joint = found.joint if found.confirmation is None else found.confirmation.joint
            notes = [] if joint is None else joint.in_short()
        if others:
            treatments = cut_off(pairs[0].insertion, joint, n_random_sets=N_RANDOM_SETS)
            how = {"template": options.template, "checkpoint": partial / "answers.jsonl", **options.common}
            with stage("answering"):
                answered = evaluate_accuracy(model, parts[2], treatments, **how)
            results["AccuracyResults"] = replace(answered, settings=answered.settings | {"reference": INSERTED})
            notes += answers_come_back(results["AccuracyResults"])
    options.say("reading the attention of the heads to show ...")
    shown = shown_attention(model, pairs, named[:N_SHOWN] or swept.in_order()["label"].tolist()[:N_SHOWN])
    facts = {"mode": options.mode, "n_problems": len(pairs), "n_fresh": len(fresh), "n_answers": options.answers}
    return Computed(results, model, [*pairs, *fresh], shown, facts, notes)


def answers_come_back(found: "AccuracyResults") -> list[str]:
    """Say how many answers are right, whether they come back where the named heads are cut off from the insertion, and with how
    many random sets fewer do (as random sets differ, they are what is counted, not the problems)."""
    _, _, *cut = found.treatments
    if not cut:
        return ["No head that reads is named, so none is cut off from the insertion."]
    right = [100 * float(share) for share in found.accuracy().estimate]
    told = [f"{name} {share:.1f} %" for name, share in zip(("no insertion", "with it", cut[0]), right, strict=False)]
    made = next(each for each in found.compare_all().comparisons if each.second == cut[0])
    said = f"compared with the insertion {made.change()}"
    if random := right[3:]:
        several = f"random {min(random):.1f} to {max(random):.1f} %"
        told.append(several if len(random) > 1 else f"one random set {random[0]:.1f} %")
        fewer = sum((right[0] - right[1]) * (right[2] - share) > 1e-9 for share in random)
        rank = (1 + len(random) - fewer) / (1 + len(random))
        p = f"p = {rank:.2g}" + ", the least that so few sets allow" * (fewer == len(random))
        said += f"; more of the change is undone than with {fewer} of {count_of(len(random), 'random set')} ({p})"
    return [f"Right answers of {len(found.problem_ids)}: {', '.join(told)}.", f"{cut[0].capitalize()}: {said}."]


def _short(answered: "AccuracyResults") -> object:
    treatments, table = answered.settings["treatments"], answered.printed().drop(columns=["gained", "lost"])
    table.insert(5, "heads", [", ".join(treatments[name]["knockout"]) or None for name in table["treatment"]])
    return table


def present(kept: Kept) -> Presented:
    from .. import views
    from ..views.circuitsvis import attention_view

    located = kept.run["mode"] == "locate"
    found, answered = kept.results["LocatedHeads" if located else "PatchScores"], kept.results.get("AccuracyResults")
    patches = found.patches if located else found
    files = {"heads.csv": found.table(), "patches.parquet": patches.to_frame(), "head_map.png": views.head_map(found)}
    if located and found.confirmation is not None:
        files |= {"confirmed.csv": found.confirmation.table(), "controls.csv": found.control_table()}
    if answered is not None:
        files |= {"answers.csv": _short(answered), "completions.jsonl": answered.to_frame()}
    if "attention" in kept.shown:
        files["attention.html"] = attention_view(kept.shown["attention"])

    def page() -> Report:
        outcome = kept.run["options"]["outcome"]
        question = f"Which of {count_of(len(patches.heads), 'head')} carry the effect on {outcome}?"
        made = kept.page("Heads that carry the insertion's effect", question, found)
        others = " and the largest others" * (located and len(found.found) < 10)  # rows of a forest
        heads = f"the named ones{others}" if located and found.found else "the largest"
        caption = f"Median effects with 95 % intervals over problems: {heads}."
        made = made.result(found, pictures={caption: views.forest(found)})
        if located and found.read is not None:
            edits = "What each edit of a head's attention to the inserted tokens removes, with 95 % intervals."
            made = made.folded("What the named heads read", made.blank().figure(found.read.plot(), edits))
        if answered is not None:
            made = made.heading("Do the answers return?")
            caption = "Right answers; differences and p compare with the insertion without cut heads."
            made = made.table(_short(answered), caption, of=type(answered))
        named = len(found.found) if located else 0
        which = f"{N_SHOWN} largest of {named} named" if named > N_SHOWN else "named" if named else "largest"
        return kept.view(made, heading=f"Attention of the {which} heads")

    return Presented(files, page)


app = program("patch_heads", compute, present)
