// The noise kernel for one instruction set.  noise.cpp includes this file once for each, with TARGET (the
// attribute that names the set), LEVEL (its namespace) and AES_BLOCKS (how many AES blocks a register holds)
// defined.  The loops are plain C++ and are made into vector code by the compiler: the same operations in the
// same order everywhere, so that the numbers do not depend on the processor.

namespace LEVEL {

#define INLINE static inline __attribute__((always_inline)) TARGET

// --- AES-128 in counter mode (FIPS 197; NIST SP 800-38A, section 6.5) ------------------------------------

// AES_BLOCKS blocks side by side.
#if AES_BLOCKS == 4
using Blocks = __m512i;
INLINE Blocks each(__m128i block) { return _mm512_broadcast_i32x4(block); }
INLINE Blocks load(const void* from) { return _mm512_loadu_si512(from); }
INLINE void store(void* to, Blocks x) { _mm512_storeu_si512(to, x); }
INLINE Blocks add(Blocks x, Blocks y) { return _mm512_add_epi32(x, y); }
INLINE Blocks bytes(Blocks x, Blocks order) { return _mm512_shuffle_epi8(x, order); }
INLINE Blocks aes_round(Blocks x, Blocks key) { return _mm512_aesenc_epi128(x, key); }
INLINE Blocks last_aes_round(Blocks x, Blocks key) { return _mm512_aesenclast_epi128(x, key); }
#elif AES_BLOCKS == 2
using Blocks = __m256i;
INLINE Blocks each(__m128i block) { return _mm256_broadcastsi128_si256(block); }
INLINE Blocks load(const void* from) { return _mm256_loadu_si256(static_cast<const Blocks*>(from)); }
INLINE void store(void* to, Blocks x) { _mm256_storeu_si256(static_cast<Blocks*>(to), x); }
INLINE Blocks add(Blocks x, Blocks y) { return _mm256_add_epi32(x, y); }
INLINE Blocks bytes(Blocks x, Blocks order) { return _mm256_shuffle_epi8(x, order); }
INLINE Blocks aes_round(Blocks x, Blocks key) { return _mm256_aesenc_epi128(x, key); }
INLINE Blocks last_aes_round(Blocks x, Blocks key) { return _mm256_aesenclast_epi128(x, key); }
#else
using Blocks = __m128i;
INLINE Blocks each(__m128i block) { return block; }
INLINE Blocks load(const void* from) { return _mm_loadu_si128(static_cast<const Blocks*>(from)); }
INLINE void store(void* to, Blocks x) { _mm_storeu_si128(static_cast<Blocks*>(to), x); }
INLINE Blocks add(Blocks x, Blocks y) { return _mm_add_epi32(x, y); }
INLINE Blocks bytes(Blocks x, Blocks order) { return _mm_shuffle_epi8(x, order); }
INLINE Blocks aes_round(Blocks x, Blocks key) { return _mm_aesenc_si128(x, key); }
INLINE Blocks last_aes_round(Blocks x, Blocks key) { return _mm_aesenclast_si128(x, key); }
#endif

struct Cipher {
    Blocks round[11];
    Blocks counter;  // of blocks 0, 1, ...; their last 32 bits, a big-endian number, are turned into one of ours
};

template <int CONSTANT>
INLINE __m128i next_round_key(__m128i key) {
    __m128i word = _mm_shuffle_epi32(_mm_aeskeygenassist_si128(key, CONSTANT), 0xff);
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, word);
}

// Turns the last four bytes of each block.
INLINE Blocks turned(Blocks x) {
    return bytes(x, each(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 14, 13, 12)));
}

// `number` as the last 32 bits of each block.
INLINE Blocks last(uint32_t number) { return each(_mm_setr_epi32(0, 0, 0, int(number))); }

INLINE Cipher make_cipher(const uint8_t* key, const uint8_t* counter) {
    Cipher c;
    __m128i k[11];
    k[0] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(key));
    k[1] = next_round_key<0x01>(k[0]);
    k[2] = next_round_key<0x02>(k[1]);
    k[3] = next_round_key<0x04>(k[2]);
    k[4] = next_round_key<0x08>(k[3]);
    k[5] = next_round_key<0x10>(k[4]);
    k[6] = next_round_key<0x20>(k[5]);
    k[7] = next_round_key<0x40>(k[6]);
    k[8] = next_round_key<0x80>(k[7]);
    k[9] = next_round_key<0x1b>(k[8]);
    k[10] = next_round_key<0x36>(k[9]);
    for (int r = 0; r < 11; r++) c.round[r] = each(k[r]);
    alignas(64) const uint32_t number[16] = {0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3};
    const __m128i start = _mm_loadu_si128(reinterpret_cast<const __m128i*>(counter));
    c.counter = add(turned(each(start)), load(number));
    return c;
}

