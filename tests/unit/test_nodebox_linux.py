"""What a node box reads about the processes of its host."""

import subprocess
import sys
from pathlib import Path

from nodebox_linux import start_time, wait_until

# The first thread ends, and the process lives in the second one, as a killed daemon does until its last thread ended.
LEADERLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_lives_until_its_last_thread_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", LEADERLESS])
    try:
        assert wait_until(lambda: state(process.pid) == "Z", 30)
        assert start_time(process.pid) is not None
    finally:
        process.kill()
    assert wait_until(lambda: start_time(process.pid) is None, 30)  # before it is waited for, it is a zombie
    assert state(process.pid) == "Z"
    process.wait()
    assert start_time(process.pid) is None
