-- The log, version 1. docs/format.md explains every column to people.
--
-- Names given by callers (keys, ids, scopes, titles …) are TEXT, or a BLOB of the same bytes when
-- they hold what SQL text cannot: NUL, or surrogates that are no characters. Bodies are JSON.
-- Times are microseconds since 1970, UTC. Money is counted in units of 10^-12.
--
-- Every value is secured: by its row's crc (the CRC-32 of the JSON array of the columns before it,
-- but for the numbers that the engine assigns), by a hash, or by an index that has it once more.

CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value ANY
) STRICT, WITHOUT ROWID;
CREATE INDEX meta_by_value ON meta (value);

-- 'fence' is rewritten after a failed commit: what the failed one left behind is overwritten.
INSERT INTO meta VALUES ('fence', 0), ('created_at', CAST(unixepoch('subsec') * 1000000 AS INTEGER));

CREATE TABLE tenants (
  n    INTEGER PRIMARY KEY,
  name ANY NOT NULL UNIQUE
) STRICT;
INSERT INTO tenants VALUES (1, 'default');

-- Who a session is. Changes rarely. Of one that was purged while a fork still needs some of its
-- messages, id, parent, relation and times stay; it has no head, and goes with the last fork.
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

-- Where a session stands. One row is rewritten by each append, so it is kept apart and small.
-- activity is higher than that of every session written to before: lists need no clock.
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

-- A branch starts behind message fork_seq, which lies on its parent (another session's, for a
-- fork). asked_seq is where it was to start; they differ when that was inside a tool exchange.
-- token is the mark of the write that made it, so that a retry makes it once. The active branch of
-- a session is the one with the highest number; its last seq is in heads.
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
-- Summaries are few, and windows look for the newest one.
CREATE INDEX messages_summaries ON messages (place)
  WHERE CAST(substr(body, 1, 17) AS TEXT) = '{"role":"summary"';

-- number is the fence: a write of a turn is refused unless heads.open_turn is its number.
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

-- Input that waits for the next turn.
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

-- Files and large parts, once per tenant by content, and which messages need them.
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

-- What salvage found and could not make sense of, as it was.
CREATE TABLE quarantine (
  n       INTEGER PRIMARY KEY,
  origin  TEXT NOT NULL,
  reason  TEXT NOT NULL,
  content ANY,
  crc     INTEGER NOT NULL
) STRICT;
