-- The pairs of the metadata of sessions, each by its mark: a hash of its name and value. They are
-- derived from `sessions`; the program that runs this migration fills the table.
CREATE TABLE metadata_marks (
  tenant  uuid   NOT NULL,
  session bigint NOT NULL,
  mark    uuid   NOT NULL,
  PRIMARY KEY (tenant, session, mark)
);
CREATE INDEX metadata_by_mark ON metadata_marks (tenant, mark, session);

-- Statistics of made-up rows, as in the first migration.
ALTER TABLE metadata_marks ALTER tenant SET (n_distinct = 1), ALTER tenant SET STATISTICS 1;
INSERT INTO metadata_marks SELECT md5('')::uuid, n, md5('m' || n)::uuid FROM generate_series(1, 100) n;
ANALYZE metadata_marks;
SAVEPOINT made_up;
TRUNCATE metadata_marks;
RELEASE made_up;

-- The first bytes of a key: an index entry has less room than a key may need, and behind a policy only
-- a plain column can be looked up. Without the policy, the rows of all tenants are updated.
ALTER TABLE sessions ADD COLUMN key_start bytea;
ALTER TABLE sessions NO FORCE ROW LEVEL SECURITY;
UPDATE sessions SET key_start = substr(key, 1, 256) WHERE key IS NOT NULL;
ALTER TABLE sessions FORCE ROW LEVEL SECURITY;
CREATE INDEX sessions_by_key_start ON sessions (tenant, key_start) WHERE key_start IS NOT NULL;

-- A message is found by its id alone, whatever session it is in; a long id is hashed.
CREATE INDEX messages_by_own_id ON messages (tenant, id) WHERE octet_length(id) <= 1000;
CREATE INDEX messages_by_long_id ON messages USING hash (id) WHERE octet_length(id) > 1000;

ALTER TABLE metadata_marks ENABLE ROW LEVEL SECURITY;
ALTER TABLE metadata_marks FORCE ROW LEVEL SECURITY;
CREATE POLICY one_tenant ON metadata_marks USING (tenant = current_setting('holdfast.tenant')::uuid);
