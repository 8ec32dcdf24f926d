/*
 * The ledger, for one key: what workers, an operator, the network and time can do to its record, in any order.
 *
 * docs/explanation/model.md says what is modelled and what is left out; `python -m proof.model` checks it.
 *
 * An inline whose comment begins with "as" is a step: it stands for the functions of src/semel/core that the comment names.
 * WORKERS, LEASE, ON_LAPSED, STRAYS and PROGRESS choose an instance. Every other switch takes one guard away.
 */

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef LEASE
#define LEASE 2 /* ticks */
#endif
#ifndef ON_LAPSED
#define ON_LAPSED RERUN
#endif

#define RERUN 0
#define HOLDS 1
#define RESOLVE 2

/* ---------------------------------------------------------------------------------------------------- state */

mtype = { ABSENT, IN_PROGRESS, COMPLETED, FAILED, UNKNOWN, RELEASED };
mtype = { NOTHING, CLAIM, TAKE_OVER, RECLAIM, RENEW, LAPSE, COMPLETE, FAIL, RELEASE, DOUBT, HOLD, EXHAUST, EXHAUST_LAPSED };
mtype = { SETTLE_DONE, SETTLE_UNDONE, SETTLE_FAILED, WITHDRAW };

/*
 * Tokens are random, and only ever compared. So each has the name of the place where it is, and no more names are needed
 * than there are places: that is what makes any number of calls finite.
 */
#define NONE 0
#define TOKEN(worker) (worker + 1) /* of the call that this worker is at */
#define LEFT 10                    /* in the record, and its worker is gone */
#define LATE 11                    /* in the network, and its worker is gone */
#define OLD 12                     /* nobody can write it any more; it may have been seen */
#define BY_HAND 20                 /* no token, but an operator's result */

/* The record. */
mtype status = ABSENT;
byte token = NONE;  /* of the attempt that was last given the claim */
byte age = LEASE;   /* of its lease, in ticks; LEASE: it has lapsed */
byte result = NONE; /* the token of the attempt whose result it holds */
bool taken = false; /* that attempt follows one that vanished; under `resolve` alone */

mtype = { IDLE, CLAIMING, CLAIMED, HOLDING, RESOLVING, WORKING, RENEWING, RENEWED, ENDING, LEAVING };

/* The calls that the workers are at. */
typedef Call {
	mtype at = IDLE;
	mtype move = NOTHING; /* the write that is under way */
	byte seen = NONE;     /* the token of the record that the write is meant for */
	byte since = LEASE;   /* ticks since its request was first sent; LEASE: too long ago, or none is under way */
	byte age = LEASE;     /* ticks towards the holder's own deadline; LEASE: it is past, or nothing is held */
	bool lapsed = false;  /* Claimed.lapsed: an attempt vanished before this one; under `resolve` alone */
	bool tried = false    /* to take over, in this or in an earlier write of the call; under `resolve` alone */
};
Call w[WORKERS];

/* A write that is on its way, though whoever sent it does not wait for its answer any more. */
mtype stray = NOTHING;
mtype stray_claim = NOTHING; /* the claim that a WITHDRAW takes back */
byte stray_token = NONE;
byte stray_seen = NONE;
bool stray_tried = false;

/* The token of the record that an operator has seen, and is about to settle. */
byte looked_at = NONE;

/* What only an observer knows. */
byte accepted = NONE;  /* the first result in this life of the record */
byte doubtful = NONE;  /* the token of an attempt that has begun, while nobody has said what came of it */
bool informed = false; /* no attempt has begun since the operator looked */

/* The store's answer: the write was made. It is false again at the end of every step. */
bool made = false;

/* The call that takes its claim back has tried to take over. It is false again at the end of every step. */
bool tried = false;

byte name = NONE; /* what a token is called from now on; NONE again at the end of every step */

/* ------------------------------------------------------------------------------------------------- promises */

bool one_result = true;     /* at most one accepted result per key */
bool one_holder = true;     /* never two live holders of a claim, and who begins is the one */
bool zombie_refused = true; /* no write is made but by the attempt that was last given the claim */
bool told_accepted = true;  /* whoever was told a result was told the accepted one */
bool no_silence = true;     /* what may have happened runs again only after somebody has said that it did not */
bool own_write = true;      /* a write whose answer was lost is recognised by whoever sent it */

#define promise(which, held) which = (held); assert(which)

