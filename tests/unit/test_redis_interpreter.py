"""What is said to which server, and what is made of the answers: no server takes part."""

from typing import Any

import msgspec
import pytest
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as Broken

from semel import errors
from semel.core.clock import Clock
from semel.core.commands import (
    ABSENT,
    Add,
    After,
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
    Update,
)
from semel.stores.redis.address import Node, parse
from semel.stores.redis.cluster import Router, SlotMap, key_slot
from semel.stores.redis.errors import code, lost, refusal, unreachable
from semel.stores.redis.interpreter import ATTEMPTS, WRITES_PER_CALL, Interpreter
from semel.stores.redis.protocol import RedisRequest
from semel.stores.servertime import FRESH_SECONDS
from semel.testing.conformance import ENTRIES, THINGS

HOME = Node("h", 1)
A, B = Node("a", 1), Node("b", 2)
# One half of the slots each.
SLOTS = [[0, 8191, [b"a", 1, b"id"]], [8192, 16383, [b"b", 2, b"id"], [b"replica", 3, b"id"]]]
STAMP = [b"dev", b"1", None]


def head(*outcomes):
    return msgspec.msgpack.encode([5.0, list(outcomes)])


MADE, REFUSED, NOTHING = head(1), head(0), head(0)


def mark(key):
    return Put(THINGS, key, {"gone_at": 9}, ABSENT)


def on(node):
    """A key that this node has."""
    return next(
        key for key in "xyzuvw" if SlotMap.from_reply(SLOTS, HOME).owner(b"{%s}" % key.encode()) == node
    )


class Script:
    """A dialogue in which the servers' lines are given beforehand."""

    def __init__(self, url="redis://h:1", opened=True, slots=True, clock=None):
        self.talk = Interpreter(parse(url), "dev", clock or Clock())
        self.talk._open = opened
        if slots and self.talk.address.cluster:
            self.talk.slots = SlotMap.from_reply(SLOTS, HOME)
        self.sent = []

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


def test_the_first_command_sees_to_the_stamp():
    script = Script(opened=False)
    assert script.play(mark("k"), [STAMP], [MADE]) == Applied(5.0)
    assert b"semel:meta" in script.sent[0].data
    assert not script.sent[0].writes
    assert script.play(mark("k"), [REFUSED]) == Refused(5.0, None)


@pytest.mark.parametrize(
    ("stamp", "error"),
    [
        ([b"prod", b"1", None], errors.WrongEnvironment),
        ([b"dev", b"2", None], errors.SchemaTooNew),
        ([b"dev", b"x", None], errors.WrongSchema),
        ([None, b"1", None], errors.WrongSchema),
        ([b"dev", b"1", b"scope"], errors.WrongSchema),
    ],
)
def test_another_stamp_is_refused_each_time(stamp, error):
    script = Script(opened=False)
    for _ in range(2):
        with pytest.raises(error):
            script.play(mark("k"), [stamp])


# Scripts


def test_a_server_that_does_not_know_a_script_is_told_it_once():
    script = Script()
    many = Batch(tuple(mark(str(number)) for number in range(3 * WRITES_PER_CALL)))
    unknown = [NoScriptError("No matching script")] * 3
    made = [head(*[1] * WRITES_PER_CALL)] * 3
    assert len(script.play(many, unknown, made).replies) == 3 * WRITES_PER_CALL
    first, second = (exchange.data for exchange in script.sent)
    assert first.count(b"EVALSHA") == 3
    assert (second.count(b"EVAL\r\n"), second.count(b"EVALSHA")) == (1, 2)


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
@pytest.mark.parametrize("replicas", [0, 1, ResponseError("ERR")])
def test_too_few_replicas_leave_it_in_doubt_whatever_the_answer(reply, replicas):
    with pytest.raises(errors.StoreOutcomeUnknown, match="wait_replicas asks for 2"):
        Script("redis://h:1?wait_replicas=2").play(mark("k"), [reply, replicas])


def test_what_was_refused_needs_no_replicas():
    with pytest.raises(errors.StoreUnavailable, match="replica"):
        Script("redis://h:1?wait_replicas=2").play(
            mark("k"), [ReadOnlyError("no", status_code="READONLY"), 0]
        )


# Failures


def test_a_batch_of_which_a_part_was_made_is_in_doubt():
    many = Batch(tuple(mark(str(number)) for number in range(2 * WRITES_PER_CALL)))
    full = ResponseError("OOM command not allowed")
    with pytest.raises(errors.StoreOutcomeUnknown, match="part of it was made"):
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
        ("ERR user_script:1: something new", errors.StoreOutcomeUnknown),
    ],
)
def test_every_refusal_has_its_error_and_a_next_step(said, kind):
    raised = refusal(ResponseError(said), HOME, writes=True)
    assert type(raised) is kind
    assert "h:1" in str(raised)


