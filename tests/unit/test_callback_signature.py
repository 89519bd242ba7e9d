"""Callbacks are signed as Standard Webhooks has it."""

import base64
import hashlib
import hmac

import pytest

from api.callbacks.outboxes import key_of_project, signed_headers, signing_key, written_secret
from shared.domain.errors import InvalidRequest
from shared.domain.ids import ProjectId

BODY = b'{"test": 2432232314}'


def test_the_example_of_the_standard() -> None:
    # From the specification's own test data: id, time, secret and body with the signature that belongs to them.
    headers = signed_headers(
        signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp=1614265330,
        body=BODY,
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_secret_without_the_prefix_is_the_key_itself() -> None:
    headers = signed_headers(signing_key("open sesame"), message_id="run-1", timestamp=7, body=BODY)
    expected = base64.b64encode(hmac.new(b"open sesame", b"run-1.7." + BODY, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


def test_one_project_could_sign_for_another_and_be_believed_by_its_receiver() -> None:
    key = signing_key("open sesame")
    projects = ("default", "a", "b", "ab", "a b", "", "größe")
    keys = [key_of_project(key, ProjectId(project)) for project in projects]

    assert len({key, *keys}) == len(projects) + 1, "nobody's is the operator's, or another project's"
    signatures = [signed_headers(one, message_id="run-1", timestamp=7, body=BODY)["webhook-signature"] for one in keys]
    assert len(set(signatures)) == len(projects)
    assert all(" " not in signature for signature in signatures), "one signature alone, none by a shared secret"


def test_a_projects_key_is_the_same_in_every_process_and_another_one_with_another_secret() -> None:
    first, again = [key_of_project(signing_key("open sesame"), ProjectId("a")) for _ in range(2)]
    assert first == again != key_of_project(signing_key("another"), ProjectId("a"))
    assert key_of_project(None, ProjectId("a")) is None


def test_what_receivers_are_given_is_the_key_that_signs() -> None:
    key = key_of_project(signing_key("open sesame"), ProjectId("a"))
    assert key is not None and signing_key(written_secret(key)) == key


def test_without_a_secret_there_is_no_signature() -> None:
    assert signing_key("") is None
    assert signed_headers(None, message_id="run-1", timestamp=7, body=BODY) == {
        "webhook-id": "run-1",
        "webhook-timestamp": "7",
    }


@pytest.mark.parametrize("secret", ["whsec_not base64!", "whsec_abc"])
def test_a_secret_that_says_base64_and_is_not_is_refused(secret: str) -> None:
    with pytest.raises(InvalidRequest, match="HOLDFAST_CALLBACK_SECRET"):
        signing_key(secret)
