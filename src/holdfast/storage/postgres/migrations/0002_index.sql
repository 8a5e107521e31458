-- The search index, version 1 of its tables. It is derived from the log and may be lost: if it is
-- damaged, its rows are deleted and built again. Writes to the log do not touch it.

-- The state of a tenant's index: no row, no index. stamp is the format of its rows, activity the number
-- up to which the log is indexed, anchor the last indexed message, newest the highest n, documents the
-- number of messages, text the approximate size of their text.
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

-- An indexed message: n is higher than that of every message indexed before, mark a hash of its id,
-- length is -1 if the message must not be found. said has the words of its text and, after a line break,
-- the parts of compound names, each word between spaces of its own; thought has the words of its
-- thinking; hash covers both.
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
  hash     bigint   NOT NULL,
  PRIMARY KEY (tenant, n)
);
CREATE UNIQUE INDEX indexed_by_place ON indexed_rows (tenant, branch, seq);

-- The words of a message, each prefixed by a code of its tenant, so that the words of one tenant do not
-- slow down the searches of another, and of the block that its n is in, so that the newest messages are
-- found without reading the others. A tsvector holds less than a megabyte: a message that may have more
-- gets the code alone, which every search includes. The vector is stored only in the index and is
-- expensive to compute: the COST keeps the planner from computing it for each row (a function in plain
-- SQL would be inlined, and count as free).
CREATE FUNCTION lexemes(tenant uuid, n bigint, said text, thought text) RETURNS tsvector
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 10000 AS $$
DECLARE
  code text := left(tenant::text, 5) || to_hex(n >> 14) || '.';
BEGIN
  IF octet_length(said) + octet_length(thought) > 600000 THEN
    RETURN array_to_tsvector(ARRAY[code]);
  ELSIF said = '' AND thought = '' THEN
    RETURN '';
  END IF;
  -- Without the line break there are two spaces between any two words.
  RETURN array_to_tsvector(string_to_array(
    code || replace(btrim(replace(said || thought, E'\n', '')), '  ', ' ' || code), ' '));
END
$$;
CREATE INDEX indexed_by_lexeme ON indexed_rows USING gin (lexemes(tenant, n, said, thought))
  WITH (fastupdate = on, gin_pending_list_limit = 1024);

-- The planner uses no index for @@ behind a policy, because @@ is not leakproof. So the policy of this
-- table is not forced on its owner, and all access goes through a view of the owner's, which has the
-- same condition. For the same reason the view cannot be a security barrier. The subquery reads the
-- tenant once, and not for each row.
ALTER TABLE indexed_rows ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_tenant ON indexed_rows USING (tenant = current_setting('holdfast.tenant')::uuid);
CREATE VIEW indexed AS SELECT * FROM indexed_rows
  WHERE tenant = (SELECT current_setting('holdfast.tenant')::uuid)
  WITH CASCADED CHECK OPTION;
