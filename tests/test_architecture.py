"""The laws of the source tree: each a function from a tree to its violations, shown to hold and shown able to fail."""

import ast
import graphlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = "mless_interp"

ORDER = """
    data given shapes once heads metrics statistics grading running models generation prompts ground_truth patching scores
    mechanism
    identities locating circuits accuracy studies planning paper views command_line commands
""".split()
"""A module may import those before it. `__init__` and `__main__` stand outside: they hand on what the others make."""

DOORS = {
    "transformer_lens": "models/transformer_lens.py",
    "nnsight": "models/nnsight.py",
    "matplotlib": "views/plots.py",
    "circuitsvis": "views/circuitsvis.py",
    "vllm": "generation/vllm_process.py",
}
HEAVY = [*DOORS, "torch", "transformers", "pandas", "scipy", "datasets", "pyarrow"]
ANALYSES_MAY_IMPORT = {"typer", "pandas"}

# ------------------------------------------------------------------------------------------------------ reading a tree


def sources(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(folder), ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a module of the package imports, at the top or inside a function.

    `from a.b import c` gives `a.b.c`, as c may be a module. Relative imports are made absolute.
    """
    parents = [PACKAGE, *path.with_suffix("").parts][:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            first = node.args[0]
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value)


# ----------------------------------------------------------------------------------------------------------- the laws


def imports_against_the_order(package: Path) -> list[str]:
    wrong = []
    for path, tree in sources(package):
        own = path.with_suffix("").parts[0]
        if own in ("__init__", "__main__"):
            continue
        if own not in ORDER:
            wrong.append(f"{path}: give {own!r} its place in ORDER")
            continue
        for line, name in imported(path, tree):
            top, _, rest = name.partition(".")
            if top != PACKAGE:
                continue
            other = rest.partition(".")[0]
            if other not in ORDER:
                wrong.append(f"{path}:{line}: imports {name}: import from the module that defines it")
            elif ORDER.index(other) > ORDER.index(own):
                wrong.append(f"{path}:{line}: {own} imports {other}, which comes after it")
    return wrong


def import_cycles(package: Path) -> list[str]:
    """Modules that need each other to be understood, wherever in their files the imports stand; the first ring found."""
    modules = {dotted(path): (path, tree) for path, tree in sources(package)}

    def module_of(name: str) -> str | None:
        """The module behind a dotted name: itself, or the one that defines what it ends with."""
        inside = name.removeprefix(PACKAGE).removeprefix(".")
        found = (inside, inside.rpartition(".")[0])
        return next((each for each in found if each in modules), None) if name.startswith(PACKAGE) else None

    graph = {
        own: {module_of(name) for _, name in imported(path, tree)} - {None, own}
        for own, (path, tree) in modules.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [" -> ".join(each or PACKAGE for each in error.args[1])]
    return []


def dotted(path: Path) -> str:
    """`a.b` for a/b.py and for a/b/__init__.py."""
    return ".".join(path.with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def results_that_are_not_whole(package: Path, public: Iterable[str]) -> list[str]:
    """Every result is a frozen dataclass that prints as results do, has a public name, and tells and tables itself."""
    classes = {
        node.name: (path, node)
        for path, tree in sources(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def ancestors(name: str) -> list[str]:
        above = [base.id for base in classes[name][1].bases if isinstance(base, ast.Name)] if name in classes else []
        return above + [further for base in above for further in ancestors(base)]

    def defined(name: str) -> set[str]:
        own = [each for each in (name, *ancestors(name)) if each != "Result" and each in classes]
        return {part.name for each in own for part in classes[each][1].body if isinstance(part, ast.FunctionDef)}

    public, wrong = set(public), []
    for name, (path, node) in classes.items():
        if "Result" not in ancestors(name):
            continue
        options = {
            word.arg: ast.literal_eval(word.value)
            for made in node.decorator_list
            if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == "dataclass"
            for word in made.keywords
        }
        where = f"{path}:{node.lineno}: {name}"
        if not options.get("frozen"):
            wrong.append(f"{where} is no frozen dataclass")
        elif options.get("repr", True) and "__repr__" not in defined(name):
            wrong.append(f"{where} prints as its fields: say repr=False")
        if name not in public:
            wrong.append(f"{where} is not public, so nothing finds it when it is loaded: give it to PUBLIC")
        missing = [part for part in ("sentences", "summary", "to_frame") if part not in defined(name)]
        wrong += [f"{where} has no {part}" for part in missing]
    return wrong


def heavy_imports_beside_their_door(package: Path) -> list[str]:
    return [
        f"{path}:{line}: {name} is imported only in {DOORS[top]}"
        for path, tree in sources(package)
        for line, name in imported(path, tree)
        if (top := name.partition(".")[0]) in DOORS and path.as_posix() != DOORS[top]
    ]


def heavy_modules_loaded_by_importing(parent: Path) -> list[str]:
    """What `import mless_interp`, and asking for its names, loads of HEAVY in a fresh process."""
    code = f"import sys, json, {PACKAGE}; dir({PACKAGE}); print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=parent, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def postponed_annotations(package: Path) -> list[str]:
    return [
        f"{path}: `from __future__ import annotations` defeats the shape checks"
        for path, tree in sources(package)
        if any(name == "__future__.annotations" for _, name in imported(path, tree))
    ]


def prints(package: Path) -> list[str]:
    return [
        f"{path}:{node.lineno}: print"
        for path, tree in sources(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def modules_without_docstring(package: Path) -> list[str]:
    return [str(path) for path, tree in sources(package) if not ast.get_docstring(tree)]


def private_or_foreign_names_in_analyses(folder: Path, public: Iterable[str]) -> list[str]:
    public = set(public)
    wrong = []
    for path, tree in sources(folder):
        nicknames = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    if alias.name == PACKAGE:
                        nicknames.add(alias.asname or PACKAGE)
                    elif top == PACKAGE:
                        wrong.append(f"{path}:{node.lineno}: import {PACKAGE} itself, not {alias.name}")
                    elif top not in ANALYSES_MAY_IMPORT | sys.stdlib_module_names:
                        wrong.append(f"{path}:{node.lineno}: an analysis calls the library; it does not need {top}")
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                if module == PACKAGE:
                    unknown = {alias.name for alias in node.names} - public
                    wrong += [f"{path}:{node.lineno}: {PACKAGE}.{name} is not public" for name in sorted(unknown)]
                elif module.partition(".")[0] not in ANALYSES_MAY_IMPORT | sys.stdlib_module_names:
                    wrong.append(f"{path}:{node.lineno}: from {module} import ...: use the public names of {PACKAGE}")
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            names = [node.attr]
            inner = node.value
            while isinstance(inner, ast.Attribute):
                names.insert(0, inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in nicknames:
                if names[0] not in public:
                    wrong.append(f"{path}:{node.lineno}: {PACKAGE}.{names[0]} is not public")
                elif any(name.startswith("_") and not name.startswith("__") for name in names):
                    wrong.append(f"{path}:{node.lineno}: {PACKAGE}.{'.'.join(names)} is private")
    return sorted(set(wrong))


def analyses_that_are_no_face(folder: Path, commands: Iterable[str]) -> list[str]:
    """Each script explains itself, hands on the command of its own name, and does nothing else; each command has one."""
    commands, wrong = set(commands), []
    scripts = {path.stem: tree for path, tree in sources(folder)}
    wrong += [f"{name}: no analysis of that name" for name in sorted(commands - scripts.keys())]
    for name, tree in scripts.items():
        rest = [ast.unparse(node) for node in tree.body if not isinstance(node, ast.Expr)]
        face = ["import mless_interp as mi", f"app = mi.commands.{name}.app", "if __name__ == '__main__':\n    app()"]
        if name not in commands or rest != face or not ast.get_docstring(tree):
            wrong.append(f"{name}.py: a docstring, and `app = mi.commands.{name}.app` of a command of that name")
    return wrong


def rooms_told(page: str) -> list[str]:
    """The rooms that architecture's table names, in its order."""
    table = page.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for cell in first for name in re.findall(r"`(\w+)(?:/|\.py)`", cell)]


