// Was this record in the training data? Retrain many times with it and without it, and compare a score.
//
// The attacker knows everything but the random draws: the other records, the recipe and the weights at the start.
// The score is log p(label) of the record under the trained model, the usual one (Yeom et al. 2018, 1709.01604).

import { type Point } from "../learning/data.ts";
import { type Recipe, Trainer } from "../learning/trainer.ts";

/** Scores by world. */
export interface Scores {
  readonly inside: number[];
  readonly outside: number[];
}

/** What to attack. */
export interface Target {
  readonly points: readonly Point[];
  readonly index: number;
  readonly recipe: Recipe;
  readonly steps: number;
  readonly seed: number;
}

/** The score of one model, trained with or without the record. */
export function scoreOf(target: Target, isPrivate: boolean, member: boolean, round: number): number {
  const { points, index, recipe, steps, seed } = target;
  const record = points[index]!;
  const used = member ? points : points.filter((_, k) => k !== index);
  const trainer = new Trainer(recipe, isPrivate, seed + 1 + 2 * round + (member ? 1 : 0), seed);
  for (let k = 0; k < steps; k++) trainer.advance(used, points.length);
  const loss = trainer.network.loss(trainer.parameters, record);
  return Number.isFinite(loss) ? -loss : -50;
}

/** A point of the attack's curve: shares of models without and with the record that score at least so much. */
export interface Rates {
  readonly falsePositives: number;
  readonly truePositives: number;
}

/** The attack's curve over all thresholds, from (0, 0) to (1, 1). */
export function rates(scores: Scores): Rates[] {
  const inside = [...scores.inside].sort((a, b) => b - a);
  const outside = [...scores.outside].sort((a, b) => b - a);
  const curve: Rates[] = [{ falsePositives: 0, truePositives: 0 }];
  const thresholds = [...new Set([...inside, ...outside])].sort((a, b) => b - a);
  let [found, wrong] = [0, 0];
  for (const threshold of thresholds) {
    while (found < inside.length && inside[found]! >= threshold) found++;
    while (wrong < outside.length && outside[wrong]! >= threshold) wrong++;
    curve.push({ falsePositives: wrong / outside.length, truePositives: found / inside.length });
  }
  return curve;
}

/** The largest difference of true and false positives: 0 for guessing, 1 for certainty. */
export function advantage(scores: Scores): number {
  return Math.max(0, ...rates(scores).map((at) => at.truePositives - at.falsePositives));
}

/**
 * How far each rate may be from the truth, with 95 % certainty for all thresholds at once
 * (Dvoretzky, Kiefer & Wolfowitz 1956 with Massart's constant), of so many models.
 */
export function uncertainty(models: number): number {
  return Math.sqrt(Math.log(2 / 0.025) / (2 * Math.max(1, models)));
}