#define LIVE(x) (w[x].age < LEASE)
#if WORKERS == 2
#define HOLDERS (LIVE(0) + LIVE(1))
#else
#define HOLDERS (LIVE(0) + LIVE(1) + LIVE(2))
#endif

/* --------------------------------------------------------------------------------------------------- guards */

#define RUNNING (status == IN_PROGRESS)
#define HELD (status == IN_PROGRESS || status == UNKNOWN)
#define LAPSED (status == IN_PROGRESS && age == LEASE)
#define ENDED (status == COMPLETED || status == FAILED || status == RELEASED)

/* The conditions of lifecycle.MOVES; those without a switch stand where they are used. */
#ifdef TOKEN_FROM_KEY
#define fits(t) (status != ABSENT)
#else
#define fits(t) (token == t)
#endif

#ifdef TAKE_OVER_ALIVE
#define may_take_over(t) (fits(t) && RUNNING)
#else
#define may_take_over(t) (fits(t) && LAPSED)
#endif

#ifdef COMPLETE_WITHOUT_TOKEN
#define may_complete(t) HELD
#elif defined(COMPLETE_TWICE)
#define may_complete(t) fits(t)
#else
#define may_complete(t) (fits(t) && HELD)
#endif

#ifdef FAIL_WITHOUT_TOKEN
#define may_fail(t) HELD
#elif defined(FAIL_OVER_RESULT)
#define may_fail(t) fits(t)
#else
#define may_fail(t) (fits(t) && HELD)
#endif

#ifdef RELEASE_WITHOUT_TOKEN
#define may_release(t) HELD
#else
#define may_release(t) (fits(t) && HELD)
#endif

#ifdef RENEW_WITHOUT_TOKEN
#define may_renew(t) RUNNING
#elif defined(RENEW_BRINGS_BACK)
#define may_renew(t) (fits(t) && RUNNING || status == ABSENT)
#else
#define may_renew(t) (fits(t) && RUNNING)
#endif

#ifdef SETTLE_WITHOUT_TOKEN
#define may_settle(t) (status == UNKNOWN)
#else
#define may_settle(t) (fits(t) && status == UNKNOWN)
#endif

/* A record outlives its lease, and a doubt has no end. */
#ifdef DOUBT_EXPIRES
#define may_expire (LAPSED || status == UNKNOWN || ENDED)
#elif defined(EXPIRES_BEFORE_LEASE)
#define may_expire (RUNNING || ENDED)
#else
#define may_expire (LAPSED && ON_LAPSED == RERUN || ENDED)
#endif

/* A sender's own write, found in its way. */
#ifdef OWN_CLAIM_NOT_KNOWN
#define owned(t) false
#else
#define owned(t) (fits(t) && RUNNING)
#endif

#define mine(t, to) (token == t && status == to && (to != COMPLETED || result == t))
#ifdef OWN_WORK_NOT_KNOWN
#define was_made(t, to) false
#elif defined(RESENT_WITHOUT_TOKEN)
#define was_made(t, to) (status == to)
#else
#define was_made(t, to) mine(t, to)
#endif

/* The holder's deadline, and what it does about it. */
#ifdef DEADLINE_FROM_ANSWER
#define counted_from(sent) 0
#else
#define counted_from(sent) sent
#endif

#ifdef BEGINS_PAST_DEADLINE
#define may_begin(x) true
#else
#define may_begin(x) LIVE(x)
#endif

#ifdef UNBEGUN_RELEASED
#define left_to_policy(x) false
#else
#define left_to_policy(x) w[x].lapsed
#endif

#ifdef HOLD_IGNORED
#define holds_lapsed false
#else
#define holds_lapsed (ON_LAPSED == HOLDS)
#endif

#ifdef NEVER_TAKEN_OVER
#define can_move false
#else
#define can_move LAPSED
#endif

/* One write at a time may be on its way after its sender has stopped waiting for it, where there are STRAYS. */
#ifdef STRAYS
#define MAY_STRAY (stray == NOTHING)
#else
#define MAY_STRAY false
#endif

/* Faults have no end; where progress is asked for, there are so many of them. */
#ifdef PROGRESS
byte faults = PROGRESS;
#define FAULT (faults > 0)
#define PAY faults--;
#else
#define FAULT true
#define PAY
#endif