PATH_IN_TEXT = re.compile(r"(?<![\w./-])(?:[\w.-]+/)*(?:[\w-]+\.(?:py|md|toml|txt|jinja)\b|[\w-]+/(?=`))")


def paths_that_are_not_there(pages: Iterable[Path], root: Path) -> list[str]:
    """Files and folders named in code (`a/b.py`, `a/`, a command) of these pages, from the root or from the package."""
    wrong = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        code = re.findall(r"^```.*?^```$", text, re.DOTALL | re.MULTILINE)
        code += re.findall(r"`[^`\n]+`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
        for name in sorted({name for each in code for name in PATH_IN_TEXT.findall(each)}):
            inside = "/" not in name and any((root / PACKAGE).rglob(name))
            if not (inside or (root / name).exists() or (root / PACKAGE / name).exists()):
                wrong.append(f"{page.name}: {name}")
    return wrong


MACHINE_PATH = re.compile(
    r"(?<![\w.~/-])/(?:home|Users|mnt|scratch|work|root|private)/[\w.-]+|[A-Z]:\\+Users\\+\w+", re.ASCII
)


def machine_paths(files: Iterable[Path]) -> list[str]:
    """Absolute paths that exist on one machine only."""
    wrong = []
    for file in files:
        content = file.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), 1):
            wrong += [f"{file}:{number}: {found.group()}" for found in MACHINE_PATH.finditer(line)]
    return wrong


