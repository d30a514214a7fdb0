// How likely is a loss above epsilon? delta(epsilon) of T steps, by inverting a transform along a line.
//
// The transform of delta(eps) = E(1 - e^(eps - L))_+ in eps is E e^(zL) / (z (z + 1)), so that for every c > 0
//   delta(eps) = 1/(2 pi i) * integral over Re z = c of  e^(K(z) - z eps) / (z (z + 1)) dz,   K(z) = T log E e^(zL).
// The trapezoid rule with spacing h adds copies of delta at distance 2 pi / h, each tilted by e^(c 2 pi / h);
// they are never negative, so that aliasing errs towards more delta.  No line of this is Tacit's Python.

import { type Direction, type Step, type Tilted, tilted } from "./loss.ts";

const ALIASING = 1e-11; // of delta, relative
const TRUNCATION = 2e-9;
const MOST_WORK = 4e8; // points of x times points of z; beyond, no number is given

/** The line Re z = c, with what the integrand is at its nodes, but for the factor e^(K(c) - z eps). */
interface Line {
  readonly c: number;
  readonly spacing: number;
  readonly logMoment: number; // K(c)
  readonly mean: number; // K'(c): phases are counted from here
  readonly real: Float64Array;
  readonly imaginary: Float64Array;
}

interface Saddle {
  readonly c: number;
  readonly epsilon: number;
  readonly logDelta: number;
  readonly chernoff: number; // log delta(eps) is at most this less c eps
}

/** delta and epsilon of T steps in one direction; every number is an estimate good to about ten digits. */
export class Contour {
  private line: Line | null = null;
  private readonly step: Step;
  private readonly steps: number;
  private readonly direction: Direction;

  constructor(step: Step, steps: number, direction: Direction) {
    this.step = step;
    this.steps = steps;
    this.direction = direction;
  }

  /** log delta at epsilon, NaN where it would take too long; -Infinity where Chernoff's bound is below ``least``. */
  logDelta(epsilon: number, least = -Infinity): number {
    const saddle = this.saddleWhere((at) => at.epsilon - epsilon);
    if (saddle.chernoff - saddle.c * epsilon < least) return -Infinity;
    this.centre(saddle.c, saddle.logDelta, epsilon);
    return this.line === null ? NaN : evaluate(this.line, epsilon)[0];
  }

  /** Whether epsilon is certainly enough for delta, by Chernoff's bound: quick, and true whatever the line. */
  isEnough(epsilon: number, delta: number): boolean {
    const saddle = this.saddleWhere((at) => at.epsilon - epsilon);
    return saddle.chernoff - saddle.c * epsilon < Math.log(delta);
  }

  /** The epsilon >= 0 at which delta is reached, NaN where it would take too long. */
  epsilon(delta: number): number {
    const target = Math.log(delta);
    let saddle = this.saddleWhere((at) => target - at.logDelta);
    let epsilon = Math.max(0, saddle.epsilon);
    for (let round = 0; round < 3; round++) {
      this.centre(saddle.c, target, epsilon);
      if (this.line === null) return NaN;
      epsilon = newton(this.line, epsilon, target);
      if (!(epsilon > 0)) return this.logDelta(0) <= target ? 0 : NaN;
      saddle = this.saddleWhere((at) => at.epsilon - epsilon);
      if (Math.abs(Math.log(saddle.c / this.line.c)) < 0.3) break;
    }
    return epsilon;
  }

  /** The line whose c solves ``excess = 0``; ``excess`` rises with c. */
  private saddleWhere(excess: (at: Saddle) => number): Saddle {
    let [low, high] = [-9, 9]; // of log c; every c is valid, others only take longer
    for (let k = 0; k < 40 && high - low > 0.01; k++) {
      const middle = (low + high) / 2;
      if (excess(this.saddle(Math.exp(middle))) > 0) high = middle;
      else low = middle;
    }
    return this.saddle(Math.exp((low + high) / 2));
  }

  /** The epsilon for which the integrand is flat at c, and the saddle-point estimate of delta there. */
  private saddle(c: number): Saddle {
    const { logMoment, mean, variance } = tilted(this.step, this.direction, c, 0);
    const epsilon = this.steps * mean - 1 / c - 1 / (c + 1);
    const curvature = this.steps * variance + c ** -2 + (c + 1) ** -2;
    const height = this.steps * logMoment - c * epsilon - Math.log(c * (c + 1));
    const chernoff = this.steps * logMoment - logKernel(c);
    return { c, epsilon, logDelta: height - Math.log(2 * Math.PI * curvature) / 2, chernoff };
  }

