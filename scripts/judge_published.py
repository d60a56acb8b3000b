#!/usr/bin/env python3
"""Judge kernels that others published as wins: ``judge_published.py [NAME ...] [--json FILE] [--device cuda]``.

Prints one line a kernel; exit status 1 if a right one is rejected for anything but its speed, or a wrong one gets through.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tests.gpu.published.catalogue import PUBLISHED
from tests.gpu.published.form import Published
from torch_forge.judging import Judgement, judge
from torch_forge.records.codec import to_plain
from torch_forge.search.workshop import Workshop
from torch_forge.settings import Settings

SPEED = ("faster", "confirmed")
"""Gates at which a right kernel may end."""


def main() -> int:
    """Judge, print, return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(PUBLISHED)}")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where all verdicts are written, after each of them")
    parser.add_argument("--no-timing", action="store_true", help="only whether they are right")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(PUBLISHED):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    settings = Settings.resolve()
    rows: list[dict[str, Any]] = []
    with Workshop.open(arguments.device, settings) as shop:
        for name in arguments.names or PUBLISHED:
            kernel = PUBLISHED[name]
            found = judge(
                kernel.reference,
                kernel.source,
                kernel.sample(arguments.device),
                settings=settings,
                shop=shop,
                any_size=kernel.any_size,
                timing=not arguments.no_timing,
            )
            rows.append(_row(kernel, found))
            print(_line(rows[-1]), flush=True)
            if arguments.json is not None:
                arguments.json.parent.mkdir(parents=True, exist_ok=True)
                arguments.json.write_text(json.dumps(rows, indent=1))
    print(f"sandbox: {', '.join(found.sandbox.active) or 'none'}")
    for layer, why in found.sandbox.missing.items():
        print(f"sandbox lacks {layer}: {why}")
    wrong = [row["name"] for row in rows if not row["as_expected"]]
    print(f"{len(rows) - len(wrong)} of {len(rows)} as expected{': not ' + ', '.join(wrong) if wrong else ''}")
    return 1 if wrong else 0


def _row(kernel: Published, found: Judgement) -> dict[str, Any]:
    """What is kept of one verdict."""
    expected = found.gate in kernel.rejected_by if kernel.rejected_by else found.accepted or found.gate in SPEED
    return {
        "name": kernel.name,
        "where": kernel.where,
        "claim": kernel.claim,
        "shapes": [list(shape) for shape, _ in kernel.inputs],
        "why": kernel.why,
        "as_expected": expected,
        "verdict": to_plain(found.record),
    }


def _line(row: dict[str, Any]) -> str:
    verdict = row["verdict"]
    gate = "accepted" if verdict["accepted"] else f"rejected by {verdict['gate']!r}"
    pairs = verdict["trial"]["comparisons"]
    speed = ""
    if pairs:
        best = pairs[0]
        speed = (
            f"{best['ratio']:.2f}x [{best['ratio_low']:.2f}, {best['ratio_high']:.2f}], "
            f"{best['candidate']['median_us']:.1f} us against {best['eager']['median_us']:.1f} us"
        )
    surprise = "" if row["as_expected"] else f"  NOT AS EXPECTED: {verdict['reason']}"
    layers = len(verdict["sandbox"]["active"])
    return f"{row['name']:22} {gate:32} {speed:54} {verdict['seconds']:6.1f} s, {layers} layers{surprise}"


if __name__ == "__main__":
    sys.exit(main())
