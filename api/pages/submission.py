"""Submits a run for the new messages of a page, or for its decisions on waiting calls."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec.json import encode

from api.admission import release_permit
from api.errors import Refused
from api.input_limits import InputLimits
from api.pages.decisions import PageAnswer, PageDecisions, PageRefusal, RefusalCode
from api.pages.threads import PageThread, PageThreads
from api.runs.cancel import ACTOR, RunCanceller
from api.runs.command import BusyPolicy, Command, SubmissionHeaders
from api.runs.submission import SubmissionService
from shared.domain.errors import (
    AlreadyDecided,
    DecidedOtherwise,
    ErrorCode,
    InvalidRequest,
    NameTaken,
    NoPendingApproval,
    NothingToCancel,
    PendingApproval,
    WrongToolCalls,
)
from shared.domain.ids import RunId
from shared.domain.lifecycle import RunStatus
from shared.domain.messages import FILES, Decision, UserMessage, has_files, text_of
from shared.domain.runs import IDEMPOTENCY_KEY, Run, RunOptions, SubmissionKeys, key_of_otids
from shared.domain.tools import ClientTool
from shared.sql.history.message_lists import MessageLists
from shared.sql.runs.run_store import ANYWHERE, Place, Submitted

AMONG = 50
"""The number of a history's newest messages among which repeated messages of a page are looked up."""

MOST_STEPS = RunOptions().max_steps
"""The most steps of a run that a key of single agents submits."""

Known = dict[str | None, RunId | None]
"""The runs of messages that a thread already has, by the messages' ids for pages."""

_DECIDED_MEANWHILE = (NoPendingApproval, WrongToolCalls, AlreadyDecided, DecidedOtherwise)

TRIES = 3
"""The most comparisons of answers with the waiting calls, which other callers may decide meanwhile."""


