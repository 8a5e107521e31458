"""A path or URL in a message is text: no command opens it, and none asks anybody anything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import holdfast
from holdfast import File, Message, Raw, Text
from holdfast.values import JSON, Part

_COMMANDS = (
    ["ls", "--all"],
    ["tree", "k"],
    ["show", "k"],
    ["log", "k"],
    ["search", "harbour"],
    ["window", "k"],
    ["window", "k", "--provider", "anthropic"],
    ["window", "k", "--provider", "gemini"],
    ["export", "k", "-o", "-"],
    ["stats"],
    ["doctor"],
    ["models"],
)
# Runs commands; prints what they opened and whom they asked.
_WATCHED = """
import json, sys
asked = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        asked.append([event, repr(arguments)])
    if event == "open" and "canary" in str(arguments[0]):
        asked.append([event, repr(arguments)])
sys.addaudithook(watch)
from holdfast.cli import program
codes = [program.run(command) for command in json.loads(sys.argv[1])]
sys.stderr.write(json.dumps([codes, asked]))
"""


def test_nothing_that_a_message_names_is_opened_or_asked(tmp_path: Path) -> None:
    secret = tmp_path / "canary.txt"
    secret.write_text("canary")
    urls = [f"file://{secret}", str(secret), "http://canary.example/x.png", "//canary.example/x"]
    with holdfast.open(tmp_path / "agent.db") as store:
        session = store.session("k", cwd=str(tmp_path), title=urls[2])
        for url in urls:
            picture: JSON = {"type": "image_url", "image_url": {"url": url}}
            parts: list[Part] = [
                Text(f"harbour ![x]({url})"),
                Raw("openai", picture),
                File(url, "a/b", b"x"),
            ]
            session.append(Message.user(parts))
            session.append(Message.assistant([Text(f"<img src='{url}'>")]))
    ran = subprocess.run(
        [sys.executable, "-c", _WATCHED, json.dumps(_COMMANDS)],
        env={**os.environ, "HOLDFAST_URL": str(tmp_path / "agent.db"), "HOME": str(tmp_path)},
        capture_output=True,
        check=True,
        text=True,
    )
    codes, asked = json.loads(ran.stderr.splitlines()[-1])
    assert codes == [0] * len(_COMMANDS)
    assert asked == []
