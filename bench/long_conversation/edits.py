"""Draws a model's edits: each kind of each memory tool, including edits that must be refused."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from bench.long_conversation.account import MOTTO, MOTTO_LIMIT, RULES, SHARED, Account, Edit

TOOLS = (
    "core_memory_append",
    "core_memory_replace",
    "memory_insert",
    "memory_replace",
    "memory_rethink",
    "memory",
    "archival_memory_insert",
)

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "knoll", "larch")
MOST_LINES = 12
"""Lines from which a block is condensed, so that the memory stays small in the window."""
KEPT_LINES = 5
MOST_SHARED_LINES = 6
MOST_TOPICS = 3


@dataclass
class Drawing:
    """Draws edits of one agent's memory, and applies each to its account."""

    dice: random.Random
    account: Account

    def draw(self, mark: str) -> list[Edit]:
        """Draws one call, or several in one answer. `mark` is unique to the answer."""
        label = self.dice.choice(["human", "persona"])
        if len(self.account.lines(label)) >= MOST_LINES:
            # The model condenses the block after an edit in the same answer, so its text includes that edit.
            return [self._append(label, f"{mark}a"), self._condense(label)]
        kinds: dict[Callable[[str, str], Edit], int] = {
            self._append: 4,
            self._insert: 4,
            self._swap_word: 3,
            self._replace_line: 4,
            self._remove_line: 1,
            self._rethink: 2,
            self._topic: 4,
            self._share: 4,
            self._remember: 4,
            self._refused: 2,
        }
        count = self.dice.choices([1, 2, 3], [80, 14, 6])[0]
        chosen = self.dice.choices(list(kinds), list(kinds.values()), k=count)
        return [kind(label, f"{mark}{'abc'[place]}") for place, kind in enumerate(chosen)]

    def line(self, mark: str) -> str:
        return f"{mark}: {' '.join(self.dice.sample(WORDS, 4))}"

    def _append(self, label: str, mark: str) -> Edit:
        line = self.line(mark)
        self.account.write(label, [*self.account.lines(label), line])
        return Edit("core_memory_append", {"label": label, "content": line})

    def _insert(self, label: str, mark: str) -> Edit:
        lines, line = self.account.lines(label), self.line(mark)
        place = self.dice.randint(0, len(lines))
        where = {} if place == len(lines) and self.dice.random() < 0.5 else {"insert_line": place}
        self.account.write(label, [*lines[:place], line, *lines[place:]])
        return Edit("memory_insert", {"label": label, "new_string": line, **where})

    def _swap_word(self, label: str, mark: str) -> Edit:
        present = [word for word in WORDS if word in self.account.blocks[label]]
        if not present:
            return self._append(label, mark)
        old, new = self.dice.choice(present), self.dice.choice(WORDS)
        self.account.swap(label, old, new)
        return Edit("core_memory_replace", {"label": label, "old_content": old, "new_content": new})

    def _replace_line(self, label: str, mark: str) -> Edit:
        lines = self.account.lines(label)
        if not lines:
            return self._append(label, mark)
        old, new = self.dice.choice(lines), self.line(mark)
        self.account.swap(label, old, new)
        return Edit("memory_replace", {"label": label, "old_string": old, "new_string": new})

    def _remove_line(self, label: str, mark: str) -> Edit:
        lines = self.account.lines(label)
        if len(lines) < 2:
            return self._append(label, mark)
        old = self.dice.choice(lines[:-1]) + "\n"
        self.account.swap(label, old, "")
        return Edit("memory_replace", {"label": label, "old_string": old, "new_string": ""})

    def _rethink(self, label: str, mark: str) -> Edit:
        lines = self.account.lines(label)
        self.dice.shuffle(lines)
        self.account.write(label, [*lines, self.line(mark)])
        return Edit("memory_rethink", {"label": label, "new_memory": self.account.blocks[label]})

    def _condense(self, label: str) -> Edit:
        self.account.write(label, self.account.lines(label)[-KEPT_LINES:])
        return Edit("memory_rethink", {"label": label, "new_memory": self.account.blocks[label]})

    def _topic(self, _: str, mark: str) -> Edit:
        topics = [label for label in self.account.blocks if label.startswith("topic")]
        if not topics or (len(topics) < MOST_TOPICS and self.dice.random() < 0.4):
            label, text = f"topic-{mark.replace('.', '-')}", self.line(mark)
            self.account.create(label, text)
            made = {"path": f"/memories/{label}", "description": "A topic.", "file_text": text}
            return Edit("memory", {"command": "create", **made})
        label = self.dice.choice(topics)
        path, lines, line = f"/memories/{label}", self.account.lines(label), self.line(mark)
        match self.dice.choice(["delete", "rename", "insert", "str_replace"]):
            case "delete":
                self.account.delete(label)
                return Edit("memory", {"command": "delete", "path": path})
            case "rename":
                new = f"topic-{mark.replace('.', '-')}"
                self.account.rename(label, new)
                return Edit("memory", {"command": "rename", "old_path": path, "new_path": f"/memories/{new}"})
            case "insert" if len(lines) < KEPT_LINES:
                self.account.write(label, [line, *lines])
                return Edit("memory", {"command": "insert", "path": path, "insert_line": 0, "insert_text": line})
            case _:
                old = self.dice.choice(lines)
                self.account.swap(label, old, line)
                return Edit("memory", {"command": "str_replace", "path": path, "old_string": old, "new_string": line})

    def _share(self, _: str, mark: str) -> Edit:
        account, line = self.account, f"{self.account.name} {self.line(mark)}"
        if len(account.own_lines) < MOST_SHARED_LINES:
            account.share(None, line)
            return self.dice.choice(
                [
                    Edit("core_memory_append", {"label": SHARED, "content": line}),
                    Edit("memory_insert", {"label": SHARED, "new_string": line}),
                ]
            )
        old = self.dice.choice(account.own_lines)
        account.share(old, line)
        return Edit("memory_replace", {"label": SHARED, "old_string": old, "new_string": line})

    def _remember(self, _: str, mark: str) -> Edit:
        text = f"{self.account.name} {self.line(mark)}"
        self.account.passages.append(text)
        return Edit("archival_memory_insert", {"content": text, "tags": [self.dice.choice(WORDS)]})

    def _refused(self, label: str, mark: str) -> Edit:
        absent = f"{mark} is nowhere"
        return self.dice.choice(
            [
                Edit("memory_replace", {"label": label, "old_string": absent, "new_string": ""}, is_refused=True),
                Edit("core_memory_append", {"label": RULES, "content": absent}, is_refused=True),
                Edit("memory_insert", {"label": absent, "new_string": absent}, is_refused=True),
                Edit("memory_rethink", {"label": MOTTO, "new_memory": absent * MOTTO_LIMIT}, is_refused=True),
            ]
        )
