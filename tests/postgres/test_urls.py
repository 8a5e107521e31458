"""URLs of stores on servers: what they mean, what is never shown, and databases of any encoding."""

import traceback
from pathlib import Path
from urllib.parse import quote, urlencode

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import holdfast
from holdfast import Message
from holdfast.errors import StoreUnavailable, UnknownBackend
from holdfast.storage.index_tables import IndexTableHost
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import ConnInfo, parse_conninfo
from holdfast.url import parse_url
from tests.servers import OWNER, Postgres, as_user
from tests.store_urls import with_options

_NOBODY = "127.0.0.1:1/db"  # where no server listens


def _target(url: str) -> ConnInfo:
    return parse_conninfo(parse_url(url, {}), "power")


# ------------------------------------------------------------------------------------- passwords


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://u:sEcReT@{_NOBODY}",
        f"postgresql+psycopg2://u:sEcReT@{_NOBODY}?sslmode=require",
        f"postgres.v1-x://u:sEcReT@{_NOBODY}",
        f"POSTGRESQL://u:sEcReT@{_NOBODY}?sslmode=require",
        f"mysql://u:sEcReT@{_NOBODY}?charset=utf8",
        f"odd://u:sEcReT@{_NOBODY}?deadline=9",
    ],
)
def test_an_unknown_scheme_makes_no_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the password in a folder's name, as it would be; and it is not disclosed, either."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownBackend, match="no backend for") as caught:
        holdfast.open(url)
    assert list(tmp_path.iterdir()) == []
    assert "sEc" not in str(caught.value)


