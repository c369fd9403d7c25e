"""Would the tests notice? Small faults, put into the code one at a time, and how many of them fail a test.

    python tools/mutants.py                                # every room, as `make mutants` does
    python tools/mutants.py metrics statistics --sample 150
    python tools/mutants.py mless_interp/runtime/store.py --tests tests/runtime

[mutmut](https://mutmut.readthedocs.io) makes the faults ("mutants") and runs, in a copy of the project under `build/mutants`,
the tests that call the changed function. This adds what it has not: the rooms and their tests, a sample drawn from a seed,
the reasons why a mutant may live (`tools/surviving_mutants.toml`), and the counts, written into `docs/reliability.md`.

Left out are mutants that say little: those that only put None into a place (the shapes and types that every test run checks
find them), those of texts of several words (wording is no behaviour), and those that take `strict=True` from a `zip` (it
guards us against our own slips; no input reaches it). Properties, decorated functions and constants of
modules are what mutmut does not change.
"""

import argparse
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "mutants"
REASONS = ROOT / "tools" / "surviving_mutants.toml"
PAGE = ROOT / "docs" / "reliability.md"
LIVES = (0, 5, 33)
"""Exit codes: all tests passed, none ran, none is known to call the function."""
NO_REASON = "**none yet**"
LAWS = "tests/runtime/test_every_result.py"
"""What holds of every result: of rooms that make some."""
KEPT = "tests/test_analyses.py::test_it_gives_the_numbers_that_it_gave"
"""Numbers of every analysis as they were."""
TOLD = f"{LAWS}::test_it_tells_what_it_told"
"""Everything that small results print, explain, tabulate and show."""
EXPRESSIONS = "tests/test_expressions.py"
"""Formulas and checks on small awkward input."""
OF_SCORES = (
    "HeadScores beside twins",
    "HeadScores, two metrics",
    "HeadScores, undefined",
    "AttentionProfile of uneven prompts",
    "AttentionProfile of one problem",
    "HeadScores of segments",
)
HOSTILE = "tests/views/test_hostile_names.py::test"
OF_ANSWERS = (
    "Comparisons, several sure",
    *(f"AccuracyResults of {what}" for what in ("two answers", "one treatment", "two treatments")),
)
GROUPS = f"{LAWS}::test_a_problem_given_thrice_as_a_group_counts_once"


def only(test: str, names: str) -> tuple[str, ...]:
    """Return a test of these results or analyses alone."""
    return tuple(f"{test}[{name}]" for name in names.split())


@dataclass(frozen=True)
class Room:
    """Which files are changed (`file.py::name`: that function alone), and which tests must notice, those that take seconds.

    `speaks_of`: a pattern of the lines that are changed; without, all of them. `leaves_out`: a pattern of functions that are
    not, as their tests take minutes.
    """

    changed: tuple[str, ...]
    tests: tuple[str, ...]
    speaks_of: str = ""
    leaves_out: str = "^$"


OTHERS = "tests/models/test_architectures.py::test_"
PLACES = r"device|\.to\(|\.cpu\(|is_meta"
"""Lines on where something lies: of the room `devices`, whose tests have several."""


def files(folder: str, names: str) -> tuple[str, ...]:
    """Return test files of a folder by the names behind `test_`."""
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


def modules(room: str, names: str) -> tuple[str, ...]:
    """Return files of a room by their names."""
    return tuple(f"mless_interp/{room}/{name}.py" for name in names.split())


