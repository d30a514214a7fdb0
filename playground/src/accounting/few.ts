// What do a few steps cost? One step has a closed form; each further step is one integral.
//
// With little noise the transform of few steps dies out slowly, and contour.ts would take minutes.  But
//   delta_(k+1)(eps) = E_x delta_k(eps - l(x)),   x ~ (1 - q) N(0, sigma^2) + q N(1, sigma^2),
// where l(y) = log(1 - q + q e^y) at y = (2x - 1) / (2 sigma^2).  The loss ends at log(1 - q), and all detail lies
// near the end, on the scale of y.  So delta_k is kept on a grid of y with eps = k l(y), and of the integral at
// eps = (k+1) l(y) one part runs over the y of x and the other over the y of delta_k; both are smooth there.
// All terms are positive: the relative error does not grow in the tail.  Only for a removed record.

import { type Step } from "./loss.ts";
import { gaussianDelta, normalBelow } from "./normal.ts";

/** Up to how many steps this is the better way. */
export const FEW = 8;

const POINTS = 12; // of the interpolation
const REACH = 9; // standard deviations of x
const NODES = 12; // of a panel

/** delta_1, ..., delta_T of one kind of step, made when they are first asked for. */
export class FewSteps {
  private readonly step: Step;
  private readonly low: number; // of y
  private readonly high: number;
  private readonly scale: number; // on which delta_1 changes
  private readonly tables: Float64Array[] = []; // log delta_k on the grid of y, from k = 1

  constructor(step: Step) {
    this.step = step;
    const sigma = step.noiseMultiplier;
    this.low = (-REACH - 1) / sigma - 1 / (2 * sigma * sigma);
    this.high = (REACH + 1) / sigma + 1 / (2 * sigma * sigma);
    this.scale = Math.min(1, 1 / sigma);
  }

  /** log delta of ``steps`` steps at epsilon. */
  logDelta(steps: number, epsilon: number): number {
    while (this.tables.length < steps) this.addStep();
    return this.log(steps, epsilon, this.valueOf(epsilon / steps));
  }

  /** The epsilon >= 0 at which ``steps`` steps reach delta. */
  epsilon(steps: number, delta: number): number {
    const target = Math.log(delta);
    if (this.logDelta(steps, 0) <= target) return 0;
    let [low, high] = [0, 1];
    while (this.logDelta(steps, high) > target) [low, high] = [high, 2 * high];
    for (let k = 0; k < 60 && high - low > 1e-13 * high; k++) {
      const middle = (low + high) / 2;
      if (this.logDelta(steps, middle) > target) low = middle;
      else high = middle;
    }
    return high;
  }

  /** l(y). */
  private loss(y: number): number {
    const q = this.step.samplingRate;
    return y > 30 ? y + Math.log(q + (1 - q) * Math.exp(-y)) : Math.log1p(q * Math.expm1(y));
  }

  /** The y at which l(y) is ``loss``; -Infinity at and below the end of all losses. */
  private valueOf(loss: number): number {
    const q = this.step.samplingRate;
    if (loss > 30) return loss - Math.log(q) + Math.log1p(-(1 - q) * Math.exp(-loss));
    const lift = Math.expm1(loss) / q;
    return lift <= -1 ? -Infinity : Math.log1p(lift);
  }

  /** The density of y where the record is present. */
  private density(y: number): number {
    const { samplingRate: q, noiseMultiplier: sigma } = this.step;
    const x = sigma * sigma * y + 0.5;
    const without = Math.exp(-(x * x) / (2 * sigma * sigma));
    return (without * (1 - q + q * Math.exp(y)) * sigma) / Math.sqrt(2 * Math.PI);
  }

  /** Of the grid for so many steps: a sum of k losses changes on 1/sqrt(k) of the scale of one, times k. */
  private width(steps: number): number {
    return (0.2 * this.scale) / Math.sqrt(steps);
  }

  private addStep(): void {
    const before = this.tables.length;
    const { samplingRate: q, noiseMultiplier: sigma } = this.step;
    const width = this.width(before + 1);
    const table = new Float64Array(Math.ceil((this.high - this.low) / width) + POINTS);
    for (let k = 0; k < table.length; k++) {
      const y = this.low + k * width;
      table[k] = Math.log(before === 0 ? Math.max(0, q * gaussianDelta(y, sigma)) : this.integral(before, y));
    }
    this.tables.push(table);
  }

