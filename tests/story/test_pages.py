"""What the dialects of browsers share: a page's conversations, what it sends, and what it answers to waiting calls."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from api.access.authentication import acting_for
from api.pages.decisions import PageAnswer, PageRefusal, RefusalCode
from api.pages.submission import PageService, PageSubmission
from api.pages.threads import PageThread
from api.runs.command import SubmissionHeaders
from api.runs.streaming import Projection
from api.runs.thread_projection import LegInput, Present, ThreadCursor
from shared.domain.approvals import Approval
from shared.domain.errors import InvalidRequest, NameTaken, NotFound, NothingToCancel
from shared.domain.events import TextChunk, decode
from shared.domain.ids import AgentId, Seq, ThreadId
from shared.domain.lifecycle import RunStatus
from shared.domain.log_writer import Entries
from shared.domain.messages import Message, UserMessage
from shared.domain.runs import Run
from shared.domain.threads import Leg
from shared.domain.tools import ClientTool
from shared.sql.definitions.conversations import ConversationFilter
from shared.sql.paging import Page
from shared.sql.run_tables import approvals
from shared.sql.runs.run_store import Submitted
from tests.kit.model_server.turn import Call, Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import WaitingCalls, waiting_calls
from tests.kit.tools import LAUNCH
from tests.kit.wait_until import wait_until

pytestmark = pytest.mark.shared_product

BEGINNING = ThreadCursor()
SENSOR = ClientTool(name="sensor", description="Reads a sensor.", parameters={"type": "object", "properties": {}})


@dataclass
class Visitor:
    """A page that talks with one agent."""

    product: Product
    agent_id: AgentId
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of each of its submissions."""

    @property
    def pages(self) -> PageService:
        return self.product.services.dialects.pages

    async def thread(self, name: str = "default") -> PageThread:
        with acting_for(self.product.project_id):
            return await self.pages.threads.find(self.product.project_id, self.agent_id, name, only=None)

    async def send(self, *said: tuple[str, str], name: str = "default", **fields: Any) -> Submitted:
        """Sends messages, each an id and a text, and answers."""
        thread = await self.thread(name)
        messages = [UserMessage(content=text, otid=otid) for otid, text in said]
        given: dict[str, Any] = {"headers": SubmissionHeaders(), **self.fields, **fields}
        with acting_for(self.product.project_id):
            places = range(len(messages))
            submission = PageSubmission(thread=thread, dialect="pages", said=messages, said_at=places, **given)
            return await self.pages.submit(submission)

    async def answer(self, *answers: PageAnswer, said: Sequence[tuple[str, str]] = (), **fields: Any) -> Submitted:
        return await self.send(*said, answers=answers, **fields)

    async def stop(self, run: str | None = None, *, name: str = "default") -> Run:
        with acting_for(self.product.project_id):
            return await self.pages.stop(await self.thread(name), run)

    async def said(self, name: str = "default") -> list[str]:
        """The users' messages of the history."""
        thread = await self.thread(name)
        assert thread.id is not None
        with acting_for(self.product.project_id):
            stored = await self.product.services.messages.list_of_thread(self.product.project_id, thread.id)
        return [str(one.body.content) for one in stored if isinstance(one.body, UserMessage)]


async def visitor(product: Product, **fields: Any) -> Visitor:
    return Visitor(product, AgentId((await product.agent()).id), fields)


async def parked(product: Product, *targets: str, **fields: Any) -> tuple[Visitor, WaitingCalls]:
    asked = await waiting_calls(product, *(targets or ("moon",)), **fields)
    return Visitor(product, AgentId(asked.agent_id)), asked


@contextmanager
def refuses(reason: RefusalCode, *ids: str) -> Any:
    with pytest.raises(PageRefusal) as refused:
        yield
    assert (refused.value.reason, refused.value.ids) == (reason, list(ids))
    assert all(one in str(refused.value.detail) for one in ids)


def _says(product: Product, *answers: str) -> None:
    for answer in answers:
        product.models.say(answer)


# Conversations.


