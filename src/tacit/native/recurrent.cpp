// LSTM and GRU over time, forward and backward; clipping/per_example/recurrent.py has the same in Python.
//
// No row reads another. So a thread takes a block of rows through all steps, and W_hh stays in its second cache.
//
// Letters: B rows; T time steps; H hidden units; G gates (3 or 4).

#include "product.h"

#include <cstring>

namespace {

constexpr int64_t MOST_ROWS = 32;

// What Python passes: `hidden` and `g` have T rows of H numbers, and for an LSTM one more for the cell.
struct Layer {
    int64_t rows, steps, units, gates;
};

// exp(x), to two units of rounding (the polynomial of Cephes); NaN stays.
INLINE float exponential(float x) {
    const float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float shifted = x * 1.44269504f + ROUND;
    const float n = shifted - ROUND;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    bits = (bits + 127) << 23;  // ROUND ends in zeros, so that the low bits are those of n
    float power;
    std::memcpy(&power, &bits, 4);
    return (p * r * r + r + 1.0f) * power;
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

INLINE float hyperbolic(float x) {
    const float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const float near = p * z * x + x, far = 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f);
    return z < 0.390625f ? near : far;
}

// Zero, if the square would underflow: over many steps gradients shrink to numbers whose products take long.
INLINE float without_traces(float x) { return __builtin_fabsf(x) < 1.0842022e-19f ? 0.0f : x; }

// A layer, and the weight of its product as panels of a tile's width, one behind the other.
struct Recurrent {
    Layer of;
    int L, V;
    int64_t inner, width, block;
    std::vector<float> panels;
    std::vector<int64_t> run, place;

    // weight: `inner` rows of `outer` times H numbers; `width` is that, rounded up to whole panels.
    Recurrent(const Layer& of, int64_t inner, int64_t outer, const float* weight, int threads, int level)
        : of(of), L(level == 2 ? 16 : level == 1 ? 8 : 4), V(level ? 3 : 2), inner(inner) {
        const int64_t share = (of.rows + std::max(1, threads) - 1) / std::max(1, threads), panel = L * V;
        block = std::max<int64_t>(1, std::min(MOST_ROWS, share));
        width = (outer * of.units + panel - 1) / panel * panel;
        panels.resize(inner * width);
        for (int64_t k = 0; k < inner; k++)
            for (int64_t j = 0; j < outer * of.units; j++)
                panels[j / panel * panel * inner + k * panel + j % panel] = weight[k * outer * of.units + j];
        for (int64_t v = 0; v < V; v++) run.push_back(v * L);
        for (int64_t k = 0; k < inner; k++) place.push_back(k * panel);
    }

    bool is_lstm() const { return of.gates == 4; }
    int64_t blocks() const { return (of.rows + block - 1) / block; }
    int64_t hidden_row() const { return (of.steps + is_lstm()) * of.units; }
    int64_t scratch_floats() const { return block * (width + inner); }

    // The product of `rows` rows, which begin `row` numbers apart, into scratch.
    template <int L, int R, int V>
    INLINE void times(const float* left, int64_t row, int64_t rows, float* scratch) const {
        // side by side: rows that lie a power of two apart would push each other out of the cache
        float* own = scratch + block * width;
        for (int64_t r = 0; r < rows; r++) std::copy_n(left + r * row, inner, own + r * inner);
        for (int64_t at = 0; at < width; at += L * V) {
            const Block panel{own, &panels[at * inner], place.data(), inner, inner, 1, true};
            column<L, R, V>(panel, rows, run.data(), scratch + at, width);
        }
    }
};

// gates: a_i, a_f, a_n, a_o before, the gates i, f, n, o after; z the products with W_hh.
INLINE void lstm_cell(int64_t H, const float* z, const float* cell, float* gates, float* next, float* h) {
#pragma GCC ivdep
    for (int64_t j = 0; j < H; j++) {
        const float i = sigmoid(gates[j] + z[j]), f = sigmoid(gates[H + j] + z[H + j]);
        const float n = hyperbolic(gates[2 * H + j] + z[2 * H + j]), o = sigmoid(gates[3 * H + j] + z[3 * H + j]);
        const float c = f * cell[j] + i * n;
        gates[j] = i;
        gates[H + j] = f;
        gates[2 * H + j] = n;
        gates[3 * H + j] = o;
        next[j] = c;
        h[j] = o * hyperbolic(c);
    }
}

// gates: a_r, a_u, a_n before, the gates r, u, n after; z_n: what the reset gate multiplies.
INLINE void gru_cell(int64_t H, const float* z, const float* bias, const float* before, float* gates,
                     float* z_n, float* h) {
#pragma GCC ivdep
    for (int64_t j = 0; j < H; j++) {
        const float from_h = z[2 * H + j] + (bias ? bias[2 * H + j] : 0.0f);
        const float r = sigmoid(gates[j] + z[j] + (bias ? bias[j] : 0.0f));
        const float u = sigmoid(gates[H + j] + z[H + j] + (bias ? bias[H + j] : 0.0f));
        const float n = hyperbolic(gates[2 * H + j] + r * from_h);
        gates[j] = r;
        gates[H + j] = u;
        gates[2 * H + j] = n;
        z_n[j] = from_h;
        h[j] = (1.0f - u) * n + u * before[j];
    }
}

INLINE void lstm_back(int64_t H, const float* gates, const float* cell, const float* g, float* dh, float* dc,
                      float* of_z) {
#pragma GCC ivdep
    for (int64_t j = 0; j < H; j++) {
        const float i = gates[j], f = gates[H + j], n = gates[2 * H + j], o = gates[3 * H + j];
        const float squashed = hyperbolic(cell[H + j]), of_h = dh[j] + g[j];
        const float of_c = without_traces(dc[j] + of_h * o * (1.0f - squashed * squashed));
        of_z[j] = without_traces(of_c * n * i * (1.0f - i));
        of_z[H + j] = without_traces(of_c * cell[j] * f * (1.0f - f));
        of_z[2 * H + j] = without_traces(of_c * i * (1.0f - n * n));
        of_z[3 * H + j] = without_traces(of_h * squashed * o * (1.0f - o));
        dc[j] = of_c * f;
    }
}

INLINE void gru_back(int64_t H, const float* gates, const float* z_n, const float* before, const float* g, float* dh,
                     float* of_a, float* of_z) {
#pragma GCC ivdep
    for (int64_t j = 0; j < H; j++) {
        const float r = gates[j], u = gates[H + j], n = gates[2 * H + j], of_h = dh[j] + g[j];
        const float of_n = of_h * (1.0f - u) * (1.0f - n * n);
        const float of_r = without_traces(of_n * z_n[j] * r * (1.0f - r));
        const float of_u = without_traces(of_h * (before[j] - n) * u * (1.0f - u));
        of_a[j] = of_z[j] = of_r;
        of_a[H + j] = of_z[H + j] = of_u;
        of_a[2 * H + j] = without_traces(of_n);
        of_z[2 * H + j] = without_traces(of_n * r);
        dh[j] = without_traces(of_h * u);
    }
}

}  // namespace

