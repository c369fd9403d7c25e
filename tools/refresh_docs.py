"""Run the examples that the documentation shows and write what they print into its pages.

    python tools/refresh_docs.py

`docs/index.md` (its example) and `docs/how-to/check-your-model.md` (the certificate, and the one of a lying model). About a
minute on two cores. `tests/docs/test_docs.py` fails where a page shows something else than is printed.
"""

import contextlib
import io
import re
import textwrap
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH, SENTENCES = 118, 150
"""Lines longer than SENTENCES are sentences and are wrapped to WIDTH; shorter ones are rows of a table."""


def printed(code: str) -> str:
    """What a piece of code prints, its sentences wrapped."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "example", "exec"), {})
    lines = out.getvalue().rstrip().splitlines()
    return "\n".join(
        part for line in lines for part in (textwrap.wrap(line, WIDTH) if len(line) > WIDTH + 4 else [line])
    )


def blocks(text: str, language: str) -> list[str]:
    """The contents of a page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def main() -> None:
    """Rewrite both pages."""
    page = DOCS / "index.md"
    text = page.read_text(encoding="utf-8")
    (code,), (shown,) = blocks(text, "python"), blocks(text, "text")
    page.write_text(text.replace(shown, printed(code) + "\n"), encoding="utf-8")

    page = DOCS / "how-to" / "check-your-model.md"
    text = page.read_text(encoding="utf-8")
    certificate, lie = blocks(text, "text")
    made = printed("import mless_interp as mi\nprint(mi.certify_model(mi.load_model('demo'), progress=False))")
    text = text.replace(certificate, made + "\n")
    code = re.sub(
        r"^(mi\.certify_model\(.*)\)$", r"print(\1, progress=False))", blocks(text, "python")[1], flags=re.MULTILINE
    )
    text = text.replace(lie, printed("import mless_interp as mi\n" + code) + "\n")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
