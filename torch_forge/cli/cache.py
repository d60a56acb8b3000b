"""``torch-forge cache``: what is stored, why something was not found, and looking after the directory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch_forge.caching import exchange, upkeep
from torch_forge.caching.entry import Bad, StoredEntry
from torch_forge.caching.explain import Explanation, explain
from torch_forge.caching.store import DirectoryStore
from torch_forge.caching.upkeep import Located
from torch_forge.errors import UsageError
from torch_forge.records import codec
from torch_forge.records.entry import CacheEntry, abi_tag
from torch_forge.settings import Settings

GIGABYTE = 1e9
DAY_S = 86400.0


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="machine-readable output")
    common.add_argument("--dir", type=Path, metavar="DIR", help="another cache directory than the one in use")
    common.add_argument("--trust-others", action="store_true", help="accept a directory that other users can write to")
    commands = parser.add_subparsers(dest="cache_command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[common])

    add("info", "Where the cache is, how large, and what it holds for which device.")
    why = add("why", "What is stored for a problem or workload, and which field keeps it from being used.")
    why.add_argument("digest", help="digest of a problem or workload, as in a report, or the beginning of one")
    why.add_argument("--workload", default="", help="compare with this exact case")
    for name in ("device", "compiler", "policy", "isa"):
        why.add_argument(f"--{name}", help=f"compare with this {name}")
    verify = add("verify", "Hash every file. The exit status is 1 if something is damaged.")
    verify.add_argument("--quarantine", action="store_true", help="move damaged entries out of the way")
    _prune_arguments(add("prune", "Delete what killed processes left behind, and entries as the options say."))
    export = add("export", "Write entries to an archive for other machines of the same kind.")
    export.add_argument("archive", type=Path, help="a .tar.gz to write; with --sources, a folder")
    export.add_argument("--sources", action="store_true", help="sources only, in the format of csrc_generated")
    export.add_argument("--device", default="", help="only entries for devices whose key begins like this")
    export.add_argument("--problem", default="", help="only problems whose digest begins like this")
    take = add("import", "Add the entries of an archive. They contain machine code: take them only from people you trust.")
    take.add_argument("archive", type=Path)
    take.add_argument("--device", default="", help="mark entries that are for other devices than this")


def _prune_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-gb", type=float, metavar="GB", help="delete the oldest entries until the rest fits")
    parser.add_argument("--older-than-days", type=float, metavar="DAYS", help="delete entries older than this")
    parser.add_argument("--all", action="store_true", help="delete every entry and every unfinished tuning run")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Do what the sub-command says; the exit status. Raises CacheError, UsageError."""
    store = DirectoryStore(args.dir or settings.cache_dir, trust_others=args.trust_others, own=args.dir is None)
    commands: dict[str, Callable[[argparse.Namespace, DirectoryStore], tuple[int, Any, list[str]]]] = {
        "info": _info, "why": _why, "verify": _verify, "prune": _prune, "export": _export, "import": _import,
    }  # fmt: skip
    status, data, lines = commands[args.cache_command](args, store)
    sys.stdout.write(codec.dumps(data) if args.json else "".join(f"{line}\n" for line in lines))
    return status


def _info(_: argparse.Namespace, store: DirectoryStore) -> tuple[int, Any, list[str]]:
    info = upkeep.survey(store)
    lines = [f"{info.root}: {_size(info.size_bytes)}" if info.exists else f"{info.root} (not made yet)"]
    rows = [
        (d.device, str(d.kernels), str(d.kept), str(d.bad), _size(d.size_bytes), _age(d.oldest), _age(d.newest))
        for d in info.devices
    ]
    if rows:
        lines += _table(("device", "kernels", "kept eager", "damaged", "size", "oldest", "newest"), rows)
    lines.append(f"unfinished tuning runs: {info.unfinished_runs}")
    if info.staging or info.quarantined:
        lines.append(f"being written or left over: {info.staging}, in quarantine: {info.quarantined} (`cache prune`)")
    return 0, info, lines


