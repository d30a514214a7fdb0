// Small helpers for the page: elements, SVG and numbers.

export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

type Attributes = Record<string, string | number | boolean | ((event: never) => void)>;

/** A new element: attributes by name, functions as listeners, then what is inside. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...inside: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value as EventListener);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false) element.setAttribute(name, String(value));
  }
  element.append(...inside);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag: string, attributes: Record<string, string | number> = {}, text = ""): SVGElement {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text !== "") element.textContent = text;
  return element;
}

/** Set a text only where it differs, so that screen readers and layouts are left alone. */
export function say(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** A number with so many digits, without exponents where it is near 1. */
export function short(value: number, digits = 3): string {
  if (!Number.isFinite(value)) return "∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) {
    const power = Math.floor(Math.log10(size));
    const lead = Number((value / 10 ** power).toPrecision(2));
    return lead === 1 ? `10${superscript(power)}` : `${lead}·10${superscript(power)}`;
  }
  const text = value.toPrecision(digits);
  return Number(text).toLocaleString("en", { maximumSignificantDigits: digits });
}

function superscript(power: number): string {
  return String(power).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)]!));
}

/** A number rounded up to so many digits: an epsilon never looks smaller than it is. */
export function shortUp(value: number, digits = 3): string {
  const unit = 10 ** (Math.floor(Math.log10(value)) + 1 - digits);
  return short(Math.ceil(value / unit - 1e-9) * unit, digits);
}

export function percent(share: number): string {
  return `${Math.round(share * 100)}\u00a0%`;
}

/** A colour of the style sheet by its name, in the present theme, as rgb(). */
export function colour(name: string): string {
  const probe = make("i", { style: `color: var(--${name})` });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
