"""One run: streamed and read on after a reload, steered, cancelled, approved, and safe to look at."""

from typing import Any

from playwright.async_api import Locator, expect

from tests.kit.browser.console_runs import play, queue, say, start_run
from tests.kit.browser.run_streams import run_streams_of
from tests.kit.browser.viewer import Viewer
from tests.kit.model_server import Call, Turn
from tests.kit.product import Product
from tests.kit.product.waiting_calls import waiting_calls
from tests.kit.tools import LAUNCH
from tests.kit.wait_until import wait_until

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script><a href="javascript:alert(1)">x</a>'


async def open_run(viewer: Viewer, run: dict[str, Any]) -> None:
    await viewer.open(f"/runs/{run['id']}")
    await expect(viewer.page.get_by_role("heading", name=run["id"])).to_be_visible()


def said(viewer: Viewer) -> Locator:
    """What the agent said."""
    return viewer.page.locator(".item-text .said")


def connection(viewer: Viewer) -> Locator:
    return viewer.page.locator(".connection [data-state]")


async def test_a_run_streams_and_a_reload_goes_on_where_it_was(viewer: Viewer, product: Product) -> None:
    run = await start_run(product.http, "count", model="builtin/slow")
    await open_run(viewer, run)
    await expect(connection(viewer)).to_have_text("Live")
    await expect(said(viewer)).to_contain_text(" 5 ")
    await viewer.page.reload()
    await expect(viewer.page.locator(".seen")).to_contain_text("You had read up to number")
    await expect(said(viewer)).to_contain_text(" 20 ")
    await product.http.post(f"/v1/runs/{run['id']}/cancel", json={"wait": 30})
    await expect(connection(viewer)).to_have_text("The stream is over")
    words = (await said(viewer).inner_text()).split()
    numbers = [int(word) for word in words if word.isdigit()]
    assert numbers == list(range(1, numbers[-1] + 1))


async def test_a_hidden_tab_kept_the_connection_of_its_stream(viewer: Viewer, product: Product) -> None:
    run = await start_run(product.http, "count", model="builtin/slow")
    streams = run_streams_of(viewer.page)
    await open_run(viewer, run)
    await expect(said(viewer)).to_contain_text(" 5 ")
    await viewer.hide()
    await wait_until(lambda: streams.open == [], description="the stream to be left")
    await viewer.show()
    await expect(said(viewer)).to_contain_text(" 12 ")
    assert (len(streams.asked), streams.last_began_after > 1) == (2, True)
    await product.http.post(f"/v1/runs/{run['id']}/cancel", json={"wait": 30})
    await expect(connection(viewer)).to_have_text("The stream is over")
    await expect(viewer.page.locator(".connection")).not_to_contain_text("lost")
    numbers = [int(word) for word in (await said(viewer).inner_text()).split() if word.isdigit()]
    assert numbers == list(range(1, numbers[-1] + 1))


async def test_a_run_that_goes_on_was_not_found_behind_a_hundred_of_another_conversation(
    viewer: Viewer, product: Product
) -> None:
    asked = await waiting_calls(product, "moon")
    conversation = await product.client.conversations.create(agent_id=asked.agent_id, model="builtin/slow")
    await queue(product.http, conversation.id, 101)
    product.models.say("It is on its way.")
    await open_run(viewer, {"id": asked.run_id})
    await asked.decide()
    await expect(said(viewer)).to_have_text("It is on its way.")
    await product.http.post(f"/v1/conversations/{conversation.id}/cancel", json={"wait": 30})


async def test_a_cancel_shows_its_receipt(viewer: Viewer, product: Product) -> None:
    run = await start_run(product.http, "count", model="builtin/slow")
    await open_run(viewer, run)
    await viewer.page.get_by_role("button", name="Cancel this run").click()
    dialog = viewer.page.get_by_role("dialog")
    await dialog.get_by_label("Reason").fill("no longer needed")
    await viewer.expect_accessible()
    await dialog.get_by_role("button", name="Cancel the run").click()
    receipt = viewer.page.locator(".receipt")
    await expect(receipt).to_contain_text("no longer needed")
    await expect(receipt).to_contain_text("interrupt")
    await expect(viewer.page.locator(".page-head .status")).to_have_text("cancelled")
    assert (await product.run(run["id"]))["metadata"]["cancel"]["reason"] == "no longer needed"


