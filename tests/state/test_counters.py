"""Counters: so many in a period of some time zone, counted once, given back once."""

import itertools
from contextlib import closing
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest

import semel
from semel.apps.tables import MESSAGES, RESPONSE_COUNTERS
from semel.core.commands import Cancelled, Get, Transact, read
from semel.core.drive import drive
from semel.errors import (
    CapReached,
    InvalidKey,
    InvalidOption,
    StoreOutcomeUnknown,
    UsageError,
)
from semel.periods import Day, Hour, Month, Week
from semel.state.counters import Charged
from semel.stores.dynamodb.items import title
from semel.tables import COUNTERS
from semel.testing import FaultProxy, Faulty
from tests.places import NAMES
from tests.state.crowds import (
    ENGINES,
    Meddled,
    crowd,
    everything,
    furnished,
    opened,
    persistent,
    raw,
    senders,
    workers,
)

STOCKHOLM = "Europe/Stockholm"
DAY = 86400
WEEK = 7 * DAY


@pytest.fixture
def place(room):
    return room


def moment(text, fold=0):
    """What the clocks of Stockholm show, as seconds since the epoch."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(STOCKHOLM), fold=fold).timestamp()


def charge(name="replies", token="m1", **options):
    return lambda s: s.counters.charge(name, token=token, **{"cap": 3} | options)


def used(do, name="replies", **options):
    return do(lambda s: s.counters.look(name, **options)).used


def stored(place, clock, do, entry, name="replies"):
    """The item of a counter as the store has it."""
    key = do.s.counters.steps.realm.name(name)
    return drive(read(Get(COUNTERS, key, entry)), do.s.store).item


# Periods


CALENDAR = [
    # A day of 23 hours: 02:00 to 03:00 is never shown.
    (Day(STOCKHOLM), "2024-03-30T23:59:59", 0, "2024-03-30", "2024-03-31T00:00"),
    (Day(STOCKHOLM), "2024-03-31T00:00:00", 0, "2024-03-31", "2024-04-01T00:00"),
    (Day(STOCKHOLM), "2024-03-31T03:00:00", 0, "2024-03-31", "2024-04-01T00:00"),
    (Day(STOCKHOLM), "2024-03-31T23:59:59", 0, "2024-03-31", "2024-04-01T00:00"),
    (Day(STOCKHOLM), "2024-04-01T00:00:00", 0, "2024-04-01", "2024-04-02T00:00"),
    # A day of 25 hours: 02:00 to 03:00 is shown twice.
    (Day(STOCKHOLM), "2024-10-26T23:59:59", 0, "2024-10-26", "2024-10-27T00:00"),
    (Day(STOCKHOLM), "2024-10-27T02:30:00", 0, "2024-10-27", "2024-10-28T00:00"),
    (Day(STOCKHOLM), "2024-10-27T02:30:00", 1, "2024-10-27", "2024-10-28T00:00"),
    (Day(STOCKHOLM), "2024-10-27T23:59:59", 0, "2024-10-27", "2024-10-28T00:00"),
    (Day(STOCKHOLM), "2024-10-28T00:00:00", 0, "2024-10-28", "2024-10-29T00:00"),
    (Hour(STOCKHOLM), "2024-03-31T01:59:59", 0, "2024-03-31T01+01:00", "2024-03-31T03:00"),
    (Hour(STOCKHOLM), "2024-03-31T03:00:00", 0, "2024-03-31T03+02:00", "2024-03-31T04:00"),
    (Hour(STOCKHOLM), "2024-10-27T02:30:00", 0, "2024-10-27T02+02:00", None),
    (Hour(STOCKHOLM), "2024-10-27T02:30:00", 1, "2024-10-27T02+01:00", "2024-10-27T03:00"),
    (Week(STOCKHOLM), "2024-03-25T00:00:00", 0, "2024-W13", "2024-04-01T00:00"),
    (Week(STOCKHOLM), "2024-03-31T23:59:59", 0, "2024-W13", "2024-04-01T00:00"),
    (Week(STOCKHOLM), "2024-10-27T23:59:59", 0, "2024-W43", "2024-10-28T00:00"),
    (Month(STOCKHOLM), "2024-03-01T00:00:00", 0, "2024-03", "2024-04-01T00:00"),
    (Month(STOCKHOLM), "2024-03-31T23:59:59", 0, "2024-03", "2024-04-01T00:00"),
    (Month(STOCKHOLM), "2024-10-27T02:30:00", 1, "2024-10", "2024-11-01T00:00"),
]


@pytest.mark.seed("H4")
def test_periods_are_those_of_the_zone_across_both_changes_of_its_clocks(do, clock):
    """Each charge falls into the period that the clocks there show, and is told when the next one begins."""
    totals: dict[tuple[str, str], int] = {}
    for number, (per, shown, fold, label, end) in enumerate(CALENDAR):
        clock.jump(moment(shown, fold) - clock.now())
        name = f"by:{type(per).__name__}"
        totals[name, label] = totals.get((name, label), 0) + 1
        made = do(charge(name, f"m{number}", cap=9, per=per))
        tally = do(lambda s, name=name, per=per: s.counters.look(name, per=per, cap=9))
        ends = moment("2024-10-27T02:00", fold=1) if end is None else moment(end)
        assert (made.period, made.resets_at) == (label, ends)
        assert (tally.period, tally.resets_at) == (label, ends)
        assert (tally.used, tally.remaining) == (totals[name, label], 9 - totals[name, label])


@pytest.mark.seed("H4")
@pytest.mark.parametrize("shown", ["2024-03-31T00:00", "2024-10-27T00:00"])
def test_a_cap_of_a_day_holds_for_a_day_of_23_and_of_25_hours(do, clock, shown):
    """Whoever tries every other hour gets three a day, on the days of the change too."""
    start = moment(shown)
    clock.jump(start - clock.now())
    granted: dict[str, int] = {}
    for number in range(20):
        made = do.together([charge(token=f"m{number}", per=Day(STOCKHOLM))])[0]
        if isinstance(made, Charged):
            granted[made.period] = granted.get(made.period, 0) + 1
        clock.advance(7200)
    day = datetime.fromisoformat(shown).date()
    assert granted == {day.isoformat(): 3, (day + timedelta(days=1)).isoformat(): 3}
    assert used(do, per=Day(STOCKHOLM), at=start) == 3


# Counting


@pytest.mark.seed("H5")
def test_a_charge_counts_where_there_is_room_and_else_changes_nothing(do, clock):
    """Add if below: a refusal says how it stands and when it ends, and leaves nothing behind."""
    assert do(lambda s: s.counters.look("replies", cap=3)).remaining == 3
    assert do(lambda s: s.counters.look("replies")).remaining is None
    first = do(charge(by=2))
    assert (first.by, first.token, first.counter) == (2, "m1", "replies")
    with pytest.raises(CapReached, match="'replies' stands at 2 of 3") as caught:
        do(charge(token="m2", by=2))
    assert (caught.value.used, caught.value.cap, caught.value.resets_at) == (2, 3, first.resets_at)
    assert used(do) == 2
    assert do(charge(token="m2")).by == 1
    with pytest.raises(CapReached):
        do(charge(token="m3"))
    assert do(lambda s: s.counters.look("replies", cap=3)).remaining == 0
    # A cap that was lowered leaves nothing, and not less than nothing.
    assert do(lambda s: s.counters.look("replies", cap=2)).remaining == 0


def test_counters_and_scopes_are_apart(do):
    do(charge())
    assert used(do, "others") == 0
    assert do(lambda s: s.scoped("tenant").counters.look("replies")).used == 0


@pytest.mark.seed("H3")
def test_adding_needs_no_token_and_knows_no_cap(do):
    """The total is what charges count too, and the reply tells it."""
    assert do(lambda s: s.counters.add("replies")).used == 1
    assert do(lambda s: s.counters.add("replies", 4)).used == 5
    do(charge(cap=6))
    assert used(do) == 6


def test_an_addition_whose_answer_was_lost_is_not_sent_again(place, way):
    """Nobody could tell it from a second one, so its caller is told that nobody knows."""
    store = Faulty(place.open())
    with opened(way, store, place) as do:
        do(lambda s: s.counters.add("replies"))
        store.lose_reply()
        with pytest.raises(StoreOutcomeUnknown):
            do(lambda s: s.counters.add("replies"))
        assert used(do) == 2


@pytest.mark.seed("H5")
def test_the_same_token_counts_once_whenever_it_comes_again(do, clock):
    """At once, from twenty at a time, and when its day is over: one count, and the very same charge."""
    first = do(charge(per=Day(STOCKHOLM)))
    assert do(charge(per=Day(STOCKHOLM))) == first
    assert do.together([charge(per=Day(STOCKHOLM))] * 20) == [first] * 20
    assert do(charge(per=Day(STOCKHOLM), by=2)) == first
    clock.advance(DAY)
    assert do(charge(per=Day(STOCKHOLM))) == first
    assert used(do, per=Day(STOCKHOLM)) == 0
    assert used(do, per=Day(STOCKHOLM), at=clock.now() - DAY) == 1


@pytest.mark.seed("H5")
def test_a_full_counter_still_knows_its_tokens(do):
    charges = [do(charge(token=f"m{number}")) for number in range(3)]
    assert [do(charge(token=f"m{number}")) for number in range(3)] == charges
    assert used(do) == 3


@pytest.mark.seed("H5")
def test_the_same_token_counts_once_from_several_workers(place, way, clock):
    with workers(place, way, 3, clock=clock) as ways:
        made = crowd(ways, [charge(token=f"m{number % 2}") for number in range(30)])
        assert len({one.id for one in made}) == 2
        assert used(ways[0]) == 2


def test_a_charge_for_a_moment_of_long_ago_is_counted_in_its_own_period(do, clock):
    """A message that comes a month late is held against its own day, and is not forgotten at once."""
    late = clock.now() - 30 * DAY
    for token in ("m1", "m2", "m3", "m1"):
        do(charge(token=token, at=late))
    with pytest.raises(CapReached):
        do(charge(token="m4", at=late))
    assert used(do) == 0
    assert do(lambda s: s.counters.add("replies", at=late)).used == 4


# Giving back


@pytest.mark.seed("H5")
def test_a_charge_is_given_back_once(do):
    """Again, by twenty at a time, and by another holder of the same charge: the total goes down by one."""
    do(charge(token="other"))
    first = do(charge(by=2))
    holder = do(charge(by=2))
    assert do(lambda s: s.counters.refund(first)) is True
    assert do(lambda s: s.counters.refund(holder)) is True
    assert do.together([lambda s: s.counters.refund(first)] * 20) == [True] * 20
    assert used(do) == 1


@pytest.mark.seed("H5")
def test_a_token_that_was_given_back_can_be_charged_again(do):
    """The new charge has a name of its own, and giving the old one back once more does not touch it."""
    old = do(charge())
    do(lambda s: s.counters.refund(old))
    new = do(charge())
    assert new.id != old.id
    assert do(charge()) == new
    assert do(lambda s: s.counters.refund(old)) is False
    assert used(do) == 1
    assert do(lambda s: s.counters.refund(new)) is True
    assert used(do) == 0


def test_a_charge_is_given_back_as_it_was_made_or_not_at_all(do):
    made = do(charge())
    more = msgspec.structs.replace(made, by=made.by + 5)
    elsewhere = msgspec.structs.replace(made, period="1999-01-01")
    for forged in (more, elsewhere):
        assert do(lambda s, forged=forged: s.counters.refund(forged)) is False
    assert used(do) == 1
    assert do(lambda s: s.counters.refund(made)) is True
    assert do(lambda s: s.counters.refund(more)) is False
    assert used(do) == 0


def test_of_many_who_charge_a_token_again_one_counts(do):
    for _ in range(3):
        first = do(charge())
        do(lambda s, first=first: s.counters.refund(first))
        made = do.together([charge()] * 20)
        assert len({one.id for one in made}) == 1
        assert used(do) == 1


def test_a_charge_that_nobody_knows_any_more_cannot_be_given_back(do, clock, place):
    made = do(charge(keep=DAY))
    clock.advance(3 * DAY)
    assert do(lambda s: s.counters.refund(made)) is False
    assert do(lambda s: s.counters.refund(Charged("replies", "2023-11-14", "unheard", 1, "x", 0.0))) is False
    assert used(do) == 0


@pytest.mark.seed("H5")
def test_lost_answers_count_nothing_twice_and_give_nothing_back_twice(place, way):
    """Every write's first answer is lost after it was made."""
    with place.forgetful() as (stores, lost), opened(way, stores[0], place) as do:
        first = do(charge())
        assert do(charge()) == first
        assert used(do) == 1
        assert do(lambda s: s.counters.refund(first)) is True
        assert do(lambda s: s.counters.refund(first)) is True
        assert used(do) == 0
        again = do(charge())
        assert again.id != first.id
        assert used(do) == 1
        assert lost() >= 3


