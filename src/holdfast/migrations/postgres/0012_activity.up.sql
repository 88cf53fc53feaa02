-- What was done to whom, by whom and why. Rows are added and never changed; they go with their tenant.

CREATE TABLE activity (
    tenant_id    TEXT COLLATE "C" NOT NULL,
    id           UUID             NOT NULL,
    -- Empty where nobody in particular did it: a worker, a policy.
    actor        TEXT COLLATE "C" NOT NULL DEFAULT '',
    action       TEXT COLLATE "C" NOT NULL CHECK (action <> ''),
    subject_kind TEXT COLLATE "C" NOT NULL DEFAULT '',
    subject_id   TEXT COLLATE "C" NOT NULL DEFAULT '',
    reason       TEXT COLLATE "C" NOT NULL DEFAULT '',
    details      JSONB            NOT NULL DEFAULT '{}',
    created_at   TIMESTAMPTZ      NOT NULL,
    PRIMARY KEY (tenant_id, id)
);

CREATE INDEX activity_by_time ON activity (tenant_id, created_at, id);
CREATE INDEX activity_by_actor ON activity (tenant_id, actor, created_at, id);
CREATE INDEX activity_by_action ON activity (tenant_id, action, created_at, id);
CREATE INDEX activity_by_subject ON activity (tenant_id, subject_kind, subject_id, created_at, id);
