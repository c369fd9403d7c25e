"""The bundled demo model: a four-layer Qwen2 trained on small word problems, with the code that made it.

`task` draws the problems, `train` reproduces the weights from a seed, `measure` says what insertion does to them.
The weights, the tokenizer, 564 held-out problems and the measured figures lie beside the code; see `MODEL_CARD.md`.
"""

from pathlib import Path

DIRECTORY = Path(__file__).parent

__all__ = ["DIRECTORY"]
