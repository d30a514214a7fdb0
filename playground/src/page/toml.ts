// What would `tacit train` be told to do the same? A run file, and the points as a table.

import { type Point } from "../learning/data.ts";
import { TEMPER } from "../learning/network.ts";
import { TEXT } from "../text.ts";
import { type State } from "./state.ts";

/** The run file. ``records`` is the number of points that train. */
export function toToml(state: State, records: number): string {
  const decimal = (value: number): string => (Number.isInteger(value) ? `${value}.0` : `${value}`);
  const budget =
    state.budget === "epsilon"
      ? `epsilon = ${decimal(state.epsilon)}`
      : `noise_multiplier = ${decimal(state.noiseMultiplier)}`;
  const temper = state.activation === "tempered-sigmoid" ? `\ntemper = [${TEMPER.map(decimal).join(", ")}]` : "";
  const hidden = Array.from({ length: state.depth }, () => state.width).join(", ");
  return `# ${TEXT.toml.heading}
# ${TEXT.toml.use}

[data]
table = "points.csv"
test_table = "test-points.csv"
target = "label"

[columns.x]
kind = "number"
lower = -1.0
upper = 1.0
missing = "refuse"

[columns.y]
kind = "number"
lower = -1.0
upper = 1.0
missing = "refuse"

[columns.label]
kind = "category"
values = ["0", "1"]

[model]
name = "mlp"
hidden = [${hidden}]
activation = "${state.activation}"${temper}

[privacy]
${budget}
delta = ${state.delta}
unit = "point"
adjacency = "add-remove"
records = ${records}
sampling = "${state.samplingRate === 1 ? "full" : "poisson"}"
clipping_norm = ${decimal(state.clippingNorm)}
report_loss = false${state.delta >= 1 / records ? "\nallow_large_delta = true" : ""}

[optimizer]
name = "${state.optimizer}"
learning_rate = ${decimal(state.learningRate)}

[training]
batch_size = ${state.samplingRate === 1 ? '"full"' : Math.max(1, Math.round(state.samplingRate * records))}
steps = ${state.steps}
`;
}

/** Points as a table with a heading. */
export function toCsv(points: readonly Point[]): string {
  return ["x,y,label", ...points.map((p) => `${decimals(p.x)},${decimals(p.y)},${p.label}`)].join("\n") + "\n";
}

function decimals(value: number): string {
  return String(Number(value.toFixed(4)));
}