def project_files() -> list[Path]:
    """Every file that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git checkout: which files belong to the project is not known")
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


# ------------------------------------------------------------------------------------------------------ they hold here

PACKAGE_LAWS = [
    imports_against_the_order,
    import_cycles,
    heavy_imports_beside_their_door,
    postponed_annotations,
    prints,
    modules_without_docstring,
]


@pytest.mark.slow
@pytest.mark.parametrize("law", PACKAGE_LAWS, ids=lambda law: law.__name__)
def test_the_package_keeps_the_law(law: Callable[[Path], list[str]]) -> None:
    assert law(ROOT / PACKAGE) == []


def test_importing_the_package_is_light() -> None:
    assert heavy_modules_loaded_by_importing(ROOT) == []


def test_analyses_use_public_names_only() -> None:
    import mless_interp

    assert private_or_foreign_names_in_analyses(ROOT / "analyses", mless_interp.__all__) == []


def test_analyses_are_the_face_of_commands() -> None:
    from mless_interp.commands import COMMANDS

    assert analyses_that_are_no_face(ROOT / "analyses", COMMANDS.values()) == []


def test_public_names_exist_and_are_listed_once() -> None:
    import mless_interp

    names = mless_interp.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(mless_interp, name)] == []


@pytest.mark.slow
def test_every_result_is_whole_and_public() -> None:
    import mless_interp

    assert results_that_are_not_whole(ROOT / PACKAGE, mless_interp.__all__) == []


def test_architecture_has_a_row_for_every_room_in_the_order_of_imports() -> None:
    assert rooms_told((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")) == ORDER
    folder = ROOT / PACKAGE
    rooms = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert rooms - {"__init__", "__main__"} == set(ORDER)


def test_paths_that_the_pages_name_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"]
    assert paths_that_are_not_there(pages, ROOT) == []


def file_names_that_mean_two_things(package: Path) -> list[str]:
    """Two rooms with a file of one name make both hard to find."""
    names = [path.name for path, _ in sources(package) if path.name != "__init__.py"]
    return sorted({name for name in names if names.count(name) > 1})


@pytest.mark.slow
def test_every_file_name_means_one_thing() -> None:
    assert file_names_that_mean_two_things(ROOT / PACKAGE) == []


def test_no_file_names_a_place_on_one_machine() -> None:
    assert machine_paths(project_files()) == []


# ----------------------------------------------------------------------------------------------------- they can fail


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """`tree(name, {path: text})`: a folder with these files; the folder is given back."""

    def write(name: str, files: dict[str, str]) -> Path:
        for path, text in files.items():
            target = tmp_path / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("path", "text", "names"),
    [
        ("heads.py", "from .prompts import Problem", "heads imports prompts"),
        ("heads.py", "from . import views", "heads imports views"),
        ("heads.py", "import mless_interp.views.plots", "heads imports views"),
        ("heads.py", "def f():\n    from mless_interp.running.store import save", "heads imports running"),
        (
            "heads.py",
            "import importlib\nimportlib.import_module('mless_interp.running.store')",
            "heads imports running",
        ),
        ("metrics/attention.py", "from ..models.base import Model", "metrics imports models"),
        ("metrics/attention.py", "from .. import models", "metrics imports models"),
        ("views/plots.py", "from mless_interp import Head", "from the module that defines it"),
        ("views/plots.py", "import mless_interp as mi", "from the module that defines it"),
        ("helpers.py", "", "give 'helpers' its place"),
    ],
)
def test_an_import_against_the_order_is_found(tree: Callable[..., Path], path: str, text: str, names: str) -> None:
    (found,) = imports_against_the_order(tree(PACKAGE, {path: text}))
    assert names in found


def test_imports_along_the_order_are_allowed(tree: Callable[..., Path]) -> None:
    package = tree(
        PACKAGE,
        {
            "__init__.py": "from .views.plots import head_map",
            "models/base.py": "import os\nfrom ..heads import Head\nfrom .. import shapes\nfrom .checks import check",
            "views/plots.py": "from mless_interp.heads import Head\nfrom ..running.store import load",
        },
    )
    assert imports_against_the_order(package) == []


@pytest.mark.parametrize(
    ("back", "ring"),
    [
        ("from .b import g", "scores.a -> scores.b -> scores.a"),
        ("def f():\n    from .b import g", "scores.a -> scores.b -> scores.a"),
        ("if TYPE_CHECKING:\n    from . import b", "scores.a -> scores.b -> scores.a"),
        ("from .c import h", "scores.a -> scores.b -> scores.c -> scores.a"),
        ("from . import g", "scores -> scores.b -> scores.a -> scores"),
    ],
)
def test_modules_that_import_each_other_are_found(tree: Callable[..., Path], back: str, ring: str) -> None:
    files = {"scores/__init__.py": "from .b import g", "scores/a.py": back, "scores/c.py": "from .b import g"}
    (found,) = import_cycles(tree(PACKAGE, files | {"scores/b.py": "import os\nfrom mless_interp.scores.a import f"}))
    members = found.split(" -> ")
    assert members[0] == members[-1] and set(members) == set(ring.split(" -> "))


def test_modules_that_import_one_way_are_allowed(tree: Callable[..., Path]) -> None:
    files = {
        "__init__.py": "def save():\n    from .scores.a import f",
        "scores/__init__.py": "from .a import f\nfrom .b import g",
        "scores/a.py": "from .b import g\nfrom ..heads import Head",
        "scores/b.py": "from ..heads import Head\nimport torch",
        "heads.py": "",
    }
    assert import_cycles(tree(PACKAGE, files)) == []


WHOLE = """
@dataclass(frozen=True, eq=False, repr=False)
class Found(Result):
    def sentences(self): ...
    def summary(self): ...
    def to_frame(self): ...
