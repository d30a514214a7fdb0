// The built page in Chromium, opened from disk: the tour, painting, the attack, the link, a phone, and axe.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { type Browser, type BrowserContextOptions, type Page } from "playwright-core";
import { fromLink } from "../../src/page/link.ts";
import { TEXT } from "../../src/text.ts";
import { axe, DESKTOP, launched, opened as openedFile, PHONE } from "./opened.ts";

declare const PLAYGROUND: string;

const HTML = `${PLAYGROUND}/../src/tacit/cli/playground.html`;
const WAITING = "#n=300"; // a link, so that nothing runs yet

let browser: Browser;
before(async () => {
  browser = await launched();
});
after(() => browser.close());

const opened = (options: BrowserContextOptions, hash: string, act: (page: Page) => Promise<void>): Promise<void> =>
  openedFile(browser, HTML, options, act, hash);

const text = (page: Page, id: string): Promise<string> => page.locator(`#${id}`).innerText();
const waitFor = (page: Page, id: string, pattern: RegExp): Promise<unknown> =>
  page.waitForFunction(([of, source]) => new RegExp(source!).test(document.getElementById(of!)!.textContent!), [id, pattern.source], { timeout: 90_000 });

test("without a link it trains at once, and ends at epsilon 3; with reduced motion it waits", async () => {
  await opened(DESKTOP, "", async (page) => {
    await waitFor(page, "knob-note", /needs σ = 2\.29$/);
    await page.selectOption("#speed", "fastest");
    await waitFor(page, "step-count", /Finished/);
    await waitFor(page, "epsilon", /ε ≤ 3$/);
    assert.ok(Number(/right on (\d+)/.exec(await text(page, "noisy-score"))![1]) > 80);
  });
  await opened({ ...DESKTOP, reducedMotion: "reduce" }, "", async (page) => {
    await waitFor(page, "epsilon", /ε = 0/);
    assert.equal(await text(page, "step-count"), "Step 0 of 300");
  });
});

test("it trains: steps are counted, losses fall, epsilon rises and ends where tacit account says", async () => {
  await opened(DESKTOP, WAITING, async (page) => {
    await waitFor(page, "epsilon", /ε = 0/);
    await page.selectOption("#speed", "fastest");
    await page.click("#play");
    await waitFor(page, "step-count", /Finished/);
    await waitFor(page, "epsilon", /ε ≤ 10\.9$/);
    for (const id of ["plain-score", "noisy-score"]) {
      const [, loss, accuracy] = /loss ([\d.]+), right on (\d+)/.exec(await text(page, id))!;
      assert.ok(Number(loss) < 0.4 && Number(accuracy) > 85, `${id}: ${loss} ${accuracy}`);
    }
    await page.waitForFunction(() => document.querySelectorAll("#epsilon-chart .line").length === 4, null, { timeout: 60_000 });
    assert.match(await page.getAttribute("#epsilon-chart", "aria-label") ?? "", /PLD 10\.9/);
    assert.match(await text(page, "meaning"), /guesses right at most 85\s*% of the time/);
  });
});

test("one step shows the arrows, how many were cut, and the noise", async () => {
  await opened(DESKTOP, WAITING, async (page) => {
    assert.equal(await page.locator("#mechanism .arrows:visible").count(), 0, "no blank pictures before a step");
    assert.equal(await text(page, "loss-chart-top"), "");
    await page.click("#step-button");
    assert.equal(await text(page, "step-count"), "Step 1 of 300");
    assert.match(await text(page, "loss-chart-top"), /^highest 0\.73$/);
    assert.equal(await page.locator("#mechanism .arrows:visible").count(), 3);
    const frames = page.locator("#mechanism-frames .frame p");
    assert.match(await frames.nth(0).innerText(), /\d+ of 300 records were drawn/);
    assert.match(await frames.nth(1).innerText(), /σC = 1 falls on each of 42 numbers/);
    assert.ok((await page.locator(".arrows .clipped").getAttribute("d"))!.split("M").length > 10);
    assert.equal(await page.locator(".arrows .arrow.noise").count(), 1);
  });
});