@dataclass(frozen=True, kw_only=True)
class PageSubmission:
    """A page's request, independent of its dialect."""

    thread: PageThread
    dialect: str
    """The dialect's name, as `RunOptions.dialect` stores it."""
    said: Sequence[UserMessage] = ()
    """All users' messages at the end of the request, oldest first, each with the client's id as its otid."""
    said_at: Sequence[int]
    """The places of these messages in the request, for refusals."""
    answers: Sequence[PageAnswer] = ()
    headers: SubmissionHeaders
    client_tools: Sequence[ClientTool] = ()
    added_system: str | None = None
    """Instructions for this run, which follow the agent's own."""
    run_name: str | None = None
    """The client's own id of the run, at most 200 characters (`RunOptions.named`)."""
    if_busy: BusyPolicy | None = None
    """None: the header's policy, else `enqueue`."""
    max_steps: int | None = None
    override_model: str | None = None
    """None: the conversation's model, else the agent's."""
    echoed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The parts of the request that the dialect needs to render the run again (`RunOptions.echoed`)."""


@dataclass(frozen=True, kw_only=True)
class PageService:
    """Submits the messages and answers of pages, and stops their runs."""

    threads: PageThreads
    decisions: PageDecisions
    submissions: SubmissionService
    messages: MessageLists
    canceller: RunCanceller
    input_limits: InputLimits

    async def submit(self, submission: PageSubmission) -> Submitted:
        """Stores and dispatches the run that answers the submission, and creates the conversation if it is new.

        Messages that the thread already has are omitted. A submission whose last message is known is a repetition: this
        returns the first submission's run, with `is_new` False. With answers, the run is the continuation of the
        waiting run; repeated answers return the same continuation. With `inject`, the run may be an active one that has
        received the messages.

        Raises `PageRefusal`; `Refused` if nothing is new, or a key of single agents sends fields that only keys of the
        project may send; `InvalidRequest` for a message that is too long; `NameTaken` if another text was sent under
        the id of a message; `Busy`; `LimitReached`.
        """
        self._refuse_long(submission)
        said_at, said = _each_once(submission)
        submission = replace(submission, said_at=said_at, said=said)
        await self._refuse_foreign(submission)
        if submission.answers:
            return await self._decided(submission)
        if not submission.said:
            raise _nothing_new()
        known, last = await self._stored(submission), submission.said[-1]
        if len(submission.said) > 1 or last.otid in known:
            known |= await self._sent(submission)
        if last.otid in known:
            return Submitted(await self._first_run(submission, last, known[last.otid]), is_new=False)
        try:
            return await self._begun(submission, known)
        except NameTaken:
            # A single message was not looked up among the sent messages before, because the submission does this.
            sent = await self._sent(submission)
            if last.otid not in sent:
                raise
            return Submitted(await self._first_run(submission, last, sent[last.otid]), is_new=False)

    async def _begun(self, submission: PageSubmission, known: Known) -> Submitted:
        """Submits the messages that are not among `known`."""
        thread, place = self.threads.opened(submission.thread)
        new = [message for message in submission.said if message.otid not in known]
        try:
            return await self._submitted(self._command(submission, thread, new, place=place))
        except PendingApproval as error:
            said = "the agent waits for answers to its calls before it takes a new message"
            raise PageRefusal(RefusalCode.PENDING_APPROVAL, said, error.waiting.approval_ids) from error

    async def stop(self, thread: PageThread, run: str | None = None) -> Run:
        """Cancels a run of the thread that is active, queued or waits for answers, and returns it as it is then. `run`
        is its id or the client's own name for it; None: the running or parked run, else the oldest queued run. Raises
        `NothingToCancel`."""
        agent, active = thread.agent, list[Run]()
        if thread.id is not None:
            active = await self.submissions.listing.active_of_agent(agent.project_id, agent.id, thread.id)
        meant = [one for one in active if run in (None, one.id, one.options.named)]
        if not meant:
            raise NothingToCancel(f"No active run to cancel in the conversation {thread.name!r}")
        first = next((one for one in meant if one.status is not RunStatus.CREATED), meant[0])
        release_permit()  # a cancel waits for the run to stop
        return await self.canceller.cancel(first, actor=ACTOR)

    async def open_among(self, thread: PageThread, answers: Sequence[PageAnswer]) -> list[PageAnswer]:
        """The answers to calls that still wait. Pages repeat older ones with their user's next message."""
        if thread.id is None or not answers:
            return []
        waiting = await self.decisions.waiting(thread.agent.project_id, thread.id)
        names = {name for one in waiting for name in (one.id, one.tool_call_id)}
        return [answer for answer in answers if answer.call in names]

    async def _decided(self, submission: PageSubmission) -> Submitted:
        """Decides the waiting calls. If other callers decide them meanwhile, it reads them again."""
        thread, project_id = submission.thread, submission.thread.agent.project_id
        if thread.id is None:
            said = "no call waits for an answer in a new conversation"
            raise PageRefusal(RefusalCode.NO_PENDING_APPROVAL, said, [one.call for one in submission.answers])
        known = await self._stored(submission) | await self._sent(submission)
        new = [message for message in submission.said if message.otid not in known]
        tries = 0
        while True:
            tries += 1
            read = await self.decisions.read(project_id, thread.id, submission.answers)
            if read.continuation is not None:
                if new:  # only the answers are repeated
                    return await self.submit(replace(submission, answers=()))
                run = await self.submissions.runs.get(project_id, read.continuation)
                own_id = known.get(submission.said[-1].otid) if submission.said else None
                own = run if own_id is None else await self.submissions.runs.get(project_id, own_id)
                if own.created_at > run.created_at:  # the repetition of answers that were repeated with new words
                    run = await self._first_run(submission, submission.said[-1], own.id)
                release_permit()
                return Submitted(run, is_new=False)
            try:
                return await self._submitted(self._command(submission, thread, new, read.decisions))
            except _DECIDED_MEANWHILE:
                if tries == TRIES:
                    raise

    async def _submitted(self, command: Command) -> Submitted:
        run = await self.submissions.submit(command)
        return Submitted(run, is_new=run.id == command.run_id)

    async def _stored(self, submission: PageSubmission) -> Known:
        """Returns the ids of the newest messages in the thread's history, and the run of each."""
        thread = submission.thread
        if thread.id is None or not submission.said:
            return {}
        return {**await self.messages.newest_said(thread.agent.project_id, thread.id, AMONG)}

    async def _sent(self, submission: PageSubmission) -> Known:
        """Returns the ids of the messages that were sent to the thread before, and the run of each submission."""
        thread = submission.thread
        names = {key_of_otids([message.otid]): message.otid for message in submission.said if message.otid}
        if thread.id is None or not names:
            return {}
        sent = await self.submissions.listing.of_names(thread.agent.project_id, thread.id, list(names))
        return {names[name]: run_id for name, run_id in sent.items()}

    async def _first_run(self, submission: PageSubmission, last: UserMessage, run_id: RunId | None) -> Run:
        """Returns the run that a known message began. Raises `NameTaken` if the message had another text."""
        if run_id is None:
            raise _nothing_new()
        runs = self.submissions.runs
        run = await runs.get(submission.thread.agent.project_id, run_id)
        # Dialects read parts of messages differently, so texts are compared only within one dialect.
        if run.options.dialect == submission.dialect:
            for given in await runs.input_of(run):
                body = given.body
                if isinstance(body, UserMessage) and body.otid == last.otid and body.content != last.content:
                    raise NameTaken(name=f"the message id {(last.otid or '')[:100]!r}", run_id=run.id)
        await self.submissions.queue.dispatch_stored(run)
        release_permit()
        return run

    def _command(
        self,
        submission: PageSubmission,
        thread: PageThread,
        new: Sequence[UserMessage],
        decisions: Sequence[Decision] | None = None,
        place: Place = ANYWHERE,
    ) -> Command:
        headers = submission.headers
        return Command(
            agent=thread.agent,
            conversation_id=thread.conversation_id,
            place=place,
            messages=new,
            decisions=None if decisions is None else lambda _: list(decisions),
            options=self._options(submission, thread, new),
            if_busy=submission.if_busy or headers.if_busy or "enqueue",
            keys=_keys_of(headers, new),
            priority=headers.priority,
            run_id=self.threads.ids.run(),
            keeps_alive=False,
        )

    def _options(self, submission: PageSubmission, thread: PageThread, new: Sequence[UserMessage]) -> RunOptions:
        history, most = thread.history, self.submissions.max_steps
        model = submission.override_model or (None if history is None else history.model)
        return RunOptions(
            dialect=submission.dialect,
            streamed=True,
            stream_tokens=True,
            status_events=True,
            item_events=True,
            background=True,
            max_steps=min(MOST_STEPS, most) if submission.max_steps is None else submission.max_steps,
            client_tools=list(submission.client_tools),
            demanded=[FILES] if any(has_files(message.content) for message in new) else [],
            override_model=model,
            added_system=submission.added_system,
            model_options=None if history is None else history.model_options,
            submitted_by=submission.headers.key_id,
            named=submission.run_name,
            echoed=dict(submission.echoed),
        )

    def _refuse_long(self, submission: PageSubmission) -> None:
        for place, message in zip(submission.said_at, submission.said, strict=True):
            self.input_limits.refuse_long_text(text_of(message.content), f"messages[{place}]")
        results = [one.result for one in submission.answers if one.result is not None]
        self.input_limits.refuse_long_messages([text_of(one) for one in results], "results")
        if submission.added_system is not None:
            self.input_limits.refuse_long_text(submission.added_system, "context")

    async def _refuse_foreign(self, submission: PageSubmission) -> None:
        """Raises a 403 if the key sees single agents only, and the submission redefines the agent. Strangers' browsers
        may have such a key. The page may bring its own tools, but none that replaces a tool of the agent."""
        if not submission.headers.of_single_agents:
            return
        agent, brought = submission.thread.agent, {tool.name for tool in submission.client_tools}
        own = await self.decisions.tools.for_agent(agent.project_id, agent.id) if brought else ()
        replaced = sorted(brought & {tool.name for tool in own})
        flaws = {
            "context": submission.added_system is not None,
            "model": submission.override_model is not None,
            f"max_steps above {MOST_STEPS}": (submission.max_steps or 0) > MOST_STEPS,
            f"a tool named as the agent's own ({', '.join(replaced)})": bool(replaced),
        }
        flaw = next((name for name, is_there in flaws.items() if is_there), None)
        if flaw is not None:
            said = f"FORBIDDEN: {flaw} needs a key of the project; this key may only talk with the agent as it is"
            raise Refused(403, ErrorCode.FORBIDDEN, said)


