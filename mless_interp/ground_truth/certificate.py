"""A certificate for a model: the self-check and the exact identities, run on a few short prompts of that model."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ..core.arguments import checked, count_of
from ..models.base import Model
from ..models.checks import TOLERANCE, FailedCheck, Finding, check_model, worst
from ..models.info import BY_LAYERS, ModelChecks, ModelError, ModelInfo
from ..patching.prepared import Settings
from ..prompts.insertions import Insertion
from ..prompts.pairs import PromptPair, followed, pairs_of_any
from ..prompts.problems import Problem
from ..runtime.base_result import Result
from ..runtime.columns import columns_of
from ..runtime.folders import savable
from ..runtime.loop import progress_bar
from .identities import IDENTITIES, Case, Identity, tolerance_of

PASS, FAIL, NOT_APPLICABLE = "pass", "fail", "not applicable"
SMALL_SUMS = (
    Problem("check-0", "Anna has 3 apples and gets 4 more. How many apples does Anna have?", "7"),
    Problem("check-1", "Ben had 9 coins and lost 2. How many coins does Ben have?", "7"),
    Problem("check-2", "What is the sum of 12 and 30?", "42"),
)
UNITS = (" /", "/", " ?", " .", "a")
N_TOKENS = 12


@savable
@dataclass(frozen=True)
class Verdict:
    """One line of a certificate; `error` and `tolerance` are shares of the largest value compared (NaN: not measured)."""

    name: str
    says: str
    status: str
    error: float
    tolerance: float
    reason: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Result):
    """What `certify_model` found, line by line; `passed` if nothing failed."""

    info: ModelInfo
    verdicts: tuple[Verdict, ...]
    prompts: tuple[Settings, ...]

    caption = "Self-check and exact identities."
    columns = columns_of("""
        name | identity | | what is checked
        says | says | | what must hold
        status | status | verdict | pass, fail, or why it does not apply
        error | largest error | p | as a share of the largest value compared
        tolerance | allowed | p | the error up to which it holds
    """)

    @property
    def passed(self) -> bool:
        """No line failed (a line that does not apply is no failure; its reason is given)."""
        return not self.failed

    @property
    def failed(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.status == FAIL)

    def table(self) -> pd.DataFrame:
        """Return one row per line, failed ones first: of all prompts the largest error."""
        table = pd.DataFrame([dataclasses.asdict(verdict) for verdict in self.verdicts])
        table = table[["name", "status", "error", "tolerance", "says", "reason"]]
        return table.sort_values("status", key=lambda each: each != FAIL, kind="stable", ignore_index=True)

    to_frame = table

    def headline(self) -> str:
        i, n = self.info, Counter(verdict.status for verdict in self.verdicts)
        wrong = f"; do not trust results of this model on this backend: {', '.join(each.name for each in self.failed)}"
        return (
            f"{i.name!r} ({i.architecture}) on backend {i.backend!r}, {i.dtype} on {i.device}, {i.attention} attention: "
            f"{n[PASS]} passed, {n[FAIL]} failed, {n[NOT_APPLICABLE]} not applicable{'' if self.passed else wrong}."
        )

    def details(self) -> list[str]:
        lengths = ", ".join(str(len(pair["inserted_ids"])) for pair in self.prompts)
        return [
            *self.reasons(),
            f"With {', '.join(f'{name} {number}' for name, number in self.info.versions.items())}.",
            f"{count_of(len(self.prompts), 'prompt')} of {lengths} tokens; errors are shares of the largest value.",
        ]

    def reasons(self) -> list[str]:
        """Return why lines failed or do not apply, a sentence each."""
        return [f"{each.name}, {each.status}: {each.reason.rstrip('.')}." for each in self.verdicts if each.reason]


@checked
def certify_model(model: Model, pairs: Iterable[PromptPair] | None = None, *, progress: bool = True) -> Certificate:
    """Run the self-check and the exact identities (methods §3) on a loaded model; nothing is raised for what fails.

    `pairs`: the prompts to run them on (default: `short_pairs`). The largest error over the prompts is compared with the
    tolerance of the model's dtype and backend. An identity that an architecture cannot have is "not applicable" and says why.
    """
    chosen = followed(short_pairs(model) if pairs is None else pairs)
    if not chosen:
        raise ValueError("there are no pairs to certify the model on")
    if any(pair.boundary_merge for pair in chosen):
        raise ValueError('identities need pairs whose tokens align: make them with template="raw"')
    verdicts, checks = _self_check(model)
    model = model.checked(checks)
    tolerance = tolerance_of(model)
    seen: dict[str, list[Finding | str | Exception]] = {identity.name: [] for identity in IDENTITIES}
    with progress_bar(len(IDENTITIES) * len(chosen), "identities", enabled=progress) as bar:
        for pair in chosen:
            case = Case(model, pair)  # pair by pair, so that only one pair's runs are held
            for identity in IDENTITIES:
                try:
                    seen[identity.name].append(identity.applies(case) or identity.formula(case))
                except (ModelError, ValueError) as error:
                    seen[identity.name].append(error)
                bar.update(1)
    verdicts += [_verdict(identity, seen[identity.name], identity.factor * tolerance) for identity in IDENTITIES]
    return Certificate(model.info, tuple(verdicts), tuple(pair.record() for pair in chosen))


def _verdict(identity: Identity, seen: Sequence[Finding | str | Exception], tolerance: float) -> Verdict:
    """Return the worst of what the pairs gave: findings, or reasons why it does not apply; an error fails the line."""
    status, error, reason = NOT_APPLICABLE, np.nan, str(seen[0])
    if findings := [each for each in seen if isinstance(each, Finding)]:
        error, reason = worst(findings).relative, ""
        status = PASS if error <= tolerance else FAIL
    if errors := [each for each in seen if isinstance(each, Exception)]:
        status, error, reason = FAIL, np.nan, " ".join(str(errors[0]).split())
    return Verdict(identity.name, identity.says, status, error, tolerance, reason)


def short_pairs(
    model: Model, problems: Iterable[Problem] | None = None, n: int | None = None
) -> tuple[PromptPair, ...]:
    """Return a few short pairs with one token repeated 12 times: of `problems`, or of three small sums, the first `n`; the last
    of them again with the tokens after the question, and its answer, if it has one, behind them."""
    asked = list(SMALL_SUMS if problems is None else problems)[:n]
    model.need_tokenizer("certify_model without pairs")
    for unit in UNITS:
        insertion = Insertion.meaningless(unit, N_TOKENS)
        try:
            span = insertion.span(model.tokenizer, "check")
        except ValueError:  # this unit is no token, the next one may be
            continue
        if len(set(span)) == 1:
            behind = replace(insertion, before=None, after="question")
            last = [pair for pair in pairs_of_any(model, asked[-1:], behind, template="raw") if pair.answer_ids]
            return (*pairs_of_any(model, asked, insertion, template="raw"), *followed(last))
    raise ModelError(
        f"none of {', '.join(map(repr, UNITS))} is a single token of {model.info.name}'s tokenizer; give pairs of your own"
    )


def _self_check(model: Model) -> tuple[list[Verdict], ModelChecks | None]:
    """Return the figures of loading as lines; checked now where there are none, or hooks or weights changed since."""
    checks = model.checks
    if checks is None or model.hooks or model.weights_hash != model.info.weights_hash:
        try:
            checks = check_model(model)
        except FailedCheck as error:
            allowed = TOLERANCE.get(model.info.dtype, 1e-3)
            return [Verdict("self-check", "what the backend promises", FAIL, np.nan, allowed, str(error))], None
    logit = checks.largest_logit
    fused = "fused attention makes no pattern" if model.info.attention != "eager" else ""
    own, remote = "a wrapped object has none beside it", "not run where a remote model counts windows by index"
    unknown = "what single heads write is not known"
    rows = (  # name, what must hold, the largest error, what it is a share of, why it may be absent
        ("S1", "logits = the plain Hugging Face forward pass", checks.logits_difference, logit, own),
        ("S2", "rows of the pattern sum to 1", checks.row_sum_error, 1.0, fused),
        ("S3", "gap = masked on random tokens", checks.gap_difference, logit, remote),
        ("S4", "replay layer by layer = one whole forward pass", checks.replay_difference, logit, checks.replay),
        ("S5", "attention adds z W_O + b, at random z", checks.output_error, 1.0, unknown),
    )
    lines = []
    for name, says, found, scale, absent in rows:
        allowed = max(checks.tolerance, 1e-5) if name in ("S2", "S5") else checks.tolerance
        share, status = np.nan if found is None else found / scale, NOT_APPLICABLE
        # the replay was held against measured rounding where that is coarser
        if share <= allowed or (name == "S4" and found is not None and checks.replay == BY_LAYERS):
            status = PASS
        elif found is not None and name not in ("S4", "S5"):  # these two go by whole passes, or are refused: not wrong
            status = FAIL
        lines.append(Verdict(name, says, status, share, allowed, absent if status == NOT_APPLICABLE else ""))
    return lines, checks
