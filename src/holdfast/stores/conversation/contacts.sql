-- name: upsert
-- Insert or update a contact that was seen. Empty arguments keep the stored values.
INSERT INTO contacts (tenant_id, id, channel_type, sender_id, channel_instance, user_id, display_name, username, avatar_url,
                      peer_kind, metadata, search_name, search_username, search_sender, first_seen_at, last_seen_at)
VALUES (:tenant_id, :id, :channel_type, :sender_id, :channel_instance, :user_id, :display_name, :username, :avatar_url,
        :peer_kind, :metadata, :search_name, :search_username, :search_sender, :now_at, :now_at)
ON CONFLICT (tenant_id, channel_type, sender_id) DO UPDATE SET
    channel_instance = COALESCE(NULLIF(excluded.channel_instance, ''), contacts.channel_instance),
    user_id = COALESCE(NULLIF(excluded.user_id, ''), contacts.user_id),
    display_name = COALESCE(NULLIF(excluded.display_name, ''), contacts.display_name),
    username = COALESCE(NULLIF(excluded.username, ''), contacts.username),
    avatar_url = COALESCE(NULLIF(excluded.avatar_url, ''), contacts.avatar_url),
    peer_kind = COALESCE(NULLIF(excluded.peer_kind, ''), contacts.peer_kind),
    metadata = COALESCE(NULLIF(excluded.metadata, '{}'), contacts.metadata),
    search_name = COALESCE(NULLIF(excluded.search_name, ''), contacts.search_name),
    search_username = COALESCE(NULLIF(excluded.search_username, ''), contacts.search_username),
    last_seen_at = excluded.last_seen_at
RETURNING /*columns Contact*/ *;

-- name: find
SELECT /*columns Contact*/ * FROM contacts/*index*/
WHERE tenant_id = :tenant_id AND channel_type = :channel_type AND sender_id = :sender_id;

-- name: by_sender_ids @sqlite
-- Contacts by their sender ids, the contact seen last at the end.
SELECT /*columns Contact*/ * FROM contacts/*index*/
WHERE tenant_id = :tenant_id AND sender_id IN (SELECT value FROM json_each(:sender_ids))
ORDER BY last_seen_at, id;

-- name: by_sender_ids @postgres
SELECT /*columns Contact*/ * FROM contacts
WHERE tenant_id = :tenant_id AND sender_id = ANY(:sender_ids::text[])
ORDER BY last_seen_at, id;

-- name: search
-- Contacts with a prefix. Each kind of prefix is looked up in its index, and then the contacts by their ids;
-- CROSS JOIN makes SQLite keep this order.
SELECT /*columns Contact contacts*/ * FROM (
    SELECT DISTINCT found_id FROM (
        SELECT id AS found_id FROM contacts WHERE tenant_id = :tenant_id AND search_name >= :prefix AND search_name < :beyond
        UNION ALL
        SELECT id FROM contacts WHERE tenant_id = :tenant_id AND search_username >= :prefix AND search_username < :beyond
        UNION ALL
        SELECT id FROM contacts WHERE tenant_id = :tenant_id AND search_sender >= :prefix AND search_sender < :beyond
    ) AS begins
) AS found
CROSS JOIN contacts
WHERE tenant_id = :tenant_id AND id = found_id/*where*/
ORDER BY last_seen_at DESC, id DESC
LIMIT :limit;

-- name: count_found
SELECT COUNT(*) FROM (
    SELECT DISTINCT found_id FROM (
        SELECT id AS found_id FROM contacts WHERE tenant_id = :tenant_id AND search_name >= :prefix AND search_name < :beyond
        UNION ALL
        SELECT id FROM contacts WHERE tenant_id = :tenant_id AND search_username >= :prefix AND search_username < :beyond
        UNION ALL
        SELECT id FROM contacts WHERE tenant_id = :tenant_id AND search_sender >= :prefix AND search_sender < :beyond
    ) AS begins
) AS found
CROSS JOIN contacts
WHERE tenant_id = :tenant_id AND id = found_id/*where*/;

-- name: involved @sqlite
-- These contacts, and all contacts that are merged with one of them.
SELECT id FROM contacts WHERE tenant_id = :tenant_id AND id IN (SELECT value FROM json_each(:ids))
UNION
SELECT other.id FROM contacts AS given CROSS JOIN contacts AS other
WHERE given.tenant_id = :tenant_id AND other.tenant_id = :tenant_id AND other.merged_id = given.merged_id
  AND given.id IN (SELECT value FROM json_each(:ids));

-- name: involved @postgres
SELECT id::text FROM contacts WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[])
UNION
SELECT other.id::text FROM contacts AS given JOIN contacts AS other ON other.merged_id = given.merged_id
WHERE given.tenant_id = :tenant_id AND other.tenant_id = :tenant_id AND given.id = ANY(:ids::uuid[]);

-- name: lock @sqlite
-- Locked until the transaction ends; always in the order of their ids, to prevent deadlocks.
SELECT id, merged_id FROM contacts
WHERE tenant_id = :tenant_id AND id IN (SELECT value FROM json_each(:ids))
ORDER BY id;

-- name: lock @postgres
SELECT id::text, merged_id::text FROM contacts
WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[])
ORDER BY contacts.id
FOR UPDATE;

-- name: regroup @sqlite
UPDATE contacts SET merged_id = :merged_id
WHERE tenant_id = :tenant_id AND id IN (SELECT value FROM json_each(:ids));

-- name: regroup @postgres
UPDATE contacts SET merged_id = :merged_id::uuid
WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[]);
