"""What differs between two imports: maps by what they say, choices by group, phase and host."""

from __future__ import annotations

from collections.abc import Iterator

from kernelmap.models.foreign_report import ForeignAudit, ForeignChange, ForeignLadder
from kernelmap.registry import Registry


def foreign_changes(
    before: ForeignAudit, after: ForeignAudit, old: Registry, new: Registry
) -> tuple[ForeignChange, ...]:
    """Every difference of ``after`` from ``before``: groups, maps, then choices in groups that both have."""
    return (*_groups(before, after), *_maps(old, new), *_choices(before, after))


def _groups(before: ForeignAudit, after: ForeignAudit) -> Iterator[ForeignChange]:
    was, now = ({item.group for item in audit.ladders} for audit in (before, after))
    for name in sorted(now - was):
        yield ForeignChange(kind="group added", what=name)
    for name in sorted(was - now):
        yield ForeignChange(kind="group removed", what=name)


def _maps(old: Registry, new: Registry) -> Iterator[ForeignChange]:
    was, now = ({name: item for name, item in registry.maps.items() if not item.executable} for registry in (old, new))
    for name in sorted(was.keys() | now.keys()):
        if name not in was:
            yield ForeignChange(kind="map added", what=name, after=now[name].digest)
        elif name not in now:
            yield ForeignChange(kind="map removed", what=name, before=was[name].digest)
        elif was[name].digest != now[name].digest:
            yield ForeignChange(kind="map changed", what=name, before=was[name].digest, after=now[name].digest)


def _choices(before: ForeignAudit, after: ForeignAudit) -> Iterator[ForeignChange]:
    def by_place(audit: ForeignAudit) -> dict[tuple[str, str, str], str]:
        return {(item.group, item.phase.value, item.host): choice_text(item) for item in audit.ladders}

    was, now = by_place(before), by_place(after)
    groups = {group for group, _, _ in was} & {group for group, _, _ in now}
    for key in sorted(was.keys() | now.keys()):
        one, other = was.get(key, "not asked"), now.get(key, "not asked")
        if key[0] in groups and one != other:
            group, phase, host = key
            yield ForeignChange(kind="choice changed", what=f"{group} {phase} on {host}", before=one, after=other)


def choice_text(item: ForeignLadder) -> str:
    """``id``, ``tie of a and b`` or ``none``."""
    if item.outcome == "tie":
        return f"tie of {' and '.join(item.providers)}"
    return item.providers[0] if item.providers else "none"