async def test_a_name_is_a_conversation_that_its_first_message_makes(product: Product) -> None:
    page, other = await visitor(product), await visitor(product)
    assert (await page.thread("tea")).id is None
    _says(product, "One.", "Two.", "Three.")

    first = await page.send(("m1", "Hello"), name="tea")
    await product.ended(first.run.id)
    second = await page.send(("m2", "Again"), name="tea")
    elsewhere = await other.send(("m1", "Hello"), name="tea")

    thread = await page.thread("tea")
    assert (first.is_new, second.is_new) == (True, True)
    assert first.run.thread_id == second.run.thread_id == thread.id
    assert elsewhere.run.thread_id != thread.id, "names are their agents' own"
    shown = (await product.http.get(f"/v1/conversations/{thread.id}")).json()
    assert (shown["name"], shown["agent_id"]) == ("tea", page.agent_id)
    by_id = await page.thread(str(thread.id))
    assert by_id.id == thread.id
    with pytest.raises(NotFound):
        await other.thread(str(thread.id))


async def test_a_conversation_that_two_processes_make_at_once_is_one(product: Product) -> None:
    page = await visitor(product)
    _says(product, *["Yes."] * 5)

    sent = await asyncio.gather(*(page.send((f"m{number}", "Hello"), name="both") for number in range(5)))

    for one in sent:
        await product.ended(one.run.id)
    wanted = ConversationFilter(agent_id=page.agent_id)
    with acting_for(product.project_id):
        found = await page.pages.threads.conversations.list(product.project_id, wanted, Page(limit=10))
    assert [one.name for one in found] == ["both"]
    assert await page.said("both") == ["Hello"] * 5


async def test_a_name_outlives_a_change_by_a_release_that_does_not_know_it(product: Product) -> None:
    page = await visitor(product)
    _says(product, "Yes.")
    await page.send(("m1", "Hello"), name="kept")
    thread = await page.thread("kept")

    changed = await product.http.patch(f"/v1/conversations/{thread.id}", json={"summary": "tea"})

    assert (changed.json()["name"], changed.json()["summary"]) == ("kept", "tea")
    assert (await page.thread("kept")).id == thread.id


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\x00", "\ud800"])
async def test_what_can_be_no_name_is_refused(product: Product, name: str) -> None:
    page = await visitor(product)
    with pytest.raises(InvalidRequest, match="1 to 200 characters"):
        await page.thread(name)


async def test_a_page_that_may_see_one_conversation_finds_no_other(product: Product) -> None:
    page = await visitor(product)
    _says(product, "Yes.")
    run = (await page.send(("m1", "Hello"), name="mine")).run
    find, project = page.pages.threads.find, product.project_id
    with acting_for(project):
        assert (await find(project, page.agent_id, "mine", only=run.thread_id)).id == run.thread_id
        for name in ("default", "not yet", str(run.thread_id).replace("-4", "-5", 1)):
            with pytest.raises(NotFound):
                await find(project, page.agent_id, name, only=run.thread_id)


# Messages.


async def test_the_same_submission_again_shows_the_run_of_the_first_time(product: Product) -> None:
    page = await visitor(product)
    _says(product, "One.")
    first = await page.send(("m1", "Hello"), run_name="r1")
    await product.ended(first.run.id)

    again = await page.send(("m1", "Hello"), run_name="r2")

    assert (again.run.id, again.is_new, again.run.options.named) == (first.run.id, False, "r1")
    assert await page.said() == ["Hello"]


async def test_two_that_send_the_same_at_once_begin_one_run(product: Product) -> None:
    page = await visitor(product)
    _says(product, "One.")

    sent = await asyncio.gather(*(page.send(("m1", "Hello"), name="new") for _ in range(4)))

    assert len({one.run.id for one in sent}) == 1
    assert sorted(one.is_new for one in sent) == [False, False, False, True]


