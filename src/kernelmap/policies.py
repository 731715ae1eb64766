"""Policies from flags, files and the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.jsonsource import read_json
from kernelmap.models.loading import validate
from kernelmap.models.policy import EvidencePolicy, Pin, Policy, PolicyRoute
from kernelmap.vocabulary import Phase

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_OFF = frozenset({"", "0", "false", "no", "off"})


def switches_set(known: Iterable[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The kill switches among ``known`` that the environment sets (to anything but empty, 0, false, no, off)."""
    return tuple(sorted(name for name in known if environ.get(name, "").strip().lower() not in _OFF))


def read_policy(path: Path) -> Policy:
    """A policy file. Raises KernelmapError with every problem of the file."""
    return validate(read_json(path), Policy)


def make_policy(
    base: Policy | None = None,
    *,
    routes: Sequence[str] = (),
    pins: Sequence[str] = (),
    exclude: Sequence[str] = (),
    evidence: EvidencePolicy | None = None,
    options: Sequence[str] = (),
    kill_switches: Sequence[str] = (),
) -> Policy:
    """A policy from command-line words added to ``base``.

    Routes and pins are ``OP[:PHASE]=ID``, options ``NAME=VALUE``. Raises KernelmapError for every malformed word.
    """
    base = base or Policy()
    problems: list[Diagnostic] = []
    parsed_routes = [
        PolicyRoute(op=op, phase=phase, allow=name) for op, phase, name in op_words(routes, "--route", problems)
    ]
    parsed_pins = [Pin(op=op, phase=phase, id=name) for op, phase, name in op_words(pins, "--pin", problems)]
    chosen = dict(base.options)
    for word in options:
        name, equals, value = word.partition("=")
        if not (equals and _NAME.fullmatch(name) and _NAME.fullmatch(value)):
            problems.append(_malformed("--option", word, "NAME=VALUE"))
        chosen[name] = value
    problems += [_malformed("--exclude", word, "ID") for word in exclude if not _NAME.fullmatch(word)]
    if problems:
        raise KernelmapError(problems)
    try:
        return Policy(
            routes=(*base.routes, *parsed_routes),
            exclude=(*base.exclude, *exclude),
            pin=(*base.pin, *parsed_pins),
            evidence=evidence or base.evidence,
            kill_switches=(*base.kill_switches, *kill_switches),
            options=chosen,
        ).normalised()
    except ValidationError as error:
        raise KernelmapError(Diagnostic("KM751", f"policy: {item['msg']}") for item in error.errors()) from None


def op_words(words: Sequence[str], flag: str, problems: list[Diagnostic]) -> list[tuple[str, Phase | None, str]]:
    """(op, phase, id) of each ``OP[:PHASE]=ID``; malformed ones are added to ``problems``."""
    found: list[tuple[str, Phase | None, str]] = []
    for word in words:
        target, equals, name = word.partition("=")
        op, colon, phase = target.partition(":")
        names = equals and _NAME.fullmatch(op) and _NAME.fullmatch(name)
        if not names or (colon and phase not in {item.value for item in Phase}):
            problems.append(_malformed(flag, word, "OP[:PHASE]=ID, with phase init, prefill or decode"))
            continue
        found.append((op, Phase(phase) if colon else None, name))
    return found


def _malformed(flag: str, word: str, form: str) -> Diagnostic:
    return Diagnostic("KM751", f"{flag} {word!r} is malformed", expected=form)
