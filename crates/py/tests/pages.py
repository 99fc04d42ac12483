"""Programs of the book and of notebooks."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[3]


def blocks(page: str) -> list[str]:
    """The Python programs of a page, from top to bottom."""
    parts = (ROOT / "docs/src" / page).read_text().split("```python\n")[1:]
    return [part.split("```")[0] for part in parts]


def cells(notebook: str) -> list[str]:
    """The code of a notebook, from top to bottom."""
    content = json.loads((ROOT / "crates/py/examples" / notebook).read_text())
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
