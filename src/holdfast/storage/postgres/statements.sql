-- Every statement the backend uses, by name. Constant text: values are always bound, and the first
-- one is the tenant. LIMIT NULL is no limit.
--
-- {s.*} stands for the columns of the table with this alias, as they are read. Written are those
-- named by {sessions.columns}, with the values of {sessions.values}; {sessions.update} sets all that
-- are not in the key, {sessions.replace} to those of a row in conflict, {usage.increase} adds these.
-- {heads+1} is the first value after those of the row. {owner} stands for the statement of that name.

-- name: owner
s.n, s.id, s.scope, s.agent, s.cwd, s.title, s.parent, s.relation, h.branch, h.updated_at

-- True if a process listens. Listeners share a lock next to the tenant's ($2), so while one listens
-- the lock cannot be taken exclusively.
-- name: has_listeners
CASE WHEN pg_try_advisory_lock($2 # 1) THEN NOT pg_advisory_unlock($2 # 1) ELSE true END

-- ------------------------------------------------------------------------------- transactions

-- name: begin_reading
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- Not READ WRITE, which would override default_transaction_read_only.
-- name: begin_writing
BEGIN ISOLATION LEVEL READ COMMITTED

-- Settings ($1 and $2 are their names and values). They last as long as the connection only if it is
-- served by the process that it was told at its beginning ($3). Otherwise a pooler lends that process
-- to other clients, too: then they end with the transaction.
-- name: settings
SELECT set_config(s.name, s.value, pg_backend_pid() <> $3::bigint)
FROM unnest($1::text[], $2::text[]) AS s (name, value)

-- Set the tenant of the transaction, and return the server's time.
-- name: enter_reading
SELECT set_config('holdfast.tenant', $1::uuid::text, true),
  (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- The same for a reader, which may be idle for longer: it holds no locks that others wait for.
-- name: enter_snapshot
SELECT set_config('holdfast.tenant', $1::uuid::text, true),
  set_config('idle_in_transaction_session_timeout', $2, true),
  (SELECT value FROM meta WHERE name = 'version'),
  (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- Writers share the tenant's lock ($2), an erasure takes it exclusively; a migration takes the lock of
-- the schema ($3) exclusively. Also returns whether a process listens, and the server's time.
-- name: enter_writing
SELECT set_config('holdfast.tenant', $1::uuid::text, true), pg_advisory_xact_lock_shared($3),
  pg_advisory_xact_lock_shared($2), {has_listeners}, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: enter_exclusive
SELECT set_config('holdfast.tenant', $1::uuid::text, true), pg_advisory_xact_lock_shared($3),
  pg_advisory_xact_lock($2), {has_listeners}, pg_current_xact_id()::text, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- The backend of this connection, and the run of the server: a crash resets the statistics.
-- name: backend_id
SELECT pg_backend_pid(),
  (SELECT a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()),
  pg_postmaster_start_time(), (SELECT b.stats_reset FROM pg_stat_bgwriter b)

-- name: prepared_names
SELECT p.name FROM pg_prepared_statements p

-- Terminate the backend of a lost connection, unless it has ended and its pid was reused.
-- name: terminate_backend
SELECT pg_terminate_backend(a.pid, 1000) FROM pg_stat_activity a
WHERE a.pid = $1::integer AND a.backend_start = $2

-- name: find_backend
SELECT 1 FROM pg_stat_activity a WHERE a.pid = $1::integer AND a.backend_start = $2

-- Terminate the backend that runs a transaction.
-- name: terminate_transaction
SELECT pg_terminate_backend(a.pid, 1000) FROM pg_stat_activity a
WHERE a.backend_xid = $1::text::xid8::xid

-- With the run of the server that gives the answer: another one may have been behind a pooler.
-- name: commit_status
SELECT pg_xact_status($1::text::xid8), pg_postmaster_start_time(),
  (SELECT b.stats_reset FROM pg_stat_bgwriter b)

-- A log entry whose commit waits for the disk and for standbys, and so for all commits before it.
-- name: commit_barrier
SELECT pg_logical_emit_message(true, 'holdfast', '')

-- name: announce
SELECT pg_notify($1, $2)

-- name: hold_listener_lock
SELECT pg_advisory_lock_shared($1::bigint # 1)

-- --------------------------------------------------------------------------------- sessions

-- name: session
{sessions} AND s.n = $2

-- name: trashed
SELECT s.trashed_at IS NOT NULL FROM sessions s WHERE s.tenant = $1 AND s.n = $2

-- name: sessions
SELECT {s.*} FROM sessions s WHERE s.tenant = $1

-- The head comes along, since it is mostly read next.
-- name: sessions_with_heads
SELECT {s.*}, {h.*} FROM sessions s LEFT JOIN heads h ON h.tenant = $1 AND h.session = s.n
WHERE s.tenant = $1

-- name: sessions_by_id
{sessions_with_heads} AND s.id = $3

-- The last condition is always true; without it neither index of keys could be used, as one has the
-- sessions in the trash and the other one all others.
-- name: sessions_by_key
{sessions_with_heads} AND s.key_mark = $3 AND s.key = $4
  AND (s.trashed_at IS NULL OR s.trashed_at IS NOT NULL)

-- name: sessions_of_ids
{sessions_with_heads} AND s.id = ANY ($2::bytea[])

-- name: sessions_of_keys
{sessions_with_heads} AND s.key_mark = ANY ($2::uuid[]) AND s.trashed_at IS NULL
  AND s.purged_at IS NULL

-- name: sessions_by_id_prefix
{sessions} AND s.id >= $3 AND s.id < $4

-- name: sessions_by_title
{sessions} AND s.title_mark = $3 AND s.title = $4

-- name: sessions_by_title_any_case
{sessions} AND s.loose_mark = $3 AND s.loose = $4

-- name: sessions_by_parent
{sessions} AND s.parent = $3

-- name: sessions_by_run_id
{sessions} AND s.n IN (
  SELECT t.session FROM turns t WHERE t.tenant = $1 AND t.run_mark = $3 AND t.run_id = $4)

-- An index entry has less room than an id may need, so few ids are in the second index of them.
-- name: sessions_by_message_id
{sessions} AND s.n IN (SELECT m.session FROM messages m
  WHERE m.tenant = $1 AND m.id = $3 AND octet_length(m.id) <= 1000)

-- name: sessions_by_long_message_id
{sessions} AND s.n IN (SELECT m.session FROM messages m
  WHERE m.tenant = $1 AND m.id = $3 AND octet_length(m.id) > 1000)

-- Not by the number itself: to find the first of many that way, the planner would read them all.
-- name: sessions_end
ORDER BY s.n + 0 LIMIT $2

-- name: count_forks
SELECT wanted.parent, f.number FROM (SELECT DISTINCT unnest($2::bytea[]) AS parent) AS wanted
  CROSS JOIN LATERAL (SELECT count(*) AS number FROM sessions s
    WHERE s.tenant = $1 AND s.parent = wanted.parent AND s.relation IN ('fork', 'continue')
      AND s.trashed_at IS NULL AND s.purged_at IS NULL) AS f

-- name: owners
SELECT b.number, {owner}
FROM unnest($2::bigint[], $3::integer[]) AS wanted (session, number)
  JOIN branches b ON b.tenant = $1 AND b.session = wanted.session AND b.number = wanted.number
  JOIN sessions s ON s.tenant = $1 AND s.n = b.session
  JOIN heads h ON h.tenant = $1 AND h.session = b.session
WHERE s.trashed_at IS NULL

-- Titles that are not plain ASCII may fold to any letters, so all of them are returned.
-- name: titled
SELECT {owner} FROM sessions s JOIN heads h ON h.tenant = $1 AND h.session = s.n
WHERE s.tenant = $1 AND s.title_mark IS NOT NULL AND s.trashed_at IS NULL
  AND (NOT s.plain OR NOT EXISTS (
    SELECT FROM unnest($2::bytea[]) AS word WHERE position(word IN s.loose) = 0))
ORDER BY s.n

-- name: next_sessions
SELECT (SELECT value FROM meta WHERE name = 'version'), pg_current_xact_id()::text,
  nextval('session_numbers') FROM generate_series(1, $1::integer)

-- name: add_tenant
INSERT INTO tenants (tenant, name) VALUES ($1, $2) ON CONFLICT DO NOTHING

-- name: add_session
INSERT INTO sessions ({sessions.columns}) VALUES ({sessions.values})

-- What lists are filtered by is also in recent.
-- name: put_session
WITH put AS (
  UPDATE sessions SET {sessions.update} WHERE tenant = $1 AND n = $2
  RETURNING trashed_at IS NOT NULL AS trashed, scope_mark, agent_mark, cwd_mark
)
UPDATE recent r
SET trashed = put.trashed, scope_mark = put.scope_mark, agent_mark = put.agent_mark,
  cwd_mark = put.cwd_mark
FROM put CROSS JOIN heads h
WHERE h.tenant = $1 AND h.session = $2
  AND r.tenant = $1 AND r.session = $2 AND r.recency = h.recency
  AND (r.trashed, r.scope_mark, r.agent_mark, r.cwd_mark)
    IS DISTINCT FROM (put.trashed, put.scope_mark, put.agent_mark, put.cwd_mark)

-- name: drop_session
DELETE FROM sessions WHERE tenant = $1 AND n = $2

-- name: add_marks
INSERT INTO metadata_marks (tenant, session, mark) SELECT $1, $2, unnest($3::uuid[])
ON CONFLICT DO NOTHING

-- name: drop_other_marks
DELETE FROM metadata_marks WHERE tenant = $1 AND session = $2 AND mark <> ALL ($3::uuid[])

-- ------------------------------------------------------------------------------------ heads

-- name: head
SELECT {h.*} FROM heads h WHERE h.tenant = $1 AND h.session = $2

-- A writer locks the head row of a session until it has committed: this orders the writes. The format
-- comes along, since the tables may have been migrated since the store was opened, and the id of the
-- transaction, to resolve an in-doubt commit.
-- name: lock_head
SELECT (SELECT value FROM meta WHERE name = 'version'), pg_current_xact_id()::text, {h.*} FROM heads h
WHERE h.tenant = $1 AND h.session = $2 FOR UPDATE OF h

-- The same without waiting: no row if another transaction has locked it.
-- name: try_lock_head
SELECT (SELECT value FROM meta WHERE name = 'version'), pg_current_xact_id()::text, {h.*} FROM heads h
WHERE h.tenant = $1 AND h.session = $2 FOR UPDATE OF h SKIP LOCKED

-- name: try_lock_heads
SELECT (SELECT value FROM meta WHERE name = 'version'), pg_current_xact_id()::text, {h.*} FROM heads h
WHERE h.tenant = $1 AND h.session = ANY ($2::bigint[]) FOR UPDATE OF h SKIP LOCKED

-- {heads+1} is the tenant's half of the lock that is taken before an activity number.
-- name: add_head
WITH next AS MATERIALIZED (
  SELECT * FROM take_activity({heads+1}::integer, ({highest}), NULL, NULL)
),
put AS (
  INSERT INTO heads ({heads.columns}, activity, recency)
  VALUES ({heads.values}, (SELECT activity FROM next), (SELECT recency FROM next))
), listed AS (
  INSERT INTO recent (tenant, session, recency, trashed, scope_mark, agent_mark, cwd_mark)
  SELECT $1, $2, (SELECT recency FROM next), s.trashed_at IS NOT NULL, s.scope_mark, s.agent_mark,
    s.cwd_mark
  FROM sessions s WHERE s.tenant = $1 AND s.n = $2
)
SELECT activity FROM next

-- name: put_head
{update_head} {move_head}
SELECT activity FROM put

-- The session gets an activity number, and a new recency unless it is the newest one already. The row
-- before is the same one; of a row that is updated only its new values can be returned.
-- name: update_head
WITH put AS (
  UPDATE heads h SET {heads.update}, activity = next.activity, recency = next.recency
  FROM heads before
    CROSS JOIN LATERAL take_activity(
      {heads+1}::integer, ({highest}), before.activity, before.recency) AS next
  WHERE h.tenant = $1 AND h.session = $2 AND before.tenant = $1 AND before.session = $2

-- name: move_head
  RETURNING next.activity, next.recency, before.recency AS recency_before
), moved AS (
  UPDATE recent r SET recency = put.recency FROM put
  WHERE r.tenant = $1 AND r.session = $2 AND r.recency = put.recency_before
    AND put.recency <> put.recency_before
)

-- Compare and swap: the same if the head is the expected one ({heads+2} to {heads+5}), no message of
-- these sessions has these marks ({heads+6}, {heads+7}), the format of the tables is at most {heads+8},
-- and the server's time is within a second of {heads+9}. Otherwise it is an error, which rolls the
-- transaction back.
-- name: cas_head
{compare_head} {move_head}
SELECT sure((SELECT activity FROM put), $2)

-- The same if no record of these sessions has these marks ({heads+10}, {heads+11}), either, and the
-- session is not in the trash.
-- name: cas_head_and_records
{compare_head}
    AND NOT EXISTS (
      SELECT FROM unnest({heads+10}::bigint[], {heads+11}::uuid[]) AS new (session, mark)
        JOIN records r ON r.tenant = $1 AND r.session = new.session AND r.id_mark = new.mark)
    AND EXISTS (
      SELECT FROM sessions s WHERE s.tenant = $1 AND s.n = $2 AND s.trashed_at IS NULL)
{move_head}
SELECT sure((SELECT activity FROM put), $2)

-- name: compare_head
{update_head}
    AND h.branch = {heads+2} AND h.seq = {heads+3} AND h.updated_at = {heads+4}
    AND h.activity = {heads+5}
    AND NOT EXISTS (
      SELECT FROM unnest({heads+6}::bigint[], {heads+7}::uuid[]) AS new (session, mark)
        JOIN messages m ON m.tenant = $1 AND m.session = new.session AND m.id_mark = new.mark)
    AND (SELECT m.value FROM meta m WHERE m.name = 'version') <= {heads+8}
    AND (abs(extract(epoch FROM clock_timestamp()) * 1000000 - {heads+9}) > 1000000) IS NOT TRUE

-- A number is not taken again: the tenant keeps that of the newest session.
-- name: drop_head
WITH gone AS (
  DELETE FROM heads WHERE tenant = $1 AND session = $2 RETURNING activity
), unlisted AS (
  DELETE FROM recent WHERE tenant = $1 AND session = $2
)
UPDATE tenants t SET activity = gone.activity FROM gone
WHERE t.tenant = $1 AND t.activity < gone.activity AND NOT EXISTS (
  SELECT FROM recent r WHERE r.tenant = $1 AND r.trashed IN (false, true) AND r.recency > gone.activity)

-- The session with the highest recency has the highest activity.
-- name: highest_activity
{highest}

-- name: highest
SELECT greatest(0,
  (SELECT t.activity FROM tenants t WHERE t.tenant = $1),
  (SELECT h.activity FROM recent r JOIN heads h ON h.tenant = $1 AND h.session = r.session
    WHERE r.tenant = $1 AND NOT r.trashed ORDER BY r.recency DESC LIMIT 1),
  (SELECT h.activity FROM recent r JOIN heads h ON h.tenant = $1 AND h.session = r.session
    WHERE r.tenant = $1 AND r.trashed ORDER BY r.recency DESC LIMIT 1))

-- Recency gives the order of activity; a page begins below an activity number. OFFSET 0 makes the planner
-- read recent in that order, and look up each session, whatever it expects of the filters.
-- name: list
{listed}
FROM recent r
  CROSS JOIN LATERAL (SELECT * FROM heads
    WHERE tenant = $1 AND session = r.session AND recency = r.recency OFFSET 0) AS h
  CROSS JOIN LATERAL (SELECT * FROM sessions WHERE tenant = $1 AND n = r.session OFFSET 0) AS s
{listed_below}

-- The same by an index without that order, which finds few.
-- name: list_looked_up
{listed}
FROM sessions s
  CROSS JOIN LATERAL (SELECT * FROM heads WHERE tenant = $1 AND session = s.n OFFSET 0) AS h
  CROSS JOIN LATERAL (SELECT * FROM recent
    WHERE tenant = $1 AND session = s.n AND recency = h.recency OFFSET 0) AS r
{listed_below} AND s.tenant = $1

-- name: listed
SELECT (SELECT count(*) FROM sessions f WHERE f.tenant = $1 AND f.parent = s.id
    AND f.relation IN ('fork', 'continue') AND f.trashed_at IS NULL AND f.purged_at IS NULL),
  {s.*}, {h.*}

-- name: listed_below
WHERE r.tenant = $1 AND r.recency < $2 AND h.activity < $2

-- name: is_marked
AND s.n IN (SELECT m.session FROM metadata_marks m WHERE m.tenant = $1 AND m.mark = $mark)

-- A part of a list that has a text is read at once: down to the recency of the last session of the part.
-- name: list_part
SELECT min(part.recency), count(*) FROM (
  SELECT r.recency FROM recent r WHERE r.tenant = $1 AND r.recency < $2 AND r.trashed = $3
  ORDER BY r.recency DESC LIMIT $4) AS part

-- True if the title, the preview or the key may have a text: all that are not plain ASCII may, since the
-- server does not fold letters as the caller does. Those have backslashes in this form.
-- name: may_have_text
AND r.recency >= $first AND EXISTS (
  SELECT FROM lower(encode(coalesce(s.title, '') || '\x0a' || coalesce(h.preview, '') || '\x0a'
    || coalesce(s.key, ''), 'escape') COLLATE "C") AS shown
  WHERE position('\' IN shown) > 0 OR position(encode($text, 'escape') IN shown) > 0)

-- name: list_end
ORDER BY r.recency DESC LIMIT $3

-- Not by the column itself: to find the first of many that way, the planner would read them all.
-- name: list_looked_up_end
ORDER BY r.recency + 0 DESC LIMIT $3

-- The activity number up to which all writes are committed. It is queried before the snapshot that is
-- read from is taken. A lock holds the last 31 bits of the number of a block of 64.
-- name: horizon
WITH top AS MATERIALIZED (SELECT ({highest}) AS number)
SELECT least(top.number, (
  SELECT min((top.number >> 6) + ((l.objid::bigint - (top.number >> 6 & 2147483647) + 3221225472)
    & 2147483647) - 1073741824) * 64 - 1
  FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted AND l.classid = $2::bigint::oid
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())))
FROM top

-- The sessions with a higher recency, and the one before them, whose activity may be higher.
-- name: activity_after
WITH found AS MATERIALIZED (
  (SELECT r.session, r.recency FROM recent r WHERE r.tenant = $1 AND NOT r.trashed AND r.recency > $2
    ORDER BY r.recency LIMIT $3)
  UNION ALL
  (SELECT r.session, r.recency FROM recent r WHERE r.tenant = $1 AND r.trashed AND r.recency > $2
    ORDER BY r.recency LIMIT $3)
  UNION ALL
  (SELECT r.session, r.recency FROM recent r WHERE r.tenant = $1 AND NOT r.trashed AND r.recency <= $2
    ORDER BY r.recency DESC LIMIT 1)
  UNION ALL
  (SELECT r.session, r.recency FROM recent r WHERE r.tenant = $1 AND r.trashed AND r.recency <= $2
    ORDER BY r.recency DESC LIMIT 1)
)
SELECT h.activity, s.id, h.branch, h.seq
FROM found
  CROSS JOIN LATERAL (SELECT * FROM heads
    WHERE tenant = $1 AND session = found.session OFFSET 0) AS h
  CROSS JOIN LATERAL (SELECT * FROM sessions
    WHERE tenant = $1 AND n = found.session OFFSET 0) AS s
WHERE h.activity > $2 AND h.activity <= $4
ORDER BY found.recency LIMIT $3

-- --------------------------------------------------------------------------------- branches

-- The first record of each comes along, as `first_record` returns it.
-- name: find_branches
SELECT {b.*}, s.id, s.purged_at IS NOT NULL, (
  SELECT r.seq FROM records r WHERE r.tenant = $1 AND r.session = b.session AND r.branch = b.number
  ORDER BY r.number LIMIT 1)
FROM branches b JOIN sessions s ON s.tenant = $1 AND s.n = b.session
  LEFT JOIN heads h ON h.tenant = $1 AND h.session = b.session
WHERE b.tenant = $1

-- name: branch
{find_branches} AND b.session = $2 AND b.number = $3

-- name: branch_by_token
{find_branches} AND b.session = $2 AND b.token_mark = $3 AND b.token = $4

-- name: branches
{find_branches} AND b.session = $2 ORDER BY b.number

-- name: branches_from
{find_branches} AND b.parent_session = $2 AND b.parent_number = $3
ORDER BY b.created_at, b.session, b.number

-- The ancestry of a branch, back to message $4 at least.
-- name: path
{path_from} AND b.number = $3 {path_on} WHERE way.fork_seq >= $4 {path_to}

-- The whole ancestry of a session's active branch.
-- name: active_path
{path_from} AND b.number = (SELECT h.branch FROM heads h WHERE h.tenant = $1 AND h.session = $2)
{path_on} {path_to}

-- name: path_from
WITH RECURSIVE way AS (
  SELECT 1 AS step, b.session, b.number, b.parent_session, b.parent_number, b.fork_seq, b.fork_record
  FROM branches b WHERE b.tenant = $1 AND b.session = $2

-- name: path_on
  UNION ALL
  SELECT way.step + 1, b.session, b.number, b.parent_session, b.parent_number, b.fork_seq,
    b.fork_record
  FROM way JOIN branches b
    ON b.tenant = $1 AND b.session = way.parent_session AND b.number = way.parent_number

-- name: path_to
)
SELECT way.session, way.number, way.parent_session, way.fork_seq, way.fork_record, s.id
FROM way JOIN sessions s ON s.tenant = $1 AND s.n = way.session ORDER BY way.step

-- The active branches of sessions, of those that have no parent: their path is one segment.
-- name: root_branches
SELECT b.session, b.number, s.id FROM unnest($2::bigint[]) AS wanted (session)
  JOIN heads h ON h.tenant = $1 AND h.session = wanted.session
  JOIN branches b ON b.tenant = $1 AND b.session = wanted.session AND b.number = h.branch
  JOIN sessions s ON s.tenant = $1 AND s.n = wanted.session
WHERE b.parent_session IS NULL

-- Branches ($2 and $3 are their sessions and numbers) and all their descendants.
-- name: down
WITH RECURSIVE down AS (
  SELECT wanted.session, wanted.number
  FROM unnest($2::bigint[], $3::integer[]) AS wanted (session, number)
  UNION
  SELECT below.session, below.number FROM down CROSS JOIN LATERAL (
    SELECT b.session, b.number FROM branches b
    WHERE b.tenant = $1 AND b.parent_session = down.session AND b.parent_number = down.number
    OFFSET 0) AS below
)

-- The rows of these branches.
-- name: branches_below
{down}
SELECT {b.*}, s.id, s.purged_at IS NOT NULL FROM down
  CROSS JOIN LATERAL (SELECT * FROM branches
    WHERE tenant = $1 AND session = down.session AND number = down.number OFFSET 0) AS b
  CROSS JOIN LATERAL (SELECT * FROM sessions
    WHERE tenant = $1 AND n = down.session OFFSET 0) AS s
  LEFT JOIN LATERAL (SELECT * FROM heads
    WHERE tenant = $1 AND session = down.session OFFSET 0) AS h ON true
ORDER BY b.created_at, b.session, b.number

-- Sessions that come from one ($2), stubs of purged ones included.
-- name: descendants
WITH RECURSIVE below AS (
  SELECT s.n, s.id FROM sessions s WHERE s.tenant = $1 AND s.parent = $2 AND s.id <> $2
  UNION
  SELECT s.n, s.id FROM below CROSS JOIN LATERAL (
    SELECT n, id FROM sessions WHERE tenant = $1 AND parent = below.id AND id <> $2 OFFSET 0) AS s
)
SELECT {s.*} FROM below CROSS JOIN LATERAL (
  SELECT * FROM sessions WHERE tenant = $1 AND n = below.n OFFSET 0) AS s
ORDER BY s.n

-- name: add_branch
INSERT INTO branches ({branches.columns}) VALUES ({branches.values})

-- name: end_branch
UPDATE branches SET last_seq = $4 WHERE tenant = $1 AND session = $2 AND number = $3

-- name: drop_branch
DELETE FROM branches WHERE tenant = $1 AND session = $2 AND number = $3

-- --------------------------------------------------------------------------------- messages

-- name: messages
SELECT m.seq, m.id, m.turn, m.crc, m.body FROM messages m
WHERE m.tenant = $1 AND m.session = $2 AND m.branch = $3 AND m.seq BETWEEN $4 AND $5
ORDER BY m.seq

-- name: messages_of_ranges
SELECT wanted.place, m.seq, m.id, m.turn, m.crc, m.body
FROM unnest($2::bigint[], $3::integer[], $4::bigint[], $5::bigint[]) WITH ORDINALITY
    AS wanted (session, branch, first, last, place)
  JOIN messages m ON m.tenant = $1 AND m.session = wanted.session AND m.branch = wanted.branch
    AND m.seq BETWEEN wanted.first AND wanted.last
ORDER BY wanted.place, m.seq

-- The last messages of a history, as far as they lie on its active branch. They are counted from the
-- end by LIMIT: behind a row-level policy, a condition that computes with a column cannot use an index,
-- because an error in it could disclose rows of other tenants.
-- name: tail
SELECT m.* FROM heads h CROSS JOIN LATERAL (
  SELECT m.branch, m.seq, m.id, m.turn, m.crc, m.body FROM messages m
  WHERE m.tenant = $1 AND m.session = $2 AND m.branch = h.branch ORDER BY m.seq DESC LIMIT $3) AS m
WHERE h.tenant = $1 AND h.session = $2 AND m.seq > h.seq - $3 ORDER BY m.seq

-- name: newest_summary
SELECT max(m.seq) FROM messages m
WHERE m.tenant = $1 AND m.session = $2 AND m.branch = $3 AND m.seq BETWEEN $4 AND $5 AND m.summary

-- The newest summary on a session's active branch, if it has one.
-- name: summary
SELECT (SELECT max(m.seq) FROM messages m WHERE m.tenant = $1 AND m.session = $2
  AND m.branch = h.branch AND m.seq <= h.seq AND m.summary)
FROM heads h WHERE h.tenant = $1 AND h.session = $2

-- name: messages_by_id
SELECT m.session, m.branch, m.seq, m.id, m.turn, m.crc, m.body
FROM unnest($2::bigint[], $3::uuid[]) AS wanted (session, mark)
  JOIN messages m ON m.tenant = $1 AND m.session = wanted.session AND m.id_mark = wanted.mark
ORDER BY m.branch, m.seq

-- How many messages are at these positions, how many of them have the expected id, and how many the
-- expected id and body.
-- name: expected_messages
SELECT count(*), count(*) FILTER (WHERE m.id = new.id),
  count(*) FILTER (WHERE m.id = new.id AND m.body = new.body)
FROM unnest($4::bigint[], $5::bytea[], $6::bytea[]) AS new (seq, id, body)
  JOIN messages m ON m.tenant = $1 AND m.session = $2 AND m.branch = $3::integer
    AND m.seq = new.seq

-- name: size_of_messages
SELECT count(*), coalesce(sum(octet_length(m.id) + octet_length(m.body)), 0)::bigint
FROM messages m WHERE m.tenant = $1 AND m.session = $2

-- name: size_of_blobs
SELECT coalesce(sum(octet_length(b.data)), 0)::bigint FROM blobs b
WHERE b.tenant = $1 AND b.sha256 IN (
  SELECT u.sha256 FROM blob_uses u WHERE u.tenant = $1 AND u.session = $2
  UNION ALL
  SELECT u.sha256 FROM record_blobs u WHERE u.tenant = $1 AND u.session = $2)

-- name: add_message
INSERT INTO messages (tenant, session, branch, seq, id, id_mark, turn, crc, summary, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: add_messages
INSERT INTO messages (tenant, session, branch, seq, id, id_mark, turn, crc, summary, body)
SELECT $1, $2, $3, new.* FROM unnest($4::bigint[], $5::bytea[], $6::uuid[], $7::bigint[],
  $8::bigint[], $9::boolean[], $10::bytea[]) AS new

-- name: put_message
UPDATE messages SET crc = $5, summary = $6, body = $7
WHERE tenant = $1 AND session = $2 AND branch = $3 AND seq = $4

-- name: drop_messages
WITH gone AS (
  DELETE FROM messages WHERE tenant = $1 AND session = $2 AND branch = $3 AND seq >= $4 RETURNING 1
)
SELECT count(*) FROM gone

-- name: note_erasure
INSERT INTO tenants (tenant, name, erasures) VALUES ($1, $2, 1)
ON CONFLICT (tenant) DO UPDATE SET erasures = tenants.erasures + 1

-- name: erasures
SELECT erasures FROM tenants WHERE tenant = $1

-- ---------------------------------------------------------------------------------- records

-- name: record_columns
r.number, r.seq, r.id, r.kind, r.key, r.crc, r.body

-- The records of segments, the last first, $7 of them: $2 to $6 are the session and branch of each, the
-- first and last seq, and the last number. Both grow along a branch, so the last ones are one position
-- in an index, and what a parent stored behind the same message later is not read. If only a number is
-- given, the seq that it lies behind is looked up first.
-- name: records
SELECT wanted.place, {record_columns} {records_from} {records_to}

-- Those of a kind ($8 is its mark), or of them those whose key begins with $10.
-- name: records_of_kind
SELECT wanted.place, {record_columns} {records_from} AND r.kind_mark = $8 AND r.kind = $9
  AND ($10::bytea IS NULL OR substring(coalesce(r.key, '') FOR octet_length($10)) = $10)
{records_to}

-- Those of a kind and key. A key that is missing has a mark, too.
-- name: records_of_key
SELECT wanted.place, {record_columns} {records_from} {of_key} {records_to}

-- The numbers of those of a kind, or of a kind and key.
-- name: record_numbers_of_kind
SELECT r.number {records_from} AND r.kind_mark = $8 AND r.kind = $9 {records_to}

-- name: record_numbers_of_key
SELECT r.number {records_from} {of_key} {records_to}

-- name: of_key
AND r.kind_mark = $8 AND r.kind = $9 AND r.key_mark = $10 AND coalesce(r.key, '') = $11

-- name: records_from
FROM unnest($2::bigint[], $3::integer[], $4::bigint[], $5::bigint[], $6::bigint[]) WITH ORDINALITY
    AS wanted (session, branch, first, last, last_record, place)
  CROSS JOIN LATERAL (SELECT CASE
    WHEN wanted.last < 9223372036854775807 OR wanted.last_record = 9223372036854775807
    THEN wanted.last ELSE (
      SELECT r.seq FROM records r
      WHERE r.tenant = $1 AND r.session = wanted.session AND r.branch = wanted.branch
        AND r.number <= wanted.last_record ORDER BY r.number DESC LIMIT 1) END AS seq OFFSET 0) AS last
  CROSS JOIN LATERAL (
    SELECT * FROM records r
    WHERE r.tenant = $1 AND r.session = wanted.session AND r.branch = wanted.branch
      AND r.seq >= wanted.first AND (r.seq, r.number) <= (last.seq, wanted.last_record)
      AND r.number <= wanted.last_record

-- name: records_to
    ORDER BY r.seq DESC, r.number DESC LIMIT $7) AS r
ORDER BY wanted.place, r.seq DESC, r.number DESC LIMIT $7

-- The newest record of each of these kinds and keys ($3 to $6 are their marks and names) in the history
-- of a session.
-- name: newest_records
WITH RECURSIVE way AS (
  SELECT 1 AS step, b.session, b.number, b.parent_session, b.parent_number, b.fork_seq, b.fork_record,
    9223372036854775807 AS last, 9223372036854775807 AS last_record
  FROM heads h JOIN branches b ON b.tenant = $1 AND b.session = $2 AND b.number = h.branch
  WHERE h.tenant = $1 AND h.session = $2
  UNION ALL
  SELECT way.step + 1, b.session, b.number, b.parent_session, b.parent_number, b.fork_seq,
    b.fork_record, way.fork_seq, coalesce(way.fork_record, 0)
  FROM way JOIN branches b
    ON b.tenant = $1 AND b.session = way.parent_session AND b.number = way.parent_number
)
SELECT wanted.place, found.*
FROM unnest($3::uuid[], $4::bytea[], $5::uuid[], $6::bytea[]) WITH ORDINALITY
    AS wanted (kind_mark, kind, key_mark, key, place)
  CROSS JOIN LATERAL (SELECT way.session, way.number AS branch, r.* FROM way CROSS JOIN LATERAL (
      SELECT {record_columns} FROM records r
      WHERE r.tenant = $1 AND r.session = way.session AND r.branch = way.number
        AND r.seq >= way.fork_seq AND (r.seq, r.number) <= (way.last, way.last_record)
        AND r.number <= way.last_record
        AND r.kind_mark = wanted.kind_mark AND r.kind = wanted.kind
        AND r.key_mark = wanted.key_mark AND coalesce(r.key, '') = wanted.key
      ORDER BY r.seq DESC, r.number DESC LIMIT 1) AS r
    ORDER BY way.step LIMIT 1) AS found

-- The seq that the first record of a branch lies behind; those after it lie behind the same or later ones.
-- name: first_record
SELECT r.seq FROM records r WHERE r.tenant = $1 AND r.session = $2 AND r.branch = $3
ORDER BY r.number LIMIT 1

-- name: records_by_id
SELECT r.session, r.branch, {record_columns}
FROM unnest($2::bigint[], $3::uuid[]) AS wanted (session, mark)
  JOIN records r ON r.tenant = $1 AND r.session = wanted.session AND r.id_mark = wanted.mark
ORDER BY r.branch, r.number

-- name: expected_records
SELECT count(*), count(*) FILTER (WHERE r.id = new.id),
  count(*) FILTER (WHERE r.id = new.id AND r.body = new.body)
FROM unnest($4::bigint[], $5::bytea[], $6::bytea[]) AS new (number, id, body)
  JOIN records r ON r.tenant = $1 AND r.session = $2 AND r.branch = $3::integer
    AND r.number = new.number

-- name: size_of_records
SELECT coalesce(sum(octet_length(r.id) + octet_length(r.body)), 0)::bigint
FROM records r WHERE r.tenant = $1 AND r.session = $2

-- name: add_record
INSERT INTO records (tenant, session, branch, number, seq, id, id_mark, kind, kind_mark, key,
  key_mark, crc, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: use_record_blob
INSERT INTO record_blobs (tenant, session, branch, number, sha256) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING

-- name: drop_records
WITH gone AS (
  DELETE FROM records WHERE tenant = $1 AND session = $2 AND branch = $3
    AND number = ANY ($4::bigint[]) RETURNING 1
)
SELECT count(*) FROM gone

-- name: drop_record_blobs
DELETE FROM record_blobs u WHERE u.tenant = $1 AND u.session = $2 AND u.branch = $3
  AND u.number = ANY ($4::bigint[])
RETURNING u.sha256

-- The number of the first record that is cut off: behind a message after $4, or $5.
-- name: first_cut
least($5, (SELECT r.number FROM records r WHERE r.tenant = $1 AND r.session = $2 AND r.branch = $3
  AND r.seq > $4 ORDER BY r.seq, r.number LIMIT 1))

-- name: cut_record_blobs
DELETE FROM record_blobs u WHERE u.tenant = $1 AND u.session = $2 AND u.branch = $3
  AND u.number >= {first_cut}
RETURNING u.sha256

-- name: cut_records
WITH gone AS (
  DELETE FROM records WHERE tenant = $1 AND session = $2 AND branch = $3
    AND number >= {first_cut} RETURNING 1
)
SELECT count(*) FROM gone

-- --------------------------------------------------------------------- records of the store

-- Records of the store have no session whose head could be locked. A writer locks their names, in order,
-- before it reads them. The format and the id of the transaction come along, as with a head.
-- name: lock_store_records
SELECT (SELECT value FROM meta WHERE name = 'version'), pg_current_xact_id()::text,
  pg_advisory_xact_lock(wanted.lock)
FROM unnest($1::bigint[]) AS wanted (lock)

-- name: store_record_columns
r.scope, r.kind, r.key, r.id, r.crc, r.body

-- The current records of these names, and the blobs they refer to.
-- name: store_records_by_name
SELECT ARRAY(SELECT u.sha256 FROM store_record_blobs u WHERE u.tenant = $1 AND u.id_mark = r.id_mark),
  {store_record_columns} FROM store_records r
WHERE r.tenant = $1 AND r.name_mark = ANY ($2::uuid[]) AND r.body IS NOT NULL

-- name: store_records_by_id
SELECT {store_record_columns} FROM store_records r
WHERE r.tenant = $1 AND r.id_mark = ANY ($2::uuid[])

-- name: store_records
SELECT r.number, {store_record_columns} FROM store_records r
WHERE r.tenant = $1 AND r.number > $2 ORDER BY r.number LIMIT $3

-- name: add_store_record
INSERT INTO store_records (tenant, scope, kind, key, name_mark, id, id_mark, crc, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: empty_store_record
UPDATE store_records SET body = NULL, crc = $3 WHERE tenant = $1 AND id_mark = $2

-- name: use_store_record_blob
INSERT INTO store_record_blobs (tenant, id_mark, sha256) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING

-- name: drop_store_record_blobs
DELETE FROM store_record_blobs WHERE tenant = $1 AND id_mark = $2

-- True if no other transaction of this tenant writes; none can begin until this one has ended.
-- name: claim_tenant
SELECT pg_try_advisory_xact_lock($1)

-- ------------------------------------------------------------------------------------ blobs

-- name: blob
SELECT b.data FROM blobs b WHERE b.tenant = $1 AND b.sha256 = $2

-- name: blobs
SELECT b.sha256, b.data FROM blobs b WHERE b.tenant = $1 AND b.sha256 = ANY ($2::text[])

-- Replaces data that differs: it is damaged. A row that does not differ is not locked.
-- name: add_blob
WITH repaired AS (UPDATE blobs SET data = $3 WHERE tenant = $1 AND sha256 = $2 AND data <> $3)
INSERT INTO blobs (tenant, sha256, data) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING

-- name: use_blob
INSERT INTO blob_uses (tenant, session, branch, seq, sha256) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING

-- name: drop_blob_uses
DELETE FROM blob_uses u WHERE u.tenant = $1 AND u.session = $2 AND u.branch = $3
  AND u.seq BETWEEN $4 AND $5
RETURNING u.sha256

-- name: drop_unused_blobs
DELETE FROM blobs b WHERE b.tenant = $1 AND b.sha256 = ANY ($2::text[])
  AND NOT EXISTS (
    SELECT FROM blob_uses u WHERE u.tenant = $1 AND u.sha256 = b.sha256)
  AND NOT EXISTS (
    SELECT FROM record_blobs u WHERE u.tenant = $1 AND u.sha256 = b.sha256)
  AND NOT EXISTS (
    SELECT FROM store_record_blobs u WHERE u.tenant = $1 AND u.sha256 = b.sha256)
RETURNING octet_length(b.data)

-- --------------------------------------------------------- turns, tools, drafts, queue, usage

-- name: turn
SELECT {t.*} FROM turns t WHERE t.tenant = $1 AND t.session = $2 AND t.number = $3

-- name: turns_of
SELECT {t.*} FROM unnest($2::bigint[], $3::bigint[]) AS wanted (session, number)
  JOIN turns t ON t.tenant = $1 AND t.session = wanted.session AND t.number = wanted.number

-- name: turns
SELECT {t.*} FROM turns t WHERE t.tenant = $1 AND t.session = $2 ORDER BY t.number DESC LIMIT $3

-- name: turns_between
SELECT {t.*} FROM turns t WHERE t.tenant = $1 AND t.session = $2 AND t.number BETWEEN $3 AND $4
ORDER BY t.number

-- name: put_turn
INSERT INTO turns ({turns.columns}) VALUES ({turns.values})
ON CONFLICT (tenant, session, number) DO UPDATE SET {turns.replace}

-- name: drop_turns
WITH gone AS (DELETE FROM turns WHERE tenant = $1 AND session = $2 RETURNING 1)
SELECT count(*) FROM gone

-- name: tools
SELECT {c.*} FROM tools c WHERE c.tenant = $1 AND c.session = $2 AND c.turn = $3
ORDER BY c.position

-- name: tools_between
SELECT {c.*} FROM tools c WHERE c.tenant = $1 AND c.session = $2 AND c.turn BETWEEN $3 AND $4
ORDER BY c.turn, c.position

-- A new line goes to the end of the ledger, an existing one keeps its position.
-- name: put_tool
INSERT INTO tools ({tools.columns}, position)
VALUES ({tools.values}, (SELECT count(*) FROM tools c
  WHERE c.tenant = $1 AND c.session = $2 AND c.turn = $3))
ON CONFLICT (tenant, session, turn, call_mark) DO UPDATE SET {tools.replace}

-- name: drop_tools
DELETE FROM tools WHERE tenant = $1 AND session = $2

-- name: draft
SELECT d.record FROM drafts d WHERE d.tenant = $1 AND d.session = $2 AND d.turn = $3
ORDER BY d.number

-- name: opening
SELECT d.record FROM drafts d WHERE d.tenant = $1 AND d.session = $2 AND d.turn = $3
ORDER BY d.number LIMIT 1

-- name: put_draft
INSERT INTO drafts (tenant, session, turn, number, record) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant, session, turn, number) DO UPDATE SET record = excluded.record

-- name: drop_draft
DELETE FROM drafts WHERE tenant = $1 AND session = $2 AND turn = $3

-- name: drop_drafts
WITH gone AS (DELETE FROM drafts WHERE tenant = $1 AND session = $2 RETURNING 1)
SELECT count(*) FROM gone

-- name: queue
SELECT {q.*} FROM queue q WHERE q.tenant = $1 AND q.session = $2 ORDER BY q.number

-- name: queue_blobs
SELECT q.number, q.sha256, q.data FROM queue_blobs q
WHERE q.tenant = $1 AND q.session = $2 ORDER BY q.number, q.position

-- name: last_queued
SELECT coalesce(max(q.number), 0) FROM queue q WHERE q.tenant = $1 AND q.session = $2

-- name: add_queued
INSERT INTO queue ({queue.columns}) VALUES ({queue.values})

-- name: add_queue_blob
INSERT INTO queue_blobs (tenant, session, number, position, sha256, data)
VALUES ($1, $2, $3, $4, $5, $6)

-- name: drop_queued
DELETE FROM queue WHERE tenant = $1 AND session = $2 AND number = $3

-- name: drop_queued_blobs
DELETE FROM queue_blobs WHERE tenant = $1 AND session = $2 AND number = $3

-- name: drop_queue
WITH gone AS (DELETE FROM queue WHERE tenant = $1 AND session = $2 RETURNING 1)
SELECT count(*) FROM gone

-- name: drop_queue_blobs
DELETE FROM queue_blobs WHERE tenant = $1 AND session = $2

-- name: usage
SELECT {u.*} FROM usage u WHERE u.tenant = $1 AND u.session = $2

-- name: usage_of_model
SELECT {u.*} FROM usage u WHERE u.tenant = $1 AND u.model_mark = $2
ORDER BY u.day DESC, u.session DESC LIMIT $3

-- name: add_usage
INSERT INTO usage AS u ({usage.columns}) VALUES ({usage.values})
ON CONFLICT (tenant, session, day, model_mark) DO UPDATE SET {usage.increase}

-- name: drop_usage
DELETE FROM usage WHERE tenant = $1 AND session = $2

-- ------------------------------------------------------------------------------ whole store

-- name: stats
SELECT (SELECT count(*) FROM sessions WHERE tenant = $1 AND purged_at IS NULL),
  (SELECT count(*) FROM sessions WHERE tenant = $1 AND trashed_at IS NOT NULL AND purged_at IS NULL),
  (SELECT coalesce(sum(turns), 0)::bigint FROM heads WHERE tenant = $1),
  (SELECT count(*) FROM heads WHERE tenant = $1 AND open_turn IS NOT NULL),
  (SELECT count(*) FROM blobs WHERE tenant = $1),
  (SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM blobs WHERE tenant = $1)

-- name: stored_messages
SELECT count(*), coalesce(sum(
  CASE WHEN b.number = h.branch THEN h.seq ELSE b.last_seq END - b.fork_seq), 0)::bigint
FROM branches b LEFT JOIN heads h ON h.tenant = $1 AND h.session = b.session WHERE b.tenant = $1

-- name: growth
SELECT s.created_at / 86400000000 AS day, count(DISTINCT s.n), coalesce(sum(
  CASE WHEN b.number = h.branch THEN h.seq ELSE b.last_seq END - b.fork_seq), 0)::bigint
FROM sessions s JOIN branches b ON b.tenant = $1 AND b.session = s.n
  JOIN heads h ON h.tenant = $1 AND h.session = s.n
WHERE s.tenant = $1 GROUP BY day ORDER BY day

-- name: usage_by_day
SELECT {u.*} FROM usage u WHERE u.tenant = $1

-- name: sessions_without_head
SELECT s.id FROM sessions s WHERE s.tenant = $1 AND s.purged_at IS NULL AND NOT EXISTS (
  SELECT FROM heads h WHERE h.tenant = $1 AND h.session = s.n)

-- name: metadata_and_marks
SELECT s.id, s.metadata, m.marks FROM sessions s CROSS JOIN LATERAL (
  SELECT coalesce(array_agg(m.mark), '{}') AS marks FROM metadata_marks m
  WHERE m.tenant = $1 AND m.session = s.n) AS m
WHERE s.tenant = $1 AND (s.metadata <> '{}' OR m.marks <> '{}')

-- name: stray_mark
SELECT 1 FROM metadata_marks m WHERE m.tenant = $1 AND NOT EXISTS (
  SELECT FROM sessions s WHERE s.tenant = $1 AND s.n = m.session) LIMIT 1

-- name: blob_uses
SELECT u.sha256 FROM blob_uses u
WHERE u.tenant = $1 AND u.session = $2 AND u.branch = $3 AND u.seq = $4

-- name: record_blobs
SELECT u.sha256 FROM record_blobs u
WHERE u.tenant = $1 AND u.session = $2 AND u.branch = $3 AND u.number = $4

-- name: damaged_blobs
SELECT b.sha256 FROM blobs b WHERE b.tenant = $1 AND encode(sha256(b.data), 'hex') <> b.sha256

-- Blobs that messages, records and records of the store refer to.
-- name: missing_blobs
SELECT u.sha256, u.id, u.seq FROM (
  SELECT u.sha256, s.id, u.seq FROM blob_uses u JOIN sessions s ON s.tenant = $1 AND s.n = u.session
  WHERE u.tenant = $1
  UNION ALL
  SELECT u.sha256, s.id, r.seq FROM record_blobs u
    JOIN sessions s ON s.tenant = $1 AND s.n = u.session
    LEFT JOIN records r ON r.tenant = $1 AND r.session = u.session AND r.branch = u.branch
      AND r.number = u.number
  WHERE u.tenant = $1
  UNION ALL
  SELECT u.sha256, NULL, NULL FROM store_record_blobs u WHERE u.tenant = $1) AS u
WHERE NOT EXISTS (SELECT FROM blobs b WHERE b.tenant = $1 AND b.sha256 = u.sha256)

-- ----------------------------------------------------------------------------- the server

-- name: server
SELECT current_setting('server_version_num')::bigint, current_setting('server_version'),
  current_setting('fsync'), current_setting('full_page_writes'),
  current_setting('synchronous_commit'), pg_is_in_recovery(),
  (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user), current_user::text

-- Which standbys commits wait for, how many are connected, and how many of these are synchronous: null
-- if this role may not see that.
-- name: standbys
SELECT current_setting('synchronous_standby_names'), count(r.pid),
  CASE WHEN count(r.pid) = count(r.sync_state)
    THEN count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum')) END
FROM pg_stat_replication r

-- Tables of the store that this role may read and that have no row-level security, such as partitions.
-- name: tables_without_rls
SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_class c
WHERE c.relnamespace = $1::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relrowsecurity
  AND c.relname <> 'meta' AND has_table_privilege(c.oid, 'SELECT')

-- name: lock_store
SELECT pg_advisory_xact_lock($1)

-- The steps of a migration name tables without their schema.
-- name: search_in
SELECT set_config('search_path', quote_ident($1), true)

-- name: lacks_schema
SELECT to_regnamespace($1::text) IS NULL

-- name: store_exists
SELECT to_regclass(format('%I.meta', $1::text)) IS NOT NULL

-- name: version
SELECT value FROM meta WHERE name = 'version'

-- name: sessions_with_metadata
SELECT s.tenant, s.n, s.metadata FROM sessions s
WHERE (s.tenant, s.n) > ($1, $2) AND s.metadata <> '{}' ORDER BY s.tenant, s.n LIMIT $3

-- name: put_version
INSERT INTO meta (name, value) VALUES ('version', $1)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
