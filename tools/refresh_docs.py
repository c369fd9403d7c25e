"""Write what the code says into the documentation's pages (tables, and what examples print) and into the file of names.

    python tools/refresh_docs.py            # all; about a minute on two cores
    python tools/refresh_docs.py tables     # tables and names only, in a moment
    python tools/refresh_docs.py columns    # print the columns of all results, which the site lists

Tables stand between `<!-- table NAME -->` and `<!-- end -->`, for the names of `TABLES`.

Examples are those of `README.md` (which `docs/index.md` includes) and `docs/how-to/check-your-model.md` (the certificate).
`tests/docs/test_docs.py` fails where a page shows something else than the code says.
"""

import contextlib
import io
import json
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import mless_interp as mi

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = Path(mi.__file__).parent / "data" / "names.json"
WIDTH, SENTENCES = 118, 150
"""Lines longer than SENTENCES are sentences and are wrapped to WIDTH; shorter ones are rows of a table."""


def printed(code: str) -> str:
    """What a piece of code prints, its sentences wrapped."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "example", "exec"), {})
    lines = out.getvalue().rstrip().splitlines()
    return "\n".join(
        part for line in lines for part in (textwrap.wrap(line, WIDTH) if len(line) > SENTENCES else [line])
    )


def blocks(text: str, language: str) -> list[str]:
    """The contents of a page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def table(header: str, rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    columns = header.split(" | ")
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def conditions() -> str:
    """The conditions in words."""
    positions = {"base": "as they are", "inserted": "N later"}
    return table(
        "name | code | positions of the question | in words",
        ((f"`{c.name}`", c.code, positions[c.positions], c.says) for c in mi.prompts.conditions.CONDITIONS.values()),
    )


def contrasts() -> str:
    """The contrasts between them."""
    return table(
        "contrast | clean run | corrupted run | what differs",
        ((f"`{c.name}`", f"`{c.clean}`", f"`{c.corrupted}`", c.says) for c in mi.prompts.conditions.CONTRASTS.values()),
    )


def verdicts() -> str:
    """The verdicts in words."""
    rows = ((f"`{k.name}` {k.letters}".rstrip(), k.says) for k in mi.circuits.judge.KINDS.values())
    return table("verdict, letters in pictures | in words", rows)


def results() -> dict[str, type[mi.runtime.base_result.Result]]:
    """The public kinds of results by name."""
    kinds = {name: getattr(mi, name) for names in mi.RESULTS.values() for name in names}
    return {name: kind for name, kind in kinds.items() if issubclass(kind, mi.runtime.base_result.Result)}


def columns() -> str:
    """Every column that results declare, under the results that declare it."""
    found: dict[str, tuple[mi.runtime.columns.Column, list[str]]] = {}
    for name, kind in results().items():
        for column in (each for base in kind.__mro__ for each in vars(base).get("columns", ())):
            found.setdefault(column.name, (column, []))[1].append(name)
    places: dict[str, list[str]] = {}
    for name, (column, of) in sorted(found.items()):
        short = len(column.note.split()) < 4 and column.heading != name.replace("_", " ")  # needs its heading
        words = f"{column.heading}: {column.note}".removesuffix(": ") if short else column.note
        row = f"- `{name}`: " + words.replace("\\", "\\\\")
        places.setdefault(", ".join(of) if len(of) < 4 else "Many results", []).append(row)
    ordered = sorted(places, key=lambda place: (place != "Many results", place))
    return "\n\n".join(f"### {place}\n\n" + "\n".join(places[place]) for place in ordered)


TABLES = {
    "conditions": conditions,
    "contrasts": contrasts,
    "verdicts": verdicts,
}


def names() -> str:
    """What options of commands take, as JSON: the names of tables that load torch, for help and refusals without it."""
    outcomes, insertions = mi.patching.outcomes.OUTCOMES, mi.prompts.insertions
    made = {
        "backends": mi.models.load_options.BACKENDS,
        "contrasts": mi.prompts.conditions.CONTRASTS,
        "contrasts_of_circuits": mi.prompts.conditions.OF_CIRCUITS,
        "edits": mi.patching.interventions.INTERVENTIONS,
        "insertions": insertions.KINDS,
        "metrics": mi.scores.METRICS,
        "outcomes": outcomes,
        "segments": insertions.PLACES,
        "signed_outcomes": [name for name, each in outcomes.items() if not each.needs_clean],
        "templates": mi.prompts.prompt.TEMPLATES,
    }
    return json.dumps({name: list(table) for name, table in made.items()}, indent=1) + "\n"


def with_tables(text: str) -> str:
    """A page with its tables as the code has them now."""
    return re.sub(
        r"(<!-- table ([\w ]+) -->\n\n).*?(\n\n<!-- end -->)",
        lambda found: found[1] + TABLES[found[2]]() + found[3],
        text,
        flags=re.DOTALL,
    )


def main(what: list[str]) -> None:
    """Rewrite the pages, or print the columns."""
    if what == ["columns"]:
        print(columns())
        return
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if with_tables(text) != text:
            page.write_text(with_tables(text), encoding="utf-8")
    NAMES.write_text(names(), encoding="utf-8")
    if what != ["tables"]:
        examples()


def examples() -> None:
    """Run the examples and show what they print."""
    page = DOCS.parent / "README.md"
    text = page.read_text(encoding="utf-8")
    (code,), (shown,) = blocks(text, "python"), blocks(text, "text")
    page.write_text(text.replace(shown, printed(code) + "\n"), encoding="utf-8")

    page = DOCS / "how-to" / "check-your-model.md"
    text = page.read_text(encoding="utf-8")
    (certificate,) = blocks(text, "text")
    found = mi.certify_model(mi.load_model("demo"), progress=False)
    made = "\n".join(found.lines())
    page.write_text(text.replace(certificate, made + "\n"), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
