// What does a model say everywhere? Its decision regions, the records on them, and the pointer's tools.

import { type Label, type Point } from "../learning/data.ts";
import { type Network } from "../learning/network.ts";
import { colour, make } from "./dom.ts";

const CELLS = 56; // a side of the grid on which the model is asked

/** What the user does at a place of the square. */
export type Act = (x: number, y: number, first: boolean) => void;

/** One picture: regions below, marks above, and rings around what was drawn on top. */
export class Board {
  readonly element: HTMLElement;
  private readonly heat: HTMLCanvasElement;
  private readonly marks: HTMLCanvasElement;
  private readonly rings: HTMLCanvasElement;
  private readonly image: ImageData;
  private readonly margins = new Float64Array((CELLS + 1) ** 2);
  private cursor: { x: number; y: number } | null = null;
  private colours: [number[], number[], number[]] = [[], [], []];
  private points: readonly Point[] = [];
  private sampled: readonly number[] = [];
  private target = -1;
  private side = 0;
  private ratio = 1;
  private stylesOf: Record<string, string> = {};

  constructor(act: Act) {
    this.heat = make("canvas", { width: CELLS, height: CELLS, class: "heat" });
    this.marks = make("canvas", { class: "marks" });
    this.rings = make("canvas", { class: "marks" });
    this.element = make("div", { class: "board", tabindex: 0, role: "application" }, this.heat, this.marks, this.rings);
    this.image = new ImageData(CELLS, CELLS);
    this.listen(act);
    new ResizeObserver(() => this.resize()).observe(this.element);
    this.restyle();
  }

  /** Read the colours again, after the theme changed. */
  restyle(): void {
    this.stylesOf = Object.fromEntries(
      ["blue", "orange", "ink", "card", "target", "edge"].map((name) => [name, colour(name)]),
    );
    this.colours = [rgb(colour("orange-soft")), rgb(colour("middle")), rgb(colour("blue-soft"))];
    this.drawMarks();
  }

  show(points: readonly Point[], target: number): void {
    this.points = points;
    this.target = target;
    this.drawMarks();
  }

  /** Colour the regions by what the model says, and draw its boundary and the records of the step. */
  update(network: Network, parameters: Float64Array, sampled: readonly number[]): void {
    const { margins, image } = this;
    for (let row = 0, k = 0; row <= CELLS; row++) {
      for (let column = 0; column <= CELLS; column++, k++) {
        margins[k] = network.margin(parameters, (2 * column) / CELLS - 1, 1 - (2 * row) / CELLS);
      }
    }
    const [low, middle, high] = this.colours;
    for (let k = 0; k < CELLS * CELLS; k++) {
      const margin = margins[k + Math.floor(k / CELLS)]!;
      const share = Number.isNaN(margin) ? 0 : 2 / (1 + Math.exp(-margin)) - 1; // from -1 to 1
      const end = share > 0 ? high : low;
      const weight = Math.min(1, 0.15 + 0.85 * Math.abs(share));
      for (let c = 0; c < 3; c++) image.data[4 * k + c] = middle[c]! + (end[c]! - middle[c]!) * weight;
      image.data[4 * k + 3] = Number.isNaN(margin) ? 0 : 255;
    }
    this.heat.getContext("2d")!.putImageData(image, 0, 0);
    this.sampled = sampled;
    this.drawRings();
  }

  private resize(): void {
    this.side = this.element.clientWidth;
    this.ratio = Math.min(2, window.devicePixelRatio || 1);
    for (const canvas of [this.marks, this.rings]) canvas.width = canvas.height = Math.round(this.side * this.ratio);
    this.drawMarks();
    this.drawRings();
  }

  private at(point: { x: number; y: number }): [number, number] {
    return [((point.x + 1) / 2) * this.side, ((1 - point.y) / 2) * this.side];
  }

