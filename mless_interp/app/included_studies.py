"""Studies: several insertions, measured alike, as one file asks for them."""

from pathlib import Path

INCLUDED = {path.stem: path for path in sorted((Path(__file__).parent / "included").glob("*.toml"))}
"""The studies that the package includes, by name."""