test("a budget sets the noise, and outside the tested range there is no epsilon", async () => {
  await opened(DESKTOP, WAITING, async (page) => {
    await page.click("[data-preset=strict]");
    await waitFor(page, "knob-note", /needs σ = 5\.633/);
    assert.equal(await text(page, "step-count"), "Step 0 of 300"); // a preset waits
    await page.selectOption("#speed", "fastest");
    await page.click("#play");
    await waitFor(page, "step-count", /Finished/);
    await waitFor(page, "epsilon", /ε ≤ 1$/);
  });
  await opened(DESKTOP, WAITING, async (page) => {
    const slide = (knob: string, value: number): Promise<void> => page.locator(`#knob-${knob}`).fill(String(value));
    await page.click("#privacy-knobs [data-name=epsilon]");
    await waitFor(page, "knob-note", /needs σ = 2\.29/);
    await slide("samplingRate", 6);
    assert.doesNotMatch(await text(page, "knob-note"), /needs σ = 2\.29/, "the noise of other settings is not shown");
    await waitFor(page, "knob-note", /needs σ = 21\.19/);
    await page.waitForFunction(() => document.querySelectorAll("#epsilon-chart .line").length === 4, null, { timeout: 60_000 });
    assert.doesNotMatch(await page.locator("#epsilon-chart").innerHTML(), /computing/);
    await slide("steps", 7);
    await waitFor(page, "knob-note", /No noise that the page was tested with/);
    await slide("delta", 4);
    assert.match(await text(page, "knob-note"), /δ must be below .*\(0\.0033\)/);
    await page.click("#privacy-knobs [data-name=sigma]");
    await page.click("#step-button");
    assert.equal(await text(page, "step-count"), "Step 1 of 5,000");
  });
  await opened(DESKTOP, "#sigma=0.3", async (page) => {
    await waitFor(page, "epsilon", /no figure/);
    assert.match(await text(page, "epsilon-note"), /noise σ is outside .*0\.5 to 50/);
  });
});

test("the loss chart is as high as the loss", async () => {
  await opened(DESKTOP, WAITING, async (page) => {
    await page.click("[data-preset=exploding]");
    await page.selectOption("#speed", "fastest");
    await page.click("#play");
    await waitFor(page, "step-count", /Finished/);
    const loss = Number(/loss ([\d.]+)/.exec(await text(page, "noisy-score"))![1]);
    const highest = Number(/^highest ([\d.]+)$/.exec(await text(page, "loss-chart-top"))![1]);
    assert.ok(loss > 5 && highest >= loss, `${loss} ${highest}`);
    const heights = [...(await page.locator("#loss-chart .noisy").getAttribute("d"))!.matchAll(/ ([\d.]+)/g)].map((found) => Number(found[1]));
    assert.ok(heights.filter((height) => height <= Math.min(...heights)).length < 4, "the line has no flat top");
  });
});

test("painting: strokes of both colours train at once, and erasing takes them away", async () => {
  await opened(DESKTOP, WAITING, async (page) => {
    await page.click("[data-name=painted]");
    const box = (await page.locator("#noisy-board .board").boundingBox())!;
    const stroke = async (tool: string, from: number, to: number): Promise<void> => {
      await page.click(`#tools [data-name=${tool}]`);
      await page.mouse.move(box.x + from * box.width, box.y + 0.2 * box.height);
      await page.mouse.down();
      await page.mouse.move(box.x + to * box.width, box.y + 0.8 * box.height, { steps: 30 });
      await page.mouse.up();
    };
    await stroke("one", 0.15, 0.3);
    await stroke("zero", 0.7, 0.85);
    const count = async (): Promise<number> =>
      Number(/and (\d+) records/.exec((await page.locator("#noisy-board .board").getAttribute("aria-label"))!)![1]);
    const painted = await count();
    assert.ok(painted >= 16, `${painted}`);
    await page.selectOption("#speed", "fastest");
    await page.click("#play");
    await waitFor(page, "step-count", /Finished/);
    assert.match(await text(page, "plain-score"), /right on 100\D+of these points/);
    await stroke("erase", 0.15, 0.3);
    assert.ok((await count()) < painted);
  });
});