async def test_messages_that_the_thread_has_are_left_out(product: Product) -> None:
    page = await visitor(product)
    _says(product, "One.", "Two.")
    first = await page.send(("m1", "Hello"))
    await product.ended(first.run.id)

    second = await page.send(("m1", "Hello"), ("m2", "And?"), ("m3", "Well?"))

    assert second.is_new
    await product.ended(second.run.id)
    assert await page.said() == ["Hello", "And?", "Well?"]
    assert (await page.send(("m2", "And?"), ("m3", "Well?"))).run.id == second.run.id


async def test_a_message_that_came_without_an_id_is_known_by_its_own(product: Product) -> None:
    page = await visitor(product)
    _says(product, "One.")
    await product.client.agents.messages.create(page.agent_id, input="Hello")
    with acting_for(product.project_id):
        [stored] = await page.pages.messages.newest_said(product.project_id, ThreadId(page.agent_id), 10)
    _says(product, "Two.")

    sent = await page.send((stored, "Hello"), ("m2", "And?"))

    await product.ended(sent.run.id)
    assert await page.said() == ["Hello", "And?"]


async def test_another_text_under_a_known_id_is_refused(product: Product) -> None:
    """A page that lets its user edit a message sends it again under its id, and the answer to the old text would be
    shown for the new one."""
    page = await visitor(product)
    _says(product, "One.")
    await product.ended((await page.send(("m1", "Hello"))).run.id)
    with pytest.raises(NameTaken, match="the message id 'm1'"):
        await page.send(("m1", "Good bye"))


async def test_what_has_nothing_new_is_refused(product: Product) -> None:
    page = await visitor(product)
    with pytest.raises(Exception, match="nothing is new") as refused:
        await page.send()
    assert getattr(refused.value, "status_code", None) == 422


async def test_a_key_of_single_agents_changes_nothing_of_the_agent(product: Product) -> None:
    """It may be in anybody's browser, and a page's tools went in the place of the agent's own."""
    tool = await product.tool(LAUNCH)
    page = Visitor(product, AgentId((await product.agent(tools=[tool])).id))
    page.fields["headers"] = SubmissionHeaders(of_single_agents=True)
    own = replace(SENSOR, name="launch")
    refused: list[dict[str, Any]] = [
        {"added_system": "Obey."},
        {"override_model": "x/y"},
        {"max_steps": 51},
        {"client_tools": [own]},
    ]
    for fields in refused:
        with pytest.raises(Exception, match="FORBIDDEN"):
            await page.send(("m1", "Hello"), **fields)
    _says(product, "Yes.")
    assert (await page.send(("m1", "Hello"), client_tools=[SENSOR])).is_new


# Answers to calls that wait.


async def test_new_input_waits_for_the_answers_to_calls(product: Product) -> None:
    page, asked = await parked(product)
    with refuses(RefusalCode.PENDING_APPROVAL, *asked.ids):
        await page.send(("m1", "Hello?"))


async def test_an_approval_continues_the_run_and_the_same_again_gives_the_same_continuation(product: Product) -> None:
    page, asked = await parked(product)
    _says(product, "Launched.")
    approval = PageAnswer(call=asked.ids[0], approve=True)

    first = await page.answer(approval)
    at_once = await page.answer(PageAnswer(call="call_0", approve=True))
    await product.ended(first.run.id)
    later = await page.answer(approval)

    assert (first.is_new, at_once.is_new, later.is_new) == (True, False, False)
    assert first.run.continues == asked.run_id
    assert {at_once.run.id, later.run.id} == {first.run.id}
    assert len(await asked.continuations()) == 1
    with refuses(RefusalCode.NO_PENDING_APPROVAL, asked.ids[0]):
        await page.answer(PageAnswer(call=asked.ids[0], approve=False))
    with refuses(RefusalCode.NO_PENDING_APPROVAL, asked.ids[0]):
        await page.answer(PageAnswer(call=asked.ids[0], approve=True, edited_arguments={"target": "mars"}))


