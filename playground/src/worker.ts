// What is too slow for the page? Accounting and attacks, done here.

import { calibrate, type Cost, cost, costBy, type Method, METHODS } from "./accounting/account.ts";
import { outside, type Run } from "./accounting/range.ts";
import { type Profile, profile } from "./accounting/tradeoff.ts";
import { type Scores, scoreOf, type Target } from "./attack/attack.ts";

export type Job =
  | { readonly kind: "account"; readonly id: number; readonly run: Run; readonly epsilon: number | null }
  | { readonly kind: "attack"; readonly id: number; readonly target: Target; readonly models: number };

export type Answer =
  | { readonly kind: "noise"; readonly id: number; readonly noiseMultiplier: number | null }
  | { readonly kind: "cost"; readonly id: number; readonly cost: Cost; readonly run: Run }
  | { readonly kind: "curve"; readonly id: number; readonly method: Method; readonly steps: number[]; readonly epsilons: number[] }
  | { readonly kind: "profile"; readonly id: number; readonly profile: Profile }
  | { readonly kind: "scores"; readonly id: number; readonly plain: Scores; readonly noisy: Scores; readonly done: number };

declare const self: { postMessage(answer: Answer): void; onmessage: ((event: { data: Job }) => void) | null };

const TICKS = 30; // steps at which epsilon is found

/** Steps from 1 to T, denser at the beginning. */
function ticks(steps: number): number[] {
  const found = Array.from({ length: TICKS }, (_, k) => Math.max(1, Math.round(steps * ((k + 1) / TICKS) ** 1.6)));
  return [...new Set([1, ...found])];
}

function accountFor(id: number, wanted: Run, epsilon: number | null): void {
  let run = wanted;
  if (epsilon !== null) {
    const noiseMultiplier = calibrate(epsilon, run);
    self.postMessage({ kind: "noise", id, noiseMultiplier });
    if (noiseMultiplier === null) return;
    run = { ...run, noiseMultiplier };
  }
  self.postMessage({ kind: "cost", id, cost: cost(run), run });
  if (outside(run) !== null) return;
  self.postMessage({ kind: "profile", id, profile: profile(run) });
  const steps = ticks(run.steps);
  for (const method of [...METHODS].reverse()) {
    const epsilons = steps.map((each) => costBy(method, { ...run, steps: each }));
    self.postMessage({ kind: "curve", id, method, steps, epsilons });
  }
}

function attack(id: number, target: Target, models: number): void {
  const plain: Scores = { inside: [], outside: [] };
  const noisy: Scores = { inside: [], outside: [] };
  let shown = 0;
  for (let round = 0; round < models; round++) {
    plain.inside.push(scoreOf(target, false, true, round));
    plain.outside.push(scoreOf(target, false, false, round));
    noisy.inside.push(scoreOf(target, true, true, round));
    noisy.outside.push(scoreOf(target, true, false, round));
    const now = performance.now();
    if (now - shown < 150 && round + 1 < models) continue;
    shown = now;
    self.postMessage({ kind: "scores", id, plain, noisy, done: round + 1 });
  }
}

self.onmessage = ({ data }) => {
  if (data.kind === "account") accountFor(data.id, data.run, data.epsilon);
  else attack(data.id, data.target, data.models);
};
