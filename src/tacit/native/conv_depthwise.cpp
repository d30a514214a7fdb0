// The weight gradients of depthwise convolutions, one channel in each lane; `fold` in
// clipping/per_example/convolution_forms.py is the same in Python.
//
// Letters: n records of one row; C channels; k kernel positions; L floats of a register.

#include "product.h"

namespace {

constexpr int MOST = 8;  // kernel positions of a row at once, each with a register for a line and one for all lines

struct Depthwise {
    Shape s;
    int64_t across, down;  // a row and a plane of the padded input, in channels of a register
    int64_t spread, places;

    explicit Depthwise(const Shape& s) : s(s) {
        across = s.size[2] + 2 * s.padding[2];
        down = across * (s.size[1] + 2 * s.padding[1]);
        spread = down * (s.size[0] + 2 * s.padding[0]);
        places = s.places[0] * s.places[1] * s.places[2];
    }

    // How far apart channels and positions lie in memory: side by side are the channels, or the positions.
    struct Order {
        int64_t channel, place;
    };

    // Channels `from` to `from` + `lanes` of all positions, each as one register; what lies around the input is zero.
    template <int L>
    INLINE void collect(const float* x, Order of_x, const float* g, Order of_g, int64_t lanes, float* input,
                        float* grads) const {
        for (int64_t d = 0; d < s.size[0]; d++)
            for (int64_t h = 0; h < s.size[1]; h++)
                for (int64_t w = 0; w < s.size[2]; w++) {
                    const int64_t at = (d + s.padding[0]) * down + (h + s.padding[1]) * across + w + s.padding[2];
                    copy<L>(x + ((d * s.size[1] + h) * s.size[2] + w) * of_x.place, of_x.channel, lanes, input + at * L);
                }
        for (int64_t t = 0; t < places; t++) copy<L>(g + t * of_g.place, of_g.channel, lanes, grads + t * L);
    }

    template <int L>
    INLINE static void copy(const float* from, int64_t apart, int64_t lanes, float* to) {
        if (lanes < L) {
            for (int64_t j = 0; j < L; j++) to[j] = j < lanes ? from[j * apart] : 0.0f;
        } else if (apart == 1) {
            *(Lanes<L>*)to = *(const Lanes<L>*)from;
        } else {
            for (int64_t j = 0; j < L; j++) to[j] = from[j * apart];
        }
    }

    // The sums of M kernel positions side by side.  Lines are added up first, so that long sums lose little.
    template <int L, int M>
    INLINE void sums(const float* input, const float* grads, Lanes<L>* out) const {
        Lanes<L> all[M] = {};
        for (int64_t d = 0; d < s.places[0]; d++)
            for (int64_t h = 0; h < s.places[1]; h++) {
                Lanes<L> line[M] = {};
                const float* x = input + (d * s.stride[0] * down + h * s.stride[1] * across) * L;
                const float* g = grads + (d * s.places[1] + h) * s.places[2] * L;
                for (int64_t w = 0; w < s.places[2]; w++, x += s.stride[2] * L, g += L) {
                    const Lanes<L> one = *(const Lanes<L>*)g;
                    for (int m = 0; m < M; m++) line[m] += one * *(const Lanes<L>*)(x + m * s.dilation[2] * L);
                }
                for (int m = 0; m < M; m++) all[m] += line[m];
            }
        for (int m = 0; m < M; m++) out[m] = all[m];
    }

    template <int L, int M>
    INLINE void some(int64_t count, const float* input, const float* grads, Lanes<L>* out) const {
        if (count == M) {
            sums<L, M>(input, grads, out);
        } else if constexpr (M > 1) {
            some<L, M - 1>(count, input, grads, out);
        }
    }

    // gradients (C, k) of a row.
    template <int L>
    INLINE void form(const float* x, Order of_x, const float* g, Order of_g, float* gradients, float* scratch) const {
        float *input = scratch, *grads = scratch + spread * L;
        const int64_t positions = s.kernel[0] * s.kernel[1] * s.kernel[2];
        for (int64_t from = 0; from < s.channels; from += L) {
            const int64_t lanes = std::min<int64_t>(L, s.channels - from);
            collect<L>(x + from * of_x.channel, of_x, g + from * of_g.channel, of_g, lanes, input, grads);
            int64_t at = 0;
            for (int64_t d = 0; d < s.kernel[0]; d++)
                for (int64_t h = 0; h < s.kernel[1]; h++)
                    for (int64_t w = 0; w < s.kernel[2];) {
                        const int64_t count = std::min<int64_t>(MOST, s.kernel[2] - w);
                        const int64_t first = d * s.dilation[0] * down + h * s.dilation[1] * across + w * s.dilation[2];
                        Lanes<L> out[MOST];
                        some<L, MOST>(count, input + first * L, grads, out);
                        for (int64_t m = 0; m < count; m++)
                            for (int64_t j = 0; j < lanes; j++) gradients[(from + j) * positions + at + m] = out[m][j];
                        w += count;
                        at += count;
                    }
        }
    }
};

}  // namespace

// gradients (n, C, kernel...) from x (n, C, size...) and g (n, C, places...); `last` says for each whether the channels
// are last in memory.
EXPORT void tacit_depthwise(const Shape* shape, const float* x, int x_last, const float* g, int g_last,
                            float* gradients, int threads, int level) {
    const Depthwise conv(*shape);
    const Shape& s = conv.s;
    const int64_t L = level == 2 ? 16 : level == 1 ? 8 : 4, S = s.size[0] * s.size[1] * s.size[2], T = conv.places;
    const int64_t C = s.channels, k = s.kernel[0] * s.kernel[1] * s.kernel[2];
    const Depthwise::Order of_x{x_last ? 1 : S, x_last ? C : 1}, of_g{g_last ? 1 : T, g_last ? C : 1};
    each_record(L, s.records, threads, (conv.spread + T) * L, BODY {
        (void)part, (void)V, (void)R;
        conv.form<L>(x + i * C * S, of_x, g + i * C * T, of_g, gradients + i * C * k, scratch);
    });
}