async def test_answers_cover_every_call_or_none_is_stored(product: Product) -> None:
    page, asked = await parked(product, "moon", "mars")
    with refuses(RefusalCode.INCOMPLETE_RESUME, asked.ids[1]):
        await page.answer(PageAnswer(call=asked.ids[0], approve=True))
    with refuses(RefusalCode.UNKNOWN_INTERRUPT, "call_7"):
        await page.answer(*(PageAnswer(call=one, approve=True) for one in (*asked.ids, "call_7")))
    _says(product, "Done.")

    sent = await page.answer(
        PageAnswer(call=asked.ids[0], approve=True, edited_arguments={"target": "venus"}),
        PageAnswer(call="call_1", cancelled=True),
        said=[("m2", "Go on.")],
    )

    await product.ended(sent.run.id)
    results = sorted(await asked.results())
    assert "cancelled by the user" in results[0]
    assert "venus" in results[1]
    assert (await page.said())[-1] == "Go on."


async def test_a_call_that_another_has_decided_needs_no_answer_and_takes_the_same_one(product: Product) -> None:
    page, asked = await parked(product, "moon", "mars")
    assert (await asked.decide(0, "approve", decided_by="ada"))[0] == 200
    _says(product, "Done.")
    with refuses(RefusalCode.NO_PENDING_APPROVAL, asked.ids[0]):
        await page.answer(*(PageAnswer(call=one, approve=False) for one in asked.ids))

    sent = await page.answer(*(PageAnswer(call=one, approve=True) for one in asked.ids))

    assert sent.run.continues == asked.run_id


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"result": "done"},
        {"approve": True, "edited_arguments": {"goal": "mars"}},
        {"approve": False, "edited_arguments": {"target": "mars"}},
    ],
)
async def test_an_answer_that_does_not_fit_its_call_is_refused(product: Product, answer: dict[str, Any]) -> None:
    page, asked = await parked(product)
    with refuses(RefusalCode.BAD_PAYLOAD, asked.ids[0]):
        await page.answer(PageAnswer(call=asked.ids[0], **answer))


async def test_nothing_waits_in_a_new_conversation_nor_after_a_cancel(product: Product) -> None:
    page, asked = await parked(product)
    with refuses(RefusalCode.NO_PENDING_APPROVAL, "x"):
        await page.answer(PageAnswer(call="x", approve=True), name="new")
    await page.stop()
    with refuses(RefusalCode.NO_PENDING_APPROVAL, asked.ids[0]):
        await page.answer(PageAnswer(call=asked.ids[0], approve=True))


async def test_what_nobody_decided_in_time_can_only_be_cancelled(product: Product) -> None:
    page, asked = await parked(product)
    await _expire(product, asked)
    with refuses(RefusalCode.NO_PENDING_APPROVAL, asked.ids[0]):
        await page.answer(PageAnswer(call=asked.ids[0], approve=True))
    _says(product, "Then not.")

    sent = await page.answer(PageAnswer(call=asked.ids[0], cancelled=True))

    await product.ended(sent.run.id)
    assert "cancelled by the user" in (await asked.results())[0]


async def _expire(product: Product, asked: WaitingCalls) -> None:
    """Makes the calls late, with a rule that leaves them open."""
    with acting_for(product.project_id):
        async with product.context.database.write() as connection:
            late = sa.update(approvals).where(approvals.c.id.in_(asked.ids))
            await connection.execute(late.values(expires_at=product.context.clock.now(), on_expiry="keep"))


async def test_a_page_brings_the_result_of_its_own_tool(product: Product) -> None:
    page = await visitor(product, client_tools=[SENSOR])
    product.models.play(Turn(calls=[Call("sensor", id="call_s")]))
    asking = (await page.send(("m1", "How warm?"))).run
    waiting = partial(page.pages.decisions.waiting, product.project_id, (await page.thread()).id or ThreadId(""))
    with acting_for(product.project_id):
        await wait_until(waiting, description="the call to wait")
        [asked] = await waiting()
    with refuses(RefusalCode.BAD_PAYLOAD, asked.id):
        await page.answer(PageAnswer(call="call_s", approve=True))
    _says(product, "Warm.")
    result = PageAnswer(call="call_s", result='{"degrees": 21}')

    sent = await page.answer(result)
    await product.ended(sent.run.id)

    assert sent.run.continues == asking.id
    assert (await page.answer(result)).run.id == sent.run.id
    _says(product, "Yes.")
    after = await page.send(("m2", "Thanks"))
    assert after.is_new


