-- What was done to whom, by whom and why. Rows are added and never changed; they go with their tenant.

CREATE TABLE activity (
    tenant_id    TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    -- Empty where nobody in particular did it: a worker, a policy.
    actor        TEXT    NOT NULL DEFAULT '',
    action       TEXT    NOT NULL CHECK (action <> ''),
    subject_kind TEXT    NOT NULL DEFAULT '',
    subject_id   TEXT    NOT NULL DEFAULT '',
    reason       TEXT    NOT NULL DEFAULT '',
    details      TEXT    NOT NULL DEFAULT '{}',
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, id)
) STRICT;

CREATE INDEX activity_by_time ON activity (tenant_id, created_at, id);
CREATE INDEX activity_by_actor ON activity (tenant_id, actor, created_at, id);
CREATE INDEX activity_by_action ON activity (tenant_id, action, created_at, id);
CREATE INDEX activity_by_subject ON activity (tenant_id, subject_kind, subject_id, created_at, id);
