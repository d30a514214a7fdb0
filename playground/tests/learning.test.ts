// Gradients, clipping, noise and steps against Tacit's reference engine, run with a fixed key.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { advantage, rates, uncertainty } from "../src/attack/attack.ts";
import { DATA_SETS, makePoints, type Point } from "../src/learning/data.ts";
import { Network, type Shape } from "../src/learning/network.ts";
import { Stream } from "../src/learning/random.ts";
import { addClipped, drawNoise, type OptimizerName, type Recipe, sample, Trainer } from "../src/learning/trainer.ts";

declare const PLAYGROUND: string;

interface Case {
  shape: Shape;
  optimizer: OptimizerName;
  points: Point[];
  start: number[];
  steps: { sampled: number[]; norms: number[]; clippedSum: number[]; noise: number[]; after: number[] }[];
}

const expected = JSON.parse(readFileSync(`${PLAYGROUND}/tests/expected/steps.json`, "utf8")) as {
  samplingRate: number;
  clippingNorm: number;
  noiseMultiplier: number;
  learningRate: number;
  cases: Case[];
  noiseQuantiles: number[];
};

const recipeOf = (at: Pick<Case, "shape" | "optimizer">): Recipe => ({ ...expected, ...at });

function near(found: ArrayLike<number>, wanted: readonly number[], what: string): void {
  assert.equal(found.length, wanted.length, what);
  wanted.forEach((value, k) =>
    assert.ok(Math.abs(found[k]! - value) <= 1e-9 * Math.max(1, Math.abs(value)), `${what}[${k}]: ${found[k]}, ${value}`),
  );
}

for (const at of expected.cases) {
  test(`three steps of [${at.shape.hidden}] ${at.shape.activation} by ${at.optimizer} are Tacit's`, () => {
    const trainer = new Trainer(recipeOf(at), true, 0);
    trainer.parameters.set(at.start);
    let clipped = 0;
    for (const step of at.steps) {
      const noise = Float64Array.from(step.noise);
      const detail = trainer.advanceWith(at.points, step.sampled, noise, at.points.length, true)!;
      near(detail.norms, step.norms, "norms");
      near(detail.clippedSum, step.clippedSum, "clipped sum");
      near(trainer.parameters, step.after, "parameters");
      clipped += step.norms.filter((norm) => norm > expected.clippingNorm).length;
    }
    assert.ok(clipped > 0, "some gradient is clipped");
  });
}

test("gradients are the slopes of the loss", () => {
  for (const { shape, points, start } of expected.cases) {
    const network = new Network(shape);
    const parameters = Float64Array.from(start);
    const gradient = new Float64Array(network.size);
    network.gradient(parameters, points[0]!, gradient);
    for (let k = 0; k < network.size; k++) {
      const at = (shift: number): number => {
        const moved = parameters.slice();
        moved[k]! += shift;
        return network.loss(moved, points[0]!);
      };
      assert.ok(Math.abs((at(1e-6) - at(-1e-6)) / 2e-6 - gradient[k]!) < 1e-7);
    }
  }
});

test("no record adds more than C, and one that is not finite adds nothing", () => {
  const stream = new Stream(1, 9);
  for (let round = 0; round < 500; round++) {
    const gradient = Float64Array.from({ length: 7 }, () => stream.normal() * 10 ** (4 * stream.normal()));
    const sum = new Float64Array(7);
    const norm = addClipped(sum, gradient, 0.5);
    const added = Math.hypot(...sum);
    assert.ok(added <= 0.5 * (1 + 1e-12));
    if (norm <= 0.5) assert.deepEqual(sum, gradient);
    else assert.ok(Math.abs(added - 0.5) < 1e-12);
  }
  for (const bad of [NaN, Infinity]) {
    const sum = new Float64Array(2);
    assert.equal(addClipped(sum, Float64Array.from([bad, 1]), 1), Infinity);
    assert.deepEqual([...sum], [0, 0]);
  }
});

