-- Model providers, their models, and other secrets of a tenant's configuration.

CREATE TABLE llm_providers (
    tenant_id     {text} NOT NULL,
    id            {id}   NOT NULL,
    name          {text} NOT NULL,
    display_name  {text} NOT NULL,
    provider_type {text} NOT NULL,
    api_base      {text} NOT NULL,
    -- Encrypted.
    api_key       {text},
    is_enabled    {bool} NOT NULL,
    settings      {json} NOT NULL,
    version       {int}  NOT NULL DEFAULT 1,
    created_at    {time} NOT NULL,
    updated_at    {time} NOT NULL,
    PRIMARY KEY (tenant_id, id)
) {strict};

CREATE UNIQUE INDEX llm_providers_by_name ON llm_providers (tenant_id, name);

CREATE TABLE llm_models (
    tenant_id                {text} NOT NULL,
    id                       {id}   NOT NULL,
    provider_id              {id}   NOT NULL,
    name                     {text} NOT NULL,
    display_name             {text} NOT NULL,
    context_window           {int},
    max_output_tokens        {int},
    -- Millionths of a US dollar for a million tokens; NULL if unknown.
    input_price_micros       {int},
    output_price_micros      {int},
    cache_read_price_micros  {int},
    cache_write_price_micros {int},
    capabilities             {json} NOT NULL,
    is_enabled               {bool} NOT NULL,
    is_default               {bool} NOT NULL,
    version                  {int}  NOT NULL DEFAULT 1,
    created_at               {time} NOT NULL,
    updated_at               {time} NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, provider_id) REFERENCES llm_providers (tenant_id, id) ON DELETE CASCADE
) {strict};

CREATE UNIQUE INDEX llm_models_by_name ON llm_models (tenant_id, provider_id, name);
CREATE UNIQUE INDEX llm_models_by_default ON llm_models (tenant_id, provider_id) WHERE is_default;

CREATE TABLE config_secrets (
    tenant_id  {text} NOT NULL,
    key        {text} NOT NULL,
    -- Encrypted; NULL after an import, because an export contains names only.
    value      {text},
    created_at {time} NOT NULL,
    updated_at {time} NOT NULL,
    PRIMARY KEY (tenant_id, key)
) {clustered};

-- down

DROP TABLE config_secrets;
DROP TABLE llm_models;
DROP TABLE llm_providers;
