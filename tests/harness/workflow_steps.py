"""Runs the steps of a job of a workflow, or of a composite action, as GitHub would, in a folder of a test."""

import json
import os
import re
import subprocess
import uuid
from pathlib import Path

from ruamel.yaml import YAML


def read(path):
    return YAML(typ="safe").load(Path(path))


# The part of GitHub's expressions that our workflows use.

HOLE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
TOKEN = re.compile(r"\s*('(?:[^']|'')*'|[A-Za-z_][\w-]*(?:\.[\w-]+)*|&&|\|\||==|!=|[!(),])")
WORDS = {"&&": " and ", "||": " or ", "!": " not "}


def filled(text, contexts):
    """A text with each `${{ }}` replaced by its value."""
    return HOLE.sub(lambda hole: shown(evaluated(hole[1], contexts)), text)


def shown(value):
    """A value as GitHub writes it into a text."""
    return value if isinstance(value, str) else json.dumps(value)


def evaluated(expression, contexts):
    """The value of the text between the braces; contexts are `github`, `steps`, and functions such as `cancelled`."""
    text = HOLE.sub(lambda hole: hole[1], expression)
    assert not TOKEN.sub("", text).strip(), f"this is no expression: {expression}"
    return eval("".join(_python(token) for token in TOKEN.findall(text)), {"looked_up": _lookup(contexts)})


def _python(token):
    if token.startswith("'"):
        return repr(token[1:-1].replace("''", "'"))
    if re.match(r"[A-Za-z_]", token):
        return f"looked_up({token!r})"
    return WORDS.get(token, token)


def _lookup(contexts):
    def looked_up(path):
        found = contexts
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return "" if found is None else found  # as GitHub compares: nothing equals the empty text

    return looked_up


class Job:
    """The state in which steps run: their folder, variables, contexts and results.

    Attributes:
        summary: what the steps wrote into the summary.
        results: of each step that ran, by its id, name or action: its exit code and what it printed.
    """

    def __init__(self, workspace, *, temporary, stand_ins=None, environment=None, **contexts):
        """A job in a workspace, with a folder for files of the runner, variables of all steps, and contexts.

        `stand_ins` has, by the start of a name in `uses`, a function that gets its inputs, and returns outputs.
        """
        self.workspace, self.temporary = Path(workspace), Path(temporary)
        self.temporary.mkdir(exist_ok=True)
        self.summary_file = self.temporary / "summary.md"
        self.summary_file.touch()
        self.stand_ins = stand_ins or {}
        self.environment = environment or {}
        self.failed, self.results = False, {}
        self.contexts = {
            "steps": {},
            "vars": {},
            "cancelled": lambda: False,
            "always": lambda: True,
            "fromJSON": json.loads,
            **contexts,
        }

    @property
    def summary(self):
        return self.summary_file.read_text(encoding="utf-8")

    @property
    def printed(self):
        """What the steps printed, for the message of a failing test."""
        return "\n".join(f"== {name} ({code})\n{printed}" for name, (code, printed) in self.results.items())

    def run(self, steps, variables=None):
        """Run steps in their order; returns whether the job succeeded."""
        for step in steps:
            self._run(step, variables or {})
        return not self.failed

    def _run(self, step, variables):
        condition = str(step.get("if", ""))
        asks = any(word in condition for word in ("always()", "cancelled()"))
        if (self.failed and not asks) or (condition and not evaluated(condition, self.contexts)):
            return
        name = step.get("id") or step.get("name") or step.get("uses") or step["run"]
        if "uses" in step:
            inputs = {key: filled(shown(value), self.contexts) for key, value in step.get("with", {}).items()}
            act = next((act for start, act in self.stand_ins.items() if step["uses"].startswith(start)), dict)
            code, printed, outputs = 0, "", act(inputs) if act is not dict else {}
        else:
            code, printed, outputs = self._shell(step, variables)
        self.results[name] = (code, printed)
        self.contexts["steps"][name] = {"outputs": outputs or {}, "outcome": "failure" if code else "success"}
        self.failed |= bool(code) and not step.get("continue-on-error")

    def _shell(self, step, variables):
        files = {name: self.temporary / f"{name}-{uuid.uuid4().hex}" for name in ("script", "output")}
        files["script"].write_text(filled(step["run"], self.contexts), encoding="utf-8")
        files["output"].touch()
        own = {**variables, **step.get("env", {})}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(files["script"])],
            cwd=self.workspace,
            env={
                **os.environ,
                "GITHUB_OUTPUT": str(files["output"]),
                "GITHUB_STEP_SUMMARY": str(self.summary_file),
                "GITHUB_WORKSPACE": str(self.workspace),
                "GITHUB_ACTIONS": "true",
                "RUNNER_TEMP": str(self.temporary),
                "RUNNER_OS": "Linux",
                **self.environment,
                **{key: filled(shown(value), self.contexts) for key, value in own.items()},
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=1800,
        )
        lines = files["output"].read_text(encoding="utf-8").splitlines()
        return done.returncode, done.stdout, dict(line.split("=", 1) for line in lines)
