"""`holdfast chat`: a conversation in a terminal. The server keeps all of it, so a person can leave and come back."""

from collections.abc import Callable
from typing import Annotated

import typer
from rich.text import Text

from cli.client.agents import AgentArgument, Conversation, ConversationOption, agent_of, conversation_of
from cli.client.approvals import decide_in_place
from cli.client.follow import CANCEL_REASON, Follower
from cli.client.server import DEFAULT_URL, Server, UrlOption, server_at
from cli.client.terminal import console, hint
from cli.printable import printable
from shared.domain.errors import HoldfastError

commands = typer.Typer()

HELP = "[/cancel cancels all unfinished runs, /approvals asks for decisions again, /history shows more, /quit leaves]"
LONG_HISTORY = 200


class Chat:
    """One conversation: sends the person's messages, shows answers, asks for decisions."""

    def __init__(self, server: Server, conversation: Conversation) -> None:
        self._server = server
        self._conversation = conversation
        self._follower = Follower(server)
        self._console = console()

    def show_history(self, count: int) -> None:
        """Prints the last messages, oldest first."""
        for message in self._conversation.history(count):
            content = message.get("content")
            if isinstance(content, str):
                mark, style = ("» ", "bold") if message["message_type"] == "user_message" else ("", "")
                self._console.print(Text(printable(mark + content), style=style), soft_wrap=True)

    def go_on(self) -> bool:
        """Follows unfinished runs, then asks for decisions. False: the person left a run."""
        for run in self._conversation.active_runs():
            hint(f"[{run['id']} is not finished; following it]")
            if self._follower.follow(run["id"]) is None:
                return False
        return self.ask()

    def ask(self) -> bool:
        """Asks for the decisions that the agent waits for. False: the person left the run that then went on."""
        waiting = self._conversation.waiting_approvals()
        if not waiting:
            return True
        continued = decide_in_place(self._server, self._server.get(f"/v1/runs/{waiting[0]['run_id']}"))
        return continued is None or self._follower.follow(continued) is not None

    def say(self, text: str) -> bool:
        """Sends a message and shows the answer. False: the person left the run."""
        return self._follower.follow(self._conversation.submit(text)) is not None

    def obey(self, command: str) -> bool:
        """Executes a line that begins with a slash. False: the chat ends."""
        match command:
            case "/quit" | "/exit":
                return False
            case "/cancel":
                for run_id, status in self._conversation.cancel(CANCEL_REASON).items():
                    hint(f"[{run_id}: {status}]")
            case "/approvals":
                return self.ask()
            case "/history":
                self.show_history(LONG_HISTORY)
            case _:
                hint(HELP)
        return True


@commands.command(epilog="Example: holdfast chat first")
def chat(
    agent: AgentArgument,
    history: Annotated[int, typer.Option(min=0, max=1000, metavar="N", help="Show the last N messages.")] = 10,
    conversation: ConversationOption = None,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Talk with an agent. Ctrl-C asks whether to cancel an answer or to leave it; /quit leaves.

    It shows an answer in progress from its beginning, and asks for decisions that the agent waits for."""
    with server_at(url) as server:
        found = agent_of(server, agent)
        talk = Chat(server, conversation_of(server, found, conversation))
        hint(f"[{found['name']}, {found['id']}; /help]")
        if history:
            talk.show_history(history)
        goes_on = _goes_on(talk.go_on)
        while goes_on:
            try:
                line = input("» ").strip()
            except (EOFError, KeyboardInterrupt):
                break
            except UnicodeDecodeError:
                hint("[the line was not sent: it is not UTF-8]")
                continue
            goes_on = not line or _goes_on(talk.obey if line.startswith("/") else talk.say, line)


def _goes_on(act: Callable[..., bool], *given: str) -> bool:
    """Returns whether the conversation goes on. It shows a refusal of the server, which does not end the chat."""
    try:
        return act(*given)
    except HoldfastError as error:
        hint(f"[{error.message}]")
        return True