// first (B, H) and cells (B, T + 1, H), whose first row is given, or z_n (B, T, H) of a GRU; weight (H, G H) is W_hh^T;
// bias (G H), for a GRU, may be null; gates (B, T, G H) hold W_ih x_t + b.  Fills gates, cells or z_n, and hidden.
EXPORT void tacit_recurrent(const Layer* layer, const float* first, const float* weight, const float* bias,
                            float* gates, float* cells, float* hidden, int threads, int level) {
    const Recurrent of(*layer, layer->units, layer->gates, weight, threads, level);
    const int64_t T = layer->steps, H = layer->units, G = layer->gates, line = of.hidden_row();
    each_record(of.L, of.blocks(), threads, of.scratch_floats(), BODY {
        (void)part;
        const int64_t begin = i * of.block, rows = std::min(of.block, layer->rows - begin);
        for (int64_t t = 0; t < T; t++) {
            const float* before = t ? hidden + begin * line + (t - 1) * H : first + begin * H;
            of.times<L, R, V>(before, t ? line : H, rows, scratch);
            for (int64_t r = 0; r < rows; r++) {
                const int64_t row = begin + r, at = row * T + t;
                float *gate = gates + at * G * H, *h = hidden + row * line + t * H;
                const float* z = scratch + r * of.width;
                if (of.is_lstm()) {
                    float* cell = cells + (at + row) * H;
                    lstm_cell(H, z, cell, gate, cell + H, h);
                } else {
                    gru_cell(H, z, bias, before + r * (t ? line : H), gate, cells + at * H, h);
                }
            }
        }
    });
}

// From the gradient g of hidden: of_a and of_z (B, T, G H), which are one for an LSTM; dh and dc (B, H) begin with
// what comes from the last step, and end as the gradients of the first state.  weight (G H, P) is W_hh.
EXPORT void tacit_recurrent_back(const Layer* layer, const float* first, const float* weight, const float* gates,
                                 const float* cells, const float* hidden, const float* g, float* dh, float* dc,
                                 float* of_a, float* of_z, int threads, int level) {
    const Recurrent of(*layer, layer->units * layer->gates, 1, weight, threads, level);
    const int64_t T = layer->steps, H = layer->units, G = layer->gates, line = of.hidden_row();
    each_record(of.L, of.blocks(), threads, of.scratch_floats(), BODY {
        (void)part;
        const int64_t begin = i * of.block, rows = std::min(of.block, layer->rows - begin);
        for (int64_t t = T - 1; t >= 0; t--) {
            for (int64_t r = 0; r < rows; r++) {
                const int64_t row = begin + r, at = row * T + t;
                const float *gate = gates + at * G * H, *from = g + row * line + t * H;
                if (of.is_lstm()) {
                    lstm_back(H, gate, cells + (at + row) * H, from, dh + row * H, dc + row * H, of_z + at * G * H);
                } else {
                    const float* before = t ? hidden + row * line + (t - 1) * H : first + row * H;
                    gru_back(H, gate, cells + at * H, before, from, dh + row * H, of_a + at * G * H,
                             of_z + at * G * H);
                }
            }
            of.times<L, R, V>(of_z + (begin * T + t) * G * H, T * G * H, rows, scratch);
            for (int64_t r = 0; r < rows; r++) {
                float* to = dh + (begin + r) * H;
                const float* from = scratch + r * of.width;
                for (int64_t j = 0; j < H; j++) to[j] = of.is_lstm() ? from[j] : to[j] + from[j];
            }
        }
    });
}
