"""What is sent to which server, and what is made of the replies: no server takes part."""

from typing import Any

import msgspec
import pytest
from redis.crc import key_slot
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as Broken

from semel import errors
from semel.core.clock import Clock
from semel.core.commands import (
    ABSENT,
    Applied,
    Batch,
    Cancelled,
    Found,
    Get,
    Many,
    Page,
    Put,
    Query,
    Refused,
    Time,
    Transact,
)
from semel.stores.redis.interpreter import WRITES_PER_CALL, Interpreter
from semel.stores.redis.router import Router
from semel.stores.redis.server import ErrorReply, Node, code, lost, parse, refusal, unreachable
from semel.stores.servertime import FRESH_SECONDS
from semel.testing.conformance import ENTRIES, NOTES, THINGS

HOME = Node("h", 1)
A, B = Node("a", 1), Node("b", 2)
# One half of the slots each.
SLOTS = [[0, 8191, [b"a", 1, b"id"]], [8192, 16383, [b"b", 2, b"id"], [b"replica", 3, b"id"]]]
STAMP = [b"dev", b"1", b"server"]
NO_SCRIPT = ErrorReply("NOSCRIPT No matching script.")


def head(*outcomes):
    """A reply of write.lua: for each write 1 if it was made, else 0 or the fields of the item."""
    each = [(1, []) if one == 1 else (0, one or []) for one in outcomes]
    return msgspec.msgpack.encode([5.0, each])


MADE, REFUSED, NOTHING = head(1), head(0), head(0)


def mark(key):
    return Put(THINGS, key, {"gone_at": 9}, ABSENT)


def on(node):
    """A key of a scope that this node has."""
    scopes = (f"dev/{number}/" for number in range(99))
    return next(scope + "k" for scope in scopes if (key_slot(scope.encode()) <= 8191) is (node == A))


class Script:
    """A dialogue in which the servers' lines are given beforehand."""

    def __init__(self, url="redis://h:1", opened=True, slots=True, clock=None):
        self.talk = Interpreter(parse(url), "dev", clock or Clock())
        self.talk._open = opened
        if slots and self.talk.address.cluster:
            self.refresh(SLOTS)
        self.sent = []

    def refresh(self, slots):
        requests = self.talk.refresh()
        next(requests)
        with pytest.raises(StopIteration):
            requests.send([slots])

    def play(self, command, *lines):
        dialogue, script = self.talk.perform(command), list(lines)
        answer: Any = None
        try:
            while True:
                asked = dialogue.throw(answer) if isinstance(answer, Exception) else dialogue.send(answer)
                self.sent.append(asked)
                answer = script.pop(0)
        except StopIteration as end:
            assert script == []
            return end.value

    def nodes(self):
        return [exchange.node for exchange in self.sent]


def clustered(**options):
    return Script("redis://h:1?cluster=yes", **options)


# Opening


def test_the_first_command_looks_at_the_stamp():
    script = Script(opened=False)
    assert script.play(mark("k"), [STAMP], [MADE]) == Applied(5.0)
    assert b"semel:meta" in script.sent[0].data
    assert not script.sent[0].writes
    assert script.play(mark("k"), [REFUSED]) == Refused(5.0, None)


def test_a_new_prefix_is_stamped():
    script = Script(opened=False)
    assert script.play(mark("k"), [[None] * 3], [1, 1, 1], [STAMP], [MADE]) == Applied(5.0)
    assert script.sent[1].data.count(b"HSETNX") == 3


@pytest.mark.parametrize(
    ("stamp", "error"),
    [
        ([b"prod", b"1", b"server"], errors.WrongEnvironment),
        ([b"dev", b"2", b"server"], errors.SchemaTooNew),
        ([b"dev", b"x", b"server"], errors.WrongSchema),
        ([None, b"1", b"server"], errors.WrongSchema),
        ([b"dev", b"1", b"cluster"], errors.WrongSchema),
    ],
)
def test_another_stamp_is_refused_each_time(stamp, error):
    script = Script(opened=False)
    for _ in range(2):
        with pytest.raises(error):
            script.play(mark("k"), [stamp])


