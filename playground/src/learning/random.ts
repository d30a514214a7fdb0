// Where do random numbers come from? They are addressed, not advanced: (seed, purpose, step) gives the stream,
// so that a link, a worker and the page draw the same. Good for a picture, not for privacy: Tacit uses AES.

/** What a stream is for; streams of different purposes are independent. */
export const PURPOSE = { data: 1, start: 2, sampling: 3, noise: 4, test: 5 } as const;

/** Mixes two words of 32 bits (the finaliser of MurmurHash3). */
function mixed(a: number, b: number): number {
  let h = Math.imul(a ^ (b + 0x9e3779b9), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  h = Math.imul(h ^ (h >>> 16), 0x27d4eb2f);
  return (h ^ (h >>> 15)) >>> 0;
}

/** A stream of numbers (sfc32), the same for the same address. */
export class Stream {
  private a: number;
  private b: number;
  private c: number;
  private counter = 1;
  private spare = NaN;

  constructor(seed: number, purpose: number, step = 0) {
    this.a = mixed(seed, purpose);
    this.b = mixed(this.a, step);
    this.c = mixed(this.b, seed);
    for (let k = 0; k < 12; k++) this.word();
  }

  private word(): number {
    const t = (this.a + this.b + this.counter++) | 0;
    this.a = this.b ^ (this.b >>> 9);
    this.b = (this.c + (this.c << 3)) | 0;
    this.c = (this.c << 21) | (this.c >>> 11);
    this.c = (this.c + t) | 0;
    return t >>> 0;
  }

  /** Uniform in (0, 1), of 53 bits. */
  uniform(): number {
    return ((this.word() >>> 5) * 0x4000000 + (this.word() >>> 6) + 0.5) / 0x20000000000000;
  }

  /** Normal, of mean 0 and variance 1 (Box and Muller 1958). */
  normal(): number {
    if (!Number.isNaN(this.spare)) {
      const kept = this.spare;
      this.spare = NaN;
      return kept;
    }
    const radius = Math.sqrt(-2 * Math.log(this.uniform()));
    const angle = 2 * Math.PI * this.uniform();
    this.spare = radius * Math.sin(angle);
    return radius * Math.cos(angle);
  }
}
