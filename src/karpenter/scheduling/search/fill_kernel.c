/* Fills nodes row by row, as `fill_rows` of `array_filling.py` does with arrays: the same operations in the same order, so the
 * same bytes. Compiled without contraction to fused operations and without fast mathematics. Plain C without Python's headers:
 * any C compiler builds it, and one library serves every version of Python. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    int64_t groups, columns, bins, signatures, cpu_column;
    const double *requests;        /* groups x columns */
    const double *capacities;      /* bins x columns */
    const double *resource_values; /* bins x columns */
    const double *prices;          /* bins */
    const double *surplus_prices;  /* bins */
    const double *baselines;       /* bins */
    const double *max_per_node;    /* groups */
    const uint8_t *admits;         /* bins x groups */
    const uint8_t *rejects;        /* bins x signatures */
    const int64_t *signature_of;   /* groups */
} Problem;

typedef struct {
    int64_t rows, steps, rows_per_left, plain_rows, squares;
    const int64_t *bin_types;  /* rows */
    const double *pod_values;  /* groups */
    const double *value_units; /* groups */
    const double *left;        /* rows / rows_per_left x groups */
    const double *noise;       /* rows x groups, uniform in [0, 1) */
    const double *weights;     /* rows x columns, uniform in [0, 1) */
    double noise_amount, weight_amount;
    const int64_t *first_group; /* rows, or NULL */
    const double *draws;        /* rows x groups, or NULL */
} Filling;

typedef struct {
    double *contents;   /* rows x groups, zeroed */
    double *values;     /* rows */
    int64_t *bin_types; /* rows */
    double *prices;     /* rows */
} Filled;

typedef struct {
    double key, rank;
    int64_t group;
} Candidate;

static int is_after(const Candidate *a, const Candidate *b) {
    return a->key != b->key ? a->key > b->key : a->group > b->group;
}