def test_what_another_holder_has_given_back_before_i_heard_of_it_is_charged_anew(place, way, clock):
    """Whoever is told of a charge holds one that counts, and that no earlier refund can take from him."""
    with closing(place.open(clock)) as elsewhere:
        other = semel.Semel(elsewhere, env=place.env, scope=place.scope, clock=clock).counters
        held = []

        def meddle():
            held.append(other.charge("replies", cap=3, token="m1"))
            other.refund(held[0])

        with opened(way, Meddled(place.open(clock), meddle), place, clock=clock) as do:
            mine = do(charge())
            assert mine.id != held[0].id
            assert used(do) == 1
            assert do(lambda s: s.counters.refund(held[0])) is False
            assert used(do) == 1


def test_a_copy_of_a_charge_that_comes_through_late_counts_nothing(place, clock, way):
    """A request that was sent again may itself arrive after all, when what it asked for was given back."""
    store = Faulty(place.open(clock))
    with opened(way, store, place, clock=clock) as do:
        made = do(charge())
        copies = [command for command in store.seen if isinstance(command, Transact)]
        do(lambda s: s.counters.refund(made))
        again = do(charge())
        copies += [command for command in store.seen if isinstance(command, Transact)]
        do(lambda s: s.counters.refund(again))
        assert len(copies) >= 4
        assert all(isinstance(store.execute(copy), Cancelled) for copy in copies)
        assert used(do) == 0


