/*
 * The ledger, for one key: what workers, an operator, the network and time can do to its record, in any order.
 *
 * docs/explanation/model.md says what is modelled and what is left out; `python -m proof.model` checks it.
 *
 * An inline whose comment begins with "as" is a step: it stands for the functions of src/semel/core that the comment names.
 * WORKERS, LEASE, ON_LAPSED, STRAYS, OVERRIDES, PROGRESS and UNREDUCED choose an instance. Every other switch takes one
 * guard away.
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
mtype = { NOTHING, CLAIM, REPLACE, TAKE_OVER, RECLAIM, HOLD, EXHAUST, EXHAUST_LAPSED, WITHDRAW, WITHDRAW_OWN };
mtype = { RENEW, LAPSE, DOUBT, COMPLETE, FAIL, RELEASE, SETTLE_DONE, SETTLE_UNDONE, SETTLE_FAILED };

/*
 * Tokens are random, and only compared. So a token is named after the place where it is, and no more names are needed than
 * there are places: that is what makes any number of calls finite.
 */
#define NONE 0
#define TOKEN(worker) (worker + 1) /* of the call that this worker makes */
#define LEFT 10                    /* in the record, and its worker is gone */
#define LATE 11                    /* in the network, and its worker is gone */
#define OLD 12                     /* no write has it any more, but it may have been read */
#define BY_HAND 20                 /* no token, but an operator's result */

/* The record. */
mtype status = ABSENT;
bool expired = false; /* the end of its life has passed, and the store has not removed it yet */
byte token = NONE;    /* of the attempt that claimed it last */
byte age = LEASE;     /* of its lease, in ticks; LEASE: the lease has expired */
byte result = NONE;   /* the token of the attempt whose result it holds */
bool taken = false;   /* a take-over claimed it last, and its worker has not heard of that; under `resolve` alone */

/*
 * What a write that was decided from the record expects to find. `lease_until` and `expires_at` are times that never come
 * again: it suffices to know whether the record still has the one that was read.
 */
typedef Write {
	mtype move = NOTHING;
	mtype instead_of = NOTHING; /* of a WITHDRAW: the claim in whose place it is written */
	byte its = NONE;            /* the token of its sender */
	byte seen = NONE;           /* the token that was read */
	bool fresh = false;         /* the lease or, for a REPLACE, the end is still the one that was read */
	bool again = false          /* sent again by a holder whose record was marked as unresolved: it expects UNKNOWN */
};

/* A write that may still arrive, though its sender does not wait for the reply any more. */
Write stray;

mtype = { IDLE, CLAIMING, CLAIMED, WITHDRAWING, HOLDING, RESOLVING, RESOLVED, WORKING };
mtype = { RENEWING, RENEWED, ENDING, LEAVING };

/* The calls of the workers, each with the write that is under way. */
typedef Call {
	mtype at = IDLE;
	mtype move = NOTHING;
	byte seen = NONE;
	bool fresh = false;
	bool again = false;
	byte since = LEASE;  /* ticks since its request was first sent; LEASE: too long ago, or none is under way */
	byte age = LEASE;    /* ticks towards the holder's own deadline; LEASE: it has passed, or nothing is held */
	bool lapsed = false  /* Claimed.lapsed: the lease of the attempt before it expired; under `resolve` alone */
};
Call w[WORKERS];

/* The record that an operator has read, and is about to resolve or to override. */
byte looked_at = NONE;
mtype looked_as = UNKNOWN;
bool looked_fresh = false; /* the record still has the lease that the operator read */

/* What only an observer knows. */
byte accepted = NONE;   /* the first result in this life of the record */
byte unresolved = NONE; /* the token of an attempt that began, while no one has said whether its effect happened */
bool informed = false;  /* no attempt has begun since the operator looked */

/* The store's reply: the write was made. It is false again at the end of every step. */
bool made = false;

byte name = NONE; /* what a token is called from now on; NONE again at the end of every step */

/* ------------------------------------------------------------------------------------------------- promises */

bool one_result = true;      /* at most one accepted result per key */
bool one_holder = true;      /* never two live holders of a claim, and a worker that begins is the one */
bool zombie_refused = true;  /* a holder's write is made only for the attempt that claimed the record last */
bool same_result = true;     /* every caller that gets a result gets the accepted one */
bool no_silent_rerun = true; /* what may have happened runs again only after its resolver or an operator denied it */
bool own_write = true;       /* a sender recognises its own write, and a holder's end is stored while the record is its own */

#define promise(which, held) which = (held); assert(which)

#define LIVE(x) (w[x].age < LEASE)
#if WORKERS == 2
#define HOLDERS (LIVE(0) + LIVE(1))
#else
#define HOLDERS (LIVE(0) + LIVE(1) + LIVE(2))
#endif

/* --------------------------------------------------------------------------------------------------- guards */

#define RUNNING (status == IN_PROGRESS)
#define LAPSED (RUNNING && age == LEASE)
#define ENDED (status == COMPLETED || status == FAILED || status == RELEASED)

