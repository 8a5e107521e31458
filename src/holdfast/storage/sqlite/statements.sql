-- Every statement the backend uses, by name. Constant text: values are always bound. {sessions} and
-- the like stand for lists of columns (see `tables`), other placeholders for a statement further up.

-- name: begin
BEGIN IMMEDIATE

-- name: tenant
SELECT n FROM tenants WHERE name = ?

-- name: add_tenant
INSERT INTO tenants (name) VALUES (?) ON CONFLICT (name) DO UPDATE SET name = name RETURNING n

-- name: created_at
SELECT value FROM meta WHERE name = 'created_at'

-- name: raise_fence
UPDATE meta SET value = value + 1 WHERE name = 'fence'

-- name: bind_log
INSERT INTO meta (name, value) VALUES ('log', ?) ON CONFLICT DO UPDATE SET value = excluded.value

-- Sessions by one field, whose value is ?2; a condition on the trash and an order follow. The sign of
-- +s.tenant keeps SQLite from reading all sessions of the tenant.
-- name: find_sessions
SELECT {sessions} FROM sessions s WHERE

-- name: sessions_by_n
{find_sessions} s.tenant = ?1 AND s.n = ?2

-- name: sessions_by_id
{find_sessions} s.tenant = ?1 AND s.id = ?2

-- name: sessions_by_key
{find_sessions} s.tenant = ?1 AND s.key = ?2

-- name: sessions_by_id_prefix
{find_sessions} +s.tenant = ?1 AND s.n IN (SELECT n FROM sessions INDEXED BY sessions_by_id
  WHERE tenant = ?1 AND id >= ?2 AND id < ?3)

-- name: sessions_by_title
{find_sessions} s.tenant = ?1 AND s.title = ?2

-- name: sessions_by_title_any_case
{find_sessions} +s.tenant = ?1 AND s.n IN (
  SELECT n FROM sessions INDEXED BY sessions_by_title
  WHERE tenant = ?1 AND title IS NOT NULL AND title >= ?3 AND title < ?4
    AND (title = ?2 COLLATE NOCASE
      OR length(CAST(title AS BLOB)) > length(title) AND loose(title) = ?2)
  UNION ALL SELECT n FROM sessions INDEXED BY sessions_by_title
  WHERE tenant = ?1 AND title IS NOT NULL AND title >= ?5 AND title < ?6
    AND (title = ?2 COLLATE NOCASE
      OR length(CAST(title AS BLOB)) > length(title) AND loose(title) = ?2)
  UNION ALL SELECT n FROM sessions INDEXED BY sessions_by_title
  WHERE tenant = ?1 AND title IS NOT NULL AND title >= char(128) AND loose(title) = ?2)

-- name: count_forks
SELECT parent, count(*) FROM sessions INDEXED BY sessions_by_parent
WHERE tenant = ? AND parent IN (…) AND relation IN ('fork', 'continue')
  AND trashed_at IS NULL AND purged_at IS NULL GROUP BY parent

-- name: sessions_by_parent
{find_sessions} s.tenant = ?1 AND s.parent = ?2

-- name: descendants
WITH RECURSIVE below (n, id) AS (
  SELECT n, id FROM sessions WHERE tenant = ?1 AND parent = ?2 AND id <> ?2
  UNION SELECT s.n, s.id FROM below CROSS JOIN sessions s ON s.tenant = ?1 AND s.parent = below.id
  WHERE s.id <> ?2)
{find_sessions} s.n IN (SELECT n FROM below) ORDER BY s.n

-- name: titled
SELECT n FROM sessions INDEXED BY sessions_by_title
WHERE tenant = ? AND title IS NOT NULL
  AND (typeof(title) = 'blob' OR octet_length(title) <> length(title) OR (…))

-- name: owning_sessions
SELECT n, n, id, scope, agent, cwd, title, parent, relation, h.branch, h.updated_at
FROM sessions s CROSS JOIN heads h ON h.session = s.n
WHERE s.n IN (…) AND s.tenant = ? AND trashed_at IS NULL

-- name: owners
SELECT b.n, s.n, id, scope, agent, cwd, title, s.parent, relation, h.branch, h.updated_at
FROM branches b CROSS JOIN sessions s ON s.n = b.session CROSS JOIN heads h ON h.session = s.n
WHERE b.n IN (…) AND s.tenant = ? AND trashed_at IS NULL

