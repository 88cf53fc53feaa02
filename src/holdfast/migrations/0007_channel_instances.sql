-- Channel instances: the connections of agents to chat platforms.

CREATE TABLE channel_instances (
    tenant_id    {text} NOT NULL,
    id           {id}   NOT NULL,
    name         {text} NOT NULL,
    display_name {text} NOT NULL,
    channel_type {text} NOT NULL,
    agent_id     {text} NOT NULL,
    credentials  {text},
    config       {json} NOT NULL,
    is_enabled   {bool} NOT NULL,
    created_by   {text} NOT NULL,
    version      {int}  NOT NULL DEFAULT 1,
    created_at   {time} NOT NULL,
    updated_at   {time} NOT NULL,
    PRIMARY KEY (tenant_id, id)
) {strict};

CREATE UNIQUE INDEX channel_instances_by_name ON channel_instances (tenant_id, name);

-- down

DROP TABLE channel_instances;