/* Kinds of writes. */
#define ABOUT(what, one, two, three) (what == one || what == two || what == three)
#define OPENS(what) ABOUT(what, CLAIM, TAKE_OVER, RECLAIM)
#define SETTLES(what) ABOUT(what, SETTLE_DONE, SETTLE_UNDONE, SETTLE_FAILED)
#define HOLDERS_OWN(what) (ABOUT(what, RENEW, LAPSE, DOUBT) || ABOUT(what, COMPLETE, FAIL, RELEASE))

/* --------------------------------------------------------------------------------------------------- tokens */

#define NAMED(place, before, now) place = (place == before -> now : place)

inline renamed(before, now)
{
	NAMED(token, before, now); NAMED(result, before, now); NAMED(accepted, before, now);
	NAMED(doubtful, before, now); NAMED(looked_at, before, now);
	NAMED(stray_token, before, now); NAMED(stray_seen, before, now);
	NAMED(w[0].seen, before, now); NAMED(w[1].seen, before, now);
#if WORKERS > 2
	NAMED(w[2].seen, before, now);
#endif
	name = NONE
}

/* as runtime.random_token: this worker's next token is a new one. */
inline draw_token(me)
{
	name = (token == TOKEN(me) -> LEFT : (stray_token == TOKEN(me) -> LATE : OLD));
	renamed(TOKEN(me), name)
}

/* A token that only the record had is gone once another is written over it. */
inline overwritten(now)
{
	if
	:: token == LEFT && now != LEFT -> name = (stray_token == LEFT -> LATE : OLD); renamed(LEFT, name)
	:: else
	fi;
	token = now
}

/* Whether a token stands in the record, or can come to. */
#define CLAIMS(move) (move == CLAIM || move == TAKE_OVER || move == RECLAIM || move == HOLD || move == EXHAUST \
	|| move == EXHAUST_LAPSED)
#define MAKES(x, t) (t == TOKEN(x) && CLAIMS(w[x].move))
#if WORKERS == 2
#define MADE_BY_WORKERS(t) (MAKES(0, t) || MAKES(1, t))
#else
#define MADE_BY_WORKERS(t) (MAKES(0, t) || MAKES(1, t) || MAKES(2, t))
#endif
#define ALIVE(t) (t == NONE || t == token || t == stray_token && (CLAIMS(stray) || stray == WITHDRAW) \
	|| MADE_BY_WORKERS(t))

/* A claimant whose write cannot be made any more is as one that has to look at the record again. */
inline tidy_call(me)
{
	if
	:: !ALIVE(w[me].seen) && token != TOKEN(me) && stray_token != TOKEN(me) -> w[me].move = CLAIM; w[me].seen = NONE
	:: !ALIVE(w[me].seen) && (token == TOKEN(me) || stray_token == TOKEN(me)) -> w[me].seen = OLD
	:: else
	fi
}

/* Nothing is on its way any more. */
inline drop()
{
	stray = NOTHING; stray_claim = NOTHING; stray_token = NONE; stray_seen = NONE; stray_tried = false;
	name = (token == LATE -> LEFT : OLD);
	renamed(LATE, name)
}

/*
 * Three workers are alike, and which of them is where makes no difference. So they are kept in an order, and the other five
 * ways to number them are not searched. Any order would do: this one tells most states apart.
 */
#define HAS(x, place) (place == TOKEN(x))
#define KNOWN(x) (((HAS(x, token) * 2 + HAS(x, stray_token)) * 2 + HAS(x, doubtful)) * 2 + HAS(x, looked_at))
#define TIMES(x) ((w[x].age * 4 + w[x].since) * 2 + w[x].lapsed)
#define RANK(x) ((((w[x].at * 64 + w[x].move) * 32 + TIMES(x)) * 16 + KNOWN(x)) * 2 + (w[x].seen == NONE))

#define SWAPPED(x, y, what) aside = w[x].what; w[x].what = w[y].what; w[y].what = aside
#define EXCHANGED(place, x, y) place = (place == TOKEN(x) -> TOKEN(y) : (place == TOKEN(y) -> TOKEN(x) : place))

#if WORKERS == 3
hidden byte aside;

