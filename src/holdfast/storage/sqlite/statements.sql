-- Every statement the backend uses, by name. Constant text: values are always bound.
--
-- Rows whose checksum is checked on reading come as: crc, the row's number, the columns crc covers.

-- name: begin
BEGIN IMMEDIATE

-- name: tenant
SELECT n FROM tenants WHERE name = ?

-- name: add_tenant
INSERT INTO tenants (name) VALUES (?) ON CONFLICT (name) DO UPDATE SET name = name RETURNING n

-- name: raise_fence
UPDATE meta SET value = value + 1 WHERE name = 'fence'

-- name: session
SELECT crc, n, tenant, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned,
  archived, trashed_at, goal, metadata, parent, relation, purged_at
FROM sessions WHERE n = ? AND tenant = ? AND purged_at IS NULL

-- name: session_by_id
SELECT crc, n, tenant, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned,
  archived, trashed_at, goal, metadata, parent, relation, purged_at
FROM sessions WHERE tenant = ? AND id = ?

-- name: session_by_key
SELECT crc, n, tenant, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned,
  archived, trashed_at, goal, metadata, parent, relation, purged_at
FROM sessions WHERE tenant = ? AND key = ? AND trashed_at IS NULL

-- name: sessions_by_prefix
SELECT crc, n, tenant, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned,
  archived, trashed_at, goal, metadata, parent, relation, purged_at
FROM sessions WHERE tenant = ? AND id >= ? AND id < ? AND purged_at IS NULL ORDER BY id LIMIT 20

-- name: sessions_by_title
SELECT crc, n, tenant, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned,
  archived, trashed_at, goal, metadata, parent, relation, purged_at
FROM sessions WHERE tenant = ? AND title = ? AND trashed_at IS NULL ORDER BY n LIMIT 20

-- name: sessions_by_loose_title
SELECT crc, n, tenant, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned,
  archived, trashed_at, goal, metadata, parent, relation, purged_at
FROM sessions WHERE (trashed_at IS NOT NULL) = :trashed AND n IN (
  SELECT n FROM sessions INDEXED BY sessions_by_title
  WHERE tenant = :tenant AND title IS NOT NULL AND title >= :lower AND title < :lower_end
    AND (title = :loose COLLATE NOCASE
      OR length(CAST(title AS BLOB)) > length(title) AND loose(title) = :loose)
  UNION ALL SELECT n FROM sessions INDEXED BY sessions_by_title
  WHERE tenant = :tenant AND title IS NOT NULL AND title >= :upper AND title < :upper_end
    AND (title = :loose COLLATE NOCASE
      OR length(CAST(title AS BLOB)) > length(title) AND loose(title) = :loose)
  UNION ALL SELECT n FROM sessions INDEXED BY sessions_by_title
  WHERE tenant = :tenant AND title IS NOT NULL AND title >= char(128) AND loose(title) = :loose)
ORDER BY n LIMIT 20

-- name: forks
SELECT parent, count(*) FROM sessions INDEXED BY sessions_by_parent
WHERE tenant = ? AND parent IN (…) AND relation IN ('fork', 'continue')
  AND trashed_at IS NULL AND purged_at IS NULL GROUP BY parent

-- name: trashed_by_key
SELECT crc, n, tenant, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned,
  archived, trashed_at, goal, metadata, parent, relation, purged_at
FROM sessions WHERE tenant = ? AND key = ? AND trashed_at IS NOT NULL ORDER BY n LIMIT 20

-- name: trashed_by_title
SELECT crc, n, tenant, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned,
  archived, trashed_at, goal, metadata, parent, relation, purged_at
FROM sessions WHERE tenant = ? AND title = ? AND trashed_at IS NOT NULL ORDER BY n LIMIT 20

-- name: sessions_by_parent
SELECT crc, n, tenant, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned,
  archived, trashed_at, goal, metadata, parent, relation, purged_at
FROM sessions WHERE tenant = ? AND parent = ? ORDER BY created_at, n

-- name: titles
SELECT n, id, scope, agent, title, parent, relation, h.branch, h.updated_at
FROM sessions s CROSS JOIN heads h ON h.session = s.n
WHERE s.n IN (SELECT n FROM sessions INDEXED BY sessions_by_title
  WHERE tenant = ? AND title IS NOT NULL
    AND (typeof(title) = 'blob' OR octet_length(title) <> length(title) OR (…)))
AND trashed_at IS NULL ORDER BY s.n

