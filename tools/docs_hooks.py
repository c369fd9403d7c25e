"""What `mkdocs build` does beyond mkdocs: formulas that the browser itself draws, the tutorials' notebooks as pages.

Named in `mkdocs.yml` under `hooks`. latex2mathml writes the formulas, nbconvert the pages (in the form of
`notebook.md.j2`). mkdocs-jupyter would bypass Markdown: formulas would need MathJax from the network, and links, search
and strict validation would not know the notebooks.
"""

import html
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

TOOLS = Path(__file__).resolve().parent
TUTORIALS = TOOLS.parent / "tutorials"
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
UNDRAWN = re.compile(r'\\|mathvariant="(?!normal)')  # TeX that latex2mathml left, an alphabet that browsers ignore


def drawn(tex: str, *, display: bool) -> str:
    """A formula as MathML; one that would be half right is refused.

    >>> drawn(r"\\text{a\\_b}", display=False)
    '<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><mtext>a_b</mtext></mrow></math>'
    """
    made = convert(tex, display="block" if display else "inline").replace("\\_", "_")
    if UNDRAWN.search(made):
        raise PluginError(f"formula {tex!r}: latex2mathml makes {made} of it; write it otherwise")
    return f'<div class="formula">{made}</div>' if display else made


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Every formula as MathML."""
    return FORMULA.sub(
        lambda found: drawn(html.unescape(found[2]).strip()[2:-2].strip(), display=found[1] == "div"), content
    )


def as_page(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """(Markdown, pictures by file name) of a notebook with its outputs."""
    exporter = MarkdownExporter(template_file=str(TOOLS / "notebook.md.j2"))
    text, resources = exporter.from_filename(str(notebook), {"unique_key": notebook.stem})
    return text, resources["outputs"]


class Notebook(File):
    """A notebook, which is a page here."""

    def is_documentation_page(self) -> bool:
        """Where mkdocs asks whether a page is to be made of it."""
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The tutorials' notebooks, their pictures beside them, and the page that lists them."""
    for path in TUTORIALS.glob("*.ipynb"):
        text, pictures = as_page(path)
        files.append(Notebook.generated(config, f"tutorials/{path.name}", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=data))
    files.append(File.generated(config, "tutorials/README.md", abs_src_path=str(TUTORIALS / "README.md")))
    return files