def test_a_folder_of_that_name_is_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was meant for a server never goes to a file, whatever is there."""
    monkeypatch.chdir(tmp_path)
    url = "postgresql+psycopg://host/db"
    Path(url).parent.mkdir(parents=True)
    Path(url).touch()
    with pytest.raises(UnknownBackend, match="no backend for"):
        holdfast.open(url)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:p@sEcReT@{_NOBODY}",
        f"postgresql://u:pa#sEcReT@{_NOBODY}",
        f"postgresql://u:pa/sEcReT@{_NOBODY}",
        f"postgresql://u:pa?sEcReT@{_NOBODY}",
        f"postgresql://u:pa?x=sEcReT@{_NOBODY}",
        f"postgresql://u:12?pool=sEcReT@{_NOBODY}",
        f"postgresql://u:sEc ReT@{_NOBODY}",
        f"postgresql://u:sEc\tReT@{_NOBODY}",
        f"postgresql://u:sEc\ud800ReT@{_NOBODY}",
        f"postgresql://u:sEc%ZZReT@{_NOBODY}",
        f"postgresql://u:sEc%00ReT@{_NOBODY}",
        f"postgresql://u:sEcReT%@{_NOBODY}",
        "postgresql://u:sEcReT@[::1/db",
        "postgresql://u:sEcReT@[::1]x/db",
        "postgresql://u:sEcReT@127.0.0.1:no/db",
        "postgresql://u:sEcReT@127.0.0.1:123456/db",
        "postgresql://u:sEcReT",
        "postgresql://u:12?sEcReT",
        f"postgresql://{_NOBODY}?password=sEc%ZZReT",
        f"postgresql://{_NOBODY}?passwrd=sEcReT",
        f"postgresql://{_NOBODY}?password=sEc=ReT",
        f"postgresql://u:sEcReT@{_NOBODY}?schema=Bad",
        f"postgresql://u:sEcReT@{_NOBODY}?pool=none",
        f"postgresql://u:sEcReT@{_NOBODY}?deadline=0",
        f"postgresql://u:sEcReT@{_NOBODY}?nosuch=1",
        "postgresql:u:sEcReT@host",
    ],
)
def test_a_url_that_is_refused_is_not_quoted(url: str) -> None:
    """Whatever its parts seem to be: a password in it is not disclosed, nor by the cause."""
    with pytest.raises(UnknownBackend) as caught:
        holdfast.open(url)
    assert "sEc" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:sEcReT@{_NOBODY}",
        f"postgres://u:sEc:ReT@{_NOBODY}",
        f"postgresql://:sEcReT@{_NOBODY}",
        f"postgresql://u:sEc%40%2F%3F%23%25%20ReT@{_NOBODY}",
        f"postgresql://u:sEc+\u00e9ReT@{_NOBODY}",
        f"postgresql://u@{_NOBODY}?password=sEcReT&sslpassword=sEcReT",
        f"postgresql://u@{_NOBODY}?pass%77ord=sEcReT",
        f"postgresql://u@{_NOBODY}?oauth_client_secret=sEcReT&oauth_issuer=x",
        f"postgresql://u@{_NOBODY}?options=-c%20app.key%3DsEcReT",
        "postgresql:///db?host=127.0.0.1&port=1&user=u&password=sEcReT",
    ],
)
def test_a_password_is_not_shown(url: str) -> None:
    """Neither in the URL that is shown nor in the error of a failed connection."""
    assert "sEc" not in _target(url).redacted_url
    with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
        holdfast.open(url)
    assert "sEc" not in "".join(traceback.format_exception(caught.value))


# -------------------------------------------------------------------------------- what they mean


@pytest.mark.parametrize(
    ("url", "meant", "shown"),
    [
        (
            "postgresql:///db?host=/run/postgresql",
            {"dbname": "db", "host": "/run/postgresql"},
            "postgresql:///db?host=/run/postgresql",
        ),
        ("postgresql:///?service=x", {"service": "x"}, "postgresql:///?service=x"),
        ("postgresql://", {}, "postgresql://"),
        (
            "postgresql://u@h1:1,h2:2/db?target_session_attrs=read-write",
            {
                "user": "u",
                "host": "h1,h2",
                "port": "1,2",
                "dbname": "db",
                "target_session_attrs": "read-write",
            },
            "postgresql://u@h1:1,h2:2/db?target_session_attrs=read-write",
        ),
        (
            "postgresql://u@[::1]:5432,[fe80::1%25eth0]/db",
            {"user": "u", "host": "::1,fe80::1%eth0", "port": "5432,", "dbname": "db"},
            "postgresql://u@[::1]:5432,[fe80::1%25eth0]/db",
        ),
        (
            "postgresql://u@%2Frun%2Fx/db",
            {"user": "u", "host": "/run/x", "dbname": "db"},
            "postgresql://u@%2Frun%2Fx/db",
        ),
        (
            "postgresql://u:a%40b%20c@h/db?application_name=a%20b%26c+d&pool=3&sslrootcert=a%20b",
            {
                "user": "u",
                "password": "a@b c",
                "host": "h",
                "dbname": "db",
                "application_name": "a b&c+d",
                "sslrootcert": "a b",
            },
            "postgresql://u@h/db?application_name=a%20b%26c+d",
        ),
    ],
)
def test_a_url_means_what_it_means_to_the_driver(
    url: str, meant: dict[str, str], shown: str
) -> None:
    """Our options are taken out, the rest stays as it is written."""
    found = _target(url)
    assert conninfo_to_dict(found.url) == meant
    assert found.redacted_url == shown


def test_options_for_the_server_come_before_ours(postgres_url: str) -> None:
    """They go to it as they were written; of two settings ours counts."""
    asked = quote("-c work_mem=1MB -c search_path=other")
    link = Connection(_target(f"{postgres_url}&options={asked}"))
    shown = link.execute_sql(
        "SELECT current_setting('work_mem'), current_setting('search_path')"
    ).fetchall()
    link.close()
    assert shown == [("1MB", "pg_catalog")]


def test_a_url_without_a_host(postgres_url: str, postgres_admin: psycopg.Connection) -> None:
    """As one writes it for a socket; an option with a space and a plus arrives as it is."""
    asked = {**conninfo_to_dict(postgres_url), "application_name": "a b+c"}
    with holdfast.open(f"postgresql:///?{urlencode(asked, quote_via=quote)}") as store:
        store.create()
        names = postgres_admin.execute("SELECT application_name FROM pg_stat_activity").fetchall()
    assert ("a b+c",) in names


@pytest.mark.parametrize(
    "option",
    [
        "pool=1",
        "pool=2.5",
        "pool=\u0663",
        "schema=pg_mine",
        "schema=information_schema",
        "schema=a%22b",
    ],
)
def test_what_could_not_be_is_refused_at_once(option: str) -> None:
    """Nothing is misread, and no connection is made."""
    with pytest.raises(UnknownBackend):
        holdfast.open(f"postgresql://{_NOBODY}?{option}")


@pytest.fixture(scope="module")
def bare(postgres: Postgres) -> str:
    """A database without a store, for its owner."""
    return as_user(postgres.bare_database("urls", f"OWNER {OWNER}"), OWNER)


def test_a_schema_may_be_called_like_a_word_of_sql(bare: str) -> None:
    """Its name is checked, and it is a name."""
    with holdfast.open(with_options(bare, schema="user")) as store:
        store.session("k").append(Message.user("a"))
        assert [message.text for message in store.session("k").messages()] == ["a"]
        assert store.stats().messages == 1
        assert [hit.seq for hit in store.search("a")] == [1]


# ------------------------------------------------------------------------------------- encodings


def test_text_comes_in_one_encoding() -> None:
    """Whatever the encoding of the database or of the URL: nothing else could be read."""
    for url in ("postgresql://h/db", "postgresql://h/db?client_encoding=LATIN1"):
        assert _target(url).driver_arguments()["client_encoding"] == "UTF8"


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding(encoding: str, postgres: Postgres) -> None:
    """Whatever is said is kept, and turns, branches and searches are what they are elsewhere."""
    how = f"OWNER {OWNER} ENCODING '{encoding}' LOCALE_PROVIDER libc LOCALE 'C'"
    url = as_user(postgres.bare_database(f"in_{encoding.lower()}", how), OWNER)
    with holdfast.open(url) as store:
        session = store.session("k\u00fc")
        with session.turn() as turn:
            turn.user("\u4f60\u597d h\u00e4llo")
            turn.assistant("yes")
        with session.turn() as turn:
            turn.user("again")
        before = [message.text for message in session.messages()]
        assert [one.state for one in session.turns()] == ["sealed", "sealed"]
        session.undo()
        assert [message.text for message in session.messages()] == before[:2]
        session.redo()
        assert [message.text for message in session.messages()] == before
        assert [branch.reason for branch in session.branches()] == ["start", "undo", "redo"]
        assert isinstance(store.backend, IndexTableHost)
        assert store.backend.index_tables() is None
        (hit,) = store.search("\u4f60\u597d")
        assert (hit.session_id, hit.seq, hit.snippet) == (session.id, 1, before[0])
        fork = session.fork(at=1, title="t\u00e4")
        assert [one.relation for one in fork.lineage()] == [None, "fork"]
        assert store.get("t\u00e4").id == fork.id
        assert store.verify() == []


def test_a_database_whose_clients_use_another_encoding(postgres: Postgres) -> None:
    """As its operator may have set it: what they cannot write is stored and found all the same."""
    url = postgres.bare_database("for_others", f"OWNER {OWNER}")
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {admin.info.dbname} SET client_encoding = 'LATIN1'")
    with holdfast.open(as_user(url, OWNER)) as store:
        session = store.session("k")
        session.append(Message.user("\u4f60\u597d"))
        assert [hit.seq for hit in store.search("\u4f60\u597d")] == [1]