-- name: drop_session
DELETE FROM sessions WHERE n = ? AND tenant = ?

-- name: sessions_by_run_id
{find_sessions} +s.tenant = ?1 AND s.n IN (SELECT session FROM turns WHERE run_id = ?2)

-- name: sessions_by_message_id
{find_sessions} +s.tenant = ?1 AND s.n IN (
  SELECT b.session FROM messages m INDEXED BY messages_by_id
    CROSS JOIN branches b ON b.n = m.place >> 32 WHERE m.id = ?2)

-- name: add_session
INSERT INTO sessions ({sessions.names}) VALUES ({sessions.values}) RETURNING n

-- name: put_session
UPDATE sessions SET {sessions.set} WHERE n = ? AND tenant = ?1

-- name: marks
SELECT mark FROM metadata_marks WHERE session = ?

-- name: add_mark
INSERT INTO metadata_marks (session, mark, tenant) VALUES (?, ?, ?)

-- name: drop_mark
DELETE FROM metadata_marks WHERE session = ? AND mark = ?

-- name: drop_marks
DELETE FROM metadata_marks WHERE session = ?

-- name: add_branch
INSERT INTO branches ({branches.names}) VALUES ({branches.values}) RETURNING n

-- name: put_branch
UPDATE branches SET last_seq = ?2, crc = ?3 WHERE n = ?1

-- name: find_branches
SELECT s.id, s.purged_at, h.branch, h.branch_no, h.seq, {branches}
FROM branches b CROSS JOIN sessions s ON s.n = b.session LEFT JOIN heads h ON h.session = b.session
WHERE s.tenant = ?1 AND

-- name: branch_by_n
{find_branches} b.n = ?2

-- name: branch_by_number
{find_branches} b.session = ?2 AND b.number = ?3

-- The sign keeps SQLite from reading all branches of the session.
-- name: branch_by_token
{find_branches} b.token = ?3 AND +b.session = ?2

-- name: branches_of_session
{find_branches} b.session = ?2 ORDER BY b.number

-- name: branches_from
{find_branches} b.parent = ?2 ORDER BY b.n

-- Of branches, as a JSON array of their numbers, those on which others start.
-- name: forked_branches
SELECT DISTINCT b.parent FROM json_each(?) AS given
CROSS JOIN branches b INDEXED BY branches_by_parent ON b.parent = given.value

-- Branches, as a JSON array of their numbers, and all that descend from them.
-- name: branches_below
WITH RECURSIVE below (n) AS (
  SELECT value FROM json_each(?2)
  UNION SELECT b.n FROM below CROSS JOIN branches b ON b.parent = below.n)
{find_branches} b.n IN (SELECT n FROM below) ORDER BY b.n

-- name: branch_step
SELECT s.id, {branches} FROM branches b JOIN sessions s ON s.n = b.session
WHERE b.n = ? AND s.tenant = ?

-- name: drop_branch
DELETE FROM branches WHERE n = ?

-- name: id_of_session
SELECT CAST(id AS BLOB) FROM sessions WHERE n = ?

-- name: head
SELECT {heads} FROM heads h WHERE h.session = ? AND h.tenant = ?

-- name: heads
SELECT {heads} FROM heads h WHERE h.session IN (…) AND h.tenant = ?

-- name: add_head
INSERT INTO heads ({heads.names}) VALUES ({heads.values})

-- name: put_heads
REPLACE INTO heads ({heads.names}) VALUES (…)

-- The session that is first in the lists of a tenant, and the one that is first in its trash.
-- name: newest
SELECT {heads} FROM heads h WHERE h.session IN (
  SELECT session FROM (SELECT session FROM recent INDEXED BY recent_by_recency
    WHERE tenant = ?1 AND trashed = 0 ORDER BY recency DESC LIMIT 1)
  UNION ALL SELECT session FROM (SELECT session FROM recent INDEXED BY recent_by_recency
    WHERE tenant = ?1 AND trashed = 1 ORDER BY recency DESC LIMIT 1))

-- name: activity_floor
SELECT value FROM meta WHERE name = 'activity of ' || ?

-- Where a damaged head hides the last activity number of a tenant.
-- name: highest_activity
SELECT max(a) FROM (SELECT max(activity) AS a FROM heads WHERE tenant = ?1 AND activity < ?2
  UNION ALL SELECT max(recency) FROM recent WHERE tenant = ?1 AND recency < ?2)

