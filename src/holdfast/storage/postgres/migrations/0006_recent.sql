-- Activity without a sequence per tenant, and heads that are updated in place.
--
-- A session's recency is the activity number with which it became the newest one of its tenant. While it
-- stays the newest, its activity grows and its recency does not: between the two no other session was
-- written to, so they give the same order. heads has no index on a column that changes, so its rows are
-- updated in place (HOT), and an append to the newest session changes no index but those of messages.

-- The sessions of lists, by recency. The key contains it so that a row is found by one entry, however
-- many older versions of it an old snapshot still needs. All of this is derived from sessions and heads.
CREATE TABLE recent (
  tenant     uuid    NOT NULL,
  session    bigint  NOT NULL,
  recency    bigint  NOT NULL,
  trashed    boolean NOT NULL,
  scope_mark uuid,
  agent_mark uuid,
  cwd_mark   uuid,
  PRIMARY KEY (tenant, session, recency)
);
CREATE INDEX recent_by_recency ON recent (tenant, trashed, recency);
CREATE INDEX recent_by_scope ON recent (tenant, scope_mark, recency)
  WHERE scope_mark IS NOT NULL AND NOT trashed;
CREATE INDEX recent_by_agent ON recent (tenant, agent_mark, recency)
  WHERE agent_mark IS NOT NULL AND NOT trashed;
CREATE INDEX recent_by_cwd ON recent (tenant, cwd_mark, recency)
  WHERE cwd_mark IS NOT NULL AND NOT trashed;

-- Statistics of made-up rows, as in the first migration.
ALTER TABLE recent ALTER tenant SET (n_distinct = 1), ALTER tenant SET STATISTICS 1;
INSERT INTO recent SELECT md5('')::uuid, n, n, false, md5('s' || n)::uuid, md5('a' || n)::uuid,
  md5('c' || n)::uuid FROM generate_series(1, 100) n;
ANALYZE recent;
SAVEPOINT made_up;
TRUNCATE recent;
RELEASE made_up;

-- Without the policies the rows of all tenants are changed.
ALTER TABLE tenants NO FORCE ROW LEVEL SECURITY;
ALTER TABLE sessions NO FORCE ROW LEVEL SECURITY;
ALTER TABLE heads NO FORCE ROW LEVEL SECURITY;
ALTER TABLE heads DROP COLUMN whose;
ALTER TABLE heads ADD COLUMN recency bigint;
UPDATE heads SET recency = activity;
ALTER TABLE heads ALTER recency SET NOT NULL;
INSERT INTO recent
SELECT h.tenant, h.session, h.recency, s.trashed_at IS NOT NULL, s.scope_mark, s.agent_mark, s.cwd_mark
FROM heads h JOIN sessions s ON s.tenant = h.tenant AND s.n = h.session;

-- tenants.activity is the highest activity number of a session that was purged; here: of any.
DROP TRIGGER keep_numbers ON tenants;
DROP FUNCTION keep_numbers();
DROP FUNCTION take_activity(integer);
ALTER TABLE tenants ADD COLUMN activity bigint NOT NULL DEFAULT 0;
DO $$
DECLARE
  mark uuid;
  numbers text;
BEGIN
  FOR mark IN SELECT t.tenant FROM tenants t LOOP
    numbers := 'activity_' || replace(mark::text, '-', '');
    UPDATE tenants t SET activity = coalesce(pg_sequence_last_value(numbers::regclass), 0)
    WHERE t.tenant = mark;
    EXECUTE format('DROP SEQUENCE %I', numbers);
  END LOOP;
END $$;
ALTER TABLE heads FORCE ROW LEVEL SECURITY;
ALTER TABLE sessions FORCE ROW LEVEL SECURITY;
ALTER TABLE tenants FORCE ROW LEVEL SECURITY;
ALTER TABLE recent ENABLE ROW LEVEL SECURITY;
ALTER TABLE recent FORCE ROW LEVEL SECURITY;
CREATE POLICY one_tenant ON recent USING (tenant = current_setting('holdfast.tenant')::uuid);

-- Writers do not wait for each other to get a number, so numbers are not committed in order. A writer
-- locks a block of 64 numbers above the highest that it can see, and holds the lock until it has
-- committed. If a higher number was committed before it had the lock, it locks another block; so nobody
-- takes a number twice, and one that was rolled back is taken again only if nothing higher is committed.
-- Followers read only below the lowest locked block, and up to the highest number that was committed
-- when they began. A writer with a number below that one had its lock by then: followers miss nothing.
-- The number of a session never falls: if it has a higher one than the block, that is left for another.
--
-- Returns the next number for a session with these, and its recency. known is the highest number that the
-- caller can see. An exclusive transaction takes no lock, and needs to look no further. The query here
-- sees what was committed before it, as this function is volatile. Its tables have their schema: a
-- function that sets a search_path would take twice as long.
DO $$
BEGIN
  EXECUTE format($create$
CREATE FUNCTION take_activity(
  lock integer, known bigint, before bigint, recency_before bigint,
  OUT activity bigint, OUT recency bigint
) LANGUAGE plpgsql AS $body$
DECLARE
  mark uuid := current_setting('holdfast.tenant')::uuid;
  highest bigint := nullif(current_setting('holdfast.activity', true), '')::bigint;
BEGIN
  IF highest & 63 < 63 AND (before < highest) IS NOT FALSE THEN
    activity := highest + 1; -- this transaction's block has more
  ELSE
    highest := known;
    LOOP
      activity := (highest | 63) + 1;
      EXIT WHEN lock IS NULL;
      WHILE NOT pg_try_advisory_xact_lock(lock, ((activity >> 6) & 2147483647)::integer) LOOP
        activity := activity + 64;
      END LOOP;
      SELECT greatest(0,
        (SELECT t.activity FROM %1$I.tenants t WHERE t.tenant = mark),
        (SELECT h.activity FROM %1$I.recent r
            JOIN %1$I.heads h ON h.tenant = mark AND h.session = r.session
          WHERE r.tenant = mark AND NOT r.trashed ORDER BY r.recency DESC LIMIT 1),
        (SELECT h.activity FROM %1$I.recent r
            JOIN %1$I.heads h ON h.tenant = mark AND h.session = r.session
          WHERE r.tenant = mark AND r.trashed ORDER BY r.recency DESC LIMIT 1)) INTO highest;
      EXIT WHEN activity > highest;
    END LOOP;
  END IF;
  PERFORM set_config('holdfast.activity', activity::text, true);
  -- Nobody else has a number between the two if the block is the next one, or is this transaction's.
  recency := CASE WHEN highest = before AND activity <= (before | 63) + 1
    THEN recency_before ELSE activity END;
END $body$
$create$, current_schema());
END $$;

-- Messages and records are looked up by id within their session, so that a partition is asked only for
-- its own.
DROP INDEX messages_by_id;
CREATE INDEX messages_by_id ON messages (tenant, session, id_mark);
DROP INDEX records_by_id;
CREATE INDEX records_by_id ON records (tenant, session, id_mark);
