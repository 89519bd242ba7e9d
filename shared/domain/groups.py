"""Sleep-time groups: an agent, the sleep-time agents that think about its turns in the background, and their schedule.

They share the agent's memory blocks. A sleep-time agent gets a transcript of the agent's messages since the last time,
in a run of its own, and edits the blocks with its memory tools. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from shared.domain.agents import Agent, Block
from shared.domain.errors import InvalidRequest
from shared.domain.ids import AgentId, GroupId, MessageId, ProjectId, RunId, ThreadId
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    ContentPart,
    Message,
    MessageBody,
    TextContent,
    ToolReturns,
    UserMessage,
)

SLEEPTIME: Literal["sleeptime"] = "sleeptime"
"""The type of a group's manager. There is no other kind of group."""
SLEEPTIME_AGENT = "sleeptime_agent"
"""The type of an agent that thinks while another one sleeps."""
ENABLED = "enable_sleeptime"
"""Key of `Agent.extra`: whether sleep-time agents think about the agent's turns."""
RUN_TYPE = "sleeptime_agent_send_message_async"
"""The type of a sleep-time agent's run, as clients see it."""

DEFAULT_FREQUENCY = 5
MOST_TURNS = 1000
"""The largest frequency, and so the most turns in one transcript."""
MOST_SLEEPERS = 10
"""The most sleep-time agents of one group."""
BEFORE_FIRST = -1
"""The counter of a group that has counted no turn: the first turn starts its sleep-time agents."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A sleep-time group, as stored."""

    id: GroupId
    project_id: ProjectId
    manager_agent_id: AgentId
    """The agent about whose turns the sleep-time agents think. It manages one group at most."""
    agent_ids: list[AgentId] = []
    """The sleep-time agents, in the order in which they start."""
    description: str = ""
    frequency: int | None = DEFAULT_FREQUENCY
    """The sleep-time agents start after every n-th turn; None: after every turn; 0: never."""
    turns_counter: int | None = None
    """The number of the last turn that was counted, modulo `frequency`; at 0 the agents start. None: turns are not
    counted."""
    last_message_id: MessageId | None = None
    """The last message in their newest transcript."""
    is_on: bool = True
    """False: the sleep-time agents do not start."""
    hidden: bool | None = None
    created_at: datetime
    updated_at: datetime


def first_counter(frequency: int | None) -> int | None:
    """The counter of a new group."""
    return BEFORE_FIRST if frequency else None


def refuse_group(group: Group) -> None:
    """Raises `InvalidRequest` for a group that could not work with any agents."""
    if group.manager_agent_id in group.agent_ids:
        raise InvalidRequest(
            f"agent_ids: agent {group.manager_agent_id} manages the group, so it cannot be one of its agents",
            field="agent_ids",
        )
    if len(group.agent_ids) > MOST_SLEEPERS:
        raise InvalidRequest(f"agent_ids: a group has {MOST_SLEEPERS} agents at most", field="agent_ids")


class Counted(NamedTuple):
    """A group's counter after a turn, and whether the turn starts its sleep-time agents."""

    counter: int | None
    is_due: bool


def count_turn(frequency: int | None, counter: int | None) -> Counted:
    """Counts one turn."""
    if frequency is None:
        return Counted(counter, is_due=True)
    if frequency == 0:
        return Counted(counter, is_due=False)
    now = ((BEFORE_FIRST if counter is None else counter) + 1) % frequency
    return Counted(now, is_due=now == 0)


class Sleeper(NamedTuple):
    """A sleep-time agent to be created for an agent, and the block, message and group to be created with it."""

    agent: Agent
    """It has no blocks yet: it gets its agent's, and `persona`."""
    persona: Block
    system_message_id: MessageId
    group: Group


def with_group_flag(agent: Agent, *, is_on: bool | None) -> Agent:
    """The agent with `ENABLED` set to this value."""
    return replace(agent, extra=agent.extra | {ENABLED: is_on})


# The texts of a new sleep-time agent: its memory, its instructions, and the beginning of each transcript.


PERSONA_LABEL = "memory_persona"
PERSONA = (
    "I look after the memory of a conversation. I bring scattered notes together, keep what will matter later, notice "
    "habits and preferences, and draw careful conclusions. A later reader of the memory blocks should know "
    "everything important about the conversation."
)
PERSONA_DESCRIPTION = "How I work on the memory, and the rules that I follow there. I may refine it."