"""


@pytest.mark.parametrize(
    ("text", "public", "names"),
    [
        (WHOLE.replace("@dataclass", "# @dataclass"), ["Found"], "Found is no frozen dataclass"),
        (WHOLE.replace("frozen=True, ", ""), ["Found"], "Found is no frozen dataclass"),
        (WHOLE.replace(", repr=False", ""), ["Found"], "prints as its fields"),
        (WHOLE, [], "Found is not public"),
        (WHOLE.replace("sentences", "words"), ["Found"], "Found has no sentences"),
        (WHOLE.replace("summary", "table"), ["Found"], "Found has no summary"),
        (WHOLE.replace("to_frame", "frame"), ["Found"], "Found has no to_frame"),
        (f"{WHOLE}\nclass More(Found): ...", ["Found", "More"], "More is no frozen dataclass"),
    ],
)
def test_a_result_that_is_not_whole_is_found(
    tree: Callable[..., Path], text: str, public: list[str], names: str
) -> None:
    (found,) = results_that_are_not_whole(tree(PACKAGE, {"scores/a.py": text, "b.py": "class Result: ..."}), public)
    assert found.startswith("scores/a.py:") and names in found


def test_whole_results_and_other_classes_are_allowed(tree: Callable[..., Path]) -> None:
    more = "@dataclass(frozen=True)\nclass More(Found):\n    def __repr__(self): ...\n\nclass Other(Base): ..."
    package = tree(PACKAGE, {"scores/a.py": f"{WHOLE}\n{more}", "b.py": "class Result: ..."})
    assert results_that_are_not_whole(package, ["Found", "More"]) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("scores/score.py", "import transformer_lens"),
        ("models/load.py", "def f():\n    from nnsight import TransformersModel"),
        ("views/report.py", "import matplotlib.pyplot as plt"),
        ("views/plots.py", "from circuitsvis.attention import attention_heads"),
        ("views/report.py", "from importlib import import_module\nimport_module('circuitsvis')"),
    ],
)
def test_a_heavy_import_beside_its_door_is_found(tree: Callable[..., Path], path: str, text: str) -> None:
    assert len(heavy_imports_beside_their_door(tree(PACKAGE, {path: text}))) == 1


def test_heavy_imports_at_their_doors_are_allowed(tree: Callable[..., Path]) -> None:
    files = {door: f"import {name}" for name, door in DOORS.items()}
    files["models/load.py"] = "from .transformer_lens import bridge_from\nfrom .nnsight import wrapped"
    assert heavy_imports_beside_their_door(tree(PACKAGE, files)) == []


def test_a_package_that_is_not_light_is_found(tree: Callable[..., Path]) -> None:
    parent = tree("heavy", {f"{PACKAGE}/__init__.py": "import json, pandas"})
    assert "pandas" in heavy_modules_loaded_by_importing(parent)
    assert heavy_modules_loaded_by_importing(tree("light", {f"{PACKAGE}/__init__.py": "import json"})) == []


def test_postponed_annotations_are_found(tree: Callable[..., Path]) -> None:
    package = tree(PACKAGE, {"a.py": "from __future__ import annotations", "b.py": "from __future__ import division"})
    (found,) = postponed_annotations(package)
    assert found.startswith("a.py")


def test_print_is_found(tree: Callable[..., Path]) -> None:
    package = tree(PACKAGE, {"a.py": "def f():\n    print(1)", "b.py": "console.print(1)\npprint(1)\n'print(1)'"})
    assert prints(package) == ["a.py:2: print"]


def test_a_module_without_docstring_is_found(tree: Callable[..., Path]) -> None:
    package = tree(PACKAGE, {"a.py": "x = 1", "b.py": '"""B."""', "c/__init__.py": ""})
    assert modules_without_docstring(package) == ["a.py", str(Path("c/__init__.py"))]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import mless_interp.running.store", "not mless_interp.running.store"),
        ("from mless_interp.heads import Head", "use the public names"),
        ("from mless_interp import hidden", "hidden is not public"),
        ("import mless_interp as mi\nmi.hidden(1)", "hidden is not public"),
        ("import mless_interp as mi\nmi.views._draw(1)", "views._draw is private"),
        ("import torch", "does not need torch"),
        ("from numpy import array", "from numpy import"),
        ("from .helpers import f", "from .helpers import"),
    ],
)
def test_an_analysis_that_reaches_inside_is_found(tree: Callable[..., Path], text: str, names: str) -> None:
    (found,) = private_or_foreign_names_in_analyses(tree("analyses", {"a.py": text}), ["Head", "views", "load"])
    assert names in found


def test_an_analysis_with_public_names_is_allowed(tree: Callable[..., Path]) -> None:
    text = (
        "from pathlib import Path\nimport typer\nfrom typer import Option\nimport pandas as pd\n"
        "import mless_interp as mi\nfrom mless_interp import Head\nmi.load('x').to_frame()._mgr\nmi.views.head_map(1)\n"
    )
    folder = tree("analyses", {"a.py": text})
    assert private_or_foreign_names_in_analyses(folder, ["Head", "views", "load"]) == []


FACE = '"""Why?"""\nimport mless_interp as mi\napp = mi.commands.a.app\nif __name__ == "__main__":\n    app()\n'


@pytest.mark.parametrize("name", ["a.py", "b.py"])
@pytest.mark.parametrize("changed", [("Why?", ""), ("commands.a", "commands.b"), ("\nif", "\nx = 1\nif")])
def test_an_analysis_that_is_no_face_is_found(tree: Callable[..., Path], name: str, changed: tuple[str, str]) -> None:
    assert analyses_that_are_no_face(tree("f", {"a.py": FACE}), ["a"]) == []
    assert len(analyses_that_are_no_face(tree("g", {name: FACE.replace(*changed)}), ["a"])) == 1 + (name == "b.py")


def test_a_room_without_a_row_is_found() -> None:
    table = "| room | x |\n| --- | --- |\n| `heads.py`, `shapes.py` | `b/` |\n| `views/` | x |"
    page = f"`a/`\n\n## Rooms\n\n{table}\n\n## More\n| `c/` |"
    assert rooms_told(page) == ["heads", "shapes", "views"]


def test_a_path_that_is_not_there_is_found(tree: Callable[..., Path]) -> None:
    root = tree("p", {f"{PACKAGE}/a/b.py": "", "docs/c.md": "", f"{PACKAGE}/d.html.jinja": ""})
    text = "`a/b.py` `b.py` `a/` `mless_interp/a/` `docs/c.md` `d.html.jinja` gone.py `run.json` https://x.org/e.py\n"
    (root / "README.md").write_text(
        text + "`a/c.py`, `z/` and `f.py`\n```\npython tools/g.py --x\n```\n", encoding="utf-8"
    )
    wrong = ["README.md: a/c.py", "README.md: f.py", "README.md: tools/g.py", "README.md: z/"]
    assert paths_that_are_not_there([root / "README.md"], root) == wrong


def test_a_file_name_of_two_rooms_is_found(tree: Callable[..., Path]) -> None:
    files = {"a/__init__.py": "", "b/__init__.py": "", "a/c.py": "", "b/c.py": "", "b/d.py": ""}
    assert file_names_that_mean_two_things(tree(PACKAGE, files)) == ["c.py"]


@pytest.mark.parametrize("start", ["/home/", "/Users/", "/work/", "/root/", "/mnt/", "C:\\Users\\", "C:\\\\Users\\\\"])
def test_a_machine_path_is_found(tree: Callable[..., Path], start: str) -> None:
    text = f'one\nopen("{start}' + 'somebody/model.json")'
    (found,) = machine_paths([tree("p", {"a.txt": text}) / "a.txt"])
    assert "a.txt:2" in found


def test_other_paths_are_allowed(tree: Callable[..., Path]) -> None:
    text = "docs/home/x ~/work/x https://example.org/home/x /usr/bin/env /tmp/x ../work/x /home/<you>/x"
    assert machine_paths([tree("p", {"a.txt": text}) / "a.txt"]) == []


def test_a_binary_file_is_not_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"\0" + b"/home/" + b"somebody")
    assert machine_paths([tmp_path / "weights"]) == []