/* What each write expects. A condition without a switch is written where it is used. */
#ifdef TOKEN_FROM_KEY
#define has(t) (status != ABSENT)
#else
#define has(t) (token == t)
#endif

#ifdef CLAIM_WITHOUT_ABSENT
#define may_claim true
#else
#define may_claim (status == ABSENT)
#endif

#ifdef REPLACE_WITHOUT_END
#define may_replace(f) (status != ABSENT)
#else
#define may_replace(f) (status != ABSENT && f)
#endif

#ifdef TAKE_OVER_WITHOUT_LEASE
#define may_take_over(t, f) (has(t) && RUNNING)
#elif defined(TAKE_OVER_WITHOUT_STATUS)
#define may_take_over(t, f) (has(t) && f)
#else
#define may_take_over(t, f) (has(t) && RUNNING && f)
#endif

#ifdef GIVE_UP_WITHOUT_LEASE
#define may_give_up_lapsed(t, f) (has(t) && RUNNING)
#else
#define may_give_up_lapsed(t, f) (has(t) && RUNNING && f)
#endif

/* A holder's last write expects IN_PROGRESS and, when it is sent again, UNKNOWN. */
#define EXPECTED(a) (a -> UNKNOWN : IN_PROGRESS)

#ifdef COMPLETE_WITHOUT_TOKEN
#define may_complete(t, a) (status == EXPECTED(a))
#elif defined(COMPLETE_WITHOUT_STATUS)
#define may_complete(t, a) has(t)
#else
#define may_complete(t, a) (has(t) && status == EXPECTED(a))
#endif

#ifdef FAIL_WITHOUT_TOKEN
#define may_fail(t, a) (status == EXPECTED(a))
#elif defined(FAIL_WITHOUT_STATUS)
#define may_fail(t, a) has(t)
#else
#define may_fail(t, a) (has(t) && status == EXPECTED(a))
#endif

#ifdef RELEASE_WITHOUT_TOKEN
#define may_release(t, a) (status == EXPECTED(a))
#elif defined(RELEASE_WITHOUT_STATUS)
#define may_release(t, a) has(t)
#else
#define may_release(t, a) (has(t) && status == EXPECTED(a))
#endif

#ifdef RENEW_WITHOUT_TOKEN
#define may_renew(t) RUNNING
#elif defined(RENEW_WITHOUT_STATUS)
#define may_renew(t) has(t)
#elif defined(RENEW_BRINGS_BACK)
#define may_renew(t) (has(t) && RUNNING || status == ABSENT)
#else
#define may_renew(t) (has(t) && RUNNING)
#endif

#ifdef WITHDRAW_WITHOUT_EXPECTATION
#define may_withdraw(bid, s, f) true
#else
#define may_withdraw(bid, s, f) may_open(bid, s, f)
#endif

#ifdef WITHDRAW_WITHOUT_TOKEN
#define may_withdraw_own(t) RUNNING
#else
#define may_withdraw_own(t) (has(t) && RUNNING)
#endif

#ifdef SETTLE_WITHOUT_TOKEN_AND_LEASE
#define may_settle (status == looked_as)
#elif defined(SETTLE_WITHOUT_STATUS)
#define may_settle (has(looked_at) && looked_fresh)
#elif defined(SETTLE_WITHOUT_LEASE)
#define may_settle (has(looked_at) && status == looked_as)
#else
#define may_settle (has(looked_at) && status == looked_as && (looked_fresh || looked_as != UNKNOWN))
#endif

/* A record outlives its lease, and an unresolved one has no end. */
#ifdef UNKNOWN_EXPIRES
#define may_expire (LAPSED || status == UNKNOWN || ENDED)
#elif defined(EXPIRES_BEFORE_LEASE)
#define may_expire (RUNNING || ENDED)
#else
#define may_expire (LAPSED && ON_LAPSED == RERUN || ENDED)
#endif

/* A sender's own write, found where it is refused. */
#ifdef OWN_CLAIM_NOT_KNOWN
#define is_mine(t) false
#else
#define is_mine(t) (has(t) && RUNNING)
#endif

#define mine(t, to) (token == t && status == to && (to != COMPLETED || result == t))
#ifdef OWN_WORK_NOT_KNOWN
#define was_made(t, to) false
#elif defined(RESENT_WITHOUT_TOKEN)
#define was_made(t, to) (status == to)
#else
#define was_made(t, to) mine(t, to)
#endif

#ifdef NOT_SENT_AGAIN
#define held_as(t) false
#else
#define held_as(t) (has(t) && status == UNKNOWN)
#endif

/* The holder's deadline, and what it does about it. */
#ifdef DEADLINE_FROM_REPLY
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

#ifdef WITHDRAWN_AS_RELEASED
#define withdrawn_lapsed(bid) false
#else
#define withdrawn_lapsed(bid) (bid == TAKE_OVER)
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
#define MAY_STRAY (stray.move == NOTHING)
#else
#define MAY_STRAY false
#endif

