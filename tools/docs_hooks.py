"""What `mkdocs build` does beyond mkdocs: formulas that the browser itself draws, the tutorials' notebooks as pages.

Named in `mkdocs.yml` under `hooks`. latex2mathml writes the formulas, nbconvert the notebooks' pages (in the form of
`notebook.md.j2`). mkdocs-jupyter would bypass Markdown: formulas would need MathJax from the network, and links, search
and strict validation would not know the notebooks. Beside these: every member of an API page folded under its first
sentence, pages for users found before internals, acronyms explained where they stand, `llms.txt` with the site's links.
"""

import html
import re
import sys
from pathlib import Path

from bs4 import BeautifulSoup
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent
TUTORIALS = ROOT / "tutorials"
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
UNDRAWN = re.compile(r'\\|mathvariant="(?!normal)')  # TeX that latex2mathml left, an alphabet that browsers ignore
LINK = re.compile(r"\]\((?:docs/)?([^)#]+)")
ACRONYM = re.compile(r"^\| ([A-Z]{3,}) \| ([^|`$*\[]+) \|$", re.MULTILINE)
BOOST = {
    "how-to/": 8.0,
    "index": 4.0,
    "concepts": 4.0,
    "glossary": 4.0,
    "tutorials/": 3.0,
    "api/paper": 1.0,
    "api/": 3.0,
    "architecture": 0.2,
    "benchmarks": 0.2,
    "calibration": 0.2,
    "architectures": 0.2,
    "hook-sites": 0.2,
    "comparison": 0.4,
}
"""How much more, or less, a page counts in the site's search, by the beginning of its path; 1 where nothing is said."""


def drawn(tex: str, *, display: bool) -> str:
    """A formula as MathML; one that would be half right is refused.

    >>> drawn(r"\\text{a\\_b}", display=False)
    '<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><mtext>a_b</mtext></mrow></math>'
    """
    made = convert(tex, display="block" if display else "inline").replace("\\_", "_")
    if UNDRAWN.search(made):
        raise PluginError(f"formula {tex!r}: latex2mathml makes {made} of it; write it otherwise")
    return f'<div class="formula">{made}</div>' if display else made


def folded(content: str) -> str:
    """An API page on which every class, function and constant shows its name and first sentence, and opens to the rest.

    >>> page = folded('<div class="doc-object"><h3>f</h3>f(x)<div class="doc-contents"><p>One.</p><p>Two.</p></div></div>')
    >>> page.partition("<details")[2]
    ' class="member"><summary>One.</summary>f(x)<div class="doc-contents"><p>Two.</p></div></details></div>'
    """
    soup = BeautifulSoup(content, "html.parser")
    for member in soup.select(".doc-object:not(.doc-module)"):
        heading = member.find(re.compile("^h[1-6]$"), recursive=False)
        contents = member.find(class_="doc-contents", recursive=False)
        first = contents.find("p", class_=False, recursive=False)
        summary, details = soup.new_tag("summary"), soup.new_tag("details", attrs={"class": "member"})
        if first is not None:
            summary.extend(list(first.extract().contents))
        details.append(summary)
        details.extend([part.extract() for part in list(heading.next_siblings)])
        heading.insert_after(details)
    return str(soup)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add the page's weight in the search, the list of columns, and the glossary's acronyms as tooltips."""
    path = page.file.src_uri
    boost = next((factor for start, factor in BOOST.items() if path.startswith(start)), 1.0)
    page.meta.setdefault("search", {"boost": boost})
    if path == "api/columns.md":
        sys.path.append(str(TOOLS))
        from refresh_docs import columns

        markdown += f"\n{columns()}\n"
    meanings = ACRONYM.findall((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    return markdown + "\n\n" + "\n".join(f"*[{name}]: {meaning}" for name, meaning in meanings) + "\n"


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Every formula as MathML; API pages folded."""
    content = FORMULA.sub(
        lambda found: drawn(html.unescape(found[2]).strip()[2:-2].strip(), display=found[1] == "div"), content
    )
    return folded(content) if page.file.src_uri.startswith("api/") else content


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


def for_machines(text: str, files: Files) -> str:
    """`llms.txt` with links into the site instead of the repository; a link to a page that is not there is refused."""

    def url(found: re.Match[str]) -> str:
        page = files.get_file_from_path(found[1])
        if page is None:
            raise PluginError(f"llms.txt links {found[1]}, which is no page of the site")
        return f"]({page.url}"

    return LINK.sub(url, text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The tutorials' notebooks, their pictures beside them, the page that lists them, and `llms.txt`."""
    for path in TUTORIALS.glob("*.ipynb"):
        text, pictures = as_page(path)
        files.append(Notebook.generated(config, f"tutorials/{path.name}", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=data))
    files.append(File.generated(config, "tutorials/README.md", abs_src_path=str(TUTORIALS / "README.md")))
    listed = (ROOT / "llms.txt").read_text(encoding="utf-8")
    files.append(File.generated(config, "llms.txt", content=for_machines(listed, files)))
    return files
