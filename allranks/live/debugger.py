"""A post-mortem on one rank: ``pdb`` there, the keyboard here, a pipe in between."""

import io
import linecache
import pdb
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from allranks.base.report import is_user_code


class Talk(io.TextIOBase):
    """The file that ``pdb`` reads from and writes to, at the rank's end of the pipe."""

    def __init__(self, send: Callable[[tuple], None], conn: Connection) -> None:
        self._send, self._conn, self._text = send, conn, ""

    def write(self, text: str) -> int:
        """Keep text until it is clear whether it is a prompt."""
        self._text += text
        return len(text)

    def flush(self) -> None:
        """Send all whole lines, which cannot be a prompt."""
        lines, newline, self._text = self._text.rpartition("\n")
        if newline:
            self._send(("say", lines + newline))

    def readline(self, _size: int = -1) -> str:
        """Ask the reader for a line; "" ends the session."""
        self.flush()
        prompt, self._text = self._text, ""
        self._send(("ask", prompt))
        return self._conn.recv()


class _Debugger(pdb.Pdb):
    """``pdb`` on frames that have ended: nothing can be continued or stepped."""

    def __init__(self, talk: Talk) -> None:
        super().__init__(stdin=talk, stdout=talk, nosigint=True, readrc=False)
        self.use_rawinput = False
        self.reset()

    def canonic(self, filename: str) -> str:
        """Return the name of a cell as it is; it is no file of the working folder."""
        in_cell = filename in linecache.cache and len(linecache.cache[filename]) > 1
        in_cell = in_cell and linecache.cache[filename][1] is None
        return filename if in_cell else super().canonic(filename)


def post_mortem(error: BaseException | None, talk: Talk) -> bytes:
    """Let the reader look at the frames in which a rank failed.

    Raises:
        LookupError: if this rank has not failed in the last cell.
    """
    from allranks.live import jobs

    if error is None:
        raise LookupError("no exception")
    trace = error.__traceback__
    while trace.tb_next and not is_user_code(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next  # the engine's frames say nothing about the cell
    talk.write("".join(traceback.format_exception_only(error)))
    _Debugger(talk).interaction(None, trace)
    talk.flush()
    return jobs.pack(None)
