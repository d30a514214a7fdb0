// The tails of the normal law, with small relative error however far out.

/** erfc(x) for x >= 0: a series near 0, a continued fraction beyond. */
function erfc(x: number): number {
  if (x > 27) return 0;
  if (x < 2) {
    let term = x;
    let sum = x;
    for (let k = 1; Math.abs(term) > 1e-18 * Math.abs(sum); k++) {
      term *= (-x * x) / k;
      sum += term / (2 * k + 1);
    }
    return 1 - (2 / Math.sqrt(Math.PI)) * sum;
  }
  let fraction = x;
  for (let k = 120; k >= 1; k--) fraction = x + k / 2 / fraction;
  return Math.exp(-x * x) / (Math.sqrt(Math.PI) * fraction);
}

/** P(N(0, 1) <= x). */
export function normalBelow(x: number): number {
  const tail = erfc(Math.abs(x) / Math.SQRT2) / 2;
  return x < 0 ? tail : 1 - tail;
}

/** delta of one Gaussian of noise multiplier sigma at any real epsilon (Balle & Wang 2018, 1805.06530, Theorem 8). */
export function gaussianDelta(epsilon: number, sigma: number): number {
  const half = 1 / (2 * sigma);
  return normalBelow(half - epsilon * sigma) - Math.exp(epsilon) * normalBelow(-half - epsilon * sigma);
}
