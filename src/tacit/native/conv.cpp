// Per-record weight gradients of convolutions, their norms and their weighted sum, one record per thread at a
// time; tacit/clipping/layers/conv_forms.py has the same in Python.
//
// Letters: n records of K views; C input channels; P outputs; D = C times kernel positions; S input positions;
// T output positions; L floats of a register.
//
// A record's gradient is G = sum_t g_t patch_t^T, (P, D).  The input is written channels last between its
// zeros.  A patch is then a few runs of neighbouring floats, one per line of the kernel: G is a product of g
// (P, T) with a matrix (T, D) that is never made.

#include "product.h"
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

// One record, and where its gradient is to be copied, and to be added with a factor, unless they are null.
struct Record {
    const float *x, *g;
    float factor, *gradient, *sum;
};
// to[j, i] = from[i, j], for i < rows and j < columns.
INLINE void transpose(const float* from, int64_t pitch, int64_t rows, int64_t columns, float* to, int64_t to_pitch) {
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4, from += 4 * pitch) {
        const float *a = from, *b = a + pitch, *c = b + pitch, *d = c + pitch;
        for (int64_t j = 0; j < columns; j++) *(Lanes<4>*)(to + j * to_pitch + i) = Lanes<4>{a[j], b[j], c[j], d[j]};
    }
    for (; i < rows; i++, from += pitch)
        for (int64_t j = 0; j < columns; j++) to[j * to_pitch + i] = from[j];
}

constexpr int64_t CHANNELS = 16;

struct Convolution {
    const Shape s;
    int64_t L = 4, S, T, D, padded[3];
    std::vector<int64_t> place;          // where each line of the input goes, or -1 if no position sees it
    std::vector<int64_t> patch;          // where each output position's patch starts in the spread input
    std::vector<int64_t> run;            // where each register of a patch starts, from there
    std::vector<int64_t> start, length;  // of the runs: in a line of `pitch` floats, of which some mean nothing

    Convolution(const Shape& shape, int level) : s(shape) {
        const int64_t joint = s.channels * (s.dilation[2] == 1 ? s.kernel[2] : 1);
        const bool halves = (joint + 15) / 16 == (joint + 7) / 8;  // as many registers of 8 floats as of 16
        if (level > 0) L = level == 2 && !halves ? 16 : 8;
        for (int i = 0; i < 3; i++)
            padded[i] = (s.places[i] - 1) * s.stride[i] + (s.kernel[i] - 1) * s.dilation[i] + 1;
        S = s.size[0] * s.size[1] * s.size[2], T = s.places[0] * s.places[1] * s.places[2];
        D = s.channels * s.kernel[0] * s.kernel[1] * s.kernel[2];
        for (int64_t z = 0; z < s.places[0]; z++)
            for (int64_t y = 0; y < s.places[1]; y++)
                for (int64_t x = 0; x < s.places[2]; x++)
                    patch.push_back(at(z * s.stride[0], y * s.stride[1], x * s.stride[2]));
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
    int64_t spread_floats() const { return at(padded[0], 0, 0) + L; }
    int64_t scratch_floats() const { return spread_floats() + s.outputs * pitch(); }

    // Write x (C, size...) channels last between the zeros of `to`; what no position sees is left out.
    INLINE void spread(const float* x, float* to) const {
        const int64_t width = std::min(s.size[2], padded[2] - s.padding[2]);
        for (int64_t c = 0; c < s.channels; c += CHANNELS)
            for (size_t l = 0; l < place.size(); l++)
                if (place[l] >= 0)
                    transpose(x + c * S + l * s.size[2], S, std::min(CHANNELS, s.channels - c), width,
                              to + place[l] + c, s.channels);
    }

    // The other way round, with zeros for what no position sees.
    INLINE void collect(const float* from, float* x) const {
        const int64_t width = std::min(s.size[2], padded[2] - s.padding[2]);
        std::fill_n(x, s.channels * S, 0.0f);
        for (size_t l = 0; l < place.size(); l++)
            if (place[l] >= 0) transpose(from + place[l], s.channels, width, s.channels, x + l * s.size[2], S);
    }

    // Return |G|^2 of what `out` holds, and do with G what the record asks for.
    template <int L>
    INLINE double finish(const float* out, const Record& record) const {
        float *gradient = record.gradient, *sum = record.sum;
        const float factor = record.factor;
        double square = 0;
        constexpr int64_t most = 64 * L;  // squares in single precision: a lane of many loses the small ones
        for (int64_t p = 0; p < s.outputs; p++) {
            Lanes<L> squares[4] = {};
            double rest = 0;
            int64_t held = 0;
            const auto release = [&]() __attribute__((always_inline)) {
                square += total<L>((squares[0] + squares[1]) + (squares[2] + squares[3])) + rest;
                for (int k = 0; k < 4; k++) squares[k] = Lanes<L>{};
                rest = 0, held = 0;
            };
            for (size_t j = 0; j < start.size(); j++) {
                const float* from = out + p * pitch() + start[j];
                const int64_t count = length[j];
                int64_t i = 0;
                const auto registers = [&](int many, int64_t stop) __attribute__((always_inline)) {
                    for (; i + many * L <= stop; i += many * L)
                        for (int k = 0; k < many; k++) {
                            const Lanes<L> value = *(const Lanes<L>*)(from + i + k * L);
                            squares[k] += value * value;
                            if (gradient) *(Lanes<L>*)(gradient + i + k * L) = value;
                            if (sum) *(Lanes<L>*)(sum + i + k * L) += factor * value;
                        }
                };
                for (; count - i > most; release()) registers(4, i + most);
                registers(4, count);
                registers(1, count);
                for (; i < count; i++) {
                    rest += from[i] * from[i];
                    if (gradient) gradient[i] = from[i];
                    if (sum) sum[i] += factor * from[i];
                }
                if (gradient) gradient += count;
                if (sum) sum += count;
                if ((held += count) >= most) release();
            }
            release();
        }
        return square;
    }

    // x, the gradient of one row's input: what each position says of its patch, added up.  The weight (P, pitch)
    // has the lines `line` and the registers `column`.
    template <int L, int R, int V>
    INLINE void input(const float* g, const float* weight, const int64_t* line, const int64_t* column, float* x,
                      float* scratch) const {
        float* patches = scratch + spread_floats();
        std::fill_n(scratch, spread_floats(), 0.0f);
        for (int64_t t = 0; t < T; t++) {
            const int64_t r = t % s.outputs;
            if (r == 0) {
                const Block block{g + t, weight, line, s.outputs, 1, T, true};
                product<L, R, V>(block, std::min(s.outputs, T - t), column, int64_t(run.size()), patches, pitch());
            }
            for (size_t j = 0; j < start.size(); j++) {
                const float* from = patches + r * pitch() + start[j];
                float* to = scratch + patch[t] + run[start[j] / L];
                int64_t i = 0;
                for (; i + L <= length[j]; i += L) *(Lanes<L>*)(to + i) += *(const Lanes<L>*)(from + i);
                for (; i < length[j]; i++) to[i] += from[i];
            }
        }
        collect(scratch, x);
    }

    // Return |G|^2 of a record, from G formed in blocks of positions whose part of x stays in the first cache.
    template <int L, int R, int V>
    INLINE double formed(const Record& record, float* scratch) const {
        float *input = scratch, *out = scratch + spread_floats();
        for (int64_t view = 0; view < s.views; view++) {
            spread(record.x + view * s.channels * S, input);
            const float* g = record.g + view * s.outputs * T;
            for (int64_t t = 0; t < T; t += 128) {
                const Block block{g + t, input, &patch[t], std::min<int64_t>(128, T - t), T, 1, view + t == 0};
                product<L, R, V>(block, s.outputs, run.data(), int64_t(run.size()), out, pitch());
            }
        }
        return finish<L>(out, record);
    }
};

// Ask for large pages: the faults of small ones take as long as forming what lies in them.
void prefer_large_pages(float* from, int64_t floats) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = uintptr_t(1) << 21, start = (uintptr_t(from) + page - 1) / page * page;
    const uintptr_t stop = uintptr_t(from + floats) / page * page;
    if (start < stop) madvise((void*)start, stop - start, MADV_HUGEPAGE);
#else
    (void)from, (void)floats;
#endif
}

}  // namespace

