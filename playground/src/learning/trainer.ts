// What is one step? Sample, differentiate, clip, add up, add noise, divide, move.
//
//   private:  (1/B) (sum_i min(1, C / |g_i|) g_i + N(0, sigma^2 C^2 I))       B = q n, public
//   plain:    (1/B) sum_i g_i                                                  of the same sample
// Every record is drawn by a coin of probability q; a record whose gradient is not finite adds nothing.

import { type Point } from "./data.ts";
import { Network, type Shape } from "./network.ts";
import { PURPOSE, Stream } from "./random.ts";

export const OPTIMIZERS = ["sgd", "adam"] as const;
export type OptimizerName = (typeof OPTIMIZERS)[number];

/** All that decides a run, besides the points. */
export interface Recipe {
  readonly shape: Shape;
  readonly optimizer: OptimizerName;
  readonly learningRate: number;
  readonly samplingRate: number;
  readonly clippingNorm: number;
  readonly noiseMultiplier: number;
}

/** What happened in one step; only for the picture: in a real run nobody may see this. */
export interface StepDetail {
  readonly step: number;
  readonly sampled: readonly number[]; // indices of points
  readonly gradients: readonly Float64Array[]; // before clipping
  readonly norms: readonly number[];
  readonly clippedSum: Float64Array;
  readonly noise: Float64Array;
}

/** Which records are drawn in a step. */
export function sample(count: number, rate: number, seed: number, step: number): number[] {
  const stream = new Stream(seed, PURPOSE.sampling, step);
  const drawn: number[] = [];
  for (let k = 0; k < count; k++) if (stream.uniform() < rate) drawn.push(k);
  return drawn;
}

/** Scale one gradient to norm C if it is longer, and add it; returns its norm, infinite if it adds nothing. */
export function addClipped(sum: Float64Array, gradient: Float64Array, clippingNorm: number): number {
  let squares = 0;
  for (let k = 0; k < gradient.length; k++) squares += gradient[k]! * gradient[k]!;
  const norm = Math.sqrt(squares);
  if (!Number.isFinite(norm)) return Infinity;
  const factor = Math.min(1, clippingNorm / Math.max(norm, 1e-300));
  for (let k = 0; k < gradient.length; k++) sum[k]! += factor * gradient[k]!;
  return norm;
}

/** SGD or Adam on one array, with PyTorch's defaults. */
export class Optimizer {
  private readonly first: Float64Array;
  private readonly second: Float64Array;
  private readonly name: OptimizerName;
  private readonly learningRate: number;
  private steps = 0;

  constructor(name: OptimizerName, learningRate: number, size: number) {
    this.name = name;
    this.learningRate = learningRate;
    this.first = new Float64Array(name === "adam" ? size : 0);
    this.second = new Float64Array(name === "adam" ? size : 0);
  }

  /** Move the parameters against the gradient. */
  move(parameters: Float64Array, gradient: Float64Array): void {
    this.steps++;
    if (this.name === "sgd") {
      for (let k = 0; k < parameters.length; k++) parameters[k]! -= this.learningRate * gradient[k]!;
      return;
    }
    const one = 1 - 0.9 ** this.steps;
    const two = 1 - 0.999 ** this.steps;
    for (let k = 0; k < parameters.length; k++) {
      const g = gradient[k]!;
      this.first[k] = 0.9 * this.first[k]! + 0.1 * g;
      this.second[k] = 0.999 * this.second[k]! + 0.001 * g * g;
      parameters[k]! -= ((this.learningRate / one) * this.first[k]!) / (Math.sqrt(this.second[k]! / two) + 1e-8);
    }
  }
}

/** One model in training. */
export class Trainer {
  readonly network: Network;
  readonly parameters: Float64Array;
  readonly isPrivate: boolean;
  steps = 0;
  private readonly recipe: Recipe;
  private readonly optimizer: Optimizer;
  private readonly seed: number;
  private readonly startSeed: number;
  private readonly sum: Float64Array;
  private readonly gradient: Float64Array;

  /** ``startSeed`` says where the weights begin, ``seed`` which records are drawn and which noise is added. */
  constructor(recipe: Recipe, isPrivate: boolean, seed: number, startSeed = seed) {
    this.recipe = recipe;
    this.isPrivate = isPrivate;
    this.seed = seed;
    this.startSeed = startSeed;
    this.network = new Network(recipe.shape);
    this.parameters = this.network.start(this.startSeed);
    this.optimizer = new Optimizer(recipe.optimizer, recipe.learningRate, this.network.size);
    this.sum = new Float64Array(this.network.size);
    this.gradient = new Float64Array(this.network.size);
  }

  /** Do one step. ``records`` is the public number n of B = q n; ``detailed`` keeps what the picture shows. */
  advance(points: readonly Point[], records = points.length, detailed = false): StepDetail | null {
    const drawn = sample(points.length, this.recipe.samplingRate, this.seed, this.steps);
    const noise = this.isPrivate ? drawNoise(this.recipe, this.network.size, this.seed, this.steps) : null;
    return this.advanceWith(points, drawn, noise, records, detailed);
  }

  /** The same with given draws. */
  advanceWith(
    points: readonly Point[],
    drawn: readonly number[],
    noise: Float64Array | null,
    records: number,
    detailed = false,
  ): StepDetail | null {
    const { sum, gradient, recipe } = this;
    const gradients: Float64Array[] = [];
    const norms: number[] = [];
    sum.fill(0);
    for (const index of drawn) {
      this.network.gradient(this.parameters, points[index]!, gradient);
      norms.push(addClipped(sum, gradient, this.isPrivate ? recipe.clippingNorm : Infinity));
      if (detailed) gradients.push(gradient.slice());
    }
    const kept = detailed ? { step: this.steps, sampled: drawn, gradients, norms, clippedSum: sum.slice() } : null;
    const divisor = Math.max(1e-9, recipe.samplingRate * records);
    for (let k = 0; k < sum.length; k++) sum[k] = (sum[k]! + (noise?.[k] ?? 0)) / divisor;
    this.optimizer.move(this.parameters, sum);
    this.steps++;
    return kept === null ? null : { ...kept, noise: noise ?? new Float64Array(sum.length) };
  }

  /** The mean loss and the share of right answers. */
  score(points: readonly Point[]): { loss: number; accuracy: number } {
    let [loss, right] = [0, 0];
    for (const point of points) {
      const margin = this.network.margin(this.parameters, point.x, point.y);
      loss += this.network.loss(this.parameters, point);
      if (margin > 0 === (point.label === 1)) right++;
    }
    const count = Math.max(1, points.length);
    return { loss: loss / count, accuracy: right / count };
  }
}

/** The noise of one step: N(0, sigma^2 C^2) for each parameter. */
export function drawNoise(recipe: Recipe, size: number, seed: number, step: number): Float64Array {
  const stream = new Stream(seed, PURPOSE.noise, step);
  const scale = recipe.noiseMultiplier * recipe.clippingNorm;
  return Float64Array.from({ length: size }, () => scale * stream.normal());
}
