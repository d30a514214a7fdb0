// The page: one state, two models in training, a worker for accounting and one for attacks.

import { type Cost, METHODS } from "./accounting/account.ts";
import { RANGE } from "./accounting/range.ts";
import { type Profile } from "./accounting/tradeoff.ts";
import { advantage, type Scores } from "./attack/attack.ts";
import { canary, type Label, MOST_POINTS, type Point } from "./learning/data.ts";
import { sample, type StepDetail, Trainer } from "./learning/trainer.ts";
import { Board } from "./page/board.ts";
import { type Curves, drawCeiling, drawEpsilon, drawHistogram, History } from "./page/charts.ts";
import { Controls, radios } from "./page/controls.ts";
import { byId, make, percent, say, short, shortUp } from "./page/dom.ts";
import { fromLink, onGrid, toLink } from "./page/link.ts";
import { MechanismView } from "./page/mechanism.ts";
import { pointsOf, PRESETS, recipeOf, runOf, START, type State, testPointsOf } from "./page/state.ts";
import { toCsv, toToml } from "./page/toml.ts";
import { type Stop, Tour } from "./page/tour.ts";
import { fill, TEXT } from "./text.ts";
import { type Answer, type Job } from "./worker.ts";

declare const WORKER: string; // the worker's program, put in by the build

const SPEEDS = { slow: 2, usual: 20, fast: 60, fastest: 360 } as const; // steps a second
type Speed = keyof typeof SPEEDS;
type Tool = "choose" | "one" | "zero" | "erase";
const PLAY = "M7 4l13 8-13 8z";
const PAUSE = "M6 4h4.5v16H6zM13.5 4H18v16h-4.5z";
const TRAINING: readonly (keyof State)[] = ["target", "models", "delta", "epsilon"]; // what does not change a run

class Page {
  private state: State = START;
  private points: Point[] = [];
  private tests: Point[] = [];
  private plain!: Trainer;
  private noisy!: Trainer;
  private playing = false;
  private speed: Speed = "usual";
  private tool: Tool = "choose";
  private owed = 0; // steps that time has earned
  private last = 0;
  private detail: StepDetail | null = null;
  private cost: Cost | null = null;
  private profile: Profile | null = null;
  private curves: Curves = {};
  private finding = false; // the noise for a budget
  private account = 0; // the id of the newest question to the worker
  private attackId = 0;
  private scores: { plain: Scores; noisy: Scores } | null = null;
  private attacking = false;
  private stale = false;
  private readonly loss = new History();
  private readonly activity = new History();
  private readonly accountant = startWorker((answer) => this.onAccount(answer));
  private attacker: Worker | null = null;
  private readonly plainBoard = new Board((x, y, first) => this.act(x, y, first));
  private readonly noisyBoard = new Board((x, y, first) => this.act(x, y, first));
  private readonly mechanism = new MechanismView();
  private readonly controls = new Controls(
    (more) => this.change(more),
    (preset) => this.load(preset),
  );
  private readonly showTool: (tool: Tool) => void;

  constructor() {
    byId("plain-board").append(this.plainBoard.element);
    byId("noisy-board").append(this.noisyBoard.element);
    this.showTool = radios(byId("tools"), ["choose", "one", "zero", "erase"] as const, TEXT.data.tools, (tool) => this.take(tool));
    this.listen();
    this.take("choose");
    this.readLink();
    window.addEventListener("hashchange", () => this.readLink());
    requestAnimationFrame((now) => this.frame(now));
  }

  // --- state ---------------------------------------------------------------------------------------------

  /** Show what the link contains. Without a link the page starts to train, unless motion is unwelcome. */
  private readLink(): void {
    const first = location.hash === "";
    const { state, step } = first ? { state: { ...START, ...PRESETS.start }, step: 0 } : fromLink(location.hash);
    this.state = state;
    this.rebuild();
    for (let k = 0; k < step; k++) this.advance(k + 1 === step);
    this.draw(true);
    if (first && !window.matchMedia("(prefers-reduced-motion: reduce)").matches) this.play();
  }