# Scripts


def test_a_server_that_lacks_a_script_is_sent_its_text():
    script = Script()
    assert script.play(mark("k"), [NO_SCRIPT], [MADE]) == Applied(5.0)
    first, second = (exchange.data for exchange in script.sent)
    assert (first.count(b"EVALSHA"), second.count(b"EVAL\r\n"), second.count(b"EVALSHA")) == (1, 1, 0)


def test_of_a_batch_only_what_found_no_script_is_sent_again():
    script = Script()
    many = Batch(tuple(mark(str(number)) for number in range(3 * WRITES_PER_CALL)))
    made = head(*[1] * WRITES_PER_CALL)
    reply = script.play(many, [made, NO_SCRIPT, NO_SCRIPT], [made, made])
    assert len(reply.replies) == 3 * WRITES_PER_CALL
    assert [exchange.count for exchange in script.sent] == [3, 2]


def test_a_write_that_failed_otherwise_is_not_sent_again():
    script = Script()
    with pytest.raises(errors.StoreOutcomeUnknown):
        script.play(mark("k"), [ErrorReply("ERR user_script:1: something new")])


def test_writes_are_marked_as_such_and_readings_are_not():
    script = Script()
    script.play(mark("k"), [MADE])
    script.play(Get(THINGS, "k"), [NOTHING])
    assert [exchange.writes for exchange in script.sent] == [True, False]


# Replicas


def test_a_write_is_confirmed_in_the_same_round_trip():
    script = Script("redis://h:1?wait_replicas=2&wait_timeout=0.5")
    assert script.play(mark("k"), [MADE, 2]) == Applied(5.0)
    [exchange] = script.sent
    assert exchange.count == 2
    assert exchange.data.endswith(b"*3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$3\r\n500\r\n")


@pytest.mark.parametrize("reply", [MADE, REFUSED])
@pytest.mark.parametrize("replicas", [0, 1, ErrorReply("ERR")])
def test_too_few_replicas_leave_it_in_doubt_whatever_the_answer(reply, replicas):
    with pytest.raises(errors.StoreOutcomeUnknown, match="wait_replicas asks for 2"):
        Script("redis://h:1?wait_replicas=2").play(mark("k"), [reply, replicas])


def test_what_was_refused_needs_no_replicas():
    with pytest.raises(errors.StoreUnavailable, match="replica"):
        Script("redis://h:1?wait_replicas=2").play(
            mark("k"), [ErrorReply("READONLY You can't write against a read only replica."), 0]
        )


# Failures


def test_a_batch_of_which_a_part_was_made_is_in_doubt():
    many = Batch(tuple(mark(str(number)) for number in range(2 * WRITES_PER_CALL)))
    full = ErrorReply("OOM command not allowed")
    with pytest.raises(errors.StoreOutcomeUnknown, match="part of it was written"):
        Script().play(many, [head(*[1] * WRITES_PER_CALL), full])
    with pytest.raises(errors.StoreUnavailable, match="maxmemory"):
        Script().play(many, [full, full])


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("BUSY Redis is busy running a script", errors.StoreUnavailable),
        ("CLUSTERDOWN Hash slot not served", errors.StoreUnavailable),
        ("CROSSSLOT Keys in request don't hash to the same slot", errors.InvalidOption),
        ("LOADING Redis is loading the dataset in memory", errors.StoreUnavailable),
        ("MISCONF Redis is configured to save RDB snapshots", errors.StoreUnavailable),
        ("NOAUTH Authentication required.", errors.NotPermitted),
        ("NOPERM this user has no permissions", errors.NotPermitted),
        ("NOREPLICAS Not enough good replicas to write.", errors.StoreUnavailable),
        ("OOM command not allowed when used memory > 'maxmemory'.", errors.StoreUnavailable),
        ("READONLY You can't write against a read only replica.", errors.StoreUnavailable),
        ("WRONGPASS invalid username-password pair", errors.NotPermitted),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", errors.WrongSchema),
        (
            "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -READONLY You",
            errors.StoreUnavailable,
        ),
        ("ERR unknown command 'EVALSHA'", errors.StoreUnavailable),
        ("ERR max number of clients reached", errors.StoreUnavailable),
        ("ERR user_script:1: something new", errors.StoreOutcomeUnknown),
    ],
)
def test_every_refusal_has_its_error_and_a_next_step(said, kind):
    raised = refusal(ErrorReply(said), HOME, writes=True)
    assert type(raised) is kind
    assert "h:1" in str(raised)


