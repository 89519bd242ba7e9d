"""Follows runs for somebody at a terminal, or for a script: to their end, through decisions, until Ctrl-C."""

from cli.client.decisions import continuation_of, decide_in_place, is_decided
from cli.client.run_stream import RunStream
from cli.client.server import Record, Server
from cli.client.terminal import console, hint, is_interactive, print_json
from cli.client.transcript import Transcript
from cli.exit_statuses import FAILURE, INTERRUPTED, OK, RUN_CANCELLED, RUN_FAILED, WAITS_FOR_APPROVAL
from shared.domain.errors import HoldfastError

CANCEL_REASON = "cancelled at the command line"


class Follower:
    """Shows runs as they go on, and does what the person asks for meanwhile."""

    def __init__(self, server: Server, *, as_json: bool = False) -> None:
        self._server = server
        self._as_json = as_json
        self._may_ask = is_interactive() and not as_json
        self._transcript = Transcript(console())

    def follow(self, run_id: str, after: int = 0) -> Record | None:
        """The run as it has ended, or, where decisions were made in place, its last continuation. None: the person has
        left it, and it goes on."""
        while True:
            run = self._to_its_end(RunStream(self._server, run_id, after))
            if run is None or not waits(run):
                break
            if is_decided(self._server, run):
                run = self._decided(run)
                break
            if not self._may_ask:
                break
            continuation = decide_in_place(self._server, run)
            if continuation is None:
                break
            run_id, after = continuation, 0
        if run is not None and self._as_json:
            print_json(run)
        elif run is not None:
            self._say_how_it_ended(run)
        return run

    def _decided(self, run: Record) -> Record:
        """The run with `continued_by`, the run that goes on, if one does. On the wire it waits for ever."""
        continuation = continuation_of(self._server, run)
        if continuation is not None:
            hint(f"[it was decided, and goes on: holdfast runs watch {continuation}]")
        return {**run, "continued_by": continuation}

    def _to_its_end(self, stream: RunStream) -> Record | None:
        while True:
            try:
                for frame in stream.frames():
                    self._show(frame)
                self._transcript.end()
                found: Record = self._server.get(f"/v1/runs/{stream.run_id}")
            except KeyboardInterrupt:
                self._transcript.end()
                if not self._cancels(stream.run_id):
                    say_how_to_come_back(stream.run_id, stream.after)
                    return None
            else:
                return found

    def _show(self, frame: Record) -> None:
        if self._as_json:
            print_json(frame)
        else:
            self._transcript.show(frame)

    def _cancels(self, run_id: str) -> bool:
        """Whether the person wants the run to be cancelled, and it was asked for. Another Ctrl-C detaches."""
        if not self._may_ask:
            return False
        try:
            answer = input("\n[d]etach and let the run go on, or [c]ancel it? [d] ")
            if not answer.strip().lower().startswith("c"):
                return False
            self._server.post(f"/v1/runs/{run_id}/cancel", {"reason": CANCEL_REASON})
        except (KeyboardInterrupt, EOFError):
            return False
        except HoldfastError as error:
            hint(f"[it was not cancelled: {error.message}]")
            return False
        return True

    def _say_how_it_ended(self, run: Record) -> None:
        run_id = run["id"]
        match status_of(run):
            case 0:
                pass
            case 5:
                hint(f"[{run_id} waits for a decision: holdfast approvals list; holdfast approvals decide ID approve]")
            case _:
                how = dict.fromkeys((run["status"], str(run.get("stop_reason"))))
                hint(f"[{run_id}: {', '.join(how)}]")


def waits(run: Record) -> bool:
    """Whether the run waits for a decision; the wire calls it completed, and says the same when it was decided."""
    return run.get("stop_reason") == "requires_approval" and "continued_by" not in run


def status_of(run: Record | None) -> int:
    """The exit status of a command that has followed this run; None: it was left."""
    if run is None:
        return INTERRUPTED
    if waits(run):
        return WAITS_FOR_APPROVAL
    return {"completed": OK, "failed": RUN_FAILED, "cancelled": RUN_CANCELLED}.get(run["status"], FAILURE)


def say_how_to_come_back(run_id: str, after: int = 0) -> None:
    """Tells the person how to go on with a run."""
    place = f" --starting-after {after}" if after else ""
    hint(f"[the run goes on: holdfast runs watch {run_id}{place}; to end it: holdfast runs cancel {run_id}]")