  /** Take over some settings; training starts again where they matter to it. */
  private change(more: Partial<State>): void {
    const before = this.state;
    this.state = { ...before, ...more };
    const names = (Object.keys(more) as (keyof State)[]).filter((name) => before[name] !== this.state[name]);
    if (names.length === 0) return;
    if (names.includes("dataSet") || names.includes("count")) this.state = { ...this.state, target: -1 };
    if (more.budget === "sigma" && before.noiseMultiplier === 0) this.state = { ...this.state, noiseMultiplier: START.noiseMultiplier };
    this.stale ||= this.scores !== null;
    if (names.every((name) => TRAINING.includes(name) && !(name === "epsilon" && this.state.budget === "epsilon"))) {
      this.controls.sync(this.state);
      this.showPoints();
      if (names.includes("delta")) this.askAccount();
      this.draw(true);
      return;
    }
    this.rebuild();
  }

  /** Take over a preset and wait. */
  private load(preset: Partial<State>): void {
    this.stop();
    this.take("choose");
    this.state = { ...START, models: this.state.models, ...preset };
    this.forgetAttack();
    this.rebuild();
  }

  private begin(preset: Partial<State>, speed: Speed = "usual"): void {
    this.setSpeed(speed);
    this.load(preset);
    this.play();
  }

  /** Make points and models anew. */
  private rebuild(): void {
    this.points = pointsOf(this.state);
    this.tests = testPointsOf(this.state);
    this.controls.sync(this.state);
    this.askAccount();
    this.restart();
  }

  private restart(): void {
    const recipe = recipeOf(this.state);
    this.plain = new Trainer(recipe, false, this.state.seed);
    this.noisy = new Trainer(recipe, true, this.state.seed);
    this.detail = null;
    this.loss.reset();
    this.activity.reset();
    this.measure();
    this.showPoints();
    this.draw(true);
  }

  private showPoints(): void {
    for (const board of [this.plainBoard, this.noisyBoard]) board.show(this.points, this.state.target);
    const target = this.points[this.state.target];
    const facts = { index: this.state.target + 1, label: target?.label ?? 0, x: short(target?.x ?? 0), y: short(target?.y ?? 0) };
    say(byId("target-text"), target === undefined ? TEXT.attack.notChosen : fill(TEXT.attack.chosen, facts));
    byId<HTMLButtonElement>("attack-button").disabled = target === undefined && !this.attacking;
    const names = { count: this.points.length, tool: TEXT.data.tools[this.tool] };
    this.plainBoard.element.setAttribute("aria-label", fill(TEXT.boards.keys, { ...names, name: TEXT.boards.plain }));
    this.noisyBoard.element.setAttribute("aria-label", fill(TEXT.boards.keys, { ...names, name: TEXT.boards.noisy }));
  }

  // --- training ------------------------------------------------------------------------------------------

  private advance(detailed: boolean): void {
    if (this.points.length === 0 || this.state.noiseMultiplier === 0) return;
    this.plain.advance(this.points);
    const detail = this.noisy.advance(this.points, this.points.length, detailed);
    if (detail !== null) this.detail = detail;
  }

  private measure(): void {
    const step = this.plain.steps;
    this.loss.add(step, this.plain.score(this.points).loss, this.noisy.score(this.points).loss);
    const few = this.points.filter((_, k) => k % 20 < 2); // of both classes, which take turns
    const mean = (of: Trainer): number =>
      few.reduce((sum, point) => sum + of.network.activity(of.parameters, point), 0) / Math.max(1, few.length);
    this.activity.add(step, mean(this.plain), mean(this.noisy));
  }

