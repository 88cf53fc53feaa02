-- Resources that manifests declare, with the rows of other tables that they brought about.

CREATE TABLE declared_resources (
    tenant_id   {text} NOT NULL,
    ref         {text} NOT NULL CHECK (ref <> ''),
    kind        {text} NOT NULL,
    namespace   {text} NOT NULL,
    name        {text} NOT NULL,
    api_version {text} NOT NULL,
    -- The set of manifests that it belongs to.
    source      {text} NOT NULL,
    applied_by  {text} NOT NULL,
    metadata    {json} NOT NULL,
    spec        {json} NOT NULL,
    -- Encrypted: the values that the specification shows as asterisks.
    secrets     {text},
    rows        {json} NOT NULL,
    version     {int}  NOT NULL DEFAULT 1,
    created_at  {time} NOT NULL,
    updated_at  {time} NOT NULL,
    deleted_at  {time},
    PRIMARY KEY (tenant_id, ref)
) {strict};

CREATE INDEX declared_resources_by_source ON declared_resources (tenant_id, source, ref) WHERE deleted_at IS NULL;

-- down

DROP TABLE declared_resources;