  private context(canvas: HTMLCanvasElement): CanvasRenderingContext2D {
    const context = canvas.getContext("2d")!;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.side, this.side);
    return context;
  }

  private get radius(): number {
    return Math.max(2.6, Math.min(5, (this.side / 300) * (this.points.length > 250 ? 3.4 : 4.4)));
  }

  private drawMarks(): void {
    const context = this.context(this.marks);
    const radius = this.radius;
    for (const label of [0, 1] as Label[]) {
      context.beginPath();
      for (const point of this.points) {
        if (point.label !== label) continue;
        const [x, y] = this.at(point);
        addMark(context, x, y, radius, label);
      }
      context.fillStyle = this.stylesOf[label === 1 ? "blue" : "orange"]!;
      context.strokeStyle = this.stylesOf.card!;
      context.lineWidth = this.side < 220 || this.points.length > 350 ? 0.5 : 1;
      context.fill();
      context.stroke();
    }
    const target = this.points[this.target];
    if (target === undefined) return;
    const [x, y] = this.at(target);
    context.lineWidth = 2.5;
    context.strokeStyle = this.stylesOf.target!;
    context.beginPath();
    context.arc(x, y, radius + 6, 0, 7);
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]] as const) {
      context.moveTo(x + dx * (radius + 6), y + dy * (radius + 6));
      context.lineTo(x + dx * (radius + 12), y + dy * (radius + 12));
    }
    context.stroke();
  }

  private drawRings(): void {
    const context = this.context(this.rings);
    this.drawBoundary(context);
    context.beginPath();
    const radius = this.radius + 2;
    for (const index of this.sampled) {
      const point = this.points[index];
      if (point === undefined) continue;
      const [x, y] = this.at(point);
      context.moveTo(x + radius, y);
      context.arc(x, y, radius, 0, 7);
    }
    context.lineWidth = 1.6;
    context.strokeStyle = this.stylesOf.ink!;
    context.stroke();
    if (this.cursor === null || document.activeElement !== this.element) return;
    const [x, y] = this.at(this.cursor);
    context.lineWidth = 2;
    context.beginPath();
    for (const [dx, dy] of [[10, 0], [0, 10]] as const) {
      context.moveTo(x - dx, y - dy);
      context.lineTo(x + dx, y + dy);
    }
    context.stroke();
  }

  /** The line where both classes are equally likely: one piece in each cell that it crosses. */
  private drawBoundary(context: CanvasRenderingContext2D): void {
    const cell = this.side / CELLS;
    const { margins } = this;
    context.beginPath();
    for (let row = 0; row < CELLS; row++) {
      for (let column = 0; column < CELLS; column++) {
        const k = row * (CELLS + 1) + column;
        const corners = [margins[k]!, margins[k + 1]!, margins[k + CELLS + 2]!, margins[k + CELLS + 1]!] as const;
        let begun = false;
        for (let side = 0; side < 4; side++) {
          const [a, b] = [corners[side]!, corners[(side + 1) % 4]!];
          if (a > 0 === b > 0) continue;
          const share = a / (a - b);
          const [ax, ay] = CORNERS[side]!;
          const [bx, by] = CORNERS[(side + 1) % 4]!;
          const x = (column + ax + share * (bx - ax)) * cell;
          const y = (row + ay + share * (by - ay)) * cell;
          if (begun) context.lineTo(x, y);
          else context.moveTo(x, y);
          begun = !begun;
        }
      }
    }
    context.lineWidth = 2;
    context.strokeStyle = this.stylesOf.edge!;
    context.stroke();
  }

  private listen(act: Act): void {
    const place = (event: PointerEvent): [number, number] => {
      const box = this.element.getBoundingClientRect();
      return [(2 * (event.clientX - box.left)) / box.width - 1, 1 - (2 * (event.clientY - box.top)) / box.height];
    };
    let down = false;
    this.element.addEventListener("pointerdown", (event) => {
      down = true;
      this.element.setPointerCapture(event.pointerId);
      act(...place(event), true);
    });
    this.element.addEventListener("pointermove", (event) => {
      if (down) act(...place(event), false);
    });
    for (const name of ["pointerup", "pointercancel"]) this.element.addEventListener(name, () => (down = false));
    this.element.addEventListener("keydown", (event) => this.onKey(event, act));
    for (const name of ["focus", "blur"]) this.element.addEventListener(name, () => this.drawRings());
  }

  private onKey(event: KeyboardEvent, act: Act): void {
    const move = MOVES[event.key];
    const at = this.cursor ?? { x: 0, y: 0 };
    if (move !== undefined) {
      const pace = event.shiftKey ? 0.2 : 0.04;
      const within = (value: number): number => Math.max(-1, Math.min(1, value));
      this.cursor = { x: within(at.x + move[0] * pace), y: within(at.y + move[1] * pace) };
    } else if (event.key === "Enter" || event.key === " ") {
      act(at.x, at.y, true);
    } else return;
    event.preventDefault();
    this.drawRings();
  }
}

const CORNERS = [[0, 0], [1, 0], [1, 1], [0, 1]] as const;
const MOVES: Record<string, readonly [number, number]> = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1],
};

/** A disc for class 1 and a diamond for class 0: told apart without colour. */
function addMark(context: CanvasRenderingContext2D, x: number, y: number, radius: number, label: Label): void {
  if (label === 1) {
    context.moveTo(x + radius, y);
    context.arc(x, y, radius, 0, 7);
    return;
  }
  const far = radius * 1.25;
  context.moveTo(x, y - far);
  context.lineTo(x + far, y);
  context.lineTo(x, y + far);
  context.lineTo(x - far, y);
  context.closePath();
}

function rgb(colour: string): number[] {
  return colour.match(/\d+/g)!.slice(0, 3).map(Number);
}