-- name: add_recent
INSERT INTO recent (session, tenant, recency, trashed, scope, agent, cwd) VALUES (?, ?, ?, ?, ?, ?, ?)

-- The recency of sessions, as a JSON object by their numbers.
-- name: put_recency
UPDATE recent SET recency = j.value FROM json_each(?) AS j WHERE session = CAST(j.key AS INTEGER)

-- name: put_recent
UPDATE recent SET trashed = ?2, scope = ?3, agent = ?4, cwd = ?5
WHERE session = ?1 AND (trashed, scope, agent, cwd) IS NOT (?2, ?3, ?4, ?5)

-- name: drop_recent
DELETE FROM recent WHERE session = ?

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
SELECT r.recency, {sessions}, {heads}

-- Sessions in order; a condition and `list_end` follow. The signs keep SQLite from other indexes.
-- name: list_all
FROM recent r INDEXED BY recent_by_recency CROSS JOIN sessions s ON s.n = r.session
  CROSS JOIN heads h ON h.session = r.session
WHERE r.tenant = :tenant AND r.trashed = :trashed AND r.recency < :before
  AND +h.activity < :before AND +s.tenant = :tenant AND +h.tenant = :tenant

-- name: list_of_scope
FROM recent r INDEXED BY recent_by_scope CROSS JOIN sessions s ON s.n = r.session
  CROSS JOIN heads h ON h.session = r.session
WHERE r.tenant = :tenant AND r.trashed = 0 AND r.scope = :scope AND r.recency < :before
  AND +h.activity < :before AND +s.tenant = :tenant AND +h.tenant = :tenant

-- name: list_of_agent
FROM recent r INDEXED BY recent_by_agent CROSS JOIN sessions s ON s.n = r.session
  CROSS JOIN heads h ON h.session = r.session
WHERE r.tenant = :tenant AND r.trashed = 0 AND r.agent = :agent AND r.recency < :before
  AND +h.activity < :before AND +s.tenant = :tenant AND +h.tenant = :tenant

-- name: list_of_cwd
FROM recent r INDEXED BY recent_by_cwd CROSS JOIN sessions s ON s.n = r.session
  CROSS JOIN heads h ON h.session = r.session
WHERE r.tenant = :tenant AND r.trashed = 0 AND r.cwd = :cwd AND r.recency < :before
  AND +h.activity < :before AND +s.tenant = :tenant AND +h.tenant = :tenant

-- Sessions whose numbers a look-up has found: its statement replaces (…).
-- name: list_found
FROM recent r CROSS JOIN sessions s ON s.n = r.session CROSS JOIN heads h ON h.session = r.session
WHERE r.session IN (…) AND +r.tenant = :tenant AND +r.trashed = :trashed AND +r.recency < :before
  AND +h.activity < :before AND +s.tenant = :tenant AND +h.tenant = :tenant

-- The numbers of sessions that an index finds. Keys are texts, or blobs of the same bytes.
-- name: find_marked
SELECT session FROM metadata_marks WHERE tenant = :tenant AND mark = :mark

-- name: is_marked
AND EXISTS (SELECT 1 FROM metadata_marks m WHERE m.session = s.n AND m.mark = :mark)

-- name: has_key_prefix
AND substr(CAST(s.key AS BLOB), 1, length(:key_first)) = :key_first

-- name: find_keys
SELECT n FROM sessions INDEXED BY sessions_by_key
WHERE tenant = :tenant AND key IS NOT NULL AND trashed_at IS NULL
  AND key >= CAST(:key_first AS TEXT) AND key < CAST(:key_last AS TEXT)
UNION ALL SELECT n FROM sessions INDEXED BY sessions_by_key
WHERE tenant = :tenant AND key IS NOT NULL AND trashed_at IS NULL
  AND key >= :key_first AND key < :key_last

-- name: find_trashed_keys
SELECT n FROM sessions INDEXED BY sessions_trashed
WHERE tenant = :tenant AND trashed_at IS NOT NULL
  AND key >= CAST(:key_first AS TEXT) AND key < CAST(:key_last AS TEXT)
UNION ALL SELECT n FROM sessions INDEXED BY sessions_trashed
WHERE tenant = :tenant AND trashed_at IS NOT NULL
  AND key >= :key_first AND key < :key_last

-- name: find_pinned
SELECT n FROM sessions INDEXED BY sessions_pinned WHERE tenant = :tenant AND pinned = 1

