// Linear maps at T positions: per-record gradients, their weighted sum, and their norms without them.
// clipping/per_example/linear.py has the same in Python.
//
// Letters: n records; T positions; p numbers of a left row; d of a right row; L floats of a register.
//
// A record's gradient is G = sum_t left_t right_t^T, (p, d).  Its norm needs only inner products of positions:
// |G|^2 = sum_{t,u} (left_t . left_u) (right_t . right_u).

#include "product.h"

#include <cfloat>
#include <cmath>

namespace {

// What a product takes at once, so that it stays in the second cache.
constexpr int64_t ROWS = 512, POSITIONS = 128;
// From a panel of the left side to the next: at a power of two they would push each other out of the cache.
constexpr int64_t APART = POSITIONS + 2;

// What Python passes; left (n, T, p) and right (n, T, d).
struct Sides {
    int64_t records, positions, left, right;
};

int64_t rounded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

// Some rows of sum_t left_t right_t^T over `count` positions, times the factor of their record if there are factors.
struct Product {
    const Sides of;
    const int64_t count, rows, width;
    std::vector<int64_t> place, run;  // of each position of the right side; of each register

    // parts: how many blocks of rows there are at least, for as many threads.
    Product(const Sides& of, int64_t count, int64_t parts, int64_t L)
        : of(of),
          count(count),
          rows(std::min(ROWS, rounded((of.left + parts - 1) / parts, 8))),
          width(rounded(of.right, L)) {
        for (int64_t t = 0; t < POSITIONS; t++) place.push_back(t * width);
        for (int64_t j = 0; j < width; j += L) run.push_back(j);
    }
    int64_t blocks() const { return (of.left + rows - 1) / rows; }
    int64_t scratch_floats() const { return APART * rows + (POSITIONS + 8) * width; }

    // A block of rows, into `out` (p, d), or added to what it holds.
    template <int L, int R, int V>
    INLINE void block(const float* left, const float* right, const float* factors, int64_t number, bool add, float* out,
                      float* scratch) const {
        const int64_t begin = number * rows, many = std::min(rows, of.left - begin);
        float *panels = scratch, *wide = panels + APART * rows, *tiles = wide + POSITIONS * width;
        // a block of positions is added up in registers before it is added to what may be large
        for (int64_t from = 0; from < count; from += POSITIONS, add = true) {
            const int64_t positions = std::min(POSITIONS, count - from);
            for (int64_t t = 0; t < positions; t++) {
                const float* row = left + (from + t) * of.left + begin;
                const float factor = factors ? factors[(from + t) / of.positions] : 1.0f;
                float* to = panels + t * R;
                int64_t r = 0;
                for (; r + R <= many; r += R, to += APART * R) *(Lanes<R>*)to = factor * *(const Lanes<R>*)(row + r);
                for (; r < many; r++) *to++ = factor * row[r];
                std::copy_n(right + (from + t) * of.right, of.right, wide + t * width);
            }
            for (int64_t r = 0; r < many; r += R) {
                const Block panel{panels + r * APART, wide, place.data(), positions, 1, R, true};
                const int64_t here = std::min<int64_t>(R, many - r);
                const bool direct = !add && width == of.right;
                float *to = out + (begin + r) * of.right, *tile = direct ? to : tiles;
                product<L, R, V>(panel, here, run.data(), int64_t(run.size()), tile, width);
                for (int64_t k = 0; k < here && !direct; k++, to += of.right, tile += width)
                    for (int64_t j = 0; j < of.right; j++) to[j] = add ? to[j] + tile[j] : tile[j];
            }
        }
    }
};

// The sum of the lanes, which end as four.
template <int L>
INLINE Lanes<4> folded(const Lanes<L>& x) {
    if constexpr (L == 4) {
        return x;
    } else {
        const Lanes<L / 2>* half = (const Lanes<L / 2>*)&x;
        return folded<L / 2>(half[0] + half[1]);
    }
}

// The inner products of four rows a with four rows b, each (count,), into out (4, 4).
template <int L>
INLINE void dots(const float* a, const float* b, int64_t count, float* out) {
    constexpr int64_t most = 64 * L;  // in single precision: a lane of many loses the small ones
    std::fill_n(out, 16, 0.0f);
    for (int64_t from = 0; from < count; from += most) {
        Lanes<L> sum[4][4] = {};
        for (int64_t k = from; k < std::min(count, from + most); k += L) {
            Lanes<L> other[4];
            for (int c = 0; c < 4; c++) other[c] = *(const Lanes<L>*)(b + c * count + k);
            for (int r = 0; r < 4; r++) {
                const Lanes<L> one = *(const Lanes<L>*)(a + r * count + k);
                for (int c = 0; c < 4; c++) sum[r][c] += one * other[c];
            }
        }
        for (int r = 0; r < 4; r++) {
            Lanes<4> x[4];
            for (int c = 0; c < 4; c++) x[c] = folded<L>(sum[r][c]);
            for (int c = 0; c < 4; c++) out[4 * r + c] += (x[c][0] + x[c][1]) + (x[c][2] + x[c][3]);
        }
    }
}

}  // namespace