  /** delta_(k+1) at (k+1) l(y). */
  private integral(steps: number, y: number): number {
    const epsilon = (steps + 1) * this.loss(y);
    let sum = 0;
    this.over(this.low, Math.min(y, this.high), 1, (own, weight) => {
      const rest = epsilon - this.loss(own);
      sum += weight * this.density(own) * Math.exp(this.log(steps, rest, this.valueOf(rest / steps)));
    });
    let last = y;
    this.over(this.low, y, steps, (other, weight) => {
      const own = this.valueOf(epsilon - steps * this.loss(other));
      const rate = (steps * this.slope(other)) / this.slope(own);
      sum += weight * rate * this.density(own) * Math.exp(this.log(steps, steps * this.loss(other), other));
    });
    if (y > this.low) last = this.valueOf(epsilon - steps * this.loss(this.low));
    return sum + this.certain(epsilon, last);
  }

  /** l'(y). */
  private slope(y: number): number {
    const q = this.step.samplingRate;
    return q / (q + (1 - q) * Math.exp(-y));
  }

  /** The part of the integral above y, where delta_k(eps) = 1 - e^eps: in closed form. */
  private certain(epsilon: number, y: number): number {
    const { samplingRate: q, noiseMultiplier: sigma } = this.step;
    const x = sigma * sigma * y + 0.5;
    const above = normalBelow(-x / sigma);
    return (1 - q) * above + q * normalBelow((1 - x) / sigma) - Math.exp(epsilon) * above;
  }

  /** Gauss-Legendre from low to high, on panels as wide as delta_k of ``steps`` steps needs. */
  private over(low: number, high: number, steps: number, visit: (y: number, weight: number) => void): void {
    if (high <= low) return;
    const panels = Math.ceil((high - low) / (8 * this.width(steps)));
    const half = (high - low) / panels / 2;
    for (let p = 0; p < panels; p++) {
      const middle = low + (2 * p + 1) * half;
      for (let k = 0; k < NODES; k++) visit(middle + half * LEGENDRE.at[k]!, half * LEGENDRE.weight[k]!);
    }
  }

  /** log delta_k at epsilon = k l(y), by Lagrange's polynomial through the nearest points of the grid. */
  private log(steps: number, epsilon: number, y: number): number {
    const table = this.tables[steps - 1]!;
    const place = (y - this.low) / this.width(steps);
    const first = Math.floor(place) - POINTS / 2 + 1; // the middle of the window: its edges would amplify errors
    if (!(first >= 0)) return Math.log(-Math.expm1(epsilon));
    if (first + POINTS > table.length || table[first + POINTS - 1]! < -650) return -Infinity;
    const t = place - first;
    let [above, below] = [0, 0];
    for (let k = 0; k < POINTS; k++) {
      const gap = t - k;
      if (gap === 0) return table[first + k]!;
      const share = BARYCENTRIC[k]! / gap;
      above += share * table[first + k]!;
      below += share;
    }
    return above / below;
  }
}

/** (-1)^k times a binomial coefficient: the weights of equidistant points. */
const BARYCENTRIC = Array.from({ length: POINTS }, (_, k) => {
  let binomial = 1;
  for (let j = 0; j < k; j++) binomial *= (POINTS - 1 - j) / (j + 1);
  return k % 2 === 0 ? binomial : -binomial;
});

/** Nodes and weights on [-1, 1], by Newton's method on Legendre's polynomial. */
const LEGENDRE = ((): { at: number[]; weight: number[] } => {
  const at: number[] = [];
  const weight: number[] = [];
  for (let k = 0; k < NODES; k++) {
    let x = Math.cos((Math.PI * (k + 0.75)) / (NODES + 0.5));
    let slope = 1;
    for (let round = 0; round < 30; round++) {
      let [before, value] = [1, x];
      for (let j = 2; j <= NODES; j++) [before, value] = [value, ((2 * j - 1) * x * value - (j - 1) * before) / j];
      slope = (NODES * (x * value - before)) / (x * x - 1);
      x -= value / slope;
    }
    at.push(x);
    weight.push(2 / ((1 - x * x) * slope * slope));
  }
  return { at, weight };
})();
