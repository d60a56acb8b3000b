"""Records to JSON and back, strictly: an unknown or missing field is an error, never a default.

Dataclasses become objects; a union of record types carries the class name under ``"record"``. Floats
that JSON cannot hold (nan, inf) become strings. The canonical form (sorted keys, no spaces) is what
digests are made of.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torch_forge.errors import RecordError

RECORD = "record"
"""The JSON field that names the class; no record may have a field of this name."""


def to_plain(value: object) -> Any:
    """The JSON form of a record, a container of records, or a plain value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {RECORD: type(value).__name__, **plain}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return {RECORD: "float", "value": repr(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise RecordError(f"a record cannot hold {type(value).__name__}")


def canonical_json(value: object) -> str:
    """One fixed text per value: sorted keys, no spaces."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object, *, length: int = 16) -> str:
    """The first ``length`` hex digits of the SHA-256 of the canonical form."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def dumps(value: object) -> str:
    """JSON for people: indented, fields in the order of the record."""
    return json.dumps(to_plain(value), indent=1, allow_nan=False) + "\n"


def loads(cls: Any, text: str) -> Any:
    """The record of type ``cls`` in ``text``. Raises RecordError if it is not exactly one."""
    try:
        plain = json.loads(text)
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from error
    return from_plain(cls, plain)


def from_plain(annotation: Any, plain: Any) -> Any:
    """The value of type ``annotation`` whose JSON form is ``plain``. Raises RecordError otherwise."""
    try:
        return _decode(annotation, plain)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise RecordError(f"cannot read a {_type_name(annotation)}: {error}") from error


def _type_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(annotation: Any, plain: Any) -> Any:
    if annotation is Any or annotation is object:
        return _revived(plain)
    origin = typing.get_origin(annotation)
    args = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(args, plain)
    if origin is tuple:
        return _decode_tuple(args, plain)
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(plain, dict), "an object", plain)
        return {_decode(args[0], _key(args[0], k)): _decode(args[1], v) for k, v in plain.items()}
    if dataclasses.is_dataclass(annotation):
        return _decode_record(typing.cast(type, annotation), plain)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return annotation(plain)
    if annotation is float and isinstance(plain, dict) and plain.get(RECORD) == "float":
        return float(plain["value"])
    if annotation is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if annotation is Path and isinstance(plain, str):
        return Path(plain)
    _expect(type(plain) is annotation or (annotation is type(None) and plain is None), _type_name(annotation), plain)
    return plain


def _revived(plain: Any) -> Any:
    """Free-form JSON with its non-finite floats back."""
    if isinstance(plain, list):
        return [_revived(v) for v in plain]
    if isinstance(plain, dict):
        if plain.get(RECORD) == "float":
            return float(plain["value"])
        return {k: _revived(v) for k, v in plain.items()}
    return plain


def _key(annotation: Any, text: str) -> Any:
    return int(text) if annotation is int else text


def _decode_tuple(args: tuple[Any, ...], plain: Any) -> tuple[Any, ...]:
    _expect(isinstance(plain, list), "a list", plain)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], v) for v in plain)
    _expect(len(plain) == len(args), f"a list of {len(args)}", plain)
    return tuple(_decode(a, v) for a, v in zip(args, plain, strict=True))


def _decode_record(cls: type, plain: Any) -> Any:
    _expect(isinstance(plain, dict) and plain.get(RECORD) == cls.__name__, f"a {cls.__name__}", plain)
    hints = _hints(cls)
    names = {f.name for f in dataclasses.fields(cls) if f.init}
    given = set(plain) - {RECORD}
    if given != names:
        raise RecordError(f"{cls.__name__}: missing {sorted(names - given)}, unknown {sorted(given - names)}")
    return cls(**{name: _decode(hints[name], plain[name]) for name in names})


def _decode_union(args: tuple[Any, ...], plain: Any) -> Any:
    """The member that fits: by class name for records, else the first that decodes."""
    if isinstance(plain, dict) and RECORD in plain:
        for member in args:
            if getattr(member, "__name__", None) == plain[RECORD]:
                return _decode(member, plain)
    for member in args:
        try:
            return _decode(member, plain)
        except (TypeError, KeyError, ValueError, RecordError):
            continue
    raise RecordError(f"{plain!r} is none of {', '.join(_type_name(a) for a in args)}")


def _expect(condition: bool, wanted: str, plain: Any) -> None:
    if not condition:
        raise RecordError(f"expected {wanted}, found {str(plain)[:80]!r}")