  /** Lay the line through c: spacing by what aliasing may add, length by where the integrand has died out. */
  private centre(c: number, logDelta: number, epsilon: number): void {
    this.line = null;
    const small = Math.log(ALIASING) + Math.min(0, logDelta);
    let period = -small / c;
    const at = [1.15, 1.4, 2, 3, 5, 9, 20].map((factor) => factor * c);
    const moments = at.map((other) => this.steps * tilted(this.step, this.direction, other, 0).logMoment);
    const right = (): number =>
      Math.min(...at.map((other, k) => moments[k]! - other * epsilon - logKernel(other) - (other - c) * period));
    for (let k = 0; k < 60 && right() > small; k++) period *= 1.15;
    const spacing = (2 * Math.PI) / period;
    const law = tilted(this.step, this.direction, c, 0);
    let reach = Math.max(16 / Math.sqrt(this.steps * law.variance), 8 * spacing);
    for (;;) {
      const finer = tilted(this.step, this.direction, c, reach);
      if ((finer.losses.length * reach) / spacing > MOST_WORK) return;
      this.line = walk(finer, this.steps, c, spacing, reach);
      if (this.line !== null) return;
      reach *= 2;
    }
  }
}

/** log of the least factor between delta(eps) and e^(K(c) - c eps): c^c / (1 + c)^(1 + c), inverted. */
function logKernel(c: number): number {
  return (1 + c) * Math.log1p(c) - c * Math.log(c);
}

/** The integrand at c + i k h for k = 0, 1, ... until it has died out; null if it has not by ``reach``. */
function walk(law: Tilted, steps: number, c: number, spacing: number, reach: number): Line | null {
  const { losses, weights } = law;
  const size = losses.length;
  const turnRe = losses.map((loss) => Math.cos(spacing * loss));
  const turnIm = losses.map((loss) => Math.sin(spacing * loss));
  const re = Float64Array.from(weights);
  const im = new Float64Array(size);
  const most = Math.ceil(reach / spacing);
  const real = new Float64Array(most);
  const imaginary = new Float64Array(most);
  let quiet = 0;
  for (let k = 0; k < most; k++) {
    let sumRe = 0;
    let sumIm = 0;
    for (let j = 0; j < size; j++) {
      const r = re[j]!;
      const i = im[j]!;
      sumRe += r;
      sumIm += i;
      re[j] = r * turnRe[j]! - i * turnIm[j]!;
      im[j] = r * turnIm[j]! + i * turnRe[j]!;
    }
    const u = k * spacing;
    const size2 = (c * c - u * u + c) ** 2 + (u * (2 * c + 1)) ** 2; // |z (z + 1)|^2
    const modulus = Math.exp((steps * Math.log(sumRe * sumRe + sumIm * sumIm) - Math.log(size2)) / 2);
    const angle = steps * Math.atan2(sumIm, sumRe) - Math.atan2(u * (2 * c + 1), c * c - u * u + c);
    real[k] = modulus * Math.cos(angle);
    imaginary[k] = modulus * Math.sin(angle);
    quiet = modulus * Math.max(1, k) < TRUNCATION * real[0]! ? quiet + 1 : 0;
    if (quiet > 12) {
      const found = { real: real.slice(0, k + 1), imaginary: imaginary.slice(0, k + 1) };
      return { c, spacing, logMoment: steps * law.logMoment, mean: steps * law.mean, ...found };
    }
  }
  return null;
}

/** log delta at epsilon and its slope, by the nodes of one line. */
function evaluate(line: Line, epsilon: number): [value: number, slope: number] {
  const { c, spacing, real, imaginary } = line;
  const angle = spacing * (line.mean - epsilon);
  const [turnRe, turnIm] = [Math.cos(angle), Math.sin(angle)];
  let sum = real[0]! / 2;
  let slope = (-c * real[0]!) / 2;
  let [re, im] = [turnRe, turnIm];
  for (let k = 1; k < real.length; k++) {
    const termRe = real[k]! * re - imaginary[k]! * im;
    const termIm = real[k]! * im + imaginary[k]! * re;
    sum += termRe;
    slope += k * spacing * termIm - c * termRe;
    [re, im] = [re * turnRe - im * turnIm, re * turnIm + im * turnRe];
  }
  return [line.logMoment - c * epsilon + Math.log((sum * spacing) / Math.PI), slope / sum];
}

/** The epsilon at which log delta is ``target``, from a near one. */
function newton(line: Line, start: number, target: number): number {
  let epsilon = start;
  for (let k = 0; k < 50; k++) {
    const [value, slope] = evaluate(line, epsilon);
    if (!Number.isFinite(value) || !(slope < 0)) return NaN;
    const move = Math.max(-2, Math.min(2, (value - target) / -slope));
    epsilon += move;
    if (Math.abs(move) < 1e-13 * Math.max(1, Math.abs(epsilon))) break;
  }
  return epsilon;
}
