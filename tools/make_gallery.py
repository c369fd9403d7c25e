"""Draw the pictures that README and the pages show into docs/images, with the project's own functions (about four minutes).

python tools/make_gallery.py
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import mless_interp as mi

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
SLASHES = mi.Insertion.meaningless(" /", n_tokens=55)


def main() -> None:
    """One picture each: what heads attend to, which heads carry the effect, the page of a run."""
    demo = mi.load_model("demo")
    pairs = mi.make_pairs(demo, mi.load_problems("demo", limit=64), SLASHES)
    profile = mi.attention_profile(demo, pairs[:24], progress=False)
    mi.views.profiles(profile, [mi.Head(0, 13), mi.Head(0, 21)]).save(IMAGES / "profiles.png", dpi=110)

    planted = mi.planted_model(
        readers=[mi.Head(0, 13), mi.Head(0, 21)],
        mediators=[mi.Head(1, 4)],
        decoys={"silent": [mi.Head(0, 3)], "unread": [mi.Head(0, 8)], "avoids": [mi.Head(1, 20)]},
        n_key_value_heads=4,
        seed=0,
    )
    model = mi.load_model(planted)
    found = mi.locate_heads(model, mi.make_pairs(model, mi.load_problems(planted, limit=16), SLASHES), progress=False)
    mi.views.forest(found).save(IMAGES / "planted_forest.png", dpi=110)

    with TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        asked = [
            "--backend",
            "bridge",
            "--confirm",
            "64",
            "--answers",
            "200",
            "--report",
            "--no-progress",
            "--out",
            out,
        ]
        subprocess.run([sys.executable, ROOT / "analyses" / "patch_heads.py", *asked], check=True)
        photograph(out / "report.html", IMAGES / "report.png")
        mi.views.head_map(mi.load(out)["LocatedHeads"]).save(IMAGES / "demo_head_map.png", dpi=110)


def photograph(page: Path, picture: Path, *, size: str = "1160,1010") -> None:
    """The top of a page as headless Chromium shows it."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    if browser is None:
        raise FileNotFoundError("no headless browser to show the report page in: see `make browser`")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}"]
    subprocess.run([browser, *options, f"--screenshot={picture}", page.resolve().as_uri()], check=True)


if __name__ == "__main__":
    main()