test("the noise has the law of Tacit's: scale sigma C, normal, independent of step and seed", () => {
  const recipe = recipeOf(expected.cases[0]!);
  const draws = drawNoise(recipe, 200_000, 7, 3).sort();
  const at = (share: number): number => draws[Math.round(share * (draws.length - 1))]!;
  const worst = (factor: number): number =>
    Math.max(...expected.noiseQuantiles.map((value, k) => Math.abs(at(0.01 + (0.98 * k) / 98) - factor * value)));
  assert.ok(worst(1) < 0.015, `${worst(1)}`);
  assert.ok(worst(1.03) > 0.04, "a wrong scale would be seen");
  const [a, b] = [drawNoise(recipe, 50_000, 7, 3), drawNoise(recipe, 50_000, 7, 4)];
  const scale = expected.noiseMultiplier * expected.clippingNorm;
  const product = a.reduce((sum, value, k) => sum + (value * b[k]!) / scale ** 2, 0) / a.length;
  assert.ok(Math.abs(product) < 5 / Math.sqrt(a.length));
});

test("every record is drawn with probability q, by itself", () => {
  const counts = new Float64Array(40);
  const sizes: number[] = [];
  for (let step = 0; step < 20_000; step++) {
    const drawn = sample(40, 0.15, 5, step);
    sizes.push(drawn.length);
    for (const k of drawn) counts[k]!++;
  }
  for (const count of counts) assert.ok(Math.abs(count / 20_000 - 0.15) < 5 * Math.sqrt((0.15 * 0.85) / 20_000));
  const mean = sizes.reduce((a, b) => a + b, 0) / sizes.length;
  const variance = sizes.reduce((a, b) => a + (b - mean) ** 2, 0) / sizes.length;
  assert.ok(Math.abs(variance / (40 * 0.15 * 0.85) - 1) < 0.05, "as coins, not as batches of one size");
});

test("private and plain start alike and see the same sample; a run is the same each time", () => {
  const points = makePoints("circles", 200, 0.2, 3);
  const recipe: Recipe = { ...recipeOf(expected.cases[1]!), learningRate: 0.05, optimizer: "adam" };
  const [one, again, plain] = [new Trainer(recipe, true, 3), new Trainer(recipe, true, 3), new Trainer(recipe, false, 3)];
  assert.deepEqual(one.parameters, plain.parameters);
  const [a, b] = [one.advance(points, 200, true)!, plain.advance(points, 200, true)!];
  assert.deepEqual(a.sampled, b.sampled);
  again.advance(points);
  assert.deepEqual(one.parameters, again.parameters);
});

test("training learns: circles, and XOR under privacy", () => {
  for (const [name, isPrivate] of [["circles", false], ["circles", true], ["xor", true]] as const) {
    const points = makePoints(name, 400, 0.1, 1);
    const shape: Shape = { hidden: [8], activation: "tanh" };
    const recipe: Recipe = {
      shape, optimizer: "adam", learningRate: 0.05, samplingRate: 0.2, clippingNorm: 1, noiseMultiplier: 1,
    };
    const trainer = new Trainer(recipe, isPrivate, 1);
    for (let k = 0; k < 400; k++) trainer.advance(points);
    assert.ok(trainer.score(makePoints(name, 400, 0.1, 1, true)).accuracy > 0.9, `${name} ${isPrivate}`);
  }
});

test("points lie in the square, in both classes, and test points are others", () => {
  for (const name of DATA_SETS) {
    if (name === "painted") continue;
    const points = makePoints(name, 200, 0.5, 2);
    assert.equal(points.length, 200);
    assert.ok(points.every((p) => Math.abs(p.x) <= 1 && Math.abs(p.y) <= 1));
    assert.ok(points.filter((p) => p.label === 1).length > 80);
    assert.notDeepEqual(points[0], makePoints(name, 200, 0.5, 2, true)[0]);
  }
});

test("an attack's curve counts ties in full, and its uncertainty shrinks", () => {
  const curve = rates({ inside: [3, 2, 2, 1], outside: [2, 1, 0, 0] });
  assert.deepEqual(curve, [
    { falsePositives: 0, truePositives: 0 },
    { falsePositives: 0, truePositives: 0.25 },
    { falsePositives: 0.25, truePositives: 0.75 },
    { falsePositives: 0.5, truePositives: 1 },
    { falsePositives: 1, truePositives: 1 },
  ]);
  assert.equal(advantage({ inside: [1, 1], outside: [1, 1] }), 0);
  assert.equal(advantage({ inside: [2, 2], outside: [1, 1] }), 1);
  assert.ok(uncertainty(400) < uncertainty(100));
});
