-- Objects (large bodies), snapshots of workspaces, rewinds of runs, and retention of snapshots.

-- Each body is stored once per tenant, under the digest of its content.
CREATE TABLE objects (
    tenant_id    {text}  NOT NULL,
    digest       {bytes} NOT NULL,
    -- How the body is encoded: see core/objects.py.
    codec        {int}   NOT NULL,
    size_bytes   {int}   NOT NULL,
    stored_bytes {int}   NOT NULL,
    -- NULL if it is in a pack.
    body         {bytes},
    pack         {id},
    pack_start   {int},
    created_at   {time}  NOT NULL,
    -- When its last reference went. It stays if it is referenced again before it is removed.
    condemned_at {time},
    PRIMARY KEY (tenant_id, digest)
) {strict};

/*pg
-- The body is compressed already.
ALTER TABLE objects ALTER COLUMN body SET STORAGE EXTERNAL;
*/
CREATE INDEX objects_condemned ON objects (tenant_id, condemned_at) WHERE condemned_at IS NOT NULL;
CREATE INDEX objects_by_pack ON objects (tenant_id, pack) WHERE pack IS NOT NULL;

-- Files outside of the database that hold large bodies. The row is written before its file and removed after it.
CREATE TABLE object_packs (
    tenant_id    {text} NOT NULL,
    id           {id}   NOT NULL,
    size_bytes   {int}  NOT NULL,
    -- Whether it is complete and objects refer to it.
    is_sealed    {bool} NOT NULL,
    created_at   {time} NOT NULL,
    condemned_at {time},
    PRIMARY KEY (tenant_id, id)
) {clustered};

-- Totals over the objects of a tenant.
CREATE TABLE object_totals (
    tenant_id    {text} NOT NULL,
    count        {int}  NOT NULL,
    size_bytes   {int}  NOT NULL,
    stored_bytes {int}  NOT NULL,
    PRIMARY KEY (tenant_id)
) {clustered} /*pg WITH (fillfactor = 70)*/;

CREATE TABLE object_refs (
    tenant_id {text}  NOT NULL,
    digest    {bytes} NOT NULL,
    holder    {text}  NOT NULL,
    PRIMARY KEY (tenant_id, digest, holder)
) {clustered};

CREATE INDEX object_refs_by_holder ON object_refs (tenant_id, holder);

-- Snapshots of directory trees consist of layers: each is a whole tree, or the difference to the layer below it, and may carry
-- several snapshots and further layers.
CREATE TABLE snapshot_layers (
    tenant_id      {text}  NOT NULL,
    id             {id}    NOT NULL,
    -- The layer below it; NULL if it is a whole tree.
    parent_id      {id},
    -- How many layers are below it.
    depth          {int}   NOT NULL,
    -- The object that lists its entries.
    manifest       {bytes} NOT NULL,
    -- Size of the objects that were stored for it.
    stored_bytes   {int}   NOT NULL,
    -- Size of the files below that it replaces or removes: can be freed once no snapshot needs the layer below.
    replaced_bytes {int}   NOT NULL,
    created_at     {time}  NOT NULL,
    PRIMARY KEY (tenant_id, id)
) {clustered};

