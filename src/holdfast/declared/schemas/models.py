"""The specifications of ``ModelConfig``, ``ModelProviderConfig`` and ``Memory``."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from .parts import Part, Positive, SecretName, Text, Tls, require

ProviderV1 = Literal["OpenAI", "Anthropic", "AzureOpenAI", "Ollama", "Gemini", "GeminiVertexAI", "AnthropicVertexAI"]
Provider = Literal[
    "OpenAI",
    "Anthropic",
    "AzureOpenAI",
    "Ollama",
    "Gemini",
    "GeminiVertexAI",
    "AnthropicVertexAI",
    "Bedrock",
    "SAPAICore",
    "Foundry",
]
WHOLE_SECRETS = ("Bedrock", "SAPAICore")
"""Providers whose credentials have several parts: the whole Secret, if no key of it is named."""


class OpenAIV1(Part):
    base_url: str | None = None
    frequency_penalty: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    organization: str | None = None
    presence_penalty: str | None = None
    seed: int | None = None
    temperature: str | None = None
    timeout: int | None = None
    top_p: str | None = None


class ServiceAccount(Part):
    audience: str


class TokenExchange(Part):
    type: Literal["GDCHServiceAccount"]
    gdch_service_account: ServiceAccount | None = None

    def __post_init__(self) -> None:
        require(self.gdch_service_account is not None, "gdchServiceAccount is required")


class OpenAI(OpenAIV1):
    api_format: Literal["chatCompletions", "responses", None] = None
    max_completion_tokens: Positive | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", None] = None
    token_exchange: TokenExchange | None = None

    def __post_init__(self) -> None:
        require(self.max_tokens is None or self.max_completion_tokens is None, "give maxTokens or maxCompletionTokens")


class Anthropic(Part):
    base_url: str | None = None
    max_tokens: int | None = None
    temperature: str | None = None
    top_k: int | None = None
    top_p: str | None = None


class VertexAI(Part):
    location: str
    project_id: str = field(name="projectID")
    stop_sequences: list[str] | None = None
    temperature: str | None = None
    top_k: str | None = None
    top_p: str | None = None


class AnthropicVertexAI(VertexAI):
    max_tokens: int | None = None


class GeminiVertexAI(VertexAI):
    candidate_count: int | None = None
    max_output_tokens: int | None = None
    response_mime_type: str | None = None


class AzureOpenAI(Part):
    api_version: str
    azure_endpoint: str
    azure_ad_token: str | None = None
    azure_deployment: str | None = None
    max_tokens: int | None = None
    temperature: str | None = None
    top_p: str | None = None


class Ollama(Part):
    host: str | None = None
    options: dict[str, str] | None = None


class GeminiV1(Part):
    """Has no fields."""


class Gemini(Part):
    max_output_tokens: Positive | None = None


class Guardrail(Part):
    identifier: Text
    version: Text
    trace: Literal["disabled", "enabled", "enabled_full", None] = None


class Bedrock(Part):
    region: str
    additional_model_request_fields: dict[str, Any] | None = None
    cache_ttl: Literal["5m", "1h", None] = field(default=None, name="cacheTTL")
    connect_timeout: Positive | None = None
    guardrail: Guardrail | None = None
    prompt_caching: bool | None = None
    read_timeout: Positive | None = None


class SAPAICore(Part):
    base_url: str
    auth_url: str | None = None
    resource_group: str | None = None


class ConfigMapKey(Part):
    key: Text
    name: str = ""
    optional: bool | None = None


class Foundry(Part):
    deployment: str
    api_version: str | None = None
    endpoint: str | None = None
    endpoint_from: ConfigMapKey | None = None

    def __post_init__(self) -> None:
        require(bool(self.endpoint) != (self.endpoint_from is not None), "give either endpoint or endpointFrom")


class ModelInfo(Part):
    family: str | None = None
    function_calling: bool | None = None
    json_output: bool | None = None
    multiple_system_messages: bool | None = None
    structured_output: bool | None = None
    vision: bool | None = None


SECTIONS = {
    "openai": "OpenAI",
    "anthropic": "Anthropic",
    "azure_openai": "AzureOpenAI",
    "ollama": "Ollama",
    "gemini": "Gemini",
    "gemini_vertex_ai": "GeminiVertexAI",
    "anthropic_vertex_ai": "AnthropicVertexAI",
    "bedrock": "Bedrock",
    "sap_ai_core": "SAPAICore",
    "foundry": "Foundry",
}
"""The attribute with the settings of each provider."""


class _ModelConfig(Part):
    model: Text
    anthropic: Anthropic | None = None
    anthropic_vertex_ai: AnthropicVertexAI | None = field(default=None, name="anthropicVertexAI")
    api_key_secret_key: str | None = None
    azure_openai: AzureOpenAI | None = field(default=None, name="azureOpenAI")
    default_headers: dict[str, str] | None = None
    gemini_vertex_ai: GeminiVertexAI | None = field(default=None, name="geminiVertexAI")
    ollama: Ollama | None = None

    def _check(self, provider: str, secret: str | None) -> None:
        for name, owner in SECTIONS.items():
            given = getattr(self, name, None) is not None
            require(
                not given or provider == owner, f"the settings of {owner} are given, but the provider is {provider}"
            )
        key = self.api_key_secret_key
        require(not key or bool(secret), "apiKeySecretKey names a key of a Secret that is not named")

    @property
    def section(self) -> Any:
        """The settings of the provider, or ``None``."""
        values = [getattr(self, name, None) for name in SECTIONS]
        return next((value for value in values if value is not None), None)


class ModelConfigSpecV1(_ModelConfig):
    """A ``ModelConfig`` of v1alpha1."""

    api_key_secret_ref: str | None = None
    gemini: GeminiV1 | None = None
    model_info: ModelInfo | None = None
    openai: OpenAIV1 | None = field(default=None, name="openAI")
    provider: ProviderV1 = "OpenAI"

    def __post_init__(self) -> None:
        self._check(self.provider, self.api_key_secret_ref)

    @property
    def api_key_secret(self) -> str | None:
        """The name of the Secret."""
        return self.api_key_secret_ref


class ModelConfigSpec(_ModelConfig):
    """A ``ModelConfig`` of v1alpha2."""

    api_key_passthrough: bool | None = None
    api_key_secret: str | None = None
    bedrock: Bedrock | None = None
    foundry: Foundry | None = None
    gemini: Gemini | None = None
    openai: OpenAI | None = field(default=None, name="openAI")
    provider: Provider = "OpenAI"
    sap_ai_core: SAPAICore | None = field(default=None, name="sapAICore")
    tls: Tls | None = None

    def __post_init__(self) -> None:
        self._check(self.provider, self.api_key_secret)
        passed = bool(self.api_key_passthrough)
        require(not (passed and self.api_key_secret), "apiKeyPassthrough excludes apiKeySecret")
        no_passthrough = ("Gemini", "GeminiVertexAI", "AnthropicVertexAI")
        require(not (passed and self.provider in no_passthrough), f"{self.provider} has no apiKeyPassthrough")
        if self.openai is not None and self.openai.token_exchange is not None:
            require(bool(self.api_key_secret) and not passed, "tokenExchange needs apiKeySecret")


class ModelProviderConfigSpec(Part):
    """A ``ModelProviderConfig`` of v1alpha2."""

    type: Provider
    endpoint: str | None = None
    secret_ref: SecretName | None = None

    def __post_init__(self) -> None:
        is_url = not self.endpoint or self.endpoint.startswith(("http://", "https://"))
        require(is_url, "endpoint must begin with http:// or https://")
        has_secret = self.secret_ref is not None and bool(self.secret_ref.name)
        require(self.type == "Ollama" or has_secret, f"{self.type} needs secretRef.name")


class Pinecone(Part):
    index_host: str
    namespace: str | None = None
    record_fields: list[str] | None = None
    score_threshold: str | None = None
    top_k: int | None = None


class MemorySpec(Part):
    """A ``Memory`` of v1alpha1."""

    api_key_secret_key: str | None = None
    api_key_secret_ref: str | None = None
    pinecone: Pinecone | None = None
    provider: Literal["Pinecone"] = "Pinecone"
