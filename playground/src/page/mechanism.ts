// What happens in one private step? Arrows in a plane: gradients cut at C, their sum, the noise, the move.
//
// Gradients have as many numbers as the network. The plane is spanned by the clipped sum (to the right) and by the
// direction in which the drawn gradients differ most. Arrows of records keep their true length.

import { type StepDetail } from "../learning/trainer.ts";
import { fill, TEXT } from "../text.ts";
import { byId, make, say, short, svg } from "./dom.ts";

const HALF = 100; // half the width of a picture
const UP = 75; // half its height

interface Plane {
  readonly along: Float64Array;
  readonly across: Float64Array;
}

const dot = (a: ArrayLike<number>, b: ArrayLike<number>): number => {
  let sum = 0;
  for (let k = 0; k < a.length; k++) sum += a[k]! * b[k]!;
  return sum;
};
const lengthOf = (a: ArrayLike<number>): number => Math.sqrt(dot(a, a));

/** The three pictures of a step. */
export class MechanismView {
  private readonly frames: { picture: SVGElement; text: HTMLElement }[] = [];
  private before: Plane | null = null;

  constructor() {
    const { sample, noise, move } = TEXT.mechanism;
    const frames = [sample, noise, move].map((title) => {
      const picture = svg("svg", { viewBox: "-100 -75 200 150", "aria-hidden": "true", class: "arrows" });
      const text = make("p", { class: "small" }, title === sample ? TEXT.mechanism.empty : "");
      this.frames.push({ picture, text });
      return make("div", { class: "frame" }, make("h3", {}, title), picture as unknown as Node, text);
    });
    byId("mechanism-frames").append(...frames);
    byId("mechanism").classList.add("empty"); // no blank pictures before the first step
    const { raw, clipped, sum, noise: random, noisy } = TEXT.mechanism.labels;
    const names = [["raw", raw], ["clipped", clipped], ["sum", sum], ["noise", random], ["noisy", noisy]] as const;
    const legend = names.map(([kind, name]) => make("li", {}, make("i", { class: `stroke ${kind}` }), name));
    byId("mechanism").append(make("ul", { class: "legend small" }, ...legend));
  }

  /** Draw a step; ``count`` records and an expected batch of ``batch``. */
  show(detail: StepDetail, clippingNorm: number, noiseMultiplier: number, count: number, batch: number): void {
    byId("mechanism").classList.remove("empty");
    const plane = this.planeOf(detail);
    const noisy = detail.clippedSum.map((value, k) => value + detail.noise[k]!);
    this.drawSample(detail, plane, clippingNorm, count);
    this.drawNoise(detail, plane, noisy, clippingNorm, noiseMultiplier);
    this.drawMove(detail, plane, noisy, batch);
  }

  private planeOf(detail: StepDetail): Plane {
    const size = detail.clippedSum.length;
    const length = lengthOf(detail.clippedSum);
    const along = length > 0 ? detail.clippedSum.map((v) => v / length) : Float64Array.from({ length: size }, (_, k) => +(k === 0));
    let across = this.before?.across.slice() ?? Float64Array.from({ length: size }, (_, k) => Math.sin(k + 1));
    if (across.length !== size) across = Float64Array.from({ length: size }, (_, k) => Math.sin(k + 1));
    for (let round = 0; round < 3; round++) {
      const next = new Float64Array(size);
      for (const gradient of detail.gradients) {
        const weight = dot(gradient, across) / Math.max(1e-12, dot(gradient, gradient));
        for (let k = 0; k < size; k++) next[k]! += weight * gradient[k]!;
      }
      if (detail.gradients.length > 0) across = next;
      const overlap = dot(across, along);
      for (let k = 0; k < size; k++) across[k]! -= overlap * along[k]!;
      const norm = Math.max(1e-12, lengthOf(across));
      for (let k = 0; k < size; k++) across[k]! /= norm;
    }
    this.before = { along, across };
    return this.before;
  }

  private drawSample(detail: StepDetail, plane: Plane, norm: number, count: number): void {
    const { picture, text } = this.frames[0]!;
    const longest = Math.max(norm, ...detail.norms.filter(Number.isFinite));
    const radius = Math.max(0.36 * UP, Math.min(0.72 * UP, (0.95 * UP * norm) / longest));
    const scale = radius / norm;
    let [raw, clipped, tips] = ["", "", ""];
    detail.gradients.forEach((gradient, k) => {
      const [x, y] = [dot(gradient, plane.along), dot(gradient, plane.across)];
      const flat = Math.max(1e-12, Math.hypot(x, y));
      const full = Math.min(1.5 * HALF, detail.norms[k]! * scale);
      const kept = Math.min(full, radius);
      const at = (r: number): string => `${((x / flat) * r).toFixed(1)} ${((-y / flat) * r).toFixed(1)}`;
      if (full > kept) raw += `M${at(kept)}L${at(full)}`;
      clipped += `M0 0L${at(kept)}`;
      tips += `M${at(kept)}h0`;
    });
    picture.replaceChildren(
      svg("circle", { r: radius, class: "clip" }),
      svg("text", { x: 0, y: -radius - 4, class: "label middle" }, `C = ${short(norm)}`),
      svg("path", { d: raw, class: "raw" }),
      svg("path", { d: clipped, class: "clipped" }),
      svg("path", { d: tips, class: "tips" }),
    );
    const cut = detail.norms.filter((each) => each > norm).length;
    const values = { drawn: detail.sampled.length, count, cut, norm: short(norm) };
    say(text, fill(detail.sampled.length > 0 ? TEXT.mechanism.sampleText : TEXT.mechanism.sampleNone, values));
  }

