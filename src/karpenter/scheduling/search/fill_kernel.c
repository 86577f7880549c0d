/* Fills nodes row by row, as `fill_rows` of `array_filling.py` does with arrays: the same operations in the same order, so the
 * same bytes. Compiled without contraction to fused operations and without fast mathematics. Plain C without Python's headers:
 * any C compiler builds it, and one library serves every version of Python. */

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef KARPENTER_SOURCE
#define KARPENTER_SOURCE 0u
#endif

/* The CRC-32 of this file when it was compiled: a library of another version has other structures. */
const uint32_t karpenter_source = KARPENTER_SOURCE;

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
    const int64_t *first_group; /* rows, or NULL; where there are some, groups are drawn */
    uint64_t state_high, state_low, increment_high, increment_low; /* of the generator, before the first number */
    double noise_amount, weight_amount;
} Filling;

typedef struct {
    int64_t *counts;    /* rows: how many groups are in it */
    int64_t *groups;    /* the groups in all rows, row after row, ascending in each */
    double *numbers;    /* how many pods of each */
    double *values;     /* rows */
    int64_t *bin_types; /* rows */
    double *prices;     /* rows */
} Filled;

typedef struct {
    int64_t runs, groups;
    const int64_t *starts;  /* rows + 1: where the groups of a row begin */
    const int64_t *inside;  /* the groups in all rows */
    const double *numbers;  /* how many pods of each */
    const int64_t *ranked;  /* rows that each run takes, run after run */
    const int64_t *until;   /* runs: where the rows of a run end */
    const double *most;     /* runs: how many nodes it takes at most */
    double *waiting;        /* runs x groups: pods that are left, changed */
    double *times;          /* for each ranked row how many nodes like it were taken */
} Taking;

#ifndef __SIZEOF_INT128__
#error "random numbers need integers of 128 bits; without this library arrays do the work"
#endif

typedef unsigned __int128 Wide;

/* What so many steps of the generator make of a state: factor * state + sum. */
typedef struct {
    Wide factor, sum;
} Steps;

/* The random numbers of one row: those of a PCG64 generator (XSL-RR), as numpy has it, from these states on. Any of them is
 * computed by itself, by the number of steps to it: most groups of a row need none. */
typedef struct {
    const Steps *steps; /* for each number of steps up to a row of numbers */
    Wide groups, columns, draws;
} RowNumbers;

static const Steps ONE_STEP_FACTOR = {((Wide)2549297995355413924u << 64) | 4865540595714422341u, 0};

static Steps one_step(const Filling *f) {
    Steps one = ONE_STEP_FACTOR;
    one.sum = ((Wide)f->increment_high << 64) | f->increment_low;
    return one;
}

static Steps then(Steps first, Steps second) {
    Steps both = {first.factor * second.factor, first.sum * second.factor + second.sum};
    return both;
}

static Wide state_after(Steps steps, Wide state) { return state * steps.factor + steps.sum; }

/* The state of the generator after so many numbers. */
static Wide state_passing(const Filling *f, uint64_t passed) {
    Steps all = {1, 0}, some = one_step(f);
    for (; passed; passed >>= 1, some = then(some, some))
        if (passed & 1) all = then(all, some);
    return state_after(all, ((Wide)f->state_high << 64) | f->state_low);
}

/* The number at a place of a row, in [0, 1). */
static double number_at(const RowNumbers *numbers, Wide start, int64_t place) {
    Wide state = state_after(numbers->steps[place + 1], start);
    uint64_t mixed = (uint64_t)(state >> 64) ^ (uint64_t)state, turn = (uint64_t)(state >> 122);
    return (double)(((mixed >> turn) | (mixed << (-turn & 63))) >> 11) * (1.0 / 9007199254740992.0);
}

static void go_to_next_row(const Problem *p, RowNumbers *numbers) {
    numbers->groups = state_after(numbers->steps[p->groups], numbers->groups);
    numbers->columns = state_after(numbers->steps[p->columns], numbers->columns);
    numbers->draws = state_after(numbers->steps[p->groups], numbers->draws);
}

