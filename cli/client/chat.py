"""`holdfast chat`: a conversation in a terminal. The server keeps all of it, so a person can leave and come back."""

from collections.abc import Callable
from typing import Annotated

import typer
from rich.text import Text

from cli.client.agents import AgentArgument, Conversation, ConversationOption, agent_of, conversation_of
from cli.client.approvals import decide_in_place
from cli.client.follow import CANCEL_REASON, cancels, say_how_to_come_back
from cli.client.live_conversation import LiveConversation, Screen
from cli.client.server import DEFAULT_URL, Server, UrlOption, server_at
from cli.client.terminal import hint, is_interactive
from cli.printable import printable
from shared.domain.errors import HoldfastError

commands = typer.Typer()

HELP = "[/cancel cancels all unfinished runs, /approvals asks for decisions again, /history shows more, /quit leaves]"
LONG_HISTORY = 200


class Chat:
    """One conversation: sends the person's messages, shows what everybody says there, asks for decisions."""

    def __init__(self, server: Server, conversation: Conversation, url: str) -> None:
        self._server = server
        self._conversation = conversation
        self.screen = Screen()
        self._live = LiveConversation(url=url, path=conversation.events, screen=self.screen)
        self._console = self.screen.console()

    def show_history(self, count: int) -> None:
        """Prints the last messages, oldest first."""
        for message in self._conversation.history(count):
            content = message.get("content")
            if isinstance(content, str):
                mark, style = ("» ", "bold") if message["message_type"] == "user_message" else ("", "")
                self._console.print(Text(printable(mark + content), style=style), soft_wrap=True)

    def begin(self, history: int) -> bool:
        """Shows the history and follows unfinished runs, then asks for decisions. False: the person left a run."""
        self._live.find_place(self._server)
        if history:
            self.show_history(history)
        present = self._live.present
        unfinished = (*filter(None, [present["running"]]), *present["queued"])
        for run_id in unfinished:
            hint(f"[{run_id} is not finished; following it]")
        # From here on a thread prints, so what was said before is there already.
        self._live.start()
        return all(self._follow(run_id) for run_id in unfinished) and self.ask()

    def ask(self) -> bool:
        """Asks for the decisions that the agent waits for. False: the person left the run that then went on."""
        waiting = self._conversation.waiting_approvals()
        if not waiting:
            return True
        self._live.tools = {waiting[0]["tool_call_id"]: waiting[0]["tool_name"]}
        run = self._server.get(f"/v1/runs/{waiting[0]['run_id']}")
        continued = decide_in_place(self._server, run, self.screen.ask)
        return continued is None or self._follow(continued)

    def say(self, text: str) -> bool:
        """Sends a message and shows the answer. False: the person left the run."""
        # The stream may show the run before the answer to the submission has named it.
        with self._live.changed:
            run_id = self._conversation.submit(text)
            self._live.own.add(run_id)
        return self._follow(run_id)

    def _follow(self, run_id: str) -> bool:
        """Returns when the run's turn is over, or waits for a decision that the person puts off. False: the person left
        the run."""
        turns = self._live.turns
        while True:
            try:
                self._live.wait_for(lambda: run_id in turns and (turns[run_id].is_over or turns[run_id].is_waiting))
            except KeyboardInterrupt:
                current = turns[run_id].run_id if run_id in turns else run_id
                if not cancels(self._server, current, self.screen.ask):
                    say_how_to_come_back(current)
                    return False
            else:
                return turns[run_id].is_over or not is_interactive() or self.ask()

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
        talk = Chat(server, conversation_of(server, found, conversation), url)
        hint(f"[{found['name']}, {found['id']}; /help]")
        goes_on = _goes_on(talk.begin, history)
        while goes_on:
            try:
                line = talk.screen.ask("» ").strip()
            except (EOFError, KeyboardInterrupt):
                break
            except UnicodeDecodeError:
                hint("[the line was not sent: it is not UTF-8]")
                continue
            goes_on = not line or _goes_on(talk.obey if line.startswith("/") else talk.say, line)


def _goes_on(act: Callable[..., bool], *given: str | int) -> bool:
    """Returns whether the conversation goes on. It shows a refusal of the server, which does not end the chat."""
    try:
        return act(*given)
    except HoldfastError as error:
        hint(f"[{error.message}]")
        return True
