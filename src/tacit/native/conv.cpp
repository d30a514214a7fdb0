// Per-record weight gradients of convolutions, their norms and their weighted sum, one record per thread at a
// time; tacit/clipping/layers/conv_forms.py has the same in Python.
//
// Letters: n records of K views; C input channels; P outputs; D = C times kernel positions; T = lines * width
// output positions; L floats of a register.
//
// A record's gradient is G = sum_t g_t patch_t^T, (P, D).  The input is written channels last between its
// zeros.  A patch is then a few runs of neighbouring floats, one per line of the kernel, and the patch of the
// next position starts a fixed number of floats further on: G is a product of g (P, T) with a matrix (T, D)
// that is never made.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// What Python passes; the arrays are depth, height and width.
struct Shape {
    int64_t records, views, channels, outputs;
    int64_t size[3], kernel[3], stride[3], padding[3], dilation[3], places[3];
};

template <int L>
struct Register {
    typedef float type __attribute__((vector_size(4 * L), aligned(4), may_alias));
};

// Some positions, and where they lie: in g, whose lines are `pitch` floats, and in the spread input x.
struct Block {
    const float *g, *x;
    const int64_t* line;  // where each line of positions starts in x
    int64_t lines, width, pitch, step;
    bool first;  // of its record: what out holds is no sum yet
};

