-- The log, version 1. docs/format.md documents every column.
--
-- Names given by callers (keys, ids, scopes, titles …) are TEXT, or a BLOB of the same bytes when
-- they hold what SQL text cannot: NUL, or lone surrogates. Bodies are JSON. Times are microseconds
-- since 1970, UTC. Money is counted in units of 10^-12.
--
-- Damage to any value is detectable: by its row's crc (the CRC-32 of the JSON array of the columns
-- before it, except the numbers that SQLite assigns), by a hash, or by an index with a second copy.

CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value ANY
) STRICT, WITHOUT ROWID;
CREATE INDEX meta_by_value ON meta (value);

-- 'fence' is incremented after a failed commit, to overwrite what the failed one left in the log.
INSERT INTO meta VALUES ('fence', 0), ('created_at', CAST(unixepoch('subsec') * 1000000 AS INTEGER));

CREATE TABLE tenants (
  n    INTEGER PRIMARY KEY,
  name ANY NOT NULL UNIQUE
) STRICT;
INSERT INTO tenants VALUES (1, 'default');

-- A session's identity; changes rarely. If a session is purged while a fork still shares some of
-- its messages, a stub remains with id, parent, relation and times. A stub has no head, and is
-- deleted with the last fork.
CREATE TABLE sessions (
  n          INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant     INTEGER NOT NULL,
  id         ANY     NOT NULL,
  key        ANY,
  scope      ANY,
  agent      ANY,
  title      ANY,
  title_by   TEXT,
  model      ANY,
  cwd        ANY,
  created_at INTEGER NOT NULL,
  pinned     INTEGER NOT NULL,
  archived   INTEGER NOT NULL,
  trashed_at INTEGER,
  goal       ANY,
  metadata   ANY     NOT NULL,
  parent     ANY,
  relation   TEXT,
  purged_at  INTEGER,
  crc        INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX sessions_by_id ON sessions (tenant, id);
CREATE UNIQUE INDEX sessions_by_key ON sessions (tenant, key)
  WHERE key IS NOT NULL AND trashed_at IS NULL;
CREATE INDEX sessions_by_title ON sessions (tenant, title) WHERE title IS NOT NULL;
CREATE INDEX sessions_by_scope ON sessions (tenant, scope) WHERE scope IS NOT NULL;
CREATE INDEX sessions_by_agent ON sessions (tenant, agent) WHERE agent IS NOT NULL;
CREATE INDEX sessions_by_cwd ON sessions (tenant, cwd) WHERE cwd IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (tenant, parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_pinned ON sessions (tenant) WHERE pinned = 1;
CREATE INDEX sessions_archived ON sessions (tenant) WHERE archived = 1;
CREATE INDEX sessions_trashed ON sessions (tenant, key) WHERE trashed_at IS NOT NULL;

-- A session's head. Each append rewrites one row, so it is a small table of its own. activity is
-- higher than that of every session written to before, so lists need no clock.
CREATE TABLE heads (
  session      INTEGER PRIMARY KEY,
  tenant       INTEGER NOT NULL,
  branch       INTEGER NOT NULL,
  branch_no    INTEGER NOT NULL,
  seq          INTEGER NOT NULL,
  turns        INTEGER NOT NULL,
  open_turn    INTEGER,
  updated_at   INTEGER NOT NULL,
  activity     INTEGER NOT NULL,
  input        INTEGER NOT NULL,
  output       INTEGER NOT NULL,
  cache_read   INTEGER NOT NULL,
  cache_write  INTEGER NOT NULL,
  reasoning    INTEGER NOT NULL,
  cost         INTEGER NOT NULL,
  preview      ANY,
  preview_rank INTEGER NOT NULL,
  preview_seq  INTEGER NOT NULL,
  queued       INTEGER NOT NULL,
  crc          INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX heads_by_activity ON heads (tenant, activity);

-- A branch starts after message fork_seq, which is on its parent (another session's, for a fork).
-- asked_seq is the start that the caller requested; they differ when that was inside a tool
-- exchange. token identifies the write that created the branch, so that a retry creates it once.
-- The active branch of a session is the one with the highest number; its last seq is in heads.
CREATE TABLE branches (
  n          INTEGER PRIMARY KEY AUTOINCREMENT,
  session    INTEGER NOT NULL,
  number     INTEGER NOT NULL,
  parent     INTEGER,
  fork_seq   INTEGER NOT NULL,
  asked_seq  INTEGER NOT NULL,
  last_seq   INTEGER,
  created_at INTEGER NOT NULL,
  reason     TEXT NOT NULL,
  token      TEXT NOT NULL,
  crc        INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX branches_by_number ON branches (session, number);
CREATE INDEX branches_by_parent ON branches (parent) WHERE parent IS NOT NULL;
CREATE INDEX branches_by_token ON branches (token);

-- place = branch * 2^32 + seq: a history is one range of this table per branch it runs through.
-- crc = crc32(body, crc32(id, turn or 0)).
CREATE TABLE messages (
  place INTEGER PRIMARY KEY,
  id    ANY     NOT NULL,
  turn  INTEGER,
  crc   INTEGER NOT NULL,
  body  ANY     NOT NULL
) STRICT;
CREATE INDEX messages_by_id ON messages (id);
-- There are few summaries, and windows need the newest one.
CREATE INDEX messages_summaries ON messages (place)
  WHERE CAST(substr(body, 1, 17) AS TEXT) = '{"role":"summary"';

-- number is the fencing token: a turn may write only while heads.open_turn is its number.
CREATE TABLE turns (
  session     INTEGER NOT NULL,
  number      INTEGER NOT NULL,
  token       TEXT    NOT NULL,
  state       TEXT    NOT NULL,
  run_id      ANY,
  model       ANY,
  holder      ANY     NOT NULL,
  lease_until INTEGER NOT NULL,
  first_seq   INTEGER NOT NULL,
  started_at  INTEGER NOT NULL,
  ended_at    INTEGER,
  input       INTEGER NOT NULL,
  output      INTEGER NOT NULL,
  cache_read  INTEGER NOT NULL,
  cache_write INTEGER NOT NULL,
  reasoning   INTEGER NOT NULL,
  cost        INTEGER NOT NULL,
  error       ANY,
  crc         INTEGER NOT NULL,
  PRIMARY KEY (session, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX turns_by_run ON turns (run_id) WHERE run_id IS NOT NULL;

-- The ledger of tool calls: called, running, done, error, unknown, not_run.
CREATE TABLE tools (
  session    INTEGER NOT NULL,
  turn       INTEGER NOT NULL,
  call_id    ANY     NOT NULL,
  position   INTEGER NOT NULL,
  name       ANY,
  outcome    TEXT    NOT NULL,
  started_at INTEGER,
  ended_at   INTEGER,
  crc        INTEGER NOT NULL,
  PRIMARY KEY (session, turn, call_id)
) STRICT, WITHOUT ROWID;

-- Replies that are still being streamed: record 0 opens the draft, each flush adds one.
CREATE TABLE drafts (
  session INTEGER NOT NULL,
  turn    INTEGER NOT NULL,
  number  INTEGER NOT NULL,
  record  ANY     NOT NULL,
  crc     INTEGER NOT NULL,
  PRIMARY KEY (session, turn, number)
) STRICT, WITHOUT ROWID;

-- Input queued for the next turn.
CREATE TABLE queue (
  session    INTEGER NOT NULL,
  number     INTEGER NOT NULL,
  id         ANY     NOT NULL,
  created_at INTEGER NOT NULL,
  body       ANY     NOT NULL,
  crc        INTEGER NOT NULL,
  PRIMARY KEY (session, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE queue_blobs (
  session INTEGER NOT NULL,
  number  INTEGER NOT NULL,
  sha256  TEXT    NOT NULL,
  data    BLOB    NOT NULL,
  PRIMARY KEY (session, number, sha256)
) STRICT;

CREATE TABLE usage (
  session     INTEGER NOT NULL,
  day         INTEGER NOT NULL,
  model       ANY,
  input       INTEGER NOT NULL,
  output      INTEGER NOT NULL,
  cache_read  INTEGER NOT NULL,
  cache_write INTEGER NOT NULL,
  reasoning   INTEGER NOT NULL,
  cost        INTEGER NOT NULL,
  counted     INTEGER NOT NULL,
  estimated   INTEGER NOT NULL,
  crc         INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX usage_by_model ON usage (session, day, model);
CREATE INDEX usage_of_model ON usage (model, day, session);

-- Files and large parts, once per tenant by content, and the messages that reference them.
CREATE TABLE blobs (
  n      INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant INTEGER NOT NULL,
  sha256 TEXT    NOT NULL,
  data   BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX blobs_by_content ON blobs (tenant, sha256);
CREATE TABLE blob_uses (
  place INTEGER NOT NULL,
  blob  INTEGER NOT NULL,
  PRIMARY KEY (place, blob)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_uses_by_blob ON blob_uses (blob);

-- Damaged rows and values that salvage could not copy, as they were.
CREATE TABLE quarantine (
  n       INTEGER PRIMARY KEY,
  origin  TEXT NOT NULL,
  reason  TEXT NOT NULL,
  content ANY,
  crc     INTEGER NOT NULL
) STRICT;
