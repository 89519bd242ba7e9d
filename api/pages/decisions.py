"""Reads a page's answers to waiting calls, and finds out whether they were given before."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from api.approvals import edited_arguments
from api.errors import Refused
from shared.concurrency import Clock
from shared.domain.approvals import EXPIRY, Approval
from shared.domain.errors import Conflict, ErrorCode, InvalidRequest
from shared.domain.ids import ApprovalId, ProjectId, RunId, ThreadId
from shared.domain.messages import ContentPart, Decision, text_with_notes
from shared.sql.definitions.tools import ToolStore
from shared.sql.runs.approvals import ApprovalStore

PAGE_ERROR = "X-Holdfast-Error"
"""The header with a refusal's code, for dialects whose answers have no place for it."""

UI_MESSAGE_STREAM = "X-Vercel-AI-UI-Message-Stream"
"""The header of the AI SDK's streams."""

CANCELLED = "cancelled by the user"
"""The reason of a denial, for the model, if the page cancels a call."""


class RefusalCode(StrEnum):
    """The reason why a page's submission does not fit the waiting calls. Clients know these words."""

    PENDING_APPROVAL = "PENDING_APPROVAL"
    """The submission has new input, but calls wait."""
    INCOMPLETE_RESUME = "INCOMPLETE_RESUME"
    """The answers do not cover all waiting calls."""
    UNKNOWN_INTERRUPT = "UNKNOWN_INTERRUPT"
    """An answer names a call that never waited here."""
    NO_PENDING_APPROVAL = "NO_PENDING_APPROVAL"
    """The call no longer waits: it was decided otherwise, was cancelled, or has expired."""
    BAD_PAYLOAD = "BAD_PAYLOAD"
    """An answer does not fit its call: arguments against the schema, an approval of a call that the client runs, or a
    result of a call that the client does not run."""


class PageRefusal(Refused):
    """A refusal that the pages' protocols define. A dialect with its own form for it catches it; else it is a 409."""

    def __init__(self, reason: RefusalCode, message: str, ids: Iterable[str]) -> None:
        """`message` is a sentence, to which the refusal adds `ids`: the waiting approvals, or the wrong ids in the
        request."""
        self.ids = list(ids)
        self.reason = reason
        self.message = f"{message}: {', '.join(self.ids)}"
        super().__init__(409, ErrorCode.CONFLICT, self.message)


@dataclass(frozen=True, kw_only=True)
class PageAnswer:
    """A page's answer to one waiting call: an approval or a denial, or the result of a call that the page has run."""

    call: str
    """The id of the call, or of its approval."""
    approve: bool | None = None
    """None: the answer is a result, or cancels the call."""
    reason: str | None = None
    edited_arguments: dict[str, Any] | None = None
    """Complete arguments in place of the shown ones. None: the call keeps the shown arguments."""
    result: str | list[ContentPart] | None = None
    is_error: bool = False
    """Whether the result is the text of an error."""
    cancelled: bool = False
    """The user wants neither approval nor denial: the call is denied. An expired call can only be cancelled."""


class Read(NamedTuple):
    """The meaning of a page's answers in the present state of the thread."""

    decisions: list[Decision]
    """A decision for each waiting call, in the calls' order; empty if the answers were given before."""
    continuation: RunId | None = None
    """If the answers were given before: the run that followed them then."""


@dataclass(frozen=True, kw_only=True)
class PageDecisions:
    """Reads answers against the calls of a thread."""

    approvals: ApprovalStore
    tools: ToolStore
    clock: Clock

    async def waiting(self, project_id: ProjectId, thread_id: ThreadId) -> list[Approval]:
        """The waiting calls of the thread."""
        return await self.approvals.waiting_on_thread(project_id, thread_id)

    async def read(self, project_id: ProjectId, thread_id: ThreadId, answers: Sequence[PageAnswer]) -> Read:
        """Returns the decisions on the waiting calls, or the continuation if these answers were given before.

        Pages send every answer in their last message, so answers to calls of earlier runs are ignored. Raises
        `PageRefusal`.
        """
        waiting = await self.waiting(project_id, thread_id)
        decided = await self.approvals.decided_among(project_id, thread_id, [one.call for one in answers])
        if not waiting:
            return Read([], _continuation(answers, decided))
        given = _by_approval(answers, waiting, [one for one in decided if one.run_id == waiting[0].run_id], decided)
        if not given:
            return Read([], _continuation(answers, decided))
        _refuse_expired(waiting, given, self.clock.now())
        missing = [one.id for one in waiting if one.id not in given]
        if missing:
            said = "the answers must cover every call that waits, and these have none"
            raise PageRefusal(RefusalCode.INCOMPLETE_RESUME, said, missing)
        _refuse_other(given, decided)
        return Read([await self._decision(one, given[one.id]) for one in waiting])

    async def _decision(self, asked: Approval, answer: PageAnswer) -> Decision:
        if answer.cancelled:
            return Decision(tool_call_id=asked.tool_call_id, approve=False, reason=answer.reason or CANCELLED)
        if answer.result is not None:
            return _result(asked, answer, answer.result)
        if answer.approve is None:
            raise _bad(asked, "the answer neither approves nor denies the call, and has no result of it")
        if answer.approve and asked.client_side:
            raise _bad(asked, f"{asked.tool_name} is run by the page: send its result, or deny the call")
        if answer.edited_arguments is not None and not answer.approve:
            raise _bad(asked, "a call that is denied has no arguments to edit")
        return Decision(
            tool_call_id=asked.tool_call_id,
            approve=answer.approve,
            reason=answer.reason,
            edited_arguments=await self._edited(asked, answer.edited_arguments),
        )

    async def _edited(self, asked: Approval, arguments: dict[str, Any] | None) -> str | None:
        try:
            return await edited_arguments(self.tools, asked, arguments)
        except (InvalidRequest, Conflict) as error:
            raise _bad(asked, str(error)) from error