def _each_once(submission: PageSubmission) -> tuple[list[int], list[UserMessage]]:
    """The places and messages, without repetitions. Raises `InvalidRequest` for different texts with one id."""
    first: dict[str | None, tuple[int, UserMessage]] = {}
    for place, message in zip(submission.said_at, submission.said, strict=True):
        known_at, known = first.setdefault(message.otid, (place, message))
        if known.content != message.content:
            field = f"messages[{place}].id"
            said = f"{field} is the id of messages[{known_at}] as well, and their texts differ"
            raise InvalidRequest(f"{said}: give each message an id of its own", field=field)
    return [place for place, _ in first.values()], [message for _, message in first.values()]


def _keys_of(headers: SubmissionHeaders, new: Sequence[UserMessage]) -> SubmissionKeys:
    """The names by which a repeated submission is found: one for each of its messages."""
    names = [] if headers.idempotency_key is None else [IDEMPOTENCY_KEY + headers.idempotency_key]
    names += [key_of_otids([message.otid]) for message in new if message.otid]
    return SubmissionKeys(names, hashlib.sha256(encode(list(new))).hexdigest())


def _nothing_new() -> Refused:
    said = "messages: nothing is new: send a user's message with an id of its own, or answers to the calls that wait"
    return Refused(422, ErrorCode.INVALID_ARGUMENT, f"INVALID_ARGUMENT: {said}", field="messages")