/* Faults have no end; where progress is asked for, there are PROGRESS of them. */
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
#define OPENS(what) (what == CLAIM || ABOUT(what, REPLACE, TAKE_OVER, RECLAIM))
#define GIVES_UP(what) ABOUT(what, HOLD, EXHAUST, EXHAUST_LAPSED)
#define ENDS(what) ABOUT(what, COMPLETE, FAIL, RELEASE)
#define SETTLES(what) ABOUT(what, SETTLE_DONE, SETTLE_UNDONE, SETTLE_FAILED)
#define HOLDERS_OWN(what) (ABOUT(what, RENEW, LAPSE, DOUBT) || ENDS(what) || what == WITHDRAW_OWN)
#define MOVES_LEASE(what) (OPENS(what) || ABOUT(what, RENEW, LAPSE, WITHDRAW) || what == WITHDRAW_OWN)

/* --------------------------------------------------------------------------------------------------- tokens */

#define NAMED(place, before, now) place = (place == before -> now : place)

inline renamed(before, now)
{
	NAMED(token, before, now); NAMED(result, before, now); NAMED(accepted, before, now);
	NAMED(unresolved, before, now); NAMED(looked_at, before, now);
	NAMED(stray.its, before, now); NAMED(stray.seen, before, now);
	NAMED(w[0].seen, before, now); NAMED(w[1].seen, before, now);
#if WORKERS > 2
	NAMED(w[2].seen, before, now);
#endif
	name = NONE
}

/* as runtime.random_token: this worker's next token is a new one. */
inline draw_token(me)
{
	name = (token == TOKEN(me) -> LEFT : (stray.its == TOKEN(me) -> LATE : OLD));
	renamed(TOKEN(me), name)
}

/* A token that only the record had is gone once another is written over it. */
inline overwritten(now)
{
	if
	:: token == LEFT && now != LEFT -> name = (stray.its == LEFT -> LATE : OLD); renamed(LEFT, name)
	:: else
	fi;
	token = now
}

/* Nothing is on its way any more. */
inline drop()
{
	stray.move = NOTHING; stray.instead_of = NOTHING; stray.its = NONE;
	stray.seen = NONE; stray.fresh = false; stray.again = false;
	name = (token == LATE -> LEFT : OLD);
	renamed(LATE, name)
}

/* The operator is done: the reply has come, or can only be a refusal, or is not waited for. */
inline look_away()
{
	looked_at = NONE; looked_as = UNKNOWN; looked_fresh = false; informed = false
}

/* ------------------------------------------------------------------------------------------------ reductions */

/*
 * What makes no difference is left out: an expectation that the record cannot meet any more, the call of a worker that has
 * lost its claim, and which of several equal workers is where. The guards see to that, so mutants are searched UNREDUCED.
 * So is progress, since a worker is treated fairly only while it has one number. Two workers are searched both ways.
 */

/* Whether a token that was read is in the record, or can come back into it. */
#define BRINGS(what) (OPENS(what) || GIVES_UP(what))
#define BROUGHT_BY(x, t) (t == TOKEN(x) && BRINGS(w[x].move) && w[x].at != WITHDRAWING)
#if WORKERS == 2
#define BROUGHT_BY_WORKERS(t) (BROUGHT_BY(0, t) || BROUGHT_BY(1, t))
#else
#define BROUGHT_BY_WORKERS(t) (BROUGHT_BY(0, t) || BROUGHT_BY(1, t) || BROUGHT_BY(2, t))
#endif
#define ALIVE(t) (token == t || stray.its == t && (BRINGS(stray.move) || stray.move == WITHDRAW) || BROUGHT_BY_WORKERS(t))

/* Whether the record can still be what a claimant's write expects. */
#define POSSIBLE(what, s, f) (what == CLAIM || what == REPLACE && f || (what == RECLAIM || what == EXHAUST) && ALIVE(s) \
	|| ABOUT(what, TAKE_OVER, HOLD, EXHAUST_LAPSED) && token == s && RUNNING && f)

/* Neither the record nor a late write has this worker's token. */
#define GONE(x) (token != TOKEN(x) && stray.its != TOKEN(x))

/*
 * A claimant whose write will be refused has to decide again: if its token is nowhere, it is as a new claimant. Otherwise it
 * may find its own claim, so it matters whether it has tried to take over.
 */
inline tidy_claim(me)
{
	if
	:: BRINGS(w[me].move) && w[me].at != WITHDRAWING && !POSSIBLE(w[me].move, w[me].seen, w[me].fresh) ->
		w[me].fresh = false;
		if
		:: GONE(me) || GIVES_UP(w[me].move) -> w[me].move = CLAIM; w[me].seen = NONE
		:: else -> w[me].move = (w[me].move == TAKE_OVER -> TAKE_OVER : RECLAIM); w[me].seen = OLD
		fi
	:: else
	fi
}