/* The node of a row while it is filled. `entries` are its groups in the order they came. */
typedef struct {
    double *free_amounts, *total, *least, *shares;
    uint8_t *present;
    int64_t *counting, *active, active_count, count;
    int64_t *groups;
    double *numbers;
} Node;

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

static void add(const Problem *p, const Filling *f, Node *node, double *value, int64_t group, double number) {
    const double *needs = p->requests + group * p->columns;
    for (int64_t c = 0; c < p->columns; c++) {
        double taken = needs[c] * number;
        node->free_amounts[c] -= taken;
        node->total[c] += taken;
    }
    *value += f->value_units[group] * number;
    node->present[p->signature_of[group]] = 1;
    int64_t at = node->count > 0 && node->groups[0] == group ? 0 : node->count; /* only the first group can come again */
    if (at == node->count) {
        node->groups[at] = group;
        node->numbers[node->count++] = 0.0;
    }
    node->numbers[at] += number;
}

/* As many pods of a group as there are and still fit. */
static void add_as_many(const Problem *p, const Filling *f, Node *node, double *value, int64_t row, int64_t group,
                        int64_t first) {
    const double *needs = p->requests + group * p->columns;
    double number = f->left[row / f->rows_per_left * p->groups + group], fitting = INFINITY;
    if (p->max_per_node[group] < number) number = p->max_per_node[group];
    if (group == first) number -= 1.0;
    for (int64_t c = 0; c < p->columns; c++) {
        if (needs[c] > 0.0) {
            double times = node->free_amounts[c] / needs[c];
            if (times < fitting) fitting = times;
        }
    }
    fitting = floor(fitting);
    if (fitting < number) number = fitting;
    if (number > 0.0) add(p, f, node, value, group, number);
}

static double price_of_bin(const Problem *p, const Node *node, int64_t bin) {
    if (p->surplus_prices[bin] == 0.0) return p->prices[bin];
    double cpu = node->total[p->cpu_column], used = cpu > p->baselines[bin] ? cpu : p->baselines[bin];
    double unused = p->capacities[bin * p->columns + p->cpu_column] - used;
    return p->prices[bin] - p->surplus_prices[bin] * (unused > 0.0 ? unused : 0.0);
}

static int holds(const Problem *p, const Node *node, int64_t bin) {
    const double *capacity = p->capacities + bin * p->columns;
    const uint8_t *rejects = p->rejects + bin * p->signatures;
    for (int64_t c = 0; c < p->columns; c++)
        if (capacity[c] < node->total[c]) return 0;
    for (int64_t s = 0; s < p->signatures; s++)
        if (node->present[s] & rejects[s]) return 0;
    return 1;
}

static void choose_bin(const Problem *p, const Node *node, int64_t *bin_type, double *bin_price) {
    double best = INFINITY;
    int64_t chosen = 0;
    for (int64_t bin = 0; bin < p->bins; bin++) {
        double price = price_of_bin(p, node, bin);
        if (price < best && holds(p, node, bin)) {
            best = price;
            chosen = bin;
        }
    }
    *bin_type = chosen;
    *bin_price = best;
}

/* The groups of which pods are left and a node may take any, for all rows that share a line of `left`. */
static int64_t active_groups(const Problem *p, const double *left, int64_t *active) {
    int64_t count = 0;
    for (int64_t g = 0; g < p->groups; g++)
        if (left[g] > 0 && p->max_per_node[g] > 0) active[count++] = g;
    return count;
}

static int64_t shares_of_row(
    const Problem *p, const Filling *f, int64_t row, const RowNumbers *numbers, double *shares, int64_t *counting) {
    int64_t count = 0;
    for (int64_t c = 0; c < p->columns; c++) {
        double weight = row < f->plain_rows ? 1.0 : perturbed(number_at(numbers, numbers->columns, c), f->weight_amount);
        double share = p->resource_values[f->bin_types[row] * p->columns + c] * weight;
        if (share == 0.0) continue;
        shares[count] = share;
        counting[count++] = c;
    }
    return count;
}

