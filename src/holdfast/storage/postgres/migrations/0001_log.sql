-- The log, version 1. docs/postgresql.md explains it to administrators.
--
-- Names given by callers (keys, ids, scopes, titles …) and bodies are bytes, because the server's text
-- type holds neither NUL nor lone surrogates. Names may be longer than an index entry, so each one that
-- is looked up has a mark in a column of its own: the first 16 bytes of its SHA-256, as a uuid.
-- Times are microseconds since 1970, UTC. Money is counted in units of 10^-12.
--
-- A tenant is the mark of its name. Every primary key begins with the tenant, followed by the session
-- where there is one, so that tables may be partitioned by these two. Every table but meta shows only
-- rows of the tenant that the transaction has set, even to the owner of the table.

CREATE TABLE meta (
  name  text PRIMARY KEY,
  value bigint NOT NULL
);

INSERT INTO meta VALUES ('created_at', (extract(epoch FROM now()) * 1000000)::bigint);

-- Session numbers; a number that was rolled back is never used again.
CREATE SEQUENCE session_numbers AS bigint MAXVALUE 549755813887;

-- erasures: how many transactions of a tenant have erased messages.
CREATE TABLE tenants (
  tenant   uuid   PRIMARY KEY,
  name     bytea  NOT NULL,
  erasures bigint NOT NULL DEFAULT 0
);

-- A session's identity, which changes rarely. Of a session that was purged while a fork still needs
-- some of its messages, a stub with id, parent, relation and times remains; it has no head, and is
-- deleted with the last fork. loose is the title folded for comparison, plain means it is all ASCII.
CREATE TABLE sessions (
  tenant      uuid    NOT NULL,
  n           bigint  NOT NULL,
  id          bytea   NOT NULL,
  key         bytea,
  scope       bytea,
  agent       bytea,
  title       bytea,
  title_by    text,
  model       bytea,
  cwd         bytea,
  created_at  bigint  NOT NULL,
  pinned      boolean NOT NULL,
  archived    boolean NOT NULL,
  trashed_at  bigint,
  goal        bytea,
  metadata    bytea   NOT NULL,
  parent      bytea,
  relation    text,
  purged_at   bigint,
  key_mark    uuid,
  scope_mark  uuid,
  agent_mark  uuid,
  cwd_mark    uuid,
  title_mark  uuid,
  loose       bytea,
  loose_mark  uuid,
  plain       boolean NOT NULL,
  PRIMARY KEY (tenant, n)
);
CREATE UNIQUE INDEX sessions_by_id ON sessions (tenant, id);
CREATE UNIQUE INDEX sessions_by_key ON sessions (tenant, key_mark)
  WHERE key_mark IS NOT NULL AND trashed_at IS NULL;