# How long things are kept


@pytest.mark.seed("H3")
def test_a_total_ends_after_its_period_and_its_end_is_set_once(do, clock, place):
    """The end follows from the period, whoever counts first, and whatever comes later."""
    end = do(charge(per=Day(STOCKHOLM))).resets_at + WEEK
    label = do(lambda s: s.counters.look("replies", per=Day(STOCKHOLM))).period
    assert stored(place, clock, do, label)["expires_at"] == end
    assert stored(place, clock, do, "charge:m1")["expires_at"] == end
    clock.advance(60)
    do(charge(token="m2", per=Day(STOCKHOLM), keep=30 * DAY))
    do(lambda s: s.counters.add("replies", per=Day(STOCKHOLM), keep=DAY))
    assert stored(place, clock, do, label)["expires_at"] == end
    assert stored(place, clock, do, label)["count"] == 3
    if place.name in ENGINES:
        counter = do.s.counters.steps.realm.name("replies")
        [item] = raw(place, f"semel-{place.env}-counters", counter={"S": counter}, entry={"S": label})
        assert item["ttl"] == {"N": str(int(end))}
    clock.jump(end - clock.now())
    assert stored(place, clock, do, label) is None


# What is refused


WRONG = [
    (lambda s: s.counters.charge("replies", 0, cap=3, token="m"), InvalidOption, "whole numbers from 1"),
    (lambda s: s.counters.charge("replies", -1, cap=3, token="m"), InvalidOption, "whole numbers from 1"),
    (lambda s: s.counters.charge("replies", 1.5, cap=3, token="m"), InvalidOption, "whole numbers from 1"),
    (lambda s: s.counters.charge("replies", True, cap=3, token="m"), InvalidOption, "whole numbers from 1"),
    (lambda s: s.counters.charge("replies", 2**53, cap=2**53, token="m"), InvalidOption, "whole numbers"),
    (lambda s: s.counters.charge("replies", cap=0, token="m"), InvalidOption, "whole numbers from 1"),
    (lambda s: s.counters.charge("replies", cap=True, token="m"), InvalidOption, "whole numbers from 1"),
    (lambda s: s.counters.charge("replies", 4, cap=3, token="m"), InvalidOption, "never room"),
    (lambda s: s.counters.charge("replies", cap=3, token=""), InvalidKey, "must not be empty"),
    (lambda s: s.counters.charge("replies", cap=3, token="x" * 2_000_000), InvalidKey, "at most 1024 bytes"),
    (lambda s: s.counters.charge("replies", cap=3, token="x" * 1018), InvalidKey, "at most 1024 bytes"),
    (lambda s: s.counters.charge("replies", cap=3, token="a\nb"), InvalidKey, "control characters"),
    (lambda s: s.counters.charge("replies", cap=3, token=7), InvalidKey, "a key is text"),
    (lambda s: s.counters.charge("", cap=3, token="m"), InvalidKey, "must not be empty"),
    (lambda s: s.counters.charge("replies", cap=3, token="m", keep=0), InvalidOption, "positive"),
    (
        lambda s: s.counters.charge("replies", cap=3, token="m", at=datetime(2024, 1, 1)),  # noqa: DTZ001
        InvalidOption,
        "no time zone",
    ),
    (lambda s: s.counters.charge("replies", cap=3, token="m", at="now"), InvalidOption, "a moment is"),
    (lambda s: s.counters.add("replies", 0), InvalidOption, "whole numbers from 1"),
    (lambda s: s.counters.add("replies", True), InvalidOption, "whole numbers from 1"),
    (lambda s: s.counters.add("replies", 0.5), InvalidOption, "whole numbers from 1"),
    (lambda s: s.counters.add("replies", keep=-1), InvalidOption, "positive"),
    (lambda s: s.counters.on(RESPONSE_COUNTERS).add("c", per=Hour()), UsageError, "totals by date"),
    (lambda s: s.counters.on(RESPONSE_COUNTERS).add("c", per=Week()), UsageError, "totals by date"),
    (lambda s: s.counters.on(MESSAGES).add("c"), UsageError, "keeps no totals"),
    (
        lambda s: s.counters.on(RESPONSE_COUNTERS).charge("c", cap=3, token="m"),
        UsageError,
        r"use add\(\) and look\(\)",
    ),
    (
        lambda s: s.counters.on(RESPONSE_COUNTERS).refund(Charged("c", "p", "t", 1, "x", 0)),
        UsageError,
        r"use add\(\) and look\(\)",
    ),
]