inline in_order(x, y)
{
	if
	:: RANK(x) > RANK(y) ->
		SWAPPED(x, y, at); SWAPPED(x, y, move); SWAPPED(x, y, seen);
		SWAPPED(x, y, since); SWAPPED(x, y, age); SWAPPED(x, y, lapsed); SWAPPED(x, y, tried);
		EXCHANGED(token, x, y); EXCHANGED(result, x, y); EXCHANGED(accepted, x, y);
		EXCHANGED(doubtful, x, y); EXCHANGED(looked_at, x, y);
		EXCHANGED(stray_token, x, y); EXCHANGED(stray_seen, x, y);
		EXCHANGED(w[0].seen, x, y); EXCHANGED(w[1].seen, x, y); EXCHANGED(w[2].seen, x, y)
	:: else
	fi
}

inline sort()
{
	d_step { in_order(0, 1); in_order(1, 2); in_order(0, 1) }
}
#else
inline sort()
{
	skip
}
#endif

/* What can make no difference any more is as if it were not there. */
inline tidy()
{
	if
	:: stray == NOTHING || stray == CLAIM || stray == WITHDRAW
	:: CLAIMS(stray) && stray != CLAIM && ALIVE(stray_seen)
	:: HOLDERS_OWN(stray) && stray_token == token && HELD
	:: else -> drop()
	fi;
	tidy_call(0); tidy_call(1);
#if WORKERS > 2
	tidy_call(2);
#endif
	if
	:: looked_at != NONE && !ALIVE(looked_at) -> looked_at = NONE; informed = false
	:: else
	fi;
	sort()
}

/* ------------------------------------------------------------------------------------------------ the store */

#define may_open(what, s) (what == CLAIM && status == ABSENT || what == TAKE_OVER && may_take_over(s) \
	|| what == RECLAIM && fits(s) && status == RELEASED)
#define may_end(what, t) (what == COMPLETE && may_complete(t) || what == FAIL && may_fail(t) \
	|| what == RELEASE && may_release(t))
#define may_go_on(what, t) (what == RENEW && may_renew(t) || (what == LAPSE || what == DOUBT) && fits(t) && RUNNING)
#define may_give_up(what, s) ((what == HOLD || what == EXHAUST_LAPSED) && fits(s) && LAPSED \
	|| what == EXHAUST && fits(s) && status == RELEASED)
#define may_withdraw(what, t, s, bid) (what == WITHDRAW && (may_open(bid, s) || fits(t) && RUNNING))

/* as commands.allowed, commands.outcome, ledger.opening, ledger.moved_on: a write is made if its condition holds. */
inline write(what, its, found, bid)
{
	made = (may_open(what, found) || may_end(what, its) || may_go_on(what, its) || may_give_up(what, found)
		|| SETTLES(what) && may_settle(found) || may_withdraw(what, its, found, bid));
	promise(zombie_refused, !made || !HOLDERS_OWN(what) || token == its);
	if
	:: made && (OPENS(what) || what == WITHDRAW) ->
		overwritten(its); result = NONE; taken = (ON_LAPSED == RESOLVE && (what == TAKE_OVER || bid == TAKE_OVER || tried))
	:: made && (what == COMPLETE || what == SETTLE_DONE) ->
		result = (what == COMPLETE -> its : BY_HAND); accepted = (accepted == NONE -> result : accepted)
	:: else
	fi;
	if
	:: made && (what == COMPLETE || what == FAIL || what == RELEASE && doubtful == its) -> doubtful = NONE
	:: else
	fi;
	if
	:: !made
	:: made && (OPENS(what) || what == RENEW) -> status = IN_PROGRESS; age = 0
	:: made && (what == LAPSE || what == WITHDRAW && (bid == TAKE_OVER || tried)) -> status = IN_PROGRESS; age = LEASE
	:: made && (what == COMPLETE || what == SETTLE_DONE) -> status = COMPLETED; age = LEASE
	:: made && (what == FAIL || what == SETTLE_FAILED || what == EXHAUST || what == EXHAUST_LAPSED) ->
		status = FAILED; age = LEASE
	:: made && (what == RELEASE || what == SETTLE_UNDONE || what == WITHDRAW && bid != TAKE_OVER && !tried) ->
		status = RELEASED; age = LEASE
	:: made && (what == DOUBT || what == HOLD) -> status = UNKNOWN; age = LEASE
	fi;
	promise(one_result, accepted == NONE || status == COMPLETED && result == accepted)
}

/* -------------------------------------------------------------------------------------------------- workers */

/* The call is over, however it ended. */
inline leave(me)
{
	w[me].move = NOTHING; w[me].seen = NONE; w[me].since = LEASE; w[me].age = LEASE;
	w[me].lapsed = false; w[me].tried = false;
	draw_token(me)
}

