"""What a tool's source may import: the standard library, and what it can do without."""

import pytest

from api.tool_source.syntax import refuse_missing_modules
from shared.domain.errors import InvalidToolSource


@pytest.mark.parametrize(
    "source",
    [
        "import json, os.path\nfrom urllib import request\ndef f(): ...",
        "def f():\n    from datetime import date\n    return date.today()",
        "try:\n    import requests\nexcept ImportError:\n    requests = None\ndef f(): ...",
        "def f():\n    try:\n        import numpy\n    except (ValueError, ModuleNotFoundError):\n        return 'no'",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from letta import AgentState\ndef f(): ...",
    ],
)
def test_what_is_there_or_can_be_missed_is_imported(source: str) -> None:
    refuse_missing_modules(source)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import requests\ndef f(): ...", "requests"),
        ("def f():\n    from bs4 import BeautifulSoup", "bs4"),
        ("import numpy.linalg as la, json\ndef f(): ...", "numpy"),
        ("try:\n    import requests\nexcept ValueError:\n    pass\ndef f(): ...", "requests"),
        ("try:\n    pass\nexcept ImportError:\n    import simplejson\ndef f(): ...", "simplejson"),
        ("import requests\nimport requests.auth\nfrom pydantic import BaseModel\ndef f(): ...", "requests, pydantic"),
    ],
)
def test_what_no_tool_can_import_is_refused_with_its_name(source: str, named: str) -> None:
    """It was accepted, and every call failed."""
    with pytest.raises(InvalidToolSource, match=f"The source imports {named}, and tools have"):
        refuse_missing_modules(source)
