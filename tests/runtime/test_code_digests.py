"""A user's function that changed under its name is another; one that did not is the same in every process."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mless_interp.patching.interventions import INTERVENTIONS
from mless_interp.patching.outcomes import OUTCOMES
from mless_interp.runtime.code_digests import codes_of
from mless_interp.scores.catalogue import METRICS

WRITTEN = """
import functools, numpy as np, torch, types
own = types.ModuleType("own"); own.STEP, own.shift = torch.tensor([12.0]), lambda x: own.STEP * x + 13
WORDS, LOG, turned, SIZE = frozenset(("Sum", "Product", "Difference", "Largest")), [], torch.ones(2), 3
def helper(x): return scaled(x) if x in {"a", "b", "c", "d"} else SIZE * x
def scaled(x): return [helper(1) if each else 2.0 * x for each in x]
def factory(table, by=1):
    def inner(x): return by * table[x] + 4
    return lambda x, *, to=5: inner(x) + to
class Edit:
    name, factor = "mine", 6
    def __call__(self, x): return self.factor * self.turned(x)
    @staticmethod
    def turned(x): return x + 7
    def __init__(self): self.state, self.module = 8, own
def value(x): return LOG.append(x) or helper(x) + own.shift(np.abs(x))
given = [value, factory(torch.arange(5000) + 9), functools.partial(helper, 10), Edit()]
"""


def codes(text: str) -> list[dict[str, str]]:
    module: dict[str, object] = {"__name__": "written_under_test"}
    exec(text, module)  # as a notebook does
    *functions, edit = module["given"]  # type: ignore[misc]
    return [*(codes_of(SimpleNamespace(name="mine", value=each)) for each in functions), codes_of(edit)]


@pytest.mark.parametrize(
    ("was", "now", "changed"),
    [
        ("[], torch.ones(2)", "[1], torch.ones(3)", ""),
        ("(2), 3", "(2), 4", "value partial"),
        ("2.0 * x", "2.5 * x", "value partial"),
        ("12.0", "12.5", "value"),
        ("+ 13", "+ 14", "value"),
        ("+ 4", "+ 5", "factory"),
        ("+ 9", "+ (torch.arange(5000) == 2000)", "factory"),
        ('factor = "mine", 6', 'factor = "mine", 7', "edit"),
        ("x + 7", "x + 8", "edit"),
        ("module = 8", "module = 9", "edit"),
        ("helper, 10", "helper, 11", "partial"),
    ],
)
def test_code_is_told_with_what_it_calls_encloses_and_names(was: str, now: str, changed: str) -> None:
    """A list that a module holds is left out (runs may write into it), and what is called like an attribute."""
    assert WRITTEN.count(was) == 1
    both = zip("value factory partial edit".split(), codes(WRITTEN), codes(WRITTEN.replace(was, now)), strict=True)
    assert [name for name, before, after in both if before != after] == changed.split()


def test_it_is_the_same_in_every_process_and_of_the_toolkit_there_is_none() -> None:
    assert all(list(each) == ["code of 'mine'"] for each in codes(WRITTEN))
    script = "import test_code_digests as t; print(t.codes(t.WRITTEN))"
    how = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "check": True}
    told = {subprocess.run([sys.executable, "-c", script], **how).stdout for _ in range(2)}  # type: ignore[call-overload]
    assert told == {f"{codes(WRITTEN)}\n"}
    assert codes_of(OUTCOMES["answer_logprob"], INTERVENTIONS["z"], METRICS["span_mass"]) == {}
