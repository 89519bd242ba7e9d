"""Where a handle leads, and what is said when it leads nowhere."""

import sys

import pytest

from shared.domain.errors import ModelError, ModelErrorType
from tests.kit.model_server.model_calls import ask, call
from worker.models.registry import Models, route_for

KEYS = {"OPENAI_API_KEY": "sk-o", "ANTHROPIC_API_KEY": "sk-a", "GEMINI_API_KEY": "g"}


def test_a_handle_is_split_at_its_first_slash() -> None:
    route = route_for("openrouter/meta-llama/llama-3", {"OPENROUTER_API_KEY": "k"})
    assert (route.provider, route.model) == ("openrouter", "meta-llama/llama-3")
    assert route.base_url == "https://openrouter.ai/api/v1"


@pytest.mark.parametrize(
    ("model", "wire"),
    [
        ("gpt-5", "responses"), ("gpt-5.1-codex", "responses"), ("o1", "responses"), ("o3-mini", "responses"),
        ("o4-mini-2025-04-16", "responses"), ("gpt-4o-mini", "chat"), ("gpt-4.1", "chat"), ("o100", "chat"),
        ("omni-moderation", "chat"), ("ft:gpt-4o:x", "chat"),
    ],
)  # fmt: skip
def test_which_openai_models_use_responses(model: str, wire: str) -> None:
    assert route_for(f"openai/{model}", KEYS).wire == wire


def test_compatible_servers_never_use_responses() -> None:
    environment = {"OPENAI_COMPATIBLE_BASE_URL": "http://h/v1", "VLLM_API_BASE": "http://h"}
    assert route_for("openai_compatible/gpt-5", environment).wire == "chat"
    assert route_for("vllm/o3", environment).wire == "chat"
    assert route_for("ollama/gpt-5", environment).wire == "chat"


@pytest.mark.parametrize(
    ("handle", "environment", "base_url"),
    [
        ("ollama/m", {}, "http://127.0.0.1:11434/v1"),
        ("ollama/m", {"OLLAMA_BASE_URL": "http://h:1/"}, "http://h:1/v1"),
        ("ollama/m", {"OLLAMA_BASE_URL": "http://h:1/v1"}, "http://h:1/v1"),
        ("vllm/m", {"VLLM_API_BASE": "http://h:1"}, "http://h:1/v1"),
        ("lmstudio/m", {}, "http://127.0.0.1:1234/v1"),
        ("anthropic/m", {**KEYS, "ANTHROPIC_BASE_URL": "http://h/v1"}, "http://h"),
        ("google_ai/m", {**KEYS, "GOOGLE_GEMINI_BASE_URL": "http://h/"}, "http://h"),
        ("openai/m", {**KEYS, "OPENAI_BASE_URL": "http://h/v1"}, "http://h/v1"),
        ("openai_compatible/m", {"OPENAI_BASE_URL": "http://h/v1"}, "http://h/v1"),
        ("openai/m", {**KEYS, "OPENAI_API_BASE": "http://h/v1"}, "http://h/v1"),
        ("openai-proxy/m", {"OPENAI_BASE_URL": "http://h/v1"}, "http://h/v1"),
        ("openai-proxy/org/m", {"OPENAI_API_BASE": "http://h/v1"}, "http://h/v1"),
        ("openai-proxy/m", {"OPENAI_COMPATIBLE_BASE_URL": "http://h/v1"}, "http://h/v1"),
        ("openai-proxy/m", {"OPENAI_BASE_URL": "http://a", "OPENAI_COMPATIBLE_BASE_URL": "http://b"}, "http://a"),
        ("openai-proxy/m", KEYS, "https://api.openai.com/v1"),
        ("lmstudio_openai/m", {"LMSTUDIO_BASE_URL": "http://h:1"}, "http://h:1/v1"),
        ("groq/m", {"GROQ_API_KEY": "k"}, "https://api.groq.com/openai/v1"),
        ("minimax/m", {"MINIMAX_API_KEY": "k", "MINIMAX_BASE_URL": "http://h/anthropic/v1"}, "http://h/anthropic"),
        (
            "azure/m",
            {"AZURE_OPENAI_ENDPOINT": "https://my.openai.azure.com/", "AZURE_OPENAI_API_KEY": "k"},
            "https://my.openai.azure.com",
        ),
    ],
)
def test_base_urls(handle: str, environment: dict[str, str], base_url: str) -> None:
    assert route_for(handle, environment).base_url == base_url


@pytest.mark.parametrize(
    ("handle", "variable", "error_type"),
    [
        ("openai/gpt-4o", "OPENAI_API_KEY", ModelErrorType.AUTHENTICATION),
        ("anthropic/claude-x", "ANTHROPIC_API_KEY", ModelErrorType.AUTHENTICATION),
        ("google_ai/gemini-x", "GEMINI_API_KEY", ModelErrorType.AUTHENTICATION),
        ("gemini/gemini-x", "GEMINI_API_KEY", ModelErrorType.AUTHENTICATION),
        ("openrouter/a/b", "OPENROUTER_API_KEY", ModelErrorType.AUTHENTICATION),
        ("vllm/m", "VLLM_BASE_URL", ModelErrorType.BAD_REQUEST),
        ("openai_compatible/m", "OPENAI_COMPATIBLE_BASE_URL", ModelErrorType.BAD_REQUEST),
        ("azure/gpt-4o", "AZURE_API_KEY", ModelErrorType.AUTHENTICATION),
        ("groq/qwen/qwen3-32b", "GROQ_API_KEY", ModelErrorType.AUTHENTICATION),
    ],
)
def test_what_is_missing_is_named(handle: str, variable: str, error_type: ModelErrorType) -> None:
    with pytest.raises(ModelError, match=variable) as caught:
        route_for(handle, {})
    assert caught.value.error_type == error_type


