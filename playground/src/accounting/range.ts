// Where does the page give an epsilon? Only inside the range that its tests compare with `tacit account`.

/** One run: T steps, each record drawn with probability q, noise sigma C, and the delta of the guarantee. */
export interface Run {
  readonly samplingRate: number;
  readonly noiseMultiplier: number;
  readonly steps: number;
  readonly delta: number;
}

/** The ends of the tested range, also of the epsilon that comes out. */
export const RANGE = {
  samplingRate: [0.02, 1],
  noiseMultiplier: [0.5, 50],
  steps: [1, 10000],
  delta: [1e-8, 0.1],
  epsilon: [0.005, 500],
} as const;

/** The first number of a run that is outside the tested range, or null. */
export function outside(run: Run): keyof Run | null {
  for (const name of ["samplingRate", "noiseMultiplier", "steps", "delta"] as const) {
    const [low, high] = RANGE[name];
    if (!(run[name] >= low && run[name] <= high)) return name;
  }
  return Number.isInteger(run.steps) ? null : "steps";
}