  private frame(now: number): void {
    requestAnimationFrame((next) => this.frame(next));
    const passed = Math.min(0.1, (now - this.last) / 1000);
    this.last = now;
    if (!this.playing) return;
    this.owed += passed * SPEEDS[this.speed];
    const steps = Math.min(Math.floor(this.owed), this.state.steps - this.plain.steps);
    this.owed -= Math.floor(this.owed);
    if (this.plain.steps >= this.state.steps) return this.stop();
    if (steps === 0) return;
    for (let k = 0; k < steps; k++) this.advance(k + 1 === steps && this.showsMechanism(now));
    this.measure();
    this.draw(this.plain.steps >= this.state.steps);
  }

  private mechanismAt = 0;

  /** The arrows change a few times a second at most: more is a flicker. */
  private showsMechanism(now: number): boolean {
    const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (now - this.mechanismAt < (calm ? 1500 : this.speed === "slow" ? 0 : 250)) return false;
    this.mechanismAt = now;
    return true;
  }

  private play(): void {
    if (this.plain.steps >= this.state.steps) this.restart();
    this.playing = true;
    this.owed = 1;
    this.showPlaying();
  }

  private stop(): void {
    this.playing = false;
    this.showPlaying();
    this.draw(true);
  }

  private stepOnce(): void {
    this.playing = false;
    if (this.plain.steps >= this.state.steps) this.restart();
    this.advance(true);
    this.measure();
    this.showPlaying();
    this.draw(true);
  }

  private setSpeed(speed: Speed): void {
    this.speed = speed;
    byId<HTMLSelectElement>("speed").value = speed;
  }

  private showPlaying(): void {
    const label = this.playing ? TEXT.bar.pause : TEXT.bar.play;
    byId("play").setAttribute("aria-label", label);
    byId("play").title = label;
    byId("play-icon").setAttribute("d", this.playing ? PAUSE : PLAY);
  }

  // --- pictures ------------------------------------------------------------------------------------------

  private chartsAt = 0;

  private draw(everything: boolean): void {
    const { state } = this;
    const step = this.plain.steps;
    const drawn = step === 0 ? [] : sample(this.points.length, state.samplingRate, state.seed, step - 1);
    this.plainBoard.update(this.plain.network, this.plain.parameters, drawn);
    this.noisyBoard.update(this.noisy.network, this.noisy.parameters, drawn);
    const done = step >= state.steps;
    const count = { step: step.toLocaleString("en"), steps: state.steps.toLocaleString("en") };
    say(byId("step-count"), fill(done ? TEXT.bar.finished : TEXT.bar.count, count));
    byId<HTMLProgressElement>("progress").value = step / state.steps;
    const now = performance.now();
    if (!everything && now - this.chartsAt < 120) return;
    this.chartsAt = now;
    this.score(byId("plain-score"), this.plain);
    this.score(byId("noisy-score"), this.noisy);
    this.loss.draw("loss-chart", TEXT.boards.loss, state.steps);
    this.activity.draw("activity-chart", TEXT.boards.activity, state.steps);
    drawEpsilon(this.curves, state.steps, step, this.isWaiting());
    this.meter(step);
    if (this.detail !== null) {
      this.mechanism.show(this.detail, state.clippingNorm, state.noiseMultiplier, this.points.length, state.samplingRate * this.points.length);
    }
  }

  private score(element: HTMLElement, trainer: Trainer): void {
    const test = this.tests.length > 0;
    const { loss } = trainer.score(this.points);
    const { accuracy } = trainer.score(test ? this.tests : this.points);
    const values = { loss: short(loss, 2), accuracy: percent(accuracy) };
    const exploded = !Number.isFinite(loss);
    say(element, exploded ? TEXT.boards.diverged : fill(test ? TEXT.boards.score : TEXT.boards.scoreTrain, values));
  }

