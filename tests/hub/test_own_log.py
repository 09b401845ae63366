"""What Headgate's own modules log: nothing unless asked, and nothing twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.hub.user import User


def _hub_log(user: User) -> Path:
    return user.home / "hub" / "messages.log"


def test_nothing_is_logged_unasked(user: User) -> None:
    user.write("train.py", "print('epoch 1 loss 0.5')")
    assert user.types("run", "train.py").stderr == ""
    assert not _hub_log(user).exists()


def test_verbose_logs_to_standard_error_and_to_a_file_of_the_hub(user: User) -> None:
    user.write("train.py", "print('epoch 1 loss 0.5')")
    done = user.types("-vv", "run", "train.py")
    assert "INFO headgate.client.starting: a hub is started" in done.stderr
    assert "INFO headgate" not in done.stdout
    assert max(Counter(done.stderr.splitlines()).values()) == 1
    lines = _hub_log(user).read_text().splitlines()
    assert [line for line in lines if "DEBUG headgate.hub.live: JobSubmitted of" in line]
    taken_in = [line for line in lines if "is taken in" in line]
    assert len(taken_in) == 1
    assert not (user.home / "hub" / "hub.log").read_text()


def test_one_module_can_be_asked_alone(user: User) -> None:
    user.write("train.py", "print('epoch 1 loss 0.5')")
    user.types("run", "train.py", HEADGATE_LOG="hub.server=debug")
    lines = _hub_log(user).read_text().splitlines()
    assert any("asked for 'submit'" in line for line in lines)
    assert all("headgate.hub.server:" in line for line in lines)


def test_a_level_that_is_none_is_named(user: User) -> None:
    message = user.types("ps", code=2, HEADGATE_LOG="loud").message
    assert "HEADGATE_LOG='loud'" in message
    assert "error, warning, info, debug" in message
