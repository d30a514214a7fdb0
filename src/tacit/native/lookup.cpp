// The gradient of an embedding by pairs of a record and a number that it looks up; `_pairs` in
// clipping/per_example/embedding.py has the same in Python.
//
// Letters: n records; T positions of a record; d numbers of a row; U pairs that occur.

#include <cstdint>
#include <cstring>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// record (U), number (U) and sums (U, d) of the rows g (n, T, d) of each pair, in the order in which pairs come; the
// arrays have room for n T pairs.  g_record and g_position: how far apart rows of g lie.  Returns U.
EXPORT int64_t tacit_pairs(int64_t n, int64_t T, int64_t d, const int64_t* numbers, const float* g, int64_t g_record,
                           int64_t g_position, int64_t* record, int64_t* number, float* sums) {
    int bits = 1;
    while ((int64_t(1) << bits) < 2 * T) bits++;
    const int64_t slots = int64_t(1) << bits;
    std::vector<int64_t> pair_at(slots, -1);  // open addressing; those of the last record are taken out again
    std::vector<int64_t> taken;
    int64_t pairs = 0;

    for (int64_t i = 0; i < n; i++) {
        for (int64_t slot : taken) pair_at[slot] = -1;
        taken.clear();
        for (int64_t t = 0; t < T; t++) {
            const int64_t value = numbers[i * T + t];
            int64_t slot = int64_t((uint64_t(value) * 0x9E3779B97F4A7C15u) >> (64 - bits));
            while (pair_at[slot] >= 0 && number[pair_at[slot]] != value) slot = (slot + 1) & (slots - 1);

            const float* row = g + i * g_record + t * g_position;
            if (pair_at[slot] < 0) {
                pair_at[slot] = pairs;
                taken.push_back(slot);
                record[pairs] = i;
                number[pairs] = value;
                std::memcpy(sums + pairs * d, row, size_t(d) * sizeof(float));
                pairs++;
            } else {
                float* sum = sums + pair_at[slot] * d;
                for (int64_t j = 0; j < d; j++) sum[j] += row[j];
            }
        }
    }
    return pairs;
}
