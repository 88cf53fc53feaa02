"""The specifications of ``Agent`` in v1alpha1 and v1alpha2."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .parts import (
    AllowedNamespaces,
    KubernetesPart,
    NamedValue,
    Part,
    Positive,
    SecretName,
    Text,
    ValueSource,
    Variable,
    require,
)

MAX_TOOLS = 20
"""Entries of the list of tools of one agent, as in kagent."""


class Skill(Part):
    """A skill in the agent's A2A card."""

    name: Text
    description: str | None = None
    examples: list[str] | None = None
    id: str | None = None
    input_modes: list[str] | None = None
    output_modes: list[str] | None = None
    tags: list[str] | None = None


class A2AConfig(Part):
    skills: list[Skill] | None = None


class DeploymentV1(Part):
    annotations: dict[str, str] | None = None
    env: list[Variable] | None = None
    image_pull_secrets: KubernetesPart = None
    labels: dict[str, str] | None = None
    replicas: int | None = None
    volumes: KubernetesPart = None


class _Deployment(DeploymentV1):
    affinity: KubernetesPart = None
    deployment_annotations: dict[str, str] | None = None
    env_from: KubernetesPart = None
    extra_containers: list[dict[str, KubernetesPart]] | None = None
    image_pull_policy: str | None = None
    node_selector: dict[str, str] | None = None
    pod_security_context: KubernetesPart = None
    resources: KubernetesPart = None
    security_context: KubernetesPart = None
    service_account_config: KubernetesPart = None
    service_account_name: str | None = None
    tolerations: KubernetesPart = None
    volume_mounts: KubernetesPart = None

    def __post_init__(self) -> None:
        is_one = self.service_account_name is None or self.service_account_config is None
        require(is_one, "give serviceAccountName or serviceAccountConfig")


class DeclarativeDeployment(_Deployment):
    image_registry: str | None = None


class ByoDeployment(_Deployment):
    args: list[str] | None = None
    cmd: str | None = None
    image: str | None = None
    working_dir: str | None = None


class ServerToolsV1(Part):
    tool_server: str = ""
    tool_names: list[str] | None = None


class AgentToolV1(Part):
    ref: Text


class ToolEntryV1(Part):
    type: Literal["McpServer", "Agent", None] = None
    agent: AgentToolV1 | None = None
    mcp_server: ServerToolsV1 | None = None

    def __post_init__(self) -> None:
        _check_tool(self.type, self.mcp_server is not None, self.agent is not None)


class AgentSpecV1(Part):
    """An ``Agent`` of v1alpha1."""

    a2a_config: A2AConfig | None = None
    deployment: DeploymentV1 | None = None
    description: str = ""
    memory: list[str] | None = None
    model_config: str | None = None
    stream: bool | None = None
    system_message: Text | None = None
    tools: Annotated[list[ToolEntryV1], Meta(max_length=MAX_TOOLS)] | None = None


class ServerTools(Part):
    name: Text
    allowed_headers: list[str] | None = None
    api_group: str | None = None
    kind: str | None = None
    namespace: str | None = None
    require_approval: list[str] | None = None
    tool_names: Annotated[list[str], Meta(max_length=50)] | None = None

    def __post_init__(self) -> None:
        names = set(self.tool_names or ())
        require(set(self.require_approval or ()) <= names, "every name in requireApproval must be in toolNames")


class AgentTool(Part):
    name: Text
    api_group: str | None = None
    kind: str | None = None
    namespace: str | None = None


class ToolEntry(Part):
    type: Literal["McpServer", "Agent", None] = None
    agent: AgentTool | None = None
    headers_from: list[NamedValue] | None = None
    isolate_sessions: bool | None = None
    mcp_server: ServerTools | None = None

    def __post_init__(self) -> None:
        _check_tool(self.type, self.mcp_server is not None, self.agent is not None)
        require(self.isolate_sessions is None or self.type == "Agent", "isolateSessions is for tools of the type Agent")


class Summarizer(Part):
    model_config: str | None = None
    prompt_template: str | None = None


class Compaction(Part):
    compaction_interval: Positive | None = None
    event_retention_size: int | None = None
    overlap_size: Annotated[int, Meta(ge=0)] | None = None
    summarizer: Summarizer | None = None
    token_threshold: int | None = None


class ContextSettings(Part):
    compaction: Compaction | None = None


class MemorySettings(Part):
    model_config: Text
    ttl_days: Positive | None = None


class DataSource(Part):
    name: Text
    alias: str | None = None
    api_group: str | None = None
    kind: str | None = None


class PromptTemplate(Part):
    data_sources: list[DataSource] | None = None


class Declarative(Part):
    a2a_config: A2AConfig | None = None
    context: ContextSettings | None = None
    deployment: DeclarativeDeployment | None = None
    execute_code_blocks: bool | None = None
    memory: MemorySettings | None = None
    model_config: str | None = None
    prompt_template: PromptTemplate | None = None
    runtime: Literal["python", "go", None] = None
    share_tools: bool | None = None
    stream: bool | None = None
    system_message: str | None = None
    system_message_from: ValueSource | None = None
    tools: Annotated[list[ToolEntry], Meta(max_length=MAX_TOOLS)] | None = None

    def __post_init__(self) -> None:
        is_one = self.system_message is None or self.system_message_from is None
        require(is_one, "give systemMessage or systemMessageFrom")
        source = self.system_message_from
        require(
            source is None or source.type == "ConfigMap",
            "a system message is not stored as a secret: move it from the Secret to a ConfigMap",
        )


class Byo(Part):
    deployment: ByoDeployment | None = None


class Organization(Part):
    organization: Text
    url: str


class Network(Part):
    allowed_domains: list[str] | None = None


class Sandbox(Part):
    network: Network | None = None


class GitRef(Part):
    url: Text
    name: str | None = None
    path: str | None = None
    ref: str | None = None


class S3Ref(Part):
    uri: Annotated[str, Meta(pattern=r"^s3://.+")]
    name: str | None = None
    region: str | None = None


class SkillsInit(Part):
    env: list[Variable] | None = None
    resources: KubernetesPart = None


class Skills(Part):
    git_auth_secret_ref: SecretName | None = None
    git_refs: list[GitRef] | None = None
    image_pull_secrets: KubernetesPart = None
    init_container: SkillsInit | None = None
    insecure_skip_verify: bool | None = None
    refs: list[str] | None = None
    s3_refs: list[S3Ref] | None = None


class AgentSpec(Part):
    """An ``Agent`` of v1alpha2."""

    allowed_namespaces: AllowedNamespaces | None = None
    byo: Byo | None = None
    declarative: Declarative | None = None
    description: str = ""
    documentation_url: str | None = None
    icon_url: str | None = None
    provider: Organization | None = None
    sandbox: Sandbox | None = None
    skills: Skills | None = None
    type: Literal["Declarative", "BYO"] = "Declarative"
    version: str | None = None

    def __post_init__(self) -> None:
        section, name = (self.byo, "byo") if self.type == "BYO" else (self.declarative, "declarative")
        require(section is not None, f"an agent of the type {self.type} needs {name}")


def _check_tool(type: str | None, has_server: bool, has_agent: bool) -> None:
    require(type is not None, "type must be McpServer or Agent")
    require(has_server == (type == "McpServer"), "mcpServer goes with the type McpServer")
    require(has_agent == (type == "Agent"), "agent goes with the type Agent")
