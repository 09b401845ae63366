"""Which files a script writes, as a task notes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, os, pathlib, pickle, shutil, tempfile
from headgate.task.file_writes import file_writes as writes
from headgate.task.saving import replacing

writes.watch()
found = []
def told():
    found.clear()
    writes.tell(found.append)
    return [pathlib.Path(each["path"]).name for each in found]

open("plain.txt", "w").close()
pathlib.Path("text.txt").write_text("a")
with open(b"log.txt", "a") as log:
    log.write("a")
with open("saved.tmp", "wb") as file:
    pickle.dump(1, file)
os.rename("saved.tmp", "saved")
os.replace("saved", pathlib.Path("moved"))
shutil.copy("plain.txt", "copied.txt")
os.close(os.open("low.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
written = "plain.txt text.txt log.txt saved.tmp saved moved copied.txt low.txt"
assert told() == written.split(), found
assert found[0]["folder"] == f"{os.stat('.').st_dev}:{os.stat('.').st_ino}"
assert os.path.isabs(found[0]["path"])

open("plain.txt", "w").close()
assert told() == []  # once

with open("plain.txt") as reads, open("plain.txt", "r+") as maps, open(os.devnull, "w") as nothing:
    pass
os.close(os.open("data.lock", os.O_RDWR | os.O_CREAT | os.O_TRUNC))
os.makedirs(".cache/tokens")
open(".cache/tokens/a.bin", "w").close()
with tempfile.TemporaryFile() as unnamed, open(os.dup(1), "w") as number:
    pass
gone = tempfile.mkdtemp()
open(os.path.join(gone, "x.txt"), "w").close()
shutil.rmtree(gone)
assert told() == [], found

with replacing(pathlib.Path("step-8.pt")) as partial:  # a checkpoint of Headgate's own
    partial.write_text("a")
assert told() == []
os.replace("moved", "step-8.pt")
assert told() == ["step-8.pt"]  # the script's own

child = os.fork()
if not child:
    open("of a child.txt", "w").close()
    os._exit(len(told()))
assert os.waitpid(child, 0)[1] == 0

for number in range(20_000):  # nothing is told meanwhile
    writes.wrote(f"{number}.txt")
assert len(writes._found) < 20_000
assert len(told()) <= 1000

writes.ignore()
open("more.txt", "w").close()
assert told() == []
print("well")
"""


def test_a_task_notes_what_its_script_writes_anew_and_nothing_that_is_shared_by_design(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("well\n", 0), done.stderr