/*
 * A worker that has lost its claim, and whose deadline has passed, cannot begin and has no write that can be made: it is as
 * one that is gone. It is not while a reply is on its way that may extend its deadline.
 */
#define WAITS(x) (w[x].at == CLAIMED || w[x].at == RENEWED)
#define HOLDS_NOTHING(x) (w[x].at == IDLE || w[x].at == CLAIMING)

inline tidy_holder(me)
{
	if
	:: GONE(me) && !LIVE(me) && !HOLDS_NOTHING(me) && (!WAITS(me) || w[me].since == LEASE) -> leave(me); w[me].at = IDLE
	:: else
	fi
}

/* Workers are equal. So they are kept in an order, and the other ways to number them are not searched. */
#define HAS(x, place) (place == TOKEN(x))
#define KNOWN(x) (((HAS(x, token) * 2 + HAS(x, stray.its)) * 2 + HAS(x, unresolved)) * 2 + HAS(x, looked_at))
#define TIMES(x) ((w[x].age * 4 + w[x].since) * 2 + w[x].lapsed)
#define READ(x) (((w[x].seen == NONE) * 2 + (w[x].seen == token)) * 4 + w[x].fresh * 2 + w[x].again)
#define RANK(x) ((((w[x].at * 64 + w[x].move) * 32 + TIMES(x)) * 16 + KNOWN(x)) * 16 + READ(x))

#define SWAPPED(x, y, what) aside = w[x].what; w[x].what = w[y].what; w[y].what = aside
#define EXCHANGED(place, x, y) place = (place == TOKEN(x) -> TOKEN(y) : (place == TOKEN(y) -> TOKEN(x) : place))

byte aside = NONE; /* NONE again at the end of every step */

inline in_order(x, y)
{
	if
	:: RANK(x) > RANK(y) ->
		SWAPPED(x, y, at); SWAPPED(x, y, move); SWAPPED(x, y, seen); SWAPPED(x, y, fresh); SWAPPED(x, y, again);
		SWAPPED(x, y, since); SWAPPED(x, y, age); SWAPPED(x, y, lapsed);
		EXCHANGED(token, x, y); EXCHANGED(result, x, y); EXCHANGED(accepted, x, y);
		EXCHANGED(unresolved, x, y); EXCHANGED(looked_at, x, y);
		EXCHANGED(stray.its, x, y); EXCHANGED(stray.seen, x, y);
		EXCHANGED(w[0].seen, x, y); EXCHANGED(w[1].seen, x, y)
#if WORKERS > 2
		; EXCHANGED(w[2].seen, x, y)
#endif
		; aside = NONE
	:: else
	fi
}

inline sort()
{
#if WORKERS > 2
	in_order(0, 1); in_order(1, 2); in_order(0, 1)
#else
	skip
#endif
}

#define AWAITED(x) (token == TOKEN(x) && (w[x].at == CLAIMING || w[x].at == CLAIMED))
#if WORKERS == 2
#define CLAIM_AWAITED (AWAITED(0) || AWAITED(1))
#else
#define CLAIM_AWAITED (AWAITED(0) || AWAITED(1) || AWAITED(2))
#endif

#ifdef UNREDUCED
inline tidy()
{
	skip
}
#else
inline tidy()
{
	if
	:: stray.move == NOTHING
	:: BRINGS(stray.move) && POSSIBLE(stray.move, stray.seen, stray.fresh)
	:: stray.move == WITHDRAW && POSSIBLE(stray.instead_of, stray.seen, stray.fresh)
	:: HOLDERS_OWN(stray.move) && token == stray.its && status == EXPECTED(stray.again)
	:: else -> drop()
	fi;
	tidy_claim(0); tidy_claim(1);
	tidy_holder(0); tidy_holder(1);
#if WORKERS > 2
	tidy_claim(2);
	tidy_holder(2);
#endif
	if
	:: looked_at != NONE && (looked_as == UNKNOWN -> !looked_fresh || status != UNKNOWN : !ALIVE(looked_at)) -> look_away()
	:: else
	fi;
	taken = (taken && CLAIM_AWAITED);
	sort()
}
#endif

/* ------------------------------------------------------------------------------------------------ the store */

#define may_open(what, s, f) (what == CLAIM && may_claim || what == REPLACE && may_replace(f) \
	|| what == TAKE_OVER && may_take_over(s, f) || what == RECLAIM && has(s) && status == RELEASED)
#define may_give_up(what, s, f) ((what == HOLD || what == EXHAUST_LAPSED) && may_give_up_lapsed(s, f) \
	|| what == EXHAUST && has(s) && status == RELEASED)
#define may_go_on(what, t) (what == RENEW && may_renew(t) || (what == LAPSE || what == DOUBT) && has(t) && RUNNING)
#define may_end(what, t, a) (what == COMPLETE && may_complete(t, a) || what == FAIL && may_fail(t, a) \
	|| what == RELEASE && may_release(t, a))