CREATE INDEX sessions_by_title ON sessions (tenant, title_mark) WHERE title_mark IS NOT NULL;
CREATE INDEX sessions_by_loose ON sessions (tenant, loose_mark) WHERE loose_mark IS NOT NULL;
CREATE INDEX sessions_by_scope ON sessions (tenant, scope_mark) WHERE scope_mark IS NOT NULL;
CREATE INDEX sessions_by_agent ON sessions (tenant, agent_mark) WHERE agent_mark IS NOT NULL;
CREATE INDEX sessions_by_cwd ON sessions (tenant, cwd_mark) WHERE cwd_mark IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (tenant, parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_pinned ON sessions (tenant, n) WHERE pinned;
CREATE INDEX sessions_archived ON sessions (tenant, n) WHERE archived;
CREATE INDEX sessions_trashed ON sessions (tenant, key_mark) WHERE trashed_at IS NOT NULL;

-- A session's head: the row that every write to a session locks, reads and replaces.
-- whose repeats the tenant, for the index of lists: a planner with few statistics could use an index
-- that begins with the tenant instead of the primary key, to find one head among all.
-- branch is the number of the branch within the session. activity is higher than that of every
-- session written before, so lists need no clock.
CREATE TABLE heads (
  tenant       uuid    NOT NULL,
  session      bigint  NOT NULL,
  whose        uuid    NOT NULL,
  branch       integer NOT NULL,
  seq          bigint  NOT NULL,
  turns        bigint  NOT NULL,
  open_turn    bigint,
  updated_at   bigint  NOT NULL,
  activity     bigint  NOT NULL,
  input        bigint  NOT NULL,
  output       bigint  NOT NULL,
  cache_read   bigint  NOT NULL,
  cache_write  bigint  NOT NULL,
  reasoning    bigint  NOT NULL,
  cost         bigint  NOT NULL,
  preview      bytea,
  preview_rank integer NOT NULL,
  preview_seq  bigint  NOT NULL,
  queued       bigint  NOT NULL,
  PRIMARY KEY (tenant, session)
) WITH (fillfactor = 60);
CREATE UNIQUE INDEX heads_by_activity ON heads (whose, activity);

-- Activity numbers. Each tenant has a sequence of them, created and dropped with its row in tenants:
-- its numbers disclose nothing about the writes of other tenants. Only these functions need rights on
-- it; their search_path is fixed, so that a caller cannot make them use its own objects.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

CREATE FUNCTION keep_numbers() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  mark uuid := CASE TG_OP WHEN 'DELETE' THEN OLD.tenant ELSE NEW.tenant END;
  numbers text := 'activity_' || replace(mark::text, '-', '');
  before text := current_setting('holdfast.tenant', true);
  highest bigint;
BEGIN
  IF TG_OP = 'DELETE' THEN
    EXECUTE format('DROP SEQUENCE IF EXISTS %I', numbers);
    RETURN NULL;
  END IF;
  EXECUTE format('CREATE SEQUENCE IF NOT EXISTS %I AS bigint', numbers);
  -- Restored rows may exist before the sequence does.
  PERFORM set_config('holdfast.tenant', mark::text, true);
  SELECT max(h.activity) FROM heads h WHERE h.tenant = mark AND h.whose = mark INTO highest;
  PERFORM set_config('holdfast.tenant', coalesce(before, ''), true);
  IF highest > coalesce(pg_sequence_last_value(numbers::regclass), 0) THEN
    PERFORM setval(numbers::regclass, highest);
  END IF;
  RETURN NULL;
END $$;
REVOKE EXECUTE ON FUNCTION keep_numbers() FROM PUBLIC;
CREATE TRIGGER keep_numbers AFTER INSERT OR DELETE ON tenants
  FOR EACH ROW EXECUTE FUNCTION keep_numbers();

-- Writers do not wait for each other to get a number, so numbers are not committed in order. A writer
-- first locks the lowest number that it may get (shared: others may get the same one), and holds that
-- lock until it has committed. One lock covers all numbers of a transaction; an exclusive transaction
-- needs none. Followers read only below the lowest locked number, and up to the highest number that
-- was committed when they began. A writer with a number below that one took it earlier, and so held its
-- lock by then: followers miss nothing.
CREATE FUNCTION take_activity(lock integer) RETURNS bigint
  LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  numbers regclass :=
    'activity_' || replace(current_setting('holdfast.tenant')::uuid::text, '-', '');
BEGIN
  IF lock IS NULL OR pg_try_advisory_xact_lock_shared(lock,
      ((coalesce(pg_sequence_last_value(numbers), 0) + 1) & 2147483647)::integer) THEN
    RETURN nextval(numbers);
  END IF;
  RAISE 'somebody else holds a lock of this store: class %', lock;
END $$;

-- An optimistic append knows that the expected head was right once its update returned a number.
-- Without one this raises an error, which rolls back all that was sent behind the update.
CREATE FUNCTION sure(number bigint, session bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF number IS NULL THEN
    RAISE 'session % is not as it was left; it is looked at, and the write begun anew', session
      USING ERRCODE = 'HF001';
  END IF;
  RETURN number;
END $$;

-- A branch starts after message fork_seq, which lies on its parent (another session's, for a fork).
-- asked_seq is where the caller wanted it to start; they differ if that was inside a tool exchange.
-- token identifies the write that made it, so that a retry makes it once. The active branch of a
-- session is the one in its head, which also has its last seq.
CREATE TABLE branches (
  tenant         uuid    NOT NULL,
  session        bigint  NOT NULL,
  number         integer NOT NULL,
  parent_session bigint,
  parent_number  integer,
  fork_seq       bigint  NOT NULL,
  asked_seq      bigint  NOT NULL,
  last_seq       bigint,
  created_at     bigint  NOT NULL,
  reason         text    NOT NULL,
  token          bytea   NOT NULL,
  token_mark     uuid    NOT NULL,
  PRIMARY KEY (tenant, session, number)
);
CREATE INDEX branches_by_parent ON branches (tenant, parent_session, parent_number)
  WHERE parent_session IS NOT NULL;
CREATE INDEX branches_by_token ON branches (tenant, session, token_mark);

-- crc = crc32(body, crc32(id, turn or 0)). A history is one range of this table per branch. id_mark
-- is the mark of id and session together, so that it finds the message of one session only; the marks
-- of a session are adjacent, in order of the time in their ids, if these have one.
CREATE TABLE messages (
  tenant  uuid    NOT NULL,
  session bigint  NOT NULL,
  branch  integer NOT NULL,
  seq     bigint  NOT NULL,
  id      bytea   NOT NULL,
  id_mark uuid    NOT NULL,
  turn    bigint,
  crc     bigint  NOT NULL,
  summary boolean NOT NULL,
  body    bytea   NOT NULL,
  PRIMARY KEY (tenant, session, branch, seq)
);
CREATE INDEX messages_by_id ON messages (tenant, id_mark);
-- Summaries are few, and windows read the newest one.
CREATE INDEX messages_summaries ON messages (tenant, session, branch, seq) WHERE summary;

-- number is the fence: a write of a turn is refused unless heads.open_turn is its number.
CREATE TABLE turns (
  tenant      uuid   NOT NULL,
  session     bigint NOT NULL,
  number      bigint NOT NULL,
  token       bytea  NOT NULL,
  state       text   NOT NULL,
  run_id      bytea,
  run_mark    uuid,
  model       bytea,
  holder      bytea  NOT NULL,
  lease_until bigint NOT NULL,
  first_seq   bigint NOT NULL,
  started_at  bigint NOT NULL,
  ended_at    bigint,
  input       bigint NOT NULL,
  output      bigint NOT NULL,
  cache_read  bigint NOT NULL,
  cache_write bigint NOT NULL,
  reasoning   bigint NOT NULL,
  cost        bigint NOT NULL,
  error       bytea,
  PRIMARY KEY (tenant, session, number)
);
CREATE INDEX turns_by_run ON turns (tenant, run_mark) WHERE run_mark IS NOT NULL;

-- The ledger of tool calls: called, running, done, error, unknown, not_run.
CREATE TABLE tools (
  tenant     uuid   NOT NULL,
  session    bigint NOT NULL,
  turn       bigint NOT NULL,
  call_mark  uuid   NOT NULL,
  call_id    bytea  NOT NULL,
  position   bigint NOT NULL,
  name       bytea,
  outcome    text   NOT NULL,
  started_at bigint,
  ended_at   bigint,
  PRIMARY KEY (tenant, session, turn, call_mark)
);

-- Replies that are still being streamed: record 0 opens the draft, each flush adds a record.
CREATE TABLE drafts (
  tenant  uuid   NOT NULL,
  session bigint NOT NULL,
  turn    bigint NOT NULL,
  number  bigint NOT NULL,
  record  bytea  NOT NULL,
  PRIMARY KEY (tenant, session, turn, number)
);

-- Input that waits for the next turn, and the files it needs.
CREATE TABLE queue (
  tenant     uuid   NOT NULL,
  session    bigint NOT NULL,
  number     bigint NOT NULL,
  id         bytea  NOT NULL,
  created_at bigint NOT NULL,
  body       bytea  NOT NULL,
  PRIMARY KEY (tenant, session, number)
);
CREATE TABLE queue_blobs (
  tenant   uuid    NOT NULL,
  session  bigint  NOT NULL,
  number   bigint  NOT NULL,
  position integer NOT NULL,
  sha256   text    NOT NULL,
  data     bytea   NOT NULL,
  PRIMARY KEY (tenant, session, number, position)
);

-- What one model used in a session on one day. model_mark is zero if there is no model.
CREATE TABLE usage (
  tenant      uuid   NOT NULL,
  session     bigint NOT NULL,
  day         bigint NOT NULL,
  model_mark  uuid   NOT NULL,
  model       bytea,
  input       bigint NOT NULL,
  output      bigint NOT NULL,
  cache_read  bigint NOT NULL,
  cache_write bigint NOT NULL,
  reasoning   bigint NOT NULL,
  cost        bigint NOT NULL,
  counted     bigint NOT NULL,
  estimated   bigint NOT NULL,
  PRIMARY KEY (tenant, session, day, model_mark)
);
CREATE INDEX usage_of_model ON usage (tenant, model_mark, day, session);

-- Files and large parts, stored once per tenant by content, and which messages need them.
CREATE TABLE blobs (
  tenant uuid  NOT NULL,
  sha256 text  NOT NULL,
  data   bytea NOT NULL,
  PRIMARY KEY (tenant, sha256)
);
CREATE TABLE blob_uses (
  tenant  uuid    NOT NULL,
  session bigint  NOT NULL,
  branch  integer NOT NULL,
  seq     bigint  NOT NULL,
  sha256  text    NOT NULL,
  PRIMARY KEY (tenant, session, branch, seq, sha256)
);
CREATE INDEX blob_uses_by_blob ON blob_uses (tenant, sha256);

-- Statements are planned once, for any tenant. Without statistics the planner takes every tenant for a
-- small one, and every index that begins with the tenant for equally good; a connection keeps such a
-- plan while the table grows, until the server analyzes it. So the statistics are fixed to say that all
-- rows belong to one tenant, now and after each ANALYZE: then only an index that finds the rows
-- themselves is chosen, which is right for large tenants and for small ones. The first statistics are
-- taken from made-up rows, which are removed again.
DO $$
DECLARE name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['sessions', 'heads', 'branches', 'messages', 'turns', 'tools', 'drafts',
    'queue', 'queue_blobs', 'usage', 'blobs', 'blob_uses']
  LOOP
    EXECUTE format('ALTER TABLE %I ALTER tenant SET (n_distinct = 1), ALTER tenant SET STATISTICS 1',
      name);
  END LOOP;
END $$;
ALTER TABLE heads ALTER whose SET (n_distinct = 1), ALTER whose SET STATISTICS 1;
INSERT INTO sessions SELECT md5('')::uuid, n, n::text::bytea, '', '', '', '', NULL, '', '', n, n = 1,
  n = 1, CASE n WHEN 1 THEN n END, NULL, '', CASE n % 2 WHEN 1 THEN (n + 1)::text::bytea END, NULL, NULL,
  md5('k' || n)::uuid, md5('s' || n)::uuid, md5('a' || n)::uuid, md5('c' || n)::uuid,
  md5('t' || n)::uuid, '', md5('l' || n)::uuid, true FROM generate_series(1, 100) n;
INSERT INTO heads SELECT s.tenant, s.n, s.tenant, 1, 1, 1, NULL, s.n, s.n, 0, 0, 0, 0, 0, 0, NULL, 0,
  0, 0 FROM sessions s;
INSERT INTO branches SELECT s.tenant, s.n, b, CASE b WHEN 2 THEN s.n END, CASE b WHEN 2 THEN 1 END, 0,
  0, NULL, s.n, '', s.id, md5(s.n || '.' || b)::uuid FROM sessions s CROSS JOIN generate_series(1, 2) b;
INSERT INTO messages SELECT s.tenant, s.n, 1, q, s.id, md5(s.n || '.' || q)::uuid, q, 0, false, ''
FROM sessions s CROSS JOIN generate_series(1, 10) q;
INSERT INTO turns SELECT s.tenant, s.n, t, s.id, '', s.id, md5(s.n || '.' || t)::uuid, '', '', 0, t, 0, 0,
  0, 0, 0, 0, 0, 0, NULL FROM sessions s CROSS JOIN generate_series(1, 5) t;
INSERT INTO usage SELECT s.tenant, s.n, s.n, md5('')::uuid, '', 0, 0, 0, 0, 0, 0, 0, 0 FROM sessions s;
INSERT INTO blobs SELECT s.tenant, md5(s.id), '' FROM sessions s;
INSERT INTO blob_uses SELECT s.tenant, s.n, 1, 1, md5(s.id) FROM sessions s;
ANALYZE sessions, heads, branches, messages, turns, usage, blobs, blob_uses;
-- Within a savepoint, or the statistics would record the tables as nearly empty.
SAVEPOINT made_up;
TRUNCATE sessions, heads, branches, messages, turns, usage, blobs, blob_uses;
RELEASE made_up;

-- Without a tenant no row is visible: an unset setting is an error, and an empty one is not a uuid.
DO $$
DECLARE name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['tenants', 'sessions', 'heads', 'branches', 'messages', 'turns',
    'tools', 'drafts', 'queue', 'queue_blobs', 'usage', 'blobs', 'blob_uses']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
    EXECUTE format('CREATE POLICY one_tenant ON %I '
      'USING (tenant = current_setting(''holdfast.tenant'')::uuid)', name);
  END LOOP;
END $$;
