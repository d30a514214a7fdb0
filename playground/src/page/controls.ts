// Which knobs are there? Sliders over lists of values, and groups of buttons of which one is chosen.

import { DATA_SETS, type DataSet, makePoints } from "../learning/data.ts";
import { ACTIVATIONS } from "../learning/network.ts";
import { OPTIMIZERS } from "../learning/trainer.ts";
import { TEXT } from "../text.ts";
import { byId, colour, make, short } from "./dom.ts";
import { type Knob, KNOBS, PRESETS, type State } from "./state.ts";

type Change = (more: Partial<State>) => void;

/** All knobs; ``sync`` shows a state in them. */
export class Controls {
  private readonly syncs: ((state: State) => void)[] = [];
  private readonly change: Change;

  constructor(change: Change, start: (preset: Partial<State>) => void) {
    this.change = change;
    this.buildData();
    this.buildPrivacy();
    this.buildTraining();
    for (const [name, preset] of Object.entries(PRESETS)) {
      const label = TEXT.presets.names[name as keyof typeof TEXT.presets.names];
      byId("presets").append(make("button", { "data-preset": name, click: () => start(preset) }, label));
    }
    const models = byId<HTMLSelectElement>("models");
    for (const count of KNOBS.models) models.append(make("option", { value: count }, String(count)));
    models.addEventListener("change", () => change({ models: Number(models.value) }));
    this.syncs.push((state) => (models.value = String(state.models)));
  }

  sync(state: State): void {
    for (const each of this.syncs) each(state);
  }

  private buildData(): void {
    const sets = make("div", { class: "sets", role: "radiogroup", "aria-label": TEXT.data.set });
    const draw: (() => void)[] = [];
    this.choose(sets, DATA_SETS, TEXT.data.sets, "dataSet", (name, button) => {
      const picture = make("canvas", { width: 56, height: 56, "aria-hidden": "true" });
      draw.push(() => thumbnail(picture, name));
      button.prepend(picture);
    });
    this.redraw = () => draw.forEach((each) => each());
    this.redraw();
    const fresh = (): void => this.change({ seed: 1 + Math.floor(Math.random() * 999) });
    const row = make("div", { class: "row" }, make("button", { id: "fresh", click: fresh }, TEXT.data.seed));
    row.append(make("button", { id: "clear", click: () => this.change({ added: [], target: -1 }) }, TEXT.data.clear));
    byId("data-knobs").append(sets, this.slider("count", TEXT.data.count), this.slider("spread", TEXT.data.spread), row);
  }

  /** Draw the little pictures again, in the colours of the theme. */
  redraw: () => void = () => undefined;

  private buildPrivacy(): void {
    const epsilon = this.slider("epsilon", TEXT.knobs.epsilon);
    const sigma = this.slider("noiseMultiplier", TEXT.knobs.noiseMultiplier);
    this.syncs.push((state) => {
      epsilon.style.display = state.budget === "epsilon" ? "" : "none";
      sigma.style.display = state.budget === "sigma" ? "" : "none";
    });
    byId("privacy-knobs").append(
      this.group("budget", TEXT.knobs.budget, ["sigma", "epsilon"] as const, TEXT.knobs.budgets),
      sigma,
      epsilon,
      this.slider("clippingNorm", TEXT.knobs.clippingNorm),
      this.slider("samplingRate", TEXT.knobs.samplingRate),
      this.slider("steps", TEXT.knobs.steps),
      this.slider("delta", TEXT.knobs.delta),
    );
  }

  private buildTraining(): void {
    byId("training-knobs").append(
      this.slider("learningRate", TEXT.knobs.learningRate),
      this.slider("width", TEXT.knobs.width),
      this.slider("depth", TEXT.knobs.depth),
      this.group("activation", TEXT.knobs.activation, ACTIVATIONS, TEXT.knobs.activations),
      this.group("optimizer", TEXT.knobs.optimizer, OPTIMIZERS, TEXT.knobs.optimizers),
    );
  }

  private slider(name: Knob, label: string): HTMLElement {
    const values: readonly number[] = KNOBS[name];
    const input = make("input", { type: "range", min: 0, max: values.length - 1, step: 1, id: `knob-${name}` });
    const output = make("output", { for: `knob-${name}` });
    input.addEventListener("input", () => this.change({ [name]: values[Number(input.value)] }));
    this.syncs.push((state) => {
      const value = state[name];
      let nearest = 0;
      values.forEach((each, k) => (nearest = Math.abs(each - value) < Math.abs(values[nearest]! - value) ? k : nearest));
      input.value = String(nearest);
      output.textContent = short(value);
      input.setAttribute("aria-valuetext", short(value));
    });
    return make("div", { class: "knob" }, make("label", { for: `knob-${name}` }, label), output, input);
  }

  private group<T extends string>(name: keyof State, label: string, names: readonly T[], labels: Record<T, string>): HTMLElement {
    const buttons = make("div", { class: "segmented", role: "radiogroup", "aria-label": label });
    this.choose(buttons, names, labels, name);
    return make("div", { class: "knob" }, make("span", {}, label), buttons);
  }

  private choose<T extends string>(
    group: HTMLElement,
    names: readonly T[],
    labels: Record<T, string>,
    key: keyof State,
    adorn?: (name: T, button: HTMLElement) => void,
  ): void {
    const sync = radios(group, names, labels, (name) => this.change({ [key]: name } as Partial<State>), adorn);
    this.syncs.push((state) => sync(state[key] as T));
  }
}

/** Buttons of which one is chosen; arrow keys move, as screen readers expect. Returns what marks the chosen one. */
export function radios<T extends string>(
  group: HTMLElement,
  names: readonly T[],
  labels: Record<T, string>,
  choose: (name: T) => void,
  adorn?: (name: T, button: HTMLElement) => void,
): (name: T) => void {
  const buttons = names.map((name) => {
    const button = make("button", { role: "radio", "data-name": name, type: "button", click: () => choose(name) }, labels[name]);
    adorn?.(name, button);
    return button;
  });
  group.append(...buttons);
  group.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    if (move === undefined || at < 0) return;
    const next = (at + move + names.length) % names.length;
    event.preventDefault();
    choose(names[next]!);
    buttons[next]!.focus();
  });
  return (chosen) =>
    buttons.forEach((button, k) => {
      button.setAttribute("aria-checked", String(names[k] === chosen));
      button.tabIndex = names[k] === chosen ? 0 : -1;
    });
}

function thumbnail(picture: HTMLCanvasElement, name: DataSet): void {
  const context = picture.getContext("2d")!;
  context.clearRect(0, 0, 56, 56);
  const points = name === "painted" ? [] : makePoints(name, 90, 0.1, 4);
  for (const point of points) {
    context.fillStyle = colour(point.label === 1 ? "blue" : "orange");
    context.beginPath();
    context.arc(28 + 25 * point.x, 28 - 25 * point.y, 2, 0, 7);
    context.fill();
  }
  if (name !== "painted") return;
  context.strokeStyle = colour("soft");
  context.lineWidth = 2.5;
  context.stroke(new Path2D("M16 40L38 14l6 6-22 22-8 2z"));
}