# Stopping.


async def test_a_queued_run_is_stopped_by_its_name_and_the_one_at_work_without_one(product: Product) -> None:
    page = await visitor(product)
    product.models.play(Turn(text="Once upon a time", silent_after=2))
    first = await page.send(("m1", "Tell"), run_name="r1")
    second = await page.send(("m2", "And then?"), run_name="r2")

    stopped = await page.stop("r2")
    assert (stopped.id, stopped.status) == (second.run.id, RunStatus.CANCELLED)
    with pytest.raises(NothingToCancel):
        await page.stop("r2")
    stopped = await page.stop()

    assert (stopped.id, stopped.status) == (first.run.id, RunStatus.CANCELLED)
    with pytest.raises(NothingToCancel):
        await page.stop()
    with pytest.raises(NothingToCancel):
        await page.stop(name="never made")


async def test_a_run_that_waits_for_answers_is_stopped(product: Product) -> None:
    page, asked = await parked(product)
    stopped = await page.stop(asked.run_id)
    assert (stopped.id, stopped.status) == (asked.run_id, RunStatus.CANCELLED)


# Streams.


@dataclass
class Lines:
    """Renders a thread as lines, and counts the words of each leg, so that it has to see a leg from its beginning."""

    after: ThreadCursor = BEGINNING
    wants_history: bool = False
    wants_input: bool = True
    words: int = 0
    views: dict[ThreadCursor, "LegLines"] = field(default_factory=dict[ThreadCursor, "LegLines"])

    def starts_at(self, after: ThreadCursor) -> ThreadCursor:
        self.after = after
        return after._replace(number=0)

    def of_log(self, leg: Leg) -> Projection:
        return self.views.setdefault(ThreadCursor(leg.turn, leg.number), LegLines(self, leg))

    def began(self, leg: Leg, beginning: LegInput) -> bytes:
        self.words = 0
        given = [str(one.body.content) for one in beginning.given if isinstance(one.body, UserMessage)]
        before = [_kind(one) for one in beginning.before]
        return self.line(ThreadCursor(leg.turn, leg.number, 1), f"began {given} {len(beginning.decided)} {before}")

    def ended(self, leg: Leg, seq: Seq, at: int, asked: Sequence[Approval]) -> bytes:
        del at
        return self.line(ThreadCursor(leg.turn, leg.number, seq), f"ended {self.words} {len(asked)}")

    def resolved(self, leg: Leg, seq: Seq, asked: Sequence[Approval]) -> bytes:
        return self.line(ThreadCursor(leg.turn, leg.number, seq), f"resolved {len(asked)}")

    def caught_up(self, cursor: ThreadCursor, present: Present) -> bytes:
        del cursor, present
        return b""

    def over(self) -> bytes:
        return b"over\n"

    def line(self, cursor: ThreadCursor, text: str) -> bytes:
        return f"{cursor} {text}\n".encode() if cursor > self.after else b""


def _kind(message: Message) -> str:
    return type(message.body).__name__


@dataclass
class LegLines:
    """Numbers the words of a leg."""

    lines: Lines
    leg: Leg
    shared_as: None = None
    cut: None = None
    longest_silence_s: float = 3600.0

    def of(self, entries: Entries) -> tuple[bytes, bool]:
        shown: list[bytes] = []
        for seq, entry in entries:
            event = decode(entry)
            if isinstance(event, TextChunk):
                self.lines.words += 1
                place = ThreadCursor(self.leg.turn, self.leg.number, seq)
                shown.append(self.lines.line(place, f"{self.lines.words} {event.text.strip()}"))
        return b"".join(shown), False

    def silence(self, last: Seq, now: Any) -> bytes:
        del last, now
        return b""

    def end_of(self, last: Seq) -> bytes:
        del last
        return b""


async def _lines(product: Product, batches: AsyncGenerator[bytes]) -> list[str]:
    with acting_for(product.project_id):
        return b"".join([body async for body in batches]).decode().splitlines()


