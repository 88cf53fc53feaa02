-- Pairing of senders on channels: requests, each with a code, and the senders that were approved.

CREATE TABLE pairing_requests (
    tenant_id  {text} NOT NULL,
    id         {id}   NOT NULL,
    -- In plain text: the code is shown to the sender again, and only callers who may list the requests can use it.
    code       {text} NOT NULL,
    sender_id  {text} NOT NULL,
    channel    {text} NOT NULL,
    chat_id    {text} NOT NULL,
    account_id {text} NOT NULL,
    -- From 1 to the number of requests that an account may have: concurrent calls cannot exceed it.
    slot       {int}  NOT NULL,
    metadata   {json} NOT NULL,
    created_at {time} NOT NULL,
    expires_at {time} NOT NULL,
    PRIMARY KEY (tenant_id, id)
) {strict};

CREATE UNIQUE INDEX pairing_requests_by_code ON pairing_requests (tenant_id, code);
CREATE UNIQUE INDEX pairing_requests_by_sender ON pairing_requests (tenant_id, channel, sender_id);
CREATE UNIQUE INDEX pairing_requests_by_slot ON pairing_requests (tenant_id, account_id, slot);
CREATE INDEX pairing_requests_by_expiry ON pairing_requests (tenant_id, expires_at, id);

CREATE TABLE paired_devices (
    tenant_id  {text} NOT NULL,
    id         {id}   NOT NULL,
    sender_id  {text} NOT NULL,
    channel    {text} NOT NULL,
    chat_id    {text} NOT NULL,
    paired_by  {text} NOT NULL,
    metadata   {json} NOT NULL,
    paired_at  {time} NOT NULL,
    expires_at {time} NOT NULL,
    PRIMARY KEY (tenant_id, id)
) {strict};

CREATE UNIQUE INDEX paired_devices_by_sender ON paired_devices (tenant_id, channel, sender_id);
CREATE INDEX paired_devices_by_time ON paired_devices (tenant_id, paired_at, id);
CREATE INDEX paired_devices_by_expiry ON paired_devices (tenant_id, expires_at, id);

-- down

DROP TABLE paired_devices;
DROP TABLE pairing_requests;
