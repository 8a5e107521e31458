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
-- thinking; hash is of both.
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

-- The words of a message, each behind a code of its tenant, so that nobody's words make another's
-- search longer, and of the block its number is in, so that the newest are found without the others.
-- A vector holds less than a megabyte: a message that may have more has the code alone, which every
-- search asks for. It is kept in the index alone, and takes long to make: so it costs what keeps the
-- planner from making it for each row (a function that is only SQL would be taken apart, and cost
-- nothing).
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
  -- Two spaces are between any two words once the line break is gone.
  RETURN array_to_tsvector(string_to_array(
    code || replace(btrim(replace(said || thought, E'\n', '')), '  ', ' ' || code), ' '));
END
$$;
CREATE INDEX indexed_by_lexeme ON indexed_rows USING gin (lexemes(tenant, n, said, thought))
  WITH (fastupdate = on, gin_pending_list_limit = 1024);

-- The planner uses no index for @@ where a policy has to be asked first: @@ is not leakproof. So the
-- policy of this table is not forced on its owner, and everybody goes through a view of the owner's,
-- which asks for the same. Nor can the view be a security barrier, for the same reason. Whose rows
-- are seen is found out once, by a subquery, and not for each row.
ALTER TABLE indexed_rows ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_tenant ON indexed_rows USING (tenant = current_setting('holdfast.tenant')::uuid);
CREATE VIEW indexed AS SELECT * FROM indexed_rows
  WHERE tenant = (SELECT current_setting('holdfast.tenant')::uuid)
  WITH CASCADED CHECK OPTION;
