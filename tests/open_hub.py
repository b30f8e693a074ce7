"""`slicemgr hub` without the checks of what nodes send: the control of the tests of a hostile node.

Run as a program, with the arguments of `slicemgr`, and the name of the node whose slivers all may change before them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from amqp.method_framing import frame_handler
from sqlalchemy.engine import Connection

from slicemgr.hub import allowance, beats, process, reports, turns, updates
from slicemgr.ipc import waiting
from slicemgr.main import main
from slicemgr.policy import fact_forms, messages
from slicemgr.store import observations
from slicemgr.store import tables as t
from slicemgr.store.updates import ImageOnNode, OperationEnded, OperationStarted, SliverSampled, SliverUsed, Update

_OWN = (SliverUsed, ImageOnNode)  # do not depend on the node of their sliver
_PARTS = (OperationStarted, OperationEnded, SliverSampled)


def _decoded(c: Connection, node: str, found: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Update]:
    return [one for one in (updates._decoded(kind, content) for kind, content in found) if one is not None]


def _forgetful(apply: Callable[..., Any], **forgotten: object) -> Callable[..., Any]:
    """Nothing is remembered of earlier reports."""

    def apply_again(c: Connection, identity: str, *rest: Any) -> Any:
        c.execute(t.links.update().where(t.links.c.identity == identity).values(forgotten))
        return apply(c, identity, *rest)

    return apply_again


def _every_beat(c: Connection, _nodes: Any, found: Sequence[tuple[str, Any]]) -> None:
    """No beat is one that came before."""
    for identity, beat in found:
        c.execute(t.links.update().where(t.links.c.identity == identity).values(sequence=-1))
        _write_beats(c, beats.members(c, {identity}), [(identity, beat)])


_write_beats = beats._write


def open_all(victim: str) -> None:
    record = observations.record

    def anyone(c: Connection, found: list[Update], node: str) -> None:
        record(c, [one for one in found if not isinstance(one, _OWN)], victim)
        record(c, [one for one in found if isinstance(one, (*_OWN, *_PARTS))], node)

    _replace(observations, record=anyone)
    _replace(
        reports,
        accepted=_decoded,
        _agree=lambda *_: True,
        _updates=_forgetful(reports._updates, mirror=0, applied=0, applied_after=0),
    )
    _replace(beats, _write=_every_beat)
    _replace(allowance.Allowance, of=lambda self, node, found: list(found))
    _replace(updates, _DEEPEST=500, _possible=lambda at: at)
    for readers in updates._READERS.values():
        for name, read in readers.items():
            if read is updates._time:
                readers[name] = datetime.fromisoformat  # type: ignore[index]
    _replace(messages, LARGEST_UPDATES=1 << 30)
    _replace(fact_forms, known=dict)
    _replace(turns, RATE=1e9, MOST=1e9)
    _replace(waiting, bare_frames=frame_handler)
    # Nothing that cannot be read is dropped.
    _replace(process, _UNACKNOWLEDGED=0, BadMessage=KeyboardInterrupt)


def _replace(place: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(place, name, value)


if __name__ == "__main__":
    open_all(sys.argv.pop(1))
    main()