test("the keyboard paints and chooses, too", async () => {
  await opened(DESKTOP, "#data=painted", async (page) => {
    await page.click("#tools [data-name=one]");
    await page.locator("#plain-board .board").focus();
    for (const key of ["ArrowLeft", "ArrowUp", "Enter", "Shift+ArrowRight", "Enter"]) await page.keyboard.press(key);
    await page.locator("#tools [data-name=one]").focus();
    await page.keyboard.press("ArrowLeft");
    assert.equal(await page.getAttribute("#tools [data-name=choose]", "aria-checked"), "true");
    await page.locator("#plain-board .board").focus();
    await page.keyboard.press("Enter");
    assert.match(await text(page, "target-text"), /Record 2: class 1 at \(0\.161, 0\.0389/);
  });
});

test("the attack finds a canary without privacy, and with it stays below the proven ceiling", async () => {
  await opened(DESKTOP, "#n=200&width=16&depth=2&spread=0.1&sigma=2&models=50", async (page) => {
    await page.click("#canary");
    assert.match(await text(page, "target-text"), /Record 201/);
    await page.click("#attack-button");
    assert.equal(await text(page, "attack-button"), TEXT.attack.stop);
    await waitFor(page, "verdict", /The proof allows \d/);
    const [plain, noisy, limit] = [...(await text(page, "verdict")).matchAll(/(\d+)\s%/g)].map((m) => Number(m[1]));
    assert.ok(plain! >= 85, `without privacy ${plain}`);
    assert.equal(limit, 68);
    assert.ok(noisy! <= limit! + 13, `with privacy ${noisy}`); // 50 models: chance alone may add 13
    assert.ok(noisy! < plain! - 10);
    await waitFor(page, "attack-count", /50 of 50/);
    assert.equal(await page.locator("#ceiling-chart .forbidden").count(), 1);
    assert.match(await page.getAttribute("#noisy-heap", "aria-label") ?? "", /50 models with the record/);
    await axe(page, "after an attack");
  });
});

test("a link brings back the points, the settings and the step", async () => {
  let link = "";
  await opened(DESKTOP, "#data=xor&n=100&act=relu", async (page) => {
    await page.click("#tools [data-name=zero]");
    await page.locator("#plain-board .board").click({ position: { x: 40, y: 50 } });
    for (let k = 0; k < 5; k++) await page.click("#step-button");
    await page.click("#link-button");
    link = await page.evaluate(() => navigator.clipboard.readText());
    const { state, step } = fromLink(new URL(link).hash);
    assert.equal(step, 5);
    assert.equal(state.added.length, 1);
    assert.deepEqual([state.dataSet, state.count, state.activation], ["xor", 100, "relu"]);
  });
  const scores: string[] = [];
  for (let round = 0; round < 2; round++) {
    await opened(DESKTOP, new URL(link).hash, async (page) => {
      assert.equal(await text(page, "step-count"), "Step 5 of 300");
      scores.push(await text(page, "noisy-score"));
    });
  }
  assert.equal(scores[0], scores[1]);
});

test("the TOML button copies a run file and offers the tables", async () => {
  await opened(DESKTOP, WAITING, async (page) => {
    await page.click("#toml-button");
    const copied = await page.evaluate(() => navigator.clipboard.readText());
    assert.match(copied, /noise_multiplier = 1\.0\ndelta = 0\.0001/);
    const href = await page.locator("#notice a").first().getAttribute("href");
    assert.match(decodeURIComponent(href!), /^data:text\/csv;charset=utf-8,x,y,label\n-?[\d.]+,-?[\d.]+,0\n/);
  });
});

test("the tour: seven steps by keyboard, each lights its part, Escape leaves", async () => {
  await opened(DESKTOP, WAITING, async (page) => {
    await page.locator("#tour-button").focus();
    await page.keyboard.press("Enter");
    for (const [k, [title]] of TEXT.tour.steps.entries()) {
      assert.equal(await text(page, "tour-title"), title);
      assert.equal(await text(page, "tour-count"), `${k + 1} of 7`);
      assert.equal(await page.locator(".lit").count(), 1);
      assert.equal(await page.evaluate(() => document.activeElement?.id), "tour-title");
      await page.waitForFunction(() => {
        const part = document.querySelector(".lit")!.getBoundingClientRect(); // the page scrolls there smoothly
        return part.top < 480 && part.bottom > 80;
      });
      const [card, part] = [await page.locator("#tour").boundingBox(), await page.locator(".lit").boundingBox()];
      assert.ok(card!.x >= part!.x + part!.width || card!.x + card!.width <= part!.x + part!.width, "the card does not hide its part");
      if (k === 2) {
        assert.match(await text(page, "step-count"), /Step 11 /);
        const said = await page.locator("#mechanism-frames .frame p").first().innerText();
        const [, drawn, cut] = /^(\d+) of 300 .* (\d+) were longer/s.exec(said)!;
        assert.ok(Number(cut) > 0 && Number(cut) < Number(drawn), said);
      }
      if (k === 6) {
        await page.waitForFunction(() => {
          const box = document.getElementById("ceiling-chart")!.getBoundingClientRect();
          return box.top > 80 && box.bottom <= window.innerHeight;
        });
      }
      if (k === 0 || k === 6) await axe(page, `tour, step ${k + 1}`);
      if (k < 6) {
        await page.locator("#tour-next").focus();
        await page.keyboard.press("Enter");
      }
    }
    assert.equal(await text(page, "attack-button"), TEXT.attack.stop);
    await page.keyboard.press("Escape");
    assert.equal(await page.locator("#tour").isVisible(), false);
    assert.equal(await page.evaluate(() => document.activeElement?.id), "tour-button");
  });
});

test("on a phone nothing sticks out, all buttons can be touched, and painting by finger works", async () => {
  await opened(PHONE, WAITING, async (page) => {
    const size = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
    assert.ok(size[0]! <= size[1]!, `${size}`);
    await page.tap("#play");
    await page.waitForFunction(() => !/Step 0/.test(document.getElementById("step-count")!.textContent!));
    await page.tap("#play");
    const small = await page.evaluate(() =>
      [...document.querySelectorAll("button, select, summary")]
        .map((element) => ({ box: element.getBoundingClientRect(), name: element.id || element.textContent }))
        .filter(({ box }) => box.width > 0 && (box.width < 24 || box.height < 24))
        .map(({ name }) => name));
    assert.deepEqual(small, []);
    await page.tap("#tools [data-name=one]");
    const box = (await page.locator("#plain-board .board").boundingBox())!;
    const before = await page.locator("#plain-board .board").getAttribute("aria-label");
    await page.touchscreen.tap(box.x + 30, box.y + 30);
    assert.notEqual(await page.locator("#plain-board .board").getAttribute("aria-label"), before);
    await page.tap("#tour-button");
    for (let k = 0; k < 6; k++) await page.tap("#tour-next");
    await axe(page, "phone, tour");
  });
});

for (const colorScheme of ["light", "dark"] as const) {
  test(`axe finds nothing in ${colorScheme}, with all questions open`, async () => {
    await opened({ ...DESKTOP, colorScheme }, WAITING, async (page) => {
      assert.equal(await page.getAttribute("html", "data-theme"), colorScheme);
      await page.evaluate(() => document.querySelectorAll("details").forEach((each) => (each.open = true)));
      await page.click("#step-button");
      await page.waitForFunction(() => document.querySelectorAll("#epsilon-chart .line").length === 4, null, { timeout: 60_000 });
      await page.click("#toml-button");
      await axe(page, colorScheme);
    });
  });
}

test("the theme changes by its button, and reduced motion slows the arrows down", async () => {
  await opened({ ...DESKTOP, reducedMotion: "reduce" }, WAITING, async (page) => {
    await page.click("#theme-button");
    assert.equal(await page.getAttribute("html", "data-theme"), "dark");
    await page.evaluate(() => {
      const seen = window as unknown as { changes: number };
      seen.changes = 0;
      new MutationObserver(() => seen.changes++).observe(document.querySelector(".arrows")!, { childList: true });
    });
    await page.click("#play");
    await page.waitForTimeout(2000);
    const changes = await page.evaluate(() => (window as unknown as { changes: number }).changes);
    assert.ok(changes >= 1 && changes < 30, `${changes}`);
  });
});

test("served by tacit playground's rules for what may be loaded, workers and styles still work", async () => {
  const source = readFileSync(`${PLAYGROUND}/../src/tacit/cli/train.py`, "utf8");
  const rules = [...source.matchAll(/^ {8}"((?:[a-z]+-)+[a-z]+ [^"]+)",$/gm)].map((found) => found[1]);
  assert.ok(rules.includes("default-src 'none'") && rules.length >= 7, `${rules}`);
  const server = createServer((_, response) =>
    response.writeHead(200, { "Content-Type": "text/html", "Content-Security-Policy": rules.join("; ") }).end(readFileSync(HTML)));
  await new Promise<void>((ready) => server.listen(0, "127.0.0.1", ready));
  const page = await browser.newPage();
  const problems: string[] = [];
  page.on("console", (line) => line.type() === "error" && problems.push(line.text()));
  await page.goto(`http://127.0.0.1:${(server.address() as { port: number }).port}/`);
  await page.selectOption("#speed", "fastest");
  await page.click("#play");
  await waitFor(page, "epsilon", /ε ≤ 10\.9$/);
  assert.deepEqual(problems, []);
  await page.close();
  server.close();
});

test("frames a second with 500 records", async (t) => {
  await opened(DESKTOP, "#n=500&q=0.2&T=5000", async (page) => {
    await page.waitForFunction(() => document.querySelectorAll("#epsilon-chart .line").length === 4, null, { timeout: 90_000 });
    await page.selectOption("#speed", "fast");
    await page.click("#play");
    const rate = await page.evaluate(async () => {
      let frames = 0;
      const start = performance.now();
      while (performance.now() - start < 4000) {
        await new Promise(requestAnimationFrame);
        frames++;
      }
      return (1000 * frames) / (performance.now() - start);
    });
    t.diagnostic(`${rate.toFixed(1)} frames a second`);
    assert.ok(rate > 20, `${rate}`);
  });
});
