"""A model of branches in lists: each branch has its own list, copied at the fork."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.paging import Page
from holdfast.errors import Conflict, InvalidInput, NotFound
from holdfast.stores.conversation.branches import Branch, Origin

if TYPE_CHECKING:
    from tests.models.model import Model, ModelTenant


class Way:
    """A branch of a session: the ids of its messages, and the number of the next message."""

    def __init__(self, branch: Branch, ids: list[str], next_seq: int) -> None:
        self.branch, self.ids, self.next_seq = branch, ids, next_seq


class ModelBranches:
    """The branches of one tenant's sessions."""

    def __init__(self, model: Model, tenant: ModelTenant) -> None:
        self._model, self._tenant = model, tenant
        self._ways: dict[str, list[Way]] = {}
        self._shown: dict[str, int] = {}

    def fork(self, session_id: Any, *, at: Any = None, label: Any = None) -> Branch:
        return self._fork(session_id, at, label, "fork").branch

    def switch(self, session_id: Any, number: Any) -> Branch:
        id = self._tenant.sessions.get(session_id).id
        return self._show(id, _whole(number))

    def rewind(self, session_id: Any, *, to: Any, label: Any = None) -> Branch:
        way = self._fork(session_id, "nowhere" if to is None else to, label, "rewind")
        return self._show(way.branch.session_id, way.branch.number)

    def redo(self, session_id: Any) -> Branch:
        displayed = self.way(self._tenant.sessions.get(session_id).id).branch
        if displayed.origin != "rewind" or displayed.parent is None:
            raise Conflict
        return self._show(displayed.session_id, displayed.parent)

    def list(self, session_id: Any, *, limit: int | None = None, cursor: Any = None) -> Page[Branch]:
        self._model.check_page(limit, cursor, "branches")
        id = self._tenant.sessions.get(session_id).id
        rows = [way.branch for way in self._ways[id]]
        return self._model.page(rows, lambda branch: branch.number, limit, cursor, "branches")

    def current(self, session_id: Any) -> int:
        return self._shown[self._tenant.sessions.get(session_id).id]

    def begin(self, session_id: str) -> None:
        """Create the first branch of a session."""
        self._ways[session_id] = [Way(Branch(session_id, 0, None, 0, "start", "", self._model.now()), [], 1)]
        self._shown[session_id] = 0

    def way(self, session_id: str) -> Way:
        """Return the current branch of a session."""
        return self._ways[session_id][self._shown[session_id]]

    def _fork(self, session_id: Any, at: Any, label: Any, origin: Origin) -> Way:
        named = "" if label is None else self._model.name(label, "name_bytes")
        id = self._tenant.sessions.get(session_id).id
        displayed, rows = self.way(id), self._tenant.messages.rows
        existing = {rows[item].seq for item in displayed.ids if item in rows}
        seq = displayed.next_seq - 1 if at is None else _whole(at)
        if seq not in {0, displayed.next_seq - 1, *existing}:
            raise InvalidInput
        number = len(self._ways[id])
        branch = Branch(id, number, displayed.branch.number, seq, origin, named, self._model.now())
        ids = [item for item in displayed.ids if item in rows and rows[item].seq <= seq]
        self._ways[id].append(Way(branch, ids, seq + 1))
        return self._ways[id][-1]

    def _show(self, id: str, number: int) -> Branch:
        if number >= len(self._ways[id]):
            raise NotFound
        if number != self._shown[id]:
            self._shown[id] = number
            existing = self._tenant.messages.log(id)
            sessions = self._tenant.sessions.rows
            sessions[id] = msgspec.structs.replace(
                sessions[id],
                message_count=len(existing),
                token_count=sum(message.token_count for message in existing),
                updated_at=self._model.now(),
            )
        return self.way(id).branch


def _whole(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InvalidInput
    return number
