-- name: find_request
SELECT /*columns PairingRequest*/ * FROM pairing_requests
WHERE tenant_id = :tenant_id AND channel = :channel AND sender_id = :sender_id AND expires_at > :now_at;

-- name: slots
SELECT slot FROM pairing_requests
WHERE tenant_id = :tenant_id AND account_id = :account_id AND expires_at > :now_at;

-- name: request
-- Return nothing if another call has taken the slot, or has made a request for the same sender.
INSERT INTO pairing_requests (tenant_id, id, code, sender_id, channel, chat_id, account_id, slot, metadata,
    created_at, expires_at)
VALUES (:tenant_id, :id, :code, :sender_id, :channel, :chat_id, :account_id, :slot, :metadata, :now_at, :expires_at)
ON CONFLICT DO NOTHING
RETURNING /*columns PairingRequest*/ *;

-- name: take_request
-- Of several calls with one code, one gets the request.
DELETE FROM pairing_requests WHERE tenant_id = :tenant_id AND code = :code AND expires_at > :now_at
RETURNING /*columns PairingRequest*/ *;

-- name: pair
INSERT INTO paired_devices (tenant_id, id, sender_id, channel, chat_id, paired_by, metadata, paired_at, expires_at)
VALUES (:tenant_id, :id, :sender_id, :channel, :chat_id, :paired_by, :metadata, :now_at, :expires_at)
ON CONFLICT (tenant_id, channel, sender_id) DO UPDATE SET
    chat_id = excluded.chat_id, paired_by = excluded.paired_by, metadata = excluded.metadata,
    paired_at = excluded.paired_at, expires_at = excluded.expires_at
RETURNING /*columns PairedDevice*/ *;

-- name: is_paired
SELECT 1 FROM paired_devices
WHERE tenant_id = :tenant_id AND channel = :channel AND sender_id = :sender_id AND expires_at > :now_at;

-- name: revoke
-- An expired device is removed too, and not reported.
DELETE FROM paired_devices WHERE tenant_id = :tenant_id AND channel = :channel AND sender_id = :sender_id
RETURNING expires_at > :now_at;

-- name: prune_requests
DELETE FROM pairing_requests WHERE tenant_id = :tenant_id AND id IN (
    SELECT id FROM pairing_requests WHERE tenant_id = :tenant_id AND expires_at <= :now_at
    ORDER BY expires_at, id
    LIMIT :limit /*pg FOR UPDATE SKIP LOCKED*/);

-- name: prune_devices
DELETE FROM paired_devices WHERE tenant_id = :tenant_id AND id IN (
    SELECT id FROM paired_devices WHERE tenant_id = :tenant_id AND expires_at <= :now_at
    ORDER BY expires_at, id
    LIMIT :limit /*pg FOR UPDATE SKIP LOCKED*/);
