// How does a link hold the whole state? As `#key=value&...`; painted points in three characters each.

import { type Label, MOST_POINTS, type Point } from "../learning/data.ts";
import { DATA_SETS } from "../learning/data.ts";
import { ACTIVATIONS } from "../learning/network.ts";
import { OPTIMIZERS } from "../learning/trainer.ts";
import { START, type State } from "./state.ts";

const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
const HALF = 180; // half a side of the square, in units of a painted point
const ROW = 2 * HALF + 1; // 2 * ROW^2 < 64^3

const KEYS: Record<Exclude<keyof State, "added">, string> = {
  dataSet: "data", count: "n", spread: "spread", seed: "seed", width: "width", depth: "depth", activation: "act",
  optimizer: "opt", learningRate: "lr", samplingRate: "q", clippingNorm: "C", budget: "by", epsilon: "eps",
  noiseMultiplier: "sigma", delta: "delta", steps: "T", target: "target", models: "models",
};

const LIMITS: Partial<Record<keyof State, readonly [number, number]>> = {
  count: [2, MOST_POINTS], spread: [0, 2], seed: [0, 1e6], width: [1, 32], depth: [1, 3], learningRate: [1e-6, 10],
  samplingRate: [1e-3, 1], clippingNorm: [1e-3, 1e3], epsilon: [0.01, 500], noiseMultiplier: [0, 100],
  delta: [1e-12, 0.5], steps: [1, 20000], target: [-1, MOST_POINTS - 1], models: [10, 1000],
};
const WHOLE: readonly (keyof State)[] = ["count", "seed", "width", "depth", "steps", "target", "models"];
const NAMES: Partial<Record<keyof State, readonly string[]>> = {
  dataSet: DATA_SETS, activation: ACTIVATIONS, optimizer: OPTIMIZERS, budget: ["epsilon", "sigma"],
};

/** Painted points lie on the grid of a link, so that a link brings back the same points. */
export function onGrid(x: number, y: number, label: Label): Point {
  const snapped = (value: number): number => (Math.round(Math.max(-1, Math.min(1, value)) * HALF) + 0) / HALF;
  return { x: snapped(x), y: snapped(y), label };
}

/** The part of a link after `#`: what differs from the usual state, and the step. */
export function toLink(state: State, step: number): string {
  const parts: string[] = [];
  for (const [name, key] of Object.entries(KEYS) as [keyof typeof KEYS, string][]) {
    if (state[name] !== START[name]) parts.push(`${key}=${encodeURIComponent(String(state[name]))}`);
  }
  if (state.added.length > 0) parts.push(`points=${state.added.map(written).join("")}`);
  if (step > 0) parts.push(`step=${step}`);
  return parts.join("&");
}

/** The state that a link holds; what is wrong in it is left at the usual value. */
export function fromLink(hash: string): { state: State; step: number } {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const found: Record<string, unknown> = { ...START };
  for (const [name, key] of Object.entries(KEYS) as [keyof typeof KEYS, string][]) {
    const text = given.get(key);
    if (text === null) continue;
    const names = NAMES[name];
    const limits = LIMITS[name];
    if (names?.includes(text)) found[name] = text;
    const value = Number(text);
    const fits = limits !== undefined && value >= limits[0] && value <= limits[1];
    if (fits && text !== "" && (!WHOLE.includes(name) || Number.isInteger(value))) found[name] = value;
  }
  found.added = read(given.get("points") ?? "");
  const state = found as unknown as State;
  const step = Number(given.get("step") ?? 0);
  return { state, step: Number.isInteger(step) && step >= 0 && step <= state.steps ? step : 0 };
}

function written(point: Point): string {
  const [x, y] = [Math.round(point.x * HALF) + HALF, Math.round(point.y * HALF) + HALF];
  const code = (y * ROW + x) * 2 + point.label;
  return DIGITS[code >> 12]! + DIGITS[(code >> 6) & 63]! + DIGITS[code & 63]!;
}

function read(text: string): Point[] {
  const points: Point[] = [];
  for (let k = 0; k + 2 < text.length && points.length < MOST_POINTS; k += 3) {
    const [a, b, c] = [0, 1, 2].map((j) => DIGITS.indexOf(text[k + j]!)) as [number, number, number];
    const code = (a << 12) | (b << 6) | c;
    const cell = code >> 1;
    const y = Math.floor(cell / ROW);
    if (a < 0 || b < 0 || c < 0 || y >= ROW) continue;
    points.push({ x: ((cell % ROW) - HALF) / HALF, y: (y - HALF) / HALF, label: (code & 1) as Label });
  }
  return points;
}
