"""Random ids: each octet is given once, and a forked process gives others."""

from __future__ import annotations

import subprocess
import sys

from app.entropy import Entropy, random_hex


def test_octets_are_given_once() -> None:
    ids = {random_hex(16) for _ in range(2000)}
    assert len(ids) == 2000
    assert {len(name) for name in ids} == {32}


def test_what_is_fetched_does_not_end_within_an_id() -> None:
    entropy = Entropy()
    assert {len(entropy.take(1500)) for _ in range(5)} == {1500}


def test_what_was_fetched_can_be_forgotten() -> None:
    entropy = Entropy()
    entropy.take(8)
    entropy.forget()
    assert len(entropy.take(8)) == 8


# In an interpreter of its own: forking one that has threads is no good.
_FORK = r"""
import os
from app.entropy import random_hex
random_hex(1)
child = os.fork()
os.write(1, f"{random_hex(16)}\n".encode())
if child:
    os.waitpid(child, 0)
"""


def test_a_forked_process_gives_others() -> None:
    told = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, text=True, check=True, timeout=60
    )
    mine, other = told.stdout.split()
    assert mine != other
