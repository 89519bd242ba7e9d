"""What `holdfast doctor` has found: a line for each thing that it looked at, with the fix where something is amiss."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from cli.printable import printable, printable_json


class Verdict(StrEnum):
    """How something is."""

    OK = "ok"
    WARN = "warn"
    """It works, and there is a reason to look at it."""
    WRONG = "wrong"


class Finding(NamedTuple):
    """One thing that was looked at."""

    verdict: Verdict
    subject: str
    said: str
    fix: str = ""


def good(subject: str, said: str) -> Finding:
    """It is as it should be."""
    return Finding(Verdict.OK, subject, said)


def doubtful(subject: str, said: str, fix: str) -> Finding:
    """It works; `fix` says what would be better."""
    return Finding(Verdict.WARN, subject, said, fix)


def wrong(subject: str, said: str, fix: str) -> Finding:
    """It does not work until somebody does what `fix` says."""
    return Finding(Verdict.WRONG, subject, said, fix)


def skew(subject: str, seconds: float) -> Finding:
    """A clock that is ahead of ours by so many seconds. Leases last six seconds by default, so two are too many."""
    said = f"its clock differs from this machine's by {abs(seconds):.1f} s"
    if abs(seconds) <= LARGEST_SKEW_S:
        return good(subject, said)
    return wrong(subject, said, "let both machines follow the same time server")


LARGEST_SKEW_S = 2.0
"""Seconds. SQL tells its time to the second, so less than one cannot be seen."""


def lines(findings: Sequence[Finding], *, as_json: bool) -> list[str]:
    """The findings as text, or as JSON objects."""
    if as_json:
        return [printable_json(msgspec.json.encode(finding._asdict()).decode()) for finding in findings]
    width = max(len(finding.subject) for finding in findings)
    return [
        printable(f"{one.verdict:<5}  {one.subject:<{width}}  {one.said}" + (f"; {one.fix}" if one.fix else ""))
        for one in findings
    ]
