"""What a tool may ask for in `pip_requirements`, and how it is written down for the installer."""

from typing import Any

import pytest

from shared.domain.errors import InvalidRequest
from shared.domain.tools import MOST_REQUIREMENTS, requirement_lines


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"name": "requests"}, "requests"),
        ({"name": "requests", "version": None}, "requests"),
        ({"name": "requests", "version": ""}, "requests"),
        ({"name": "requests", "version": "2.31.0"}, "requests==2.31.0"),
        ({"name": "Flask_SQLAlchemy", "version": "3.1"}, "flask-sqlalchemy==3.1"),
        ({"name": "torch", "version": "2.5.0+cpu"}, "torch==2.5.0+cpu"),
        ({"name": "requests", "version": ">= 2, <3"}, "requests<3,>=2"),
        ({"name": "requests", "version": "==2.*"}, "requests==2.*"),
        ({"name": "requests[Socks, security]", "version": "2.31.0"}, "requests[security,socks]==2.31.0"),
        ({"name": "requests", "anything": "else"}, "requests"),
    ],
)
def test_an_entry_becomes_a_line(entry: dict[str, Any], line: str) -> None:
    assert requirement_lines([entry]) == [line]


def test_lines_have_an_order_of_their_own() -> None:
    assert requirement_lines([{"name": "b"}, {"name": "a"}]) == requirement_lines([{"name": "a"}, {"name": "b"}])


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": "--index-url=http://127.0.0.1/"}, "name"),
        ({"name": "-r /etc/passwd"}, "name"),
        ({"name": "requests\n--index-url http://127.0.0.1/"}, "name"),
        ({"name": "./here"}, "name"),
        ({"name": "/etc/passwd"}, "name"),
        ({"name": "x @ http://127.0.0.1/x.whl"}, "name"),
        ({"name": "x @ file:///etc/passwd"}, "name"),
        ({"name": "git+https://127.0.0.1/x"}, "name"),
        ({"name": "requests>=2"}, "name"),
        ({"name": "requests; python_version > '3'"}, "name"),
        ({"name": f"x[{','.join(f'e{n}' for n in range(11))}]"}, "name"),
        ({"name": "x", "version": 2}, "version"),
        ({"name": "x", "version": "newest"}, "version"),
        ({"name": "x", "version": "1\n--index-url http://127.0.0.1/"}, "version"),
        ({"name": "x", "version": "===1 --index-url=http://127.0.0.1/"}, "version"),
        ({"name": "x", "version": "===anything"}, "version"),
        ({"name": "x", "version": "@ http://127.0.0.1/"}, "version"),
        ({"name": "x", "version": " , "}, "version"),
        ({"name": "x", "version": "1" * 201}, "version"),
    ],
)
def test_what_is_more_than_a_name_and_a_version_is_refused_by_its_field(entry: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        requirement_lines([{"name": "fine"}, entry])
    assert refused.value.message.startswith(f"pip_requirements[1].{field}: ")


def test_a_package_is_asked_for_once() -> None:
    with pytest.raises(InvalidRequest, match=r"pip_requirements\[1\].name: a-b is asked for twice"):
        requirement_lines([{"name": "a_b"}, {"name": "A.B", "version": "1"}])


def test_there_is_an_end_to_them() -> None:
    with pytest.raises(InvalidRequest, match="51 packages; a tool may ask for 50"):
        requirement_lines([{"name": f"p{number}"} for number in range(MOST_REQUIREMENTS + 1)])