@pytest.mark.seed("H5")
def test_what_cannot_be_counted_is_refused_before_anything_is_written(do):
    """Nothing that is wrong is rounded, cut off or taken for something else."""
    for wrong, error, words in WRONG:
        with pytest.raises(error, match=words):
            do(wrong)
    assert everything(do) == []


def test_the_longest_names_are_kept_as_they_are(do):
    """1,024 bytes of a counter's name, and a token that fills its key."""
    name, token = "ö" * 512, "x" * 1017
    made = do(charge(name, token))
    assert do(charge(name, token)) == made
    assert used(do, name) == 1
    assert do(lambda s: s.counters.refund(made)) is True
    assert used(do, name) == 0


# The household's own table


@pytest.fixture
def household(request, way, tmp_path):
    with furnished(request, way, tmp_path, RESPONSE_COUNTERS) as it:
        yield it


@pytest.mark.seed("H3", "H4")
@pytest.mark.parametrize("household", NAMES, indirect=True)
def test_the_household_counts_by_its_own_days(household):
    """The plain form: an atomic addition a day, and a look at what the store itself has."""
    place, do, clock = household
    clock.jump(moment("2024-10-27T23:30") - clock.now())
    chat, per = f"-100{place.env}", Day(STOCKHOLM)
    replies = do.together([lambda s: s.counters.on(RESPONSE_COUNTERS).add(chat, per=per)] * 20)
    assert sorted(tally.used for tally in replies) == list(range(1, 21))
    tally = do(lambda s: s.counters.on(RESPONSE_COUNTERS).look(chat, per=per, cap=3))
    assert (tally.period, tally.used, tally.remaining) == ("2024-10-27", 20, 0)
    clock.advance(1800)
    tally = do(lambda s: s.counters.on(RESPONSE_COUNTERS).look(chat, per=per, cap=3))
    assert (tally.period, tally.used, tally.remaining) == ("2024-10-28", 0, 3)