-- name: owners
SELECT b.n, s.n, id, scope, agent, title, s.parent, relation, h.branch, h.updated_at
FROM branches b CROSS JOIN sessions s ON s.n = b.session CROSS JOIN heads h ON h.session = s.n
WHERE b.n IN (…) AND s.tenant = ? AND trashed_at IS NULL

-- name: drop_session
DELETE FROM sessions WHERE n = ? AND tenant = ?

-- name: sessions_by_run
SELECT DISTINCT s.crc, n, tenant, id, key, scope, agent, title, title_by, s.model, cwd, created_at,
  pinned, archived, trashed_at, goal, metadata, parent, relation, purged_at
FROM turns t JOIN sessions s ON s.n = t.session
WHERE t.run_id = ? AND s.tenant = ? AND s.trashed_at IS NULL ORDER BY n LIMIT 20

-- name: add_session
INSERT INTO sessions (tenant, id, key, scope, agent, title, title_by, model, cwd, created_at,
  pinned, archived, trashed_at, goal, metadata, parent, relation, purged_at, crc)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING n

-- name: put_session
UPDATE sessions SET id = ?3, key = ?4, scope = ?5, agent = ?6, title = ?7, title_by = ?8,
  model = ?9, cwd = ?10, created_at = ?11, pinned = ?12, archived = ?13, trashed_at = ?14,
  goal = ?15, metadata = ?16, parent = ?17, relation = ?18, purged_at = ?19, crc = ?20
WHERE n = ?1 AND tenant = ?2

-- name: add_branch
INSERT INTO branches (session, number, parent, fork_seq, asked_seq, last_seq, created_at, reason,
  token, crc)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING n

-- name: put_branch
UPDATE branches SET last_seq = ?2, crc = ?3 WHERE n = ?1

-- name: branch
SELECT s.id, s.purged_at, h.branch, h.seq, b.crc, b.n, b.session, b.number, b.parent, b.fork_seq,
  b.asked_seq, b.last_seq, b.created_at, b.reason, b.token
FROM branches b JOIN sessions s ON s.n = b.session LEFT JOIN heads h ON h.session = b.session
WHERE b.n = ? AND s.tenant = ?

-- name: branch_step
SELECT s.id, b.crc, b.n, b.session, b.number, b.parent, b.fork_seq, b.asked_seq, b.last_seq,
  b.created_at, b.reason, b.token
FROM branches b JOIN sessions s ON s.n = b.session WHERE b.n = ? AND s.tenant = ?

-- name: branch_by_number
SELECT s.id, s.purged_at, h.branch, h.seq, b.crc, b.n, b.session, b.number, b.parent, b.fork_seq,
  b.asked_seq, b.last_seq, b.created_at, b.reason, b.token
FROM branches b JOIN sessions s ON s.n = b.session LEFT JOIN heads h ON h.session = b.session
WHERE b.session = ? AND b.number = ? AND s.tenant = ?

-- name: branch_by_token
SELECT s.id, s.purged_at, h.branch, h.seq, b.crc, b.n, b.session, b.number, b.parent, b.fork_seq,
  b.asked_seq, b.last_seq, b.created_at, b.reason, b.token
FROM branches b INDEXED BY branches_by_token CROSS JOIN sessions s ON s.n = b.session
LEFT JOIN heads h ON h.session = b.session
WHERE b.token = ? AND b.session = ? AND s.tenant = ?

-- name: branches
SELECT s.id, s.purged_at, h.branch, h.seq, b.crc, b.n, b.session, b.number, b.parent, b.fork_seq,
  b.asked_seq, b.last_seq, b.created_at, b.reason, b.token
FROM branches b JOIN sessions s ON s.n = b.session LEFT JOIN heads h ON h.session = b.session
WHERE b.session = ? AND s.tenant = ? ORDER BY b.number

-- name: branches_from
SELECT s.id, s.purged_at, h.branch, h.seq, b.crc, b.n, b.session, b.number, b.parent, b.fork_seq,
  b.asked_seq, b.last_seq, b.created_at, b.reason, b.token
FROM branches b JOIN sessions s ON s.n = b.session LEFT JOIN heads h ON h.session = b.session
WHERE b.parent = ? AND s.tenant = ? ORDER BY b.n

-- name: drop_branch
DELETE FROM branches WHERE n = ?

-- name: id_of_session
SELECT CAST(id AS BLOB) FROM sessions WHERE n = ?

