"""Keeps one command of a slot alive beyond its worker, for a while and no longer (B: ST-09, F-01; 'no orphan').

Started by :mod:`slotwise.runtime.kept` as a plain script, ``python -I -S keeper.py NAME``: one small process a
command, so it imports next to nothing. It leads a session, and the command is its child in the same group. It notes
the command's process id in ``NAME.pid`` and, at the end, its exit code in ``NAME.exit`` (minus the number of a signal
that ended it), beside each other in the slot's directory; a worker that comes later finds there what it missed.

The command dies with its keeper (Linux: parent-death signal). The keeper watches the lock that its worker holds for
life: when that has been free for the orphan timeout, it ends the group, all that carries the slot's mark, and the
slot's directory. A worker that is merely stopped keeps its lock, and nothing happens.

What to do comes in on standard input (as ``marshal`` of a dict, see ``_Order``), so that no secret is on a command
line or on disk; the answer is one line on standard output: ``pid N`` or ``error TEXT``."""

import fcntl
import marshal
import os
import select
import signal
import sys
import time
from collections.abc import Callable

_POLL_S = 1.0
_ENDING_POLL_S = 0.25
_PR_SET_PDEATHSIG = 1
_MARK = b"SLOT_DIRECTORY="


class _Order:
    """What to run. ``owner``: the worker's process id. ``timeout_s``: how long the lock may be free; 0: end at once and
    without grace when the owner does. ``grace_s``: between SIGTERM and SIGKILL at an orphan's end.
    """

    def __init__(self, read: dict[str, object]) -> None:
        self.argv: list[str] = read["argv"]  # type: ignore[assignment]
        self.env: dict[str, str] = read["env"]  # type: ignore[assignment]
        self.cwd: str = read["cwd"]  # type: ignore[assignment]
        self.stdout: str = read["stdout"]  # type: ignore[assignment]
        self.stderr: str = read["stderr"]  # type: ignore[assignment]
        self.keep_stdin: bool = read["keep_stdin"]  # type: ignore[assignment]
        self.name: str = read["name"]  # type: ignore[assignment]
        self.directory: str = read["directory"]  # type: ignore[assignment]
        self.lock: str = read["lock"]  # type: ignore[assignment]
        self.mark: str = read["mark"]  # type: ignore[assignment]
        self.owner: int = read["owner"]  # type: ignore[assignment]
        self.timeout_s: float = read["timeout_s"]  # type: ignore[assignment]
        self.grace_s: float = read["grace_s"]  # type: ignore[assignment]


def main() -> None:
    """Read the order, start the command, and stay with it."""
    text = b""
    while part := os.read(0, 1 << 20):
        text += part
    if not text:
        # The worker has died before it could say what to run.
        os._exit(1)
    order = _Order(marshal.loads(text))
    del text
    try:
        keeper = _Keeper(order)
    except OSError as error:
        os.write(1, f"error {error}".encode())
        os._exit(1)
    os.write(1, f"pid {keeper.child}".encode())
    # The worker reads to the end of these.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    order.env.clear()
    try:
        keeper.watch()
    except BaseException as error:
        # A bug, or a full disk. The group must not live on without anybody who watches it.
        os.write(2, f"keeper of {order.name} failed: {error!r}\n".encode())
        os.killpg(0, signal.SIGKILL)