/* as commands.allowed, ledger.as_read, Move.expects: a write is made if the record is what the write expects. */
inline write(put, what, own, bid)
{
	made = (may_open(what, put.seen, put.fresh) || may_give_up(what, put.seen, put.fresh) || may_go_on(what, own)
		|| may_end(what, own, put.again) || SETTLES(what) && may_settle
		|| what == WITHDRAW && may_withdraw(bid, put.seen, put.fresh) || what == WITHDRAW_OWN && may_withdraw_own(own));
	if
	:: made -> leave_as(what, own, bid)
	:: else
	fi
}

/* A lease or an end that was read is not the record's any more. */
#define OUTDATED(put, what, bid) put.fresh = (put.fresh && put.move != REPLACE && bid != REPLACE && !MOVES_LEASE(what))

/* as commands.outcome, ledger.new_record, ledger.apply_move: what a write leaves; each one moves the end of the record's life. */
inline leave_as(what, own, bid)
{
	promise(zombie_refused, !HOLDERS_OWN(what) || token == own);
	if
	:: expired && (OPENS(what) || what == WITHDRAW) -> accepted = NONE
	:: else
	fi;
	if
	:: OPENS(what) || what == WITHDRAW ->
		overwritten(own); result = NONE; taken = (ON_LAPSED == RESOLVE && what == TAKE_OVER)
	:: what == COMPLETE || what == SETTLE_DONE ->
		result = (what == COMPLETE -> own : BY_HAND); accepted = (accepted == NONE -> result : accepted)
	:: else
	fi;
	if
	:: what == COMPLETE || what == FAIL || what == RELEASE && unresolved == own -> unresolved = NONE
	:: else
	fi;
	if
	:: OPENS(what) || what == RENEW -> status = IN_PROGRESS; age = 0
	:: what == LAPSE || (what == WITHDRAW || what == WITHDRAW_OWN) && withdrawn_lapsed(bid) -> status = IN_PROGRESS; age = LEASE
	:: what == COMPLETE || what == SETTLE_DONE -> status = COMPLETED; age = LEASE
	:: what == FAIL || what == SETTLE_FAILED || what == EXHAUST || what == EXHAUST_LAPSED -> status = FAILED; age = LEASE
	:: what == RELEASE || what == SETTLE_UNDONE || (what == WITHDRAW || what == WITHDRAW_OWN) && !withdrawn_lapsed(bid) ->
		status = RELEASED; age = LEASE
	:: what == DOUBT || what == HOLD -> status = UNKNOWN; age = LEASE
	fi;
	expired = false;
	looked_fresh = (looked_fresh && !MOVES_LEASE(what));
	OUTDATED(stray, what, stray.instead_of); OUTDATED(w[0], what, NOTHING); OUTDATED(w[1], what, NOTHING);
#if WORKERS > 2
	OUTDATED(w[2], what, NOTHING);
#endif
	promise(one_result, accepted == NONE || status == COMPLETED && result == accepted)
}

/* -------------------------------------------------------------------------------------------------- workers */

/* The call is over, however it ended. */
inline leave(me)
{
	w[me].move = NOTHING; w[me].seen = NONE; w[me].fresh = false; w[me].again = false;
	w[me].since = LEASE; w[me].age = LEASE; w[me].lapsed = false;
	draw_token(me)
}

/* A claimant is about to send this write. */
inline follow(me, what, read, same)
{
	w[me].move = what; w[me].seen = read; w[me].fresh = same
}

/* as Flow.steps, LedgerSteps.claim_on: a call begins; its deadline is counted from here. */
inline call(me)
{
	printf("worker %d calls\n", me);
	follow(me, CLAIM, NONE, false);
	w[me].since = 0
}

/* as LedgerSteps.claim_on, PendingClaim.is_mine, LedgerSteps._give_up: a claimant's write arrives, and its reply is judged. */
inline claim(me, chance)
{
	write(w[me], w[me].move, TOKEN(me), NOTHING);
	printf("worker %d: %e, made: %d; the record is %e, token %d\n", me, w[me].move, made, status, token);
	if
	:: GIVES_UP(w[me].move) -> made = false; follow(me, CLAIM, NONE, false)
	:: else ->
		if
		:: made -> w[me].lapsed = taken
		:: !made && status == ABSENT -> follow(me, CLAIM, NONE, false)
		:: !made && expired -> follow(me, REPLACE, NONE, true)
		:: !made && status != ABSENT && !expired && is_mine(TOKEN(me)) ->
			/* The claim that came through has the attempt of the last one that was sent, or by chance the same number. */
			made = true; w[me].lapsed = (ON_LAPSED == RESOLVE && w[me].move == TAKE_OVER && (taken || chance))
		:: else ->
			promise(own_write, !(token == TOKEN(me) && RUNNING));
			next_move(me, chance)
		fi
	fi
}