-- name: head
SELECT crc, activity, session, tenant, branch, branch_no, seq, turns, open_turn, updated_at,
  input, output, cache_read, cache_write, reasoning, cost, preview, preview_rank,
  preview_seq, queued
FROM heads WHERE session = ? AND tenant = ?

-- name: add_head
INSERT INTO heads (session, tenant, branch, branch_no, seq, turns, open_turn, updated_at, activity,
  input, output, cache_read, cache_write, reasoning, cost, preview, preview_rank, preview_seq,
  queued, crc)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,
  1 + max((SELECT coalesce(max(activity), 0) FROM heads WHERE tenant = ?2),
    coalesce((SELECT value FROM meta WHERE name = 'activity of ' || ?2), 0)),
  ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)

-- name: put_head
UPDATE heads SET branch = ?3, branch_no = ?4, seq = ?5, turns = ?6, open_turn = ?7,
  updated_at = ?8, activity = 1 + max((SELECT max(activity) FROM heads WHERE tenant = ?2),
    coalesce((SELECT value FROM meta WHERE name = 'activity of ' || ?2), 0)),
  input = ?9, output = ?10, cache_read = ?11, cache_write = ?12, reasoning = ?13, cost = ?14,
  preview = ?15, preview_rank = ?16, preview_seq = ?17, queued = ?18, crc = ?19
WHERE session = ?1

-- name: raise_activity
INSERT INTO meta (name, value)
SELECT 'activity of ' || ?2, activity FROM heads WHERE session = ?1 AND tenant = ?2
ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)

-- name: add_wipe_note
INSERT INTO meta (name, value) VALUES (?, 1) ON CONFLICT DO NOTHING

-- name: note_erasure
INSERT INTO meta (name, value) VALUES ('erasures of ' || ?1, 1)
ON CONFLICT (name) DO UPDATE SET value = value + 1

-- name: erasures
SELECT value FROM meta WHERE name = 'erasures of ' || ?

-- name: wipe_notes
-- Version 0.1.0 wrote one note, shared by all processes.
SELECT name FROM meta WHERE name = 'scrub' OR name LIKE 'scrub of %'

-- name: drop_wipe_note
DELETE FROM meta WHERE name = ?

-- name: drop_head
DELETE FROM heads WHERE session = ?

-- name: list_columns
SELECT s.crc, n, s.tenant, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned,
  archived, trashed_at, goal, metadata, parent, relation, purged_at,
  h.crc, activity, session, h.tenant, branch, branch_no, seq, turns, open_turn, updated_at,
  input, output, cache_read, cache_write, reasoning, cost, preview, preview_rank,
  preview_seq, queued

-- name: list_recent
FROM (SELECT * FROM heads WHERE tenant = :tenant AND activity < :before
      ORDER BY activity DESC LIMIT 2000) h CROSS JOIN sessions s ON s.n = h.session
WHERE s.tenant = :tenant

-- name: list_any
FROM sessions s JOIN heads h ON h.session = s.n
WHERE s.tenant = :tenant AND h.tenant = :tenant AND h.activity < :before

-- name: list_few
FROM sessions s CROSS JOIN heads h ON h.session = s.n
WHERE s.tenant = :tenant AND h.tenant = :tenant AND h.activity < :before

-- name: list_numbers
SELECT session, activity FROM heads INDEXED BY heads_by_activity
WHERE tenant = ? AND activity < ? ORDER BY activity DESC

-- name: list_end
ORDER BY activity DESC LIMIT :limit

-- name: activity_after
SELECT s.id, h.crc, activity, session, h.tenant, branch, branch_no, seq, turns, open_turn,
  updated_at, input, output, cache_read, cache_write, reasoning, cost, preview, preview_rank,
  preview_seq, queued
FROM heads h CROSS JOIN sessions s ON s.n = session
WHERE h.tenant = ? AND activity > ? ORDER BY activity LIMIT ?

-- name: add_message
INSERT INTO messages (place, id, turn, crc, body) VALUES (?, ?, ?, ?, ?)

-- name: put_message
UPDATE messages SET crc = ?2, body = ?3 WHERE place = ?1

-- name: drop_messages
DELETE FROM messages WHERE place BETWEEN ? AND ?

-- name: messages
SELECT place & 4294967295, id, turn, crc, CAST(body AS BLOB) FROM messages
WHERE place BETWEEN ? AND ? ORDER BY place