def test_every_error_is_known_by_its_word():
    assert code(AuthenticationError("You can't", status_code="WRONGPASS")) == "WRONGPASS"
    assert code(ErrorReply("OOM command not")) == "OOM"
    assert code(ErrorReply("The user executing the script can't run this command")) == "NOPERM"


def test_a_lost_write_is_unknown_and_a_lost_read_is_not():
    broken = Broken("closed")
    assert type(lost(broken, HOME, 10, writes=True)) is errors.StoreOutcomeUnknown
    assert isinstance(lost(broken, HOME, 10, writes=False), errors.StoreUnavailable)
    assert "within 10 s" in str(lost(TimeoutError(), HOME, 10, writes=True))


def test_who_is_not_let_in_is_told_why():
    wrong = AuthenticationError("invalid username-password pair", status_code="WRONGPASS")
    assert type(unreachable(wrong, HOME, 10)) is errors.NotPermitted
    none = AuthenticationError("AUTH <password> called without any password configured", status_code="ERR")
    assert type(unreachable(none, HOME, 10)) is errors.NotPermitted
    assert type(unreachable(Broken("refused"), HOME, 10)) is errors.StoreUnavailable


# The whole of a table


def found(text):
    flat = [b"text", text, b"gone_at", b"1e12"]
    return head(flat)


def name(key):
    return f"semel:{THINGS.name}:{{/}}{{{key}}}".encode()


TIME = [[b"5", b"0"]]


def test_what_a_page_has_no_room_for_is_in_its_cursor():
    script = Script()
    page = script.play(Query(THINGS, limit=1), TIME, [[b"7", [name("a"), name("b")]]], [found(b"A")])
    assert [item["text"] for item in page.items] == ["A"]
    assert msgspec.json.decode(page.after) == ["h:1", 7, name("b").decode(), [""]]
    page = script.play(Query(THINGS, limit=1, after=page.after), TIME, [found(b"B")])
    assert [item["text"] for item in page.items] == ["B"]
    page = script.play(Query(THINGS, limit=1, after=page.after), TIME, [[b"0", []]])
    assert (page.items, page.after) == ((), None)


def test_a_key_that_is_found_twice_is_on_the_page_once():
    scans = [[b"7", [name("a"), name("a"), b"semel:meta"]]], [[b"0", [name("a"), name("b")]]]
    page = Script().play(Query(THINGS), TIME, scans[0], [found(b"A")], scans[1], [found(b"B")])
    assert [item["id"] for item in page.items] == ["a", "b"]
    assert page.after is None


def test_where_little_is_found_the_steps_grow():
    script = Script()
    script.play(Query(THINGS, limit=5), TIME, *[[[b"%d" % left, []]] for left in range(6, -1, -1)])
    steps = [int(exchange.data.split(b"\r\n")[-2]) for exchange in script.sent[1:]]
    assert steps == [10, 40, 200, 1000, 5000, 10_000, 10_000]


# A cluster