async def test_escape_leaves_the_run_alone(viewer: Viewer, product: Product) -> None:
    run = await start_run(product.http, "count", model="builtin/slow")
    await open_run(viewer, run)
    await viewer.page.get_by_role("button", name="Cancel this run").click()
    await expect(viewer.page.get_by_role("dialog")).to_be_visible()
    await viewer.page.keyboard.press("Escape")
    await expect(viewer.page.get_by_role("dialog")).to_have_count(0)
    await expect(viewer.page.get_by_role("button", name="Cancel this run")).to_be_focused()
    assert (await product.run(run["id"]))["status"] in ("created", "running")
    await product.http.post(f"/v1/runs/{run['id']}/cancel", json={"wait": 30})


async def test_a_message_is_injected(viewer: Viewer, product: Product) -> None:
    run = await start_run(product.http, "count", model="builtin/slow")
    await open_run(viewer, run)
    await viewer.page.get_by_label("Tell the run something").fill("And one more thing")
    await viewer.page.get_by_role("button", name="Inject").click()
    await expect(viewer.page.get_by_text("Injected: the run's next step reads it.")).to_be_visible()
    await product.http.post(f"/v1/runs/{run['id']}/cancel", json={"wait": 30})


async def test_what_models_say_is_text(viewer: Viewer, product: Product) -> None:
    run = await start_run(product.http, HOSTILE)
    await product.ended(run["id"])
    await open_run(viewer, run)
    await expect(said(viewer)).to_have_text(f"You said: {HOSTILE}")
    await viewer.page.get_by_text("Raw events").click()
    await viewer.page.locator(".event-row").nth(1).click()
    await expect(viewer.page.get_by_label("Event 2")).to_contain_text("message_type")
    assert await viewer.page.evaluate("window.hacked") is None
    assert await viewer.page.locator("main img, main script").count() == 0


async def test_the_policy_lets_no_script_in(viewer: Viewer) -> None:
    await viewer.open("/runs")
    await viewer.page.evaluate("""() => {
      const script = document.createElement("script");
      script.textContent = "window.hacked = 1";
      document.head.append(script);
    }""")
    assert await viewer.page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in error for error in viewer.errors)
    viewer.forgive("Content Security Policy")


async def test_calls_reasoning_and_the_waterfall(viewer: Viewer, product: Product) -> None:
    product.models.play(
        Turn(text="I start the rocket.", calls=[Call("launch", {"target": "the moon"})], pace=0.02),
        Turn(text="The rocket is on its way to the moon.", pace=0.02),
    )
    agent = await product.agent(tools=[await product.tool(LAUNCH, default_requires_approval=False)])
    run = await say(product.http, agent.id, "Send a rocket to the moon, please.")
    await product.ended(run["id"])
    await open_run(viewer, run)
    await expect(said(viewer)).to_have_text(["I start the rocket.", "The rocket is on its way to the moon."])
    await expect(viewer.page.locator("[data-kind=asked] .said")).to_have_text("Send a rocket to the moon, please.")
    call = viewer.page.locator(".item-call")
    await expect(call.locator("summary").first).to_contain_text("success")
    await call.locator("summary").first.click()
    await expect(call.get_by_label("Arguments")).to_contain_text("the moon")
    await expect(call.get_by_label("Result")).to_have_text("the moon")
    spans = viewer.page.locator(".waterfall li")
    await expect(spans.filter(has_text="Tool launch")).to_have_count(1)
    await expect(spans.filter(has_text="The model's answer")).to_have_count(2)
    await viewer.expect_accessible()
    await viewer.picture("run")
    await viewer.page.set_viewport_size({"width": 380, "height": 700})
    await viewer.expect_no_sideways_scrolling()


