"""Which model providers a process with this environment can ask; and, on request, whether they answer."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from cli.operator.findings import Finding, doubtful, good, wrong
from shared.clock import SystemClock
from shared.domain.errors import ModelError
from shared.domain.ids import AgentId, IdMaker, ThreadId
from shared.domain.messages import Message, UserMessage
from shared.domain.model_catalog import MODELS
from shared.domain.model_providers import BUILTIN, PROVIDERS
from shared.network.checked_http import NetworkRules
from shared.process.settings import Settings
from worker.models.provider import ModelCall
from worker.models.registry import Models


async def model_findings(settings: Settings, environment: Mapping[str, str], *, call: bool) -> AsyncGenerator[Finding]:
    """A finding for each provider that is set up. `call`: ask one model of each."""
    names = [name for name, one in PROVIDERS.items() if name != BUILTIN and one.is_configured(environment)]
    if not names and not settings.builtin_models:
        fix = "give the workers the key of a provider, such as OPENAI_API_KEY; docs/models.md lists all variables"
        yield doubtful("models", "no provider is set up here", fix)
    models = Models(
        environment,
        first_event_timeout=settings.first_event_timeout,
        idle_timeout=settings.idle_timeout,
        retries=0,
        network=NetworkRules.of(settings.reachable_networks, settings.ca_file),
    )
    try:
        for name in names:
            yield await _finding(models, name, call=call)
    finally:
        await models.aclose()


async def _finding(models: Models, provider: str, *, call: bool) -> Finding:
    subject = f"models of {provider}"
    if not call:
        return good(subject, "has what it needs to be asked; --call asks it")
    handle = next((model.handle for model in MODELS if model.provider == provider), None)
    if handle is None:
        return doubtful(subject, "is set up, and no model of it is known here", "try one with `holdfast agents create`")
    try:
        await _ask(models, handle)
    except ModelError as error:
        return wrong(subject, f"{handle} does not answer: {error.message}", "docs/models.md has its variables")
    return good(subject, f"{handle} answers")


async def _ask(models: Models, handle: str) -> None:
    """Asks for a word. Raises `ModelError`."""
    question = Message(
        id=IdMaker().message(),
        agent_id=AgentId(""),
        thread_id=ThreadId(""),
        conversation_id=None,
        run_id=None,
        step_id=None,
        created_at=SystemClock().now(),
        body=UserMessage("Say the word ready."),
    )
    call = ModelCall(handle=handle, system="Answer with one word.", history=[question])
    async with aclosing(models.stream(call)) as events:
        async for _ in events:
            pass
