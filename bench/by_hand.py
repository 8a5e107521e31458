"""The same work on PostgreSQL in hand-written SQL: what a careful programmer writes with psycopg.

It returns what Holdfast returns, in the fewest round trips possible, which is one for each of its
functions: statements are prepared and sent in one pipeline, names and bodies as they are.

What it does, as Holdfast does:

- Tenants: every table has a forced policy, and every transaction sets its tenant. Its role owns the
  tables and is no superuser. (The searched table has no forced policy: with one the server would
  not use its full-text index. The statement filters by tenant instead.)
- An append locks its session's row for the order, stores the messages as JSON with their ids and
  times, counts them, sums up their usage, and keeps a preview and the time by which lists are
  sorted. An id is stored once: on a retry the whole batch is rolled back and looked up, and the
  result is that of the first time, or a refusal if the body differs.
- Resuming finds a session by its key and returns its state and its last 50 messages as dicts,
  decoded, all from one snapshot.
- A list returns 50 sessions as dicts with everything that Holdfast returns, the number of their
  forks included, and whether there are more.
- A search finds the best message of each session by the server's rank, weighted by age, titles
  first, without the trash; it returns 20 as dicts with the session's id and title, a headline, and
  the number of other hits there.

What it does not do: validation; checksums; branches (undo, replace, forks that share a history);
turns, leases, drafts and queues; files; tombstones; ids that are no UUIDs; names with NUL or lone
surrogates; retries after a lost connection; detection of schema changes; notification of followers,
for whom its times would leave gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

import msgspec

if TYPE_CHECKING:
    import psycopg

SCHEMA: Final = "holdfast_bench_hand"
Json = dict[str, Any]

PAGE: Final = 50
TOP: Final = 20
_PREVIEW: Final = 120
_TABLES: Final = """
CREATE TABLE tenants (tenant uuid PRIMARY KEY, name text NOT NULL UNIQUE);
CREATE TABLE sessions (
  tenant     uuid        NOT NULL,
  n          bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
  id         text        NOT NULL,
  key        text,
  scope      text,
  agent      text,
  title      text,
  title_by   text,
  model      text,
  cwd        text,
  created_at timestamptz NOT NULL DEFAULT now(),
  pinned     boolean     NOT NULL DEFAULT false,
  archived   boolean     NOT NULL DEFAULT false,
  trashed_at timestamptz,
  goal       jsonb,
  metadata   jsonb       NOT NULL DEFAULT '{}',
  provenance jsonb,
  parent     bigint,
  relation   text,
  PRIMARY KEY (tenant, n)
);
CREATE UNIQUE INDEX sessions_by_id ON sessions (tenant, id);
CREATE UNIQUE INDEX sessions_by_key ON sessions (tenant, key) WHERE trashed_at IS NULL;
CREATE INDEX sessions_by_parent ON sessions (tenant, parent) WHERE parent IS NOT NULL;
CREATE TABLE heads (
  tenant      uuid        NOT NULL,
  session     bigint      NOT NULL,
  seq         bigint      NOT NULL DEFAULT 0,
  turns       bigint      NOT NULL DEFAULT 0,
  open_turn   bigint,
  lease_until timestamptz,
  interrupted boolean     NOT NULL DEFAULT false,
  updated_at  timestamptz NOT NULL DEFAULT now(),
  input       bigint      NOT NULL DEFAULT 0,
  output      bigint      NOT NULL DEFAULT 0,
  cache_read  bigint      NOT NULL DEFAULT 0,
  cache_write bigint      NOT NULL DEFAULT 0,
  reasoning   bigint      NOT NULL DEFAULT 0,
  cost        numeric     NOT NULL DEFAULT 0,
  preview     text,
  PRIMARY KEY (tenant, session)
) WITH (fillfactor = 60);
CREATE INDEX heads_by_time ON heads (tenant, updated_at);
CREATE TABLE messages (
  tenant  uuid        NOT NULL,
  session bigint      NOT NULL,
  seq     bigint      NOT NULL,
  id      uuid        NOT NULL,
  at      timestamptz NOT NULL,
  body    bytea       NOT NULL,
  PRIMARY KEY (tenant, session, seq)
);
CREATE UNIQUE INDEX messages_by_id ON messages (tenant, session, id);
CREATE TABLE texts (
  tenant  uuid        NOT NULL,
  session bigint      NOT NULL,
  seq     bigint      NOT NULL,
  id      uuid,
  role    text,
  at      timestamptz NOT NULL,
  body    text        NOT NULL,
  words   tsvector    GENERATED ALWAYS AS (to_tsvector('simple', body)) STORED,
  PRIMARY KEY (tenant, session, seq)
);
CREATE INDEX texts_words ON texts USING gin (words);
"""
_POLICY: Final = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
CREATE POLICY one_tenant ON {table} USING (tenant = current_setting('app.tenant')::uuid);
"""
_ENTER: Final = "SELECT set_config('app.tenant', %s, true)"
_ADD: Final = """
WITH made AS (
  INSERT INTO sessions (tenant, id, key, title) VALUES (%(tenant)s, %(key)s, %(key)s, %(key)s)
  RETURNING n
)
INSERT INTO heads (tenant, session) SELECT %(tenant)s, n FROM made RETURNING session
"""
_APPEND: Final = """
WITH moved AS (
  UPDATE heads SET seq = seq + %(count)s, updated_at = clock_timestamp(),
    preview = coalesce(preview, %(preview)s), input = input + %(input)s,
    output = output + %(output)s, cost = cost + %(cost)s
  WHERE tenant = %(tenant)s AND session = %(session)s RETURNING seq
)
INSERT INTO messages (tenant, session, seq, id, at, body)
SELECT %(tenant)s, %(session)s, moved.seq - %(count)s + new.place, new.id, now(), new.body
FROM moved, unnest(%(ids)b::uuid[], %(bodies)b::bytea[]) WITH ORDINALITY AS new (id, body, place)
RETURNING seq
"""
_STORED: Final = """
SELECT seq, body FROM messages
WHERE tenant = %s AND session = %s AND id = ANY (%b::uuid[]) ORDER BY seq
"""
_COLUMNS: Final = """
  s.id, s.key, s.scope, s.title, s.title_by, s.agent, s.model, s.cwd,
  CASE WHEN h.open_turn IS NULL THEN 'done' WHEN h.lease_until > now() THEN 'running'
    ELSE 'interrupted' END AS state,
  s.created_at, h.updated_at, h.turns, h.seq AS messages, h.input, h.output, h.cache_read,
  h.cache_write, h.reasoning, h.cost, h.preview, s.pinned, s.archived,
  s.trashed_at IS NOT NULL AS trashed, s.goal, s.metadata, s.provenance, s.parent, s.relation,
  h.interrupted
"""
_FIND: Final = """
SELECT {columns}
FROM sessions s JOIN heads h ON h.tenant = %(tenant)s AND h.session = s.n
WHERE s.tenant = %(tenant)s AND s.key = %(key)s AND s.trashed_at IS NULL
""".replace("{columns}", _COLUMNS)
_LAST: Final = """
SELECT m.seq, m.id, m.at, m.body FROM messages m
WHERE m.tenant = %(tenant)s AND m.session = (SELECT n FROM sessions
  WHERE tenant = %(tenant)s AND key = %(key)s AND trashed_at IS NULL)
ORDER BY m.seq DESC LIMIT %(limit)s
"""
_LIST: Final = """
SELECT {columns}, (SELECT count(*) FROM sessions f WHERE f.tenant = %(tenant)s AND f.parent = s.n
    AND f.relation IN ('fork', 'continue') AND f.trashed_at IS NULL) AS forks
FROM heads h JOIN sessions s ON s.tenant = %(tenant)s AND s.n = h.session
WHERE h.tenant = %(tenant)s AND s.trashed_at IS NULL AND s.relation IS DISTINCT FROM 'delegate'
ORDER BY h.updated_at DESC LIMIT %(limit)s + 1
""".replace("{columns}", _COLUMNS)
# The full-text match comes first and alone: joined with a table that has a policy, the server does
# not use the index. And the plan is made for these words: some are rare, some are in every text.
_FOR_THESE: Final = "SELECT set_config('plan_cache_mode', 'force_custom_plan', true)"
_SEARCH: Final = """
WITH hit AS MATERIALIZED (
  SELECT t.session, t.seq,
    ts_rank(t.words, query) * (0.5 + 0.5 / (1 + extract(epoch FROM now() - t.at) / 2592000)) AS rank
  FROM to_tsquery('simple', %(query)s) AS query JOIN texts t ON t.words @@ query
  WHERE t.tenant = %(tenant)s AND (%(role)s::text IS NULL OR t.role = %(role)s)
), found AS (
  SELECT hit.*, s.id AS session_id, s.title
  FROM hit JOIN sessions s ON s.tenant = %(tenant)s AND s.n = hit.session
  WHERE s.trashed_at IS NULL AND (%(scope)s::text IS NULL OR s.scope = %(scope)s)
), best AS (
  SELECT DISTINCT ON (session) *, count(*) OVER (PARTITION BY session) - 1 AS more
  FROM found ORDER BY session, seq = 0 DESC, rank DESC, seq DESC
), page AS (
  SELECT * FROM best ORDER BY seq = 0 DESC, rank DESC LIMIT %(limit)s
)
SELECT p.session_id, p.title, t.id AS message_id, p.seq, t.role, p.rank AS score, t.at, p.more,
  ts_headline('simple', t.body, to_tsquery('simple', %(query)s),
    'MaxFragments=1, MaxWords=24, MinWords=1') AS snippet
FROM page p JOIN texts t ON t.tenant = %(tenant)s AND t.session = p.session AND t.seq = p.seq
ORDER BY p.seq = 0 DESC, p.rank DESC
"""


