-- name: save
-- A memory with an existing id is replaced.
INSERT INTO crewai_agent_memory (tenant_id, user_id, thread_id, memory_id, content, scope, categories, metadata, importance,
                                 source, is_private, embedding, dimensions, created_at, accessed_at, updated_at)
VALUES (:tenant_id, :user_id, :thread_id, :memory_id, :content, :scope, :categories, :metadata, :importance,
        :source, :is_private, :embedding, :dimensions, :created_at, :accessed_at, :now_at)
ON CONFLICT (tenant_id, user_id, thread_id, memory_id) DO UPDATE SET
    content = excluded.content, scope = excluded.scope, categories = excluded.categories, metadata = excluded.metadata,
    importance = excluded.importance, source = excluded.source, is_private = excluded.is_private,
    embedding = excluded.embedding, dimensions = excluded.dimensions, created_at = excluded.created_at,
    accessed_at = excluded.accessed_at, updated_at = excluded.updated_at;

-- name: get
SELECT /*columns CrewMemory*/ * FROM crewai_agent_memory
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND memory_id = :memory_id;

-- name: list
-- The newest first.
SELECT /*columns CrewMemory*/ * FROM crewai_agent_memory
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id/*where*/
ORDER BY created_at DESC, memory_id DESC
LIMIT :limit OFFSET :offset;

-- name: candidates
-- Embeddings to compare, one slice at a time.
SELECT memory_id, embedding, categories/*pg ::text*/, metadata/*pg ::text*/ FROM crewai_agent_memory
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND dimensions = :dimensions
  AND memory_id > :after/*where*/
ORDER BY memory_id
LIMIT :limit;

-- name: chosen
-- Categories and metadata to filter, one slice at a time.
SELECT memory_id, categories/*pg ::text*/, metadata/*pg ::text*/ FROM crewai_agent_memory
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND memory_id > :after/*where*/
ORDER BY memory_id
LIMIT :limit;

-- name: touch
UPDATE crewai_agent_memory SET accessed_at = :now_at
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND memory_id /*in ids text*/
RETURNING 1;

-- name: delete
DELETE FROM crewai_agent_memory
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND memory_id /*in ids text*//*where*/
RETURNING 1;

-- name: delete_all
DELETE FROM crewai_agent_memory
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id/*where*/
RETURNING 1;

-- name: scopes
SELECT scope, COUNT(*), MIN(created_at), MAX(created_at) FROM crewai_agent_memory
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id/*where*/
GROUP BY scope
ORDER BY scope;

-- name: categories
-- The number of memories with exactly the same categories.
SELECT categories/*pg ::text*/, COUNT(*) FROM crewai_agent_memory
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id/*where*/
GROUP BY categories;

-- name: other_dimensions
-- One size of stored embeddings that differs from the given one: two ranges of one index, whatever the number of memories.
SELECT MIN(dimensions) FROM (
    SELECT MIN(dimensions) AS dimensions FROM crewai_agent_memory
    WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id
      AND dimensions > 0 AND dimensions < :dimensions
    UNION ALL
    SELECT MIN(dimensions) FROM crewai_agent_memory
    WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND dimensions > :dimensions
) AS others;

-- name: dimensions
SELECT dimensions, COUNT(*) FROM crewai_agent_memory
WHERE tenant_id = :tenant_id AND user_id = :user_id AND thread_id = :thread_id AND dimensions > 0/*where*/
GROUP BY dimensions
ORDER BY COUNT(*) DESC, dimensions;
