"""The hook of MkDocs: adds the generated pages and files, and turns formulas into MathML."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "src")]

from generate import api, commands, leaderboard, methods, notebooks  # noqa: E402

#: Files outside of docs/ that are pages here.
COPIES = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security-policy.md": "SECURITY.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Add generated pages, copied pages and the result files."""
    board = leaderboard.make_board()
    pages = {
        "leaderboard.md": leaderboard.make_page(board),
        "leaderboard.json": json.dumps(board, indent=1),
        "cli.md": commands.make_page(),
        "api.md": api.make_page(),
        "methods/index.md": methods.make_index(),
    }
    for name in sorted(methods.acclimate.list_methods()):
        pages[f"methods/{name}.md"] = methods.make_page(name, board)
    pages |= {name: (ROOT / path).read_text() for name, path in COPIES.items()}
    pages |= notebooks.make_pages()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in {".json", ".jsonl", ".md", ".svg", ".png"}:
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links of the repository to the pages of the site."""
    if page.file.src_uri in COPIES:
        return re.sub(r"\]\(docs/", "](", markdown)
    if "/" not in page.file.src_uri:
        markdown = markdown.replace("](../results/", "](results/")
        markdown = markdown.replace("[results/](../results)", "`results/`")
        for name, path in COPIES.items():
            markdown = markdown.replace(f"](../{path}", f"]({name}")
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Replace LaTeX by MathML, which browsers show without a script."""
    return re.sub(
        r'<(span|div) class="arithmatex">(.*?)</\1>',
        lambda match: _to_mathml(match[1], match[2]),
        html,
        flags=re.DOTALL,
    )


def _to_mathml(tag: str, text: str) -> str:
    display = "block" if tag == "div" else "inline"
    latex = text.strip()[2:-2].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return convert(latex, display=display)
