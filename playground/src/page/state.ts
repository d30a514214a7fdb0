// What is the state of the page? Everything that decides a run; a link holds all of it.

import { type Run } from "../accounting/range.ts";
import { type DataSet, makePoints, MOST_POINTS, type Point } from "../learning/data.ts";
import { type Activation } from "../learning/network.ts";
import { type OptimizerName, type Recipe } from "../learning/trainer.ts";

export interface State {
  readonly dataSet: DataSet;
  readonly count: number;
  readonly spread: number;
  readonly seed: number;
  readonly added: readonly Point[]; // painted, and canaries
  readonly width: number;
  readonly depth: number;
  readonly activation: Activation;
  readonly optimizer: OptimizerName;
  readonly learningRate: number;
  readonly samplingRate: number;
  readonly clippingNorm: number;
  readonly budget: "epsilon" | "sigma"; // which of the two the user sets
  readonly epsilon: number;
  readonly noiseMultiplier: number; // 0 only where a budget has no noise that fits
  readonly delta: number;
  readonly steps: number;
  readonly target: number; // index of the record that is attacked, or -1
  readonly models: number; // that an attack trains of each kind
}

export const START: State = {
  dataSet: "circles",
  count: 300,
  spread: 0.25,
  seed: 1,
  added: [],
  width: 8,
  depth: 1,
  activation: "tanh",
  optimizer: "adam",
  learningRate: 0.05,
  samplingRate: 0.1,
  clippingNorm: 1,
  budget: "sigma",
  epsilon: 3,
  noiseMultiplier: 1,
  delta: 1e-4,
  steps: 300,
  target: -1,
  models: 100,
};

/** What a knob may be set to. */
export const KNOBS = {
  count: [50, 100, 200, 300, 400, 500],
  spread: [0, 0.1, 0.25, 0.4, 0.6, 0.8],
  width: [2, 3, 4, 6, 8, 12, 16],
  depth: [1, 2],
  learningRate: [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2],
  samplingRate: [0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1],
  clippingNorm: [0.1, 0.2, 0.5, 1, 2, 5, 10],
  epsilon: [0.5, 1, 2, 3, 5, 8, 15, 30],
  noiseMultiplier: [0.5, 0.7, 0.85, 1, 1.2, 1.5, 2, 3, 4, 6, 10, 20],
  delta: [1e-6, 1e-5, 1e-4, 1e-3, 1e-2],
  steps: [50, 100, 200, 300, 500, 1000, 2000, 5000],
  models: [50, 100, 200, 400],
} as const;
export type Knob = keyof typeof KNOBS;

export const PRESETS: Record<string, Partial<State>> = {
  start: { budget: "epsilon", epsilon: 3, noiseMultiplier: 2.29 },
  strict: { dataSet: "clusters", budget: "epsilon", epsilon: 1, noiseMultiplier: 5.633, spread: 0.1, clippingNorm: 0.5 },
  outlier: { dataSet: "clusters", width: 16, depth: 2, steps: 500, spread: 0.1, count: 200, samplingRate: 0.4, noiseMultiplier: 10, clippingNorm: 0.5 },
  hard: { dataSet: "spirals", width: 12, depth: 2, steps: 2000, spread: 0.1, count: 500, learningRate: 0.02 },
  loose: { clippingNorm: 2, noiseMultiplier: 0.5 },
  exploding: { dataSet: "xor", activation: "relu", learningRate: 0.2, noiseMultiplier: 4, width: 16, depth: 2, steps: 500 },
};

/** The records of a state. */
export function pointsOf(state: State): Point[] {
  const made = makePoints(state.dataSet, state.count, state.spread, state.seed);
  return [...made, ...state.added].slice(0, MOST_POINTS);
}

/** Points that were not trained on; none where points were painted. */
export function testPointsOf(state: State): Point[] {
  return state.dataSet === "painted" ? [] : makePoints(state.dataSet, 400, state.spread, state.seed, true);
}

export function recipeOf(state: State): Recipe {
  const { width, depth, activation, optimizer, learningRate, samplingRate, clippingNorm, noiseMultiplier } = state;
  const shape = { hidden: Array.from({ length: depth }, () => width), activation };
  return { shape, optimizer, learningRate, samplingRate, clippingNorm, noiseMultiplier };
}

export function runOf(state: State): Run {
  const { samplingRate, noiseMultiplier, steps, delta } = state;
  return { samplingRate, noiseMultiplier, steps, delta };
}
