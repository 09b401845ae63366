"""Jobs made of roles, each task in a container."""

from __future__ import annotations

from tests.hub.test_roles import CLIENT, SERVER, SERVING
from tests.hub.user import User

from headgate.isolation.container.daemon import Daemon
from headgate.isolation.container.isolation import TASK


def test_roles_in_containers_find_each_other_and_leave_none(user: User, daemon: str) -> None:
    user.variables["DOCKER_HOST"] = daemon
    user.write("server.py", SERVER)
    user.write("client.py", CLIENT)
    user.write(
        "jobs.yaml",
        SERVING.replace("- name: serving", "- name: serving\n        isolation: container"),
    )
    user.types("run", "jobs.yaml")
    assert user.types("logs", "serving/client-1").stdout == "hello client 1\n"
    assert user.types("logs", "serving/server-0").stdout == "starting\nasked to end\n"
    assert Daemon(daemon).find(TASK) == []