@pytest.mark.seed("H3", "H5")
@pytest.mark.parametrize("household", ENGINES, indirect=True)
def test_the_household_s_items_are_as_its_own_code_writes_them(household):
    """chatId, date, count, updatedAt in ISO form, and ttl: a week after the date, set once."""
    place, do, clock = household
    clock.jump(moment("2024-03-31T00:30") - clock.now())
    chat = f"-100{place.env}"

    def add(s):
        return s.counters.on(RESPONSE_COUNTERS).add(chat, per=Day(STOCKHOLM))

    def items():
        return raw(place, title(RESPONSE_COUNTERS, place.env), chatId={"S": chat})

    ends = int(datetime(2024, 4, 7, tzinfo=UTC).timestamp())
    for count in (1, 2):
        do(add)
        [item] = items()
        told = item.pop("updatedAt")["S"]
        assert datetime.fromisoformat(told).timestamp() == pytest.approx(clock.now(), abs=0.001)
        assert item == {
            "chatId": {"S": chat},
            "date": {"S": "2024-03-31"},
            "count": {"N": str(count)},
            "ttl": {"N": str(ends)},
        }
        clock.advance(3600)


@pytest.mark.seed("H5")
@pytest.mark.parametrize("household", ENGINES, indirect=True)
def test_the_household_looks_at_the_table_itself(household, way):
    """Before it replies it reads consistently, and not what a replica may have missed."""
    place, _, clock = household
    with FaultProxy.before(place.server) as proxy:
        requests: list[bytes] = []

        def seen(request):
            requests.append(request)
            return False  # none is dropped

        proxy.drop_answer_to(seen)
        with opened(way, place.open(clock, proxy.url(place.server)), place, clock=clock) as do:
            assert do(lambda s: s.counters.on(RESPONSE_COUNTERS).look("-100")).used == 0
        looks = [request for request in requests if b"-100" in request]
        assert looks
        assert all(b"GetItem" in look and b'"ConsistentRead":true' in look for look in looks)


