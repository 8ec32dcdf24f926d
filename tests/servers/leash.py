"""Become another program, one that ends when the process that started it ends, however that ended.

python -I -S leash.py PARENT SIGNAL USER PROGRAM ARGUMENT...

PARENT is the process to follow; the kernel sends SIGNAL when the thread of it that started this one is gone.
USER is who to become, or "-". Only Linux has such a signal; elsewhere the program is started without.
"""

# Everything is imported before the change of user, who may not be allowed to read where Python lies.
import ctypes
import os
import pwd
import sys

PR_SET_PDEATHSIG = 1


def become(user: str) -> None:
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def follow(parent: int, signal: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal)
    if os.getppid() != parent:  # it went before the kernel was asked
        sys.exit("whoever asked for this server is gone")


def main(parent: str, signal: str, user: str, *program: str) -> None:
    if user != "-":
        become(user)
    if sys.platform == "linux":
        follow(int(parent), int(signal))  # a change of user after it would undo it
    os.execv(program[0], program)


if __name__ == "__main__":
    main(*sys.argv[1:])