// 0: any processor; 1: AVX2; 2: AVX-512.
EXPORT int tacit_convolution_level() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

// From x (n K, C, size...) and g (n K, P, places...), in the order (P, kernel..., C), each unless it is null:
// squares (n), gradients (n, P, D), and sum (P, D) of the gradients times factors (n).
EXPORT void tacit_convolution(const Shape* shape, const float* x, const float* g, const float* factors,
                              double* squares, float* gradients, float* sum, int threads, int level) {
    const Convolution conv(*shape, level);
    const Shape& s = conv.s;
    const int64_t sizeG = s.outputs * conv.D;
    const int64_t sizex = s.views * s.channels * conv.S, sizeg = s.views * s.outputs * conv.T;
    std::vector<float> sums(sum ? std::max(1, threads) * sizeG : 0);
    if (gradients) prefer_large_pages(gradients, s.records * sizeG);
    each_record(conv.L, s.records, threads, conv.scratch_floats(), BODY {
        const Record record{x + i * sizex, g + i * sizeg, sum ? factors[i] : 0.0f,
                            gradients ? gradients + i * sizeG : nullptr, sum ? &sums[part * sizeG] : nullptr};
        const double square = conv.formed<L, R, V>(record, scratch);
        if (squares) squares[i] = square;
    });
    for (int64_t k = 0; sum && k < sizeG; k++) {
        sum[k] = 0;
        for (size_t at = k; at < sums.size(); at += sizeG) sum[k] += sums[at];
    }
}

// The input gradient x (n, C, size...) of g (n, P, places...) and the weight (P, kernel..., C).
EXPORT void tacit_convolution_input(const Shape* shape, const float* weight, const float* g, float* x, int threads,
                                    int level) {
    const Convolution conv(*shape, level);
    const Shape& s = conv.s;
    std::vector<float> lines(s.outputs * conv.pitch());
    std::vector<int64_t> line, column;
    for (int64_t p = 0; p < s.outputs; p++) {
        line.push_back(p * conv.pitch());
        for (size_t j = 0; j < conv.start.size(); weight += conv.length[j++])
            std::copy_n(weight, conv.length[j], &lines[line[p] + conv.start[j]]);
    }
    for (int64_t at = 0; at < conv.pitch(); at += conv.L) column.push_back(at);
    each_record(conv.L, s.records, threads, conv.scratch_floats(), BODY {
        (void)part;
        conv.input<L, R, V>(g + i * s.outputs * conv.T, lines.data(), line.data(), column.data(),
                            x + i * s.channels * conv.S, scratch);
    });
}
