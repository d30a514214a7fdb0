// What is the privacy loss of one step? The Poisson-sampled Gaussian, through its moments.
//
// With x ~ N(0, sigma^2) the likelihood ratio of "with the record" to "without" is
// m(x) = 1 - q + q e^((2x - 1) / (2 sigma^2)).  All that accounting needs is E[m^s] for complex s:
// the loss of T steps has E e^(zL) = E[m^(z+1)]^T where the record is removed and E[m^(-z)]^T where it is added.

/** Which neighbour: the record was there and is taken away, or the other way round. */
export type Direction = "remove" | "add";

/** One step: every record is drawn with probability q, and noise sigma C is added to the clipped sum. */
export interface Step {
  readonly samplingRate: number;
  readonly noiseMultiplier: number;
}

const REACH = 10; // standard deviations of x that are integrated over
const OVERFLOW = 30; // e^-30 is below the rounding of 1
const DIGITS = 46; // e^-46 = 1e-20: what the trapezoid rule may leave

/** The exponent s of E[m^s] at a real z. */
function exponent(direction: Direction, z: number): number {
  return direction === "remove" ? z + 1 : -z;
}

/** log m(x), without overflow and without losing digits where m is near 1. */
function logRatio(step: Step, x: number): number {
  const { samplingRate: q, noiseMultiplier: sigma } = step;
  const y = (2 * x - 1) / (2 * sigma * sigma);
  if (q === 1) return y;
  return y > OVERFLOW ? y + Math.log(q + (1 - q) * Math.exp(-y)) : Math.log1p(q * Math.expm1(y));
}

/** The law of one step's loss, tilted by e^(cL): points, probabilities, and log E e^(cL). */
export interface Tilted {
  readonly losses: Float64Array;
  readonly weights: Float64Array;
  readonly logMoment: number;
  readonly mean: number;
  readonly variance: number;
}

/**
 * The tilted law on a grid of x so fine that E e^(iuL) is exact to rounding for |u| <= reach.
 *
 * The integrand is analytic for |Im x| < pi sigma^2; shifting the line of integration by a gains
 * e^(-2 pi a / h) and costs e^(a^2 / (2 sigma^2) + |u| a / sigma^2).
 */
export function tilted(step: Step, direction: Direction, c: number, reach: number): Tilted {
  const sigma = step.noiseMultiplier;
  const s = exponent(direction, c);
  const low = Math.min(s, 0) - REACH * sigma;
  const high = Math.max(s, 1) + REACH * sigma;
  const shift = Math.min(9.6 * sigma, 3 * sigma * sigma);
  const inverse =
    (DIGITS + (shift * shift) / (2 * sigma * sigma) + (Math.abs(reach) * shift) / (sigma * sigma)) / (2 * Math.PI * shift);
  const count = 2 + Math.ceil((high - low) * inverse);
  const width = (high - low) / (count - 1);
  const losses = new Float64Array(count);
  const weights = new Float64Array(count);
  let top = -Infinity;
  for (let j = 0; j < count; j++) {
    const x = low + j * width;
    const ratio = logRatio(step, x);
    losses[j] = direction === "remove" ? ratio : -ratio;
    weights[j] = s * ratio - (x * x) / (2 * sigma * sigma);
    top = Math.max(top, weights[j]!);
  }
  let total = 0;
  for (let j = 0; j < count; j++) total += weights[j] = Math.exp(weights[j]! - top);
  const kept = keepHeavy(losses, weights, total);
  return { ...kept, logMoment: top + Math.log((total * width) / (sigma * Math.sqrt(2 * Math.PI))) };
}

/** Probabilities that sum to 1, the losses about their mean, without the points that carry nothing. */
function keepHeavy(losses: Float64Array, weights: Float64Array, total: number): Omit<Tilted, "logMoment"> {
  let size = 0;
  let mean = 0;
  for (let j = 0; j < losses.length; j++) {
    const weight = weights[j]! / total;
    if (weight < 1e-22) continue;
    losses[size] = losses[j]!;
    weights[size++] = weight;
    mean += weight * losses[size - 1]!;
  }
  let variance = 0;
  for (let j = 0; j < size; j++) {
    losses[j]! -= mean;
    variance += weights[j]! * losses[j]! ** 2;
  }
  return { losses: losses.subarray(0, size), weights: weights.subarray(0, size), mean, variance };
}