ROOMS = {
    "core": Room(("mless_interp/core/*.py",), ("tests/test_arguments.py", EXPRESSIONS)),
    "metrics": Room(("mless_interp/metrics/*.py",), ("tests/metrics", "tests/test_oracles.py", EXPRESSIONS)),
    "statistics": Room(("mless_interp/statistics/*.py",), ("tests/statistics", "tests/test_oracles.py", EXPRESSIONS)),
    "scores": Room(
        ("mless_interp/scores/*.py",),
        (
            "tests/scores",
            *only(TOLD, "HeadScores AttentionProfile"),
            *(f"{TOLD}[{name}]" for name in OF_SCORES),
            EXPRESSIONS,
            *only(KEPT, "scores segments profile"),
        ),
    ),
    "prompts": Room(("mless_interp/prompts/*.py",), ("tests/prompts", EXPRESSIONS)),
    "models": Room(
        modules("models", "base info replay sites traced_ops"),
        (
            *files("models", "small_parts decoders contract"),
            f"{OTHERS}sinks_and_latent_keys_act_as_the_layers_say",
            f"{OTHERS}positions_of_a_table_are_whole_numbers",
            EXPRESSIONS,
        ),
        speaks_of=rf"^(?!.*({PLACES}))",
    ),
    "backends": Room(
        modules("models", "architectures attention_math nnsight transformer_lens"),
        (
            *files("models", "as_they_come decoders contract models parts"),
            # the others in that file send source, and a mutant's cannot be sent
            "tests/models/test_remote.py::test_a_model_that_ndif_does_not_run_is_refused_with_those_that_it_does",
            f"{OTHERS}sinks_and_latent_keys_act_as_the_layers_say",
            f"{OTHERS}a_users_own_hooked_transformer_of_another_build",
            f"{OTHERS}positions_of_a_table_are_whole_numbers",
            f"{OTHERS}granite_shows_and_takes_what_is_added_scaled",
            EXPRESSIONS,
        ),
        speaks_of=rf"^(?!.*({PLACES}))",
    ),
    "loading": Room(
        modules("models", "checks hugging_face load load_options memory weights"),
        (
            *files("models", "small_parts decoders checks models parts state weights"),
            f"{OTHERS}attention_of_another_form_is_refused_with_what_it_is",
            f"{OTHERS}auto_takes_the_first_backend_that_does_it",
            *(
                f"tests/models/test_devices.py::test_{name}"
                for name in (
                    "two_models_share_an_offload_folder_and_keep_their_own_weights",
                    "auto_converts_only_what_is_small",
                    "products_are_in_tf32_on_a_device_within_passes_alone",
                )
            ),
            EXPRESSIONS,
        ),
    ),
    "patching": Room(
        ("mless_interp/patching/*.py",),
        (  # without sweeps of spans anywhere, which take minutes
            *files(
                "patching", "sweeps patching prepared joint reads refused dose attribution interventions transplant"
            ),
            *(TOLD, GROUPS, EXPRESSIONS),
            *only(
                KEPT,
                "patches attribution doses joint reads transplant patches_of_spans patches_everywhere patches_last",
            ),
            *only(KEPT, "attribution_by_atp attribution_of_spans doses_deeper joint_of_spans joint_by_whole_passes"),
            *only(KEPT, "joint_of_exchanged reads_otherwise transplant_behind"),
        ),
    ),
    "locating": Room(
        modules("circuits", "judge locate located"),
        (
            *only(KEPT, "located located_by_total"),  # first: what later tests look at again is made once
            *files("circuits", "judge locate confirmation control strata circuit_results"),
            *(TOLD, EXPRESSIONS),
        ),
    ),
    "edges": Room(
        modules("circuits", "cells circuit paths site_patches"),
        (
            *files("circuits", "paths sites importances circuit_results"),
            "tests/app/test_circuit.py",
            *(TOLD, EXPRESSIONS),
            *only(KEPT, "direct paths sites positions direct_noising paths_noising sites_of_spans"),
            *only(KEPT, "positions_of_spans circuit"),
        ),
    ),
    "sets": Room(
        modules("circuits", "head_sets head_writes transfer"),
        (
            *files("circuits", "minimal_sets curves head_writes transfer"),
            *(TOLD, EXPRESSIONS),
            *only(
                KEPT, "sets transfer writes curve curve_of_spans curve_of_exchanged transfer_to_masked writes_of_all"
            ),
        ),
    ),
    "mechanism": Room(
        ("mless_interp/mechanism/*.py",),
        (  # without the MLPs of many architectures, which take minutes
            *files("mechanism", "activation_shift arm decompose mediation span_reading"),
            *(TOLD, GROUPS, EXPRESSIONS),
            *only(KEPT, "shift decomposition mediation span shift_otherwise mediation_deeper span_behind"),
            *only(KEPT, "decomposition_beside_words"),
        ),
    ),
    "ground_truth": Room(
        ("mless_interp/ground_truth/*.py",),
        ("tests/ground_truth", EXPRESSIONS, *only(TOLD, "Certificate HookComparison")),
    ),
    "grading": Room(
        modules("answers", "graders math_verify_process same_answer"),
        (*files("answers", "graders spelling"), EXPRESSIONS),
        leaves_out=r"math_verify_process\.(main|_limit)\b",  # in a process that runs before the mutant does
    ),
    "answers": Room(  # the rest of it, but what runs in vLLM's environment and whole models
        modules("answers", "decoding evaluate results treatments"),
        (
            *files("answers", "decoding evaluate results"),
            *only(TOLD, "AccuracyResults Comparison Comparisons"),
            *(f"{TOLD}[{name}]" for name in OF_ANSWERS),
            *only(KEPT, "answers answers_otherwise"),
            EXPRESSIONS,
        ),
    ),
    "paper": Room(
        ("mless_interp/paper/*.py",),
        (
            "tests/paper",
            *only(TOLD, "ClaimChecks Enrichment"),
            f"{TOLD}[ClaimChecks, two of each]",
            f"{TOLD}[Enrichment over problems]",
            EXPRESSIONS,
        ),
    ),
    "views": Room(  # without those that need a browser
        ("mless_interp/views/*.py",),
        (
            *files("views", "views circuitsvis"),
            "tests/views/test_hostile_names.py::test_what_can_be_drawn_stays_as_it_is",
            *only(
                f"{HOSTILE}_every_result_draws_itself_and_a_name_is_drawn_as_it_is_written", "AccuracyResults Mediation"
            ),
            EXPRESSIONS,
        ),
    ),
    "damaged files": Room(
        modules("runtime", "checkpoint folders store"),
        (
            *files("runtime", "checkpoint folders store"),
            "tests/fuzz/test_damaged_files.py::test_saved_results_are_right_or_refused",
            "tests/fuzz/test_damaged_files.py::test_a_damaged_checkpoint_never_changes_a_number",
        ),
    ),
    "runtime": Room(
        modules("runtime", "base_result columns loop text_safety workers"),
        ("tests/runtime", EXPRESSIONS),
        # Ray takes slow tests (test_workers.py); in a copy of the process mutmut sees no call (test_processes.py does)
        leaves_out=r"workers\.(RayWorkers|_Worker|_pickled|_ray|_begin_copy|_in_copy)\b",
    ),
    "precision": Room(
        (
            *modules("models", "traced_ops"),
            *modules("patching", "outcomes sweep"),
            "mless_interp/models/checks.py::_resolution",
            "mless_interp/models/checks.py::_log_probability",
        ),
        (
            *files("models", "small_parts parts as_they_come"),
            "tests/models/test_checks.py::test_it_asks_what_it_asked_and_tells_what_it_found",
            "tests/models/test_checks.py::test_the_resolution_is_twice_the_change_of_a_tokens_log_probability",
            *files("patching", "sweeps patching"),
            *only(KEPT, "patches patches_last"),
            *only(TOLD, "PatchScores"),
            EXPRESSIONS,
        ),
        speaks_of=r"dtype|float|double|half|noise|round|finfo|\beps\b",  # the rest of a sweep is patching's
    ),
    "devices": Room(
        (
            *modules("models", "architectures attention_math base nnsight replay transformer_lens weights"),
            *modules("patching", "sweep"),
            *modules("scores", "streaming"),
        ),
        (
            *files("models", "devices small_parts decoders"),
            "tests/models/test_models.py::test_a_saved_hooked_transformer_is_loaded_as_it_was",
            "tests/models/test_as_they_come.py::test_the_smallest_models_pass_the_self_check",
            *("tests/scores", EXPRESSIONS),
        ),
        speaks_of=PLACES,
    ),
}

