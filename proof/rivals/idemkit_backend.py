"""semel's ledger as a backend of idemkit: `idemkit.backends.base.IdempotencyBackend`."""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Final

import msgspec
from idemkit.core.state import ClaimResult, ClaimResultType, State, StoredRecord

import semel
from semel.core.lifecycle import Status

# How long a record is kept that is not completed; idemkit says only when it completes one.
UNFINISHED: Final = semel.DAY


class Response(msgspec.Struct, frozen=True):
    """What idemkit keeps of a response."""

    status: int
    headers: dict[str, str]
    body: bytes


class SemelBackend:
    """The five methods of a backend, each one call of the ledger, and a look where a claim is only named."""

    def __init__(self, s: semel.Semel) -> None:
        self._clock = s.clock
        self._ledger = s.aio.ledger

    async def claim(
        self, effective_key: str, fingerprint: str, fingerprint_version: int, lease_ttl_seconds: float
    ) -> ClaimResult:
        outcome = await self._ledger.claim(
            effective_key,
            fingerprint=f"{fingerprint_version}:{fingerprint}",
            lease=lease_ttl_seconds,
            ttl=max(UNFINISHED, 2 * lease_ttl_seconds),
            returns=Response,
        )
        if isinstance(outcome, semel.Claimed):
            kind = ClaimResultType.LEASE_RECLAIMED if outcome.lapsed else ClaimResultType.NEW_CLAIMED
            now = self._clock.now()  # the ledger's answer to a claim that is won has no times in it
            made = StoredRecord(
                effective_key,
                State.CLAIMED,
                fingerprint,
                fingerprint_version,
                outcome.token,
                now,
                now + lease_ttl_seconds,
            )
            return ClaimResult(kind, made, outcome.token)
        found = await self._translated(outcome.record)
        done = found.state is State.COMPLETED
        return ClaimResult(
            ClaimResultType.ALREADY_COMPLETED if done else ClaimResultType.ALREADY_CLAIMED, found
        )

    async def complete(  # noqa: PLR0917 - as idemkit calls it
        self,
        effective_key: str,
        claim_token: str,
        response_status: int,
        response_headers: dict[str, str],
        response_body: bytes,
        expires_after_seconds: float,
    ) -> bool:
        claim = await self._named(effective_key, claim_token, ttl=expires_after_seconds)
        response = Response(response_status, response_headers, response_body)
        return claim is not None and await _made(self._ledger.complete(claim, response))

    async def release(self, effective_key: str, claim_token: str) -> bool:
        claim = await self._named(effective_key, claim_token)
        return claim is not None and await _made(self._ledger.release(claim))

    async def renew(self, effective_key: str, claim_token: str, lease_ttl_seconds: float) -> bool:
        claim = await self._named(effective_key, claim_token, lease=lease_ttl_seconds)
        return claim is not None and await _made(self._ledger.renew(claim))

    async def wait_for_completion(self, effective_key: str, timeout_seconds: float) -> StoredRecord | None:
        try:
            record = await self._ledger.wait(effective_key, timeout_seconds)
        except semel.InProgress:
            return None
        if record is None or record.status is not Status.COMPLETED:
            return None
        return await self._translated(record)

    async def _named(
        self, key: str, token: str, *, lease: float = semel.HOUR, ttl: float = UNFINISHED
    ) -> semel.Claimed | None:
        """The claim that this token stands for, if it is one: the ledger's write finds that out."""
        record = await self._ledger.get(key)
        return None if record is None else semel.Claimed(record.id, token, record.attempt, lease, ttl)

    async def _translated(self, record: semel.Record) -> StoredRecord:
        version, _, fingerprint = (record.fingerprint or "0:").partition(":")
        done = record.status is Status.COMPLETED
        found = StoredRecord(
            record.key,
            State.COMPLETED if done else State.CLAIMED,
            fingerprint,
            int(version),
            record.token,
            record.began,
            record.lease_until,
        )
        if not done:
            return found
        kept = await self._ledger.result(record, Response)
        return replace(
            found,
            completed_at=record.updated_at,
            response_status=kept.status,
            response_headers=kept.headers,
            response_body=kept.body,
        )


async def _made(move: Awaitable[None]) -> bool:
    """Whether the ledger made a holder's move: False where the claim is another's."""
    try:
        await move
    except semel.ClaimLost:
        return False
    return True