def _texts(lines: Sequence[str]) -> list[str]:
    return [line.partition(" ")[2] or line for line in lines]


async def test_the_sender_reads_its_leg_from_the_queue_to_its_end(product: Product) -> None:
    page, asked = await parked(product)
    streams = product.services.dialects.thread_streams
    _says(product, "It is up.")
    run = (await page.answer(PageAnswer(call=asked.ids[0], approve=True))).run
    thread = (await page.thread()).streamed
    assert thread is not None

    live = await _lines(product, streams.leg_batches(thread, run, Lines(wants_history=True)))
    later = await _lines(product, streams.leg_batches(thread, run, Lines(wants_history=True)))

    assert live == later
    before = "['UserMessage', 'AssistantMessage']"
    assert _texts(live) == [f"began [] 1 {before}", "1 It", "2 is", "3 up.", "ended 3 0", "over"]


async def test_a_reader_with_state_gets_the_same_tail_from_every_cursor(product: Product) -> None:
    page, asked = await parked(product)
    streams = product.services.dialects.thread_streams
    _says(product, "It is up.", "Fine.")
    await product.ended((await page.answer(PageAnswer(call=asked.ids[0], approve=True))).run.id)
    await product.ended((await page.send(("m9", "How are you?"))).run.id)
    thread = (await page.thread()).streamed
    assert thread is not None

    whole = await _lines(product, streams.batches(thread, ThreadCursor(), Lines(), follow=False))
    first = await _lines(product, streams.turn_batches(thread, 1, ThreadCursor(1), Lines()))

    assert [text.split()[0] for text in _texts(whole)] == [
        *("began", "ended", "resolved", "began", "1", "2", "3", "ended", "began", "1", "ended", "over")
    ]
    assert first == [*whole[:8], "over"]
    for number, line in enumerate(whole[:-1], start=1):
        cursor = ThreadCursor(*map(int, line.split()[0].split(".")))
        tail = await _lines(product, streams.batches(thread, cursor, Lines(), follow=False))
        assert tail == whole[number:], cursor
    assert await _newest(product, page) == ThreadCursor(2, 0, 0)


async def test_a_turn_ends_when_it_waits_although_others_are_queued(product: Product) -> None:
    page = await visitor(product)
    seen = asyncio.Event()
    product.models.play(Turn(text="Once upon a time", silent_after=2, resume=seen))
    first = (await page.send(("m1", "Tell"))).run
    product.models.play(Turn(text="More", silent_after=0))
    second = (await page.send(("m2", "And then?"))).run
    thread, streams = (await page.thread()).streamed, product.services.dialects.thread_streams
    assert thread is not None
    await wait_until(lambda: _newest(product, page), description="the first run to begin")
    with acting_for(product.project_id):
        assert await streams.is_at_work(thread)
    seen.set()

    shown = await _lines(product, streams.turn_batches(thread, 1, ThreadCursor(1), Lines()))

    assert _texts(shown)[-2:] == ["ended 4 0", "over"]
    assert first.id != second.id
    await page.stop()
    with acting_for(product.project_id):
        assert not await streams.is_at_work(thread)


async def test_a_run_that_is_stopped_in_the_queue_ends_its_senders_stream(product: Product) -> None:
    page = await visitor(product)
    product.models.play(Turn(text="Once upon a time", silent_after=2))
    await page.send(("m1", "Tell"))
    run = (await page.send(("m2", "And then?"))).run
    thread, streams = (await page.thread()).streamed, product.services.dialects.thread_streams
    assert thread is not None
    reading = asyncio.create_task(_lines(product, streams.leg_batches(thread, run, Lines())))

    await page.stop(run.id)

    shown = await reading
    assert [text.split()[0] for text in _texts(shown)] == ["began", "ended", "over"]
    await page.stop()


async def _newest(product: Product, page: Visitor) -> ThreadCursor | None:
    thread = (await page.thread()).streamed
    assert thread is not None
    with acting_for(product.project_id):
        return await product.services.dialects.thread_streams.newest_turn(thread)
