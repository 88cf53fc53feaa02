"""Every limit has a name and a number. All of them can be changed when a Holdfast is opened."""

from __future__ import annotations

from msgspec import Struct

from .errors import LimitExceeded

KIB = 1024
MIB = 1024 * KIB
SEARCH_CHARS = 100
"""Characters, in one case, of the beginning of a name that can be searched for. It is stored with the names, so it is fixed."""


class Limits(Struct, frozen=True, kw_only=True):
    """What one call may carry. A call over a limit raises ``LimitExceeded`` and changes nothing."""

    tenant_bytes: int = 255
    """Bytes of a tenant's name as UTF-8. Names are limited in bytes because PostgreSQL limits what an index can hold."""
    key_bytes: int = 500
    """Bytes of a session key as UTF-8."""
    name_bytes: int = 255
    """Bytes of a user, agent or other name as UTF-8."""
    display_bytes: int = KIB
    """Bytes of a name that is only shown, such as a contact's, as UTF-8."""
    path_bytes: int = 16 * KIB
    """Bytes of the path of a file or directory as UTF-8."""
    url_bytes: int = 2 * KIB
    """Bytes of an address, such as that of a picture, as UTF-8."""
    text_bytes: int = 64 * KIB
    """Bytes of a text that people write beside the conversation, such as feedback, as UTF-8."""
    content_bytes: int = 16 * MIB
    """Bytes of one message's content as JSON."""
    metadata_bytes: int = 256 * KIB
    """Bytes of one metadata object as JSON."""
    json_depth: int = 100
    """Levels of nesting in one JSON value; 200 at most."""
    batch_rows: int = 10_000
    """Rows one call may write."""
    page_rows: int = 1_000
    """Rows one page may ask for."""
    list_rows: int = 10_000
    """Rows a list without ``limit`` may return before it must be paged."""
    compaction_rows: int = 100_000
    """Messages a session may show for one compaction to look at."""
    buffered_sessions: int = 1_000
    """Buffered sessions one handle keeps; of those without unsaved changes, the one used longest ago makes room."""
    buffered_messages: int = 10_000
    """Messages one buffered session may hold."""
    pack_from_bytes: int = 128 * KIB
    """Stored bytes from which on an object lies in a pack, where packs are kept, and not in the database."""
    object_bytes: int = 100 * 1024 * MIB
    """Stored bytes that all objects of one tenant may take."""
    tree_depth: int = 200
    """Directories in each other in one tree that is captured, restored or imported."""
    snapshot_depth: int = 32
    """Snapshots that may be differences to each other before one is written down as a whole."""
    filters: int = 32
    """Filters in one call."""
    filter_values: int = 1_000
    """Values in one membership filter."""
    filter_parts: int = 100
    """Objects, lists and values in what one filter looks for in a content."""
    filter_depth: int = 6
    """Levels of nesting in what one filter looks for in a content; older SQLite parses no deeper."""
    query_chars: int = 10_000
    """Characters of one search."""
    query_words: int = 50
    """Words in one search."""
    search_tail: int = 1_000
    """Messages that are not indexed yet and that one search reads itself; beyond them its result says that it is incomplete."""
    search_chars: int = 4_000_000
    """Characters of messages that one search reads; with more, a page ends early and the next one goes on."""

    secret_bytes: int = 64 * KIB
    """Bytes of one secret as UTF-8, before it is encrypted."""
    tags: int = 100
    """Tags of one agent."""
    tools: int = 1_000
    """Tools of one agent."""
    system_bytes: int = MIB
    """Bytes of an agent's system prompt as UTF-8."""
    blocks: int = 100
    """Core blocks of one agent."""
    block_bytes: int = 64 * KIB
    """Bytes of one core block as UTF-8, and the limit of a block that is given none of its own."""
    state_bytes: int = 16 * MIB
    """Bytes of the state of one step or flow as JSON."""
    embedding_floats: int = 8_192
    """Dimensions of one embedding."""
    tool_input_bytes: int = MIB
    """Bytes of what one tool call is given, as JSON."""
    tool_result_bytes: int = 16 * MIB
    """Bytes of what one tool call came to, as JSON."""
    open_tool_calls: int = 256
    """Tool calls of one run that no step has taken in yet."""
    run_attempts: int = 5
    """Claims of one run in a row that may come to nothing before it fails, unless it was started with another number."""
    run_depth: int = 8
    """Runs one below the other: an agent that calls an agent that calls an agent."""
    tree_entries: int = 1_000_000
    """Files, directories and links of one tree that is restored or imported."""
    tree_bytes: int = 10 * 1024 * MIB
    """Bytes of all files of one tree that is restored or imported."""
    tree_path_bytes: int = 4 * KIB
    """Bytes of a path within a tree, and of where a link points to."""
    tree_names_bytes: int = 256 * MIB
    """Bytes of all paths and link targets of one tree that is imported."""
    archive_ratio: int = 200
    """How many times its own size an archive may unpack to, the first mebibyte aside."""
    diff_bytes: int = MIB
    """Bytes of a file up to which its changes are shown line by line."""
    diff_total_bytes: int = 16 * MIB
    """Bytes of files, before and after, that one diff of two snapshots compares line by line."""
    diff_steps: int = 10_000_000
    """Comparisons of lines in one diff of two snapshots; beyond them, what is left of a file is shown as replaced."""
    lease_ms: int = 900_000
    """Milliseconds a lease may last before it must be renewed."""
    snapshots_per_run: int = 10
    """Snapshots that a run keeps, unless its tenant or the run has another number; older ones go when one is captured."""
    snapshot_quota_mib: int = 500
    """MiB of stored bytes that all snapshots of one tenant may take, unless the tenant has another number."""
    snapshot_grace_s: int = 7 * 86_400
    """Seconds for which snapshots are kept after their run has ended, unless the tenant has another number."""
    snapshot_keep_s: int = 90 * 86_400
    """Seconds after its end for which a run's snapshots can be asked to be kept; more is cut down to this."""

    def page(self, rows: int) -> int:
        """How many rows to ask for at once where so many would do, if that is allowed."""
        return min(rows, self.page_rows)

    def check(self, name: str, value: int, field: str) -> None:
        """Raise ``LimitExceeded`` if ``value``, the size of ``field``, is over the limit called ``name``."""
        maximum: int = getattr(self, name)
        if value > maximum:
            message = f"{field}: {value:,} is over the limit {name} = {maximum:,}"
            raise LimitExceeded(message, field=field, limit=name, maximum=maximum)
