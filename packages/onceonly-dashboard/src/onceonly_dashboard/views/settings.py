"""The effective settings of each endpoint, and those that are legal but risky, each with advice."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from msgspec import Struct

from onceonly.config.deduplication import DedupStore, History, Off, Shadow, Tokens
from onceonly.config.endpoint import Settings
from onceonly.config.location import shown
from onceonly.config.retention import RetentionPromise
from onceonly.model.wording import in_words
from onceonly.ports.transport import BrokerReport
from onceonly_dashboard.endpoint_probes import EndpointProbes
from onceonly_dashboard.page_request import PageContent, PageRequest, PageServices
from onceonly_dashboard.probes import answer_or_reason, answering

SHORT_RETENTION = timedelta(days=1)
LONG_TIMEOUT_SECONDS = 300.0
LONG_RELAY_SECONDS = 60.0


class Risk(Struct, frozen=True, kw_only=True):
    """One risky setting: what can happen, and what to do."""

    setting: str
    risk: str
    advice: str


class Setting(Struct, frozen=True, kw_only=True):
    """One effective setting, as text. URLs are without user, password and options."""

    name: str
    value: str


async def settings(request: PageRequest, services: PageServices) -> PageContent:
    """Show the settings and risks of all endpoints, or of those named by `endpoint`."""
    chosen = services.chosen(request)
    brokers = await asyncio.gather(*(_broker(each) for each in chosen))
    found = [
        {
            "name": each.name,
            "settings": settings_of(each.settings),
            "risks": [*risks_of(each.settings), *risks],
            "broker": broker,
            "broker_unknown": unknown,
            "broker_checked": checked,
        }
        for each, (broker, risks, unknown, checked) in zip(chosen, brokers, strict=True)
    ]
    common = common_settings([settings_of(each.settings) for each in chosen])
    data = {"endpoints": found, "common": common}
    return PageContent(template="settings.html", title="Settings", data=data)


def common_settings(endpoints: Sequence[Sequence[Setting]]) -> tuple[Setting, ...]:
    """Return the settings that are equal for all of several endpoints. Nothing for a single one."""
    first, *others = endpoints or ((),)
    return tuple(each for each in first if others and all(each in other for other in others))


async def _broker(probes: EndpointProbes) -> tuple[list[tuple[str, str]], list[Risk], str, bool]:
    """Return what the broker reports about the queue: settings, risks, why they are unknown, and whether it did."""
    if probes.queue.outage is not None:
        return [], [], probes.queue.outage.reason, False

    async def check() -> BrokerReport | None:
        async with answering():
            return await probes.check_broker()

    report, reason = await answer_or_reason(check)
    if report is None:
        return [], [], reason, False
    risks = [Risk(setting="broker", risk=warning, advice="Correct the broker's settings.") for warning in report.warnings]
    return list(report.settings), risks, "", True


def settings_of(settings: Settings) -> tuple[Setting, ...]:
    retry, worker = settings.retry, settings.worker
    pairs: Mapping[str, object] = {
        "store": shown(settings.store),
        "transport": shown(settings.transport),
        "dead_letters": shown(settings.dead_letters) if settings.dead_letters is not None else "in the store",
        "deduplication": _deduplication(settings),
        "blobs": shown(settings.blobs) if settings.blobs is not None else "none",
        "peers": ", ".join(shown(peer.url) for peer in settings.all_peers) or "none",
        "retry": (
            f"{retry.immediate} immediate, {retry.delayed} delayed: first after {in_words(retry.first_delay)}, "
            f"then {retry.factor:g} times as long, at most {in_words(retry.max_delay)}"
        ),
        "manual_retry": in_words(settings.manual_retry) if settings.manual_retry else "0",
        "timeout": in_words(settings.timeout),
        "max_commit": in_words(settings.max_commit),
        "max_hops": "no limit" if settings.max_hops is None else f"{settings.max_hops:,}",
        "carry_headers": ", ".join(settings.carry_headers) or "none",
        "relay_after": in_words(settings.relay_after),
        "janitor": f"every {in_words(settings.interval)}" if settings.janitor else "not in workers",
        "presence": "every 10 s" if settings.presence else "not reported",
        "isolation": settings.isolation or "of the database",
        "health": settings.health or "none",
        "worker": (
            f"batches of {worker.batch_size:,}, {worker.at_once} at once, up to {worker.max_concurrency} while handlers wait; "
            f"grace {in_words(worker.grace)}"
        ),
    }
    return tuple(Setting(name=name, value=str(value)) for name, value in pairs.items())


def _deduplication(settings: Settings) -> str:
    chosen = settings.deduplication
    match chosen:
        case History():
            return f"History, claims kept for {in_words(chosen.retention)}"
        case DedupStore():
            return f"DedupStore at {shown(chosen.url)}, kept for {in_words(chosen.retention)}"
        case Tokens():
            return f"Tokens at {shown(chosen.url)}" if chosen.url else "Tokens in the store"
        case Shadow():
            return f"Shadow: at-least-once, claims kept for {in_words(chosen.retention)}"
        case _:
            return "Off: at-least-once"


def risks_of(settings: Settings) -> Iterator[Risk]:
    """Yield the risky settings."""
    yield from _duplicates(settings)
    if not settings.janitor:
        yield Risk(
            setting="janitor=False",
            risk="Workers do not delete expired claims. When no other process does, messages wait for their time bucket.",
            advice="Run `onceonly janitor` for this endpoint, or remove the setting.",
        )
    for role, place in (("store", settings.places.store), ("transport", settings.places.transport)):
        if not place.is_shared:
            yield Risk(
                setting=f"{role} in memory",
                risk="Everything in it is lost when the process ends, and other processes do not see it.",
                advice="Use a database or a broker outside of tests.",
            )
    if settings.max_hops is None:
        yield Risk(
            setting="max_hops=None",
            risk="Two endpoints that answer each other without end fill the queues.",
            advice="Set a limit, unless a handler sends itself the next message of a timer.",
        )
    if settings.timeout > LONG_TIMEOUT_SECONDS:
        yield Risk(
            setting=f"timeout of {in_words(settings.timeout)}",
            risk="A handler that hangs keeps its batch and its database connection for that long.",
            advice="Set the timeout to a little more than the longest handler needs.",
        )
    if settings.relay_after > LONG_RELAY_SECONDS:
        yield Risk(
            setting=f"relay_after of {in_words(settings.relay_after)}",
            risk="Messages of a process that died after its commit are sent only after that time.",
            advice="Use the default of 10 s unless commits and sends are slow.",
        )


def _duplicates(settings: Settings) -> Iterator[Risk]:
    chosen = settings.deduplication
    if isinstance(chosen, Off | Shadow):
        yield Risk(
            setting=f"deduplication={type(chosen).__name__}()",
            risk="A duplicate is handled again. A retried dead letter may be handled twice.",
            advice="Use History(), unless the handlers are idempotent.",
        )
        return
    if isinstance(chosen, Tokens):
        return
    if chosen.retention < SHORT_RETENTION:
        yield Risk(
            setting=f"retention of {in_words(chosen.retention)}",
            risk="A copy that comes later is refused or handled again, and a dead letter can be retried safely only that long.",
            advice="Keep claims for some days: `onceonly plan` shows what that takes.",
        )
    promise = RetentionPromise(
        retry=settings.retry, timeout=settings.timeout, manual_retry=settings.manual_retry, max_commit=settings.max_commit
    )
    left = chosen.retention.total_seconds() - promise.retry_span()
    if settings.manual_retry == timedelta() and left < SHORT_RETENTION.total_seconds():
        yield Risk(
            setting="manual_retry=0",
            risk=f"After the last automatic retry only {in_words(left)} are left to retry a dead letter safely.",
            advice="Set manual_retry to the time that people need. The retention is then checked against it.",
        )