-- name: newest_summary
SELECT max(place) & 4294967295 FROM messages INDEXED BY messages_summaries
WHERE CAST(substr(body, 1, 17) AS TEXT) = '{"role":"summary"' AND place BETWEEN ? AND ?

-- name: messages_by_id
SELECT place & 4294967295, id, turn, crc, CAST(body AS BLOB) FROM messages INDEXED BY messages_by_id
WHERE place BETWEEN ? AND ? AND id IN (…)

-- name: rowids_of_ids
SELECT place FROM messages INDEXED BY messages_by_id WHERE id IN (…) LIMIT 1001

-- name: messages_by_id_in_session
SELECT b.n, m.place & 4294967295, m.id, m.turn, m.crc, CAST(m.body AS BLOB)
FROM messages m INDEXED BY messages_by_id CROSS JOIN branches b ON b.n = m.place >> 32
WHERE m.id IN (…) AND b.session = ?

-- name: count_of_turn
SELECT count(*) FROM messages WHERE place BETWEEN ? AND ? AND turn = ?

-- name: size_of_messages
SELECT count(*), total(octet_length(m.id) + octet_length(m.body))
FROM branches b CROSS JOIN messages m ON m.place > b.n << 32 AND m.place < (b.n + 1) << 32
WHERE b.session = ?

-- name: size_of_blobs
SELECT total(octet_length(data)) FROM blobs WHERE n IN (
  SELECT u.blob FROM branches b
    CROSS JOIN blob_uses u ON u.place > b.n << 32 AND u.place < (b.n + 1) << 32
  WHERE b.session = ?)

-- name: turn
SELECT crc, number, session, number, token, state, run_id, model, holder, lease_until, first_seq,
  started_at, ended_at, input, output, cache_read, cache_write, reasoning, cost, error
FROM turns WHERE session = ? AND number = ?

-- name: turns
SELECT crc, number, session, number, token, state, run_id, model, holder, lease_until, first_seq,
  started_at, ended_at, input, output, cache_read, cache_write, reasoning, cost, error
FROM turns WHERE session = ? ORDER BY number DESC LIMIT ?

-- name: put_turn
INSERT INTO turns (session, number, token, state, run_id, model, holder, lease_until, first_seq,
  started_at, ended_at, input, output, cache_read, cache_write, reasoning, cost, error, crc)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (session, number) DO UPDATE SET token = excluded.token, state = excluded.state,
  run_id = excluded.run_id, model = excluded.model, holder = excluded.holder,
  lease_until = excluded.lease_until, first_seq = excluded.first_seq,
  started_at = excluded.started_at, ended_at = excluded.ended_at,
  input = excluded.input, output = excluded.output, cache_read = excluded.cache_read,
  cache_write = excluded.cache_write, reasoning = excluded.reasoning, cost = excluded.cost,
  error = excluded.error, crc = excluded.crc

-- name: drop_turns
DELETE FROM turns WHERE session = ?

-- name: drop_tools
DELETE FROM tools WHERE session = ?

-- name: tools
SELECT session, turn, call_id, name, outcome, started_at, ended_at FROM tools
WHERE session = ? AND turn = ? ORDER BY position

-- name: tool
SELECT crc, position, session, turn, call_id, position, name, outcome, started_at, ended_at
FROM tools WHERE session = ? AND turn = ? AND call_id = ?

-- name: count_tools
SELECT count(*) FROM tools WHERE session = ? AND turn = ?

-- name: put_tool
INSERT INTO tools (session, turn, call_id, position, name, outcome, started_at, ended_at, crc)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (session, turn, call_id) DO UPDATE SET name = excluded.name,
  outcome = excluded.outcome, started_at = excluded.started_at, ended_at = excluded.ended_at,
  crc = excluded.crc

-- name: draft
SELECT CAST(record AS BLOB) FROM drafts WHERE session = ? AND turn = ? ORDER BY number

-- name: opening
SELECT CAST(record AS BLOB) FROM drafts WHERE session = ? AND turn = ? ORDER BY number LIMIT 1

-- name: put_draft
INSERT INTO drafts (session, turn, number, record, crc) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (session, turn, number) DO UPDATE SET record = excluded.record, crc = excluded.crc

-- name: drop_draft
DELETE FROM drafts WHERE session = ? AND turn = ?

-- name: drop_drafts
DELETE FROM drafts WHERE session = ?

-- name: drop_queue
DELETE FROM queue WHERE session = ?

-- name: drop_all_queue_blobs
DELETE FROM queue_blobs WHERE session = ?

