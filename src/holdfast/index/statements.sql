-- Every statement of an index that is kept in tables, by name. Whose rows they see was said when the
-- transaction began: `indexes` and `indexed` show no others.

-- ------------------------------------------------------------------------------- its life

-- name: state
SELECT stamp, activity, erasures, anchor_branch, anchor_seq, anchor_crc, newest, documents, text
FROM indexes

-- Rows without a state are what is left of an index that somebody began to remove.
-- name: left
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

-- --------------------------------------------------------------------------- what it holds

-- name: newest
SELECT branch, seq FROM indexed ORDER BY n DESC LIMIT 1

-- name: last
SELECT max(seq) FROM indexed WHERE branch = $1

-- name: counts
SELECT branch, count(*) FROM indexed GROUP BY branch

-- What all tenants have, by this one's share.
-- name: size
SELECT (pg_total_relation_size('indexed_rows') * least(1, (SELECT documents FROM indexes)
  / greatest(1, (SELECT reltuples FROM pg_class WHERE oid = 'indexed_rows'::regclass))))::bigint

-- name: misfits
SELECT branch, seq FROM indexed
WHERE hash <> hashtextextended(said || thought, 0) ORDER BY n LIMIT 5

-- ----------------------------------------------------------------------- adding, dropping

-- name: add
INSERT INTO indexed (tenant, n, branch, seq, role, at, length, thoughts, mark, weight, said, thought,
  hash)
VALUES (current_setting('holdfast.tenant')::uuid, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11,
  hashtextextended($10::text || $11::text, 0))

-- name: weight
SELECT coalesce(sum(weight), 0)::bigint FROM indexed WHERE branch = $1 AND seq BETWEEN $2 AND $3

-- name: forget
UPDATE indexed SET length = -1, thoughts = 0, weight = 0, said = '', thought = '',
  hash = hashtextextended('', 0)
WHERE branch = $1 AND seq BETWEEN $2 AND $3

-- name: cut
WITH gone AS (DELETE FROM indexed WHERE branch = $1 AND seq > $2 RETURNING 1)
SELECT count(*) FROM gone

-- --------------------------------------------------------------------------------- asking

-- name: highest
SELECT coalesce(max(n), 0) FROM indexed

-- Messages in which the words may be that are wanted, before number $1, up to $2 of them. Of each it
-- is told how often every term is there, as `core.search.matching` counts: terms are needles in what
-- is said ($3) and, where they are names, in the parts of names ($4); $5 and $6 are those that must
-- not be there. $7: thinking counts, too. $8: what is said is needed to count.
-- name: matching
SELECT d.branch, d.seq, d.at, d.mark, d.length + CASE WHEN $7 THEN d.thoughts ELSE 0 END,
  found.often, d.n, coalesce(found.least > 0, true) AND NOT EXISTS (
    SELECT FROM unnest($5::text[], $6::text[]) AS term (needle, parts)
    WHERE strpos(d.said, term.needle) > 0 OR $7 AND strpos(d.thought, term.needle) > 0
      OR term.parts <> '' AND strpos(split_part(d.said, E'\n', 2), term.parts) > 0),
  CASE WHEN $8 THEN d.said END, CASE WHEN $8 AND $7 THEN d.thought END
FROM (
  SELECT n, branch, seq, at, length, thoughts, mark, said, thought FROM indexed
  WHERE n < $1 AND length >= 0

-- name: matching_end
  ORDER BY n DESC LIMIT $2
) AS d CROSS JOIN LATERAL (
  SELECT string_agg(term.often::text, ',' ORDER BY term.place) AS often, min(term.often) AS least
  FROM (
    SELECT wanted.place, greatest(
      (octet_length(d.said) - octet_length(replace(d.said, wanted.needle, '')))
        / octet_length(wanted.needle)
      + CASE WHEN $7 THEN (octet_length(d.thought) - octet_length(
          replace(d.thought, wanted.needle, ''))) / octet_length(wanted.needle) ELSE 0 END,
      CASE WHEN wanted.parts <> '' THEN (octet_length(split_part(d.said, E'\n', 2)) - octet_length(
          replace(split_part(d.said, E'\n', 2), wanted.parts, '')))
        / octet_length(wanted.parts) ELSE 0 END) AS often
    FROM unnest($3::text[], $4::text[]) WITH ORDINALITY AS wanted (needle, parts, place)
  ) AS term
) AS found ORDER BY d.n DESC
