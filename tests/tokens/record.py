"""Make the recorded set: conversations, with the tokens of each message by several tokenizers.

The texts are of this project: what people read, what they run, what tools print. Run it again with
`python -m tests.tokens.record` when the texts should change; the counts are those of the tokenizers
in the extra `tokens`, and stand for what providers would report.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Final

from splintr import Tokenizer

FAMILIES: Final = ("o200k_base", "cl100k_base", "llama3", "deepseek_v3", "mistral_v3", "gemma3")
HERE: Final = Path(__file__).parent
_ROOT: Final = HERE.parent.parent
_ASKED: Final = (
    "Can you explain this to me, with an example I can run?",
    "Was bedeutet das genau? Bitte erkläre es mir auf Deutsch, und möglichst kurz.",
    "Pourquoi est-ce que la fenêtre ne contient pas tous les messages ?",
    "¿Qué pasa si el proceso muere en medio de la respuesta?",
    "これは何ですか。もう少し詳しく説明してください。",
    "会话在进程重启之后还能继续吗。请举一个例子。",
    "Что случится, если два процесса запишут одновременно?",
    "Fix the failing test, then show me the diff. It says `AssertionError: 3 != 4` at line 120.",
    "Run it again with --json and tell me how many tokens 1,234,567 messages would cost.",
)


def main() -> None:
    """Write the set."""
    chance = random.Random(4)
    prose = _pieces(chance, sorted((_ROOT / "docs").glob("*.md")), 1_200)
    code = _pieces(chance, sorted((_ROOT / "src/holdfast/verbs").glob("*.py")), 1_500)
    counts = {family: Tokenizer.from_pretrained(family).encode for family in FAMILIES}
    conversations = []
    for _ in range(8):
        texts: list[tuple[str, str]] = []
        for _ in range(6):
            texts.append(("user", chance.choice(_ASKED)))
            if chance.random() < 0.6:
                texts.append(("tool", _printed(chance, code)))
            texts.append(("assistant", chance.choice((prose, prose, code)).pop()))
        conversations.append(
            [
                {
                    "role": role,
                    "text": text,
                    "tokens": {family: len(encode(text)) for family, encode in counts.items()},
                }
                for role, text in texts
            ]
        )
    recorded = json.dumps(conversations, ensure_ascii=False, indent=1)
    (HERE / "recorded.json").write_text(recorded + "\n", encoding="utf-8")


def _pieces(chance: random.Random, paths: list[Path], size: int) -> list[str]:
    found = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        found += [text[at : at + size] for at in range(0, len(text) - size, size)]
    chance.shuffle(found)
    return found


def _printed(chance: random.Random, code: list[str]) -> str:
    """Return what a tool printed: a file, or a list in JSON."""
    if chance.random() < 0.5:
        return code.pop()
    rows = [
        {
            "id": f"{chance.getrandbits(64):013x}",
            "title": chance.choice(_ASKED)[:40],
            "messages": chance.randint(1, 5_000),
            "updated_at": f"2026-0{chance.randint(1, 9)}-1{chance.randint(0, 9)}T08:15:00Z",
        }
        for _ in range(10)
    ]
    return json.dumps(rows, ensure_ascii=False)


if __name__ == "__main__":
    main()
