// Sums of long rows with factors, for noise that is correlated in time; tacit/training/parts/correlated.py has the same in
// Python.  Each number is made by itself, with fused operations in the order of the rows: it depends neither on
// where rows begin and end, nor on the number of threads.

#include <algorithm>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

#if defined(__x86_64__)
constexpr int64_t TILE = 512;             // numbers of each row at once: those of many rows stay in the second cache
constexpr int64_t TILES_PER_THREAD = 64;  // fewer are done before another thread has woken up

#define INLINE static inline __attribute__((always_inline))

INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

template <typename T>
struct Sums {
    T* const* outs;
    const T* scales;
    const T* factors;  // of sum k and row j at k * count + j
    const T* const* rows;
    int count;
};

// Two vectors of each of SUMS sums from `first` on, in registers until all rows have come to them; what comes
// `ahead` numbers behind is fetched meanwhile.
template <typename T, int BYTES, int SUMS>
INLINE void vectors(const Sums<T>& of, int k, int64_t first, int64_t ahead) {
    typedef T Vector __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
    constexpr int64_t WIDTH = BYTES / sizeof(T);
    Vector kept[SUMS][2];
    for (int s = 0; s < SUMS; ++s)
        for (int v = 0; v < 2; ++v)
            kept[s][v] = *reinterpret_cast<const Vector*>(of.outs[k + s] + first + v * WIDTH) * of.scales[k + s];
    const T* factors = of.factors + static_cast<int64_t>(k) * of.count;
    for (int j = 0; j < of.count; ++j) {
        const T* row = of.rows[j] + first;
        __builtin_prefetch(row + ahead);
        __builtin_prefetch(row + ahead + WIDTH);
        const Vector one = *reinterpret_cast<const Vector*>(row), two = *reinterpret_cast<const Vector*>(row + WIDTH);
        for (int s = 0; s < SUMS; ++s) {
            const T factor = factors[static_cast<int64_t>(s) * of.count + j];
            kept[s][0] += one * factor;  // fused: -ffp-contract=fast
            kept[s][1] += two * factor;
        }
    }
    for (int s = 0; s < SUMS; ++s)
        for (int v = 0; v < 2; ++v) *reinterpret_cast<Vector*>(of.outs[k + s] + first + v * WIDTH) = kept[s][v];
}

// SUMS sums from number k on, of the numbers of a tile.
template <typename T, int BYTES, int SUMS>
INLINE void some(const Sums<T>& of, int k, int64_t first, int64_t size) {
    constexpr int64_t STEP = 2 * BYTES / sizeof(T);
    int64_t i = 0;
    for (; i + STEP <= size; i += STEP) vectors<T, BYTES, SUMS>(of, k, first + i, TILE);
    for (; i < size; ++i)
        for (int s = k; s < k + SUMS; ++s) {
            T kept = of.outs[s][first + i] * of.scales[s];
            for (int j = 0; j < of.count; ++j)
                kept = fused(of.factors[static_cast<int64_t>(s) * of.count + j], of.rows[j][first + i], kept);
            of.outs[s][first + i] = kept;
        }
}

template <typename T, int BYTES, int MOST>
INLINE void tile(const Sums<T>& of, int sums, int64_t first, int64_t size) {
    int k = 0;
    for (; k + MOST <= sums; k += MOST) some<T, BYTES, MOST>(of, k, first, size);
    for (; k < sums; ++k) some<T, BYTES, 1>(of, k, first, size);
}

template <typename T>
__attribute__((target("avx2,fma"))) static void with_avx2(const Sums<T>& of, int sums, int64_t first, int64_t size) {
    tile<T, 32, 4>(of, sums, first, size);
}

template <typename T>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) static void with_avx512(const Sums<T>& of, int sums,
                                                                                          int64_t first,
                                                                                          int64_t size) {
    tile<T, 64, 8>(of, sums, first, size);
}

static int best_level() {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 ? (avx512 ? 2 : 1) : 0;
}

template <typename T>
static void all(void* const* outs, const void* scales, int sums, const void* factors, void* const* rows, int count,
                int64_t size, int threads, int level) {
    const Sums<T> of{reinterpret_cast<T* const*>(outs), static_cast<const T*>(scales), static_cast<const T*>(factors),
                     reinterpret_cast<const T* const*>(rows), count};
    const auto part = level == 2 ? &with_avx512<T> : &with_avx2<T>;
    const int64_t tiles = (size + TILE - 1) / TILE;
    const int used = static_cast<int>(std::min<int64_t>(threads, (tiles + TILES_PER_THREAD - 1) / TILES_PER_THREAD));
#pragma omp parallel for num_threads(used) if (used > 1) schedule(static)
    for (int64_t t = 0; t < tiles; ++t) part(of, sums, t * TILE, std::min(TILE, size - t * TILE));
}
#else
static int best_level() { return 0; }
#endif

// 0: no kernel for this processor; 1: AVX2; 2: AVX-512.
EXPORT int tacit_combine_level() {
    static const int level = best_level();
    return level;
}

// outs[k] = scales[k] * outs[k] + sum_j factors[k * count + j] * rows[j] for the `size` numbers of each, in the order
// of j.  `wide`: of double precision, else of single.  `level` is at most tacit_combine_level(), and at least 1.
EXPORT void tacit_combine(void* const* outs, const void* scales, int sums, const void* factors, void* const* rows,
                          int count, int64_t size, int wide, int threads, int level) {
#if defined(__x86_64__)
    (wide ? &all<double> : &all<float>)(outs, scales, sums, factors, rows, count, size, threads, level);
#endif
}
