"""The notebooks as pages: their text, code and outputs."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"

NOTE = """\
!!! tip "Run it"
    [Install acclimate](../quickstart.md#install) and `pip install 'acclimate[notebooks]' jupyter`,
    [download this notebook]({name}.ipynb) and open it in Jupyter; or upload it to [Colab](https://colab.research.google.com)
    and set the address of the repository in its first cell.

"""


def make_pages() -> dict[str, str | bytes]:
    """Return the pages as Markdown and their pictures, by address in the site."""
    pages: dict[str, str | bytes] = {}
    for path in sorted(FOLDER.glob("*.ipynb")):
        pages |= _make_page(path)
    return pages


def list_code(path: Path) -> list[str]:
    """Return the code cells of a notebook."""
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def _make_page(path: Path) -> dict[str, str | bytes]:
    parts, pictures = [], {}
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\]\(([\w-]+)\.ipynb\)", r"](\1.md)", text) + "\n\n")
            if len(parts) == 1:
                parts.append(NOTE.format(name=path.stem))
            continue
        parts.append(f"```python\n{text}\n```\n\n")
        for output in cell["outputs"]:
            data: dict[str, Any] = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[f"notebooks/{name}"] = base64.b64decode(data["image/png"])
                parts.append(f"![Output of the cell above]({name})\n\n")
            elif output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text'])}```\n\n")
    return {f"notebooks/{path.stem}.md": "".join(parts), **pictures}