SETTINGS = """\
[mutmut]
source_paths=
    mless_interp
only_mutate=
    {changed}
pytest_add_cli_args_test_selection=
    {tests}
pytest_add_cli_args=
    -p
    no:cacheprovider
    -m
    not slow
    --hypothesis-seed=0
    --deselect=tests/models/test_remote.py::test_what_is_sent_imports_torch_alone
also_copy=
    analyses
    benchmarks
    docs
    tools
timeout_multiplier=6
track_dependencies=false
use_git_change_detection=false
"""

_QUOTED = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")


@dataclass(frozen=True)
class Mutant:
    """One changed function by mutmut's name: the lines as they were and as they are in the mutant."""

    name: str
    was: str
    now: str

    @property
    def function(self) -> str:
        """Where it is, as people write it."""
        module, _, mangled = self.name.rpartition(".")
        plain = re.sub(r"__mutmut_\d+$", "", mangled).removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
        return f"{module.removeprefix('mless_interp.')}.{plain}"

    def told(self) -> dict[str, str]:
        """What a reason is written for."""
        return {"function": self.function, "was": self.was, "now": self.now}

    @property
    def says_little(self) -> bool:
        """It only puts None into a place, changes the wording of a text, or lets `zip` take what differs in length."""
        changed = [a for a, b in zip(_QUOTED.findall(self.was), _QUOTED.findall(self.now), strict=False) if a != b]
        nothing = len(re.findall(r"\bNone\b", self.now)) > len(re.findall(r"\bNone\b", self.was))
        lenient = "strict=True" in self.was and re.sub(r",? ?strict=(True|False)", "", self.was) == re.sub(
            r",? ?(strict=(True|False))?(?=\))", "", self.now
        )
        return nothing or lenient or any(" " in text for text in changed)


