"""What the page of settings claims about risks."""

from pathlib import Path

import pytest

from onceonly.model.errors import CommitFailed
from onceonly.ports.transport import BrokerReport
from onceonly_dashboard import dashboard, loopback_only
from onceonly_dashboard.endpoint_probes import EndpointProbes
from tests.dashboard.serving import endpoint, sampled
from tests.dashboard.test_gate import open_client

FOUND = "No risky settings found."
UNCHECKED = "The settings of its broker were not checked"


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        (BrokerReport(), (FOUND,)),
        (BrokerReport(warnings=("it is stored in memory",)), ("it is stored in memory",)),
        (None, (UNCHECKED, "it does not report them")),
        (CommitFailed("the broker is away"), (UNCHECKED, "The broker's settings are not known: the broker is away")),
    ],
)
async def test_no_risk_is_claimed_only_after_the_broker_was_checked(
    answer: BrokerReport | Exception | None, texts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that does not answer may have any settings."""

    async def check(_: EndpointProbes) -> BrokerReport | None:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(EndpointProbes, "check_broker", check)
    url = f"sqlite:///{tmp_path}/shop.db"
    shop = endpoint("shop", store=url, transport=url)
    async with shop.opened():
        """Make the tables."""
    app = dashboard(shop, auth=loopback_only())
    async with open_client(app) as client:
        await client.get("/")
        await sampled(app)
        page = (await client.get("/settings")).text
    assert all(text in page for text in texts)
    assert (FOUND in page) is (FOUND in texts)


async def test_settings_that_are_equal_are_shown_once() -> None:
    """An endpoint lists what differs. Alone it lists all."""
    app = dashboard(endpoint("shop"), endpoint("billing", timeout=7.0), auth=loopback_only())
    async with open_client(app) as client:
        await client.get("/")
        await sampled(app)
        page = (await client.get("/settings")).text
        alone = (await client.get("/settings?endpoint=shop")).text
        data = (await client.get("/settings", headers={"accept": "application/json"})).json()
    assert page.count("<code>timeout</code>") == 2
    assert page.count("<code>max_hops</code>") == 1
    assert page.index("All 2 endpoints") < page.index("<code>max_hops</code>")
    assert alone.count("<code>max_hops</code>") == 1
    assert "endpoints</h2>" not in alone
    assert "timeout" not in {each["name"] for each in data["common"]}
    assert {each["name"] for each in data["endpoints"][0]["settings"]} > {each["name"] for each in data["common"]}
