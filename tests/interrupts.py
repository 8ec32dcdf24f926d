"""Exceptions as signal handlers raise them: at every moment at which Python would run one.

Python looks for signals after a call of C, at the beginning of a function and where a loop begins anew. Here
that is played by a trace: what it raises comes out of the very same places, and every run can be repeated.
"""

import dis
import gc
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import semel

HOME = str(Path(semel.__file__).parent)
LOOKS = {
    dis.opmap[name]
    for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD")
    if name in dis.opmap
}
RESUME = dis.opmap["RESUME"]
CALLS = LOOKS - {RESUME, dis.opmap["JUMP_BACKWARD"]}
# Where a generator goes on after `yield from`, Python does not look.
AFTER_YIELD_FROM = 2


class Interrupt(BaseException):
    """What a handler raises, as for Ctrl-C."""


class TimeLimit(Exception):
    """What a handler raises, as for a soft time limit."""


class Interrupted:
    """Calls a function and raises an error at one moment of it."""

    def __init__(self, error: type[BaseException], moment: int) -> None:
        self._error = error
        self._left = moment
        self._last: dict[FrameType, int] = {}
        self._entered: dict[FrameType, bool] = {}
        self.place = ""

    def call(self, function: Callable[[], Any]) -> Any:
        """What the function gives; or what it raises, which may be the interruption."""
        # What the collector runs is another call's, and Python swallows what is raised there.
        gc.disable()
        sys.settrace(self._enter)
        try:
            return function()
        finally:
            sys.settrace(None)
            gc.enable()
            self._last.clear()
            self._entered.clear()

    @property
    def came(self) -> bool:
        """Whether there was such a moment."""
        return bool(self.place)

    def _enter(self, frame: FrameType, _event: str, _value: Any) -> Any:
        back = frame.f_back
        if back in self._last and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            # A call from Python to Python, after which it does not look.
            self._entered[back] = True
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        code = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
        if code[:1] != bytes([RESUME]) or code[1] & 3 < AFTER_YIELD_FROM:
            self._last[frame] = RESUME
        return self._step

    def _step(self, frame: FrameType, event: str, _value: Any) -> Any:
        if event == "exception":  # after a call that raises it does not look
            self._last.pop(frame, None)
        if event != "opcode":
            return self._step
        last = self._last.get(frame)
        inside = self._entered.pop(frame, False)
        self._last[frame] = frame.f_code.co_code[frame.f_lasti]
        if last in LOOKS and not (last in CALLS and inside):
            self._left -= 1
            if self._left == 0:
                self.place = f"{frame.f_code.co_filename.removeprefix(HOME)}:{frame.f_lineno}"
                raise self._error
        return self._step
