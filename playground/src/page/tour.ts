// What does the guided tour do? Seven cards; each sets the page up and lights a part of it.

import { fill, TEXT } from "../text.ts";
import { byId, make, say } from "./dom.ts";

/** What happens when a card is shown, and which part it is about. */
export interface Stop {
  readonly part: string;
  readonly view?: string; // what of a part that is taller than the window is shown
  readonly enter: () => void;
}

export class Tour {
  private at = -1;
  private readonly stops: readonly Stop[];
  private opener: HTMLElement | null = null;

  constructor(stops: readonly Stop[]) {
    this.stops = stops;
    byId("tour-dots").append(...stops.map(() => make("i")));
    byId("tour-next").addEventListener("click", () => (this.at + 1 < stops.length ? this.go(this.at + 1) : this.close()));
    byId("tour-back").addEventListener("click", () => this.go(this.at - 1));
    byId("tour-close").addEventListener("click", () => this.close());
    byId("tour").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
  }

  open(): void {
    this.opener = document.activeElement as HTMLElement | null;
    this.go(0);
  }

  private go(at: number): void {
    this.at = at;
    const stop = this.stops[at]!;
    const [title, text] = TEXT.tour.steps[at]!;
    byId("tour").hidden = false;
    say(byId("tour-count"), fill(TEXT.tour.step, { step: at + 1, steps: this.stops.length }));
    say(byId("tour-title"), title);
    say(byId("tour-text"), text);
    say(byId("tour-next"), at + 1 < this.stops.length ? TEXT.tour.next : TEXT.tour.done);
    byId<HTMLButtonElement>("tour-back").disabled = at === 0;
    [...byId("tour-dots").children].forEach((dot, k) => dot.classList.toggle("on", k === at));
    stop.enter();
    this.light(stop.part, stop.view);
    byId("tour-title").focus({ preventScroll: true });
  }

  private light(part: string, view?: string): void {
    for (const lit of document.querySelectorAll(".lit")) lit.classList.remove("lit");
    if (part === "") return;
    const lit = byId(part);
    lit.classList.add("lit");
    const { left } = lit.getBoundingClientRect();
    byId("tour").classList.toggle("left", left > window.innerWidth / 2); // beside it, not to cover it
    byId("tour").style.setProperty("--beside", `${Math.round(document.documentElement.clientWidth - left + 16)}px`);
    if (view === undefined) lit.scrollIntoView({ block: "start" });
    else byId(view).scrollIntoView({ block: "end" });
  }

  private close(): void {
    byId("tour").hidden = true;
    this.light("");
    this.opener?.focus();
  }
}
