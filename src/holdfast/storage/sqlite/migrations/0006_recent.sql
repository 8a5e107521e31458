-- The sessions of lists, by recency: the activity number with which a session became the newest of its
-- tenant. It stays as it is while that session is written to again and again, so most appends do not
-- touch this table. recency and activity give the same order: between the two numbers of a session no
-- other session was written to. Everything here is derived from `sessions` and `heads`.
CREATE TABLE recent (
  session INTEGER PRIMARY KEY,
  tenant  INTEGER NOT NULL,
  recency INTEGER NOT NULL,
  trashed INTEGER NOT NULL,
  scope   ANY,
  agent   ANY,
  cwd     ANY
) STRICT;
INSERT INTO recent
SELECT h.session, h.tenant, h.activity, s.trashed_at IS NOT NULL, s.scope, s.agent, s.cwd
FROM heads h CROSS JOIN sessions s ON s.n = h.session;
CREATE UNIQUE INDEX recent_by_recency ON recent (tenant, trashed, recency);
CREATE INDEX recent_by_scope ON recent (tenant, scope, recency) WHERE scope IS NOT NULL AND trashed = 0;
CREATE INDEX recent_by_agent ON recent (tenant, agent, recency) WHERE agent IS NOT NULL AND trashed = 0;
CREATE INDEX recent_by_cwd ON recent (tenant, cwd, recency) WHERE cwd IS NOT NULL AND trashed = 0;

-- From now on a head's checksum covers its activity, which no index holds a second time.
DROP INDEX heads_by_activity;
DROP INDEX sessions_by_scope;
DROP INDEX sessions_by_agent;
DROP INDEX sessions_by_cwd;
