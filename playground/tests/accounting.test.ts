// The page's epsilons against `tacit account`: from above, never below, to a millionth.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { calibrate, cost, costBy, type Method, UP } from "../src/accounting/account.ts";
import { Contour } from "../src/accounting/contour.ts";
import { FEW, FewSteps } from "../src/accounting/few.ts";
import { outside, RANGE, type Run } from "../src/accounting/range.ts";
import { ceiling, profile } from "../src/accounting/tradeoff.ts";

declare const PLAYGROUND: string;

interface Setting {
  q: number;
  sigma: number;
  T: number;
  delta: number;
  lower: number;
  pld: number;
  basic: number | null;
  strong: number | null;
  moments: number | null;
}

interface Shape {
  q: number;
  sigma: number;
  T: number;
  falsePositives: number[];
  falseNegatives: number[];
  epsilons: number[];
  deltas: number[];
}

const expected = JSON.parse(readFileSync(`${PLAYGROUND}/tests/expected/accounting.json`, "utf8")) as {
  range: typeof RANGE;
  settings: Setting[];
  profiles: Shape[];
};

const runOf = (at: Setting): Run => ({
  samplingRate: at.q,
  noiseMultiplier: at.sigma,
  steps: at.T,
  delta: at.delta,
});

test("the range that the page answers in is the one that was compared, and it is filled", () => {
  assert.deepEqual(expected.range, RANGE);
  assert.ok(expected.settings.length >= 500);
  for (const [name, of] of [["q", "samplingRate"], ["sigma", "noiseMultiplier"], ["T", "steps"], ["delta", "delta"]] as const) {
    const values = expected.settings.map((at) => at[name]);
    assert.ok(Math.min(...values) === RANGE[of][0] && Math.max(...values) === RANGE[of][1], name);
    const [low, high] = RANGE[of].map(Math.log) as [number, number];
    for (let part = 0; part < 5; part++) {
      const inside = values.filter((v) => Math.floor(((Math.log(v) - low) / (high - low)) * 5 - 1e-9) === part);
      assert.ok(inside.length >= 20, `${name}: ${inside.length} settings in part ${part}`);
    }
  }
});

for (const method of ["pld", "moments", "strong", "basic"] as Method[]) {
  test(`${method}: agrees with tacit account to 1e-6 from above and never below`, () => {
    let compared = 0;
    for (const at of expected.settings) {
      const wanted = at[method];
      if (wanted === null) continue;
      const found = costBy(method, runOf(at));
      const excess = (found - wanted) / wanted;
      assert.ok(excess >= 0 && excess <= 1e-6, `${JSON.stringify(at)}: ${found}, ${excess}`);
      compared++;
    }
    assert.ok(compared >= 500, `${compared}`);
  });
}

test("the plain estimate, before it is rounded up, lies in the bracket that tacit proves", () => {
  for (const at of expected.settings) {
    const found = costBy("pld", runOf(at)) / UP;
    assert.ok(found >= at.lower * (1 - 1e-8) && found <= at.pld * (1 + 1e-9), JSON.stringify(at));
  }
});

test("the two ways to account for a few steps agree", () => {
  for (const [samplingRate, noiseMultiplier, steps] of [[0.1, 1.5, 4], [0.4, 1, FEW], [0.9, 4, 3]] as const) {
    const step = { samplingRate, noiseMultiplier };
    const one = new FewSteps(step).epsilon(steps, 1e-4);
    const other = new Contour(step, steps, "remove").epsilon(1e-4);
    assert.ok(Math.abs(one / other - 1) < 1e-8, `${samplingRate}: ${one}, ${other}`);
  }
});

test("epsilon rises with q and T and falls with sigma and delta", () => {
  const at = (more: Partial<Run>): number =>
    costBy("pld", { samplingRate: 0.1, noiseMultiplier: 1.2, steps: 200, delta: 1e-4, ...more });
  const along = (values: number[]): void =>
    values.forEach((now, k) => assert.ok(k === 0 || now > values[k - 1]!, `${values}`));
  along([0.02, 0.05, 0.1, 0.11, 0.3, 0.6, 0.99, 1].map((samplingRate) => at({ samplingRate })));
  along([50, 20, 8, 3, 1.5, 1.2, 0.8, 0.5].map((noiseMultiplier) => at({ noiseMultiplier })));
  along([1, 2, 3, FEW - 1, FEW, FEW + 1, FEW + 2, 30, 31, 200, 5000].map((steps) => at({ steps })));
  along([0.1, 1e-2, 1e-3, 1e-5, 1e-8].map((delta) => at({ delta })));
});

test("outside the tested range there is no number, but the name of what is outside", () => {
  const inside: Run = { samplingRate: 0.1, noiseMultiplier: 1, steps: 100, delta: 1e-3 };
  assert.equal(outside(inside), null);
  assert.equal(cost(inside).kind, "epsilon");
  for (const wrong of [
    { samplingRate: 0.01 }, { samplingRate: 1.1 }, { noiseMultiplier: 0.49 }, { noiseMultiplier: 0 }, { steps: 0 },
    { steps: 10001 }, { steps: 2.5 }, { delta: 0 }, { delta: 1e-9 }, { delta: 0.5 }, { delta: NaN },
  ] as Partial<Run>[]) {
    const found = cost({ ...inside, ...wrong });
    assert.deepEqual(found, { kind: "outside", name: Object.keys(wrong)[0] });
  }
  assert.equal(cost({ ...inside, noiseMultiplier: 50, steps: 1 }).kind, "below");
  assert.equal(cost({ ...inside, samplingRate: 1, noiseMultiplier: 0.5, steps: 10000 }).kind, "above");
});

test("calibrated noise costs no more than was asked for, and a little less noise costs more", () => {
  for (const epsilon of [0.5, 1, 3, 8]) {
    const run = { samplingRate: 0.1, steps: 300, delta: 1e-3 };
    const sigma = calibrate(epsilon, run)!;
    assert.ok(costBy("pld", { ...run, noiseMultiplier: sigma }) <= epsilon);
    assert.ok(costBy("pld", { ...run, noiseMultiplier: sigma * 0.998 }) > epsilon);
  }
  assert.equal(calibrate(0.001, { samplingRate: 1, steps: 10000, delta: 1e-8 }), null);
});

test("the ceiling is a number where e^epsilon is none", () => {
  const curve = profile({ samplingRate: 1, noiseMultiplier: 1, steps: 5000 });
  assert.ok(Math.exp(curve.epsilons.at(-1)!) === Infinity);
  assert.ok(ceiling(curve, 0) >= 0 && ceiling(curve, 0) < 1e-6); // delta where epsilon is largest
  assert.deepEqual([0.5, 1].map((rate) => ceiling(curve, rate)), [1, 1]);
});

test("the ceiling on attacks is never below that of tacit, and near it", () => {
  for (const at of expected.profiles) {
    const curve = profile({ samplingRate: at.q, noiseMultiplier: at.sigma, steps: at.T });
    at.falsePositives.forEach((rate, k) => {
      const excess = ceiling(curve, rate) - (1 - at.falseNegatives[k]!);
      assert.ok(excess >= 0 && excess < 2e-3, `q=${at.q} sigma=${at.sigma} T=${at.T} at ${rate}: ${excess}`);
    });
  }
});
