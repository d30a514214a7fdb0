// The gradient of an embedding by pairs of a record and a number that it looks up; `_pairs` in
// clipping/per_example/embedding.py has the same in Python.
//
// Letters: n records; T positions of a record; d numbers of a row; U pairs that occur.

#include <cstdint>
#include <cstring>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// The numbers of one record, each with a place: a hash table of up to T of them, with open addressing.
class Places {
    struct Slot {
        int64_t number, place;
    };
    int bits = 1;
    std::vector<Slot> slots;
    std::vector<int64_t> taken;

   public:
    explicit Places(int64_t T) {
        while ((int64_t(1) << bits) < 2 * T) bits++;
        slots.assign(int64_t(1) << bits, {0, -1});
        taken.reserve(T);
    }

    void clear() {
        for (int64_t slot : taken) slots[slot].place = -1;
        taken.clear();
    }

    // The place of a number that has come before, else `next`, which is its place from now on.
    int64_t of(int64_t number, int64_t next) {
        int64_t slot = int64_t((uint64_t(number) * 0x9E3779B97F4A7C15u) >> (64 - bits));
        while (slots[slot].place >= 0 && slots[slot].number != number) slot = (slot + 1) & (slots.size() - 1);
        if (slots[slot].place < 0) {
            slots[slot] = {number, next};
            taken.push_back(slot);
        }
        return slots[slot].place;
    }
};

// record (U), number (U) and sums (U, d) of the rows g (n, T, d) of each pair, in the order in which pairs come; the
// arrays have room for n T pairs.  g_record and g_position: how far apart rows of g lie.  Returns U.
EXPORT int64_t tacit_pairs(int64_t n, int64_t T, int64_t d, const int64_t* numbers, const float* g, int64_t g_record,
                           int64_t g_position, int64_t* record, int64_t* number, float* sums) {
    Places places(T);
    int64_t pairs = 0;

    for (int64_t i = 0; i < n; i++) {
        places.clear();
        for (int64_t t = 0; t < T; t++) {
            const int64_t value = numbers[i * T + t], pair = places.of(value, pairs);
            const float* row = g + i * g_record + t * g_position;
            if (pair == pairs) {
                record[pairs] = i;
                number[pairs] = value;
                std::memcpy(sums + pairs * d, row, size_t(d) * sizeof(float));
                pairs++;
            } else {
                float* sum = sums + pair * d;
                for (int64_t j = 0; j < d; j++) sum[j] += row[j];
            }
        }
    }
    return pairs;
}

// squares (n): the sum over the numbers of a record of c^2, where the number is at c of its positions.
EXPORT void tacit_repeats(int64_t n, int64_t T, const int64_t* numbers, float* squares) {
    Places places(T);
    std::vector<int64_t> counts(T);

    for (int64_t i = 0; i < n; i++) {
        places.clear();
        int64_t known = 0, total = 0;
        for (int64_t t = 0; t < T; t++) {
            const int64_t place = places.of(numbers[i * T + t], known);
            if (place == known) counts[known++] = 0;
            total += 2 * counts[place]++ + 1;
        }
        squares[i] = float(total);
    }
}

// Adds each of the rows (R, d) to T rows of a table (V, d), those of its numbers (R, T).
EXPORT void tacit_add_rows(int64_t R, int64_t T, int64_t d, const int64_t* numbers, const float* rows, float* table) {
    for (int64_t r = 0; r < R; r++) {
        const float* row = rows + r * d;
        for (int64_t t = 0; t < T; t++) {
            float* sum = table + numbers[r * T + t] * d;
            for (int64_t j = 0; j < d; j++) sum[j] += row[j];
        }
    }
}
