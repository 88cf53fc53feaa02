-- The logs of an agent's sessions, merged from their ends by time. A log stays in its own order: the time of a message is the
-- earliest time at which it, or a later message of the log, was created. So the remaining messages of a log are always
-- its beginning, and every query below reads a log backwards through the primary key, only as far as needed.

-- part: ends @sqlite
WITH recent AS MATERIALIZED (
    -- The sessions that were used last.
    SELECT id, updated_minute, COALESCE(view, '[[1, 1099511627775]]') AS view FROM sessions/*index*/
    WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND deleted_at IS NULL AND updated_minute >= :since_minute
    ORDER BY updated_minute DESC
    LIMIT :sessions
), ends AS MATERIALIZED (
    -- The ranges of positions that they show, each with its last message before the cursor and its last one before the start.
    SELECT s.id, r.key AS place, r.value ->> 0 AS first, r.value ->> 1 AS last,
        (SELECT m.seq FROM messages AS m
         WHERE m.tenant_id = :tenant_id AND m.session_id = s.id AND m.seq >= r.value ->> 0 AND m.seq <= r.value ->> 1
           AND CASE WHEN s.id = :before_id THEN (m.seq & 1099511627775) < :before_seq
                    WHEN s.id < :before_id THEN m.created_at <= :before_at ELSE m.created_at < :before_at END/*where*/
         ORDER BY m.seq DESC LIMIT 1) AS newest,
        CASE WHEN :since_at IS NOT NULL THEN
            (SELECT m.seq FROM messages AS m
             WHERE m.tenant_id = :tenant_id AND m.session_id = s.id AND m.seq >= r.value ->> 0 AND m.seq <= r.value ->> 1
               AND m.created_at < :since_at/*where*/
             ORDER BY m.seq DESC LIMIT 1) END AS older
    FROM recent AS s CROSS JOIN json_each(s.view) AS r
)

-- part: ends @postgres
WITH recent AS MATERIALIZED (
    SELECT id, updated_minute, COALESCE(view, '[[1, 1099511627775]]') AS view FROM sessions
    WHERE tenant_id = :tenant_id AND agent_id = :agent_id AND deleted_at IS NULL AND updated_minute >= :since_minute
    ORDER BY updated_minute DESC
    LIMIT :sessions
), ranges AS MATERIALIZED (
    SELECT s.id, r.place, (r.span ->> 0)::bigint AS first, (r.span ->> 1)::bigint AS last
    FROM recent AS s CROSS JOIN LATERAL jsonb_array_elements(s.view) WITH ORDINALITY AS r (span, place)
), ends AS MATERIALIZED (
    SELECT r.id, r.place, r.first, r.last,
        (SELECT m.seq FROM messages AS m
         WHERE m.tenant_id = :tenant_id AND m.session_id = r.id AND m.seq >= r.first AND m.seq <= r.last
           AND CASE WHEN r.id = :before_id::uuid THEN (m.seq & 1099511627775) < :before_seq::bigint
                    WHEN r.id < :before_id::uuid THEN m.created_at <= :before_at ELSE m.created_at < :before_at END/*where*/
         ORDER BY m.seq DESC LIMIT 1) AS newest,
        CASE WHEN :since_at::timestamptz IS NOT NULL THEN
            (SELECT m.seq FROM messages AS m
             WHERE m.tenant_id = :tenant_id AND m.session_id = r.id AND m.seq >= r.first AND m.seq <= r.last
               AND m.created_at < :since_at/*where*/
             ORDER BY m.seq DESC LIMIT 1) END AS older
    FROM ranges AS r
)

-- part: spans
-- What remains of each range: up to the last message before the cursor, from after the last one before the start.
, spans AS MATERIALIZED (
    SELECT id, CASE WHEN older IS NULL THEN first ELSE older + 1 END AS low, CASE WHEN place = top THEN newest ELSE last END AS high
    FROM (SELECT id, place, first, last, newest, older,
                 MAX(CASE WHEN newest IS NOT NULL THEN place END) OVER (PARTITION BY id) AS top,
                 MAX(CASE WHEN older IS NOT NULL THEN place END) OVER (PARTITION BY id) AS base
          FROM ends) AS e
    WHERE place <= top AND (base IS NULL OR place >= base)
)

-- part: candidates @sqlite
-- As many messages of each range as one page has.
, candidates AS MATERIALIZED (
    SELECT s.id, m.seq, m.created_at FROM spans AS s
    CROSS JOIN messages AS m ON m.tenant_id = :tenant_id AND m.session_id = s.id AND m.seq <= s.high AND m.seq >= COALESCE(
        (SELECT m.seq FROM messages AS m
         WHERE m.tenant_id = :tenant_id AND m.session_id = s.id AND m.seq >= s.low AND m.seq <= s.high/*where*/
         ORDER BY m.seq DESC LIMIT 1 OFFSET :limit - 1), s.low)/*where*/
)

-- part: candidates @postgres
, candidates AS MATERIALIZED (
    SELECT s.id, m.seq, m.created_at FROM spans AS s
    CROSS JOIN LATERAL (
        SELECT seq, created_at FROM messages
        WHERE tenant_id = :tenant_id AND session_id = s.id AND seq >= s.low AND seq <= s.high/*where*/
        ORDER BY seq DESC LIMIT :limit
    ) AS m
)

-- part: chosen
-- The newest of them all.
, timed AS (
    SELECT id, seq, MIN(created_at) OVER (PARTITION BY id ORDER BY (seq & 1099511627775) DESC) AS earliest FROM candidates
), chosen AS MATERIALIZED (
    SELECT id, seq, CASE WHEN earliest > :before_at THEN :before_at ELSE earliest END AS moment FROM timed
    ORDER BY moment DESC, id DESC, (seq & 1099511627775) DESC
    LIMIT :limit
), bound AS (
    SELECT COUNT(*) AS sessions, MIN(updated_minute) AS oldest_minute FROM recent
)

-- name: list
-- The newest messages that remain, in any order, and which sessions were read; at least one row, of NULLs if there is no message.
/*part ends*/
/*part spans*/
/*part candidates*/
/*part chosen*/
SELECT /*columns Message m*/ *, c.moment, b.sessions, b.oldest_minute
FROM bound AS b
LEFT JOIN chosen AS c ON TRUE
LEFT JOIN /*pg LATERAL (SELECT * FROM */ messages
    /*pg WHERE tenant_id = :tenant_id AND session_id = c.id AND seq = c.seq OFFSET 0) */ AS m
    ON m.tenant_id = :tenant_id AND m.session_id = c.id AND m.seq = c.seq;

-- name: sizes
-- The same in order, with the number of characters of each content instead of the messages.
/*part ends*/
/*part spans*/
/*part candidates*/
/*part chosen*/
SELECT (SELECT LENGTH(m.content/*pg ::text*/) FROM messages AS m
        WHERE m.tenant_id = :tenant_id AND m.session_id = c.id AND m.seq = c.seq), c.moment, b.sessions, b.oldest_minute
FROM bound AS b
LEFT JOIN chosen AS c ON TRUE
ORDER BY c.moment DESC, c.id DESC, (c.seq & 1099511627775) DESC;