def test_every_error_is_known_by_its_word():
    assert code(ReadOnlyError("You can't", status_code="READONLY")) == "READONLY"
    assert code(ResponseError("OOM command not")) == "OOM"
    assert code(ResponseError("The user executing the script can't run this command")) == "NOPERM"


def test_what_was_lost_is_told_from_what_was_refused():
    broken, loading = Broken("closed"), BusyLoadingError("loading", status_code="LOADING")
    read, write = RedisRequest(HOME, b"", 1), RedisRequest(HOME, b"", 1, writes=True)
    assert type(lost(broken, write, 10, answered=False)) is errors.StoreOutcomeUnknown
    assert isinstance(lost(broken, read, 10, answered=False), errors.StoreUnavailable)
    assert type(lost(loading, write, 10, answered=False)) is errors.StoreUnavailable
    assert type(lost(loading, write, 10, answered=True)) is errors.StoreOutcomeUnknown
    crowded = Broken("max number of clients reached")
    assert type(lost(crowded, write, 10, answered=False)) is errors.StoreUnavailable
    assert "within 10 s" in str(lost(TimeoutError(), write, 10, answered=False))


def test_who_is_not_let_in_is_told_why():
    wrong = AuthenticationError("invalid username-password pair", status_code="WRONGPASS")
    assert type(unreachable(wrong, HOME, 10)) is errors.NotPermitted
    none = AuthenticationError("AUTH <password> called without any password configured", status_code="ERR")
    assert type(unreachable(none, HOME, 10)) is errors.NotPermitted
    assert type(unreachable(Broken("refused"), HOME, 10)) is errors.StoreUnavailable


# The whole of a table


def found(text):
    flat = [b"text", text, b"gone_at", b"1e12"]
    return [msgspec.msgpack.encode([5.0, [[1, *map(len, flat)]]]), b"".join(flat)]


def name(key):
    return f"semel:{THINGS.name}:{{{key}}}".encode()


TIME = [[b"5", b"0"]]


def test_what_a_page_has_no_room_for_is_in_its_cursor():
    script = Script()
    page = script.play(Query(THINGS, limit=1), TIME, [[b"7", [name("a"), name("b")]]], [found(b"A")])
    assert [item["text"] for item in page.items] == ["A"]
    assert msgspec.json.decode(page.after) == ["h:1", 7, [name("b").decode()]]
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
    meta = SlotMap.from_reply(SLOTS, HOME).owner(b"semel:meta")
    script.play(mark(on(A)), [SLOTS], [STAMP], [MADE])
    script.play(mark(on(B)), [MADE])
    assert script.nodes() == [HOME, meta, A, B]


def test_a_slot_that_moved_is_followed_and_remembered():
    script, key = clustered(), on(A)
    slot = key_slot(b"{%s}" % key.encode())
    moved = MovedError(f"{slot} b:2")
    assert script.play(mark(key), [moved], [MADE]) == Applied(5.0)
    script.play(mark(key), [REFUSED])
    assert script.nodes() == [A, B, B]


def test_a_slot_that_is_moving_is_asked_for_where_it_goes():
    script, key = clustered(), on(A)
    assert script.play(mark(key), [AskError(f"{key_slot(key.encode())} b:2")], [b"OK", MADE]) == Applied(5.0)
    assert script.nodes() == [A, B]
    assert script.sent[1].data.startswith(b"*1\r\n$6\r\nASKING\r\n")
    script.play(mark(key), [REFUSED])
    assert script.nodes()[-1] == A


def test_a_node_that_is_gone_is_replaced_by_who_has_its_slots():
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
    with pytest.raises(errors.StoreOutcomeUnknown, match="part of it was made"):
        clustered().play(Batch((mark(on(A)), mark(on(B)))), [MADE], away, [SLOTS])


def test_a_transaction_of_items_that_lie_apart_is_sent_to_nobody():
    script = clustered()
    with pytest.raises(errors.UsageError, match="share their partition key"):
        script.play(Transact((mark(on(A)), mark(on(B)))))
    assert script.sent == []


def test_slots_that_nobody_has_are_unavailable_and_asked_for_again():
    script = clustered()
    script.talk.slots = SlotMap([])
    with pytest.raises(errors.StoreUnavailable, match="slot"):
        script.play(mark("k"))
    script.play(mark(on(B)), [SLOTS], [MADE])
    assert script.nodes() == [HOME, B]