  private drawNoise(detail: StepDetail, plane: Plane, noisy: Float64Array, norm: number, sigma: number): void {
    const { picture, text } = this.frames[1]!;
    const deviation = norm * sigma;
    const sum = flat(detail.clippedSum, plane);
    const end = flat(noisy, plane);
    // The sum points to the right: the origin is moved so that the picture is filled.
    const left = Math.min(-norm, sum[0] - deviation, end[0]);
    const right = Math.max(norm, sum[0] + deviation, end[0]);
    const high = Math.max(norm, deviation, Math.abs(end[1]));
    const scale = Math.min((1.86 * HALF) / (right - left), (0.8 * UP) / high);
    const shift = (-scale * (left + right)) / 2;
    const at = (v: [number, number]): [number, number] => [v[0] * scale + shift, -v[1] * scale];
    picture.replaceChildren(
      svg("circle", { cx: at(sum)[0], cy: at(sum)[1], r: deviation * scale, class: "deviation" }),
      svg("text", { x: at(sum)[0], y: at(sum)[1] + deviation * scale + 11, class: "label middle" }, `σC = ${short(deviation)}`),
      arrow([shift, 0], at(sum), "sum"),
      arrow(at(sum), at(end), "noise"),
      arrow([shift, 0], at(end), "noisy"),
      svg("circle", { cx: shift, r: norm * scale, class: "clip thin" }),
      svg("circle", { cx: shift, r: 2.5, class: "origin" }),
    );
    const [length, noise] = [short(lengthOf(detail.clippedSum)), short(lengthOf(detail.noise))];
    const values = { sum: length, noise, scale: short(deviation), size: noisy.length, norm: short(norm) };
    say(text, fill(TEXT.mechanism.noiseText, values));
  }

  private drawMove(detail: StepDetail, plane: Plane, noisy: Float64Array, batch: number): void {
    const { picture, text } = this.frames[2]!;
    const truth = lengthOf(detail.clippedSum);
    const length = lengthOf(noisy);
    const cosine = truth > 0 && length > 0 ? dot(detail.clippedSum, noisy) / truth / length : 0;
    const angle = Math.acos(Math.max(-1, Math.min(1, cosine)));
    const side = flat(noisy, plane)[1] < 0 ? 1 : -1;
    const longest = Math.max(truth, length, 1e-12);
    const room = Math.min(1.55 * HALF, (0.85 * UP) / Math.max(0.2, Math.sin(Math.min(angle, Math.PI / 2))));
    const reach = (value: number): number => (room * value) / longest;
    const start = angle > Math.PI / 2 ? 0 : -75;
    const turned = (r: number, a: number): [number, number] => [start + r * Math.cos(a), side * r * Math.sin(a)];
    const [a, b] = [turned(34, 0), turned(34, angle)];
    picture.replaceChildren(
      svg("path", { d: `M${a[0]} ${a[1]}A34 34 0 0 ${side > 0 ? 1 : 0} ${b[0]} ${b[1]}`, class: "angle" }),
      arrow([start, 0], turned(reach(truth), 0), "sum"),
      arrow([start, 0], turned(reach(length), angle), "noisy"),
      svg("circle", { cx: start, r: 2.5, class: "origin" }),
    );
    say(text, fill(TEXT.mechanism.moveText, { batch: short(batch), angle: Math.round((angle * 180) / Math.PI) }));
  }
}

function flat(vector: Float64Array, plane: Plane): [number, number] {
  return [dot(vector, plane.along), dot(vector, plane.across)];
}

/** A line with a head. */
function arrow(from: [number, number], to: [number, number], kind: string): SVGElement {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const length = Math.max(1e-9, Math.hypot(dx, dy));
  const head = Math.min(8, length * 0.4);
  const [ux, uy] = [dx / length, dy / length];
  const wing = (side: number): string =>
    `L${to[0] - head * ux + side * 0.5 * head * uy} ${to[1] - head * uy - side * 0.5 * head * ux}`;
  return svg("path", { d: `M${from[0]} ${from[1]}L${to[0]} ${to[1]}${wing(1)}M${to[0]} ${to[1]}${wing(-1)}`, class: `arrow ${kind}` });
}
