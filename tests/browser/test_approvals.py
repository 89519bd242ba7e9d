"""The inbox of approvals: what waits, deciding it with edits, many at once, and with somebody else being faster."""

from playwright.async_api import Locator, Page, expect

from tests.kit.browser.viewer import Viewer
from tests.kit.model_server.turn import Call, Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import WaitingCalls, waiting, waiting_calls
from tests.kit.wait_until import wait_until


def card(page: Page, approval_id: str) -> Locator:
    """The card of one call, without what stands around it."""
    return page.locator(f"article[aria-labelledby='title-{approval_id}']")


async def results(asked: WaitingCalls, count: int = 1) -> list[str]:
    """What the calls came to, once there are so many results."""

    async def look() -> list[str] | None:
        found = await asked.results()
        return found if len(found) == count else None

    return await wait_until(look, description=f"{count} results")


async def clients_call(product: Product) -> WaitingCalls:
    """A call of a tool that the client has declared, and runs itself."""
    agent = await product.agent()
    product.models.play(Turn(calls=[Call("ask_user", {"question": "Which one?"}, id="call_client")]))
    body = {"input": "Ask me.", "client_tools": [{"name": "ask_user", "parameters": {"type": "object"}}]}
    run = (await product.http.post(f"/v1/agents/{agent.id}/messages/async", json=body)).json()

    async def look() -> list[dict[str, object]]:
        return await waiting(product, agent_id=agent.id)

    asked = await wait_until(look, description="the call to wait for the client")
    return WaitingCalls(product, agent.id, run["id"], asked)


async def test_an_empty_inbox_says_what_makes_a_call_wait(viewer: Viewer) -> None:
    await viewer.open("/approvals")
    await expect(viewer.page.get_by_role("heading", name="Nothing waits for a person")).to_be_visible()
    await expect(viewer.page.get_by_text("default_requires_approval")).to_be_visible()
    await viewer.expect_accessible()


async def test_a_call_that_comes_is_shown_with_what_a_person_must_know(viewer: Viewer, product: Product) -> None:
    await viewer.open("/approvals")
    asked = await waiting_calls(product, "moon", approval_expires_s=3600, on_approval_expiry="deny")

    shown = card(viewer.page, asked.ids[0])
    await expect(shown).to_contain_text('"target": "moon"')
    await expect(shown).to_contain_text("then the call is denied")
    await expect(shown.get_by_role("link", name=asked.run_id[:12])).to_have_attribute("href", f"#/runs/{asked.run_id}")
    await viewer.picture("approvals")
    await asked.decide(decision="deny")
    await expect(shown).to_have_count(0)


