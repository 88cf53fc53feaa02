-- name: visit
-- Create the profile of a user, or record that the user was seen again; and whether it was created. SELECT and not VALUES, so
-- that the agent must exist.
INSERT INTO agent_profiles (tenant_id, agent_id, user_id, workspace, metadata, created_at, updated_at, last_seen_at)
SELECT :tenant_id, a.id, :user_id /*pg ::text*/, :workspace, :metadata /*pg ::jsonb*/, :now_at /*pg ::timestamptz*/, :now_at, :now_at
FROM agents AS a
WHERE a.tenant_id = :tenant_id AND a.id = :agent_id AND a.deleted_at IS NULL
ON CONFLICT (tenant_id, agent_id, user_id) DO UPDATE SET
    visits = agent_profiles.visits + 1,
    last_seen_at = excluded.last_seen_at
RETURNING /*columns Profile*/ *, visits = 1;

-- name: users
-- The users of an agent, the one seen last first, and the number of their context files that apply.
SELECT /*columns Profile p*/ *, (
    SELECT COUNT(*) FROM context_files AS f
    WHERE f.tenant_id = :tenant_id AND f.agent_id = p.agent_id AND f.user_id = p.user_id
      AND (f.file_name = :user_file
           OR EXISTS (SELECT 1 FROM agents AS a
                      WHERE a.tenant_id = :tenant_id AND a.id = f.agent_id AND a.agent_type <> 'predefined')))
FROM agent_profiles AS p
WHERE p.tenant_id = :tenant_id AND p.agent_id = :agent_id
  AND EXISTS (SELECT 1 FROM agents AS a WHERE a.tenant_id = :tenant_id AND a.id = :agent_id AND a.deleted_at IS NULL)/*where*/
ORDER BY p.last_seen_at DESC, p.user_id DESC
LIMIT :limit;