// out[r, v] += sum over positions of g[r] x[run v], for R outputs and V registers, which stay in registers.
template <int L, int R, int V>
__attribute__((always_inline)) inline void tile(const Block& at, int64_t T, const int64_t* run, float* out,
                                                int64_t pitch) {
    typedef typename Register<L>::type Lanes;
    Lanes sum[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sum[r][v] = at.first ? Lanes{} : *(const Lanes*)(out + r * pitch + v * L);
    for (int64_t l = 0; l < at.lines; l++) {
        const float *x = at.x + at.line[l], *g = at.g + l * at.pitch;
        for (int64_t t = 0; t < at.width; t++, x += at.step, g++) {
            Lanes seen[V];
            for (int v = 0; v < V; v++) seen[v] = *(const Lanes*)(x + run[v]);
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++) sum[r][v] += g[r * T] * seen[v];
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) *(Lanes*)(out + r * pitch + v * L) = sum[r][v];
}

// All P outputs, R at a time, then R / 2, and so on.
template <int L, int R, int V>
__attribute__((always_inline)) inline void column(Block at, int64_t P, int64_t T, const int64_t* run, float* out,
                                                  int64_t pitch) {
    for (; P >= R; P -= R, at.g += R * T, out += R * pitch) tile<L, R, V>(at, T, run, out, pitch);
    if constexpr (R > 1) column<L, R / 2, V>(at, P, T, run, out, pitch);
}

// All runs, V at a time, then V - 1, and so on.
template <int L, int R, int V>
__attribute__((always_inline)) inline void product(const Block& at, int64_t P, int64_t T, const int64_t* run,
                                                   int64_t runs, float* out, int64_t pitch) {
    for (; runs >= V; runs -= V, run += V, out += V * L) column<L, R, V>(at, P, T, run, out, pitch);
    if constexpr (V > 1) product<L, R, V - 1>(at, P, T, run, runs, out, pitch);
}

typedef void Product(const Block&, int64_t, int64_t, const int64_t*, int64_t, float*, int64_t);
#if defined(__x86_64__)
__attribute__((target("avx512f"))) void product16(const Block& at, int64_t P, int64_t T, const int64_t* run,
                                                  int64_t runs, float* out, int64_t pitch) {
    product<16, 8, 3>(at, P, T, run, runs, out, pitch);
}
__attribute__((target("avx2,fma"))) void product8(const Block& at, int64_t P, int64_t T, const int64_t* run,
                                                  int64_t runs, float* out, int64_t pitch) {
    product<8, 4, 3>(at, P, T, run, runs, out, pitch);
}
#endif
void product4(const Block& at, int64_t P, int64_t T, const int64_t* run, int64_t runs, float* out, int64_t pitch) {
    product<4, 4, 2>(at, P, T, run, runs, out, pitch);
}

// 0: any processor; 1: AVX2; 2: AVX-512.
int best_level() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

struct Convolution {
    const Shape s;
    int64_t L = 4, T, D, lines, padded[3];
    Product* multiply = product4;
    std::vector<int64_t> place;          // where each line of the input goes, or -1 if no position sees it
    std::vector<int64_t> line;           // where each line of output positions starts in the spread input
    std::vector<int64_t> run;            // where each register starts, from there
    std::vector<int64_t> start, length;  // of the runs: in a line of `pitch` floats, of which some mean nothing

    Convolution(const Shape& shape, int level) : s(shape) {
#if defined(__x86_64__)
        const int64_t joint = s.channels * (s.dilation[2] == 1 ? s.kernel[2] : 1);
        const bool halves = (joint + 15) / 16 == (joint + 7) / 8;  // as many registers of 8 floats as of 16
        if (level == 2 && !halves) L = 16, multiply = product16;
        else if (level > 0) L = 8, multiply = product8;
#endif
        for (int i = 0; i < 3; i++)
            padded[i] = (s.places[i] - 1) * s.stride[i] + (s.kernel[i] - 1) * s.dilation[i] + 1;
        lines = s.places[0] * s.places[1];
        T = lines * s.places[2];
        D = s.channels * s.kernel[0] * s.kernel[1] * s.kernel[2];
        for (int64_t z = 0; z < s.places[0]; z++)
            for (int64_t y = 0; y < s.places[1]; y++) line.push_back(at(z * s.stride[0], y * s.stride[1], 0));
        for (int64_t z = s.padding[0]; z < s.padding[0] + s.size[0]; z++)
            for (int64_t y = s.padding[1]; y < s.padding[1] + s.size[1]; y++)
                place.push_back(seen(0, z) && seen(1, y) ? at(z, y, s.padding[2]) : -1);
        const int64_t joined = s.dilation[2] == 1 ? s.kernel[2] : 1;
        for (int64_t z = 0; z < s.kernel[0]; z++)
            for (int64_t y = 0; y < s.kernel[1]; y++)
                for (int64_t x = 0; x < s.kernel[2]; x += joined) {
                    const int64_t from = at(z * s.dilation[0], y * s.dilation[1], x * s.dilation[2]);
                    start.push_back(pitch());
                    length.push_back(joined * s.channels);
                    for (int64_t j = 0; j < length.back(); j += L) run.push_back(from + j);
                }
    }
    int64_t at(int64_t z, int64_t y, int64_t x) const { return ((z * padded[1] + y) * padded[2] + x) * s.channels; }
    bool seen(int i, int64_t at) const {
        return at < padded[i] && at % s.stride[i] <= (s.kernel[i] - 1) * s.dilation[i];
    }
    int64_t pitch() const { return int64_t(run.size()) * L; }

    // Write x (C, size...) channels last between the zeros of `to`; what no position sees is left out.
    void spread(const float* x, float* to) const {
        const int64_t width = std::min(s.size[2], padded[2] - s.padding[2]);
        for (int64_t c = 0; c < s.channels; c++)
            for (size_t l = 0; l < place.size(); l++, x += s.size[2])
                if (place[l] >= 0)
                    for (int64_t i = 0; i < width; i++) to[place[l] + c + i * s.channels] = x[i];
    }

    // out (P, pitch) += G, or = G for the first row of a record, in blocks of positions whose part of x stays
    // in the first cache.
    void add(const float* x, const float* g, float* out, bool first) const {
        const int64_t width = s.places[2], wide = std::min<int64_t>(width, 128);
        const int64_t high = std::max<int64_t>(1, 128 / width), step = s.stride[2] * s.channels;
        for (int64_t l = 0; l < lines; l += high)
            for (int64_t t = 0; t < width; t += wide) {
                const Block block{g + l * width + t, x + t * step, &line[l], std::min(high, lines - l),
                                  std::min(wide, width - t), width, step, first && l == 0 && t == 0};
                multiply(block, s.outputs, T, run.data(), int64_t(run.size()), out, pitch());
            }
    }

    // Return |G|^2; copy G (P, D) to `gradient`, and add `factor` times G to `sum`, unless they are null.
    double finish(const float* out, float factor, float* gradient, float* sum) const {
        double square = 0;
        for (int64_t p = 0; p < s.outputs; p++)
            for (size_t j = 0; j < start.size(); j++) {
                const float* from = out + p * pitch() + start[j];
                const int64_t count = length[j];
                float part = 0;
#pragma omp simd reduction(+ : part)
                for (int64_t i = 0; i < count; i++) part += from[i] * from[i];
                square += part;
                if (gradient) std::memcpy(gradient, from, count * sizeof(float)), gradient += count;
                if (sum) {
                    for (int64_t i = 0; i < count; i++) sum[i] += factor * from[i];
                    sum += count;
                }
            }
        return square;
    }
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int tacit_convolution_level() { return best_level(); }

// From x (n K, C, size...) and g (n K, P, places...), in the order (P, kernel..., C), each unless it is null:
// squares (n), gradients (n, P, D), and sum (P, D) of the gradients times factors (n).
EXPORT void tacit_convolution(const Shape* shape, const float* x, const float* g, const float* factors,
                              double* squares, float* gradients, float* sum, int threads, int level) {
    const Convolution conv(*shape, level);
    const Shape& s = conv.s;
    const int64_t sizeG = s.outputs * conv.D, sizeg = s.outputs * conv.T;
    const int64_t sizex = s.channels * s.size[0] * s.size[1] * s.size[2];
    const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, s.records));
    std::vector<float> sums(sum ? parts * sizeG : 0);
#pragma omp parallel for num_threads(int(parts)) schedule(static)
    for (int64_t part = 0; part < parts; part++) {
        std::vector<float> seen(conv.at(conv.padded[0], 0, 0) + conv.L), out(s.outputs * conv.pitch());
        for (int64_t i = s.records * part / parts; i < s.records * (part + 1) / parts; i++) {
            for (int64_t row = i * s.views; row < (i + 1) * s.views; row++) {
                conv.spread(x + row * sizex, seen.data());
                conv.add(seen.data(), g + row * sizeg, out.data(), row == i * s.views);
            }
            const double square = conv.finish(out.data(), sum ? factors[i] : 0.0f,
                                              gradients ? gradients + i * sizeG : nullptr,
                                              sum ? sums.data() + part * sizeG : nullptr);
            if (squares) squares[i] = square;
        }
    }
    for (int64_t part = 0; sum && part < parts; part++)
        for (int64_t k = 0; k < sizeG; k++) sum[k] = (part ? sum[k] : 0.0f) + sums[part * sizeG + k];
}