async def test_edited_arguments_are_checked_against_the_tool_and_then_run(viewer: Viewer, product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("Launched.")
    await viewer.open(f"/approvals?agent={asked.agent_id}")
    page = viewer.page
    await page.get_by_label("Your name, for the record").fill("ada")
    shown = card(page, asked.ids[0])
    await shown.get_by_role("button", name="Edit arguments").click()
    field = shown.get_by_label("Arguments (JSON)")
    await expect(field).to_be_focused()
    approve = shown.get_by_role("button", name="Approve with these arguments")

    for text, flaw in [
        ('{"target": 7}', "target: must be string, is integer"),
        ("{}", "target: is missing"),
        ('{"target": ', "arguments: is not valid JSON"),
        ("[]", "arguments: must be a JSON object"),
    ]:
        await field.fill(text)
        await expect(shown.locator(".flaws")).to_contain_text(flaw)
        await expect(approve).to_be_disabled()
    await viewer.expect_accessible()
    await field.fill('{"target": "mars"}')
    await expect(shown.locator(".diff-removed")).to_have_text('-removed:   "target": "moon"')
    await expect(shown.locator(".diff-added")).to_have_text('+added:   "target": "mars"')
    await viewer.picture("approval-edited")
    await approve.click()

    await expect(shown.get_by_text("Approved with other arguments by ada")).to_be_visible()
    assert (await results(asked))[0].splitlines()[-1] == "mars"


async def test_a_denied_call_never_runs_and_the_model_is_told_the_reason(viewer: Viewer, product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("I see.")
    await viewer.open("/approvals")
    shown = card(viewer.page, asked.ids[0])
    await shown.get_by_role("button", name="Deny launch").click()
    await shown.get_by_label("Reason, told to the model").fill("too windy")
    await shown.get_by_role("button", name="Deny the call").click()

    await expect(shown.get_by_text("Denied by console")).to_be_visible()
    assert await results(asked) == ["Error: request to call tool denied. User reason: too windy"]


async def test_a_call_of_the_clients_is_answered_with_a_result(viewer: Viewer, product: Product) -> None:
    asked = await clients_call(product)
    product.models.say("The red one.")
    await viewer.open("/approvals")
    shown = card(viewer.page, asked.ids[0])
    await expect(shown.get_by_role("button", name="Approve")).to_have_count(0)
    await shown.get_by_role("button", name="Give a result").click()
    await shown.get_by_label("The tool's result").fill("the red one")
    await shown.get_by_role("button", name="Send the result").click()

    await expect(shown.get_by_text("Answered with a result by console")).to_be_visible()
    assert await results(asked) == ["the red one"]


async def test_many_are_decided_at_once_and_each_refusal_is_said_where_it_belongs(
    viewer: Viewer, product: Product
) -> None:
    asked = await waiting_calls(product, "moon", "mars")
    clients = await clients_call(product)
    product.models.say("Both are on their way.")
    await viewer.open("/approvals")
    page = viewer.page
    await page.get_by_label("Select all 3 on this page").check()
    await page.get_by_role("button", name="Approve 3 selected").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("listitem")).to_have_text(["1 call of ask_user", "2 calls of launch"])
    await viewer.expect_accessible()
    await dialog.get_by_role("button", name="Approve 3 calls").click()

    await expect(page.get_by_text("2 of 3 decided, 1 refused")).to_be_visible()
    await expect(page.get_by_role("alert")).to_contain_text("ask_user is run by the client")
    assert await results(asked, count=2) == ["moon", "mars"]
    viewer.forgive("400")
    await clients.decide(decision="deny")


async def test_somebody_else_who_was_faster_is_named(viewer: Viewer, product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("I see.")
    page = viewer.page
    # This page has looked before the other person has decided.
    await page.route("**/v1/approvals?**", lambda route: route.fulfill(json=asked.approvals))
    await viewer.open("/approvals")
    await asked.decide(decision="deny", decided_by="bob")
    await page.get_by_role("button", name="Approve launch").click()

    shown = card(page, asked.ids[0])
    await expect(shown.get_by_role("alert")).to_contain_text("was denied by bob")
    await expect(shown.locator(".outcome")).to_contain_text("Denied by bob")
    viewer.forgive("409")


async def test_a_call_is_approved_without_a_mouse(viewer: Viewer, product: Product) -> None:
    asked = await waiting_calls(product, "moon")
    product.models.say("Launched.")
    await viewer.open("/approvals")
    page = viewer.page
    await page.get_by_role("button", name="Approve launch").wait_for()
    for _ in range(40):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.getAttribute('aria-label')") == "Approve launch":
            break
    await page.keyboard.press("Enter")

    await expect(card(page, asked.ids[0]).locator(".outcome")).to_be_focused()
    assert await results(asked) == ["moon"]


async def test_what_was_decided_is_listed_with_who_did_it_newest_first(viewer: Viewer, product: Product) -> None:
    approved, denied = await waiting_calls(product, "moon"), await waiting_calls(product, "mars")
    product.models.say("Launched.")
    await approved.decide(arguments={"target": "venus"}, decided_by="ada")
    product.models.say("I see.")
    await denied.decide(decision="deny", reason="too far", decided_by="bob")
    await viewer.open("/approvals")
    page = viewer.page
    await page.get_by_role("link", name="Decided").click()

    cards = page.get_by_role("article")
    await expect(cards.nth(0)).to_contain_text("Denied by bob")
    await expect(cards.nth(0)).to_contain_text("too far")
    await expect(cards.nth(1)).to_contain_text("Approved with other arguments by ada")
    await expect(cards.nth(1).locator(".diff-added")).to_contain_text("venus")
    await expect(cards.nth(1).get_by_role("link", name="The continuation")).to_be_visible()
    await viewer.expect_accessible()
