"""The README says what the code does: its table of variables is the code's, its examples use names that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import torch_forge
from torch_forge.cli import main as cli
from torch_forge.settings import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def environment_table() -> str:
    rows = "\n".join(f"| `{name}` | {meaning} |" for name, (_, meaning) in ENVIRONMENT.items())
    return f"| variable | meaning |\n|---|---|\n{rows}"


def test_the_table_of_variables_is_the_codes():
    found = re.search(r"<!-- environment: begin .*?-->\n(.*?)\n?<!-- environment: end -->", README, re.DOTALL)
    assert found
    assert found[1] == environment_table(), f"put this between the markers in README.md:\n{environment_table()}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("\n", 1)[0])
def test_examples_use_public_names(example: str):
    used = {
        n.attr
        for n in ast.walk(ast.parse(example))
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "torch_forge"
    }
    assert sorted(used - set(torch_forge.__all__)) == []


def test_commands_exist():
    named = set(re.findall(r"^torch-forge ([a-z-]+)", README, re.MULTILINE))
    assert named
    assert sorted(named - set(cli.COMMANDS)) == []


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_links_lead_somewhere(target: str):
    assert (ROOT / target).exists()
