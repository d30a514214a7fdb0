// Which points are there? Two classes in the square [-1, 1]^2: made by a rule, or painted.

import { PURPOSE, Stream } from "./random.ts";

export type Label = 0 | 1;

/** One record. */
export interface Point {
  readonly x: number;
  readonly y: number;
  readonly label: Label;
}

export const DATA_SETS = ["circles", "xor", "spirals", "clusters", "painted"] as const;
export type DataSet = (typeof DATA_SETS)[number];

export const MOST_POINTS = 500;

const clamp = (value: number): number => Math.max(-1, Math.min(1, value));

/** Points of one of the rules; ``spread`` from 0 to 1 says how far the classes overlap. */
export function makePoints(name: DataSet, count: number, spread: number, seed: number, test = false): Point[] {
  const stream = new Stream(seed, test ? PURPOSE.test : PURPOSE.data);
  const points = Array.from({ length: name === "painted" ? 0 : count }, (_, k) => {
    const label = (k % 2) as Label;
    const [x, y] = PLACES[name as Exclude<DataSet, "painted">](label, stream);
    return place(x + 0.25 * spread * stream.normal(), y + 0.25 * spread * stream.normal(), label);
  });
  return name === "clusters" && !test ? withOutliers(points) : points;
}

function place(x: number, y: number, label: Label): Point {
  return { x: rounded(clamp(x)), y: rounded(clamp(y)), label };
}

/** Three decimals: what a link and a table hold. */
export function rounded(value: number): number {
  return Math.round(value * 1000) / 1000;
}

const PLACES: Record<Exclude<DataSet, "painted">, (label: Label, stream: Stream) => [number, number]> = {
  circles: (label, stream) => {
    const angle = 2 * Math.PI * stream.uniform();
    const radius = label === 1 ? 0.38 * Math.sqrt(stream.uniform()) : 0.6 + 0.25 * stream.uniform();
    return [radius * Math.cos(angle), radius * Math.sin(angle)];
  },
  xor: (label, stream) => {
    const x = (stream.uniform() < 0.5 ? -1 : 1) * (0.08 + 0.8 * stream.uniform());
    const y = (0.08 + 0.8 * stream.uniform()) * Math.sign(x) * (label === 1 ? 1 : -1);
    return [x, y];
  },
  spirals: (label, stream) => {
    const share = Math.sqrt(stream.uniform());
    const angle = 1.6 * Math.PI * share + label * Math.PI;
    return [0.88 * share * Math.cos(angle), 0.88 * share * Math.sin(angle)];
  },
  clusters: (label, stream) => {
    const centre = label === 1 ? 0.4 : -0.4;
    return [centre + 0.14 * stream.normal(), centre + 0.14 * stream.normal()];
  },
};

/** The last two points go behind the other class: what a person who is unlike all others looks like. */
function withOutliers(points: Point[]): Point[] {
  const far: Point[] = [place(-0.9, -0.72, 1), place(0.88, 0.76, 0)];
  return points.length < 20 ? points : [...points.slice(0, points.length - far.length), ...far];
}

/** Where a canary goes: to the place of the other class that is farthest from its own. */
export function canary(points: readonly Point[]): Point {
  const own = points.filter((point) => point.label === 1);
  const nearest = (at: Point): number => Math.min(2, ...own.map((point) => Math.hypot(point.x - at.x, point.y - at.y)));
  const others = points.filter((point) => point.label === 0);
  const best = others.reduce<Point | null>((a, b) => (a !== null && nearest(a) >= nearest(b) ? a : b), null);
  return place((best?.x ?? 0.7) * 0.97, (best?.y ?? 0.7) * 0.97, 1);
}