def test_a_node_without_a_name_is_the_one_that_was_asked():
    assert SlotMap.from_reply([[0, 16383, [b"", 7, b"id"]]], HOME).nodes == [Node("h", 7)]


def test_a_page_of_a_cluster_that_has_changed_is_refused():
    script = clustered()
    with pytest.raises(errors.UsageError, match="begin again"):
        script.play(Query(THINGS, after='["c:9",0,[]]'))


def test_a_transaction_in_one_slot_is_one_exchange():
    script = Script("redis://h:1?cluster=yes&slots=scope")
    one, other = mark("dev/acme/a"), Put(ENTRIES, "dev/acme/b", {"gone_at": 9}, ABSENT, "s")
    assert script.play(Transact((one, other)), [head(1, 1)]) == Applied(5.0)
    assert len(script.sent) == 1


def test_what_to_do_about_items_that_lie_apart_is_said():
    with pytest.raises(errors.UsageError, match="the store be made with slots=scope"):
        clustered().play(Transact((mark("dev/acme/a"), mark("dev/acme/b"))))
    by_scope = Script("redis://h:1?cluster=yes&slots=scope")
    with pytest.raises(errors.UsageError, match="or at least their scope"):
        by_scope.play(Transact((mark("dev/acme/a"), mark("dev/other/b"))))
    assert by_scope.sent == []


# Indexes


def entry(key, **item):
    return Put(ENTRIES, key, {"gone_at": 9, **item}, None, "s")


def orders(exchange):
    """What write.lua is told in an exchange."""
    return [
        msgspec.msgpack.decode(word) for word in exchange.data.split(b"\r\n") if b"\xa6writes" in word[:16]
    ]


def as_read(flat):
    return [msgspec.msgpack.encode([5.0, [[2, *map(len, flat)]]]), b"".join(flat)]


ITEM = [b"text", b"x", b"gone_at", b"9"]


def test_on_one_server_an_item_and_its_entries_are_one_exchange():
    script = Script()
    assert script.play(entry("k", text="x", due=1, count=1), [MADE]) == Applied(5.0)
    [exchange] = script.sent
    assert (exchange.count, b"late" in exchange.data) == (1, False)


def test_in_a_cluster_an_item_is_sent_once_its_entry_was_answered():
    script, there, elsewhere = clustered(), on(A), on(B)
    assert script.play(entry(there, text=elsewhere), [MADE], [MADE]) == Applied(5.0)
    assert script.nodes() == [B, A]
    assert [exchange.writes for exchange in script.sent] == [True, True]
    entering, writing = (orders(exchange)[0] for exchange in script.sent)
    assert [write["make"] for write in entering["writes"]] == ["enter"]
    assert [write["make"] for write in writing["writes"]] == ["put"]
    assert writing["late"] == 5.0 + 300


@pytest.mark.parametrize("failure", [errors.StoreOutcomeUnknown("lost"), errors.StoreUnavailable("gone")])
def test_an_item_whose_entry_is_in_doubt_is_not_sent(failure):
    """And that is no doubt about the item."""
    script = clustered()
    lines = [failure] if isinstance(failure, errors.StoreOutcomeUnknown) else [failure, [SLOTS]]
    with pytest.raises(errors.StoreUnavailable):
        script.play(entry(on(A), text=on(B)), *lines)
    assert [exchange.node for exchange in script.sent if exchange.writes] == [B]


def test_what_is_wrong_with_an_item_is_found_before_anything_is_sent():
    script = clustered()
    with pytest.raises(errors.UsageError):
        script.play(entry(on(A), text=on(B), colour="red"))
    assert script.sent == []


def test_entries_of_a_batch_are_made_in_one_round_before_it():
    script, a, b = clustered(), on(A), on(B)
    batch = Batch((entry(a, text=b), entry(b, text=a), mark(a)))
    reply = script.play(batch, [MADE], [MADE], [head(1, 1)], [MADE])
    assert reply == Many((Applied(5.0),) * 3)
    assert script.nodes() == [B, A, A, B]


def test_a_write_that_does_not_tell_where_to_is_sent_twice():
    script = Script()
    update = Update(ENTRIES, "k", {"due": 1}, sort="s")
    assert script.play(update, [as_read(ITEM)], [MADE]) == Applied(5.0)
    first, second = (orders(exchange)[0]["writes"][0] for exchange in script.sent)
    assert first["still"] == ["never"]
    assert second["still"][1][0] == ["equals", "text", "x"]
    assert second["entered"]


def test_a_write_that_is_refused_is_refused_at_once():
    script = Script()
    assert script.play(Update(ENTRIES, "k", {"due": 1}, sort="s"), [REFUSED]) == Refused(5.0, None)


