"""Redirects within the backend lead through the relay."""

from __future__ import annotations

import pytest

from app.relay.headers import with_own_location


@pytest.mark.parametrize(
    ("location", "seen"),
    [
        (b"http://h:8000/v1/models", b"http://gate/v1/models"),
        (b"http://h:8000/v1?a=1", b"http://gate/v1?a=1"),
        (b"http://h:8000", b"http://gate/"),
        (b"http://h:8000?a=1", b"http://gate?a=1"),
        (b"http://h:80001/v1", b"http://h:80001/v1"),
        (b"http://other/v1", b"http://other/v1"),
        (b"/v1/models", b"/v1/models"),
        (b"", b""),
    ],
)
def test_only_the_backends_own_urls_are_changed(location: bytes, seen: bytes) -> None:
    fields = [(b"x-a", b"http://h:8000/"), (b"location", location)]
    assert with_own_location(fields, b"http://h:8000", b"http://gate") == [
        (b"x-a", b"http://h:8000/"),
        (b"location", seen),
    ]


def test_a_client_without_a_host_field_gets_a_relative_redirect() -> None:
    fields = [(b"location", b"http://h:8000/v1/models")]
    assert with_own_location(fields, b"http://h:8000", b"") == [(b"location", b"/v1/models")]