def copied(name: str, room: Room) -> Path:
    """A fresh copy of the project with mutmut's settings for a room."""
    folder = WORK / re.sub("[/ ]", ".", name)
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for file in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / file).is_file():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, folder / file)
    files = dict.fromkeys(path.partition("::")[0] for path in room.changed)
    lines = {"changed": "\n    ".join(files), "tests": "\n    ".join(room.tests)}
    (folder / "setup.cfg").write_text(SETTINGS.format(**lines), encoding="utf-8")
    return folder


def possible(folder: Path, room: Room) -> list[Mutant]:
    """All mutants that mutmut makes of a room."""
    from mutmut.configuration import reset_config
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.file_utils import walk_mutatable_files
    from mutmut.utils.format_utils import get_mutant_name

    found = []
    with chdir(folder):
        reset_config()
        for path in sorted(walk_mutatable_files()):
            made = mutate_file_contents(str(path), path.read_text(encoding="utf-8"))
            code, spans = made.code.splitlines(), made.line_span_by_function_name
            only = {
                name for file, _, name in (each.partition("::") for each in room.changed) if name and file == str(path)
            }
            for name in made.mutant_names:
                original = re.sub(r"_\d+$", "_orig", name)
                before, after = (
                    [line.strip() for line in code[spans[of].start - 1 : spans[of].end]] for of in (original, name)
                )
                after = [line.replace(name, original) for line in after]
                lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
                was, now = (" ".join(line[1:] for line in lines if line.startswith(sign)) for sign in "-+")
                mutant = Mutant(get_mutant_name(path, name), was, now)
                asked_for = not only or mutant.function.rpartition(".")[2] in only
                asked_for = asked_for and not re.search(room.leaves_out, mutant.function)
                if asked_for and re.search(room.speaks_of, mutant.was):
                    found.append(mutant)
    return found


