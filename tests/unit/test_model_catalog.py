"""Handles, windows, and which providers are configured."""

from typing import Any, cast

import pytest

from api.offered_models import CodeAgentNames, OfferedModels
from shared.domain.models import MODELS, PROVIDERS, context_window_of, family_of, split_handle
from shared.network.server_models import FoundModels


@pytest.mark.parametrize(
    ("handle", "window"),
    [
        ("builtin/echo", 32_000),
        ("openai/gpt-4o-mini", 128_000),
        ("openai/gpt-5-mini", 272_000),
        ("anthropic/claude-sonnet-4-5", 200_000),
        ("openrouter/anthropic/claude-sonnet-4-5", 200_000),
        ("google_ai/gemini-2.5-pro", 1_048_576),
        ("vllm/something-new", 128_000),
        ("openrouter/openai/o100", 128_000),
    ],
)
def test_windows(handle: str, window: int) -> None:
    assert context_window_of(handle) == window


@pytest.mark.parametrize(
    ("handle", "thinks", "responses", "temperature", "parallel"),
    [
        ("openai/gpt-4o-mini", False, False, True, True),
        ("openai/gpt-5.1-codex", True, True, False, True),
        ("openrouter/openai/o3-mini:free", True, True, False, False),
        ("openai/o100", True, False, True, True),
        ("anthropic/claude-3-7-sonnet-20250219", True, False, True, True),
        ("anthropic/claude-3-5-sonnet-20240620", False, False, True, True),
        ("google_ai/gemini-2.0-flash", False, False, True, True),
        ("vllm/something-new", True, False, True, True),
        ("vllm/slow", True, False, True, True),
        ("builtin/slow", False, False, True, True),
        ("builtin/scripted", True, False, True, True),
    ],
)
def test_what_a_name_tells(handle: str, thinks: bool, responses: bool, temperature: bool, parallel: bool) -> None:
    family = family_of(handle)
    assert (family.can_think, family.uses_responses) == (thinks, responses)
    assert (family.takes_temperature, family.takes_parallel_tool_calls) == (temperature, parallel)


def test_every_known_model_belongs_to_a_family() -> None:
    assert [model.handle for model in MODELS if not model.family.pattern] == []


def test_a_handle_is_split_at_the_first_slash() -> None:
    assert split_handle("openrouter/meta-llama/llama-3") == ("openrouter", "meta-llama/llama-3")
    for handle in ("gpt-4o", "acme/giant", "openai/", ""):
        with pytest.raises(ValueError, match="providers are builtin"):
            split_handle(handle)


def test_a_provider_is_configured_by_its_key_or_by_its_address() -> None:
    def configured(environment: dict[str, str]) -> set[str]:
        return {name for name, provider in PROVIDERS.items() if provider.is_configured(environment)}

    assert configured({}) == {"builtin", "code"}
    assert configured({"GEMINI_API_KEY": "k", "OPENAI_API_KEY": ""}) == {"builtin", "code", "gemini", "google_ai"}
    assert configured({"OLLAMA_BASE_URL": "http://127.0.0.1:1/v1"}) == {"builtin", "code", "ollama"}


def test_models_that_nobody_had_chosen_came_first_in_lists() -> None:
    environment = {"GROQ_API_KEY": "k", "OPENAI_API_KEY": "k", "OLLAMA_BASE_URL": "http://h"}
    offered = OfferedModels(environment, builtin=True, code_agents=CodeAgentNames(cast("Any", None), cast("Any", None)))
    listed = [model.handle for model in offered.listed(FoundModels())]
    assert listed[0].startswith("openai/")
    assert [handle for handle in listed if handle.startswith("builtin/")] == listed[-3:]
    assert {handle.partition("/")[0] for handle in listed} == {"openai", "groq", "builtin"}


def test_what_is_shown_of_an_address_has_no_credentials() -> None:
    environment = {"OPENAI_BASE_URL": "https://user:secret@proxy/v1?key=secret", "OLLAMA_BASE_URL": "http://[::1"}
    assert PROVIDERS["openai"].url(environment) == "https://proxy/v1"
    assert PROVIDERS["ollama"].url(environment) == "http://[::1/v1"
    assert PROVIDERS["vllm"].url(environment) is None
