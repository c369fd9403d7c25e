"""Laws of the source tree that no linter knows; `make check` has the others (imports between rooms, doors to libraries)."""

import re
import subprocess
import sys
import tomllib

import pytest
from conftest import ROOT

import mless_interp

HEAVY = "torch transformers pandas scipy datasets pyarrow transformer_lens nnsight matplotlib circuitsvis vllm".split()


def test_importing_the_package_is_light() -> None:
    code = f"import sys, mless_interp; dir(mless_interp); print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_exist_and_are_listed_once() -> None:
    names = [*mless_interp.__all__, *(name for names in mless_interp.RESULTS.values() for name in names)]
    assert len(set(names)) == len(names) and len(mless_interp.__all__) < 70
    assert [name for name in names if not hasattr(mless_interp, name)] == []


def rooms_told(page: str) -> list[str]:
    """The rooms that architecture's table names, in its order."""
    table = page.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for cell in first for name in re.findall(r"`(\w+)(?:/|\.py)`", cell)]


def test_architecture_has_a_row_for_every_room_in_the_order_of_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = [each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert rooms_told(page) == layers["layers"][::-1]


PATH_IN_TEXT = re.compile(r"(?<![\w./-])(?:[\w.-]+/)*(?:[\w-]+\.(?:py|md|toml|txt|jinja)\b|[\w-]+/(?=`))")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_paths_that_a_page_names_exist(page: str) -> None:
    """Files and folders named in code (`a/b.py`, `a/`, a command), from the root or from the package."""
    code = re.findall(r"^```.*?^```$|`[^`\n]+`", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names, package = {name for each in code for name in PATH_IN_TEXT.findall(each)}, ROOT / "mless_interp"
    inside = {name for name in names if "/" not in name and any(package.rglob(name))}
    assert [each for each in names - inside if not ((ROOT / each).exists() or (package / each).exists())] == []


MACHINE_PATH = re.compile(rb"(?<![\w.~/-])/(?:home|Users|mnt|scratch|work|root|private)/[\w.-]+|[A-Z]:\\+Users\\+\w+")
"""Absolute paths that exist on one machine only."""


def test_no_file_names_a_place_on_one_machine() -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git checkout: which files belong to the project is not known")
    files = [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    texts = ((file, file.read_bytes()) for file in files)
    assert [
        (file, MACHINE_PATH.findall(text)) for file, text in texts if b"\0" not in text and MACHINE_PATH.search(text)
    ] == []
