// Which lines and heaps are drawn? The loss, epsilon over steps, the ceiling with the attack, and two histograms.

import { type Method, METHODS } from "../accounting/account.ts";
import { ceiling, type Profile } from "../accounting/tradeoff.ts";
import { type Rates, rates, type Scores, uncertainty } from "../attack/attack.ts";
import { fill, TEXT } from "../text.ts";
import { byId, percent, say, short, shortUp, svg } from "./dom.ts";

type Pair = readonly [number, number];

function path(points: readonly Pair[]): string {
  return points.map(([x, y], k) => `${k === 0 ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function canvas(id: string, label: string, ...inside: SVGElement[]): void {
  const picture = byId(id);
  if (picture.getAttribute("aria-label") !== label) picture.setAttribute("aria-label", label);
  picture.replaceChildren(...(inside as unknown as Node[]));
}

/** Two lines over steps, of at most 600 points. */
export class History {
  private steps: number[] = [];
  private plain: number[] = [];
  private noisy: number[] = [];
  private every = 1;

  reset(): void {
    [this.steps, this.plain, this.noisy, this.every] = [[], [], [], 1];
  }

  add(step: number, plain: number, noisy: number): void {
    if (step % this.every !== 0) return;
    this.steps.push(step);
    this.plain.push(plain);
    this.noisy.push(noisy);
    if (this.steps.length <= 600) return;
    this.every *= 2;
    const kept = this.steps.map((each) => each % this.every === 0);
    const thin = (values: number[]): number[] => values.filter((_, k) => kept[k]);
    [this.steps, this.plain, this.noisy] = [thin(this.steps), thin(this.plain), thin(this.noisy)];
  }

  draw(id: string, title: string, last: number): void {
    const top = Math.max(0.01, ...[...this.plain, ...this.noisy].filter(Number.isFinite));
    const line = (values: readonly number[]): string =>
      path(this.steps.map((step, k) => [(300 * step) / last, 58 - 52 * Math.min(1, (values[k]! || 0) / top)] as const));
    say(byId(`${id}-top`), this.steps.length > 1 ? fill(TEXT.boards.upTo, { top: short(top, 2) }) : "");
    canvas(
      id,
      title,
      svg("line", { x1: 0, x2: 300, y1: 58, y2: 58, class: "axis" }),
      svg("path", { d: line(this.plain), class: "line plain" }),
      svg("path", { d: line(this.noisy), class: "line noisy" }),
    );
  }
}

export type Curves = Partial<Record<Method, { readonly steps: readonly number[]; readonly epsilons: readonly number[] }>>;

/** Epsilon over steps on a logarithmic scale, with the step that was reached; ``waiting`` for more lines. */
export function drawEpsilon(curves: Curves, last: number, now: number, waiting: boolean): void {
  const [left, right, top, bottom] = [43, 236, 10, 150];
  const all = METHODS.flatMap((method) => [...(curves[method]?.epsilons ?? [])]).filter((e) => e > 0 && Number.isFinite(e));
  const [least, most] = [Math.max(0.01, Math.min(...all, 1)), Math.min(1e5, Math.max(...all, 2))];
  const [low, high] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))];
  const x = (step: number): number => left + ((right - left) * step) / last;
  const y = (epsilon: number): number =>
    bottom - ((bottom - top) * (Math.log10(Math.min(Math.max(epsilon, 10 ** low), 10 ** high)) - low)) / (high - low);
  const parts: SVGElement[] = [];
  for (let power = low; power <= high; power++) {
    parts.push(svg("line", { x1: left, x2: right, y1: y(10 ** power), y2: y(10 ** power), class: "grid" }));
    parts.push(svg("text", { x: left - 5, y: y(10 ** power) + 3, class: "label end" }, tens(power)));
  }
  parts.push(svg("text", { x: left, y: bottom + 13, class: "label" }, "0"));
  parts.push(svg("text", { x: right, y: bottom + 13, class: "label end" }, `${last.toLocaleString("en")} ${TEXT.privacy.axis}`));
  const ends: { method: Method; y: number; text: string }[] = [];
  for (const method of METHODS) {
    const curve = curves[method];
    if (curve === undefined) continue;
    const points = curve.steps.map((step, k) => [x(step), y(curve.epsilons[k]!)] as const);
    parts.push(svg("path", { d: path(points), class: `line ${method}` }));
    const end = curve.epsilons.at(-1)!;
    ends.push({ method, y: y(end), text: `${TEXT.privacy.methods[method]} ${Number.isFinite(end) ? shortUp(end, 3) : "∞"}` });
  }
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((end, k) => (end.y = Math.max(end.y, (ends[k - 1]?.y ?? -99) + 12)));
  for (const end of ends) parts.push(svg("text", { x: right + 5, y: end.y + 3, class: `label of-${end.method}` }, end.text));
  parts.push(svg("line", { x1: x(now), x2: x(now), y1: top, y2: bottom, class: "now" }));
  if (waiting) parts.push(svg("text", { x: right + 5, y: bottom, class: "label" }, TEXT.privacy.computing));
  const values = ends.map((end) => end.text).join(", ");
  canvas("epsilon-chart", fill(TEXT.privacy.chart, { steps: last, values }), ...parts);
}

/** A power of ten that fits beside the axis. */
function tens(power: number): string {
  return power < 5 ? short(10 ** power) : `${10 ** (power - 3)}k`;
}

/** True over false positives: the proven ceiling, and the attack where there is one. */
export function drawCeiling(profile: Profile | null, plain: Scores | null, noisy: Scores | null): void {
  const [left, right, top, bottom, room] = [44, 250, 10, 220, 4]; // room: a line at 0 % or 100 % is not on the frame
  const x = (rate: number): number => left + (right - left) * rate;
  const y = (rate: number): number => bottom - (bottom - top) * rate;
  const parts: SVGElement[] = [hatch()];
  const marks: SVGElement[] = []; // names of lines, above all of them
  const grid = Array.from({ length: 61 }, (_, k) => (k / 60) ** 2);
  let spoken: Record<string, string> = { at1: "?", at10: "?" };
  if (profile !== null) {
    const edge = grid.map((rate) => [x(rate), y(ceiling(profile, rate))] as const);
    parts.push(svg("path", { d: `${path(edge)}L${x(1)} ${y(1)}L${x(0)} ${y(1)}Z`, class: "forbidden", fill: "url(#hatch)" }));
    parts.push(svg("path", { d: path(edge), class: "line border" }));
    if (ceiling(profile, 0.5) < 0.9) {
      parts.push(svg("text", { x: x(0.04), y: y(0.93), class: "label strong" }, TEXT.attack.forbidden));
    }
    const height = ceiling(profile, 0.4);
    const [shift, anchor] = height < 0.88 ? [-5, " end"] : [12, ""]; // above the border where there is room
    marks.push(svg("text", { x: x(0.4), y: y(height) + shift, class: `label of-border${anchor}` }, TEXT.attack.labels.border));
    spoken = { at1: percent(ceiling(profile, 0.01)), at10: percent(ceiling(profile, 0.1)) };
  }
  const frame = { x: left - room, y: top - room, width: right - left + 2 * room, height: bottom - top + 2 * room };
  parts.push(svg("rect", { ...frame, class: "frame-line" }));
  parts.push(svg("path", { d: path([[x(0), y(0)], [x(1), y(1)]]), class: "guess" }));
  parts.push(svg("text", { x: x(0.99), y: y(0.72), class: "label end" }, TEXT.attack.guessing));
  let attack = "";
  for (const [scores, kind] of [[plain, "plain"], [noisy, "noisy"]] as const) {
    if (scores === null || scores.inside.length === 0) continue;
    const curve = rates(scores);
    if (kind === "noisy") {
      const gap = uncertainty(scores.inside.length);
      const upper = curve.map((at) => [x(Math.max(0, at.falsePositives - gap)), y(Math.min(1, at.truePositives + gap))] as const);
      const lower = curve.map((at) => [x(Math.min(1, at.falsePositives + gap)), y(Math.max(0, at.truePositives - gap))] as const);
      parts.push(svg("path", { d: `${path(upper)}${path(lower.reverse()).replace("M", "L")}Z`, class: "band" }));
      const named = curve.filter((each) => each.falsePositives <= 0.45).at(-1)!;
      marks.push(svg("text", { x: x(named.falsePositives) + 5, y: y(named.truePositives) + 15, class: "label of-pld" }, TEXT.attack.labels.noisy));
    }
    parts.push(svg("path", { d: path(curve.map((at) => [x(at.falsePositives), y(at.truePositives)] as const)), class: `line ${kind}` }));
    attack = fill(TEXT.attack.curveAttack, { plain: gainOf(plain), noisy: gainOf(noisy) });
  }
  for (const [rate, anchor] of [[0, ""], [0.5, " middle"], [1, " end"]] as const) {
    parts.push(svg("text", { x: x(rate), y: bottom + 15, class: `label${anchor}` }, percent(rate)));
    if (rate > 0) parts.push(svg("text", { x: left - 8, y: y(rate) + 3, class: "label end" }, percent(rate)));
  }
  parts.push(svg("text", { x: x(0.5), y: bottom + 29, class: "label middle" }, TEXT.attack.falsePositives));
  parts.push(svg("text", { x: -y(0.5), y: 9, transform: "rotate(-90)", class: "label middle" }, TEXT.attack.truePositives));
  canvas("ceiling-chart", fill(TEXT.attack.curveLabel, { ...spoken, attack }), ...parts, ...marks);
}

function gainOf(scores: Scores | null): string {
  if (scores === null) return "?";
  return percent(Math.max(0, ...rates(scores).map((at: Rates) => at.truePositives - at.falsePositives)));
}

/** Lines that fill the region no attack can enter: seen without colour. */
function hatch(): SVGElement {
  const pattern = svg("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  pattern.append(svg("rect", { width: 7, height: 7, class: "hatch-ground" }), svg("line", { y2: 7, class: "hatch-line" }));
  const definitions = svg("defs");
  definitions.append(pattern);
  return definitions;
}

/** Two heaps: scores of models with the record, filled, and without it, in outline. */
export function drawHistogram(id: string, name: string, scores: Scores | null, gain: number): void {
  const [width, bottom, top] = [300, 92, 8];
  const all = [...(scores?.inside ?? []), ...(scores?.outside ?? [])];
  const [low, high] = [Math.min(...all, 0), Math.max(...all, 0.001)];
  const bins = 28;
  const span = Math.max(0.02, (high - low) * 1.02);
  const count = (values: readonly number[]): number[] => {
    const found = new Array<number>(bins).fill(0);
    for (const value of values) found[Math.min(bins - 1, Math.floor(((value - low) / span) * bins))]!++;
    return found;
  };
  const [inside, outside] = [count(scores?.inside ?? []), count(scores?.outside ?? [])];
  const most = Math.max(1, ...inside, ...outside);
  const bars = (heights: readonly number[]): string =>
    heights
      .map((height, k) => {
        const [a, b] = [(k * width) / bins, ((k + 1) * width) / bins];
        return height === 0 ? "" : `M${a.toFixed(1)} ${bottom}V${(bottom - ((bottom - top) * height) / most).toFixed(1)}H${b.toFixed(1)}V${bottom}Z`;
      })
      .join("");
  const models = scores?.inside.length ?? 0;
  canvas(
    id,
    fill(TEXT.attack.histogram, { name, models, advantage: percent(gain) }),
    svg("path", { d: bars(inside), class: "heap inside" }),
    svg("path", { d: bars(outside), class: "heap outside" }),
    svg("line", { x1: 0, x2: width, y1: bottom, y2: bottom, class: "axis" }),
    svg("text", { x: 0, y: bottom + 12, class: "label" }, low < -7 ? "< 0.1\u00a0%" : `${short(Math.exp(low) * 100, 2)}\u00a0%`),
    svg("text", { x: width, y: bottom + 12, class: "label end" }, `${short(Math.min(100, Math.exp(high) * 100), 2)}\u00a0%`),
    svg("text", { x: width / 2, y: bottom + 25, class: "label middle" }, TEXT.attack.axis),
  );
}