// gradients (n, p, d).
EXPORT void tacit_outer(const Sides* sides, const float* left, const float* right, float* gradients, int threads,
                        int level) {
    const int64_t L = int64_t(4) << level, T = sides->positions, p = sides->left, d = sides->right;
    const int64_t parts = threads / std::max<int64_t>(1, sides->records);  // of few records
    const Product of(*sides, T, std::max<int64_t>(1, parts), L);
    each_record(L, sides->records * of.blocks(), threads, of.scratch_floats(), BODY {
        (void)part;
        const int64_t at = i / of.blocks();
        const float *one = left + at * T * p, *other = right + at * T * d;
        of.block<L, R, V>(one, other, nullptr, i % of.blocks(), false, gradients + at * p * d, scratch);
    });
}

// Add to sum (p, d) the gradients times factors (n).
EXPORT void tacit_outer_sum(const Sides* sides, const float* left, const float* right, const float* factors, float* sum,
                            int threads, int level) {
    const int64_t L = int64_t(4) << level;
    const Product of(*sides, sides->records * sides->positions, threads, L);
    each_record(L, of.blocks(), threads, of.scratch_floats(), BODY {
        (void)part;
        of.block<L, R, V>(left, right, factors, i, true, sum, scratch);
    });
}

// squares (n) of the gradients' norms, rounded up by kappa S^2; see ghost_squared_norms, the same in Python.
EXPORT void tacit_outer_squares(const Sides* sides, const float* left, const float* right, double kappa, float* squares,
                                int threads, int level) {
    const int64_t L = int64_t(4) << level, T = sides->positions, p = sides->left, d = sides->right;
    const int64_t lines = rounded(T, 4), wide_p = rounded(p, L), wide_d = rounded(d, L);
    const double lost = double(FLT_MIN) / FLT_EPSILON;  // per product that underflows
    each_record(L, sides->records, threads, lines * (wide_p + wide_d), BODY {
        (void)V, (void)R, (void)part;
        // padded with zeros to four rows and to whole registers
        float *a = scratch, *b = scratch + lines * wide_p;
        for (int64_t t = 0; t < T; t++) {
            std::copy_n(left + (i * T + t) * p, p, a + t * wide_p);
            std::copy_n(right + (i * T + t) * d, d, b + t * wide_d);
        }
        double square = 0, spread = 0;
        for (int64_t t = 0; t < T; t += 4)
            for (int64_t u = t; u < T; u += 4) {
                float of_left[16], of_right[16], both = 0;
                dots<L>(a + t * wide_p, a + u * wide_p, wide_p, of_left);
                dots<L>(b + t * wide_d, b + u * wide_d, wide_d, of_right);
                for (int k = 0; k < 16; k++) both += of_left[k] * of_right[k];
                square += t == u ? both : 2.0 * both;
                for (int64_t k = 0; t == u && k < std::min<int64_t>(4, T - t); k++)
                    spread += std::sqrt((of_left[5 * k] + p * lost) * (of_right[5 * k] + d * lost));
            }
        squares[i] = float((square < 0 ? 0 : square) + kappa * spread * spread);
    });
}