-- name: find_archived
SELECT n FROM sessions INDEXED BY sessions_archived WHERE tenant = :tenant AND archived = 1

-- name: find_of_scope
SELECT session FROM recent INDEXED BY recent_by_scope
WHERE tenant = :tenant AND trashed = 0 AND scope = :scope

-- name: find_of_agent
SELECT session FROM recent INDEXED BY recent_by_agent
WHERE tenant = :tenant AND trashed = 0 AND agent = :agent

-- name: find_of_cwd
SELECT session FROM recent INDEXED BY recent_by_cwd
WHERE tenant = :tenant AND trashed = 0 AND cwd = :cwd

-- name: count_few
SELECT count(*) FROM (SELECT 1 FROM (…) LIMIT 2000)

-- The index alone has all of these.
-- name: list_numbers
SELECT session, recency FROM recent INDEXED BY recent_by_recency
WHERE tenant = ? AND trashed IN (0, 1) AND recency < ? ORDER BY recency DESC

-- name: list_end
ORDER BY r.recency DESC LIMIT :limit

-- The newest of those that became so before ?2 may have been written to since.
-- name: activity_after
SELECT s.id, {heads} FROM recent r CROSS JOIN heads h ON h.session = r.session
  CROSS JOIN sessions s ON s.n = r.session
WHERE r.session IN (
    SELECT session FROM (SELECT session FROM recent INDEXED BY recent_by_recency
      WHERE tenant = ?1 AND trashed = 0 AND recency > ?2 ORDER BY recency LIMIT ?3)
    UNION ALL SELECT session FROM (SELECT session FROM recent INDEXED BY recent_by_recency
      WHERE tenant = ?1 AND trashed = 1 AND recency > ?2 ORDER BY recency LIMIT ?3)
    UNION ALL SELECT session FROM (SELECT session FROM recent INDEXED BY recent_by_recency
      WHERE tenant = ?1 AND trashed = 0 AND recency <= ?2 ORDER BY recency DESC LIMIT 1)
    UNION ALL SELECT session FROM (SELECT session FROM recent INDEXED BY recent_by_recency
      WHERE tenant = ?1 AND trashed = 1 AND recency <= ?2 ORDER BY recency DESC LIMIT 1))
  AND h.activity > ?2
ORDER BY r.recency LIMIT ?3

-- name: add_messages
INSERT INTO messages (place, id, turn, crc, body) VALUES (…)

-- name: put_message
UPDATE messages SET crc = ?2, body = ?3 WHERE place = ?1

-- name: drop_messages
DELETE FROM messages WHERE place BETWEEN ? AND ?

-- name: messages
SELECT place & 4294967295, id, turn, crc, CAST(body AS BLOB) FROM messages
WHERE place BETWEEN ? AND ? ORDER BY place

-- name: stored_ends
SELECT (SELECT place FROM messages WHERE place BETWEEN ?1 AND ?2 ORDER BY place LIMIT 1),
  (SELECT place FROM messages WHERE place BETWEEN ?1 AND ?2 ORDER BY place DESC LIMIT 1)

-- name: newest_summary
SELECT max(place) & 4294967295 FROM messages INDEXED BY messages_summaries
WHERE CAST(substr(body, 1, 17) AS TEXT) = '{"role":"summary"' AND place BETWEEN ? AND ?

-- name: messages_by_id
SELECT place & 4294967295, id, turn, crc, CAST(body AS BLOB) FROM messages INDEXED BY messages_by_id
WHERE place BETWEEN ? AND ? AND id IN (…)

-- name: rowids_of_ids
SELECT place FROM messages INDEXED BY messages_by_id WHERE id IN (…) LIMIT 1001

-- Generated ids begin with the time, and so with 0 until the year 2527.
-- name: greatest_own_id
SELECT id FROM messages INDEXED BY messages_by_id WHERE id < '1' ORDER BY id DESC LIMIT 1

-- name: known_ids
SELECT id FROM messages INDEXED BY messages_by_id WHERE id IN (…)

-- name: messages_by_id_in_sessions
SELECT b.n, m.place & 4294967295, m.id, m.turn, m.crc, CAST(m.body AS BLOB)
FROM messages m INDEXED BY messages_by_id CROSS JOIN branches b ON b.n = m.place >> 32
WHERE m.id IN (…) AND b.session IN (SELECT value FROM json_each(?))