/* The groups of which the row may take pods, and how much it prefers each. */
static int64_t candidates_of_row(
    const Problem *p, const Filling *f, int64_t row, const RowNumbers *numbers, const Node *node, Candidate *all) {
    int64_t count = 0, counted = shares_of_row(p, f, row, numbers, node->shares, node->counting);
    const uint8_t *admits = p->admits + f->bin_types[row] * p->groups;
    int are_drawn = f->first_group && node->active_count > f->steps; /* else all of them are tried */
    for (int64_t at = 0; at < node->active_count; at++) {
        int64_t g = node->active[at];
        if (!admits[g]) continue;
        double size = 1e-12;
        for (int64_t c = 0; c < counted; c++) size += node->shares[c] * p->requests[g * p->columns + node->counting[c]];
        double preference = f->pod_values[g] / size;
        if (row >= f->plain_rows) preference *= perturbed(number_at(numbers, numbers->groups, g), f->noise_amount);
        if (f->squares) preference *= f->pod_values[g];
        Candidate *new = &all[count++];
        new->group = g;
        new->rank = -preference;
        new->key = -preference;
        if (are_drawn) new->key = -sqrt(preference > 0.0 ? preference : 0.0) * number_at(numbers, numbers->draws, g);
    }
    return count;
}

static void least_requests(const Problem *p, const Candidate *all, int64_t count, double *least) {
    for (int64_t c = 0; c < p->columns; c++) least[c] = INFINITY;
    for (int64_t at = 0; at < count; at++) {
        const double *needs = p->requests + all[at].group * p->columns;
        for (int64_t c = 0; c < p->columns; c++)
            if (needs[c] < least[c]) least[c] = needs[c];
    }
}

static void sort_by_group(Node *node) {
    for (int64_t at = 1; at < node->count; at++) {
        int64_t group = node->groups[at], to = at;
        double number = node->numbers[at];
        for (; to > 0 && node->groups[to - 1] > group; to--) {
            node->groups[to] = node->groups[to - 1];
            node->numbers[to] = node->numbers[to - 1];
        }
        node->groups[to] = group;
        node->numbers[to] = number;
    }
}

static void fill_row(
    const Problem *p, const Filling *f, Filled *out, int64_t row, const RowNumbers *numbers, Node *node, Candidate *all) {
    const double *left = f->left + row / f->rows_per_left * p->groups;
    int64_t bin = f->bin_types[row], first = f->first_group ? f->first_group[row] : -1;
    double value = 0.0;
    for (int64_t c = 0; c < p->columns; c++) node->free_amounts[c] = p->capacities[bin * p->columns + c], node->total[c] = 0.0;
    for (int64_t s = 0; s < p->signatures; s++) node->present[s] = 0;
    node->count = 0;
    if (first < 0 || (p->admits[bin * p->groups + first] && left[first] > 0 && p->max_per_node[first] > 0)) {
        if (first >= 0) add(p, f, node, &value, first, 1.0);
        int64_t count = keep_lowest(all, candidates_of_row(p, f, row, numbers, node, all), f->steps);
        least_requests(p, all, count, node->least);
        for (int64_t at = count / 2 - 1; at >= 0; at--) sink(all, count, at);
        while (count > 0 && !is_full(node->free_amounts, node->least, p->columns)) {
            add_as_many(p, f, node, &value, row, all[0].group, first);
            all[0] = all[--count];
            if (count > 0) sink(all, count, 0);
        }
    }
    sort_by_group(node);
    out->counts[row] = node->count;
    out->values[row] = value;
    choose_bin(p, node, &out->bin_types[row], &out->prices[row]);
}

/* Rows are filled in chunks of so many. Two threads take one after the other; each keeps what is in its rows by itself. */
enum { ROWS_PER_CHUNK = 32 };

