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
constexpr int TILES_PER_THREAD = 8;  // fewer are drawn before another thread has woken up

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
    decltype(&avx2::transform) transform;
};

static Level at(int level) {
    if (level == 3) return {avx512::tiles, avx512::words, avx512::transform};
    if (level == 2) return {avx2_vaes::tiles, avx2_vaes::words, avx2_vaes::transform};
    return {avx2::tiles, avx2::words, avx2::transform};
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

// The words of `tiles` tiles from block 0 on, and the draws of one tile's words: for the self-test, and for tests.
EXPORT void tacit_noise_words(const uint8_t* key, const uint8_t* counter, int64_t tiles, void* out, int level) {
#if defined(__x86_64__)
    at(level).words(key, counter, tiles, out);
#endif
}

EXPORT void tacit_noise_transform(const uint32_t* words, float std, float* out, int level) {
#if defined(__x86_64__)
    at(level).transform(words, reinterpret_cast<const int32_t*>(words + 2 * PAIRS), PAIRS, std, out, out + PAIRS);
#endif
}
