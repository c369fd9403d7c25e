"""Pictures in one notebook cell, as the README's example makes them: all are shown, none twice."""

import nbclient
import nbformat
import pytest
from conftest import ROOT

CELL = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
import mless_interp as mi
from mless_interp.views.circuitsvis import View
from small_results import patched, located
mi.views.head_map(patched())
View("between", "<p>between</p>", {{}})
print("words")
mi.views.head_map(patched()).save("saved.png")
assigned = mi.views.forest(located())
mi.views.head_map(located())
"""


@pytest.mark.slow
def test_every_picture_of_a_cell_is_shown_once(tmp_path: object) -> None:
    failing = "mi.views.head_map(patched(), value='nothing')"
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in (CELL, "1", "patched()", failing)]
    )
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=300, allow_errors=True, resources=resources).execute()
    first, second, third, fourth = book.cells
    shown = [output for output in first.outputs if output.output_type != "stream"]
    assert [output.output_type for output in shown] == ["execute_result", *["display_data"] * 3]
    kinds = ["image/png" if "image/png" in output.data else "text/html" for output in shown]
    assert kinds == ["image/png", "image/png", "text/html", "image/png"]
    assert [output.output_type for output in second.outputs] == ["execute_result"], "nothing is shown again"
    assert "<table" in third.outputs[0].data["text/html"]
    assert [output.output_type for output in fourth.outputs] == ["error"], "a picture half drawn is not shown"