  /** Epsilon up to now: that of the next step at which it was computed, so never too small. */
  private meter(step: number): void {
    const curve = this.curves.pld;
    const cost = this.cost;
    let text: string = TEXT.bar.waiting;
    let note: string = TEXT.bar.illustration;
    if (this.state.noiseMultiplier === 0) [text, note] = [TEXT.bar.none, TEXT.cost.unreachable];
    else if (cost !== null && cost.kind !== "epsilon") [text, note] = this.apology(cost);
    else if (step === 0) text = "ε = 0";
    else if (curve !== undefined) {
      const k = curve.steps.findIndex((each) => each >= step);
      const epsilon = curve.epsilons[k] ?? NaN;
      if (epsilon >= RANGE.epsilon[0]) text = fill(TEXT.bar.atMost, { epsilon: shortUp(epsilon) });
      else if (epsilon >= 0) text = fill(TEXT.cost.below, { epsilon: RANGE.epsilon[0] });
    }
    say(byId("epsilon"), text);
    say(byId("epsilon-note"), note);
  }

  private apology(cost: Exclude<Cost, { kind: "epsilon" }>): [string, string] {
    switch (cost.kind) {
      case "below":
      case "above":
        return [fill(TEXT.cost[cost.kind], { epsilon: cost.epsilon }).split(":")[0]!, TEXT.bar.illustration];
      case "too-slow":
        return [TEXT.bar.none, TEXT.cost["too-slow"]];
      case "outside": {
        const [low, high] = RANGE[cost.name];
        return [TEXT.bar.none, fill(TEXT.cost.outside, { name: TEXT.cost.names[cost.name], low, high })];
      }
    }
  }

  // --- accounting ----------------------------------------------------------------------------------------

  /** Are there lines of the cost yet to come? */
  private isWaiting(): boolean {
    const none = this.state.noiseMultiplier === 0 || this.cost?.kind === "outside";
    return this.finding || (!none && METHODS.some((method) => this.curves[method] === undefined));
  }

  private askAccount(): void {
    this.account++;
    this.cost = null;
    this.profile = null;
    this.curves = {};
    const { state } = this;
    this.finding = state.budget === "epsilon";
    this.accountant.restart();
    this.accountant.post({ kind: "account", id: this.account, run: runOf(state), epsilon: state.budget === "epsilon" ? state.epsilon : null });
    this.showNote();
    say(byId("privacy-text"), fill(TEXT.privacy.text, { delta: short(state.delta) }));
    say(byId("meaning"), TEXT.privacy.computing); // a box of one height: nothing below it jumps
    this.drawAttack();
  }

  private showNote(): void {
    const { state } = this;
    const batch = short(state.samplingRate * this.points.length);
    const notes = [fill(TEXT.knobs.batch, { batch, count: this.points.length })];
    if (state.delta >= 1 / this.points.length) notes.push(fill(TEXT.knobs.largeDelta, { limit: short(1 / this.points.length, 2) }));
    if (this.finding) notes.push(TEXT.knobs.finding);
    else if (state.noiseMultiplier === 0) notes.push(TEXT.cost.unreachable);
    else if (state.budget === "epsilon") notes.push(fill(TEXT.knobs.needed, { sigma: state.noiseMultiplier }));
    say(byId("knob-note"), notes.join("; "));
  }

  private onAccount(answer: Answer): void {
    if (answer.id !== this.account || answer.kind === "scores") return;
    if (answer.kind === "cost") {
      this.cost = answer.cost;
      if (answer.cost.kind === "outside") say(byId("meaning"), "");
    } else if (answer.kind === "curve") this.curves = { ...this.curves, [answer.method]: answer };
    else if (answer.kind === "profile") {
      this.profile = answer.profile;
      say(byId("meaning"), fill(TEXT.cost.meaning, { percent: percentUp((1 + answer.profile.deltas[0]!) / 2) }));
      this.drawAttack();
    } else this.onNoise(answer.noiseMultiplier ?? 0);
    this.draw(true);
  }

  /** The noise that a budget needs: training starts again where it is another; the worker goes on with it. */
  private onNoise(noiseMultiplier: number): void {
    this.finding = false;
    if (noiseMultiplier === 0) say(byId("meaning"), "");
    if (noiseMultiplier !== this.state.noiseMultiplier) {
      this.state = { ...this.state, noiseMultiplier };
      this.restart();
    }
    this.showNote();
  }

