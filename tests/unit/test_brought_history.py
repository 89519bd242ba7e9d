"""Messages from elsewhere become a history that every provider takes."""

from datetime import UTC, datetime

from shared.domain.ids import IdMaker
from shared.domain.messages import (
    ApprovalResponse,
    AssistantMessage,
    Decision,
    MessageBody,
    Summary,
    ToolCall,
    ToolReturns,
    UserMessage,
)
from shared.domain.settling import OUTCOME_UNKNOWN
from shared.sql.definitions.imported_agents import ImportedHistory, without_missing
from tests.kit.model_server.model_calls import returned

AT = datetime(2026, 1, 1, tzinfo=UTC)
ASKING = AssistantMessage(tool_calls=[ToolCall("c1", "add", "{}")])
WAITING = AssistantMessage(tool_calls=[ToolCall("c2", "add", "{}", needs_approval=True)])
APPROVED = ApprovalResponse([Decision("c2", approve=True)])


def placed(*bodies: MessageBody) -> list[tuple[int, MessageBody]]:
    history = ImportedHistory(IdMaker())
    for body in bodies:
        history.add(body, AT)
    return [(one.turn, one.message.body) for one in history.finish()]


def bodies(*given: MessageBody) -> list[MessageBody]:
    return [body for _, body in placed(*given)]


def test_a_turn_begins_with_what_the_user_says_and_leading_summaries_come_before_all() -> None:
    summary, late = Summary("before"), Summary("between")
    user, answer = UserMessage("a"), AssistantMessage(text="b")

    assert placed(summary, user, user, answer, late, user) == [
        (0, summary), (1, user), (1, user), (1, answer), (1, late), (2, user),
    ]  # fmt: skip
    assert placed(answer, user) == [(1, answer), (2, user)]


def test_results_stand_behind_their_calls_in_the_order_of_the_calls() -> None:
    two = AssistantMessage(tool_calls=[ToolCall("c1", "add", "{}"), ToolCall("c2", "add", "{}")])

    assert bodies(two, ToolReturns([returned("c2", "2")]), ToolReturns([returned("c1", "1"), returned("x", "?")])) == [
        two, ToolReturns([returned("c1", "1"), returned("c2", "2")]),
    ]  # fmt: skip


def test_a_result_or_a_decision_without_its_call_is_left_out() -> None:
    assert bodies(ToolReturns([returned("c1", "1")]), APPROVED, UserMessage("a")) == [UserMessage("a")]
    assert bodies(ASKING, ToolReturns([returned("c1", "1")]), ToolReturns([returned("c1", "2")]))[1:] == [
        ToolReturns([returned("c1", "2")])
    ]


def test_a_call_without_a_result_gets_one_before_the_conversation_goes_on() -> None:
    [_, closed, _] = bodies(ASKING, UserMessage("a"))
    assert isinstance(closed, ToolReturns)
    assert [(one.tool_call_id, one.text) for one in closed.returns] == [("c1", OUTCOME_UNKNOWN)]

    [_, approved, closed] = bodies(WAITING, APPROVED)
    assert approved == APPROVED
    assert isinstance(closed, ToolReturns)
    assert closed.returns[0].text == OUTCOME_UNKNOWN


def test_a_call_that_waits_is_denied_and_counted() -> None:
    history = ImportedHistory(IdMaker())
    history.add(WAITING, AT)

    [_, denial, result] = [one.message.body for one in history.finish()]

    assert history.undecided == 1
    assert isinstance(denial, ApprovalResponse)
    assert [decision.approve for decision in denial.decisions] == [False]
    assert isinstance(result, ToolReturns)
    assert result.returns[0].status == "error"


def test_an_answer_that_came_as_two_messages_is_one_again() -> None:
    results = ToolReturns([returned("c1", "1"), returned("c2", "2")])

    [answer, decided, closed] = bodies(ASKING, WAITING, APPROVED, results)

    assert isinstance(answer, AssistantMessage)
    assert answer.tool_calls == [*ASKING.tool_calls, *WAITING.tool_calls]
    assert (answer.sibling_holds, answer.sibling_id is None) == ("approvals", False)
    assert (decided, closed) == (APPROVED, results)


def test_a_call_that_left_the_context_without_its_result_gets_one_there() -> None:
    history = ImportedHistory(IdMaker())
    history.add(ASKING, AT, in_context=False)
    history.add(ToolReturns([returned("c1", "1")]), AT)
    history.add(UserMessage("a"), AT)

    kept = [(one.in_context, one.message.body) for one in history.finish()]

    assert [in_context for in_context, _ in kept] == [False, False, True]
    assert kept[-1] == (True, UserMessage("a"))


def test_rules_lose_the_tools_that_are_missing_and_go_when_nothing_is_left() -> None:
    first = {"type": "run_first", "tool_name": "gone", "prompt_template": None}
    careful = {"type": "requires_approval", "tool_name": "gone", "prompt_template": None}
    chain = {"type": "constrain_child_tools", "tool_name": "a", "children": ["b", "gone"]}
    empty = {"type": "constrain_child_tools", "tool_name": "a", "children": ["gone"]}
    cases = {"yes": "b", "no": "gone"}
    choice = {"type": "conditional", "tool_name": "a", "child_output_mapping": cases, "default_child": "gone"}
    last = {"type": "exit_loop", "tool_name": "b"}

    assert without_missing([first, careful, chain, empty, choice, last], {"a", "b"}) == [
        careful,
        {**chain, "children": ["b"]},
        {**choice, "child_output_mapping": {"yes": "b"}, "default_child": None},
        last,
    ]