/* Where the entries of a chunk are: how many there are, and in which thread's arrays they begin at which place. */
typedef struct {
    int64_t begin, count;
    int is_of_helper;
} Chunk;

typedef struct {
    const Problem *problem;
    const Filling *filling;
    Filled *filled;
    const Steps *steps;
    Chunk *chunks;
    int64_t chunk_count;
    _Atomic int64_t next_chunk;
} Job;

/* What one thread needs to fill rows; `numbers` and `groups` are where it writes entries. */
typedef struct {
    double *scratch, *numbers;
    uint8_t *present;
    int64_t *places, *groups;
    Candidate *all;
} Workplace;

static int has_memory(Workplace *own, const Problem *p) {
    own->scratch = malloc((size_t)(4 * p->columns + 1) * sizeof(double));
    own->present = malloc((size_t)p->signatures + 1);
    own->places = malloc((size_t)(p->columns + p->groups + 1) * sizeof(int64_t));
    own->all = malloc((size_t)(p->groups + 1) * sizeof(Candidate));
    return own->scratch && own->present && own->places && own->all;
}

static void free_workplace(Workplace *own) {
    free(own->scratch);
    free(own->present);
    free(own->places);
    free(own->all);
}

static void fill_chunk(Job *job, Node *node, Candidate *all, int64_t begin, int64_t end) {
    const Problem *p = job->problem;
    const Filling *f = job->filling;
    int64_t rows = f->rows, groups = p->groups, columns = p->columns;
    RowNumbers numbers = {.steps = job->steps,
                          .groups = state_passing(f, (uint64_t)(begin * groups)),
                          .columns = state_passing(f, (uint64_t)(rows * groups + begin * columns)),
                          .draws = state_passing(f, (uint64_t)(rows * (groups + columns) + begin * groups))};
    for (int64_t row = begin; row < end; row++) {
        if (row == begin || row % f->rows_per_left == 0)
            node->active_count = active_groups(p, f->left + row / f->rows_per_left * groups, node->active);
        fill_row(p, f, job->filled, row, &numbers, node, all);
        node->groups += node->count;
        node->numbers += node->count;
        go_to_next_row(p, &numbers);
    }
}

/* Fills chunks as long as there are any. */
static void fill_chunks(Job *job, const Workplace *own, int is_helper) {
    int64_t columns = job->problem->columns, at;
    Node node = {.free_amounts = own->scratch, .total = own->scratch + columns, .least = own->scratch + 2 * columns,
                 .shares = own->scratch + 3 * columns, .present = own->present, .counting = own->places,
                 .active = own->places + columns, .groups = own->groups, .numbers = own->numbers};
    while ((at = atomic_fetch_add(&job->next_chunk, 1)) < job->chunk_count) {
        int64_t begin = at * ROWS_PER_CHUNK, end = begin + ROWS_PER_CHUNK, before = node.groups - own->groups;
        fill_chunk(job, &node, own->all, begin, end < job->filling->rows ? end : job->filling->rows);
        job->chunks[at] = (Chunk){before, node.groups - own->groups - before, is_helper};
    }
}

/* The second thread. It begins only if the first is still at work then: a busy machine may start it too late. */
typedef struct {
    _Atomic int is_claimed;
    Job *job;
    Workplace own;
} Helper;

static void free_helper(Helper *helper) {
    free_workplace(&helper->own);
    free(helper->own.groups);
    free(helper->own.numbers);
    free(helper);
}

static Helper *new_helper(Job *job) {
    size_t entries = (size_t)(job->filling->rows * (job->filling->steps + 1));
    Helper *helper = calloc(1, sizeof(Helper));
    if (!helper) return NULL;
    helper->job = job;
    helper->own.groups = malloc(entries * sizeof(int64_t));
    helper->own.numbers = malloc(entries * sizeof(double));
    if (has_memory(&helper->own, job->problem) && helper->own.groups && helper->own.numbers) return helper;
    free_helper(helper);
    return NULL;
}