SYSTEM = """\
You keep the memory of an assistant in order. You work in the background, after the assistant has talked with its user.
Neither of them waits for you or reads your answers: what counts is what stands in the memory blocks when you stop.

The blocks below are shared with the assistant, which sees them in full before each of its answers. Each block has a
label, a description of its purpose, and a limit of characters. Blocks that are marked as read-only cannot be changed.

How to edit:
- Use memory_insert and memory_replace for small changes, and memory_rethink to write a block anew when it has become
  long, repetitive or contradictory.
- Replace what is no longer true instead of adding the opposite below it. Say a thing once, in the block where the
  assistant would look for it.
- Write dates and times in full. "Today" or "last week" means nothing to a later reader of the block.
- Line numbers may be shown to you for orientation. They are not part of a block's text.

Edit until the blocks are complete, readable and up to date; then call memory_finish_edits. If the conversation has
nothing worth remembering, call memory_finish_edits at once: not every exchange needs a note, but do not miss a fact
that the assistant will want to know.
"""

INTRODUCTION = """\
<system-reminder>
You are the sleep-time agent: you work on the memory in the background, after a conversation has taken place.

The transcript below is not a conversation with you. It took place between the primary agent, which shares your memory \
blocks, and its user:
- lines that begin with "assistant:" are the primary agent's, not yours
- lines that begin with "user:" are its user's

Read it, and use your memory tools to bring the memory blocks up to date with what is worth keeping. The block \
memory_persona says how you are to do that.
</system-reminder>

Transcript:
"""

LONGEST_LINE = 20_000
"""Characters of one message in a transcript."""
LONGEST_TRANSCRIPT = 200_000
LEFT_OUT = "[The beginning of the transcript is left out: it is too long.]"


def transcript(said: Sequence[Message]) -> str:
    """The message to a sleep-time agent: the conversation as text. The oldest parts are left out if it is too long."""
    lines, room = list[str](), LONGEST_TRANSCRIPT
    for line in reversed([line for message in said for line in _lines(message.body)]):
        room -= len(line) + 1
        if room < 0:
            lines.append(LEFT_OUT)
            break
        lines.append(line)
    return INTRODUCTION + "\n".join(reversed(lines))


def _lines(body: MessageBody) -> Iterator[str]:
    match body:
        case UserMessage(role="user"):
            yield from (_line(body.name or "user", text) for text in _texts(body.content))
        case AssistantMessage():
            yield from _lines_of_answer(body)
        case ToolReturns():
            shown = [result for result in body.returns if not result.of_speech]
            yield from (_line("assistant", f"Tool {result.tool_name} returned: {result.text}") for result in shown)
        case ApprovalResponse():
            decided = [decision for decision in body.decisions if decision.kind == "approval"]
            yield from (_decision(approve=decision.approve, reason=decision.reason) for decision in decided)
        case _:
            pass  # instructions and summaries were not said in these turns


def _lines_of_answer(answer: AssistantMessage) -> Iterator[str]:
    if answer.reasoning is not None and answer.reasoning.text:
        yield _line("assistant", f"<thinking>{answer.reasoning.text}</thinking>")
    if answer.text:
        yield _line("assistant", answer.text)
    for call in answer.tool_calls:
        yield _line("assistant", call.speech if call.speech is not None else f"Calling tool {call.name}")


def _decision(*, approve: bool, reason: str | None) -> str:
    decided = "approved a call" if approve else "denied a call"
    return _line("user", f"[{decided}{f': {reason}' if reason else ''}]")


def _texts(content: str | list[ContentPart]) -> Iterable[str]:
    parts: list[ContentPart] = [TextContent(content)] if isinstance(content, str) else content
    return [part.text if isinstance(part, TextContent) else "[image]" for part in parts]


def _line(speaker: str, text: str) -> str:
    cut = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} [{len(text) - LONGEST_LINE} characters more]"
    return f"{speaker}: {cut}"


class EndedTurn(NamedTuple):
    """A turn of an agent that has ended, as it is stored for the agent's group."""

    agent_id: AgentId
    project_id: ProjectId
    thread_id: ThreadId
    turn: int
    cause_id: RunId | MessageId
    """The run that has ended, or the last message of a turn without a run."""
    submitted_by: str | None
    """The API key whose budget pays for what the turn starts."""
    counts: bool
    """Every n-th turn that counts starts the sleep-time agents. Other turns are only in the next transcript."""


class DueTurns(NamedTuple):
    """The turns of a group about which its sleep-time agents are to think next."""

    group: Group
    cause_id: RunId | MessageId
    """The cause of the turn that made them due."""
    submitted_by: str | None
    places: Sequence[tuple[ThreadId, int]]
    """The turns, in the order in which they ended."""

    def key(self, agent_id: AgentId) -> str:
        """The name of one agent's run for these turns."""
        return start_key(self.group.id, self.cause_id, agent_id)


def start_key(group_id: GroupId, cause_id: RunId | MessageId, agent_id: AgentId) -> str:
    """The name of the one run that a turn starts of a sleep-time agent."""
    return f"sleep:{group_id}:{cause_id}:{agent_id}"