def alive(folder: Path, mutants: list[Mutant]) -> list[Mutant]:
    """Those of some mutants that fail no test."""
    from mutmut.configuration import reset_config
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.utils.file_utils import walk_mutatable_files

    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "MLESS_SHARED": os.environ.get("MLESS_SHARED", str(ROOT.parent / "shared")),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    program = [sys.executable, "-c", "from mutmut.__main__ import cli; cli()", "run", "--max-children", "1"]
    command = [*program, *(mutant.name for mutant in mutants)]
    done = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False)
    codes: dict[str, int | None] = {}
    with chdir(folder):
        reset_config()
        for path in walk_mutatable_files():
            data = SourceFileMutationData(path=path)
            data.load()
            codes |= data.exit_code_by_key
    if any(codes.get(mutant.name) is None for mutant in mutants):
        raise SystemExit(f"mutmut did not finish:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return [mutant for mutant in mutants if codes[mutant.name] in LIVES]


@dataclass(frozen=True)
class Reason:
    """Why a mutant may live: it does the same as the code (`same`), or what it changes needs no test."""

    function: str
    was: str
    now: str
    why: str
    same: bool = True


def reasons() -> dict[tuple[str, str, str], Reason]:
    """The reasons written down, by function and change."""
    listed = tomllib.loads(REASONS.read_text(encoding="utf-8")).get("mutant", [])
    return {(made.function, made.was, made.now): made for made in (Reason(**entry) for entry in listed)}


def rows(room: str, tried: int, living: list[Mutant]) -> tuple[str, list[str], list[Mutant]]:
    """A room's row of counts, its rows of mutants that live, and those that live without a reason."""
    known = reasons()
    why = [known.get(tuple(mutant.told().values())) for mutant in living]
    same = sum(reason is not None and reason.same for reason in why)
    killed, telling = tried - len(living), tried - same
    cells = [room, tried, killed, same, f"{killed / max(telling, 1):.1%}"]
    lines = [
        f"| {room} | `{mutant.function}` | {_code(mutant.was)} | {_code(mutant.now)} | {reason.why if reason else NO_REASON} |"
        for mutant, reason in zip(living, why, strict=True)
    ]
    return (
        f"| {' | '.join(map(str, cells))} |",
        lines,
        [mutant for mutant, reason in zip(living, why, strict=True) if reason is None],
    )


def _code(text: str) -> str:
    return f"`` {text.replace('|', chr(92) + '|')} ``"


def with_rows(text: str, room: str, new: str) -> str:
    """A page with a room's row of the table (between `<!-- mutants counts -->` and `<!-- end -->`) written anew."""
    start, end = "<!-- mutants counts -->\n", "<!-- end -->"
    before, found, rest = text.partition(start)
    body, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{PAGE.name} has no table between {start.strip()!r} and {end!r}")
    head, lines = body.splitlines()[:2], body.splitlines()[2:]
    kept = [line for line in lines if not line.startswith(f"| {room} |")]
    places = {known: at for at, known in enumerate(ROOMS)}
    ordered = sorted([*kept, new], key=lambda line: places.get(line.split(" | ")[0].removeprefix("| "), len(places)))
    return before + start + "\n".join([*head, *ordered]) + "\n" + end + after


def chosen(targets: list[str], tests: list[str]) -> Iterator[tuple[str, Room]]:
    """The rooms asked for; a path is a room of its own."""
    for target in targets or ROOMS:
        if target in ROOMS:
            yield target, ROOMS[target]
        elif (ROOT / target).exists() and tests:
            yield target, Room((target if target.endswith(".py") else f"{target.rstrip('/')}/*.py",), tuple(tests))
        else:
            raise SystemExit(f"{target!r} is no room ({', '.join(ROOMS)}), and no path given together with --tests")


def main() -> int:
    parser = argparse.ArgumentParser(description="Small faults in the code, and how many of them a test notices.")
    parser.add_argument("rooms", nargs="*", help=f"{', '.join(ROOMS)}, or a path in the package (with --tests)")
    parser.add_argument("--tests", nargs="+", default=[], help="the tests of a path")
    parser.add_argument("--sample", type=int, default=100, help="mutants of each room (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    unexplained = 0
    for name, room in chosen(options.rooms, options.tests):
        folder = copied(name, room)
        everything = possible(folder, room)
        order = random.Random(f"{options.seed} {name}").sample(everything, len(everything))
        mutants = [mutant for mutant in order if not mutant.says_little][: options.sample]
        counts, lives, unknown = rows(name, len(mutants), alive(folder, mutants))
        unexplained += len(unknown)
        print("\n".join([counts, *lives]), flush=True)
        for mutant in unknown:
            print(
                "\n[[mutant]]",
                *(f"{key} = {json.dumps(value)}" for key, value in mutant.told().items()),
                'why = ""',
                sep="\n",
            )
        PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8"), name, counts), encoding="utf-8")
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