def test_an_item_that_moved_meanwhile_is_thought_over_until_it_stands_still():
    script = Script()
    moved = [as_read([b"text", b"y", b"gone_at", b"9"])]
    update = Update(ENTRIES, "k", {"due": 1}, sort="s")
    assert script.play(update, [as_read(ITEM)], moved, [MADE]) == Applied(5.0)
    assert orders(script.sent[2])[0]["writes"][0]["still"][1][0] == ["equals", "text", "y"]
    with pytest.raises(errors.StoreThrottled, match="moved 'k' in an index"):
        script.play(update, *[[as_read(ITEM)]] * ATTEMPTS)


def test_an_item_that_would_outlive_its_entries_is_entered_anew():
    """The script finds that out, and the write itself says nothing of an index."""
    script = Script()
    update = Update(ENTRIES, "k", {"gone_at": 1e6}, sort="s")
    assert script.play(update, [as_read(ITEM)], [MADE]) == Applied(5.0)
    assert "still" not in orders(script.sent[0])[0]["writes"][0]
    assert orders(script.sent[1])[0]["writes"][0]["entered"]


def test_a_transaction_is_thought_over_whole():
    script = Script()
    writes = (mark("a"), Add(ENTRIES, "k", "count", 1, {}, {"gone_at": 9}, None, "s"))
    flat = [b"count", b"6", *ITEM]
    again = [msgspec.msgpack.encode([5.0, [1, [2, *map(len, flat)]]]), b"".join(flat)]
    assert script.play(Transact(writes), [again], [head(1, 1)]) == Applied(5.0)
    assert [order["make"] for order in orders(script.sent[1])[0]["writes"]] == ["put", "add"]
    refused = script.play(Transact(writes), [again], [head(0, 1)])
    assert refused == Cancelled(5.0, (Refused(5.0, None), None))


def test_what_a_batch_has_to_think_over_is_made_after_the_rest():
    script = Script()
    batch = Batch((mark("a"), Update(ENTRIES, "k", {"due": 1}, sort="s"), mark("b")))
    reply = script.play(batch, [head(1, 2, 0)], [as_read(ITEM)], [MADE])
    assert reply == Many((Applied(5.0), Applied(5.0), Refused(5.0, None)))
    with pytest.raises(errors.StoreOutcomeUnknown, match="part of it was made"):
        script.play(batch, [head(1, 2, 0)], errors.StoreUnavailable("gone"))


def test_entries_that_lead_nowhere_are_told_of_and_a_failure_of_that_is_no_failure():
    members = [b'["a","s"]', b'["b","s"]']
    item = [msgspec.msgpack.encode([5.0, [[1, 4, 1, 7, 1]]]), b"textxgone_at9"]
    for told in ([None], errors.StoreUnavailable("gone")):
        script = Script()
        page = script.play(Query(ENTRIES, "x", index="text"), [[head(), members]], [item, NOTHING], told)
        assert page == Page(5.0, ({"owner": "a", "place": "s", "text": "x", "gone_at": 9},), None)
        doubt = script.sent[-1].data
        assert members[1] in doubt
        assert members[0] not in doubt


def test_a_key_of_a_table_is_no_number():
    with pytest.raises(errors.UsageError, match="is a text, not 7"):
        Script().play(Query(THINGS, 7))


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


def test_every_answer_tells_the_time():
    clock = Stepping()
    script = Script(clock=clock)
    script.play(mark("k"), [MADE])
    clock.passed += 2
    assert script.play(Time()) == Found(7.0, None)
    script.play(Get(THINGS, "k"), [msgspec.msgpack.encode([20.0, [0]])])
    assert script.talk.time.known() == Found(20.0, None)


def test_a_moment_that_the_servers_clock_is_to_tell_is_told_from_memory_too():
    script = Script(clock=Stepping())
    script.play(mark("k"), [MADE])
    script.play(entry("k", text="x", due=After(3)), [MADE])
    assert orders(script.sent[1])[0]["writes"][0]["set"]["due"] == 8.0


def test_a_cluster_tells_the_time_though_the_node_in_the_url_is_gone():
    script = clustered()
    assert script.play(Time(), TIME) == Found(5.0, None)
    assert script.nodes() == [SlotMap.from_reply(SLOTS, HOME).owner(b"semel:meta")]


def test_nothing_is_sent_where_nothing_is_asked():
    """An empty message would never be sent to its end by asyncio, and never let its connection close."""
    address = parse("redis://localhost")
    with pytest.raises(StopIteration) as end:
        next(Router(address).on(address.home, []))
    assert end.value.value == []