static void *help(void *given) {
    Helper *helper = given;
    if (atomic_exchange(&helper->is_claimed, 1))
        free_helper(helper); /* too late: the call that made it has returned */
    else
        fill_chunks(helper->job, &helper->own, 1);
    return NULL;
}

/* Puts the entries of all chunks in the order of rows. Those of the first thread only move up, so the last come first. */
static void join_chunks(const Job *job, const Helper *helper) {
    int64_t end = 0;
    for (int64_t at = 0; at < job->chunk_count; at++) end += job->chunks[at].count;
    for (int64_t at = job->chunk_count - 1; at >= 0; at--) {
        Chunk chunk = job->chunks[at];
        int64_t *groups = chunk.is_of_helper ? helper->own.groups : job->filled->groups;
        double *numbers = chunk.is_of_helper ? helper->own.numbers : job->filled->numbers;
        end -= chunk.count;
        memmove(job->filled->groups + end, groups + chunk.begin, (size_t)chunk.count * sizeof(int64_t));
        memmove(job->filled->numbers + end, numbers + chunk.begin, (size_t)chunk.count * sizeof(double));
    }
}

static void fill_with_helper(Job *job, const Workplace *own) {
    pthread_t thread;
    Helper *helper = new_helper(job);
    if (helper && pthread_create(&thread, NULL, help, helper)) {
        free_helper(helper);
        helper = NULL;
    }
    fill_chunks(job, own, 0);
    if (!helper) return;
    if (atomic_exchange(&helper->is_claimed, 1)) {
        pthread_join(thread, NULL);
        join_chunks(job, helper);
        free_helper(helper);
    } else {
        pthread_detach(thread);
    }
}

/* Fills all rows; what is in them has room for one group more than steps in each. Two threads do it if `threads` is two.
 * Returns zero, or one without memory. */
int karpenter_fill(const Problem *problem, const Filling *filling, Filled *filled, int threads) {
    int64_t longest = problem->groups > problem->columns ? problem->groups : problem->columns;
    int64_t chunk_count = (filling->rows + ROWS_PER_CHUNK - 1) / ROWS_PER_CHUNK;
    Steps *steps = malloc((size_t)(longest + 1) * sizeof(Steps));
    Chunk *chunks = malloc((size_t)(chunk_count + 1) * sizeof(Chunk));
    Workplace own = {.groups = filled->groups, .numbers = filled->numbers};
    int failed = !has_memory(&own, problem) || !steps || !chunks;
    if (!failed) {
        Job job = {problem, filling, filled, steps, chunks, chunk_count, 0};
        steps[0] = (Steps){1, 0};
        for (int64_t at = 0; at < longest; at++) steps[at + 1] = then(steps[at], one_step(filling));
        if (threads > 1 && chunk_count > 1)
            fill_with_helper(&job, &own);
        else
            fill_chunks(&job, &own, 0);
    }
    free_workplace(&own);
    free(steps);
    free(chunks);
    return failed;
}

/* Each run takes its rows in order, as many nodes like it as pods are left for. */
void karpenter_take(const Taking *taking) {
    int64_t at = 0;
    for (int64_t run = 0; run < taking->runs; run++) {
        double *waiting = taking->waiting + run * taking->groups, most = taking->most[run];
        for (; at < taking->until[run]; at++) {
            int64_t row = taking->ranked[at], begin = taking->starts[row], end = taking->starts[row + 1];
            double times = begin < end ? most : 0.0;
            for (int64_t entry = begin; entry < end && times > 0.0; entry++) {
                double possible = floor(waiting[taking->inside[entry]] / taking->numbers[entry]);
                if (possible < times) times = possible;
            }
            taking->times[at] = times;
            most -= times;
            for (int64_t entry = begin; entry < end && times > 0.0; entry++)
                waiting[taking->inside[entry]] -= taking->numbers[entry] * times;
        }
    }
}