def _continuation(answers: Sequence[PageAnswer], decided: Sequence[Approval]) -> RunId:
    """Returns the run that followed these answers. Raises `PageRefusal` if other answers were given."""
    if not decided:
        said = "no call waits for an answer"
        raise PageRefusal(RefusalCode.NO_PENDING_APPROVAL, said, [one.call for one in answers])
    newest = [one for one in decided if one.run_id == decided[0].run_id]
    given = _by_approval(answers, [], newest, decided)
    if newest[0].continued_by is None:
        said = "the run that asked was cancelled, so no answer continues it"
        raise PageRefusal(RefusalCode.NO_PENDING_APPROVAL, said, [one.id for one in newest])
    _refuse_other(given, newest)
    return newest[0].continued_by


def _by_approval(
    answers: Sequence[PageAnswer], waiting: Sequence[Approval], decided: Sequence[Approval], earlier: Sequence[Approval]
) -> dict[ApprovalId, PageAnswer]:
    """Returns the answers to one run's calls, some of which wait and some were decided. `earlier` are all decided calls
    that the answers name. A result after a decision on the same call is ignored if the page does not run the call.

    Raises `PageRefusal` for an id of no call, and for two different answers to one call.
    """
    names = {name: one for one in [*decided, *waiting] for name in (one.id, one.tool_call_id)}
    known = {name for one in earlier for name in (one.id, one.tool_call_id)}
    unknown = [answer.call for answer in answers if answer.call not in names and answer.call not in known]
    if unknown:
        raise PageRefusal(RefusalCode.UNKNOWN_INTERRUPT, "no call of this conversation has waited under", unknown)
    given: dict[ApprovalId, PageAnswer] = {}
    for answer in answers:
        asked = names.get(answer.call)
        if asked is None:
            continue
        first = given.setdefault(asked.id, answer)
        if answer.result is not None and first.result is None and not asked.client_side:
            # CopilotKit sends a decision once more, as the result of its call.
            continue
        if first != replace(answer, call=first.call):
            raise _bad(asked, "the request has two different answers to one call")
    return given


def _refuse_expired(waiting: Sequence[Approval], given: Mapping[ApprovalId, PageAnswer], now: datetime) -> None:
    late = [
        one.id
        for one in waiting
        if one.id in given and not given[one.id].cancelled and one.expires_at is not None and one.expires_at <= now
    ]
    if late:
        said = "nobody decided these calls in time, so they can only be cancelled"
        raise PageRefusal(RefusalCode.NO_PENDING_APPROVAL, said, late)


def _refuse_other(given: Mapping[ApprovalId, PageAnswer], decided: Sequence[Approval]) -> None:
    """Raises `PageRefusal` for calls whose earlier decision differs from the present answer."""
    others = [one for one in decided if one.id in given and not _is_same(one, given[one.id])]
    if others:
        said = "a decision holds once, and these calls were decided otherwise"
        if any(one.decided_by == EXPIRY for one in others):
            said = "nobody decided these calls in time, so they can only be cancelled"
        raise PageRefusal(RefusalCode.NO_PENDING_APPROVAL, said, [one.id for one in others])


def _is_same(decided: Approval, answer: PageAnswer) -> bool:
    """Whether the answer equals the decision, apart from its reason."""
    known = decided.decision
    if known is None:
        return False
    if answer.result is not None:
        return decided.client_side and known == _result(decided, answer, answer.result)
    if known.kind != "approval" or known.approve != (answer.approve is True and not answer.cancelled):
        return False
    if answer.edited_arguments is None:
        return known.edited_arguments is None
    # Arguments that a tool's old schema accepted remain this decision when the schema changes.
    return _object_in(known.edited_arguments or decided.arguments) == answer.edited_arguments


def _object_in(arguments: str) -> object:
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None


def _result(asked: Approval, answer: PageAnswer, result: str | list[ContentPart]) -> Decision:
    if not asked.client_side:
        raise _bad(asked, f"{asked.tool_name} is not run by the page: approve or deny the call")
    return Decision(
        tool_call_id=asked.tool_call_id,
        kind="tool",
        tool_return=result if isinstance(result, str) else text_with_notes(result),
        parts=None if isinstance(result, str) else result,
        status="error" if answer.is_error else "success",
        is_plain=not answer.is_error,
    )


def _bad(asked: Approval, said: str) -> PageRefusal:
    return PageRefusal(RefusalCode.BAD_PAYLOAD, said, [asked.id])