-- name: size_of_messages
SELECT count(*), total(octet_length(m.id) + octet_length(m.body))
FROM branches b CROSS JOIN messages m ON m.place > b.n << 32 AND m.place < (b.n + 1) << 32
WHERE b.session = ?

-- name: size_of_records_and_blobs
SELECT (SELECT total(octet_length(r.id) + octet_length(r.body))
    FROM branches b CROSS JOIN records r ON r.place > b.n << 32 AND r.place < (b.n + 1) << 32
    WHERE b.session = ?1),
  (SELECT total(octet_length(data)) FROM blobs WHERE n IN (
    SELECT u.blob FROM branches b
      CROSS JOIN blob_uses u ON u.place > b.n << 32 AND u.place < (b.n + 1) << 32
      WHERE b.session = ?1
    UNION ALL SELECT u.blob FROM branches b
      CROSS JOIN record_blobs u ON u.place > b.n << 32 AND u.place < (b.n + 1) << 32
      WHERE b.session = ?1))

-- Records of a branch, the last first. Of a kind and key they are a range of the index, in its order:
-- its entries end with the rowid.
-- name: find_records
SELECT place & 4294967295, seq, id, kind, key, crc, CAST(body AS BLOB) FROM records

-- name: records
{find_records} WHERE place BETWEEN ? AND ? ORDER BY place DESC LIMIT ?

-- name: records_by_key
{find_records} INDEXED BY records_by_key
WHERE place >> 32 = ? AND kind = ? AND key IS ? AND seq BETWEEN ? AND ?
ORDER BY seq DESC, place DESC LIMIT ?

-- name: records_behind
{find_records} INDEXED BY records_by_key
WHERE place >> 32 = ? AND kind = ? AND key IS ? AND seq = ? AND place <= ?
ORDER BY place DESC LIMIT ?

-- Bodies are read after the places are chosen: they may be large.
-- name: recent_records
{find_records} WHERE place IN (
  SELECT place FROM (SELECT place, kind FROM records WHERE place BETWEEN ?2 AND ?3
    ORDER BY place DESC LIMIT ?5) WHERE kind = ?1 ORDER BY place DESC LIMIT ?4)
ORDER BY place DESC

-- Keys are text, or a blob of the same bytes.
-- name: recent_records_by_prefix
{find_records} WHERE place IN (
  SELECT place FROM (SELECT place, kind, CAST(key AS BLOB) AS key FROM records
    WHERE place BETWEEN ?2 AND ?3 ORDER BY place DESC LIMIT ?5)
  WHERE kind = ?1 AND key >= ?6 AND key < ?7 ORDER BY place DESC LIMIT ?4)
ORDER BY place DESC

-- name: records_by_kind
{find_records} WHERE place IN (
  SELECT place FROM records INDEXED BY records_by_key
  WHERE place >> 32 = ?1 AND kind = ?2 AND place BETWEEN ?3 AND ?4 ORDER BY place DESC LIMIT ?5)
ORDER BY place DESC

-- name: records_by_prefix
{find_records} WHERE place IN (
  SELECT place FROM records INDEXED BY records_by_key
  WHERE place >> 32 = ?1 AND kind = ?2 AND place BETWEEN ?3 AND ?4
    AND key >= CAST(?6 AS TEXT) AND key < CAST(?7 AS TEXT)
  UNION ALL SELECT place FROM records INDEXED BY records_by_key
  WHERE place >> 32 = ?1 AND kind = ?2 AND place BETWEEN ?3 AND ?4 AND key >= ?6 AND key < ?7
  ORDER BY place DESC LIMIT ?5)
ORDER BY place DESC

-- name: numbers_by_kind
SELECT place & 4294967295 FROM records INDEXED BY records_by_key
WHERE place >> 32 = ? AND kind = ? AND place BETWEEN ? AND ? ORDER BY place DESC LIMIT ?

-- name: numbers_by_key
SELECT place & 4294967295 FROM records INDEXED BY records_by_key
WHERE place >> 32 = ? AND kind = ? AND key IS ? AND place BETWEEN ? AND ?
ORDER BY seq DESC, place DESC LIMIT ?

-- name: record_ends
SELECT f.place, f.seq, l.place, l.seq
FROM (SELECT place, seq FROM records WHERE place BETWEEN ?1 AND ?2 ORDER BY place LIMIT 1) f,
  (SELECT place, seq FROM records WHERE place BETWEEN ?1 AND ?2 ORDER BY place DESC LIMIT 1) l

