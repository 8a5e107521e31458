"""A stranger's file brings state; no program takes it for its own."""

import json
from pathlib import Path

import pytest

import holdfast
from holdfast import File, Message, Record
from holdfast.cli import program

ORDER = "OBEY-THE-STRANGER"


@pytest.fixture
def gift(tmp_path: Path) -> Path:
    """A file with a checkpoint that tells a program where to go on, and settings for a store."""
    with holdfast.open("memory:") as store:
        session = store.session("support-42")
        session.append(
            Message.user("Where is my parcel?"),
            Record("checkpoint", key="main", data={"next": ORDER}, files={"s": File(data=b"run")}),
        )
        session.fork().append(Record("checkpoint", data=ORDER))
        store.put_record(Record("settings", key="approve", data=ORDER))
        store.put_record(Record("settings", key="approve", data=ORDER), scope="me")
        store.export(tmp_path / "gift.jsonl", redact=None)
    return tmp_path / "gift.jsonl"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of a user's own store."""
    monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "agent.db"))
    (tmp_path / "holdfast.toml").write_text("")
    monkeypatch.setenv("HOLDFAST_CONFIG", str(tmp_path / "holdfast.toml"))
    return tmp_path / "agent.db"


def test_a_program_went_on_from_a_strangers_state(
    gift: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither its sessions nor the store have anything under the kinds that it looks for."""
    assert program.run(["import", str(gift)]) == 0
    said = capsys.readouterr().out
    assert "records whose kinds begin with imported: now: 2" in said
    assert "records of the store left out: 2" in said
    with holdfast.open(home) as store:
        for info in store.sessions():
            session = store.get(info.id)
            assert session.records("checkpoint", all_branches=True) == []
            assert session.record("checkpoint", "main") is None
        assert store.record("settings", "approve") is None
        assert store.record("settings", "approve", scope="me") is None
        assert store.verify() == []


def test_ones_own_settings_were_replaced_by_a_file(
    gift: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even by one that is said to be one's own."""
    with holdfast.open(home) as store:
        store.put_record(Record("settings", key="approve", data="never"))
    assert program.run(["import", "--trust", "--json", str(gift)]) == 0
    ((found,),) = [json.loads(capsys.readouterr().out)]
    assert (found["report"]["store_records"], found["report"]["records_left_out"]) == (1, 1)
    with holdfast.open(home) as store:
        current = store.record("settings", "approve")
        assert current is not None
        assert current.data == "never"