CREATE INDEX snapshot_layers_by_parent ON snapshot_layers (tenant_id, parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE snapshots (
    tenant_id   {text} NOT NULL,
    id          {id}   NOT NULL,
    run_id      {id}   NOT NULL,
    -- The iteration of the run after which it was taken.
    step        {int},
    -- The snapshot it was taken after; it may have been removed.
    parent_id   {id},
    kind        {text} NOT NULL,
    layer_id    {id}   NOT NULL,
    entry_count {int}  NOT NULL,
    -- Size of all files in it.
    tree_bytes  {int}  NOT NULL,
    -- Bytes that had to be stored for it.
    size_bytes  {int}  NOT NULL,
    depth       {int}  NOT NULL,
    created_at  {time} NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE,
    CHECK (kind IN ('step', 'dirty', 'imported'))
) {clustered};

CREATE INDEX snapshots_by_run ON snapshots (tenant_id, run_id, created_at, id);
CREATE INDEX snapshots_by_time ON snapshots (tenant_id, created_at, id);
CREATE INDEX snapshots_by_layer ON snapshots (tenant_id, layer_id);

-- Rewinds of runs: the step a run was taken back to, and the data to redo it. Steps and tool calls that a rewind removes from
-- the run are kept here unchanged.
CREATE TABLE rewinds (
    tenant_id      {text} NOT NULL,
    id             {id}   NOT NULL,
    run_id         {id}   NOT NULL,
    from_step      {int}  NOT NULL,
    to_step        {int}  NOT NULL,
    status         {text} NOT NULL,
    -- Where the tree is; NULL if the worker that next claims the run restores its own workspace.
    path           {text},
    -- The snapshot that the rewind restores, and the one of the tree before.
    snapshot       {text},
    dirty          {text},
    -- Why the tree is not restored yet; NULL once the rewind or redo is finished.
    pending_reason {text},
    -- The branches that the session showed before and after.
    branch_before  {int}  NOT NULL,
    branch_after   {int}  NOT NULL,
    -- Identifies step to_step: a run may reach the same number again in another way.
    anchor         {text} NOT NULL,
    -- The run as it was, and the child runs whose tool calls were removed.
    run_before     {json} NOT NULL,
    created_at     {time} NOT NULL,
    finished_at    {time},
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE,
    CHECK (status IN ('rewinding', 'rewound', 'redoing', 'redone'))
) {strict};

CREATE INDEX rewinds_by_run ON rewinds (tenant_id, run_id, id);
-- Rewinds whose tree is not restored yet.
CREATE INDEX rewinds_open ON rewinds (tenant_id, id) WHERE status IN ('rewinding', 'redoing');

CREATE TABLE rewound_steps (
    tenant_id        {text} NOT NULL,
    rewind_id        {id}   NOT NULL,
    iteration        {int}  NOT NULL,
    epoch            {int}  NOT NULL,
    state            {json} NOT NULL,
    last_tool_result {text},
    first_seq        {int},
    last_seq         {int},
    input_tokens     {int}  NOT NULL,
    output_tokens    {int}  NOT NULL,
    snapshot         {text},
    fingerprint      {text} NOT NULL,
    created_at       {time} NOT NULL,
    PRIMARY KEY (tenant_id, rewind_id, iteration),
    FOREIGN KEY (tenant_id, rewind_id) REFERENCES rewinds (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE TABLE rewound_calls (
    tenant_id   {text} NOT NULL,
    rewind_id   {id}   NOT NULL,
    id          {text} NOT NULL,
    tool_name   {text} NOT NULL,
    tool_input  {json} NOT NULL,
    safety      {text} NOT NULL,
    status      {text} NOT NULL,
    iteration   {int}  NOT NULL,
    place       {int}  NOT NULL,
    epoch       {int}  NOT NULL,
    attempts    {int}  NOT NULL,
    pause_until {time},
    result      {json},
    error       {text},
    step        {int},
    started_at  {time} NOT NULL,
    finished_at {time},
    PRIMARY KEY (tenant_id, rewind_id, id),
    FOREIGN KEY (tenant_id, rewind_id) REFERENCES rewinds (tenant_id, id) ON DELETE CASCADE
) {strict};

-- A tenant's own retention settings; NULL means the default.
CREATE TABLE retention_policies (
    tenant_id  {text} NOT NULL,
    per_run    {int}  CHECK (per_run > 0),
    grace_s    {int}  CHECK (grace_s >= 0),
    created_at {time} NOT NULL,
    updated_at {time} NOT NULL,
    PRIMARY KEY (tenant_id)
) {clustered};

-- A run's own retention settings; NULL means those of its tenant.
CREATE TABLE run_retention (
    tenant_id   {text} NOT NULL,
    run_id      {id}   NOT NULL,
    per_run     {int}  CHECK (per_run > 0),
    -- Seconds to keep its snapshots after its end, if longer than the grace period.
    keep_s      {int}  CHECK (keep_s >= 0),
    -- If it was rewound after it had ended: when it had ended, and its epoch since. The grace period goes on until it is claimed.
    ended_at    {time},
    ended_epoch {int},
    created_at  {time} NOT NULL,
    updated_at  {time} NOT NULL,
    PRIMARY KEY (tenant_id, run_id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, id) ON DELETE CASCADE
) {clustered};

-- Holds on the snapshots of a run, of a session or, where neither is named, of the tenant.
CREATE TABLE retention_holds (
    tenant_id  {text} NOT NULL,
    id         {id}   NOT NULL,
    run_id     {id},
    session_id {id},
    reason     {text} NOT NULL CHECK (reason <> ''),
    placed_by  {text} NOT NULL DEFAULT '',
    -- Whether the tenant's own key placed it: such a hold does not prevent erasure of the tenant.
    by_tenant  {bool} NOT NULL DEFAULT FALSE,
    created_at {time} NOT NULL,
    PRIMARY KEY (tenant_id, id)
) {clustered};

-- One row per tenant that was ever swept. Removing snapshots by a rule and placing a hold both lock it first, so that neither
-- misses the other. Every claim raises the epoch; writes with an older one are refused.
CREATE TABLE retention_sweeps (
    tenant_id   {text} NOT NULL,
    epoch       {int}  NOT NULL DEFAULT 0,
    holder      {text} NOT NULL DEFAULT '',
    lease_until {time},
    finished_at {time},
    PRIMARY KEY (tenant_id)
) {clustered} /*pg WITH (fillfactor = 70)*/;

-- down

DROP TABLE retention_sweeps;
DROP TABLE retention_holds;
DROP TABLE run_retention;
DROP TABLE retention_policies;
DROP TABLE rewound_calls;
DROP TABLE rewound_steps;
DROP TABLE rewinds;
DROP TABLE snapshots;
DROP TABLE snapshot_layers;
DROP TABLE object_refs;
DROP TABLE object_totals;
DROP TABLE object_packs;
DROP TABLE objects;
