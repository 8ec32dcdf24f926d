"""Where the driver's errors, and the server's, become those of semel."""

import re

from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import TimeoutError as DriverTimeout

from semel import errors
from semel.stores.redis.address import Node
from semel.stores.redis.protocol import RedisRequest

# How Redis 6 tells that a command inside a script was refused: "... @user_script: 12: -READONLY You ...".
INSIDE = re.compile(r"@user_script: ?\d+: -?([A-Z]{2,}) ")
# How Redis 7 does, where it is for lack of permission.
FORBIDDEN = "user executing the script can't"

FULL = (
    "its memory is full, and nothing was written: raise maxmemory, or let records expire sooner. Leave "
    "maxmemory-policy at noeviction, or what semel remembers is forgotten"
)
NODE = (errors.InvalidOption, "it is a node of a cluster: add cluster=yes to the URL")
# What a server refuses in these words it has not begun.
REFUSALS: dict[str, tuple[type[errors.SemelError], str]] = {
    "ASK": NODE,
    "BUSY": (errors.StoreUnavailable, "a script of somebody's runs there without end; SCRIPT KILL ends it"),
    "CLUSTERDOWN": (errors.StoreUnavailable, "part of the cluster is down; see CLUSTER INFO"),
    "CROSSSLOT": NODE,
    "DENIED": (errors.NotPermitted, "it lets nobody in without a password (protected mode)"),
    "LATE": (errors.StoreUnavailable, "it was not made, and may be sent again"),
    "LOADING": (errors.StoreUnavailable, "it is still reading its data; try again when it has"),
    "MASTERDOWN": (errors.StoreUnavailable, "it is a replica without its primary"),
    "MISCONF": (errors.StoreUnavailable, "it cannot save to its disk; see its log"),
    "MOVED": NODE,
    "NOAUTH": (errors.NotPermitted, "it wants a password: redis://user:password@host"),
    "NOEND": (errors.UsageError, "give it one with set= or once=, which say when its life ends"),
    "NOPERM": (errors.NotPermitted, "its user may not do that; give it the commands, keys and channels"),
    "NOREPLICAS": (errors.StoreUnavailable, "it has fewer replicas than min-replicas-to-write asks for"),
    "OOM": (errors.StoreUnavailable, FULL),
    "READONLY": (errors.StoreUnavailable, "it is a replica: the URL has to lead to the primary"),
    "TRYAGAIN": (errors.StoreUnavailable, "the slot of these keys is being moved; try again"),
    "WRONGPASS": (errors.NotPermitted, "the user or the password in the URL is wrong"),
    "WRONGTYPE": (
        errors.WrongSchema,
        "somebody else's keys are in the way: choose another prefix with ?prefix=...",
    ),
}


SILENT = "within {0:g} s; timeout= in the URL says how long is waited"


class BrokenConnection(errors.StoreUnavailable):
    """A connection broke under something that only reads, so another one may do."""


def code(error: Exception) -> str:
    """The word by which Redis tells its errors apart."""
    inside = INSIDE.search(str(error))
    if inside:
        return inside[1]
    if FORBIDDEN in str(error):
        return "NOPERM"
    return getattr(error, "status_code", None) or str(error).split(" ", 1)[0]


def refusal(error: Exception, node: Node, *, writes: bool) -> errors.SemelError:
    """What to raise for an error that the server answered."""
    kind, advice = REFUSALS.get(code(error), (None, ""))
    if kind is not None:
        return kind(f"Redis at {node} refused: {error}; {advice}")
    if "unknown command" in str(error).lower():
        return errors.StoreUnavailable(f"Redis at {node} lacks a command that semel needs: {error}")
    if "cluster support disabled" in str(error):
        return errors.InvalidOption(f"Redis at {node} is no cluster: leave cluster=yes out of the URL")
    if writes:
        return errors.StoreOutcomeUnknown(f"Redis at {node} failed half-way: {error}")
    return errors.StoreUnavailable(f"Redis at {node} failed: {error}")


def unreachable(error: Exception, node: Node, timeout: float) -> errors.SemelError:
    """What to raise where no connection was made, so that nothing was sent."""
    if OUT_OF_RANGE in str(error):
        return errors.InvalidOption(
            f"Redis at {node} has no database of the number in the URL: leave it out, or choose one below "
            "what CONFIG GET databases says, which is 16 as a rule"
        )
    if isinstance(error, AuthenticationError | ResponseError):
        known = refusal(error, node, writes=False)
        return known if code(error) in REFUSALS else errors.NotPermitted(f"{known}; see the URL's password")
    reason = f"no connection {SILENT.format(timeout)}" if _silent(error) else error
    return errors.StoreUnavailable(
        f"Redis at {node} cannot be reached ({reason}): check that it runs, that the host and port in the "
        "URL are right, and that no firewall is between"
    )


OUT_OF_RANGE = "DB index is out of range"


def lost(error: Exception, request: RedisRequest, timeout: float, *, answered: bool) -> errors.SemelError:
    """What to raise where something was sent, and its answer did not come."""
    node = request.node
    if code(error) in REFUSALS and not answered:  # it came, and says that nothing was done
        return refusal(error, node, writes=request.writes)
    reason = str(error) or type(error).__name__
    if "max number of clients" in reason:  # it is said in place of listening
        return errors.StoreUnavailable(f"Redis at {node} has as many clients as maxclients lets it")
    silent = _silent(error)
    if silent:
        reason = f"none came {SILENT.format(timeout)}"
    if request.writes:
        return errors.StoreOutcomeUnknown(f"the answer of Redis at {node} was lost: {reason}")
    kind = errors.StoreUnavailable if silent else BrokenConnection
    return kind(f"Redis at {node} did not answer: {reason}")


def _silent(error: Exception) -> bool:
    return isinstance(error, TimeoutError | DriverTimeout)