/* as Flow._steps, LedgerSteps.claim_on: a call begins; its deadline is counted from here. */
inline call(me)
{
	printf("worker %d calls\n", me);
	w[me].move = CLAIM; w[me].since = 0
}

/* as LedgerSteps._claimed, LedgerSteps._give_up: a claimant's write arrives; `made` says whether the claim is its own. */
inline claim(me)
{
	write(w[me].move, TOKEN(me), w[me].seen, NOTHING);
	printf("worker %d: %e, made: %d; the record is %e, token %d\n", me, w[me].move, made, status, token);
	if
	:: w[me].move == HOLD || w[me].move == EXHAUST || w[me].move == EXHAUST_LAPSED ->
		made = false; w[me].move = CLAIM; w[me].seen = NONE
	:: else ->
		if
		:: made -> w[me].lapsed = taken
		:: !made && status == ABSENT -> w[me].move = CLAIM; w[me].seen = NONE
		:: !made && owned(TOKEN(me)) -> made = true; w[me].lapsed = taken
		:: else ->
			promise(own_write, !(token == TOKEN(me) && RUNNING));
			next_move(me)
		fi
	fi
}

/* as ledger.next_move, LedgerSteps._outcome: what a claimant does about the record in its way, or is told of it. */
inline next_move(me)
{
	if
	:: token == TOKEN(me) -> draw_token(me); w[me].tried = false
	:: else
	fi;
	w[me].seen = token;
	if
	:: status == RELEASED -> w[me].move = RECLAIM
	:: status == RELEASED -> w[me].move = EXHAUST
	:: can_move && holds_lapsed -> w[me].move = HOLD
	:: can_move && ON_LAPSED == RERUN -> w[me].move = EXHAUST_LAPSED
	:: can_move && !holds_lapsed -> w[me].move = TAKE_OVER; w[me].tried = (ON_LAPSED == RESOLVE)
	:: status == COMPLETED -> promise(told_accepted, result == accepted); w[me].move = NOTHING
	:: else -> w[me].move = NOTHING
	fi
}

/* as Run.__init__: the claim is heard of. */
inline hear_claim(me)
{
	printf("worker %d has the claim\n", me);
	w[me].move = NOTHING; w[me].seen = NONE;
	w[me].age = counted_from(w[me].since); w[me].since = LEASE;
	promise(one_holder, HOLDERS <= 1)
}

/* as Flow._resolve: the other side is asked what became of the attempt that vanished. */
inline resolve(me)
{
	if
	:: doubtful = NONE; w[me].lapsed = false  /* NotHappened */
	:: end_work(me, COMPLETE)                 /* Happened */
	:: end_work(me, FAIL)                     /* Abandoned */
	:: end_work(me, DOUBT)                    /* Undecided */
	:: FAULT -> PAY end_work(me, LAPSE)       /* it raised */
	fi
}

/* as Flow._give_back, Flow._obstacle: the work does not begin after all. */
inline not_begun(me)
{
	if
	:: !left_to_policy(me) -> end_work(me, RELEASE)
	:: left_to_policy(me) || ON_LAPSED == RERUN -> end_work(me, LAPSE)
	fi
}

/* as Flow.begin, Flow._stopped: the work begins, and from now on its effect may have happened. */
inline begin(me)
{
	printf("worker %d begins\n", me);
	promise(one_holder, token == TOKEN(me) && RUNNING && age < LEASE);
	promise(no_silence, ON_LAPSED == RERUN || doubtful == NONE);
	if
	:: ON_LAPSED != RERUN -> doubtful = TOKEN(me); informed = false
	:: else
	fi
}

/* as LedgerSteps.renew, heartbeat.beat: a renewal arrives. */
inline renew(me)
{
	write(RENEW, TOKEN(me), NONE, NOTHING);
	printf("worker %d: RENEW, made: %d\n", me, made);
	if
	:: made
	:: else -> lose(me)
	fi
}

/* as Run.renewed: a renewal is heard of. */
inline hear_renewal(me)
{
	printf("worker %d has renewed its lease\n", me);
	w[me].age = counted_from(w[me].since); w[me].since = LEASE;
	promise(one_holder, HOLDERS <= 1)
}

/* as Run.lose: a renewal was refused. */
inline lose(me)
{
	w[me].age = LEASE; w[me].since = LEASE
}

