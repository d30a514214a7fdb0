// Normal noise from AES-128 in counter mode by Box and Muller's transform; tacit/noise/gaussian.py has the same
// in Python, and describes how words become draws.

#include <cmath>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

// A tile: PAIRS radii of 64 bits and PAIRS angles of 32; from them PAIRS cosines and PAIRS sines.
constexpr int PAIRS = 1024;
constexpr int BLOCKS = 3 * PAIRS / 4;
constexpr int MOST_DIGITS = 255;  // of 64 bits, after the first 63 bits of u
constexpr int TILES_PER_THREAD = 8;  // fewer are drawn before another thread has woken up

// The last 32 bits of a counter, a big-endian number.
static uint32_t number_of_block(const uint8_t* counter) {
    return uint32_t(counter[12]) << 24 | uint32_t(counter[13]) << 16 | uint32_t(counter[14]) << 8 | counter[15];
}

#define LEVEL avx2
#define TARGET __attribute__((target("avx2,fma,aes")))
#define AES_BLOCKS 1
#include "noise_kernel.h"
#undef LEVEL
#undef TARGET
#undef AES_BLOCKS
#define LEVEL avx2_vaes
#define TARGET __attribute__((target("avx2,fma,aes,vaes")))
#define AES_BLOCKS 2
#include "noise_kernel.h"
#undef LEVEL
#undef TARGET
#undef AES_BLOCKS
#define LEVEL avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,aes,vaes")))
#define AES_BLOCKS 4
#include "noise_kernel.h"
#undef LEVEL
#undef TARGET
#undef AES_BLOCKS

// Older compilers do not know the name: leaf 7 of cpuid, ECX, bit 9.
static bool vaes() {
    unsigned eax, ebx, ecx = 0, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ecx >> 9 & 1);
}

static int best_level() {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("aes");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 ? (vaes() ? (avx512 ? 3 : 2) : 1) : 0;
}

struct Level {
    decltype(&avx2::tiles) tiles;
    decltype(&avx2::words) words;
    decltype(&avx2::transform_tile) transform;
    decltype(&avx2::far_radius_of) far_radius;
};

static Level at(int level) {
    if (level == 3) return {avx512::tiles, avx512::words, avx512::transform_tile, avx512::far_radius_of};
    if (level == 2) return {avx2_vaes::tiles, avx2_vaes::words, avx2_vaes::transform_tile, avx2_vaes::far_radius_of};
    return {avx2::tiles, avx2::words, avx2::transform_tile, avx2::far_radius_of};
}
#else
static int best_level() { return 0; }
#endif

// 0: no kernel for this processor; 1: AVX2 and AES-NI; 2: AVX2 and VAES; 3: AVX-512 and VAES.
EXPORT int tacit_noise_level() {
    static const int level = best_level();
    return level;
}

// Draws 0..count of N(0, std^2) into out; key and counter (the address, the input of block 0) are 16 bytes each.
// `level` is at most tacit_noise_level().
EXPORT void tacit_noise(const uint8_t* key, const uint8_t* counter, float std, int64_t count, float* out,
                        int threads, int level) {
#if defined(__x86_64__)
    const auto tiles = at(level).tiles;
    const int64_t total = (count + 2 * PAIRS - 1) / (2 * PAIRS);
    const int64_t worth = total / TILES_PER_THREAD + 1, parts = worth < threads ? worth : threads;
#pragma omp parallel for num_threads(int(parts)) if (parts > 1)
    for (int64_t p = 0; p < parts; p++) tiles(key, counter, total * p / parts, total * (p + 1) / parts, count, std, out);
#endif
}

// For the self-test, and for tests: the words of `tiles` tiles from block 0 on; the draws of one tile's words, whose
// further digits come from key and counter; the radius of a u below 2^-31 by its digits.
EXPORT void tacit_noise_words(const uint8_t* key, const uint8_t* counter, int64_t tiles, void* out, int level) {
#if defined(__x86_64__)
    at(level).words(key, counter, tiles, out);
#endif
}

EXPORT void tacit_noise_transform(const uint32_t* words, const uint8_t* key, const uint8_t* counter, float std,
                                  float* out, int level) {
#if defined(__x86_64__)
    at(level).transform(words, key, counter, std, out);
#endif
}

EXPORT float tacit_noise_far_radius(const uint64_t* digits, int level) {
#if defined(__x86_64__)
    return at(level).far_radius(digits);
#else
    return 0.0f;
#endif
}