class _Keeper:
    """The command ``child``, and the watch over it. Raises OSError when the command cannot be started."""

    def __init__(self, order: _Order) -> None:
        self._order = order
        # Opened once: a lock file that somebody makes anew later belongs to a worker that knows nothing of this slot.
        self._lock = os.open(order.lock, os.O_RDWR)
        self._ended = False
        wake, self._wake_up = os.pipe()
        os.set_blocking(self._wake_up, False)
        signal.set_wakeup_fd(self._wake_up, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wakes = [wake]
        self._wake = wake
        self._owner_end = _process_end(order.owner) if order.timeout_s == 0 else None
        if self._owner_end is not None:
            self._wakes.append(self._owner_end)
        self._stdin = -1
        self.child = self._start()
        # Only now: until here these end the keeper itself, and with it the command. The command has them by default.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._note("pid", self.child)

    # ------------------------------------------------------------------------------------------- the command

    def _start(self) -> int:
        order = self._order
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        stdout = os.open(order.stdout, flags, 0o666)
        stderr = stdout if order.stderr == order.stdout else os.open(order.stderr, flags, 0o666)
        if order.keep_stdin:
            stdin, self._stdin = os.pipe()
        else:
            stdin = os.open(os.devnull, os.O_RDONLY)
        failure, says_failure = os.pipe()
        keeper = os.getpid()
        child = os.fork()
        if child == 0:
            try:
                _die_with(keeper)
                for number, descriptor in enumerate((stdin, stdout, stderr)):
                    os.dup2(descriptor, number)
                # Python ignores these; the command expects them as they are by default.
                for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(ignored, signal.SIG_DFL)
                os.chdir(order.cwd)
                os.execvpe(order.argv[0], order.argv, order.env)
            except BaseException as error:
                os.write(says_failure, str(error).encode(errors="replace"))
            finally:
                os._exit(127)
        for descriptor in {stdin, stdout, stderr, says_failure}:
            os.close(descriptor)
        # All descriptors here close on exec: without a failure there is nothing to read.
        text = os.read(failure, 4096)
        os.close(failure)
        if text:
            os.waitpid(child, 0)
            raise OSError(text.decode())
        return child

    def _note(self, kind: str, number: int) -> None:
        """Write a number into ``NAME.<kind>``, whole or not at all."""
        path = f"{self._order.directory}/{self._order.name}.{kind}"
        descriptor = os.open(f"{path}.partial", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(descriptor, b"%d\n" % number)
        os.close(descriptor)
        os.replace(f"{path}.partial", path)

    def _reap(self) -> bool:
        """Whether the command has ended; the first time its code is noted."""
        if not self._ended:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                self._ended = True
                try:
                    self._note("exit", os.waitstatus_to_exitcode(status))
                except OSError as error:
                    # The directory is gone, or the disk is full; the worker will take it for killed.
                    os.write(2, f"cannot note the exit of {self._order.name}: {error}\n".encode())
        return self._ended

    # ------------------------------------------------------------------------------------------- the watch

    def watch(self) -> None:
        """Until the command has ended and somebody is there to clean up, or nobody has come to own it in time."""
        free_since: float | None = None
        while True:
            ended = self._reap()
            now = time.monotonic()
            if self._owned():
                if ended:
                    return
                free_since = None
                self._sleep(_POLL_S)
                continue
            if free_since is None:
                free_since = now
            left_s = free_since + self._order.timeout_s - now
            if left_s <= 0:
                self._end()
                return
            self._sleep(min(left_s, _POLL_S))

    def _owned(self) -> bool:
        """Whether a worker holds the lock. It is taken for no longer than it takes to see that."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return False

    def _sleep(self, seconds: float) -> None:
        """Until the command has ended, the owner has (if that matters at once), or the time is over."""
        ready, _, _ = select.select(self._wakes, [], [], seconds)
        if self._wake in ready:
            os.read(self._wake, 4096)
        if self._owner_end is not None and self._owner_end in ready:
            # It stays readable from now on.
            self._wakes.remove(self._owner_end)
            self._owner_end = None

    # ------------------------------------------------------------------------------------------- an orphan's end

    def _end(self) -> None:
        order = self._order
        if order.timeout_s > 0:
            deadline = time.monotonic() + order.grace_s
            os.killpg(0, signal.SIGTERM)
            # The slot's other keepers do the same at the same time. None cuts the grace of another's command short.
            while time.monotonic() < deadline and not (self._reap() and not _marked(order.mark)):
                self._sleep(_ENDING_POLL_S)
        for pid in _marked(order.mark):
            _kill(pid)
        if not self._reap():
            # Not marked any more, or not readable: it is a child nevertheless, so its id is its own.
            _kill(self.child)
        deadline = time.monotonic() + _POLL_S
        while not self._reap() and time.monotonic() < deadline:
            self._sleep(_ENDING_POLL_S)
        self._remove()
        # What is left of the group, this process with it.
        os.killpg(0, signal.SIGKILL)

    def _remove(self) -> None:
        """Remove the slot's directory and, after the last slot, the worker's, unless a worker has come after all."""
        import shutil

        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        directory = self._order.directory
        shutil.rmtree(directory, ignore_errors=True)
        self._remove_links()
        try:
            os.rmdir(os.path.dirname(directory))
        except OSError:
            return
        shutil.rmtree(os.path.dirname(self._order.lock), ignore_errors=True)

    def _remove_links(self) -> None:
        """The slot may have been known under another name, a link."""
        folder = os.path.dirname(self._order.directory)
        try:
            for name in os.listdir(folder):
                path = f"{folder}/{name}"
                if os.path.islink(path) and not os.path.exists(path):
                    os.unlink(path)
        except OSError:
            return


def _die_with(keeper: int) -> None:
    """In the command's process: have the kernel kill it when its keeper dies."""
    if sys.platform != "linux":
        return
    # Imported here, in a process that is about to become another, it costs the keeper nothing.
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        # It has died before it could be asked for.
        os._exit(127)


def _process_end(pid: int) -> int | None:
    """A descriptor that becomes readable when ``pid`` ends, where there is such a thing."""
    opens: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
    try:
        return opens(pid) if opens is not None else None
    except OSError:
        # Gone already (the lock tells), or not allowed here.
        return None


def _marked(value: str) -> list[int]:
    """The living processes of this user whose environment has the slot's mark. Empty where there is no ``/proc``."""
    mark = _MARK + os.fsencode(value)
    found = []
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for pid in pids:
        try:
            descriptor = os.open(f"/proc/{pid}/environ", os.O_RDONLY)
        except OSError:
            continue
        try:
            environ = b""
            while part := os.read(descriptor, 1 << 16):
                environ += part
        except OSError:
            continue
        finally:
            os.close(descriptor)
        if mark in environ.split(b"\0"):
            found.append(pid)
    return found


def _kill(pid: int) -> None:
    try:  # noqa: SIM105 - contextlib would be the largest module here
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


if __name__ == "__main__":
    main()
    # Nothing is left to flush or to free.
    os._exit(0)