/* as Run.missed: a renewal is not heard of. */
inline miss(me)
{
	w[me].since = LEASE
}

/* as Flow._settle, Flow._give_back, Flow.end: the work is over, and what came of it is to be written down. */
inline end_work(me, what)
{
	printf("worker %d is to %e\n", me, what);
	w[me].move = what; w[me].age = LEASE; w[me].since = LEASE; w[me].lapsed = false
}

/* The state that a holder's last write leaves. */
#define ENDS(what) (what == COMPLETE -> COMPLETED : (what == FAIL -> FAILED : (what == RELEASE -> RELEASED : \
	(what == DOUBT -> UNKNOWN : IN_PROGRESS))))

/* as LedgerSteps.end, LedgerSteps._send_while_held, LedgerSteps._judge, ledger.was_made: the holder's last write arrives. */
inline conclude(me)
{
	write(w[me].move, TOKEN(me), NONE, NOTHING);
	printf("worker %d: %e, made: %d; the record is %e, token %d\n", me, w[me].move, made, status, token);
	if
	:: made || was_made(TOKEN(me), ENDS(w[me].move)) ->
		promise(told_accepted, w[me].move != COMPLETE || accepted == TOKEN(me))
	:: else ->
		promise(own_write, !mine(TOKEN(me), ENDS(w[me].move)))
	fi
}

/* as PendingClaim.withdrawn, PendingCall.withdrawn: a caller is interrupted while it claims, and takes its claim back. */
inline withdraw(me)
{
	tried = w[me].tried;
	write(WITHDRAW, TOKEN(me), w[me].seen, w[me].move);
	tried = false;
	printf("worker %d: WITHDRAW, made: %d\n", me, made)
}

/* as commands.resent, commands.again: no answer comes, though the write may arrive yet; it is sent again, or given up. */
inline go_astray(me, what, bid)
{
	printf("worker %d: %e goes astray\n", me, what);
	stray = what; stray_claim = bid; stray_token = TOKEN(me); stray_seen = w[me].seen;
	stray_tried = (what == WITHDRAW && w[me].tried)
}

/* The process dies, or gives up without an answer. */
inline crash(me)
{
	printf("worker %d is gone\n", me)
}

#define at w[_pid].at
#define TRIES_TO_CLAIM (w[_pid].move == CLAIM || w[_pid].move == TAKE_OVER || w[_pid].move == RECLAIM)

active [WORKERS] proctype Worker()
{
	do
	:: atomic {
		if
		:: at == IDLE -> call(_pid); at = CLAIMING

		/* A write of the claim is under way. */
		:: at == CLAIMING -> claim(_pid); at = (made -> CLAIMED : (w[_pid].move == NOTHING -> LEAVING : CLAIMING))
		:: at == CLAIMING && MAY_STRAY && FAULT -> PAY go_astray(_pid, w[_pid].move, NOTHING)
		:: at == CLAIMING && MAY_STRAY && TRIES_TO_CLAIM && FAULT ->
			PAY go_astray(_pid, WITHDRAW, w[_pid].move); at = LEAVING

		/* It was made, and the answer is on its way. */
		:: at == CLAIMED -> hear_claim(_pid); at = HOLDING
		:: at == CLAIMED && FAULT -> PAY at = CLAIMING
		:: (at == CLAIMING || at == CLAIMED) && TRIES_TO_CLAIM && FAULT -> PAY withdraw(_pid); at = LEAVING

		/* The claim is there, and the work has not begun. */
		:: at == HOLDING && may_begin(_pid) && !w[_pid].lapsed -> begin(_pid); at = WORKING
		:: at == HOLDING && may_begin(_pid) && w[_pid].lapsed -> at = RESOLVING
		:: at == RESOLVING -> resolve(_pid); at = (w[_pid].move == NOTHING -> HOLDING : ENDING)
		:: at == HOLDING && !LIVE(_pid) -> not_begun(_pid); at = ENDING
		:: at == HOLDING && LIVE(_pid) && FAULT -> PAY not_begun(_pid); at = ENDING

		/* At work, in time or, as a zombie, past the deadline. */
		:: at == WORKING -> end_work(_pid, COMPLETE); at = ENDING
		:: at == WORKING -> end_work(_pid, FAIL); at = ENDING
		:: at == WORKING && FAULT -> PAY end_work(_pid, RELEASE); at = ENDING
		:: at == WORKING && FAULT -> PAY end_work(_pid, LAPSE); at = ENDING
		:: at == WORKING && FAULT -> PAY w[_pid].since = 0; at = RENEWING

		/* At work, while a renewal is under way, or its answer is. */
		:: at == RENEWING -> renew(_pid); at = (made -> RENEWED : WORKING)
		:: at == RENEWING && MAY_STRAY && FAULT -> PAY go_astray(_pid, RENEW, NOTHING); miss(_pid); at = WORKING
		:: at == RENEWED -> hear_renewal(_pid); at = WORKING
		:: at == RENEWED && FAULT -> PAY at = RENEWING
		:: at == RENEWING || at == RENEWED -> miss(_pid); at = WORKING

		/* The work is over, and what came of it is being written. */
		:: at == ENDING -> conclude(_pid); at = LEAVING
		:: at == ENDING && FAULT -> PAY conclude(_pid)
		:: at == ENDING && MAY_STRAY && FAULT -> PAY go_astray(_pid, w[_pid].move, NOTHING)

		:: at != IDLE && FAULT -> PAY crash(_pid); at = LEAVING
		fi;
		if
		:: at == LEAVING -> leave(_pid); at = IDLE
		:: else
		fi;
		made = false;
		tidy()
	}
	od
}

