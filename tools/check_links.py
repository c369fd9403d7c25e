"""Check the links of every Markdown file: relative links and their anchors must exist. No network.

    python tools/check_links.py [DIRECTORY]

Exit code 1 and one line per broken link if there are any.
"""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

HTML_LINK = re.compile(r"""<(?:a|img)\b[^>]*?\b(?:href|src)\s*=\s*["']([^"']*)["']""", re.IGNORECASE)
HTML_ANCHOR = re.compile(r"""<\w+\b[^>]*?\b(?:id|name)\s*=\s*["']([^"']+)["']""", re.IGNORECASE)


def markdown_files(root: Path) -> list[Path]:
    """The Markdown files that git knows or would add; all of them where `root` is no git checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        files = root.rglob("*.md")
        return sorted(f for f in files if not any(part.startswith(".") for part in f.relative_to(root).parts))
    return sorted(root / name for name in listed.split("\0") if name and (root / name).is_file())


def parsed(text: str) -> list[Token]:
    """All tokens of a text, the inline ones after the block they stand in."""
    flat: list[Token] = []
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        flat += [block, *(block.children or [])]
    return flat


def links(text: str) -> list[str]:
    """Targets of links and images, in Markdown or HTML; code is left out."""
    found: list[str] = []
    for token in parsed(text):
        if token.type == "link_open":
            found.append(str(token.attrs["href"]))
        elif token.type == "image":
            found.append(str(token.attrs["src"]))
        elif token.type in ("html_block", "html_inline"):
            found += HTML_LINK.findall(token.content)
    return found


def anchors(text: str) -> set[str]:
    """What `#...` may point at: headings as GitHub names them, and ids in HTML."""
    found: set[str] = set()
    tokens = parsed(text)
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            parts = tokens[i + 1].children or []
            title = "".join(part.content for part in parts if part.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
            found.add(next(s for n in range(len(tokens)) if (s := f"{slug}-{n}" if n else slug) not in found))
        elif token.type in ("html_block", "html_inline"):
            found |= set(HTML_ANCHOR.findall(token.content))
    return found


def broken_links(root: Path) -> list[str]:
    """One line per link that leads nowhere, with what is wrong."""
    root = root.resolve()
    wrong: list[str] = []
    for file in markdown_files(root):
        where = file.relative_to(root)
        for link in links(file.read_text(encoding="utf-8")):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if parts.path.startswith("/") or not target.is_relative_to(root):
                wrong.append(f"{where}: {link} leads out of the repository")
            elif not target.exists():
                wrong.append(f"{where}: {link}: no such file")
            elif parts.fragment and target.suffix == ".md":
                known = anchors(target.read_text(encoding="utf-8"))
                if unquote(parts.fragment).lower() not in known:
                    wrong.append(f"{where}: {link}: no such heading; there are {', '.join(sorted(known)) or 'none'}")
    return wrong


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    wrong = broken_links(root)
    for line in wrong:
        print(line)
    print(f"{len(markdown_files(root))} Markdown files, {len(wrong)} broken links")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