def test_slots_are_asked_for_once():
    script = clustered(slots=False, opened=False)
    script.play(mark(on(A)), [SLOTS], [[b"dev", b"1", b"cluster"]], [MADE])
    script.play(mark(on(B)), [MADE])
    assert script.nodes() == [HOME, script.talk.owner(b"semel:meta"), A, B]


def test_a_slot_that_moved_is_followed_and_remembered():
    script, key = clustered(), on(A)
    moved = ErrorReply(f"MOVED {key_slot(key[:-1].encode())} b:2")
    assert script.play(mark(key), [moved], [MADE]) == Applied(5.0)
    script.play(mark(key), [REFUSED])
    assert script.nodes() == [A, B, B]


def test_a_slot_that_is_moving_is_asked_for_where_it_goes():
    script, key = clustered(), on(A)
    asked = ErrorReply(f"ASK {key_slot(key[:-1].encode())} b:2")
    assert script.play(mark(key), [asked], [b"OK", MADE]) == Applied(5.0)
    assert script.nodes() == [A, B]
    assert script.sent[1].data.startswith(b"*1\r\n$6\r\nASKING\r\n")
    script.play(mark(key), [REFUSED])
    assert script.nodes()[-1] == A


def test_a_node_that_is_gone_is_replaced_by_the_one_that_has_its_slots():
    script = clustered()
    away = errors.StoreUnavailable("gone")
    all_b = [[0, 16383, [b"b", 2, b"id"]]]
    assert script.play(mark(on(A)), away, away, [all_b], [MADE]) == Applied(5.0)
    assert script.nodes() == [A, A, B, B]


def test_a_node_that_is_gone_with_its_slots_is_unavailable():
    away = errors.StoreUnavailable("gone")
    with pytest.raises(errors.StoreUnavailable, match="gone"):
        clustered().play(mark(on(A)), away, away, [SLOTS])


def test_a_lost_answer_is_never_sent_again_by_itself():
    script = clustered()
    with pytest.raises(errors.StoreOutcomeUnknown):
        script.play(mark(on(A)), errors.StoreOutcomeUnknown("lost"))
    assert len(script.sent) == 1


def test_a_batch_goes_to_every_node_once_and_comes_back_in_order():
    script = clustered()
    first, second = on(A), on(B)
    reply = script.play(Batch((mark(first), mark(second), mark(first))), [head(1, 0)], [MADE])
    assert reply == Many((Applied(5.0), Applied(5.0), Refused(5.0, None)))
    assert script.nodes() == [A, B]


def test_a_batch_whose_second_node_is_gone_is_in_doubt():
    away = errors.StoreUnavailable("gone")
    with pytest.raises(errors.StoreOutcomeUnknown, match="part of it was written"):
        clustered().play(Batch((mark(on(A)), mark(on(B)))), [MADE], away, [SLOTS])


def test_slots_that_no_node_has_are_unavailable_and_asked_for_again():
    script = clustered()
    script.refresh([SLOTS[1]])
    with pytest.raises(errors.StoreUnavailable, match="slot"):
        script.play(mark(on(A)))
    script.play(mark(on(B)), [SLOTS], [MADE])
    assert script.nodes() == [HOME, B]


def test_a_node_without_a_name_is_the_one_that_was_asked():
    script = clustered(slots=False)
    script.refresh([[0, 16383, [b"", 7, b"id"]]])
    assert script.talk.owner(b"k") == Node("h", 7)


def test_a_page_of_a_cluster_that_has_changed_is_refused():
    script = clustered()
    with pytest.raises(errors.UsageError, match="start from the first page"):
        script.play(Query(THINGS, after='["c:9",0,"",[]]'))


def test_a_transaction_in_one_scope_is_one_exchange():
    script = clustered()
    one, other = mark("dev/acme/a"), Put(ENTRIES, "dev/acme/b", {"gone_at": 9, "text": "x"}, ABSENT, "s")
    assert script.play(Transact((one, other)), [head(1, 1)]) == Applied(5.0)
    assert script.play(Transact((one, other)), [head(0, 1)]) == Cancelled(5.0, (Refused(5.0, None), None))
    assert [exchange.count for exchange in script.sent] == [1, 1]