async def test_reasoning_is_folded_under_its_name(viewer: Viewer, product: Product) -> None:
    run = await play(product, {"reasoning": "Where to?", "text": "Off."})
    await product.ended(run["id"])
    await open_run(viewer, run)
    await expect(viewer.page.locator(".item-reasoning .said")).to_have_text("Where to?")
    # The input is fetched by itself, and moves what is below it: a press and its release would hit different elements.
    await expect(viewer.page.locator("[data-kind=asked] .said")).to_be_visible()
    await viewer.page.get_by_text("Reasoning", exact=True).click()
    await expect(viewer.page.locator(".item-reasoning .said")).to_be_hidden()


async def test_a_failed_run_says_why(viewer: Viewer, product: Product) -> None:
    run = await play(product, {"text": "Well", "error": "auth"})
    await product.ended(run["id"])
    await open_run(viewer, run)
    await expect(viewer.page.get_by_role("alert").first).to_contain_text("Incorrect API key provided")
    await expect(viewer.page.locator(".page-head .status")).to_have_text("failed")


async def test_an_approval_in_place_and_the_run_that_goes_on(viewer: Viewer, product: Product) -> None:
    tool = await product.tool(LAUNCH, default_requires_approval=True)
    run = await play(
        product,
        {"calls": [{"name": "launch", "arguments": {"target": "the moon"}}]},
        {"text": "It has landed."},
        tool_ids=[tool],
    )
    await open_run(viewer, run)
    await expect(viewer.page.locator(".page-head .status")).to_have_text("needs approval")
    await viewer.page.get_by_role("button", name="Approve").click()
    await expect(said(viewer)).to_have_text("It has landed.")
    await expect(viewer.page.locator(".page-head .status")).to_have_text("completed")
    await expect(viewer.page.locator(".item-call summary").first).to_contain_text("success")
    await expect(viewer.page.locator(".waterfall [data-span=person]")).to_have_count(1)
    await expect(viewer.page.locator("main")).to_contain_text("After an approval it goes on as")


async def test_a_run_is_replayed_from_a_number(viewer: Viewer, product: Product) -> None:
    run = await start_run(product.http, "one two three four")
    await product.ended(run["id"])
    await open_run(viewer, run)
    await expect(said(viewer)).to_have_text("You said: one two three four")
    await viewer.page.get_by_label("From number").fill("5")
    await viewer.page.get_by_role("button", name="Replay").click()
    await expect(said(viewer)).to_have_text("two three four")
    await viewer.page.get_by_text("Read on from here").click()
    await expect(viewer.page.get_by_label("The curl line", exact=True)).to_contain_text('"starting_after"')
    await expect(viewer.page.get_by_label("The Python line", exact=True)).to_contain_text(run["id"])


async def test_ten_thousand_events_are_a_few_rows(viewer: Viewer, product: Product) -> None:
    run = await play(product, {"text": "word " * 10, "repeat": 1000})
    await product.ended(run["id"])
    await open_run(viewer, run)
    await expect(connection(viewer)).to_have_text("The stream is over")
    summary = viewer.page.get_by_text("Raw events")
    await summary.click()
    await expect(summary).to_contain_text("10,0")
    events = viewer.page.locator(".events")
    await events.evaluate("box => { box.scrollTop = box.scrollHeight; }")
    await expect(viewer.page.locator(".event-row").last).to_contain_text("end")
    assert await viewer.page.locator(".event-row").count() < 60


async def test_a_run_that_is_not_there_says_so(viewer: Viewer) -> None:
    await viewer.open("/runs/run-00000000-0000-4000-8000-000000000000")
    await expect(viewer.page.get_by_role("alert")).to_contain_text("not found", ignore_case=True)
    viewer.forgive("404")


async def test_a_question_to_a_model_is_shown_as_one(viewer: Viewer, product: Product) -> None:
    agent = await product.agent(model="builtin/echo")
    answer = await product.http.post(f"/v1/agents/{agent.id}/generate", json={"prompt": "What is 2+2?"})
    [run_id] = answer.json()["usage"]["run_ids"]

    await open_run(viewer, await product.run(run_id))

    await expect(viewer.page.locator(".facts").first).to_contain_text("a question to a model")
    await expect(viewer.page.locator('[data-kind="asked"] .said')).to_have_text("What is 2+2?")
    await expect(said(viewer)).to_have_text("You said: What is 2+2?")