/* as ledger.next_move, ledger.as_read, PendingClaim.follow, LedgerSteps._outcome: what a claimant does about the record. */
inline next_move(me, chance)
{
	if
	:: token == TOKEN(me) -> draw_token(me)
	:: else
	fi;
	if
	:: status == RELEASED -> follow(me, (chance -> EXHAUST : RECLAIM), token, false)
	:: can_move && holds_lapsed -> follow(me, HOLD, token, true)
	:: can_move && !holds_lapsed ->
		follow(me, (ON_LAPSED == RERUN && chance -> EXHAUST_LAPSED : TAKE_OVER), token, true)
	:: status == COMPLETED -> promise(same_result, result == accepted); follow(me, NOTHING, NONE, false)
	:: else -> follow(me, NOTHING, NONE, false)
	fi
}

/* as Run.__post_init__: the reply to a claim arrives. */
inline hear_claim(me)
{
	printf("worker %d has the claim\n", me);
	follow(me, NOTHING, NONE, false);
	w[me].age = counted_from(w[me].since); w[me].since = LEASE;
	promise(one_holder, HOLDERS <= 1)
}

/* as Flow._resolve: the resolver says that an earlier attempt's effect did not happen; it knows of none that began since. */
inline deny(me)
{
	printf("worker %d: the effect did not happen\n", me);
	unresolved = (token == TOKEN(me) -> NONE : unresolved)
}

/* as Flow._give_back, Flow._obstacle: the work does not begin, because the deadline has passed or the process is to stop. */
inline not_begun(me)
{
	if
	:: left_to_policy(me) -> end_work(me, LAPSE)
	:: else -> end_work(me, RELEASE)
	fi
}

/* as Flow.begin, Flow._obstacle: the work begins; from now on its effect may have happened. */
inline begin(me)
{
	printf("worker %d begins\n", me);
	w[me].lapsed = false;
	promise(one_holder, token == TOKEN(me) && RUNNING && age < LEASE);
	promise(no_silent_rerun, ON_LAPSED == RERUN || unresolved == NONE);
	if
	:: ON_LAPSED != RERUN -> unresolved = TOKEN(me); informed = false
	:: else
	fi
}

/* as LedgerSteps.renew, heartbeat.beat: a renewal arrives. */
inline renew(me)
{
	write(w[me], RENEW, TOKEN(me), NOTHING);
	printf("worker %d: RENEW, made: %d\n", me, made);
	if
	:: made
	:: else -> lose(me)
	fi
}

/* as Run.renewed: the reply to a renewal arrives. */
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

/* as Run.missed: no reply to a renewal arrives. */
inline miss(me)
{
	w[me].since = LEASE
}

/* as Flow._settle, Flow._give_back, Flow._resolve, Flow.end: the work is over, and its end is to be written. */
inline end_work(me, what)
{
	printf("worker %d is to %e\n", me, what);
	w[me].move = what; w[me].age = LEASE; w[me].since = LEASE; w[me].lapsed = false
}

/* The state that a holder's last write leaves. */
#define LEADS_TO(what) (what == COMPLETE -> COMPLETED : (what == FAIL -> FAILED : (what == RELEASE -> RELEASED : \
	(what == DOUBT -> UNKNOWN : IN_PROGRESS))))

/* as LedgerSteps.end, LedgerSteps._send_while_held: the holder's last write arrives. */
inline send_end(me)
{
	write(w[me], w[me].move, TOKEN(me), NOTHING);
	printf("worker %d: %e, made: %d; the record is %e, token %d\n", me, w[me].move, made, status, token)
}

/* as LedgerSteps.end, LedgerSteps._judge, ledger.already_applied, ledger.held_as: the holder reads the reply to its last write. */
inline conclude(me)
{
	if
	:: made || was_made(TOKEN(me), LEADS_TO(w[me].move)) ->
		promise(same_result, w[me].move != COMPLETE || accepted == TOKEN(me));
		w[me].at = LEAVING
	:: else ->
		promise(own_write, !mine(TOKEN(me), LEADS_TO(w[me].move)));
		if
		:: ENDS(w[me].move) && !w[me].again && held_as(TOKEN(me)) -> w[me].again = true
		:: else -> promise(own_write, !(ENDS(w[me].move) && token == TOKEN(me) && status == UNKNOWN)); w[me].at = LEAVING
		fi
	fi
}

/* as PendingClaim.withdrawn, PendingCall.withdrawn: a caller is interrupted, and writes a spent record in its claim's place. */
inline withdraw(me)
{
	write(w[me], WITHDRAW, TOKEN(me), w[me].move);
	printf("worker %d: WITHDRAW, made: %d\n", me, made);
	follow(me, (withdrawn_lapsed(w[me].move) -> TAKE_OVER : CLAIM), NONE, false);
	w[me].since = LEASE; w[me].lapsed = false;
	w[me].at = (made || status == ABSENT -> LEAVING : WITHDRAWING)
}

/* as PendingClaim.withdrawn: that was refused, so the spent record is written over the claim, if the claim is there. */
inline withdraw_own(me)
{
	write(w[me], WITHDRAW_OWN, TOKEN(me), w[me].move);
	printf("worker %d: WITHDRAW_OWN, made: %d\n", me, made)
}

