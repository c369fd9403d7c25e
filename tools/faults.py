"""What a run survives: killed, interrupted, out of disk or memory, beside another run; results equal to the undisturbed ones.

    python tools/faults.py                        # every analysis, 50 kills each, as `make faults` does
    python tools/faults.py dose sweep --kills 5   # some
    python tools/faults.py dose --only memory     # one kind of fault

Every run is a fork of this process that has everything imported, on a small planted model; it is disturbed at a random moment
and then started again without disturbance. What it leaves must be, number by number, what an undisturbed run leaves, and
nothing else may lie about. The counts go into `docs/reliability.md` (`--page` for another file, `--page -` for none), where
other analyses keep theirs.
"""

import argparse
import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
import torch

import mless_interp as mi

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
START, END = "<!-- faults -->\n", "<!-- end -->"

MODEL, STUDY = "{model}", "study.toml"
COMMON = ("--problems", MODEL, "--no-progress")
ASKED = (*COMMON, "--model", MODEL, "--n-tokens", "6")
ANALYSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "locate": ("patch_heads", (*ASKED, "--limit", "12", "--confirm", "8", "--answers", "3")),
    "sweep": ("patch_heads", (*ASKED, "--limit", "16", "--mode", "sweep", "--edit", "knockout")),
    "profiles": ("head_profiles", (*ASKED, "--limit", "12")),
    "dose": ("dose_response", (*COMMON, "--model", MODEL, "--limit", "8", "--doses", "1,2,4,8")),
    "mechanism": ("mechanism", (*ASKED, "--limit", "8")),
    "read-span": ("read_span", (*ASKED, "--limit", "8")),
    "accuracy": (
        "accuracy",
        (*ASKED, "--limit", "12", "--max-new-tokens", "6", "--treatments", "none,mless,random_sentence"),
    ),
    "figures": (
        "reproduce_figures",
        (*COMMON, "--model", MODEL, "--n-tokens", "6", "--figure", "13", "--limit", "8"),
    ),
    "study": ("study", (f"{MODEL}/{STUDY}", *COMMON, "--model", MODEL)),
    "circuit": (
        "circuit",
        (MODEL, *COMMON, "--n-tokens", "6", "--limit", "12", "--confirm", "8", "--mlps", "none", "--n-rows", "2"),
    ),
}
"""The command of each and its arguments: as small as they can be with every part of it run, heads named and confirmed."""

ASKED_OF_STUDY = """
title = "Two insertions"
limit = 12
contrasts = ["content", "shift"]
heads = "all"
confirm = 8
answers = 4
max_new_tokens = 6

[[insertions]]
name = "slashes"
kind = "meaningless"
unit = " /"
n_tokens = 6

[[insertions]]
name = "random words"
kind = "random_sentence"
n_tokens = 6
"""


class Ended(NamedTuple):
    """How a run ended: its exit code (minus the signal that killed it), what it said at last, and how long it computed."""

    code: int
    last_words: str
    seconds: float


class Tally(NamedTuple):
    """Of `tried` disturbed runs, how many came to the undisturbed results and how many were refused in one line, as meant."""

    fault: str
    analysis: str
    tried: int
    equal: int
    refused: int

    @property
    def wrong(self) -> int:
        return self.tried - self.equal - self.refused

    @property
    def cell(self) -> str:
        """Equal, refused and wrong as the table writes them: `9, 1 r`."""
        named = ((self.equal, ""), (self.refused, " r"), (self.wrong, " wrong"))
        return ", ".join(f"{count}{end}" for count, end in named if count)


# ---------------------------------------------------------------------------------------------------------------- runs


