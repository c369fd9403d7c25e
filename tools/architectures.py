"""Write docs/architectures.md: what works on which architecture and backend, as a run of every promise finds it.

    python tools/architectures.py        # three minutes on two cores; writes the columns of the installed TransformerLens

The promises are `FEATURES` of `tests/architecture_features.py`, each held against its slow definition on a tiny random model.
"""

import re
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from architecture_features import FEATURES, model_of, pairs_of  # noqa: E402
from architectures_under_test import CONFIGS  # noqa: E402

import mless_interp as mi  # noqa: E402

PAGE = ROOT / "docs" / "architectures.md"
NOT_CONVERTED = "cannot be converted"
MAJOR = version("transformer-lens").split(".")[0]
COLUMNS = {"bridge": f"bridge ({MAJOR}.x)", "nnsight": "nnsight", "hooked_transformer": "HookedTransformer (3.x)"}


def found(architecture: str, backend: str) -> tuple[str, str]:
    """What the page says of an architecture on a backend, and why where it is not all."""
    try:
        model = model_of(architecture, backend)
    except mi.ModelError as error:
        return "-", reason_of(error)
    failed, why = [], []
    for name, feature in FEATURES.items():
        try:
            feature(model, pairs_of(architecture, backend))
        except (AssertionError, mi.ModelError, ValueError, RuntimeError) as error:
            failed.append(name)
            why.append(f"{name}: {reason_of(error)}")
    return ("all", "") if not failed else (f"not {', '.join(failed)}", why[0])


def reason_of(error: Exception) -> str:
    """An error's first sentence, without the folder's name."""
    words = str(error).splitlines()[0] if str(error) else type(error).__name__
    words = re.sub(r"'?/[^\s']*architecture-\S+?'?(?=[\s(]|$)", "the model", words)
    words = re.sub(r"""\((["'])(.*?)\1, .*\)$""", r"\2", words)  # an assertion's pair of reasons
    words = re.split(r"; (?:use|try) |\(convertible", words)[0]
    return re.sub(r"^\w+ (cannot be converted).*", r"\1", words).strip().replace("|", "\\|")


def rows(text: str) -> dict[str, list[str]]:
    """The table's rows as they are, by architecture."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def main() -> None:
    """Run every promise and write its table and reasons."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split("<!-- architectures -->")
    table, after = rest.split("<!-- end -->", 1)
    kept = rows(table)
    header = ["bridge (3.x)", "bridge (4.x)", "nnsight", "HookedTransformer (3.x)"]
    backends = [backend for backend in COLUMNS if backend != "hooked_transformer" or MAJOR == "3"]
    lines = [f"| architecture | {' | '.join(header)} |", f"| --- {'| --- ' * len(header)}|"]
    notes = [line for line in table.splitlines() if line.startswith("- ")]
    for architecture in CONFIGS:
        cells = dict(zip(header, kept.get(architecture, ["not run"] * len(header)), strict=True))
        for backend in backends:
            column = COLUMNS[backend]
            cells[column], why = found(architecture, backend)
            start = f"- {architecture}, {column}:"
            notes = [note for note in notes if not note.startswith(start)] + (
                [f"{start} {why}."] if why not in ("", NOT_CONVERTED) else []
            )
            print(f"{architecture:24} {column:24} {cells[column]} {why}", flush=True)
        lines.append(f"| {architecture} | {' | '.join(cells.values())} |")
    written = "\n".join(
        [
            *lines,
            "",
            "Reasons, unless HookedTransformer cannot convert the architecture (of several failures the first):",
            "",
            *sorted(notes),
        ]
    )
    PAGE.write_text(f"{before}<!-- architectures -->\n{written}\n\n<!-- end -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
