-- The statements of an index in tables, by name. The views `indexes` and `indexed` show only the rows
-- of the tenant that was set when the transaction began.

-- ------------------------------------------------------------------------------- lifecycle

-- The state of the index, and the highest number in it.
-- name: state
SELECT stamp, activity, erasures, anchor_branch, anchor_seq, anchor_crc, newest, documents, text,
  (SELECT coalesce(max(n), 0) FROM indexed)
FROM indexes

-- True if there are rows; without a state they belong to an index that was not removed completely.
-- name: has_rows
SELECT EXISTS (SELECT FROM indexed)

-- name: create
INSERT INTO indexes (tenant, stamp) VALUES (current_setting('holdfast.tenant')::uuid, $1)

-- name: put_state
UPDATE indexes SET stamp = $1, activity = $2, erasures = $3, anchor_branch = $4, anchor_seq = $5,
  anchor_crc = $6, newest = $7, documents = $8, text = $9

-- name: remove
DELETE FROM indexes

-- name: remove_rows
WITH gone AS (
  DELETE FROM indexed WHERE n IN (SELECT n FROM indexed ORDER BY n LIMIT $1) RETURNING 1
)
SELECT count(*) FROM gone

-- -------------------------------------------------------------------------------- contents

-- name: newest
SELECT branch, seq FROM indexed ORDER BY n DESC LIMIT 1

-- name: last
SELECT max(seq) FROM indexed WHERE branch = $1

-- name: counts
SELECT branch, count(*) FROM indexed GROUP BY branch

-- The size of this tenant's rows; that of the table would show how much others have.
-- name: size
SELECT coalesce(sum(pg_column_size(said) + pg_column_size(thought)), 0)::bigint FROM indexed

-- name: corrupt_rows
SELECT branch, seq FROM indexed
WHERE hash <> hashtextextended(said || thought, 0) ORDER BY n LIMIT 5

-- ----------------------------------------------------------------------- adding, removing

-- Messages with the numbers from $1 on.
-- name: add
INSERT INTO indexed (tenant, n, branch, seq, role, at, length, thoughts, mark, weight, said, thought,
  hash)
SELECT current_setting('holdfast.tenant')::uuid, $1::bigint + place - 1, branch, seq, role, at, length,
  thoughts, mark, weight, said, thought, hashtextextended(said || thought, 0)
FROM unnest($2::bigint[], $3::bigint[], $4::smallint[], $5::bigint[], $6::integer[], $7::integer[],
  $8::bigint[], $9::integer[], $10::text[], $11::text[]) WITH ORDINALITY
  AS doc (branch, seq, role, at, length, thoughts, mark, weight, said, thought, place)

-- name: weight
SELECT coalesce(sum(weight), 0)::bigint FROM indexed WHERE branch = $1 AND seq BETWEEN $2 AND $3

-- name: forget
UPDATE indexed SET length = -1, thoughts = 0, weight = 0, said = '', thought = '',
  hash = hashtextextended('', 0)
WHERE branch = $1 AND seq BETWEEN $2 AND $3

-- name: cut
WITH gone AS (DELETE FROM indexed WHERE branch = $1 AND seq > $2 RETURNING 1)
SELECT count(*) FROM gone

-- -------------------------------------------------------------------------------- querying

-- How many of the newest $1 messages meet the conditions `{has}`.
-- name: probe
SELECT count(*) FROM (
  SELECT branch, role, at, said, thought FROM indexed WHERE length >= 0 ORDER BY n DESC LIMIT $1
) AS newest WHERE {has}

-- How many messages these branches have, at most $2.
-- name: count_on
SELECT count(*) FROM (
  SELECT FROM indexed WHERE branch = ANY ($1::bigint[]) LIMIT $2
) AS on_branches

-- Up to $2 messages before number $1 that may have the wanted words. Of each it returns the frequency
-- of every term, counted as `match` does, and whether it matches. Only `{conditions}` may determine
-- how the rows are found; hence `n + 0` and OFFSET 0: given numbers, order or limit, the server would
-- guess how soon it has enough rows. `{counts}` are the terms' frequencies as columns,
-- `{frequencies}` all of them as one value.
-- name: matching
SELECT d.branch, d.seq, d.at, d.mark, {length}, {frequencies}, d.n, {matches}, {texts}
FROM (
  SELECT chosen.*, {counts} FROM (
    SELECT * FROM (
      SELECT n, branch, seq, at, length, thoughts, mark, said, thought FROM indexed
      WHERE n + 0 < $1 AND length >= 0 {conditions} OFFSET 0
    ) AS candidates ORDER BY n DESC LIMIT $2
  ) AS chosen OFFSET 0
) AS d ORDER BY d.n DESC

-- The same, scanned in the order of their numbers until there are enough.
-- name: newest_matching
SELECT d.branch, d.seq, d.at, d.mark, {length}, {frequencies}, d.n, {matches}, {texts}
FROM (
  SELECT chosen.*, {counts} FROM (
    SELECT n, branch, seq, at, length, thoughts, mark, said, thought FROM indexed
    WHERE n < $1 AND length >= 0 {conditions} ORDER BY n DESC LIMIT $2
  ) AS chosen OFFSET 0
) AS d ORDER BY d.n DESC

-- Conditions; {0} is the value to compare with.
-- name: from_number
n >= {0}

-- name: by_lexemes
lexemes(tenant, n, said, thought) @@ {0}

-- name: in_text
strpos(said, {0}) > 0

-- name: in_thinking
strpos(thought, {0}) > 0

-- name: of_role
role = {0}

-- name: since
at >= {0}

-- name: until
at < {0}

-- name: on_branches
branch = ANY ({0})

-- The same, but not usable as an index condition.
-- name: if_on_branches
branch + 0 = ANY ({0})

-- How often needle {0} occurs in text {1}.
-- name: count_in
(octet_length({1}) - octet_length(replace({1}, {0}, ''))) / octet_length({0})

-- The counts of many terms; {said} and {named} are their needles in the text and in the parts of
-- names.
-- name: counts_of_many
(SELECT string_agg(term.often::text, ',' ORDER BY term.place) FROM (
  SELECT wanted.place, greatest(
    (octet_length(chosen.said) - octet_length(replace(chosen.said, wanted.needle, '')))
      / octet_length(wanted.needle)
    + CASE WHEN {thinking} THEN (octet_length(chosen.thought) - octet_length(
        replace(chosen.thought, wanted.needle, ''))) / octet_length(wanted.needle) ELSE 0 END,
    CASE WHEN wanted.parts <> '' THEN (octet_length(split_part(chosen.said, E'\n', 2)) - octet_length(
        replace(split_part(chosen.said, E'\n', 2), wanted.parts, '')))
      / octet_length(wanted.parts) ELSE 0 END) AS often
  FROM unnest({said}::text[], {named}::text[]) WITH ORDINALITY AS wanted (needle, parts, place)
) AS term)

-- name: has_none_of
NOT EXISTS (
  SELECT FROM unnest({said}::text[], {named}::text[]) AS term (needle, parts)
  WHERE strpos(d.said, term.needle) > 0 OR {thinking} AND strpos(d.thought, term.needle) > 0
    OR term.parts <> '' AND strpos(split_part(d.said, E'\n', 2), term.parts) > 0)