/* as commands.resend, ledger._attempted: no reply comes, and the write may arrive late; it is sent again, or given up. */
inline go_astray(me, what, bid)
{
	printf("worker %d: %e goes astray\n", me, what);
	stray.move = what; stray.instead_of = bid; stray.its = TOKEN(me);
	stray.seen = w[me].seen; stray.fresh = w[me].fresh; stray.again = w[me].again
}

/* The process dies, or gives up without a reply. */
inline crash(me)
{
	printf("worker %d is gone\n", me)
}

#define at w[_pid].at
#define TRIES_TO_CLAIM OPENS(w[_pid].move)
#define NOT_BEGUN (at == HOLDING || at == RESOLVED)
#define MAY_WORK (at == HOLDING && !w[_pid].lapsed || at == RESOLVED)
#define AT_WORK (at == RESOLVING || at == WORKING)
#define BACK_AT_WORK (w[_pid].lapsed -> RESOLVING : WORKING)
/* Whether the numbers of attempts, which are not modelled, decide what the claimant does next. */
#define BY_CHANCE (status == RELEASED || LAPSED || w[_pid].move == TAKE_OVER)

active [WORKERS] proctype Worker()
{
	do
	:: atomic {
		if
		:: d_step { at == IDLE -> call(_pid); at = CLAIMING }

		/* A write of the claim is under way. */
		:: d_step { at == CLAIMING ->
			claim(_pid, false); at = (made -> CLAIMED : (w[_pid].move == NOTHING -> LEAVING : CLAIMING)) }
		:: d_step { at == CLAIMING && BY_CHANCE ->
			claim(_pid, true); at = (made -> CLAIMED : (w[_pid].move == NOTHING -> LEAVING : CLAIMING)) }
		:: d_step { at == CLAIMING && MAY_STRAY && FAULT -> PAY go_astray(_pid, w[_pid].move, NOTHING) }
		:: d_step { at == CLAIMING && MAY_STRAY && TRIES_TO_CLAIM && FAULT ->
			PAY go_astray(_pid, WITHDRAW, w[_pid].move); at = LEAVING }

		/* It was made, and the reply is on its way. */
		:: d_step { at == CLAIMED -> hear_claim(_pid); at = HOLDING }
		:: d_step { at == CLAIMED && FAULT -> PAY at = CLAIMING; w[_pid].lapsed = false }
		:: d_step { (at == CLAIMING || at == CLAIMED) && TRIES_TO_CLAIM && FAULT -> PAY withdraw(_pid) }
		:: d_step { at == WITHDRAWING -> withdraw_own(_pid); at = LEAVING }
		:: d_step { at == WITHDRAWING && MAY_STRAY && FAULT ->
			PAY go_astray(_pid, WITHDRAW_OWN, w[_pid].move); at = LEAVING }

		/* The claim is held, and the work has not begun. */
		:: d_step { at == HOLDING && may_begin(_pid) && w[_pid].lapsed -> at = RESOLVING }
		:: d_step { MAY_WORK && may_begin(_pid) -> begin(_pid); at = WORKING }
		:: d_step { NOT_BEGUN && !LIVE(_pid) -> not_begun(_pid); at = ENDING }
		:: d_step { NOT_BEGUN && LIVE(_pid) && FAULT -> PAY not_begun(_pid); at = ENDING }
		/* Under `rerun` the model does not know which attempts follow one whose lease expired. */
		:: d_step { at == HOLDING && ON_LAPSED == RERUN && FAULT -> PAY end_work(_pid, LAPSE); at = ENDING }

		/* The resolver is asked about the attempt before. */
		:: d_step { at == RESOLVING -> deny(_pid); at = RESOLVED }

		/* The resolver or the work ends, in time or, as a zombie, past the deadline. */
		:: d_step { AT_WORK -> end_work(_pid, COMPLETE); at = ENDING }
		:: d_step { AT_WORK -> end_work(_pid, FAIL); at = ENDING }
		:: d_step { AT_WORK && (at == RESOLVING || FAULT) ->
			if
			:: at == WORKING -> PAY skip
			:: else
			fi;
			end_work(_pid, DOUBT); at = ENDING }
		:: d_step { AT_WORK && FAULT -> PAY end_work(_pid, LAPSE); at = ENDING }
		:: d_step { at == WORKING && FAULT -> PAY end_work(_pid, RELEASE); at = ENDING }

		/* Meanwhile a renewal is under way, or its reply is. */
		:: d_step { AT_WORK && FAULT -> PAY w[_pid].since = 0; at = RENEWING }
		:: d_step { at == RENEWING -> renew(_pid); at = (made -> RENEWED : BACK_AT_WORK) }
		:: d_step { at == RENEWING && MAY_STRAY && FAULT ->
			PAY go_astray(_pid, RENEW, NOTHING); miss(_pid); at = BACK_AT_WORK }
		:: d_step { at == RENEWED -> hear_renewal(_pid); at = BACK_AT_WORK }
		:: d_step { at == RENEWED && FAULT -> PAY at = RENEWING }
		:: d_step { at == RENEWING || at == RENEWED -> miss(_pid); at = BACK_AT_WORK }

		/* The work is over, and its end is being written. */
		:: d_step { at == ENDING -> send_end(_pid); conclude(_pid) }
		:: d_step { at == ENDING && FAULT -> PAY send_end(_pid) }
		:: d_step { at == ENDING && MAY_STRAY && FAULT -> PAY go_astray(_pid, w[_pid].move, NOTHING) }

		:: d_step { at != IDLE && FAULT -> PAY crash(_pid); at = LEAVING }
		fi;
		d_step {
			if
			:: at == LEAVING -> leave(_pid); at = IDLE
			:: else
			fi;
			made = false;
			tidy()
		}
	}
	od
}