/* ------------------------------------------------------------------------------- operator, network and time */

/* as LedgerSteps.resolve: an operator finds a doubt, or makes one of a lapsed attempt, and asks what became of it. */
inline look()
{
	if
	:: LAPSED -> status = UNKNOWN
	:: else
	fi;
	printf("the operator looks at token %d\n", token);
	looked_at = token; informed = true
}

/* as LedgerSteps.resolve, LedgerSteps._settling: the settlement arrives. */
inline settle(what)
{
	write(what, NONE, looked_at, NOTHING);
	printf("the operator: %e of token %d, made: %d\n", what, looked_at, made);
	if
	:: made && informed -> doubtful = NONE
	:: else
	fi;
	made = false;
	tidy()
}

active proctype Operator()
{
	mtype settlement = NOTHING;
	do
	:: atomic { looked_at == NONE && status == UNKNOWN -> look() }
	:: atomic { looked_at == NONE && LAPSED && FAULT -> PAY look() }
	:: atomic {
		looked_at != NONE ->
		if
		:: true -> settlement = SETTLE_DONE
		:: FAULT -> PAY settlement = SETTLE_UNDONE
		:: true -> settlement = SETTLE_FAILED
		fi;
		settle(settlement);
		settlement = NOTHING;
		if
		:: looked_at = NONE; informed = false
		:: FAULT -> PAY skip
		fi
	}
	od
}

/* A write arrives that nobody waits for any more. */
inline deliver()
{
	tried = stray_tried;
	write(stray, stray_token, stray_seen, stray_claim);
	tried = false;
	printf("the network: %e of token %d, made: %d; the record is %e\n", stray, stray_token, made, status);
	made = false;
	drop();
	tidy()
}

active proctype Network()
{
	do
	:: atomic { stray != NOTHING -> deliver() }
	:: atomic { stray != NOTHING -> drop(); tidy() }
	od
}

inline older(what)
{
	if
	:: what < LEASE -> what++
	:: else
	fi
}

/* as lifecycle.Move, Run.lost: time passes for the lease in the store and for every deadline alike. */
inline tick()
{
	printf("a tick\n");
	if
	:: RUNNING -> older(age)
	:: else
	fi;
	older(w[0].age); older(w[0].since);
	older(w[1].age); older(w[1].since);
#if WORKERS > 2
	older(w[2].age); older(w[2].since);
#endif
	sort()
}

/* as commands.alive: the record's time to live is over. */
inline expire()
{
	printf("the record expires\n");
	overwritten(NONE);
	status = ABSENT; age = LEASE; result = NONE; accepted = NONE; taken = false;
	tidy()
}

active proctype Time()
{
	do
	:: atomic { FAULT -> PAY tick() }
#ifdef PROGRESS
	/* The lease of whoever is gone ends in any case. */
	:: atomic { RUNNING && age < LEASE && token == LEFT -> age = LEASE }
#endif
	:: atomic { may_expire && FAULT -> PAY expire() }
	od
}

#ifdef PROGRESS
ltl in_the_end { []<> (status == COMPLETED || status == FAILED || status == UNKNOWN) }
#endif