  // --- attack --------------------------------------------------------------------------------------------

  private forgetAttack(): void {
    this.scores = null;
    this.stale = false;
    this.endAttack();
  }

  private endAttack(): void {
    this.attacker?.terminate();
    this.attacker = null;
    this.attacking = false;
    byId("attack-progress").hidden = true;
    say(byId("attack-button"), TEXT.attack.run);
    this.showPoints();
  }

  private attack(): void {
    if (this.attacking) return this.endAttack();
    if (this.points[this.state.target] === undefined) return;
    this.attacking = true;
    this.stale = false;
    this.scores = null;
    const id = ++this.attackId;
    const { state, points } = this;
    this.attacker = newWorker((answer) => {
      if (answer.kind === "scores" && answer.id === id) this.onScores(answer, state.models);
    });
    const target = { points, index: state.target, recipe: recipeOf(state), steps: state.steps, seed: state.seed };
    const job: Job = { kind: "attack", id, target, models: state.models };
    this.attacker.postMessage(job);
    say(byId("attack-button"), TEXT.attack.stop);
    byId("attack-progress").hidden = false;
    byId<HTMLProgressElement>("attack-progress").value = 0;
    this.drawAttack();
  }

  private onScores(answer: Extract<Answer, { kind: "scores" }>, models: number): void {
    this.scores = { plain: answer.plain, noisy: answer.noisy };
    byId<HTMLProgressElement>("attack-progress").value = answer.done / models;
    say(byId("attack-count"), fill(TEXT.attack.progress, { done: answer.done, models }));
    if (answer.done === models) this.endAttack();
    this.drawAttack();
  }

  private drawAttack(): void {
    const { scores } = this;
    const shown = this.stale ? null : scores;
    drawCeiling(this.profile, shown?.plain ?? null, shown?.noisy ?? null);
    byId("heaps").hidden = scores === null && !this.attacking;
    byId("curve-legend").classList.toggle("measured", shown !== null || this.attacking);
    say(byId("curve-text"), TEXT.attack.curveText);
    if (scores === null) say(byId("attack-count"), "");
    else if (this.stale) say(byId("attack-count"), TEXT.attack.stale);
    if (scores === null) {
      for (const kind of ["plain", "noisy"] as const) drawHistogram(`${kind}-heap`, TEXT.attack[kind], null, 0);
      return say(byId("verdict"), "");
    }
    const [plain, noisy] = [advantage(scores.plain), advantage(scores.noisy)];
    drawHistogram("plain-heap", TEXT.attack.plain, scores.plain, plain);
    drawHistogram("noisy-heap", TEXT.attack.noisy, scores.noisy, noisy);
    const limit = this.profile === null ? "?" : percentUp((1 + this.profile.deltas[0]!) / 2);
    const values = { plain: percent((1 + plain) / 2), noisy: percent((1 + noisy) / 2), limit };
    say(byId("verdict"), this.attacking || this.stale ? "" : fill(TEXT.attack.verdict, values));
    say(byId("curve-text"), `${TEXT.attack.curveText} ${fill(TEXT.attack.curveBand, { models: scores.noisy.inside.length })}`);
  }

  private addCanary(): void {
    const point = canary(this.points);
    const added = [...this.state.added, onGrid(point.x, point.y, 1)].slice(-MOST_POINTS);
    if (this.points.length >= MOST_POINTS) return this.notify(fill(TEXT.data.full, { most: MOST_POINTS }));
    this.change({ added });
    this.change({ target: this.points.length - 1 });
  }

  /** The record on which the usual model is least sure: the one that it would have to bend for. */
  private chooseOutlying(): void {
    const trainer = new Trainer({ ...recipeOf(this.state), samplingRate: 1 }, false, this.state.seed);
    for (let k = 0; k < 60; k++) trainer.advance(this.points);
    const losses = this.points.map((point) => trainer.network.loss(trainer.parameters, point));
    this.change({ target: losses.indexOf(Math.max(...losses)) });
  }

