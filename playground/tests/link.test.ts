// The link holds the whole state, and the run file is the one that the Python tests train with.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { canary, DATA_SETS, type Label } from "../src/learning/data.ts";
import { ACTIVATIONS } from "../src/learning/network.ts";
import { Stream } from "../src/learning/random.ts";
import { fromLink, onGrid, toLink } from "../src/page/link.ts";
import { KNOBS, pointsOf, PRESETS, START, type State, testPointsOf } from "../src/page/state.ts";
import { toCsv, toToml } from "../src/page/toml.ts";
import { fill, TEXT } from "../src/text.ts";

declare const PLAYGROUND: string;

test("every state goes into a link and comes back", () => {
  const stream = new Stream(1, 77);
  const pick = <T>(values: readonly T[]): T => values[Math.floor(stream.uniform() * values.length)]!;
  for (let round = 0; round < 300; round++) {
    const knobs = Object.fromEntries(Object.entries(KNOBS).map(([name, values]) => [name, pick<number>(values)]));
    const added = Array.from({ length: Math.floor(40 * stream.uniform()) }, () =>
      onGrid(2 * stream.uniform() - 1, 2 * stream.uniform() - 1, pick([0, 1] as Label[])));
    const state: State = {
      ...START, ...knobs, added, dataSet: pick(DATA_SETS), activation: pick(ACTIVATIONS), seed: pick([1, 2, 999]),
      optimizer: pick(["sgd", "adam"] as const), budget: pick(["sigma", "epsilon"] as const), target: pick([-1, 0, 3]),
      noiseMultiplier: pick([1, 1.234, 0]),
    };
    const step = Math.floor(stream.uniform() * (state.steps + 1));
    assert.deepEqual(fromLink(`#${toLink(state, step)}`), { state, step });
  }
  assert.equal(toLink(START, 0), "");
});

test("500 painted points come back, and the link stays below 2,000 characters", () => {
  const stream = new Stream(2, 77);
  const added = Array.from({ length: 500 }, () => onGrid(2 * stream.uniform() - 1, 2 * stream.uniform() - 1, 1));
  added.push(onGrid(1, 1, 1), onGrid(-1, -1, 0));
  const link = toLink({ ...START, dataSet: "painted", added: added.slice(2) }, 0);
  assert.ok(link.length < 2000, `${link.length}`);
  assert.deepEqual(fromLink(link).state.added, added.slice(2));
});

test("a link with nonsense in it leaves the usual values", () => {
  const hash = "#data=moons&n=1e9&q=0&C=-1&sigma=NaN&delta=&T=2.5&act=eval&points=!!!AB&step=99999&seed=x&width=Infinity";
  assert.deepEqual(fromLink(hash), { state: START, step: 0 });
  assert.equal(fromLink("#points=zzz___---").state.added.length < 4, true);
});

test("presets are states that a link holds", () => {
  for (const [name, preset] of Object.entries(PRESETS)) {
    const state = { ...START, ...preset };
    assert.deepEqual(fromLink(toLink(state, 0)).state, state);
    assert.ok(name in TEXT.presets.names);
  }
});

test("delta is where the page says that it should be: far below one over the number of records", () => {
  for (const preset of Object.values(PRESETS)) {
    const state = { ...START, ...preset };
    assert.ok(state.delta * pointsOf(state).length <= 0.1);
  }
});

test("a canary is a blue record far from all other blue ones", () => {
  for (const name of ["circles", "xor", "spirals", "clusters"] as const) {
    const points = pointsOf({ ...START, dataSet: name });
    const placed = canary(points);
    assert.equal(placed.label, 1);
    const blue = points.filter((p) => p.label === 1).map((p) => Math.hypot(p.x - placed.x, p.y - placed.y));
    assert.ok(Math.min(...blue) > 0.15, `${name}: ${Math.min(...blue)}`);
  }
  assert.equal(canary([]).label, 1);
});

test("the run file and its tables are those that Tacit trains with", () => {
  const state: State = { ...START, count: 200 };
  const points = pointsOf(state);
  const files: Record<string, string> = {
    "run.toml": toToml(state, points.length),
    "points.csv": toCsv(points),
    "test-points.csv": toCsv(testPointsOf(state)),
  };
  const folder = `${PLAYGROUND}/tests/expected/run`;
  for (const [name, text] of Object.entries(files)) {
    if (process.env.WRITE === "1") {
      mkdirSync(folder, { recursive: true });
      writeFileSync(`${folder}/${name}`, text);
    }
    assert.equal(readFileSync(`${folder}/${name}`, "utf8"), text, `${name}: run WRITE=1 node test.mjs link`);
  }
  const other = toToml({ ...state, activation: "tempered-sigmoid", depth: 2, samplingRate: 1, budget: "epsilon" }, 200);
  for (const line of ["hidden = [8, 8]", "temper = [1.58, 3.0, 0.71]", 'batch_size = "full"', "epsilon = 3.0"]) {
    assert.ok(other.includes(line), line);
  }
});

test("texts are filled, and no brace is left without its value", () => {
  assert.equal(fill("{a} of {b}", { a: 1, b: "two" }), "1 of two");
  assert.equal(TEXT.tour.steps.length, 7);
  assert.equal(TEXT.questions.items.length, 10);
});
