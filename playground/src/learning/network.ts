// What is trained? A small network, 2 numbers in and 2 scores out, and the gradient of each record's loss.
//
// Parameters lie in one array, in PyTorch's order: of each layer the weights by rows, then the biases.

import { type Label, type Point } from "./data.ts";
import { PURPOSE, Stream } from "./random.ts";

export const ACTIVATIONS = ["tanh", "relu", "tempered-sigmoid"] as const;
export type Activation = (typeof ACTIVATIONS)[number];

/** Scale, inverse temperature and offset of the tempered sigmoid (Papernot et al. 2020, 2007.14191, for MNIST). */
export const TEMPER = [1.58, 3, 0.71] as const;

/** Widths of the hidden layers, and what is between them. */
export interface Shape {
  readonly hidden: readonly number[];
  readonly activation: Activation;
}

const INPUTS = 2;
const OUTPUTS = 2;

interface Layer {
  readonly inputs: number;
  readonly outputs: number;
  readonly weights: number; // where they begin
  readonly biases: number;
  readonly before: number; // where the layer's inputs begin among all values
  readonly after: number;
}

/** Forward and backward passes of one record at a time. */
export class Network {
  readonly size: number;
  private readonly activation: Activation;
  private readonly layers: Layer[] = [];
  private readonly values: Float64Array; // inputs, hidden values and scores of one record
  private readonly errors: Float64Array; // the gradient of the loss in them
  private readonly hiddenValues: number;

  constructor(shape: Shape) {
    this.activation = shape.activation;
    const widths = [INPUTS, ...shape.hidden, OUTPUTS];
    let [parameters, values] = [0, 0];
    for (let k = 0; k + 1 < widths.length; k++) {
      const [inputs, outputs] = [widths[k]!, widths[k + 1]!];
      const biases = parameters + inputs * outputs;
      this.layers.push({ inputs, outputs, weights: parameters, biases, before: values, after: values + inputs });
      parameters = biases + outputs;
      values += inputs;
    }
    this.size = parameters;
    this.values = new Float64Array(values + OUTPUTS);
    this.errors = new Float64Array(values + OUTPUTS);
    this.hiddenValues = values - INPUTS;
  }

  /** Parameters to start from, as PyTorch's Linear draws them: uniform within 1 / sqrt(inputs). */
  start(seed: number): Float64Array {
    const stream = new Stream(seed, PURPOSE.start);
    const parameters = new Float64Array(this.size);
    for (const layer of this.layers) {
      const bound = 1 / Math.sqrt(layer.inputs);
      for (let k = layer.weights; k < layer.biases + layer.outputs; k++) {
        parameters[k] = bound * (2 * stream.uniform() - 1);
      }
    }
    return parameters;
  }

  /** score 1 - score 0 at (x, y): above 0 the network says class 1. */
  margin(parameters: Float64Array, x: number, y: number): number {
    this.forward(parameters, x, y);
    const end = this.values.length;
    return this.values[end - 1]! - this.values[end - 2]!;
  }

  /** -log p(label), without overflow. */
  loss(parameters: Float64Array, point: Point): number {
    return lossOf(this.margin(parameters, point.x, point.y), point.label);
  }

  /** The mean size of the hidden values at one point. */
  activity(parameters: Float64Array, point: Point): number {
    this.forward(parameters, point.x, point.y);
    let sum = 0;
    for (let k = 0; k < this.hiddenValues; k++) sum += Math.abs(this.values[INPUTS + k]!);
    return this.hiddenValues === 0 ? 0 : sum / this.hiddenValues;
  }

  /** Write the gradient of one record's loss into ``gradient``; returns the loss. */
  gradient(parameters: Float64Array, point: Point, gradient: Float64Array): number {
    const margin = this.margin(parameters, point.x, point.y);
    const { values, errors } = this;
    const end = values.length;
    const wrong = 1 / (1 + Math.exp(point.label === 1 ? margin : -margin)); // 1 - p(label)
    errors[end - 1] = point.label === 1 ? -wrong : wrong;
    errors[end - 2] = -errors[end - 1]!;
    for (let l = this.layers.length - 1; l >= 0; l--) {
      const { inputs, outputs, weights, biases, before, after } = this.layers[l]!;
      for (let i = 0; i < inputs; i++) errors[before + i] = 0;
      for (let o = 0; o < outputs; o++) {
        const error = errors[after + o]!;
        gradient[biases + o] = error;
        const row = weights + o * inputs;
        for (let i = 0; i < inputs; i++) {
          gradient[row + i] = error * values[before + i]!;
          errors[before + i]! += error * parameters[row + i]!;
        }
      }
      if (l > 0) for (let i = 0; i < inputs; i++) errors[before + i]! *= this.slope(values[before + i]!);
    }
    return lossOf(margin, point.label);
  }

  private forward(parameters: Float64Array, x: number, y: number): void {
    const { values } = this;
    values[0] = x;
    values[1] = y;
    const last = this.layers.length - 1;
    for (let l = 0; l <= last; l++) {
      const { inputs, outputs, weights, biases, before, after } = this.layers[l]!;
      for (let o = 0; o < outputs; o++) {
        let sum = parameters[biases + o]!;
        const row = weights + o * inputs;
        for (let i = 0; i < inputs; i++) sum += parameters[row + i]! * values[before + i]!;
        values[after + o] = l === last ? sum : this.activate(sum);
      }
    }
  }

  private activate(value: number): number {
    switch (this.activation) {
      case "tanh":
        return Math.tanh(value);
      case "relu":
        return value > 0 ? value : 0;
      case "tempered-sigmoid":
        return TEMPER[0] / (1 + Math.exp(-TEMPER[1] * value)) - TEMPER[2];
    }
  }

  /** The slope of the activation, from its value. */
  private slope(value: number): number {
    switch (this.activation) {
      case "tanh":
        return 1 - value * value;
      case "relu":
        return value > 0 ? 1 : 0;
      case "tempered-sigmoid": {
        const share = (value + TEMPER[2]) / TEMPER[0];
        return TEMPER[0] * TEMPER[1] * share * (1 - share);
      }
    }
  }
}

function lossOf(margin: number, label: Label): number {
  const against = label === 1 ? -margin : margin;
  return against > 30 ? against : Math.log1p(Math.exp(against));
}