  // --- tools ---------------------------------------------------------------------------------------------

  private take(tool: Tool): void {
    this.tool = tool;
    this.showTool(tool);
    for (const board of [this.plainBoard, this.noisyBoard]) board.element.classList.toggle("choose", tool === "choose");
    this.showPoints();
  }

  private lastPaint = { x: 9, y: 9 };

  private act(x: number, y: number, first: boolean): void {
    if (Math.abs(x) > 1 || Math.abs(y) > 1) return;
    if (this.tool === "choose" || this.tool === "erase") {
      const near = this.points.map((point) => Math.hypot(point.x - x, point.y - y));
      const index = near.indexOf(Math.min(...near));
      if (index < 0 || near[index]! > 0.12) return;
      if (this.tool === "choose") return first ? this.change({ target: index }) : undefined;
      return this.erase(index);
    }
    if (!first && Math.hypot(x - this.lastPaint.x, y - this.lastPaint.y) < 0.07) return;
    this.lastPaint = { x, y };
    if (this.points.length >= MOST_POINTS) return this.notify(fill(TEXT.data.full, { most: MOST_POINTS }));
    const label: Label = this.tool === "one" ? 1 : 0;
    this.change({ added: [...this.state.added, onGrid(x, y, label)] });
  }

  /** Painted points can be erased one by one; of a data set that was made, all become painted first. */
  private erase(index: number): void {
    const kept = this.points.filter((_, k) => k !== index).map((p) => onGrid(p.x, p.y, p.label));
    this.change({ dataSet: "painted", added: kept, target: -1 });
  }

  // --- buttons -------------------------------------------------------------------------------------------

