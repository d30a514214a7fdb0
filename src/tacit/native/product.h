// What the kernels for layers share: products of matrices in registers, a record or a block of rows per thread.
//
// Letters: n records of K views; C input channels; P outputs; L floats of a register.

#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#define INLINE __attribute__((always_inline)) inline
#define BODY [&](auto L, auto R, auto V, int64_t i, float* scratch, int64_t part) __attribute__((always_inline))

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
template <int L>
using Lanes = typename Register<L>::type;

template <int L>
INLINE float total(const Lanes<L>& lanes) {
    float sum = 0;
    for (int i = 0; i < L; i++) sum += lanes[i];
    return sum;
}

// A product, summed over `count` positions t: row r of the left factor is left[r row + t next], and position t
// of the right one begins at right + place[t].
struct Block {
    const float *left, *right;
    const int64_t* place;
    int64_t count, row, next;
    bool first;  // what out holds is no sum yet
};

// out[r, v] += sum_t left[r, t] right[t, run v], for R rows and V registers, which stay in registers.
template <int L, int R, int V>
INLINE void tile(const Block& at, const int64_t* run, float* out, int64_t pitch) {
    Lanes<L> sum[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sum[r][v] = at.first ? Lanes<L>{} : *(const Lanes<L>*)(out + r * pitch + v * L);
    const float* left = at.left;
    for (int64_t t = 0; t < at.count; t++, left += at.next) {
        const float* right = at.right + at.place[t];
        Lanes<L> seen[V];
        for (int v = 0; v < V; v++) seen[v] = *(const Lanes<L>*)(right + run[v]);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) sum[r][v] += left[r * at.row] * seen[v];
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) *(Lanes<L>*)(out + r * pitch + v * L) = sum[r][v];
}

// All rows, R at a time, then R / 2, and so on.
template <int L, int R, int V>
INLINE void column(Block at, int64_t rows, const int64_t* run, float* out, int64_t pitch) {
    for (; rows >= R; rows -= R, at.left += R * at.row, out += R * pitch) tile<L, R, V>(at, run, out, pitch);
    if constexpr (R > 1) column<L, R / 2, V>(at, rows, run, out, pitch);
}

// All runs, V at a time, then V - 1, and so on.
template <int L, int R, int V>
INLINE void product(const Block& at, int64_t rows, const int64_t* run, int64_t runs, float* out, int64_t pitch) {
    for (; runs >= V; runs -= V, run += V, out += V * L) column<L, R, V>(at, rows, run, out, pitch);
    if constexpr (V > 1) product<L, R, V - 1>(at, rows, run, runs, out, pitch);
}

template <int N>
using Number = std::integral_constant<int, N>;

// body(L, R, V, record, ...), compiled for the registers of each level of processors.
template <typename Body>
void run4(const Body& body, int64_t record, float* scratch, int64_t part) {
    body(Number<4>(), Number<4>(), Number<2>(), record, scratch, part);
}
#if defined(__x86_64__)
template <typename Body>
__attribute__((target("avx2,fma"))) void run8(const Body& body, int64_t record, float* scratch, int64_t part) {
    body(Number<8>(), Number<4>(), Number<3>(), record, scratch, part);
}
template <typename Body>
__attribute__((target("avx512f"))) void run16(const Body& body, int64_t record, float* scratch, int64_t part) {
    body(Number<16>(), Number<8>(), Number<3>(), record, scratch, part);
}
#endif

// The body for each record, in parts by thread, of which each has `floats` of scratch that begin as zeros.
template <typename Body>
void each_record(int64_t L, int64_t records, int threads, int64_t floats, const Body& body) {
    const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, records));
    auto run = run4<Body>;
#if defined(__x86_64__)
    if (L > 4) run = L == 8 ? run8<Body> : run16<Body>;
#endif
#pragma omp parallel for num_threads(int(parts)) schedule(static)
    for (int64_t part = 0; part < parts; part++) {
        std::vector<float> scratch(floats);
        for (int64_t i = records * part / parts; i < records * (part + 1) / parts; i++)
            run(body, i, scratch.data(), part);
    }
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
