"""What `mkdocs build` does beyond mkdocs: formulas drawn by the browser itself, tutorials with their outputs as pages.

Named in `mkdocs.yml` under `hooks`. No network, nothing that the development environment does not hold.
"""

import base64
import html
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mathml import mathml

log = logging.getLogger("mkdocs.hooks.mless_interp")
ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "tutorials"
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
NOTEBOOK_LINK = re.compile(r"\]\((\d\d_\w+)\.ipynb(?=[)#])")  # from one notebook to another, which is a page here
PICTURES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif"}
LARGEST_INLINE_HTML = 4_000_000


# ------------------------------------------------------------------------------------------------------------- formulas


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Every formula as MathML."""

    def drawn(found: re.Match[str]) -> str:
        tex = html.unescape(found.group(2)).strip()
        display = tex.startswith("\\[")
        try:
            made = mathml(tex[2:-2], display=display)
        except ValueError as error:
            log.warning("%s: %s", page.file.src_uri, error)  # an error where warnings are (mkdocs build --strict)
            return found.group(0)
        return f'<div class="formula">{made}</div>' if display else made

    return FORMULA.sub(drawn, content)


# ------------------------------------------------------------------------------------------------------------ tutorials


def notebooks(folder: Path) -> list[Path]:
    """The tutorials in their order: each notebook with outputs, or its percent-format script where there is none."""
    found = {path.stem: path for path in sorted(folder.glob("*.py"))}
    found |= {path.stem: path for path in sorted(folder.glob("*.ipynb"))}
    return [found[name] for name in sorted(found) if name[:2].isdigit()]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """A page `tutorials/NAME.md` for every tutorial, its pictures beside it, and `tutorials/index.md` that lists them."""
    pages = []
    for path in notebooks(TUTORIALS):
        text, pictures = as_page(path)
        uri = f"tutorials/{path.stem}.md"
        files.append(File.generated(config, uri, content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=data))
        pages.append((title_of(text) or path.stem, uri, path.name))
    files.append(File.generated(config, "tutorials/index.md", content=index_of(pages)))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The tutorials' place in the navigation, whichever there are."""
    for entry in config.nav or []:
        if isinstance(entry, dict) and "Tutorials" in entry:
            entry["Tutorials"] = ["tutorials/index.md"] + [f"tutorials/{path.stem}.md" for path in notebooks(TUTORIALS)]
    return config


def index_of(pages: list[tuple[str, str, str]]) -> str:
    """The page that lists the tutorials."""
    lines = ["# Tutorials", ""]
    if not pages:
        return "\n".join([*lines, "There are no tutorials in this copy of the project (`tutorials/` is empty)."]) + "\n"
    lines += [
        "Each runs on the bundled models, without a network, in under two minutes. The pages here show the outputs of the",
        "published notebooks; the files in `tutorials/` are there to run.",
        "",
    ]
    lines += [f"- [{title}]({Path(uri).name}) (`tutorials/{name}`)" for title, uri, name in pages]
    return "\n".join(lines) + "\n"


def title_of(text: str) -> str | None:
    """The first heading of a page."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else None


def as_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """(Markdown, pictures by file name) of a notebook with its outputs, or of a percent-format script without."""
    cells = _cells_of_script(path) if path.suffix == ".py" else json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in cells:
        source = "".join(cell["source"]).strip("\n")
        if cell["cell_type"] == "markdown":
            parts.append(NOTEBOOK_LINK.sub(r"](\1.md", source))
        elif cell["cell_type"] == "code" and source.strip():
            parts.append(fenced(source, "python"))
            for output in cell.get("outputs", []):
                parts.append(_output(output, path.stem, pictures))
    if path.suffix == ".py":
        parts.insert(1, "*This page shows the script without outputs; run it to see them.*")
    return "\n\n".join(part for part in parts if part) + "\n", pictures


def fenced(text: str, language: str = "") -> str:
    """A code block whose fence is longer than any inside it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _cells_of_script(path: Path) -> list[dict[str, Any]]:
    import jupytext

    return jupytext.read(path).cells


def _output(output: dict[str, Any], stem: str, pictures: dict[str, bytes]) -> str:
    kind = output["output_type"]
    if kind == "stream":
        return _text("".join(output["text"])) if output.get("name") == "stdout" else ""
    if kind == "error":
        return _text("\n".join(output["traceback"]))
    data = {key: "".join(value) if isinstance(value, list) else value for key, value in output.get("data", {}).items()}
    for mime, suffix in PICTURES.items():
        if mime in data:
            name = f"{stem}-{len(pictures)}.{suffix}"
            pictures[name] = base64.b64decode(data[mime])
            return f"![Output of the cell above]({name})"
    if "image/svg+xml" in data:
        return _raw(data["image/svg+xml"])
    if "text/html" in data:
        page = data["text/html"]
        if len(page) > LARGEST_INLINE_HTML:
            return f"*(An interactive view of {len(page) / 1e6:.1f} MB stands here in the notebook.)*"
        if "<script" in page:  # of its own document, so that its styles and scripts touch nothing else
            inner = html.escape(page).replace("\n", "&#10;")  # a script's line comments end where its lines do
            return _raw(f'<iframe class="view" loading="lazy" title="Interactive output" srcdoc="{inner}"></iframe>')
        return _raw(f'<div class="output">{page}</div>')
    if "text/markdown" in data:
        return data["text/markdown"]
    return _text(data.get("text/plain", ""))


def _text(text: str) -> str:
    shown = ANSI.sub("", text).strip("\n")
    return fenced(shown, "text") if shown.strip() else ""


def _raw(markup: str) -> str:
    """HTML as one block of one line, which Markdown leaves alone."""
    return " ".join(markup.split("\n"))