// Eight registers at a time hide the latency of each.
constexpr int BLOCKS_AT_ONCE = 8 * AES_BLOCKS;
INLINE void encrypt(const Cipher& c, uint32_t first, uint8_t* out) {
    Blocks x[8];
    for (int i = 0; i < 8; i++) x[i] = turned(add(c.counter, last(first + AES_BLOCKS * i))) ^ c.round[0];
    for (int r = 1; r < 10; r++)
        for (int i = 0; i < 8; i++) x[i] = aes_round(x[i], c.round[r]);
    for (int i = 0; i < 8; i++) store(out + 16 * AES_BLOCKS * i, last_aes_round(x[i], c.round[10]));
}

// At least `blocks` blocks of key stream from block `first` on; a multiple of BLOCKS_AT_ONCE is written.
INLINE void key_stream(const Cipher& c, uint32_t first, int blocks, uint8_t* out) {
    for (int b = 0; b < blocks; b += BLOCKS_AT_ONCE) encrypt(c, first + b, out + 16 * b);
}

TARGET static void words(const uint8_t* key, const uint8_t* counter, int64_t tiles, void* out) {
    const Cipher c = make_cipher(key, counter);
    key_stream(c, 0, int(tiles) * BLOCKS, static_cast<uint8_t*>(out));
}

// --- Box and Muller's transform -----------------------------------------------------------------------

