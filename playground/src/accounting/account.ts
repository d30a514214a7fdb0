// What does a run cost? An illustration: `tacit account` proves it.
//
// Every number is rounded up, by more than the error of the inversion and by less than a millionth.

import { Contour } from "./contour.ts";
import { FEW, FewSteps } from "./few.ts";
import { type Step, tilted } from "./loss.ts";
import { gaussianDelta } from "./normal.ts";
import { outside, RANGE, type Run } from "./range.ts";

/** By what an epsilon is rounded up: more than this inversion and Tacit's bracket are wide, less than a millionth. */
export const UP = 1 + 8.5e-7;
const MOST_TABLES = 24; // steps, where the contour gives up
const ORDERS = 32; // the moments that Abadi et al. 2016 compute

/** The accountants of the page, from the loosest to the tightest. */
export const METHODS = ["basic", "strong", "moments", "pld"] as const;
export type Method = (typeof METHODS)[number];

/** A cost: a number, or why there is none. */
export type Cost =
  | { readonly kind: "epsilon"; readonly epsilon: number }
  | { readonly kind: "below"; readonly epsilon: number }
  | { readonly kind: "above"; readonly epsilon: number }
  | { readonly kind: "outside"; readonly name: keyof Run }
  | { readonly kind: "too-slow" };

/** The epsilon of a run by the tight accountant, if the page may show one. */
export function cost(run: Run): Cost {
  const name = outside(run);
  if (name !== null) return { kind: "outside", name };
  const found = epsilonOf(run);
  if (Number.isNaN(found)) return { kind: "too-slow" };
  if (found < RANGE.epsilon[0]) return { kind: "below", epsilon: RANGE.epsilon[0] };
  if (found > RANGE.epsilon[1]) return { kind: "above", epsilon: RANGE.epsilon[1] };
  return { kind: "epsilon", epsilon: found };
}

/** The epsilon of a run by one of the accountants; infinite where the theorem gives no number. */
export function costBy(method: Method, run: Run): number {
  switch (method) {
    case "pld":
      return epsilonOf(run);
    case "moments":
      return moments(run) * UP;
    case "strong":
      return strong(run) * UP;
    case "basic":
      return run.steps * single(run, run.delta / run.steps) * UP;
  }
}

/** The larger epsilon of both directions, rounded up. */
function epsilonOf(run: Run): number {
  if (run.steps === 1) return single(run, run.delta) * UP;
  const removed = removal(run).epsilon(run.delta);
  const add = new Contour(run, run.steps, "add");
  if (run.samplingRate === 1 || add.isEnough(removed, run.delta)) return removed * UP;
  return Math.max(removed, add.epsilon(run.delta)) * UP;
}

/** delta of a run at one epsilon, the larger of both directions; NaN where it would take too long. */
export function deltaOf(run: Omit<Run, "delta">, epsilon: number): number {
  if (run.steps === 1) return singleDelta(run, epsilon);
  const removed = removal(run).logDelta(epsilon);
  if (run.samplingRate === 1) return Math.exp(removed);
  return Math.exp(Math.max(removed, new Contour(run, run.steps, "add").logDelta(epsilon, removed)));
}

interface OneDirection {
  logDelta(epsilon: number): number;
  epsilon(delta: number): number;
}

let few: { readonly step: Step; readonly steps: FewSteps } | null = null; // the newest, as its tables take a while

/** Of a removed record: by the contour, but for few steps and where that would take too long by their integrals. */
function removal(run: Omit<Run, "delta">): OneDirection {
  const { steps, samplingRate, noiseMultiplier } = run;
  const contour = new Contour(run, steps, "remove");
  if (samplingRate === 1) return contour;
  if (few?.step.samplingRate !== samplingRate || few.step.noiseMultiplier !== noiseMultiplier) {
    few = { step: { samplingRate, noiseMultiplier }, steps: new FewSteps(run) };
  }
  const tables = few.steps;
  const either = (byContour: () => number, byTables: () => number): number => {
    if (steps <= FEW) return byTables();
    const found = byContour();
    return Number.isNaN(found) && steps <= MOST_TABLES ? byTables() : found;
  };
  return {
    logDelta: (epsilon) => either(() => contour.logDelta(epsilon), () => tables.logDelta(steps, epsilon)),
    epsilon: (delta) => either(() => contour.epsilon(delta), () => tables.epsilon(steps, delta)),
  };
}