-- name: record_at
SELECT place & 4294967295, seq, kind, key FROM records WHERE place BETWEEN ? AND ? ORDER BY place DESC LIMIT 1

-- name: first_record_seq
SELECT seq FROM records WHERE place BETWEEN ? AND ? ORDER BY place LIMIT 1

-- name: record_head
SELECT h.seq, h.records FROM branches b CROSS JOIN heads h ON h.session = b.session AND h.branch = b.n
WHERE b.n = ?

-- name: records_by_id
{find_records} INDEXED BY records_by_id WHERE place BETWEEN ? AND ? AND id IN (…)

-- name: places_of_record_ids
SELECT place FROM records INDEXED BY records_by_id WHERE id IN (…) LIMIT 1001

-- name: add_record
INSERT INTO records (place, seq, id, kind, key, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: use_blob_in_record
INSERT INTO record_blobs (place, blob) VALUES (?, ?) ON CONFLICT DO NOTHING

-- Records by a JSON array of their places.
-- name: blobs_of_records
SELECT DISTINCT b.sha256 FROM record_blobs u JOIN blobs b ON b.n = u.blob
WHERE u.place IN (SELECT value FROM json_each(?))

-- name: drop_record_blobs
DELETE FROM record_blobs WHERE place IN (SELECT value FROM json_each(?))

-- name: drop_records
DELETE FROM records WHERE place IN (SELECT value FROM json_each(?))

-- Records of a range of places that lie behind a message after ?3, or have a place after ?4.
-- name: places_of_records_after
SELECT place FROM records WHERE place BETWEEN ?1 AND ?2 AND (seq > ?3 OR place > ?4)

-- name: blobs_of_records_after
SELECT DISTINCT b.sha256 FROM record_blobs u JOIN blobs b ON b.n = u.blob
WHERE u.place BETWEEN ?1 AND ?2 AND u.place IN ({places_of_records_after})

-- name: drop_record_blobs_after
DELETE FROM record_blobs WHERE place BETWEEN ?1 AND ?2 AND place IN ({places_of_records_after})

-- name: drop_records_after
DELETE FROM records WHERE place BETWEEN ?1 AND ?2 AND (seq > ?3 OR place > ?4)

-- name: find_store_records
SELECT scope, kind, key, id, crc, CAST(body AS BLOB) FROM store_records

-- name: store_record
{find_store_records} INDEXED BY store_records_by_key
WHERE tenant = ? AND kind = ? AND key IS ? AND scope IS ? AND body IS NOT NULL

-- name: store_record_number
SELECT n, scope, kind, key, id, crc, CAST(body AS BLOB) FROM store_records
INDEXED BY store_records_by_key
WHERE tenant = ? AND kind = ? AND key IS ? AND scope IS ? AND body IS NOT NULL

-- name: store_records_by_id
{find_store_records} WHERE tenant = ? AND id IN (…)

-- name: store_records
{find_store_records} WHERE tenant = ? ORDER BY n

-- name: add_store_record
INSERT INTO store_records (tenant, scope, kind, key, id, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?)
RETURNING n

-- name: empty_store_record
UPDATE store_records SET crc = ?2, body = NULL WHERE n = ?1

-- name: use_blob_in_store_record
INSERT INTO store_record_blobs (record, blob) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: blobs_of_store_record
SELECT b.sha256 FROM store_record_blobs u JOIN blobs b ON b.n = u.blob WHERE u.record = ?

-- name: drop_store_record_blobs
DELETE FROM store_record_blobs WHERE record = ?

-- name: turn
SELECT {turns} FROM turns t WHERE t.session = ? AND t.number = ?

-- name: turns
SELECT {turns} FROM turns t WHERE t.session = ? ORDER BY t.number DESC LIMIT ?

-- name: put_turn
INSERT INTO turns ({turns.names}) VALUES ({turns.values})
ON CONFLICT (session, number) DO UPDATE SET {turns.set}

-- name: drop_turns
DELETE FROM turns WHERE session = ?

-- name: drop_tools
DELETE FROM tools WHERE session = ?

-- name: tools
SELECT {tools} FROM tools t WHERE t.session = ? AND t.turn = ? ORDER BY t.position

-- name: tool
SELECT t.position, {tools} FROM tools t WHERE t.session = ? AND t.turn = ? AND t.call_id = ?

-- name: count_tools
SELECT count(*) FROM tools WHERE session = ? AND turn = ?

-- name: put_tool
INSERT INTO tools ({tools.names}) VALUES ({tools.values})
ON CONFLICT (session, turn, call_id) DO UPDATE SET {tools.set}

-- name: draft
SELECT CAST(record AS BLOB) FROM drafts WHERE session = ? AND turn = ? ORDER BY number LIMIT ?

-- name: put_draft
INSERT INTO drafts ({drafts.names}) VALUES ({drafts.values})
ON CONFLICT (session, turn, number) DO UPDATE SET {drafts.set}

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
SELECT {queue} FROM queue q WHERE q.session = ? ORDER BY q.number

-- name: queue_blobs
SELECT sha256, CAST(data AS BLOB) FROM queue_blobs WHERE session = ? AND number = ? ORDER BY rowid

-- name: last_queued
SELECT coalesce(max(number), 0) FROM queue WHERE session = ?

-- name: add_queued
INSERT INTO queue ({queue.names}) VALUES ({queue.values})

-- name: add_queue_blob
INSERT INTO queue_blobs (session, number, sha256, data) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: drop_queued
DELETE FROM queue WHERE session = ? AND number = ?

-- name: drop_queue_blobs
DELETE FROM queue_blobs WHERE session = ? AND number = ?

-- name: usage_of_session
SELECT {usage} FROM usage u WHERE u.session = ?

-- name: usage_of_model
SELECT {usage}
FROM usage u INDEXED BY usage_of_model CROSS JOIN sessions s ON s.n = u.session
WHERE u.model = ? AND s.tenant = ? ORDER BY u.day DESC, u.session DESC LIMIT ?

-- name: find_usage
SELECT u.rowid, {usage} FROM usage u WHERE u.session = ? AND u.day = ? AND u.model IS ?

-- name: add_usage
INSERT INTO usage ({usage.names}) VALUES ({usage.values})

-- name: put_usage
UPDATE usage SET {usage.set} WHERE rowid = ?

-- name: blob
SELECT CAST(data AS BLOB) FROM blobs WHERE tenant = ? AND sha256 = ?

-- name: blobs
SELECT sha256, CAST(data AS BLOB) FROM blobs WHERE tenant = ? AND sha256 IN (…)

-- name: find_blob
SELECT n, data = ?3 FROM blobs WHERE tenant = ?1 AND sha256 = ?2

-- name: put_blob
UPDATE blobs SET data = ?2 WHERE n = ?1

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
  AND NOT EXISTS (SELECT 1 FROM record_blobs u WHERE u.blob = b.n)
  AND NOT EXISTS (SELECT 1 FROM store_record_blobs u WHERE u.blob = b.n)

-- name: drop_blob
DELETE FROM blobs WHERE n = ?

-- Totals instead of sums: numbers that no store writes would make a sum overflow.
-- name: stats
SELECT (SELECT count(*) FROM sessions WHERE tenant = ?1 AND purged_at IS NULL),
  (SELECT count(*) FROM sessions WHERE tenant = ?1 AND trashed_at IS NOT NULL AND purged_at IS NULL),
  (SELECT CAST(total(turns) AS INTEGER) FROM heads WHERE tenant = ?1),
  (SELECT count(*) FROM heads WHERE tenant = ?1 AND open_turn IS NOT NULL),
  (SELECT count(*) FROM blobs WHERE tenant = ?1),
  (SELECT CAST(total(length(data)) AS INTEGER) FROM blobs WHERE tenant = ?1)

-- name: stored_messages
SELECT count(*),
  CAST(total(max(0, iif(b.n = h.branch, h.seq, b.last_seq) - b.fork_seq)) AS INTEGER)
FROM sessions s JOIN branches b ON b.session = s.n LEFT JOIN heads h ON h.session = s.n
WHERE s.tenant = ?

-- name: growth
SELECT s.created_at / 86400000000 AS day, count(DISTINCT s.n),
  CAST(total(max(0, iif(b.n = h.branch, h.seq, b.last_seq) - b.fork_seq)) AS INTEGER)
FROM sessions s JOIN branches b ON b.session = s.n JOIN heads h ON h.session = s.n
WHERE s.tenant = ? GROUP BY day ORDER BY day

-- name: usage_by_day
SELECT {usage} FROM usage u JOIN sessions s ON s.n = u.session WHERE s.tenant = ?
