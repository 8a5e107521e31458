-- The search index, version 1 of its tables. It is derived from the log and may be lost: whatever is
-- wrong with it, its rows are deleted and made anew. Writes to the log know nothing of it.

-- How far the index of a tenant is: no row, no index. stamp is the form of what it holds, activity
-- up to where it has everything, anchor the message it had last, newest the highest number it gave,
-- text about how much is said in its messages.
CREATE TABLE indexes (
  tenant        uuid   PRIMARY KEY,
  stamp         text   NOT NULL,
  activity      bigint NOT NULL DEFAULT 0,
  erasures      bigint,
  anchor_branch bigint,
  anchor_seq    bigint,
  anchor_crc    bigint,
  newest        bigint NOT NULL DEFAULT 0,
  documents     bigint NOT NULL DEFAULT 0,
  text          bigint NOT NULL DEFAULT 0
);
ALTER TABLE indexes ENABLE ROW LEVEL SECURITY;
ALTER TABLE indexes FORCE ROW LEVEL SECURITY;
CREATE POLICY one_tenant ON indexes USING (tenant = current_setting('holdfast.tenant')::uuid);

-- A message in an index: n is higher than that of every message that was added before, mark a hash
-- of its id, length -1 if it is not to be found. said has the words of its text and, behind a line
-- break, the parts of their names, each word between spaces of its own; thought those of its
-- thinking. lexemes are all of them, each behind the code of its tenant, so that nobody's words make
-- another's search longer.
CREATE TABLE indexed_rows (
  tenant   uuid     NOT NULL,
  n        bigint   NOT NULL,
  branch   bigint   NOT NULL,
  seq      bigint   NOT NULL,
  role     smallint NOT NULL,
  at       bigint   NOT NULL,
  length   integer  NOT NULL,
  thoughts integer  NOT NULL,
  mark     bigint   NOT NULL,
  weight   integer  NOT NULL,
  said     text     NOT NULL COLLATE "C",
  thought  text     NOT NULL COLLATE "C",
  lexemes  tsvector NOT NULL,
  PRIMARY KEY (tenant, n)
) WITH (toast_tuple_target = 256);
CREATE UNIQUE INDEX indexed_by_place ON indexed_rows (tenant, branch, seq);
CREATE INDEX indexed_by_lexeme ON indexed_rows USING gin (lexemes)
  WITH (fastupdate = on, gin_pending_list_limit = 1024);

-- The planner uses no index for @@ where a policy has to be asked first: @@ is not leakproof. So the
-- policy of this table is not forced on its owner, and everybody goes through a view of the owner's,
-- which asks for the same.
ALTER TABLE indexed_rows ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_tenant ON indexed_rows USING (tenant = current_setting('holdfast.tenant')::uuid);
CREATE VIEW indexed AS SELECT * FROM indexed_rows
  WHERE tenant = current_setting('holdfast.tenant')::uuid
  WITH CASCADED CHECK OPTION;