def test_a_transaction_over_scopes_is_sent_to_no_node():
    """Also where chance has put both scopes on one."""
    script = clustered()
    for other in ("dev/other/b", "no scope"):
        with pytest.raises(errors.UsageError, match="limited to one scope"):
            script.play(Transact((mark("dev/acme/a"), mark(other))))
    assert script.sent == []


# Indexes


def page(*entries):
    """The reply of page.lua, with an item for each entry."""
    fields = [[b"text", b"x", b"gone_at", b"9"] for _ in entries]
    return [b"5", [entry + b"\0\0semel:conformance_entries:{/}{a}:s" for entry in entries], fields]


def test_a_page_of_an_index_is_one_exchange():
    script = Script()
    item = {"owner": "a", "place": "s", "text": "x", "gone_at": 9}
    assert script.play(Query(ENTRIES, "x", index="text"), [page(b"")]) == Page(5.0, (item,), None)
    empty = [b"5", [b"\0\0semel:conformance_entries:{/}{a}:s"], [[]]]
    assert script.play(Query(ENTRIES, "x", index="text"), [empty]) == Page(5.0, (), None)
    assert [exchange.count for exchange in script.sent] == [1, 1]


def test_a_value_without_a_scope_is_looked_for_on_every_node_of_a_cluster():
    script = clustered()
    keys = [b"semel:conformance_entries/text:{dev/%d/}x" % number for number in range(3)]
    scans = [[b"7", keys[:1]]], [[b"0", keys[1:2]]], [[b"0", keys[2:]]]
    owners = [script.talk.owner(key) for key in keys]
    by_node = [[page(b"")] * owners.count(node) for node in dict.fromkeys(owners)]
    found = script.play(Query(ENTRIES, "x", index="text"), *scans, *by_node)
    assert script.nodes()[:3] == [A, A, B]
    assert (len(found.items), found.after) == (3, None)


def test_a_value_with_a_scope_is_looked_for_on_one_node():
    script = clustered()
    key = on(B)
    script.play(Query(ENTRIES, key, index="text"), [[b"5", [], []]])
    assert script.nodes() == [B]


def test_a_page_without_entries_has_the_time():
    script = clustered()
    empty = [[b"0", []]]
    assert script.play(Query(ENTRIES, "x", index="text"), empty, empty, TIME) == Page(5.0, (), None)


def test_a_key_of_a_table_is_no_number():
    with pytest.raises(errors.UsageError, match="is a text, not 7"):
        Script().play(Query(NOTES, 7))


# Time


class Stepping(Clock):
    """A clock of which only the steps are known."""

    def __init__(self):
        self.passed = 100.0

    def monotonic(self):
        return self.passed


def test_the_time_is_asked_for_once_and_then_told_from_memory():
    clock = Stepping()
    script = Script(clock=clock)
    assert script.talk.time.known() is None
    assert script.play(Time(), TIME) == Found(5.0, None)
    clock.passed += FRESH_SECONDS
    assert script.play(Time()) == Found(5.0 + FRESH_SECONDS, None)
    clock.passed += 1
    assert script.talk.time.known() is None
    assert script.play(Time(), [[b"70", b"500000"]]) == Found(70.5, None)
    assert len(script.sent) == 2


def test_a_cluster_tells_the_time_though_the_node_in_the_url_is_gone():
    script = clustered()
    assert script.play(Time(), TIME) == Found(5.0, None)
    assert script.nodes() == [script.talk.owner(b"semel:meta")]


def test_nothing_is_sent_where_nothing_is_asked():
    """An empty message would never be sent to its end by asyncio, and never let its connection close."""
    address = parse("redis://localhost")
    with pytest.raises(StopIteration) as end:
        next(Router(address).on(address.home, []))
    assert end.value.value == []
