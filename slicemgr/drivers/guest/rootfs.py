"""Access files inside a sliver's root as the host's root, safe against the tenant's symlinks.

openat2 resolves directories as if the root were `/`, and the last name of a path that is written is never followed. A
file is written under a temporary name and renamed, so hard links, FIFOs and devices are replaced, not written to.

A tenant may hold a lease on a file (fcntl(2), F_SETLEASE). Each blocking open of the file then waits up to
/proc/sys/fs/lease-break-time (45 s). Files are therefore opened without blocking, and the time spent on leases is
limited for the whole use of a root. Unlink, rename and chmod do not wait for leases.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from slicemgr.drivers.kernel.openat2 import open_in_root
from slicemgr.errors import Failed

_LARGEST_COMPARED = 1 << 20
_LARGEST_COPIED = 1 << 30
_MOST_NAMES = 10_000  # of a directory that `names` lists
_PATIENCE = 0.5  # seconds; a program that handles the signal of a broken lease needs milliseconds
_PAUSE = 0.01  # seconds between attempts
_FICLONE = 0x40049409  # linux/fs.h


class Root:
    """The open root directory of a sliver. Paths are relative to it; a leading `/` is ignored.

    Every method raises Failed, with the path, if the content of the root prevents the operation. patience: seconds
    that all calls together wait for files with a lease.
    """

    def __init__(self, path: Path, patience: float = _PATIENCE) -> None:
        self.path = path
        self._patience = patience
        self._fd = -1

    def __enter__(self) -> Root:
        with self._step("open", ""):
            self._fd = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
        self._fd = -1

    def read(self, relpath: str, limit: int) -> bytes | None:
        """At most `limit` bytes of a regular file, with symlinks resolved inside the root; None if there is none."""
        with self._step("read", relpath):
            try:
                with _closing(open_in_root(self._fd, relpath, os.O_PATH)) as fd:
                    return self._read_regular(fd, limit)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def copy_out(self, relpath: str, target: Path) -> bool:
        """Copy a regular file, with symlinks resolved inside the root, to the new file `target`; False if none exists.

        On the same btrfs the copy shares the file's blocks. It has mode 0600. Files above 1 GiB are refused.
        """
        with self._step("read", relpath):
            try:
                with _closing(open_in_root(self._fd, relpath, os.O_PATH)) as fd:
                    held = os.fstat(fd)
                    if not stat.S_ISREG(held.st_mode):
                        return False
                    if held.st_size > _LARGEST_COPIED:
                        raise OSError(errno.EFBIG, f"it is larger than {_LARGEST_COPIED} bytes")
                    with os.fdopen(self._open(fd), "rb") as source, _new(target) as copy:
                        try:
                            fcntl.ioctl(copy, _FICLONE, source.fileno())
                        except OSError:
                            shutil.copyfileobj(source, copy, 1 << 20)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def exists(self, relpath: str) -> bool:
        """Whether the path exists, with symlinks resolved inside the root."""
        with self._step("find", relpath):
            try:
                os.close(open_in_root(self._fd, relpath, os.O_PATH))
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def names(self, relpath: str) -> list[str]:
        """The names in a directory, sorted; [] if it does not exist. More than 10,000 entries are refused."""
        with self._step("list", relpath):
            try:
                with (
                    _closing(open_in_root(self._fd, relpath, os.O_RDONLY | os.O_DIRECTORY)) as fd,
                    os.scandir(fd) as entries,
                ):
                    found = [entry.name for entry in itertools.islice(entries, _MOST_NAMES + 1)]
                if len(found) > _MOST_NAMES:
                    raise OSError(errno.EFBIG, f"it has more than {_MOST_NAMES} entries")
                return sorted(found)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def write(self, relpath: str, data: bytes, mode: int = 0o644, uid: int = 0, gid: int = 0) -> bool:
        """Write a regular file with this content, mode and owner; False if it was already so.

        Missing directories are created. A file that is already right is not touched, so a repeated call uses no space
        in a snapshot.
        """
        with self._step("write", relpath), self._parent(relpath) as (parent, name):
            if self._is_right(parent, name, data, (mode, uid, gid)):
                return False
            beside = f".{name}.slicemgr"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(beside, flags, 0o600, dir_fd=parent), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fchown(file.fileno(), uid, gid)
                    os.fchmod(file.fileno(), mode)
                os.rename(beside, name, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(beside, dir_fd=parent)
                raise
        return True

    def mkdir(self, relpath: str, mode: int = 0o755) -> None:
        """Create a directory and its parents (root's, 0755). An existing one, or a symlink to one, is kept."""
        with self._step("make the directory", relpath):
            self._make_directory(_parts(relpath), mode)

    def own_directory(self, relpath: str, mode: int) -> None:
        """Make `relpath` a directory of root with this mode, not a symlink; a file of that name is replaced."""
        with self._step("make the directory", relpath), self._parent(relpath) as (parent, name):
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=parent)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=parent)
            with _closing(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)) as fd:
                held = os.fstat(fd)
                if (held.st_uid, held.st_gid) != (0, 0):
                    os.fchown(fd, 0, 0)
                if stat.S_IMODE(held.st_mode) != mode:
                    os.fchmod(fd, mode)

    def remove(self, relpath: str, missing_ok: bool = True) -> None:
        """Remove a file, or a symlink itself and not its target. Directories are refused."""
        with self._step("remove", relpath):
            above, name = _split(relpath)
            try:
                with _closing(open_in_root(self._fd, above, os.O_PATH | os.O_DIRECTORY)) as parent:
                    os.unlink(name, dir_fd=parent)
            except (FileNotFoundError, NotADirectoryError):
                if not missing_ok:
                    raise

    def chmod(self, relpath: str, mode: int) -> None:
        """Set the mode of a file or directory. A symlink as the last name is refused."""
        flags = os.O_PATH | os.O_NOFOLLOW
        with self._step("set the mode of", relpath), _closing(open_in_root(self._fd, relpath, flags)) as fd:
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            _by_descriptor(fd).chmod(mode)

    @contextlib.contextmanager
    def _parent(self, relpath: str) -> Iterator[tuple[int, str]]:
        """The open parent directory of `relpath`, created if necessary, and the last name."""
        above, name = _split(relpath)
        self._make_directory(_parts(above), 0o755)
        with _closing(open_in_root(self._fd, above, os.O_PATH | os.O_DIRECTORY)) as fd:
            yield fd, name

    def _make_directory(self, parts: list[str], mode: int) -> None:
        try:
            os.close(open_in_root(self._fd, "/".join(parts) or ".", os.O_PATH | os.O_DIRECTORY))
            return
        except FileNotFoundError:
            if not parts:
                raise
        self._make_directory(parts[:-1], 0o755)
        with _closing(open_in_root(self._fd, "/".join(parts[:-1]) or ".", os.O_PATH | os.O_DIRECTORY)) as parent:
            try:
                os.mkdir(parts[-1], mode, dir_fd=parent)
            except FileExistsError as error:
                where = "/" + "/".join(parts)
                raise OSError(errno.ELOOP, f"{where} is a symbolic link that leads nowhere") from error
        with _closing(open_in_root(self._fd, "/".join(parts), os.O_PATH | os.O_DIRECTORY)) as fd:
            _by_descriptor(fd).chmod(mode)

    def _is_right(self, parent: int, name: str, data: bytes, wanted: tuple[int, int, int]) -> bool:
        """Whether `name` is a regular file with one name and this content and (mode, uid, gid).

        A file with a lease counts as different, because its replacement does not wait.
        """
        try:
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            return False
        with _closing(fd):
            held = os.fstat(fd)
            if not stat.S_ISREG(held.st_mode) or held.st_nlink != 1 or held.st_size != len(data):
                return False
            if (stat.S_IMODE(held.st_mode), held.st_uid, held.st_gid) != wanted or len(data) > _LARGEST_COMPARED:
                return False
            try:
                return self._read_regular(fd, len(data) + 1) == data
            except BlockingIOError:
                return False

    def _read_regular(self, fd: int, limit: int) -> bytes | None:
        """The content of the file of an O_PATH descriptor; None for FIFOs and devices, where open has side effects."""
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        with os.fdopen(self._open(fd), "rb") as file:
            return file.read(limit)

    def _open(self, fd: int) -> int:
        """Open the regular file of an O_PATH descriptor. Raises BlockingIOError if a lease holds it for too long.

        The first attempt makes the kernel signal the holder; without O_NONBLOCK the call would wait for the holder.
        """
        while True:
            try:
                return os.open(_by_descriptor(fd), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except BlockingIOError:
                if self._patience <= 0:
                    raise BlockingIOError(errno.EWOULDBLOCK, "a lease inside the sliver holds the file") from None
            self._patience -= _PAUSE
            time.sleep(_PAUSE)

    @contextlib.contextmanager
    def _step(self, what: str, relpath: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = f"/{relpath.lstrip('/')}"
            raise Failed(
                f"cannot {what} {where} in the root {self.path}: {error.strerror}",
                hint="files of the image or of the tenant prevent it",
            ) from error


def _parts(relpath: str) -> list[str]:
    parts = [part for part in relpath.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in relpath:
        raise OSError(errno.EINVAL, "the path has a part that is not a name")
    return parts


def _split(relpath: str) -> tuple[str, str]:
    parts = _parts(relpath)
    if not parts:
        raise OSError(errno.EINVAL, "the path has no last name")
    return "/".join(parts[:-1]) or ".", parts[-1]


def _new(path: Path) -> BinaryIO:
    """Create a file that only its owner may read. Raises FileExistsError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _by_descriptor(fd: int) -> Path:
    """A path to the inode of a descriptor, valid even if the file is renamed."""
    return Path(f"/proc/self/fd/{fd}")


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
