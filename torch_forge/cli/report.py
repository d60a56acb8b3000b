"""``torch-forge report``: a saved report, as text, Markdown or JSON."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from torch_forge.settings import Settings


def prepare_parser(parser: ArgumentParser) -> None:
    """The options."""
    parser.add_argument("file", type=Path, help="a report saved as .json")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")


def run(args: Namespace, settings: Settings) -> int:
    """Print it."""
    from torch_forge.records.codec import dumps
    from torch_forge.report import markdown, text
    from torch_forge.report.files import load
    from torch_forge.report.summarize import summarize

    report = load(args.file)
    data = summarize(report, cache_dir=settings.cache_dir)
    print(
        {"text": lambda: text.render(data), "markdown": lambda: markdown.render(data), "json": lambda: dumps(report)}[
            args.format
        ]()
    )
    return 0