static void sift_down(Candidate *heap, int64_t count, int64_t at) {
    Candidate moved = heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && is_after(&heap[child + 1], &heap[child])) child++;
        if (!is_after(&heap[child], &moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Keeps the candidates with the lowest keys in front: a heap of the kept with the highest on top. */
static int64_t keep_lowest(Candidate *all, int64_t count, int64_t kept) {
    if (count <= kept) return count;
    for (int64_t at = kept / 2 - 1; at >= 0; at--) sift_down(all, kept, at);
    for (int64_t at = kept; at < count; at++) {
        if (is_after(&all[0], &all[at])) {
            all[0] = all[at];
            sift_down(all, kept, 0);
        }
    }
    return kept;
}

static int is_preferred(const Candidate *a, const Candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->group < b->group;
}

static void sink(Candidate *heap, int64_t count, int64_t at) {
    Candidate moved = heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && is_preferred(&heap[child + 1], &heap[child])) child++;
        if (!is_preferred(&heap[child], &moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* Whether every pod of these candidates requests more of something than is free. */
static int is_full(const double *free_amounts, const double *least, int64_t columns) {
    for (int64_t c = 0; c < columns; c++)
        if (free_amounts[c] < least[c]) return 1;
    return 0;
}

static double perturbed(double uniform, double amount) { return 1.0 + amount * (2.0 * uniform - 1.0); }

static void add(const Problem *p, const Filling *f, Filled *out, int64_t row, int64_t group, double number, double *free_amounts,
                double *total, uint8_t *present) {
    const double *needs = p->requests + group * p->columns;
    for (int64_t c = 0; c < p->columns; c++) {
        double taken = needs[c] * number;
        free_amounts[c] -= taken;
        total[c] += taken;
    }
    out->contents[row * p->groups + group] += number;
    out->values[row] += f->value_units[group] * number;
    if (number > 0) present[p->signature_of[group]] = 1;
}

/* As many pods of a group as there are and still fit. */
static void add_as_many(const Problem *p, const Filling *f, Filled *out, int64_t row, int64_t group, int64_t first,
                        double *free_amounts, double *total, uint8_t *present) {
    const double *needs = p->requests + group * p->columns;
    double number = f->left[row / f->rows_per_left * p->groups + group], fitting = INFINITY;
    if (p->max_per_node[group] < number) number = p->max_per_node[group];
    if (group == first) number -= 1.0;
    for (int64_t c = 0; c < p->columns; c++) {
        if (needs[c] > 0.0) {
            double times = free_amounts[c] / needs[c];
            if (times < fitting) fitting = times;
        }
    }
    fitting = floor(fitting);
    if (fitting < number) number = fitting;
    if (number > 0.0) add(p, f, out, row, group, number, free_amounts, total, present);
}

static void choose_bin(const Problem *p, Filled *out, int64_t row, const double *total, const uint8_t *present) {
    double best = INFINITY;
    int64_t chosen = 0;
    for (int64_t bin = 0; bin < p->bins; bin++) {
        const double *capacity = p->capacities + bin * p->columns;
        int holds = 1;
        for (int64_t c = 0; c < p->columns; c++) holds &= capacity[c] >= total[c];
        if (!holds) continue;
        const uint8_t *rejects = p->rejects + bin * p->signatures;
        for (int64_t s = 0; s < p->signatures; s++) holds &= !(present[s] & rejects[s]);
        if (!holds) continue;
        double price = p->prices[bin];
        if (p->surplus_prices[bin] != 0.0) {
            double used = total[p->cpu_column] > p->baselines[bin] ? total[p->cpu_column] : p->baselines[bin];
            double unused = capacity[p->cpu_column] - used;
            price -= p->surplus_prices[bin] * (unused > 0.0 ? unused : 0.0);
        }
        if (price < best) {
            best = price;
            chosen = bin;
        }
    }
    out->bin_types[row] = chosen;
    out->prices[row] = best;
}

/* The groups of which the row may take pods, and the least that a pod of any of them requests. */
static int64_t candidates_of_row(const Problem *p, const Filling *f, int64_t row, double *share, double *least,
                                 Candidate *all) {
    int64_t bin = f->bin_types[row], count = 0;
    const uint8_t *admits = p->admits + bin * p->groups;
    const double *left = f->left + row / f->rows_per_left * p->groups;
    int plain = row < f->plain_rows;
    for (int64_t c = 0; c < p->columns; c++) {
        double weight = plain ? 1.0 : perturbed(f->weights[row * p->columns + c], f->weight_amount);
        share[c] = p->resource_values[bin * p->columns + c] * weight;
        least[c] = INFINITY;
    }
    for (int64_t g = 0; g < p->groups; g++) {
        if (!admits[g] || left[g] <= 0 || p->max_per_node[g] <= 0) continue;
        double size = 1e-12;
        const double *needs = p->requests + g * p->columns;
        for (int64_t c = 0; c < p->columns; c++) {
            size += share[c] * needs[c];
            if (needs[c] < least[c]) least[c] = needs[c];
        }
        double noise = plain ? 1.0 : perturbed(f->noise[row * p->groups + g], f->noise_amount);
        double preference = f->pod_values[g] / size * noise;
        if (f->squares) preference *= f->pod_values[g];
        Candidate *new = &all[count++];
        new->group = g;
        new->rank = -preference;
        new->key = new->rank;
        if (f->draws) new->key = -sqrt(preference > 0.0 ? preference : 0.0) * f->draws[row * p->groups + g];
    }
    return count;
}

static void fill_row(const Problem *p, const Filling *f, Filled *out, int64_t row, double *scratch, uint8_t *present,
                     Candidate *all) {
    double *free_amounts = scratch, *total = scratch + p->columns, *share = scratch + 2 * p->columns,
           *least = scratch + 3 * p->columns;
    const double *left = f->left + row / f->rows_per_left * p->groups;
    int64_t bin = f->bin_types[row], first = f->first_group ? f->first_group[row] : -1;
    for (int64_t c = 0; c < p->columns; c++) free_amounts[c] = p->capacities[bin * p->columns + c], total[c] = 0.0;
    for (int64_t s = 0; s < p->signatures; s++) present[s] = 0;
    int begins = first < 0 || (p->admits[bin * p->groups + first] && left[first] > 0 && p->max_per_node[first] > 0);
    if (begins) {
        if (first >= 0) add(p, f, out, row, first, 1.0, free_amounts, total, present);
        int64_t count = keep_lowest(all, candidates_of_row(p, f, row, share, least, all), f->steps);
        for (int64_t at = count / 2 - 1; at >= 0; at--) sink(all, count, at);
        while (count > 0 && !is_full(free_amounts, least, p->columns)) {
            add_as_many(p, f, out, row, all[0].group, first, free_amounts, total, present);
            all[0] = all[--count];
            if (count > 0) sink(all, count, 0);
        }
    }
    choose_bin(p, out, row, total, present);
}

/* Fills all rows. Returns zero, or one where there is no memory. */
int karpenter_fill(const Problem *problem, const Filling *filling, Filled *filled) {
    double *scratch = malloc((size_t)(4 * problem->columns + 1) * sizeof(double));
    uint8_t *present = malloc((size_t)problem->signatures + 1);
    Candidate *all = malloc((size_t)(problem->groups + 1) * sizeof(Candidate));
    int failed = !scratch || !present || !all;
    for (int64_t row = 0; !failed && row < filling->rows; row++)
        fill_row(problem, filling, filled, row, scratch, present, all);
    free(scratch);
    free(present);
    free(all);
    return failed;
}