# The bar


CAP = 3


@pytest.mark.seed("H5")
def test_of_two_hundred_senders_exactly_as_many_pass_as_the_cap_says(place, way):
    """Three of two hundred at once, from several workers, and the total says three."""
    with workers(place, way, 4) as ways:
        now = drive(ways[0].s.counters.steps.realm.now(), ways[0].s.store)
        made = crowd(ways, [charge(token=f"m{number}", at=now) for number in range(senders(place))])
        granted = [one for one in made if isinstance(one, Charged)]
        assert len(granted) == CAP
        assert {type(one) for one in made} == {Charged, CapReached}
        assert used(ways[0], at=now) == CAP


@pytest.mark.seed("H5")
def test_charges_are_as_many_as_sends_that_succeeded_though_every_answer_is_lost_once(place, way):
    """Two hundred senders, of which every third fails to send and gives back what it was charged."""
    sent = itertools.count()

    def sender(number, now):
        def send(s):
            made = yield lambda: s.counters.charge("replies", cap=CAP, token=f"m{number}", at=now)
            if number % 3:
                return next(sent)
            return (yield lambda: s.counters.refund(made))

        return persistent(way, send)

    with place.forgetful(3) as (stores, lost), workers(place, way, 3, stores=stores) as ways:
        now = drive(ways[0].s.counters.steps.realm.now(), ways[0].s.store)
        told = crowd(ways, [sender(number, now) for number in range(senders(place))])
        troubles = [one for one in told if isinstance(one, Exception) and not isinstance(one, CapReached)]
        assert troubles == []
        succeeded = next(sent)
        assert used(ways[0], at=now) == succeeded <= CAP
        late = crowd(ways, [sender(1000 + 3 * number + 1, now) for number in range(CAP + 1)])
        assert [isinstance(one, CapReached) for one in late].count(False) == CAP - succeeded
        assert used(ways[0], at=now) == CAP
        assert lost() > CAP