INLINE float as_float(int32_t bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
INLINE int32_t as_int(float x) { int32_t bits; __builtin_memcpy(&bits, &x, 4); return bits; }

// sqrt(-2 ln u) for u = (2^32 high + low + 1/2) 2^-63, where high is the last 31 bits of its word.  With v = u up to
// sqrt(1/2), and 1 - u beyond, both a small u and a small 1 - u keep their leading zeros, so that both tails of the
// radius are exact: either ln u = ln v, by exponent and mantissa, or ln u = ln(1 - v), which needs neither.
INLINE float radius(uint32_t high, uint32_t low) {
    const uint32_t h = high & 0x7fffffff;
    const int32_t beyond = -int32_t(int32_t(h) > 0x5a827999);  // all ones beyond
    const float upper = float(int32_t((h ^ uint32_t(beyond)) & 0x7fffffff));
    const float v = (float(low ^ uint32_t(beyond)) + 0.5f) * 0x1p-63f + upper * 0x1p-31f;
    const int32_t bits = as_int(v) - 0x3f3504f3;  // of sqrt(1/2): mantissas from there to its double
    const float m = as_float((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
    const float f = beyond ? -v : m;
    const float e = float((bits >> 23) & ~beyond);
    // ln(1 + f), the polynomial of Cephes (logf).
    const float z = f * f, z2 = z * z;
    const float p01 = -2.4999993993e-1f * f + 3.3333331174e-1f;
    const float p23 = -1.6668057665e-1f * f + 2.0000714765e-1f;
    const float p45 = -1.2420140846e-1f * f + 1.4249322787e-1f;
    const float p67 = -1.1514610310e-1f * f + 1.1676998740e-1f;
    const float p = (7.0376836292e-2f * z2 + (p67 * z + p45)) * z2 + (p23 * z + p01);
    const float log1p = f - (0.5f * z - f * z * p);
    return __builtin_sqrtf(-2.0f * (e * 0.69314718f + log1p));
}

// The radius of a u whose first 31 bits are zeros: `more(d)` gives its digit d, 64 bits after the first 63.  With
// u = v 2^-zeros and v in [1/2, 1), the radius is sqrt(-2 ln v + zeros 2 ln 2).
template <class More>
TARGET static float far_radius(uint64_t first, const More& more) {
    unsigned __int128 value = first;
    int bits = 63;
    for (int d = 1; d <= MOST_DIGITS && !(value >> 64); d++) {
        value = value << 64 | more(d);
        bits += 64;
    }
    for (int half = 1; !(value >> 127); half = 0) {
        value = value << 1 | half;
        bits++;
    }
    const float v = radius(uint32_t(value >> 97), uint32_t(value >> 65));
    return __builtin_sqrtf(v * v + float(bits - 128) * float(2 * M_LN2));
}

// Cosine and sine of 2 pi (angle + 1/2) / 2^32: the nearest quarter turn in integers, the rest by polynomials of
// Cephes (sinf, cosf) on [-pi/4, pi/4].
INLINE void turn(int32_t angle, float& cosine, float& sine) {
    const int32_t quarter = int32_t((uint32_t(angle) + 0x20000000u) >> 30);
    const float rest = float(int32_t(uint32_t(angle) - (uint32_t(quarter) << 30))) + 0.5f;
    const float t = rest * float(M_PI_2 * 0x1p-30);
    const float z = t * t;
    float s = -1.9515295891e-4f;
    s = s * z + 8.3321608736e-3f;
    s = s * z - 1.6666654611e-1f;
    s = s * (z * t) + t;
    float c = 2.443315711809948e-5f;
    c = c * z - 1.388731625493765e-3f;
    c = c * z + 4.166664568298827e-2f;
    c = c * (z * z) + (1.0f - 0.5f * z);
    const bool swap = quarter & 1;
    const int32_t minus_sine = (quarter & 2) << 30, minus_cosine = ((quarter + 1) & 2) << 30;
    cosine = as_float(as_int(swap ? s : c) ^ minus_cosine);
    sine = as_float(as_int(swap ? c : s) ^ minus_sine);
}

// The digits of a tile's radii have the tile's address, but for its first byte, which is the number of the digit, and
// the number of the block.
struct Address {
    const uint8_t* key;
    const uint8_t* counter;
    uint32_t tile;

    TARGET uint64_t digit(int d, int pair) const {
        alignas(64) uint64_t words[2 * BLOCKS_AT_ONCE];
        uint8_t start[16];
        __builtin_memcpy(start, counter, 16);
        start[0] = uint8_t(d);
        __builtin_memset(start + 12, 0, 4);
        encrypt(make_cipher(key, start), tile * (PAIRS / 2) + pair / 2, reinterpret_cast<uint8_t*>(words));
        return words[pair % 2];
    }
};

// The first `pairs` cosines and sines of a tile from the words of its radii (low, high, low, ...) and angles.
TARGET static void transform(const uint32_t* words, const int32_t* angle, int pairs, float std, const Address& address,
                             float* __restrict cosines, float* __restrict sines) {
    uint32_t least = 0x7fffffff;
    for (int i = 0; i < pairs; i++) {
        const uint32_t high = words[2 * i + 1] & 0x7fffffff;
        least = high < least ? high : least;
        const float r = std * radius(words[2 * i + 1], words[2 * i]);
        float cosine, sine;
        turn(angle[i], cosine, sine);
        cosines[i] = r * cosine;
        sines[i] = r * sine;
    }
    if (least) return;
    for (int i = 0; i < pairs; i++) {
        if (words[2 * i + 1] & 0x7fffffff) continue;
        const float r = std * far_radius(words[2 * i], [&](int d) { return address.digit(d, i); });
        float cosine, sine;
        turn(angle[i], cosine, sine);
        cosines[i] = r * cosine;
        sines[i] = r * sine;
    }
}

TARGET static void tile(const Cipher& c, uint32_t first, int pairs, float std, const Address& address, float* cosines,
                        float* sines) {
    alignas(64) uint32_t words[2 * PAIRS];
    alignas(64) int32_t angle[PAIRS];
    key_stream(c, first, (pairs + 1) / 2, reinterpret_cast<uint8_t*>(words));
    key_stream(c, first + PAIRS / 2, (pairs + 3) / 4, reinterpret_cast<uint8_t*>(angle));
    transform(words, angle, pairs, std, address, cosines, sines);
}

// Tiles begin..end of a buffer of `count` draws; out points at the whole buffer.
TARGET static void tiles(const uint8_t* key, const uint8_t* counter, int64_t begin, int64_t end, int64_t count,
                         float std, float* out) {
    const Cipher c = make_cipher(key, counter);
    const uint32_t before = number_of_block(counter) / BLOCKS;
    for (int64_t t = begin; t < end; t++) {
        const int64_t rest = count - t * 2 * PAIRS;
        float* to = out + t * 2 * PAIRS;
        const Address address = {key, counter, before + uint32_t(t)};
        if (rest >= 2 * PAIRS) {
            tile(c, uint32_t(t) * BLOCKS, PAIRS, std, address, to, to + PAIRS);
        } else {
            alignas(64) float draws[2 * PAIRS];
            const int pairs = int(rest < PAIRS ? rest : PAIRS);
            tile(c, uint32_t(t) * BLOCKS, pairs, std, address, draws, draws + PAIRS);
            __builtin_memcpy(to, draws, size_t(rest) * sizeof(float));
        }
    }
}

TARGET static float far_radius_of(const uint64_t* digits) {
    return far_radius(digits[0], [digits](int d) { return digits[d]; });
}

TARGET static void transform_tile(const uint32_t* words, const uint8_t* key, const uint8_t* counter, float std,
                                  float* out) {
    const Address address = {key, counter, number_of_block(counter) / BLOCKS};
    transform(words, reinterpret_cast<const int32_t*>(words + 2 * PAIRS), PAIRS, std, address, out, out + PAIRS);
}

#undef INLINE
}  // namespace LEVEL