def make(url: str) -> None:
    """Create the tables."""
    import psycopg  # noqa: PLC0415 - only where it is installed

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        connection.execute(f"SET search_path = {SCHEMA}")
        connection.execute(_TABLES)
        for table in ("tenants", "sessions", "heads", "messages"):
            connection.execute(_POLICY.format(table=table))


class ByHand:
    """One connection of one tenant."""

    def __init__(self, url: str, tenant: UUID) -> None:
        """Connect with the same planner settings as Holdfast's connections."""
        import psycopg  # noqa: PLC0415 - as above
        from psycopg.rows import dict_row  # noqa: PLC0415 - as above

        options = f"-c search_path={SCHEMA} -c plan_cache_mode=force_generic_plan"
        self.connection: psycopg.Connection[Json] = psycopg.connect(
            url, autocommit=True, options=options, row_factory=dict_row
        )
        self.connection.prepare_threshold = 0
        self.tenant = tenant
        self._whose = str(tenant)
        text = "INSERT INTO tenants VALUES (%s, %s) ON CONFLICT DO NOTHING"
        self._run(text, (tenant, self._whose))

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.connection.close()

    def _run(self, text: str, values: Any, begin: str = "BEGIN") -> list[Json]:  # noqa: ANN401
        """Run a statement in a transaction of its own, in one round trip."""
        return self._run_all([(text, values)], begin)[0]

    def _run_all(
        self, statements: Sequence[tuple[str, Any]], begin: str = "BEGIN"
    ) -> list[list[Json]]:
        connection = self.connection
        try:
            with connection.pipeline():
                connection.execute(begin)
                connection.execute(_ENTER, (self._whose,))
                cursors = [
                    connection.execute(text, values, binary=True) for text, values in statements
                ]
                connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

    # --------------------------------------------------------------------------------- writing

    def add_session(self, key: str) -> int:
        """Create a session; return its number."""
        number: int = self._run(_ADD, {"tenant": self.tenant, "key": key})[0]["session"]
        return number

    def session(self, key: str) -> int | None:
        """Return a session's number."""
        text = "SELECT n FROM sessions WHERE tenant = %s AND key = %s AND trashed_at IS NULL"
        found = self._run(text, (self.tenant, key))
        return found[0]["n"] if found else None

    def fill(self, text: str, values: Json) -> None:
        """Run a caller's statement to fill the tables."""
        self._run(text, {**values, "tenant": self.tenant})

    def append(self, session: int, ids: Sequence[str], messages: Sequence[Json]) -> int:
        """Append messages; return the seq of the last one."""
        import psycopg  # noqa: PLC0415 - as above

        names, bodies = [UUID(id) for id in ids], [msgspec.json.encode(one) for one in messages]
        used = [one["usage"] for one in messages if "usage" in one]
        values = {
            "tenant": self.tenant,
            "session": session,
            "count": len(names),
            "ids": names,
            "bodies": bodies,
            "preview": _preview(messages),
            "input": sum(one["input"] for one in used),
            "output": sum(one["output"] for one in used),
            "cost": sum(one.get("cost", 0) for one in messages),
        }
        try:
            stored = self._run(_APPEND, values)
        except psycopg.errors.UniqueViolation:
            stored = self._run(_STORED, (self.tenant, session, names))
            if [bytes(row["body"]) for row in stored] != bodies:
                raise
        seq: int = stored[-1]["seq"]
        return seq

    # --------------------------------------------------------------------------------- reading

    def resume(self, key: str) -> tuple[Json, list[Json]]:
        """Return a session and its last messages."""
        values = {"tenant": self.tenant, "key": key, "limit": PAGE}
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        (session,), rows = self._run_all([(_FIND, values), (_LAST, values)], begin)
        return session, [_message(row) for row in reversed(rows)]

    def page(self) -> tuple[list[Json], bool]:
        """Return the newest sessions, and whether there are more."""
        found = self._run(_LIST, {"tenant": self.tenant, "limit": PAGE}, "BEGIN READ ONLY")
        return found[:PAGE], len(found) > PAGE

    def search(self, query: str, role: str | None, scope: str | None) -> list[Json]:
        """Return the best messages, one of each session."""
        values = {
            "tenant": self.tenant,
            "query": query,
            "role": role,
            "scope": scope,
            "limit": TOP,
        }
        return self._run_all([(_FOR_THESE, ()), (_SEARCH, values)], "BEGIN READ ONLY")[1]


def _preview(messages: Sequence[Json]) -> str | None:
    """Return the beginning of the first user message."""
    for message in messages:
        if message["role"] == "user":
            said = (part["text"] for part in message["parts"] if part["type"] == "text")
            return " ".join(" ".join(said).split())[:_PREVIEW]
    return None


def _message(row: Json) -> Json:
    message: Json = msgspec.json.decode(row["body"])
    message |= {"id": str(row["id"]), "seq": row["seq"], "at": row["at"]}
    return message
