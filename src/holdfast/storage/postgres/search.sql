-- The statements of a search and of connections to its index, by name; columns and parts of
-- statements are named as in statements.sql. In statements that read the log, $1 is the tenant.

-- ------------------------------------------------------------------------------- connections

-- name: lock
SELECT pg_advisory_xact_lock($1)

-- name: lock_timeout
SELECT set_config('lock_timeout', $1, true)

-- True if words of all scripts can be stored, and the role may read the tables.
-- name: usable
SELECT getdatabaseencoding() = 'UTF8' AND coalesce(has_table_privilege(to_regclass('indexes'),
  'SELECT'), false) AND coalesce(has_table_privilege(to_regclass('indexed'), 'SELECT'), false)

-- ----------------------------------------------------------------------------------- titles

-- Titles that are not plain ASCII may fold to any letters, so all of them are returned. Plain ones can
-- only match words of ASCII: titles_plain adds those that hold the words.
-- name: titles
SELECT {owner} FROM sessions s JOIN heads h ON h.tenant = $1 AND h.session = s.n
WHERE s.tenant = $1 AND s.title_mark IS NOT NULL AND s.trashed_at IS NULL AND (NOT s.plain

-- name: titles_plain
OR true

-- name: titles_with
AND position({word} IN s.loose) > 0

-- name: titles_end
) ORDER BY s.n

-- -------------------------------------------------------------------------------- sessions

-- OFFSET 0 makes the planner look each row up by itself: it would expect many rows, and read whole
-- tables.

-- Sessions by their ids ($2), and their ancestors by fork, including the stubs of purged sessions.
-- name: relatives
WITH RECURSIVE up AS (
  SELECT s.id, s.parent, s.relation FROM unnest($2::bytea[]) AS wanted (id)
    CROSS JOIN LATERAL (SELECT * FROM sessions WHERE tenant = $1 AND id = wanted.id OFFSET 0) AS s
  UNION
  SELECT s.id, s.parent, s.relation FROM up
    CROSS JOIN LATERAL (SELECT * FROM sessions WHERE tenant = $1 AND id = up.parent OFFSET 0) AS s
  WHERE up.relation IN ('fork', 'continue')
)
SELECT {s.*} FROM up
  CROSS JOIN LATERAL (SELECT * FROM sessions WHERE tenant = $1 AND id = up.id OFFSET 0) AS s

-- --------------------------------------------------------------------------------- branches

-- A branch ($2 is its session, $3 its number) and its ancestors.
-- name: branches_above
WITH RECURSIVE up AS (
  SELECT b.session, b.number, b.parent_session, b.parent_number FROM branches b
  WHERE b.tenant = $1 AND b.session = $2 AND b.number = $3
  UNION
  SELECT above.* FROM up CROSS JOIN LATERAL (
    SELECT session, number, parent_session, parent_number FROM branches
    WHERE tenant = $1 AND session = up.parent_session AND number = up.parent_number
    OFFSET 0) AS above
)
SELECT {b.*}, s.id, s.purged_at IS NOT NULL FROM up
  CROSS JOIN LATERAL (SELECT * FROM branches
    WHERE tenant = $1 AND session = up.session AND number = up.number OFFSET 0) AS b
  CROSS JOIN LATERAL (SELECT * FROM sessions
    WHERE tenant = $1 AND n = up.session OFFSET 0) AS s
  LEFT JOIN LATERAL (SELECT * FROM heads
    WHERE tenant = $1 AND session = up.session OFFSET 0) AS h ON true

-- The sessions of branches ($2 and $3 are their sessions and numbers) and of all their descendants.
-- name: sessions_below
{down}
SELECT {s.*}, {h.*} FROM (SELECT DISTINCT session FROM down) AS wanted
  CROSS JOIN LATERAL (SELECT * FROM sessions
    WHERE tenant = $1 AND n = wanted.session AND purged_at IS NULL OFFSET 0) AS s
  CROSS JOIN LATERAL (SELECT * FROM heads
    WHERE tenant = $1 AND session = wanted.session OFFSET 0) AS h

-- The branches that sessions can show: the active ones, or all ($2), and their ancestors.
-- name: shown
WITH RECURSIVE way AS (
  SELECT b.session, b.number FROM sessions s
    CROSS JOIN LATERAL (SELECT branch FROM heads
      WHERE tenant = $1 AND session = s.n OFFSET 0) AS h
    CROSS JOIN LATERAL (SELECT session, number FROM branches
      WHERE tenant = $1 AND session = s.n AND ($2 OR number = h.branch) OFFSET 0) AS b
  WHERE s.tenant = $1 AND s.trashed_at IS NULL

-- name: shown_of_scope
AND s.scope_mark = {mark} AND s.scope = {name}

-- name: shown_of_agent
AND s.agent_mark = {mark} AND s.agent = {name}

-- name: shown_of_cwd
AND s.cwd_mark = {mark} AND s.cwd = {name}

-- name: shown_end
  UNION
  SELECT before.parent_session, before.parent_number FROM way CROSS JOIN LATERAL (
    SELECT parent_session, parent_number FROM branches
    WHERE tenant = $1 AND session = way.session AND number = way.number OFFSET 0) AS before
  WHERE before.parent_session IS NOT NULL
)
SELECT session, number FROM way
