// Per-record norms of convolutions' weight gradients from what positions have in common.
//
// Letters: n records; C input channels; P outputs; S input positions; T output positions; L floats of a register.
//
// |G|^2 = sum_{t,u} (g_t . g_u) (patch_t . patch_u), with patch_t . patch_u = sum_j x_{t+j} . x_{u+j} over the
// kernel: all of it comes from x^T x (S, S) and g^T g (T, T), and these are symmetric.  See ghost_squared_norms
// in tacit/clipping/layers/conv_forms.py, the same in Python, for what is added to the sum and why.

#include <cfloat>
#include <cmath>

#include "product.h"

namespace {

// Channels, line by line between zeros, and the products of their places.
struct Lines {
    int64_t channels, number, width, before, pitch, columns;
    std::vector<int64_t> start, run;  // of the channels; of the registers of one channel

    Lines(int64_t channels, int64_t number, int64_t width, int64_t before, int64_t pitch, int64_t after, int64_t L)
        : channels(channels), number(number), width(width), before(before), pitch(pitch) {
        columns = (number * pitch + after + 2 * L - 1) / L * L;
        for (int64_t c = 0; c < channels; c++) start.push_back(c * columns);
        for (int64_t i = 0; i < number * pitch; i += L) run.push_back(i);
    }
    int64_t column(int64_t place) const { return place / width * pitch + before + place % width; }
    int64_t floats() const { return (channels + number * width) * columns; }

    // Lay x (channels, number, width) into a (channels, columns), and return (number width, columns), behind it:
    // a^T a, each place from its line on; what comes before means nothing.
    template <int L, int R, int V>
    INLINE const float* products(const float* x, float* a) const {
        for (int64_t c = 0; c < channels; c++)
            for (int64_t l = 0; l < number; l++, x += width) {
                float* to = a + c * columns + l * pitch + before;
                int64_t i = 0;
                for (; i + 4 <= width; i += 4) *(Lanes<4>*)(to + i) = *(const Lanes<4>*)(x + i);
                for (; i < width; i++) to[i] = x[i];
            }
        float* out = a + channels * columns;
        for (int64_t l = 0; l < number; l++) {
            const Block block{a + l * pitch + before, a, start.data(), channels, 1, columns, true};
            const int64_t from = l * pitch / L;
            product<L, R, V>(block, width, &run[from], int64_t(run.size()) - from,
                             out + l * width * columns + from * L, columns);
        }
        return out;
    }
};

// Lines of x and of g are equally long, so that with a stride of 1 what one place of the kernel sees from some
// position on is as contiguous as the positions are.
struct Ghost {
    const Shape s;
    const int64_t pitch, reach;
    const Lines x, g;
    const double kappa;

    Ghost(const Shape& s, double kappa, int64_t L)
        : s(s),
          pitch(std::max(s.size[2] + s.padding[2], s.places[2])),
          reach(s.padding[2] + (s.kernel[2] - 1) * s.dilation[2]),
          x(s.channels, s.size[1], s.size[2], s.padding[2], pitch, reach, L),
          g(s.outputs, s.places[1], s.places[2], 0, pitch, 0, L),
          kappa(kappa) {}

    template <int L, int R, int V>
    INLINE double norm(const float* of_x, const float* of_g, float* scratch) const {
        const float *X = x.products<L, R, V>(of_x, scratch), *G = g.products<L, R, V>(of_g, scratch + x.floats());
        std::vector<double> patches(g.number * g.width);  // |patch_t|^2
        double square = 0, both = 0, left = 0, right = 0;
        for (int64_t ky = 0; ky < s.kernel[1]; ky++)
            for (int64_t kx = 0; kx < s.kernel[2]; kx++) square += through<L>(ky, kx, X, G, patches.data());
        for (int64_t t = 0; t < g.number * g.width; t++) {
            const double of_patch = std::sqrt(patches[t]), of_g = std::sqrt(G[t * g.columns + g.column(t)]);
            both += of_patch * of_g, left += of_patch, right += of_g;
        }
        const double D = s.channels * s.kernel[1] * s.kernel[2];
        const double lost = s.outputs * left * left + D * right * right;
        return (square < 0 ? 0 : square) + kappa * both * both + FLT_MIN * lost;
    }

    // The sum over all pairs of positions through one place of the kernel; each pair is met once.
    template <int L>
    INLINE double through(int64_t ky, int64_t kx, const float* X, const float* G, double* patches) const {
        const int64_t step = s.stride[2], shift = kx * s.dilation[2] - s.padding[2];
        int64_t top = 0, bottom = s.places[1], low = 0, high = s.places[2];  // which lines and columns see any input
        const auto line = [&](int64_t l) { return l * s.stride[1] + ky * s.dilation[1] - s.padding[1]; };
        while (top < bottom && line(top) < 0) top++;
        while (top < bottom && line(bottom - 1) >= s.size[1]) bottom--;
        while (low < high && low * step + shift < 0) low++;
        while (low < high && (high - 1) * step + shift >= s.size[2]) high--;
        double found = 0;
        for (int64_t l = top; l < bottom; l++) {
            Lanes<L> sums = {};
            float rest = 0;
            for (int64_t c = low; c < high; c++) {
                const int64_t t = l * g.width + c, place = line(l) * x.width + c * step + shift;
                const float *left = G + t * g.columns, *right = X + place * x.columns;
                patches[t] += right[x.column(place)];
                found += double(left[g.column(t)]) * right[x.column(place)];
                if (step == 1 && s.stride[1] == 1) {
                    left += g.column(t), right += x.column(place);
                    for (int64_t i = 1; i < (bottom - l) * pitch - c; i += L)
                        sums += *(const Lanes<L>*)(left + i) * *(const Lanes<L>*)(right + i);
                } else
                    for (int64_t m = l; m < bottom; m++)
                        for (int64_t d = m == l ? c + 1 : low; d < high; d++)
                            rest += left[m * pitch + d] * right[line(m) * pitch + x.before + d * step + shift];
            }
            found += 2 * (rest + double(total<L>(sums)));
        }
        return found;
    }
};

}  // namespace

// From x (n, C, size...) and g (n, P, places...): squares (n), rounded up by what kappa allows for.
EXPORT void tacit_convolution_ghost(const Shape* shape, const float* x, const float* g, double kappa, double* squares,
                                    int threads, int level) {
    const Ghost ghost(*shape, kappa, int64_t(4) << level);
    const int64_t sizex = shape->channels * shape->size[1] * shape->size[2];
    const int64_t sizeg = shape->outputs * shape->places[1] * shape->places[2];
    each_record(int64_t(4) << level, shape->records, threads, ghost.x.floats() + ghost.g.floats(), BODY {
        (void)part;
        squares[i] = ghost.norm<L, R, V>(x + i * sizex, g + i * sizeg, scratch);
    });
}
