"""Named limits on the size of inputs. Each can be changed when a Holdfast is opened."""

from __future__ import annotations

from msgspec import Struct

from .errors import LimitExceeded

KIB = 1024
MIB = 1024 * KIB
SEARCH_CHARS = 100
"""Characters of the case-folded prefix of a name that is searchable. It is stored with the names, so it cannot be changed."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits on the inputs of a call. A call that exceeds a limit raises ``LimitExceeded`` and changes nothing."""

    tenant_bytes: int = 255
    """Bytes of a tenant's name as UTF-8. Names are limited in bytes because PostgreSQL limits the size of index entries."""
    key_bytes: int = 500
    """Bytes of a session key as UTF-8."""
    name_bytes: int = 255
    """Bytes of a user, agent or other name as UTF-8."""
    display_bytes: int = KIB
    """Bytes of a display name, such as a contact's, as UTF-8."""
    path_bytes: int = 16 * KIB
    """Bytes of a path to a file or directory as UTF-8."""
    url_bytes: int = 2 * KIB
    """Bytes of a URL, such as that of a picture, as UTF-8."""
    text_bytes: int = 64 * KIB
    """Bytes of a text outside the conversation, such as feedback, as UTF-8."""
    content_bytes: int = 16 * MIB
    """Bytes of one message's content as JSON."""
    metadata_bytes: int = 256 * KIB
    """Bytes of one metadata object as JSON."""
    json_depth: int = 100
    """Levels of nesting in one JSON value; 200 at most."""
    batch_rows: int = 10_000
    """Rows that one call may write."""
    page_rows: int = 1_000
    """Rows of one page."""
    list_rows: int = 10_000
    """Rows that a list without ``limit`` may return; longer lists must be paged."""
    compaction_rows: int = 100_000
    """Messages in the view of a session that one compaction may process."""
    buffered_sessions: int = 1_000
    """Buffered sessions that one handle keeps; beyond that, the least recently used one without unsaved changes is dropped."""
    buffered_messages: int = 10_000
    """Messages in one buffered session."""
    pack_from_bytes: int = 128 * KIB
    """Stored bytes from which an object is kept in a pack instead of the database, if packs are configured."""
    object_bytes: int = 100 * 1024 * MIB
    """Stored bytes of all objects of one tenant."""
    tree_depth: int = 200
    """Nested directories in one tree that is captured, restored or imported."""
    snapshot_depth: int = 32
    """Length of a chain of incremental snapshots; the next one is stored in full."""
    filters: int = 32
    """Filters in one call."""
    filter_values: int = 1_000
    """Values in one membership filter."""
    filter_parts: int = 100
    """Objects, lists and values in the pattern of one content filter."""
    filter_depth: int = 6
    """Levels of nesting in the pattern of one content filter; older SQLite versions cannot parse deeper ones."""
    query_chars: int = 10_000
    """Characters of one search query."""
    query_words: int = 50
    """Words in one search query."""
    search_tail: int = 1_000
    """Messages not yet indexed that one search scans; if there are more, the result is marked as incomplete."""
    search_chars: int = 4_000_000
    """Characters of message text that one search scans; beyond that, the page ends early and the next page continues."""

    secret_bytes: int = 64 * KIB
    """Bytes of one secret as UTF-8, before it is encrypted."""
    tags: int = 100
    """Tags of one agent."""
    capabilities: int = 100
    """Capabilities of one model."""
    tools: int = 1_000
    """Tools of one agent or MCP server, and names in a list of tools that a grant allows or denies."""
    tool_timeout_ms: int = 3_600_000
    """Milliseconds after which a call of a tool is given up."""
    builtin_tools: int = 1_000
    """Builtin tools of one tenant."""
    command_bytes: int = 128 * KIB - 1
    """Bytes of one command of a custom tool, before and after its arguments are filled in; Linux limits an argument to this."""
    command_timeout_s: int = 3_600
    """Seconds that a command may run."""
    cli_command_bytes: int = 16 * KIB
    """Bytes of one command line for a program with credentials."""
    deny_patterns: int = 50
    """Regular expressions in one list of denied arguments."""
    schema_nodes: int = 1_000
    """Objects and lists in the JSON Schema of one tool, with each reference replaced by the schema it names."""
    system_bytes: int = MIB
    """Bytes of an agent's system prompt as UTF-8."""
    blocks: int = 100
    """Core blocks of one agent."""
    block_bytes: int = 64 * KIB
    """Bytes of one core block as UTF-8, and the default limit of a block."""
    context_files: int = 50
    """Context files of one agent, and copies that one of its users has when another one is written."""
    file_name_bytes: int = 255
    """Bytes of the name of a context file as UTF-8."""
    context_file_bytes: int = 128 * KIB
    """Bytes of the content of one context file as UTF-8."""
    state_bytes: int = 16 * MIB
    """Bytes of the state of one step or flow as JSON."""
    embedding_floats: int = 8_192
    """Dimensions of one embedding."""
    tool_input_bytes: int = MIB
    """Bytes of the input of one tool call as JSON."""
    tool_result_bytes: int = 16 * MIB
    """Bytes of the result of one tool call as JSON."""
    open_tool_calls: int = 256
    """Tool calls of one run that no step has included yet."""
    run_attempts: int = 5
    """Consecutive claims of one run without a committed step before it fails, unless it was started with another number."""
    run_depth: int = 8
    """Levels of nested runs: an agent that calls an agent that calls an agent."""
    tree_entries: int = 1_000_000
    """Files, directories and links of one tree that is restored or imported."""
    tree_bytes: int = 10 * 1024 * MIB
    """Bytes of all files of one tree that is restored or imported."""
    tree_path_bytes: int = 4 * KIB
    """Bytes of a path within a tree, and of the target of a link."""
    tree_names_bytes: int = 256 * MIB
    """Bytes of all paths and link targets of one tree that is imported."""
    archive_ratio: int = 200
    """Maximum ratio of an archive's unpacked size to its file size; the first mebibyte does not count."""
    diff_bytes: int = MIB
    """Size of a file up to which a diff shows its changes line by line."""
    diff_total_bytes: int = 16 * MIB
    """Bytes of files, before and after, that one diff of two snapshots compares line by line."""
    diff_steps: int = 10_000_000
    """Line comparisons in one diff of two snapshots; beyond that, the rest of a file is shown as replaced."""
    manifest_bytes: int = 4 * MIB
    """Bytes of one file of declared resources."""
    manifest_values: int = 1_000_000
    """Values in one document of declared resources, with those that YAML aliases repeat."""
    spec_bytes: int = 2 * MIB
    """Bytes of the specification of one declared resource as JSON."""
    lease_ms: int = 900_000
    """Milliseconds a lease may last before it must be renewed."""
    snapshots_per_run: int = 10
    """Snapshots kept for each run, unless its tenant or the run has its own number; a capture removes older ones."""
    snapshot_quota_mib: int = 500
    """MiB of stored bytes of all snapshots of one tenant, unless the tenant has its own quota."""
    snapshot_grace_s: int = 7 * 86_400
    """Seconds for which snapshots are kept after their run has ended, unless the tenant has its own number."""
    snapshot_keep_s: int = 90 * 86_400
    """Maximum of the seconds after its end for which a run can request that its snapshots are kept; more is reduced to this."""

    pairing_requests: int = 3
    """Pairing requests that one account may have at once."""
    pairing_code_s: int = 3_600
    """Seconds for which a pairing code can be approved."""
    paired_device_s: int = 30 * 86_400
    """Seconds for which a sender stays paired after an approval."""

    def page(self, rows: int) -> int:
        """Return the size of a page of ``rows`` rows, reduced to ``page_rows`` if it is larger."""
        return min(rows, self.page_rows)

    def check(self, name: str, value: int, field: str) -> None:
        """Raise ``LimitExceeded`` if ``value``, the size of ``field``, exceeds the limit called ``name``."""
        maximum: int = getattr(self, name)
        if value > maximum:
            message = f"{field}: {value:,} is over the limit {name} = {maximum:,}"
            raise LimitExceeded(message, field=field, limit=name, maximum=maximum)
