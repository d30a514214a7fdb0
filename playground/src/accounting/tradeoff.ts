// What can an attacker reach? The ceiling on true positives that follows from delta(epsilon).
//
// What is (eps, delta)-DP leaves every test  TPR <= delta + e^eps FPR  and  TPR <= 1 - e^-eps (1 - delta - FPR)
// (Kairouz, Oh & Viswanath 2015, 1311.0776).  Each epsilon gives two lines; the least of them is the ceiling.

import { costBy, deltaOf } from "./account.ts";
import { type Run } from "./range.ts";

const UP = 1 + 1e-6; // of delta
const LINES = 40;
const FAINT = 1e-7; // the delta down to which the curve is followed

/** Pairs (epsilon, delta) that a run satisfies, delta rounded up. */
export interface Profile {
  readonly epsilons: readonly number[];
  readonly deltas: readonly number[];
}

/** The profile of T steps at epsilons from 0 to where delta no longer matters. */
export function profile(run: Omit<Run, "delta">): Profile {
  const reach = costBy("pld", { ...run, delta: FAINT });
  const epsilons = Array.from({ length: LINES }, (_, k) => reach * (k / (LINES - 1)) ** 1.5);
  return { epsilons, deltas: epsilons.map((epsilon) => roundedUp(deltaOf(run, epsilon))) };
}

/** delta rounded up; 1, which says nothing, where it could not be had. */
function roundedUp(delta: number): number {
  return Number.isNaN(delta) ? 1 : Math.min(1, delta * UP + 1e-13);
}

/** The most true positives, as a share of members, that any test with so many false positives can have. */
export function ceiling(curve: Profile, falsePositives: number): number {
  let most = 1;
  curve.epsilons.forEach((epsilon, k) => {
    const delta = curve.deltas[k]!;
    const steep = delta + (falsePositives > 0 ? Math.exp(epsilon) * falsePositives : 0); // e^epsilon may be infinite
    const flat = 1 - Math.exp(-epsilon) * (1 - delta - falsePositives);
    most = Math.min(most, steep, flat);
  });
  return Math.max(most, falsePositives);
}