def _computed(pid: int) -> float:
    """Seconds of the processor that it has had, which do not depend on how busy the machine is."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _interrupt(pid: int) -> None:
    os.kill(pid, signal.SIGINT)


def _no_more_memory(pid: int) -> None:
    """From now on no page more than it has; what it has freed it may use again."""
    has = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (has, has))


IDLE = 60.0
"""Seconds without computing after which a run is killed, as its user would: Python waits for ever for a thread that finds no
memory to begin in."""


class Run:
    """One analysis into one folder, as a process of its own."""

    def __init__(self, analysis: str, folder: Path, model: Path) -> None:
        self.name, arguments = ANALYSES[analysis]
        self.out = folder / "out"
        self.said = folder.with_name(f"{folder.name}.said")
        self.arguments = [*(each.format(model=model) for each in arguments), "--out", str(self.out)]

    def start(self, *, before: Callable[[], None] = lambda: None) -> int:
        """Its process id; its standard error goes beside the folder."""
        self.said.touch()  # here: a run may be killed before it does anything
        pid = os.fork()
        if pid:
            return pid
        with self.said.open("wb") as said, open(os.devnull, "wb") as nothing:
            os.dup2(said.fileno(), 2)
            os.dup2(nothing.fileno(), 1)
        code = 1
        try:
            sys.argv = [self.name, *self.arguments]
            before()
            import_module(f"mless_interp.app.{self.name}").app(self.arguments, standalone_mode=True)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException as error:  # noqa: BLE001 what a user would see as a traceback
            sys.stderr.write(f"TRACEBACK {type(error).__name__}: {error}\n")
        finally:
            sys.stderr.flush()
            os._exit(code)

    def until(self, pid: int, seconds: float) -> bool:
        """Waits until it has computed so many seconds; whether it still runs then."""
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if _computed(pid) >= seconds:
                return True
            time.sleep(0.002)
        return False

    def wait(self, pid: int, *, after: float | None = None, do: Callable[[int], object] = _kill) -> Ended:
        """The end of a run, to which something is done `after` so many seconds (if it still runs)."""
        if after is not None and self.until(pid, after):
            do(pid)
        last, idle = -1.0, 0
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            idle, last = (idle + 1, last) if (now := _computed(pid)) == last else (0, now)
            if idle > IDLE / 0.05:
                _kill(pid)
            time.sleep(0.05)
        seconds = _computed(pid)
        _, status = os.waitpid(pid, 0)
        lines = self.said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        self.said.unlink()
        return Ended(os.waitstatus_to_exitcode(status), lines[-1] if lines else "", seconds)

    def whole(self, **options: Any) -> Ended:
        """Start and wait."""
        return self.wait(self.start(**options))


WHEN_AND_WHERE = ("made", "command", "repeat", "commit")
"""What of a `run.json` may differ, beside its folder."""


def left(out: Path) -> dict[str, Any]:
    """Everything that a run left, bit for bit, but what says when and where it ran."""
    if not out.is_dir():
        return {"nothing": sorted(path.name for path in out.parent.iterdir())}
    found: dict[str, Any] = {"beside it": sorted(path.name for path in out.parent.iterdir() if path != out)}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_dir():
            found[name] = None
        elif path.name == "arrays.npz":  # an archive, with the time
            with np.load(path) as arrays:
                found[name] = {key: (arrays[key].shape, arrays[key].tobytes()) for key in arrays.files}
        elif path.name == "results.json":
            found[name] = json.dumps(json.loads(path.read_text(encoding="utf-8"))["results"])
        elif path.name == mi.runtime.folders.RUN:
            run = json.loads(path.read_text(encoding="utf-8"))
            del run["options"]["out"]
            found[name] = json.dumps({key: value for key, value in run.items() if key not in WHEN_AND_WHERE})
        elif path.name == mi.runtime.folders.MANIFEST:
            found[name] = mi.runtime.folders.damaged_files(path.parent)
        else:
            found[name] = path.read_bytes()
    return found


# -------------------------------------------------------------------------------------------------------------- faults


class Bench:
    """The undisturbed run of one analysis, and a fresh folder for each disturbed one."""

    def __init__(self, analysis: str, model: Path, work: Path) -> None:
        self.analysis, self.model, self.work, self.count = analysis, model, work, 0
        run = self.fresh()
        ended = run.whole()
        if ended.code:
            raise SystemExit(f"{analysis}, undisturbed: exit code {ended.code}, {ended.last_words}")
        self.seconds, self.expected = ended.seconds, left(run.out)

    def fresh(self, model: Path | None = None) -> Run:
        self.count += 1
        folder = self.work / f"{self.analysis}-{self.count}"
        folder.mkdir()
        return Run(self.analysis, folder, model or self.model)

    def outcome(self, run: Run) -> str:
        """equal, if the run started again comes to the undisturbed results; else what is wrong."""
        ended = run.whole()
        if ended.code and "exists" in ended.last_words and run.out.is_dir():
            found = left(run.out)  # it had finished before it could be disturbed, or had all but said so
        elif ended.code:
            return f"started again: exit code {ended.code}, {ended.last_words}"
        else:
            found = left(run.out)
        different = [name for name in {**self.expected, **found} if self.expected.get(name, 0) != found.get(name, 0)]
        return f"other: {', '.join(different)}" if different else "equal"


def killed(bench: Bench, n: int, draw: random.Random) -> Iterator[str]:
    """SIGKILL at random moments, in half of the runs twice."""
    for number in range(n):
        run = bench.fresh()
        ended = run.wait(run.start(), after=draw.uniform(0, bench.seconds))
        if number % 2 and ended.code:
            ended = run.wait(run.start(), after=draw.uniform(0, bench.seconds))
        yield bench.outcome(run)


def interrupted(bench: Bench, n: int, draw: random.Random) -> Iterator[str]:
    """Ctrl-C at random moments: one line that says how to go on, exit code 130."""
    for _ in range(n):
        run = bench.fresh()
        ended = run.wait(run.start(), after=draw.uniform(0.1, 0.9) * bench.seconds, do=_interrupt)
        if ended.code not in (0, 130) or "TRACEBACK" in ended.last_words:
            yield f"Ctrl-C: exit code {ended.code}, {ended.last_words}"
        else:
            yield bench.outcome(run)


def out_of_disk(bench: Bench, n: int, draw: random.Random) -> Iterator[str]:
    """No file may grow beyond a random size: as a disk that is full, at any point of the run."""
    for _ in range(n):
        run, size = bench.fresh(), int(10 ** draw.uniform(1, 5.5))
        ended = run.whole(before=lambda size=size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        yield bench.outcome(run) if in_one_line(ended) or not ended.code else f"{size} bytes: {ended}"


def out_of_memory(bench: Bench, n: int, draw: random.Random) -> Iterator[str]:
    """The address space ends at a random moment: one line that says so."""
    for _ in range(n):
        run = bench.fresh()
        ended = run.wait(run.start(), after=draw.uniform(0, bench.seconds), do=_no_more_memory)
        told = in_one_line(ended) or ended.code in (0, -signal.SIGKILL)
        yield bench.outcome(run) if told else f"{ended}"


def two_at_once(bench: Bench, n: int, draw: random.Random) -> Iterator[str]:
    """A second run with the same --out while the first is at it: refused, and the first is as if alone."""
    for _ in range(n):
        run = bench.fresh()
        first = run.start()
        run.until(first, draw.uniform(0.3, 0.6) * bench.seconds)
        other = Run(bench.analysis, run.out.parent, bench.model)
        other.said = run.out.parent.with_name("other.said")
        second = other.whole()
        ended = run.wait(first)
        if ended.code or left(run.out) != bench.expected:
            yield f"the first: {ended}"
        else:
            yield "refused" if in_one_line(second) else f"the second: {second}"


def unwritable(bench: Bench, n: int, draw: random.Random) -> Iterator[str]:
    """A place that takes no files: refused before the work."""
    for _ in range(n):
        run = bench.fresh()
        run.arguments[run.arguments.index("--out") + 1] = "/proc/self/nothing/here"
        ended = run.whole()
        soon = ended.seconds < 0.5 * bench.seconds
        yield "refused" if in_one_line(ended) and soon else f"{ended}"


def damaged(bench: Bench, n: int, draw: random.Random) -> Iterator[str]:
    """One number of one layer is not a number: refused before the work."""
    from safetensors.torch import load_file, save_file

    for _ in range(n):
        run = bench.fresh()
        model = run.out.parent / "model"
        shutil.copytree(bench.model, model)
        weights = load_file(model / "model.safetensors")
        tensor = weights[draw.choice(sorted(weights))]
        tensor.view(-1)[draw.randrange(tensor.numel())] = draw.choice((float("nan"), float("inf")))
        save_file(weights, model / "model.safetensors", {"format": "pt"})
        run = Run(bench.analysis, run.out.parent, model)
        ended = run.whole()
        yield "refused" if in_one_line(ended) and not run.out.exists() else f"{ended}"


def damaged_checkpoint(bench: Bench, n: int, draw: random.Random) -> Iterator[str]:
    """A byte of one file that a killed run has left is another, or its end is missing: done again, or refused by its name."""
    for _ in range(n):
        run = bench.fresh()
        run.wait(run.start(), after=draw.uniform(0.2, 0.9) * bench.seconds)
        kept = [path for path in sorted(run.out.parent.rglob(".*/**/*")) if path.is_file() and path.stat().st_size]
        if kept:
            file = draw.choice(kept)
            content = bytearray(file.read_bytes())
            at = draw.randrange(len(content))
            if draw.random() < 0.5:
                del content[at:]
            else:
                content[at] ^= draw.randrange(1, 256)
            file.write_bytes(content)
        outcome = bench.outcome(run)
        refused = "exit code 2" in outcome and f"{run.out.parent}/." in outcome and "TRACEBACK" not in outcome
        yield "refused" if refused else f"{file.name}, {outcome}" if kept and outcome != "equal" else outcome


def in_one_line(ended: Ended) -> bool:
    return ended.code == 2 and "TRACEBACK" not in ended.last_words and bool(ended.last_words)


FAULTS: dict[str, tuple[Callable[[Bench, int, random.Random], Iterator[str]], float]] = {
    "SIGKILL at a random moment, half of them twice": (killed, 1.0),
    "Ctrl-C at a random moment": (interrupted, 0.2),
    "full disk (files may not grow beyond a random size)": (out_of_disk, 0.2),
    "out of memory (the address space ends at a random moment)": (out_of_memory, 0.1),
    "a second run with the same --out": (two_at_once, 0.06),
    "a folder that cannot be written": (unwritable, 0.02),
    "NaN or infinity in one number of one layer": (damaged, 0.1),
    "one byte, or the end, of what a killed run has kept": (damaged_checkpoint, 0.2),
}
"""Each with how many are tried for every kill."""


def tallies(analysis: str, model: Path, work: Path, *, kills: int, seed: int, only: str = "") -> Iterator[Tally]:
    """Every fault whose name holds `only`, on one analysis."""
    bench = Bench(analysis, model, work)
    print(f"{analysis}: {bench.seconds:.1f} s of computing, undisturbed", flush=True)
    for fault in (each for each in FAULTS if only in each):
        disturb, share = FAULTS[fault]
        outcomes = []
        for outcome in disturb(bench, max(1, round(share * kills)), random.Random(f"{seed}/{analysis}/{fault}")):
            outcomes.append(outcome)
            if outcome not in ("equal", "refused"):
                print(f"  WRONG after {fault}: {outcome}", flush=True)
        tally = Tally(fault, analysis, len(outcomes), outcomes.count("equal"), outcomes.count("refused"))
        print(
            f"  {fault}: {tally.tried} tried, {tally.equal} equal, {tally.refused} refused, {tally.wrong} wrong",
            flush=True,
        )
        yield tally


def table(found: list[Tally]) -> str:
    """A row per fault, a column per analysis."""
    made = {(tally.fault, tally.analysis): tally for tally in found}
    shown = [name for name in ANALYSES if any(name == analysis for _, analysis in made)]
    lines = [["fault", *shown], ["---", *["--:"] * len(shown)]]
    lines += [
        [fault, *(made[fault, name].cell if (fault, name) in made else "-" for name in shown)]
        for fault in FAULTS
        if any(fault == tally.fault for tally in found)
    ]
    tried, equal, refused, wrong = (
        sum(column) for column in zip(*((t.tried, t.equal, t.refused, t.wrong) for t in found), strict=True)
    )
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{rows}\n\nTogether: {tried} tried, {equal} equal, {refused} refused (r), {wrong} wrong.\n"


def tallies_in(text: str) -> Iterator[Tally]:
    """The counts of a table that `table` wrote."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    for fault, *cells in lines[2:]:
        for analysis, cell in zip(lines[0][1:], cells, strict=True):
            numbers = [int((re.findall(rf"(\d+){end}", cell) or [0])[0]) for end in (r"(?=,|$)", " r", " wrong")]
            if fault in FAULTS and analysis in ANALYSES and any(numbers):
                yield Tally(fault, analysis, sum(numbers), *numbers[:2])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("analyses", nargs="*", metavar="ANALYSIS", help=f"of {', '.join(ANALYSES)} [default: all]")
    parser.add_argument("--kills", type=int, default=50, help="SIGKILLs per analysis; the other faults in proportion")
    parser.add_argument("--only", default="", help="the faults whose name holds this [default: all]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", default=str(PAGE), help="where the table is written; - for nowhere")
    asked = parser.parse_args(argv)
    unknown = [name for name in asked.analyses if name not in ANALYSES]
    if unknown:
        parser.error(f"unknown analysis {unknown[0]!r}; choose of {', '.join(ANALYSES)}")
    if not any(asked.only in fault for fault in FAULTS):
        parser.error(f"no fault holds {asked.only!r} in its name; there are: {'; '.join(FAULTS)}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model = model_in(work, seed=asked.seed)
        for name, _ in ANALYSES.values():
            import_module(f"mless_interp.app.{name}")
        warm(model, work)
        found: list[Tally] = []
        for analysis in asked.analyses or ANALYSES:
            for tally in tallies(analysis, model, work, kills=asked.kills, seed=asked.seed, only=asked.only):
                found.append(tally)
                if asked.page != "-":
                    write_table(Path(asked.page), found)
    print(table(found))
    return int(any(tally.wrong for tally in found))


def write_table(page: Path, found: list[Tally]) -> None:
    """The table so far, into its place on a page; what was not run this time keeps its rows."""
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    old, closed, after = rest.partition(END)
    if not closed:
        raise SystemExit(f"{page} has no table between {START.strip()!r} and {END!r}")
    made = {(tally.fault, tally.analysis) for tally in found}
    kept = [tally for tally in tallies_in(old) if (tally.fault, tally.analysis) not in made]
    page.write_text(before + START + table([*kept, *found]) + END + after, encoding="utf-8")


def model_in(folder: Path, *, seed: int) -> Path:
    """A small planted model, its problems, and the study that is asked of it."""
    model = mi.planted_model(n_heads=8, n_key_value_heads=2, seed=seed).save(folder / "model")
    (model / STUDY).write_text(ASKED_OF_STUDY, encoding="utf-8")
    return model


def warm(model: Path, work: Path) -> None:
    """Everything imported that a run imports, so that forks need not."""
    pairs = mi.make_pairs(mi.load_model(model), mi.load_problems(model, limit=2), mi.Insertion.meaningless(" /", 3))
    with contextlib.redirect_stdout(None):
        mi.views.head_map(mi.patch_heads(mi.load_model(model), pairs, progress=False)).save(work / "warm.png")


if __name__ == "__main__":
    sys.exit(main())