/* ------------------------------------------------------------------------------- operator, network and time */

/* as LedgerSteps.resolve, LedgerSteps.override: an operator reads the record. */
inline look()
{
	printf("the operator looks at token %d, which is %e\n", token, status);
	looked_at = token; looked_as = UNKNOWN; looked_fresh = true; informed = true
}

/* as LedgerSteps.resolve, LedgerSteps._give_up: an attempt whose lease has expired is marked as unresolved before. */
inline look_at_lapsed()
{
	leave_as(HOLD, NONE, NOTHING);
	look()
}

/* as LedgerSteps.resolve, LedgerSteps.override, LedgerSteps._settling: the resolution arrives. */
inline settle(what)
{
	write(stray, what, NONE, NOTHING);
	printf("the operator: %e of token %d, made: %d\n", what, looked_at, made);
	if
	:: made && (informed || what != SETTLE_UNDONE) -> unresolved = NONE
	:: else
	fi;
	made = false
}

active proctype Operator()
{
	do
	:: d_step { looked_at == NONE && status == UNKNOWN && !expired -> look(); tidy() }
	:: d_step { looked_at == NONE && LAPSED && !expired && FAULT -> PAY look_at_lapsed(); tidy() }
#ifdef SETTLE_WITHOUT_LEASE
	/* The lease is renewed before the attempt is marked; else an operator that looks later stands for this one. */
	:: d_step { looked_at == NONE && LAPSED && !expired && FAULT -> PAY look(); tidy() }
#endif
#ifdef OVERRIDES
	:: d_step { looked_at == NONE && (status == FAILED || status == RELEASED) && !expired && FAULT ->
		PAY look(); looked_as = status; looked_fresh = false; tidy() }
#endif
	:: atomic {
		looked_at != NONE ->
		if
		:: d_step { true -> settle(SETTLE_DONE) }
		:: d_step { FAULT -> PAY settle(SETTLE_UNDONE) }
		:: d_step { true -> settle(SETTLE_FAILED) }
		fi;
		if
		:: d_step { true -> look_away(); tidy() }
		:: d_step { FAULT -> PAY tidy() }
		fi
	}
	od
}

/* A write arrives whose sender does not wait for it any more. */
inline deliver()
{
	write(stray, stray.move, stray.its, stray.instead_of);
	printf("the network: %e of token %d, made: %d; the record is %e\n", stray.move, stray.its, made, status);
	made = false;
	drop()
}

active proctype Network()
{
	do
	:: d_step { stray.move != NOTHING -> deliver(); tidy() }
	:: d_step { stray.move != NOTHING -> drop(); tidy() }
	od
}

inline older(what)
{
	if
	:: what < LEASE -> what++
	:: else
	fi
}

/* as ledger.is_running, Run.lost: time passes, for the lease in the store and for every deadline. */
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
	older(w[2].age); older(w[2].since)
#endif
}

/* as commands.alive: the end of the record's life has passed; until the record is removed, writes find it as it is. */
inline expire()
{
	printf("the record expires\n");
	expired = true
}

/* as Reaping.reap: the store removes an expired record. */
inline reap()
{
	printf("the record is removed\n");
	overwritten(NONE);
	status = ABSENT; age = LEASE; result = NONE; accepted = NONE; taken = false; expired = false;
	looked_fresh = false; stray.fresh = false; w[0].fresh = false; w[1].fresh = false;
#if WORKERS > 2
	w[2].fresh = false
#endif
}

active proctype Time()
{
	do
	:: d_step { FAULT -> PAY tick(); tidy() }
#ifdef PROGRESS
	/* The lease of a worker that is gone ends in any case. */
	:: d_step { RUNNING && age < LEASE && token == LEFT -> age = LEASE }
#endif
	:: d_step { may_expire && !expired && FAULT -> PAY expire(); tidy() }
	:: d_step { expired -> reap(); tidy() }
	od
}

#ifdef PROGRESS
ltl in_the_end { []<> (!expired && (status == COMPLETED || status == FAILED || status == UNKNOWN)) }
#endif
