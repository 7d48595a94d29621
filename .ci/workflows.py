"""Writes into the workflows what follows from nox's own list of sessions: `python .ci/workflows.py`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".github" / "workflows"
SHARDS = 2  # of each version; a shard of the whole zoo takes a standard runner some ten minutes
LATEST = ("newest", "nightly")
NIGHTLY = "vars.TORCH_NIGHTLY_INDEX"  # without it, nightly builds are left out
MARKED = re.compile(r"(?ms)^(?P<indent> *)# <(?P<name>[a-z ]+)>\n.*?^ *# </(?P=name)>\n")


def sessions() -> list[dict[str, str]]:
    """The sessions that nox lists for the workflows: name, id, version of torch, and Python."""
    asked = ["--noxfile", str(ROOT / "noxfile.py"), "--list", "--json", "--session", "matrix", *LATEST]
    command = [sys.executable, "-m", "nox", *asked]
    listed = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)  # noqa: S603
    return [
        {
            "name": s["name"],
            "id": s["session"].partition("(")[2].removesuffix(")"),
            "torch": s["call_spec"].get("torch", ""),
            "python": s["python"],
        }
        for s in listed
    ]


def written(text: str, blocks: dict[str, list[str]]) -> str:
    """A workflow with the lines between its marks written anew.

    Args:
        text: the workflow.
        blocks: the lines for each name of a mark.
    """

    def block(match: re.Match[str]) -> str:
        indent, name = match["indent"], match["name"]
        return "".join(f"{indent}{line}\n" for line in [f"# <{name}>", *blocks[name], f"# </{name}>"])

    return MARKED.sub(block, text)


def pages() -> dict[Path, str]:
    """Every workflow as it should be."""
    listed = sessions()
    matrix = [session for session in listed if session["name"] == "matrix"]
    latest = [session for session in listed if session["name"] in LATEST]
    usual = [session for session in matrix if session["id"] == session["torch"]]
    versions = [f"session: {_list(s['id'] for s in usual)}", f"python: {_list(s['python'] for s in usual)}"]
    numbers = range(1, SHARDS + 1)
    names = [f"{session['id']}-{number}-of-{SHARDS}" for session in matrix for number in numbers]
    others = [{"session": s["id"], "python": s["python"]} for s in matrix if s not in usual]  # of another Python
    shards = [{**other, "shard": number, "shards": SHARDS} for other in others for number in numbers]
    blocks = {
        "versions": [*versions, f"include: {json.dumps(others)}"],
        "versions and shards": [
            *versions,
            f"shard: {list(numbers)}",
            f"shards: [{SHARDS}]",
            f"include: {json.dumps(shards)}",
        ],
        "shards": ["SHARDS: >-", *(f"  {name}" for name in names)],
        "latest": [
            "session: ${{ fromJSON(vars.TORCH_NIGHTLY_INDEX && '"
            + json.dumps(LATEST)
            + f"' || '[\"{LATEST[0]}\"]') }}}}",
            f"python: {_list(s['python'] for s in latest)}",
        ],
    }
    return {path: written(path.read_text(encoding="utf-8"), blocks) for path in sorted(FOLDER.glob("*.yml"))}


def _list(words: Iterable[str]) -> str:
    """The different words as a list in YAML."""
    return json.dumps(list(dict.fromkeys(words)))


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
