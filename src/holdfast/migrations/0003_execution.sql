-- Runs with their steps, tool calls and queue; checkpoints of graphs; tasks of the A2A protocol.

CREATE TABLE runs (
    tenant_id       {text} NOT NULL,
    id              {id}   NOT NULL,
    session_id      {id}   NOT NULL,
    agent_id        {text} NOT NULL DEFAULT '',
    status          {text} NOT NULL,
    -- Steps committed so far.
    iteration       {int}  NOT NULL DEFAULT 0,
    -- Raised by every claim; writes with an older epoch are refused.
    epoch           {int}  NOT NULL DEFAULT 0,
    -- Consecutive claims without a committed step.
    attempts        {int}  NOT NULL DEFAULT 0,
    max_attempts    {int}  NOT NULL,
    lease_holder    {text} NOT NULL DEFAULT '',
    lease_ms        {int}  NOT NULL DEFAULT 0,
    lease_until     {time},
    -- When the lease was first seen expired; a renewal clears it.
    doubted_at      {time},
    pause_until     {time},
    stop_reason     {text},
    error           {text},
    parent_run_id   {id},
    parent_call_id  {text},
    depth           {int}  NOT NULL DEFAULT 0,
    input_tokens    {int}  NOT NULL DEFAULT 0,
    output_tokens   {int}  NOT NULL DEFAULT 0,
    metadata        {json} NOT NULL DEFAULT '{}',
    started_at      {time} NOT NULL,
    checkpointed_at {time},
    finished_at     {time},
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES sessions (tenant_id, id) ON DELETE CASCADE,
    CHECK (status IN ('pending', 'running', 'paused', 'waiting', 'completed', 'failed', 'cancelled')),
    CHECK ((finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled'))),
    CHECK ((lease_until IS NOT NULL) = (status = 'running'))
) {clustered} /*pg WITH (fillfactor = 70)*/;

CREATE INDEX runs_by_start ON runs (tenant_id, started_at, id);
CREATE INDEX runs_by_session ON runs (tenant_id, session_id, started_at, id);
CREATE INDEX runs_by_agent ON runs (tenant_id, agent_id, started_at, id);
CREATE INDEX runs_by_status ON runs (tenant_id, status, started_at, id);
-- A tool call starts one run, however often it is retried.
CREATE UNIQUE INDEX runs_by_parent ON runs (tenant_id, parent_run_id, parent_call_id) WHERE parent_run_id IS NOT NULL;

CREATE TABLE run_steps (
    tenant_id        {text} NOT NULL,
    run_id           {id}   NOT NULL,
    iteration        {int}  NOT NULL CHECK (iteration > 0),
    epoch            {int}  NOT NULL,
    state            {json} NOT NULL,
    last_tool_result {text},
    -- The places of the step's messages in the session's log; NULL if it has none.
    first_seq        {int},
    last_seq         {int},
    input_tokens     {int}  NOT NULL DEFAULT 0,
    output_tokens    {int}  NOT NULL DEFAULT 0,
    snapshot         {text},
    -- Digest of the step's input: tells a retry of the same step from another step.
    fingerprint      {text} NOT NULL,
    created_at       {time} NOT NULL,
    PRIMARY KEY (tenant_id, run_id, iteration),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE TABLE tool_calls (
    tenant_id   {text} NOT NULL,
    run_id      {id}   NOT NULL,
    id          {text} NOT NULL CHECK (id <> ''),
    tool_name   {text} NOT NULL,
    tool_input  {json} NOT NULL,
    safety      {text} NOT NULL,
    status      {text} NOT NULL,
    -- The step it was first intended for, and its place among the calls of that step.
    iteration   {int}  NOT NULL,
    place       {int}  NOT NULL,
    -- The epoch that began it last.
    epoch       {int}  NOT NULL,
    attempts    {int}  NOT NULL DEFAULT 0,
    -- Not to be begun before this time.
    pause_until {time},
    result      {json},
    error       {text},
    -- The step that consumed its outcome; NULL until then.
    step        {int},
    started_at  {time} NOT NULL,
    finished_at {time},
    PRIMARY KEY (tenant_id, run_id, id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE,
    CHECK (safety IN ('idempotent', 'at_most_once', 'ask')),
    CHECK (status IN ('held', 'ready', 'begun', 'finished', 'failed', 'cancelled', 'discarded', 'unknown')),
    CHECK ((finished_at IS NULL) = (status IN ('held', 'ready', 'begun')))
) {strict};

CREATE INDEX tool_calls_open ON tool_calls (tenant_id, run_id, iteration, place) WHERE step IS NULL;

-- Not of one tenant, because a worker drives runs of any. It is a hint: the run's own row decides whether it may be claimed, and
-- a stale row here is corrected when it is read.
CREATE TABLE run_queue (
    tenant {text} NOT NULL,
    run_id {id}   NOT NULL,
    agent  {text} NOT NULL,
    -- ready: at any time; paused and leased: not before due_at.
    kind   {text} NOT NULL,
    due_at {time} NOT NULL,
    PRIMARY KEY (tenant, run_id)
) {clustered};

CREATE INDEX run_queue_by_turn ON run_queue (kind, due_at, run_id);
CREATE INDEX run_queue_by_agent ON run_queue (agent, kind, due_at, run_id);
CREATE INDEX run_queue_by_tenant ON run_queue (tenant, kind, due_at, run_id);
CREATE INDEX run_queue_by_tenant_agent ON run_queue (tenant, agent, kind, due_at, run_id);

-- Checkpoints of graphs. Their content is stored as pieces, each once in a log; a checkpoint, and the writes of each task, only
-- list places of the log. A copy of a thread shares the log.
CREATE TABLE lg_log (
    tenant_id  {text}  NOT NULL,
    number     {int32} NOT NULL,
    next_place {int32} NOT NULL DEFAULT 1,
    -- Changes whenever pieces are removed: places remembered under an older stamp are invalid.
    stamp      {id}    NOT NULL,
    PRIMARY KEY (tenant_id, number)
) {clustered} /*pg WITH (fillfactor = 70)*/;

CREATE TABLE lg_thread (
    tenant_id {text}  NOT NULL,
    number    {int32} NOT NULL,
    user_id   {text}  NOT NULL DEFAULT '',
    thread_id {text}  NOT NULL,
    log       {int32} NOT NULL,
    PRIMARY KEY (tenant_id, number)
) {clustered};

CREATE UNIQUE INDEX lg_thread_by_name ON lg_thread (tenant_id, thread_id, user_id);
-- Copies only: a thread with its own log has the log's number.
CREATE INDEX lg_thread_by_log ON lg_thread (tenant_id, log) WHERE log <> number;

-- Not clustered: rows of a kilobyte do not fit well into an index. Columns of a fixed width come first and are as short as they
-- can be, because PostgreSQL pads them. Primary keys that only grow have no room for updates.
CREATE TABLE lg_piece (
    log       {int32} NOT NULL,
    place     {int32} NOT NULL,
    -- How the body is encoded, as in objects; 9: it is the digest of an object.
    codec     {int16} NOT NULL,
    tenant_id {text}  NOT NULL,
    digest    {bytes} NOT NULL,
    body      {bytes} NOT NULL,
    PRIMARY KEY (tenant_id, log, place) /*pg WITH (fillfactor = 100)*/
) {strict};

/*pg
-- The body is compressed already.
ALTER TABLE lg_piece ALTER COLUMN body SET STORAGE EXTERNAL;
*/
-- A prefix of the digest is enough within one log. Not unique: the writer that holds the log avoids duplicates.
CREATE INDEX lg_piece_by_digest ON lg_piece (tenant_id, log, substr(digest, 1, 3));

-- How ids and metadata are encoded: see stores/execution/checkpoints/compact_columns.py.
CREATE TABLE lg_checkpoint (
    created_at           {time}  NOT NULL,
    thread               {int32} NOT NULL,
    tenant_id            {text}  NOT NULL,
    checkpoint_ns        {text}  NOT NULL DEFAULT '',
    checkpoint_id        {bytes} NOT NULL,
    parent_checkpoint_id {bytes},
    run_id               {text},
    metadata             {text}  NOT NULL DEFAULT '{}',
    checkpoint           {bytes} NOT NULL,
    -- The places of its pieces, in order: see stores/execution/checkpoints/ranges.py.
    pieces               {bytes} NOT NULL,
    -- Channels whose value must be looked up at an ancestor, as a JSON list; NULL means none.
    leans                {json},
    PRIMARY KEY (tenant_id, thread, checkpoint_ns, checkpoint_id) /*pg WITH (fillfactor = 100)*/
) {clustered};

CREATE INDEX lg_checkpoint_by_run ON lg_checkpoint (tenant_id, run_id) WHERE run_id IS NOT NULL;

-- One row for all writes of a task. They may come before their checkpoint, hence no foreign key.
CREATE TABLE lg_checkpoint_write (
    thread        {int32} NOT NULL,
    tenant_id     {text}  NOT NULL,
    checkpoint_ns {text}  NOT NULL DEFAULT '',
    checkpoint_id {bytes} NOT NULL,
    task_id       {bytes} NOT NULL,
    task_path     {text}  NOT NULL DEFAULT '',
    writes        {bytes} NOT NULL,
    pieces        {bytes} NOT NULL,
    PRIMARY KEY (tenant_id, thread, checkpoint_ns, checkpoint_id, task_id) /*pg WITH (fillfactor = 100)*/
) {clustered};

-- A task. Its elements are rows of a2a_task_items, each stored once, so that a save writes only new elements.
CREATE TABLE a2a_tasks (
    tenant_id    {text} NOT NULL,
    id           {id}   NOT NULL,
    user_id      {text} NOT NULL DEFAULT '',
    task_id      {text} NOT NULL CHECK (task_id <> ''),
    context_id   {text} NOT NULL DEFAULT '',
    state        {text} NOT NULL DEFAULT '',
    -- When it entered that state, as reported by the agent.
    state_at     {time} NOT NULL,
    -- The task as JSON, with a count in place of each list of elements.
    frame        {text} NOT NULL,
    -- The deletion (of itself or its session) that deleted it; empty while it is live. A task id is free again once it is deleted.
    deleted_with {text} NOT NULL DEFAULT '',
    created_at   {time} NOT NULL,
    updated_at   {time} NOT NULL,
    deleted_at   {time},
    PRIMARY KEY (tenant_id, id)
) {strict};

CREATE UNIQUE INDEX a2a_tasks_by_name ON a2a_tasks (tenant_id, user_id, task_id, deleted_with);
CREATE INDEX a2a_tasks_by_context ON a2a_tasks (tenant_id, user_id, context_id, deleted_with, state_at, task_id);
CREATE INDEX a2a_tasks_by_recency ON a2a_tasks (tenant_id, user_id, deleted_with, state_at, task_id);
CREATE INDEX a2a_tasks_by_deletion ON a2a_tasks (tenant_id, deleted_with);

CREATE TABLE a2a_task_items (
    tenant_id {text}  NOT NULL,
    task      {id}    NOT NULL,
    -- 'history' or 'artifacts'
    list      {text}  NOT NULL,
    place     {int}   NOT NULL,
    -- -1 for the element itself, 0 and up for the parts of an artifact.
    part      {int}   NOT NULL,
    digest    {bytes} NOT NULL,
    body      {text}  NOT NULL,
    PRIMARY KEY (tenant_id, task, list, place, part),
    FOREIGN KEY (tenant_id, task) REFERENCES a2a_tasks (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE TABLE a2a_push_configs (
    tenant_id    {text} NOT NULL,
    user_id      {text} NOT NULL DEFAULT '',
    task_id      {text} NOT NULL CHECK (task_id <> ''),
    id           {text} NOT NULL CHECK (id <> ''),
    deleted_with {text} NOT NULL DEFAULT '',
    -- Encrypted if a key is configured; NULL after an import.
    config       {text},
    created_at   {time} NOT NULL,
    updated_at   {time} NOT NULL,
    deleted_at   {time},
    PRIMARY KEY (tenant_id, user_id, task_id, id, deleted_with)
) {strict};

CREATE INDEX a2a_push_configs_by_deletion ON a2a_push_configs (tenant_id, deleted_with);

-- down

DROP TABLE a2a_push_configs;
DROP TABLE a2a_task_items;
DROP TABLE a2a_tasks;
DROP TABLE lg_checkpoint_write;
DROP TABLE lg_checkpoint;
DROP TABLE lg_piece;
DROP TABLE lg_thread;
DROP TABLE lg_log;
DROP TABLE run_queue;
DROP TABLE tool_calls;
DROP TABLE run_steps;
DROP TABLE runs;