def _why(args: argparse.Namespace, store: DirectoryStore) -> tuple[int, Any, list[str]]:
    given = {name: getattr(args, name) for name in ("device", "compiler", "policy", "isa")}
    wanted = {"abi": abi_tag(), **{name: value for name, value in given.items() if value is not None}}
    found = explain(store, args.digest, wanted, workload=args.workload)
    if not found:
        return 1, found, [f"nothing is stored for {args.digest} in {store.root}: never tuned with this cache, or pruned"]
    lines = [line for explanation in found for line in _explained(explanation)]
    return int(all(e.reasons for e in found)), found, lines


def _explained(e: Explanation) -> list[str]:
    head = [f"{e.kind} {e.name} on {e.device}", f"    problem {e.problem}"]
    about = [f"    {e.what}, made {_age(e.created)} ago"] if e.what else []
    return head + about + ([f"    missed: {reason}" for reason in e.reasons] or ["    serves it, as far as was asked"])


def _verify(args: argparse.Namespace, store: DirectoryStore) -> tuple[int, Any, list[str]]:
    damaged, total = upkeep.verify(store, quarantine=args.quarantine)
    lines = [f"{d.directory}: {d.entry.reason}" for d in damaged if isinstance(d.entry, Bad)]
    lines.append(f"{total} entries, {len(damaged)} damaged")
    if damaged:
        lines.append("moved to quarantine" if args.quarantine else "they are never used; --quarantine moves them away")
    return int(bool(damaged)), {"total": total, "damaged": damaged}, lines


def _prune(args: argparse.Namespace, store: DirectoryStore) -> tuple[int, Any, list[str]]:
    if (args.max_gb or 0) < 0 or (args.older_than_days or 0) < 0:
        raise UsageError("a limit cannot be negative")
    pruned = upkeep.prune(
        store,
        max_bytes=None if args.max_gb is None else int(args.max_gb * GIGABYTE),
        older_than_s=None if args.older_than_days is None else args.older_than_days * DAY_S,
        everything=args.all,
    )
    removed = f"removed {len(pruned.entries)} entries and {pruned.leftovers} leftovers"
    return 0, pruned, [f"{removed}, {_size(pruned.freed_bytes)}"]


def _export(args: argparse.Namespace, store: DirectoryStore) -> tuple[int, Any, list[str]]:
    chosen = [e for e in upkeep.walk(store) if e.device.startswith(args.device) and e.problem.startswith(args.problem)]
    if args.sources:
        names = _export_sources(store, chosen, args.archive)
    else:
        names = exchange.export_entries(store, chosen, args.archive)
    return 0 if names else 1, names, [f"{len(names)} of {len(chosen)} entries written to {args.archive}"]


def _export_sources(store: DirectoryStore, chosen: Sequence[Located], target: Path) -> tuple[str, ...]:
    kernels = [store.check(Path(e.directory)) for e in chosen if isinstance(e.entry, CacheEntry)]
    return tuple(str(exchange.ship(stored, target)) for stored in kernels if isinstance(stored, StoredEntry))


def _import(args: argparse.Namespace, store: DirectoryStore) -> tuple[int, Any, list[str]]:
    done = exchange.import_entries(store, args.archive, device=args.device)
    lines = [f"{name}{'  (for another device)' if name in done.other_device else ''}" for name in done.entries]
    lines += [f"refused {r.name}: {r.reason}" for r in done.refused]
    lines.append(f"{len(done.entries)} entries imported, {len(done.refused)} refused")
    return int(bool(done.refused)), done, lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Left-aligned columns."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]


def _size(size_bytes: int) -> str:
    """In decimal units, three digits."""
    value, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def _age(created: str) -> str:
    """Time since, in the largest fitting unit."""
    if not created:
        return "-"
    seconds = (datetime.now(timezone.utc) - datetime.fromisoformat(created)).total_seconds()
    for length, unit in ((DAY_S, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
