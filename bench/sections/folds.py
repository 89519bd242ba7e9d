"""Measures the cost of a dialect's fold: the processor time from an entry of a log to its bytes, without any I/O. A
live reader gets most entries one by one, so the fold gets them one by one."""

import time
from collections.abc import Callable

from api.ag_ui.leg_fold import Client
from api.ag_ui.service import ThreadFrames
from api.ai_sdk.answer_chunks import NEWEST_SDK
from api.ai_sdk.chats import AnswerStream
from api.letta.frames import FrameOptions, FrameStream
from api.openai.responses_service import ResponseStream
from api.runs.thread_projection import LegInput
from bench.deployments import Deployment
from bench.figures import Figure
from shared.domain.events import RunCreated, TextChunk, encode
from shared.domain.ids import Seq
from shared.domain.log_writer import Entries
from shared.domain.runs import Run, RunOptions
from shared.domain.threads import Leg
from tests.kit.runs.stored_runs import IDS, some_run

TOKENS, TIMES = 5_000, 7

Fold = Callable[[Entries], object]


def _ag_ui(run: Run) -> Fold:
    leg, frames = Leg(1, 0, run), ThreadFrames(Client("bench", is_current=True, sent=[]))
    frames.began(leg, LegInput([], []))
    return frames.of_log(leg).of


def _ai_sdk(run: Run) -> Fold:
    leg, stream = Leg(1, 0, run), AnswerStream(run, sdk=NEWEST_SDK)
    stream.began(leg, LegInput([], []))
    return stream.of_log(leg).of


FOLDS: dict[str, Callable[[Run], Fold]] = {
    "Letta": lambda run: FrameStream(run.id, FrameOptions()).of,
    "Responses": lambda run: ResponseStream(run).of,
    "AG-UI": _ag_ui,
    "AI SDK": _ai_sdk,
}
"""The folds by their dialects' names, as the first reader of a run gets them."""


async def folds(_deployment: Deployment) -> list[Figure]:
    """Measures the time per event: the fastest of several passes of each fold, in turns."""
    run = some_run(options=RunOptions(stream_tokens=True, status_events=True, item_events=True))
    log, best = _log(), dict[str, float]()
    for _ in range(TIMES):
        for name, make in FOLDS.items():
            best[name] = min(best.get(name, 1.0), _seconds(make(run), log) / len(log))
    return [Figure(f"fold, per event: {name}", seconds * 1e6, "us") for name, seconds in best.items()]


def _seconds(fold: Fold, log: Entries) -> float:
    began = time.process_time()
    for entry in log:
        fold([entry])
    return time.process_time() - began


def _log() -> Entries:
    """Returns the log of an answer in tokens, up to its last token."""
    step_id, message_id = IDS.step(), IDS.message()
    tokens = [TextChunk(at=0, step_id=step_id, message_id=message_id, text="token ") for _ in range(TOKENS)]
    return [(Seq(seq), encode(event)) for seq, event in enumerate([RunCreated(at=0), *tokens], start=1)]
