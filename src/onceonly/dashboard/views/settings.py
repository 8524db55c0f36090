"""The effective settings of each endpoint, with those that are risky."""

import asyncio

from onceonly.dashboard.asking import Ask
from onceonly.dashboard.probes import ANSWER_SECONDS, answering
from onceonly.dashboard.rendering import Page
from onceonly.dashboard.risks import Risk, risks_of, settings_of
from onceonly.dashboard.watching import WatchedEndpoint
from onceonly.model.errors import OnceOnlyError


async def settings(ask: Ask) -> Page:
    """Show the settings and risks of all endpoints, or of those named by `endpoint`."""
    names = ask.query.get("endpoint") or list(ask.dashboard.watched)
    chosen = [ask.watched(name) for name in names]
    brokers = await asyncio.gather(*(_broker(each) for each in chosen))
    found = [
        {
            "name": each.name,
            "settings": settings_of(each.settings),
            "risks": [*risks_of(each.settings), *risks],
            "broker": broker,
            "broker_unknown": unknown,
        }
        for each, (broker, risks, unknown) in zip(chosen, brokers, strict=True)
    ]
    return Page(template="settings.html", title="Settings", data={"endpoints": found})


async def _broker(watched: WatchedEndpoint) -> tuple[list[tuple[str, str]], list[Risk], str]:
    """Return what the broker reports about the queue: settings, warnings as risks, and why they are unknown."""
    if watched.queue.outage is not None:
        return [], [], watched.queue.outage.reason
    try:
        async with answering():
            report = await watched.check_broker()
    except OnceOnlyError as error:
        return [], [], str(error)
    except TimeoutError:
        return [], [], f"no answer within {ANSWER_SECONDS:g} s"
    if report is None:
        return [], [], ""
    risks = [Risk(setting="broker", risk=warning, advice="Correct the broker's settings.") for warning in report.warnings]
    return list(report.settings), risks, ""