-- name: drop_usage
DELETE FROM usage WHERE session = ?

-- name: queue
SELECT number, id, created_at, CAST(body AS BLOB) FROM queue WHERE session = ? ORDER BY number

-- name: queue_blobs
SELECT sha256, data FROM queue_blobs WHERE session = ? AND number = ? ORDER BY rowid

-- name: last_queued
SELECT coalesce(max(number), 0) FROM queue WHERE session = ?

-- name: add_queued
INSERT INTO queue (session, number, id, created_at, body, crc) VALUES (?, ?, ?, ?, ?, ?)

-- name: add_queue_blob
INSERT INTO queue_blobs (session, number, sha256, data) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: drop_queued
DELETE FROM queue WHERE session = ? AND number = ?

-- name: drop_queue_blobs
DELETE FROM queue_blobs WHERE session = ? AND number = ?

-- name: usage
SELECT day, model, input, output, cache_read, cache_write, reasoning, cost, counted, estimated
FROM usage WHERE session = ?

-- name: measured
SELECT CAST(total(counted) AS INTEGER), CAST(total(estimated) AS INTEGER) FROM (
  SELECT counted, estimated FROM usage u INDEXED BY usage_of_model
    CROSS JOIN sessions s ON s.n = u.session
  WHERE u.model = ? AND s.tenant = ? ORDER BY u.day DESC, u.session DESC LIMIT ?)

-- name: find_usage
SELECT crc, rowid, session, day, model, input, output, cache_read, cache_write, reasoning, cost,
  counted, estimated
FROM usage WHERE session = ? AND day = ? AND model IS ?

-- name: add_usage
INSERT INTO usage (session, day, model, input, output, cache_read, cache_write, reasoning, cost,
  counted, estimated, crc)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: put_usage
UPDATE usage SET input = ?2, output = ?3, cache_read = ?4, cache_write = ?5, reasoning = ?6,
  cost = ?7, counted = ?8, estimated = ?9, crc = ?10
WHERE rowid = ?1

-- name: blob
SELECT data FROM blobs WHERE tenant = ? AND sha256 = ?

-- name: find_blob
SELECT n FROM blobs WHERE tenant = ? AND sha256 = ?

-- name: add_blob
INSERT INTO blobs (tenant, sha256, data) VALUES (?, ?, ?) RETURNING n

-- name: use_blob
INSERT INTO blob_uses (place, blob) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: blobs_of_messages
SELECT DISTINCT b.sha256 FROM blob_uses u JOIN blobs b ON b.n = u.blob
WHERE u.place BETWEEN ? AND ?

-- name: drop_blob_uses
DELETE FROM blob_uses WHERE place BETWEEN ? AND ?

-- name: unused_blob
SELECT n, length(data) FROM blobs b WHERE tenant = ? AND sha256 = ?
  AND NOT EXISTS (SELECT 1 FROM blob_uses u WHERE u.blob = b.n)

-- name: drop_blob
DELETE FROM blobs WHERE n = ?

-- name: stats
SELECT (SELECT count(*) FROM sessions WHERE tenant = ?1 AND purged_at IS NULL),
  (SELECT count(*) FROM sessions WHERE tenant = ?1 AND trashed_at IS NOT NULL),
  (SELECT coalesce(sum(turns), 0) FROM heads WHERE tenant = ?1),
  (SELECT count(*) FROM heads WHERE tenant = ?1 AND open_turn IS NOT NULL),
  (SELECT count(*) FROM blobs WHERE tenant = ?1),
  (SELECT coalesce(sum(length(data)), 0) FROM blobs WHERE tenant = ?1)

-- name: stored_messages
SELECT count(*), coalesce(sum(iif(b.n = h.branch, h.seq, b.last_seq) - b.fork_seq), 0)
FROM sessions s JOIN branches b ON b.session = s.n LEFT JOIN heads h ON h.session = s.n
WHERE s.tenant = ?

-- name: growth
SELECT s.created_at / 86400000000 AS day, count(DISTINCT s.n),
  coalesce(sum(iif(b.n = h.branch, h.seq, b.last_seq) - b.fork_seq), 0)
FROM sessions s JOIN branches b ON b.session = s.n JOIN heads h ON h.session = s.n
WHERE s.tenant = ? GROUP BY day ORDER BY day

-- name: usage_by_day
SELECT day, u.model, input, output, cache_read, cache_write, reasoning, cost
FROM usage u JOIN sessions s ON s.n = u.session WHERE s.tenant = ?