@pytest.mark.parametrize("handle", ["", "gpt-4o", "/gpt-4o", "openai/", "nobody/m", "letta/letta-free"])
def test_an_unknown_provider_is_told_with_the_known_ones(handle: str) -> None:
    with pytest.raises(ModelError, match="openai_compatible") as caught:
        route_for(handle, KEYS)
    assert caught.value.error_type == ModelErrorType.BAD_REQUEST


def test_azure_without_its_address_is_told_so() -> None:
    with pytest.raises(ModelError, match="AZURE_BASE_URL"):
        route_for("azure/gpt-4o", {"AZURE_API_KEY": "k"})


@pytest.mark.parametrize(
    ("handle", "advice"),
    [
        ("letta/letta-free", "OPENAI_API_KEY"),
        ("letta/auto", "OPENAI_API_KEY"),
        ("bedrock/us.anthropic.claude-sonnet-4", "anthropic/<model>"),
        ("google_vertex/gemini-2.5-flash", "GEMINI_API_KEY"),
    ],
)
def test_a_provider_that_is_not_served_is_refused_with_what_to_use_instead(handle: str, advice: str) -> None:
    with pytest.raises(ModelError, match="is not served here") as caught:
        route_for(handle, KEYS)
    assert advice in caught.value.message
    assert caught.value.error_type == ModelErrorType.BAD_REQUEST


def test_an_openai_key_never_goes_to_somebody_elses_server() -> None:
    route = route_for("openai_compatible/m", {**KEYS, "OPENAI_COMPATIBLE_BASE_URL": "http://h/v1"})
    assert route.api_key != "sk-o"
    assert route_for("openai_compatible/m", {**KEYS, "OPENAI_BASE_URL": "http://h/v1"}).api_key == "sk-o"


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({"OPENAI_BASE_URL": "http://h/v1", "OPENAI_API_KEY": "sk-o", "OPENAI_COMPATIBLE_API_KEY": "sk-c"}, "sk-o"),
        (
            {"OPENAI_COMPATIBLE_BASE_URL": "http://h", "OPENAI_API_KEY": "sk-o", "OPENAI_COMPATIBLE_API_KEY": "sk-c"},
            "sk-c",
        ),
        ({"OPENAI_API_KEY": "sk-o", "OPENAI_COMPATIBLE_API_KEY": "sk-c"}, "sk-o"),
        ({"OPENAI_COMPATIBLE_BASE_URL": "http://h", "OPENAI_API_KEY": "sk-o"}, "none"),
    ],
)
def test_the_handle_that_lettas_servers_give_to_gateways_was_unknown(environment: dict[str, str], key: str) -> None:
    route = route_for("openai-proxy/gpt-5", environment)
    assert (route.wire, route.model, route.api_key) == ("chat", "gpt-5", key)


def test_a_route_does_not_show_its_key() -> None:
    assert "sk-o" not in repr(route_for("openai/gpt-4o", KEYS))


def test_a_route_shows_no_password_of_its_address() -> None:
    route = route_for("vllm/m", {"VLLM_BASE_URL": "http://user:secret@h:1/v1?token=secret"})
    assert "secret" in route.base_url
    assert "secret" not in repr(route) + route.asked


@pytest.mark.parametrize("provider", ["google_ai", "gemini", "openai", "anthropic", "openrouter", "vllm"])
@pytest.mark.parametrize(
    "model",
    ["%2e%2e/%2e%2e/admin", "../admin", "models/../../admin", "x/..", "./x", "x/.", "x?key=1", "x#y", "a&b", "a\\b",
     "a\nb", "a\x00", "." + "x" * 300],
)  # fmt: skip
def test_a_model_that_would_change_the_path_of_its_request_is_refused(provider: str, model: str) -> None:
    with pytest.raises(ModelError, match="cannot be asked") as caught:
        route_for(f"{provider}/{model}", {**KEYS, "OPENROUTER_API_KEY": "k", "VLLM_BASE_URL": "http://h"})
    assert caught.value.error_type == ModelErrorType.BAD_REQUEST


@pytest.mark.parametrize(
    "handle",
    ["openrouter/qwen/qwen3:free", "vllm//models/llama 3", "openai/ft:gpt-4o:org::id", "google_ai/tunedModels/x"],
)
def test_a_model_may_be_named_as_servers_name_theirs(handle: str) -> None:
    route = route_for(handle, {**KEYS, "OPENROUTER_API_KEY": "k", "VLLM_BASE_URL": "http://h"})
    assert handle.endswith(route.model)


async def test_a_missing_package_sent_users_to_somebody_elses_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package index has another project called holdfast."""
    monkeypatch.setitem(sys.modules, "google.genai", None)
    monkeypatch.delitem(sys.modules, "worker.models.google_wire", raising=False)
    models = Models(KEYS, first_event_timeout=180, idle_timeout=180, retries=0)
    with pytest.raises(ModelError) as caught:
        await ask(models, call("google_ai/gemini-2.5-flash"))
    await models.aclose()
    assert caught.value.error_type == ModelErrorType.BAD_REQUEST
    assert "pip install -e '.[google]' -c constraints.txt" in caught.value.message
    assert "install holdfast" not in caught.value.message
