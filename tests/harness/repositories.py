"""Git repositories of one file of specs, made by a test."""

import subprocess

NETS = """
import torch
from zoo.spec import Case, Spec
from layers import forward

def spec(name, rows=4):
    case = Case(name="typical", inputs=lambda g: (torch.randn(rows, 3, generator=g),))
    return Spec(name=name, summary=name, source="a test", build=lambda: forward, cases=(case,))

NET = spec("net")
"""
LEAN = "def forward(x):\n    return x.exp()\n"
WASTEFUL = "def forward(x):\n    return x.exp().sin().exp()\n"


def git(folder, *arguments):
    """What git prints."""
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def new_repository(folder):
    """Make a folder a repository, which ignores what Python compiles whatever a person's git does."""
    git(folder, "init", "-q")
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "exclude").write_text("__pycache__/\n")
    return folder


def commit(folder, **files):
    """Write the files, with their endings, and commit them; returns the short name."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--allow-empty", "-q", "-m", "more")
    return git(folder, "rev-parse", "--short", "HEAD")