/**
 * One step, exactly: e^eps = 1 + q (e^eps0 - 1) at delta = q delta0
 * (Balle, Barthe & Gaboardi 2018, 1807.01647, Theorem 8; attained).
 */
function single(step: Step, delta: number): number {
  const q = step.samplingRate;
  if (delta >= q) return 0;
  const whole: Step = { samplingRate: 1, noiseMultiplier: step.noiseMultiplier };
  const inner = new Contour(whole, 1, "remove").epsilon(delta / q);
  return inner > 30 ? inner + Math.log(q + (1 - q) * Math.exp(-inner)) : Math.log1p(q * Math.expm1(inner));
}

/** delta of one step at epsilon, by the same theorem. */
function singleDelta(step: Step, epsilon: number): number {
  const q = step.samplingRate;
  const inner = epsilon > 30 ? epsilon - Math.log(q) : Math.log1p(Math.expm1(epsilon) / q);
  return q * gaussianDelta(inner, step.noiseMultiplier);
}

/** Advanced composition with the best split of delta (Dwork, Rothblum & Vadhan 2010, Theorem III.3). */
function strong(run: Run): number {
  const at = (logOdds: number): number => {
    const share = 1 / (1 + Math.exp(-logOdds));
    const each = single(run, (share * run.delta) / run.steps);
    const spread = Math.sqrt(2 * run.steps * Math.log(1 / ((1 - share) * run.delta)));
    return Math.min(run.steps * each, each * spread + run.steps * each * Math.expm1(each));
  };
  return least(at, -12, 12);
}

/** The least value on a grid, and then near its best point. */
function least(value: (x: number) => number, low: number, high: number): number {
  const points = Array.from({ length: 13 }, (_, k) => low + ((high - low) * k) / 12);
  const values = points.map(value);
  const best = values.indexOf(Math.min(...values));
  let [left, right] = [points[Math.max(best - 1, 0)]!, points[Math.min(best + 1, 12)]!];
  let found = values[best]!;
  for (let k = 0; k < 24; k++) {
    const a = left + 0.382 * (right - left);
    const b = left + 0.618 * (right - left);
    const [atA, atB] = [value(a), value(b)];
    found = Math.min(found, atA, atB);
    if (atA < atB) right = b;
    else left = a;
  }
  return found;
}

/** The moments accountant as published: integer orders up to 32 (Abadi et al. 2016, 1607.00133, Theorem 2). */
function moments(run: Run): number {
  let found = Infinity;
  for (let order = 1; order <= ORDERS; order++) {
    const removed = tilted(run, "remove", order, 0).logMoment;
    const added = tilted(run, "add", order, 0).logMoment;
    found = Math.min(found, (run.steps * Math.max(removed, added) - Math.log(run.delta)) / order);
  }
  return Math.max(0, found);
}

/** The least noise, of four digits, with which a run costs at most ``epsilon``; null outside the range. */
export function calibrate(epsilon: number, run: Omit<Run, "noiseMultiplier">): number | null {
  const [least, most] = RANGE.noiseMultiplier;
  const fits = (noiseMultiplier: number): boolean => epsilonOf({ ...run, noiseMultiplier }) <= epsilon;
  if (outside({ ...run, noiseMultiplier: 1 }) !== null || !fits(most)) return null;
  if (fits(least)) return least;
  let [low, high] = [Math.log(least), Math.log(most)];
  while (high - low > 5e-5) {
    const middle = (low + high) / 2;
    if (fits(Math.exp(middle))) high = middle;
    else low = middle;
  }
  const digits = 10 ** (3 - Math.floor(Math.log10(Math.exp(high))));
  return Math.ceil(Math.exp(high) * digits) / digits;
}
