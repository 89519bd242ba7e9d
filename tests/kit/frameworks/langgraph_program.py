"""Graphs of LangGraph, as `tests.kit.frameworks.tools` asks for them. Imported in LangGraph's environment."""

from dataclasses import dataclass
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, AnyMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy, interrupt

from holdfast.agents import Run, register
from holdfast.agents.langgraph import as_tool, client_tools, idempotent, needs_approval
from tests.kit.code_agents.places import at, reach
from tests.kit.frameworks import tools

MODEL = ChatOpenAI(model="gpt-4o", api_key="none", max_retries=0, stream_usage=True)
LOOK = tool(tools.LOOK)(tools.look)
TOOLS = [LOOK, tool(tools.block), tool(tools.fail), needs_approval(tools.send)]


def graph_with(
    own_tools: list[Any], instructions: str = tools.INSTRUCTIONS, *, handles: bool = True, **options: Any
) -> Any:
    """A model and its tools."""
    model = MODEL.bind_tools(own_tools)

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([SystemMessage(instructions), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode(own_tools, handle_tool_errors=handles), **options)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    return graph.compile()


def support(run: Run) -> Any:
    """With the tools of the client, which only the run knows."""
    return graph_with([*TOOLS, *client_tools(run)])


def built() -> Any:
    reach("built")
    return graph_with(TOOLS)


EXPERT = graph_with([LOOK, needs_approval(tools.send)], tools.EXPERT)
EXPERTS = [as_tool(EXPERT, name, "Asks one who knows everything.") for name in ("ask_expert", "ask_second")]

register("support", support, version=tools.DEPLOYED)
register("built", built)
register("team", graph_with(EXPERTS))

LETTER = tool(tools.send)


class Counted(MessagesState):
    """A state of which a part is not in the messages."""

    count: int


def of_nodes(state: type[Any], *nodes: Any, **options: Any) -> Any:
    """A graph that executes the nodes one after the other."""
    graph = StateGraph(state)
    graph.add_sequence(list(nodes))
    graph.add_edge(START, nodes[0].__name__)
    return graph.compile(**options)


async def draft(state: MessagesState) -> dict[str, Any]:
    """The model's answer, unseen by readers."""
    return {"messages": [await MODEL.with_config(tags=["nostream"]).ainvoke(state["messages"])]}


async def review(state: MessagesState) -> dict[str, Any]:
    """Interrupts the graph with the draft."""
    answer = interrupt({"draft": state["messages"][-1].content})
    return {"messages": [AIMessage(f"reviewed: {answer}")]}


async def count(state: Counted) -> dict[str, Any]:
    """Counts the runs of the thread."""
    made = state.get("count", 0) + 1
    return {"count": made, "messages": [AIMessage(f"run {made}")]}


async def stream(state: MessagesState) -> dict[str, Any]:
    """Asks the model past the journal."""
    async for chunk in MODEL.astream(state["messages"]):
        reach(f"chunk {chunk.content}")
    return {}


async def call_by_hand(state: MessagesState) -> dict[str, Any]:
    """Calls a tool past the journal."""
    return {"messages": [AIMessage(await LOOK.ainvoke({"what": "otters"}))]}


async def stand_still(state: MessagesState) -> dict[str, Any]:
    """Blocks the loop that its own answer needs."""
    return {"messages": [MODEL.invoke(state["messages"])]}


async def write_data(_state: MessagesState) -> Any:
    """Gives its stream writer what readers can be shown, and what they cannot."""
    write = get_stream_writer()
    for value in ({"done": 1}, object(), "all"):
        write(value)
    return {"messages": [AIMessage("written")]}


async def step_by_hand(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    """Uses the run."""
    run: Run = config["configurable"]["run"]
    return {"messages": [AIMessage(await run.tool("look", tools.look, "otters"))]}


def ask_left(state: MessagesState) -> dict[str, Any]:
    """A node in a thread."""
    return {"messages": [MODEL.invoke("left")]}


def ask_right(state: MessagesState) -> dict[str, Any]:
    """Beside it."""
    return {"messages": [MODEL.invoke("right")]}


async def wait(state: MessagesState) -> dict[str, Any]:
    """Behind both."""
    await at("behind both")
    return {"messages": [AIMessage(" ".join(sorted(one.content for one in state["messages"][-2:])))]}


def side_by_side() -> Any:
    """Two nodes in threads, and one behind them."""
    graph = StateGraph(MessagesState)
    for node in (ask_left, ask_right, wait):
        graph.add_node(node)
    for node in ("ask_left", "ask_right"):
        graph.add_edge(START, node)
        graph.add_edge(node, "wait")
    return graph.compile()


@tool
async def ask_human(question: str) -> str:
    """Asks a human."""
    reach(f"asks {question}")
    return f"the human says {interrupt({'question': question})['answer']}"


@tool
async def hand_over(to: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Hands the conversation over."""
    await at(f"hands over to {to}")
    return Command(
        goto=to,
        update={"messages": [ToolMessage("You are an expert now.", tool_call_id=tool_call_id)]},
    )


async def expert(state: MessagesState) -> dict[str, Any]:
    """To whom the conversation is handed over."""
    await at("expert")
    return {"messages": [await MODEL.ainvoke(state["messages"])]}


def handing_over() -> Any:
    """A graph in which a tool says what comes next."""

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await MODEL.bind_tools([hand_over]).ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    for node in (ask, expert):
        graph.add_node(node)
    graph.add_node("tools", ToolNode([hand_over]))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    return graph.compile()


_FAILED: list[str] = []


@tool
async def try_twice(what: str) -> str:
    """Fails the first time."""
    reach(f"tries {what}")
    if not _FAILED:
        _FAILED.append(what)
        raise ConnectionError("there is no line")
    return f"found {what}"


@dataclass
class Asked:
    """A state that is no dictionary."""

    messages: Annotated[list[AnyMessage], add_messages]


def of_dataclass() -> Any:
    """A graph with such a state."""

    async def ask(state: Asked) -> dict[str, Any]:
        return {"messages": [await MODEL.bind_tools([LOOK]).ainvoke(state.messages)]}

    graph = StateGraph(Asked)
    graph.add_node(ask)
    graph.add_node("tools", ToolNode([LOOK]))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    return graph.compile()


AGAIN = RetryPolicy(max_attempts=2, initial_interval=0.01, retry_on=Exception)


def trying_again() -> Any:
    """A node that is executed again when its model fails."""

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await MODEL.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node(ask, retry_policy=AGAIN)
    graph.add_node(expert)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "expert")
    return graph.compile()


register("trying", trying_again())
register("twice", graph_with([try_twice, LOOK], handles=False, retry_policy=AGAIN))
register("again", graph_with([idempotent(LOOK)]))
register("dataclass", of_dataclass())
register("created", create_agent(MODEL, [LOOK, needs_approval(tools.send)], system_prompt=tools.INSTRUCTIONS))
register(
    "careful",
    create_agent(MODEL, [LOOK, LETTER, ask_human], middleware=[HumanInTheLoopMiddleware(interrupt_on={"send": True})]),
)
register("asking", graph_with([ask_human, LOOK]))
register("reviewed", of_nodes(MessagesState, draft, review))
register("advised", graph_with([as_tool(of_nodes(MessagesState, draft, review), "ask_expert", "Asks a careful one.")]))
register("counting", of_nodes(Counted, count, checkpointer=InMemorySaver()))
register("streaming", of_nodes(MessagesState, stream))
register("by_hand", of_nodes(MessagesState, call_by_hand))
register("still", of_nodes(MessagesState, stand_still))
register("stepping", of_nodes(MessagesState, step_by_hand))
register("writing", of_nodes(MessagesState, write_data))
register("beside", side_by_side())
register("handing", handing_over())
register("nested", StateGraph(MessagesState).add_node("inner", graph_with([LOOK])).add_edge(START, "inner").compile())