  private listen(): void {
    byId("play").addEventListener("click", () => (this.playing ? this.stop() : this.play()));
    byId("step-button").addEventListener("click", () => this.stepOnce());
    byId("restart").addEventListener("click", () => this.restart());
    const speed = byId<HTMLSelectElement>("speed");
    for (const name of Object.keys(SPEEDS) as Speed[]) speed.append(make("option", { value: name }, TEXT.bar.speeds[name]));
    speed.addEventListener("change", () => this.setSpeed(speed.value as Speed));
    this.setSpeed("usual");
    byId("canary").addEventListener("click", () => this.addCanary());
    byId("outlying").addEventListener("click", () => this.chooseOutlying());
    byId("attack-button").addEventListener("click", () => this.attack());
    byId("link-button").addEventListener("click", () => this.copyLink());
    byId("toml-button").addEventListener("click", () => this.copyToml());
    byId("theme-button").addEventListener("click", () => this.setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    this.setTheme(dark.matches ? "dark" : "light");
    dark.addEventListener("change", () => this.setTheme(dark.matches ? "dark" : "light"));
    const tour = new Tour(this.tourStops());
    byId("tour-button").addEventListener("click", () => tour.open());
    document.addEventListener("visibilitychange", () => (this.last = performance.now()));
    this.showPlaying();
  }

  private setTheme(theme: "dark" | "light"): void {
    document.documentElement.dataset.theme = theme;
    for (const board of [this.plainBoard, this.noisyBoard]) board.restyle();
    this.controls.redraw();
    if (this.plain !== undefined) this.draw(true);
  }

  private copyLink(): void {
    const hash = toLink(this.state, this.plain.steps);
    history.replaceState(null, "", `#${hash}`);
    this.copy(`${location.href.split("#")[0]}#${hash}`, TEXT.actions.linkHint);
  }

  private copyToml(): void {
    const download = (name: string, label: string, points: readonly Point[]): HTMLElement => {
      const file = `data:text/csv;charset=utf-8,${encodeURIComponent(toCsv(points))}`;
      return make("a", { href: file, download: name }, label);
    };
    const tests = this.tests.length > 0 ? this.tests : this.points;
    this.copy(toToml(this.state, this.points.length), TEXT.actions.tomlHint, [
      download("points.csv", TEXT.actions.csv, this.points),
      download("test-points.csv", TEXT.actions.csvTest, tests),
    ]);
  }

  private copy(text: string, hint: string, more: HTMLElement[] = []): void {
    const area = byId("notice").querySelector("textarea")!;
    area.hidden = false;
    area.value = text;
    const say = (said: string): void => this.notify(said + hint, more, true);
    const failed = (): void => {
      say(TEXT.actions.copyFailed);
      area.select();
    };
    if (navigator.clipboard === undefined) failed();
    else navigator.clipboard.writeText(text).then(() => say(TEXT.actions.copied), failed);
  }

  private notify(text: string, more: HTMLElement[] = [], keepArea = false): void {
    const notice = byId("notice");
    notice.hidden = false;
    notice.querySelector("textarea")!.hidden = !keepArea;
    say(notice.querySelector("p")!, text);
    notice.querySelector(".row")!.replaceChildren(...more, make("button", { click: () => (notice.hidden = true) }, "OK"));
  }

  private tourStops(): Stop[] {
    return [
      { part: "boards", enter: () => this.begin(PRESETS.start!) },
      { part: "boards", enter: () => this.begin(PRESETS.outlier!, "fast") },
      { part: "mechanism", enter: () => this.showStep() },
      { part: "mechanism", enter: () => this.showStep() },
      { part: "privacy", enter: () => this.begin({ noiseMultiplier: 1.5 }) },
      { part: "privacy-knobs-card", enter: () => this.begin({ noiseMultiplier: 6 }) },
      { part: "attack", view: "ceiling-chart", enter: () => this.attackCanary() },
    ];
  }

  private showStep(): void {
    this.begin(PRESETS.start!); // at C = 1 some of the drawn records are cut, and some are not
    for (let k = 0; k < 10; k++) this.advance(false);
    this.stepOnce();
  }

  private attackCanary(): void {
    this.begin({ width: 16, depth: 2, count: 200, spread: 0.1, noiseMultiplier: 2 });
    this.addCanary();
    this.attack();
    this.play();
  }
}

/** A share in percent, rounded up. */
function percentUp(share: number): string {
  return `${Math.ceil(Math.min(1, share) * 100 - 1e-9)}\u00a0%`;
}

function newWorker(hear: (answer: Answer) => void): Worker {
  const address = URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" }));
  const worker = new Worker(address);
  worker.onmessage = (event: MessageEvent<Answer>) => hear(event.data);
  return worker;
}

/** A worker that is started anew for each question: an old one would make the new one wait. */
function startWorker(hear: (answer: Answer) => void): { post(job: Job): void; restart(): void } {
  let worker: Worker | null = null;
  let timer = 0;
  return {
    restart(): void {
      worker?.terminate();
      worker = null;
    },
    post(job: Job): void {
      clearTimeout(timer);
      timer = window.setTimeout(() => {
        worker?.terminate();
        worker = newWorker(hear);
        worker.postMessage(job);
      }, 120); // a slider that moves asks many times
    },
  };
}

/** Put the texts into the page. */
function putTexts(): void {
  const find = (path: string): string =>
    path.split(".").reduce<unknown>((at, name) => (at as Record<string, unknown>)[name], TEXT) as string;
  for (const element of document.querySelectorAll<HTMLElement>("[data-text]")) element.textContent = find(element.dataset.text!);
  for (const element of document.querySelectorAll<HTMLElement>("[data-label]")) {
    element.setAttribute("aria-label", find(element.dataset.label!));
    element.title = find(element.dataset.label!);
  }
  for (const [question, answer] of TEXT.questions.items) {
    byId("questions").append(make("details", {}, make("summary", {}, question), make("p", {}, answer)));
  }
}

putTexts();
new Page();
