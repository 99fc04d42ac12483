/* What the programs in C and C++ share: the options, the graph, the body of a task, and the clock.
 *
 * The patterns and the body are those of crates/bench/src/tasks, whose files say what they mean; the digest in
 * the answer shows that both describe the same graph. Usable from C11 and C++17.
 */
#ifndef GRAPH_H
#define GRAPH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct graph {
    const char *pattern;
    size_t width, steps, workers, repeat;
    uint64_t grain;
    size_t tasks;
    /* Task `id` reads the tasks reads[first[id] .. first[id + 1]]. */
    size_t *first, *reads;
    uint64_t digest;
    /* Whether bodies check their order, and the flags they check. */
    int checking;
    unsigned char *done;
};

static void fail(const char *what, const char *value) {
    fprintf(stderr, "%s%s\n", what, value);
    exit(1);
}

static const char *option(int argc, char **argv, const char *name) {
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name)) return argv[i + 1];
    fail("missing option ", name);
    return NULL;
}

static uint64_t number(int argc, char **argv, const char *name, uint64_t least) {
    const char *text = option(argc, argv, name);
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (end == text || *end || value < least) fail("bad value of option ", name);
    return value;
}

static int coin(size_t step, size_t i, size_t j) {
    uint64_t bits = ((uint64_t)step << 40) ^ ((uint64_t)i << 20) ^ (uint64_t)j;
    bits = (bits ^ (bits >> 31)) * 0x9e3779b97f4a7c15u;
    bits = (bits ^ (bits >> 29)) * 0xd6e8feb86659fd93u;
    return bits >> 63;
}

/* Whether task `i` of row `step`, which is not the first, reads task `j` of the row before it. */
static int reads(const char *pattern, size_t width, size_t step, size_t i, size_t j) {
    size_t distance = i > j ? i - j : j - i, levels = 1;
    while (((size_t)1 << levels) < width) levels++;
    size_t round = (step - 1) / levels, level = (step - 1) % levels;
    size_t growing = (size_t)1 << level, shrinking = (size_t)1 << (levels - 1 - level);
    if (!strcmp(pattern, "trivial")) return 0;
    if (!strcmp(pattern, "no_comm")) return i == j;
    if (!strcmp(pattern, "stencil_1d")) return distance <= 1;
    if (!strcmp(pattern, "fft")) return i == j || distance == growing;
    if (!strcmp(pattern, "tree") && round % 2 == 0) return i == j || (j < growing && i == j + growing);
    if (!strcmp(pattern, "tree")) return i == j || (i < shrinking && j == i + shrinking);
    if (!strcmp(pattern, "random_nearest")) return i == j || (distance <= 2 && coin(step, i, j));
    if (!strcmp(pattern, "all_to_all")) return 1;
    if (strcmp(pattern, "spread")) fail("unknown pattern ", pattern);
    for (size_t third = 0; third < 3; third++)
        if (j == (i + step + third * width / 3) % width) return 1;
    return 0;
}

static void *allocate(size_t bytes) {
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory) fail("out of memory", "");
    return memory;
}

static void digest(struct graph *graph, size_t value) {
    graph->digest = (graph->digest ^ value) * 0x00000100000001b3u;
}

static void add_task(struct graph *graph, size_t id) {
    size_t width = graph->width, step = id / width, end = graph->first[id];
    for (size_t j = 0; step > 0 && j < width; j++) {
        if (!reads(graph->pattern, width, step, id % width, j)) continue;
        graph->reads[end++] = (step - 1) * width + j;
        digest(graph, j + 1);
    }
    digest(graph, 0);
    graph->first[id + 1] = end;
}

static struct graph read_graph(int argc, char **argv) {
    struct graph graph;
    graph.pattern = option(argc, argv, "--pattern");
    graph.width = number(argc, argv, "--width", 1);
    graph.steps = number(argc, argv, "--steps", 1);
    graph.workers = number(argc, argv, "--workers", 1);
    graph.grain = number(argc, argv, "--grain", 0);
    graph.repeat = number(argc, argv, "--repeat", 1);
    graph.tasks = graph.width * graph.steps;
    graph.first = (size_t *)allocate((graph.tasks + 1) * sizeof(size_t));
    graph.reads = (size_t *)allocate(graph.tasks * graph.width * sizeof(size_t));
    graph.digest = 0xcbf29ce484222325u;
    graph.checking = 1;
    graph.done = (unsigned char *)allocate(graph.tasks);
    for (size_t id = 0; id < graph.tasks; id++) add_task(&graph, id);
    return graph;
}

/* Where the chain of this thread has come to. */
static __thread double chain = 2.0;

/* Keeps the core busy for `grain` iterations of one chain, in which each needs the one before; see busy.rs. */
static inline void busy(uint64_t grain) {
    if (grain == 0) return;
    double x = chain;
    for (uint64_t i = 0; i < grain; i++) x = x * 0.999999 + 0.000001;
    __asm__ volatile("" : "+x"(x));
    chain = x;
}

/* Relaxed: the flags are to show whether the system orders tasks, so they must not do so themselves. */
static void check_reads(const struct graph *graph, size_t id) {
    for (size_t k = graph->first[id]; k < graph->first[id + 1]; k++)
        if (!__atomic_load_n(&graph->done[graph->reads[k]], __ATOMIC_RELAXED))
            fail("a task started before those it reads were done", "");
}

/* What every task does. */
static inline void body(const struct graph *graph, size_t id) {
    if (graph->checking) check_reads(graph, id);
    busy(graph->grain);
    if (graph->checking && __atomic_exchange_n(&graph->done[id], 1, __ATOMIC_RELAXED)) fail("a task ran twice", "");
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints the median time of `run(context)`, after two runs with checks and one without. */
static void measure(const char *system, struct graph *graph, void (*run)(void *), void *context) {
    for (int round = 0; round < 2; round++) {
        run(context);
        for (size_t id = 0; id < graph->tasks; id++)
            if (!graph->done[id]) fail("a task did not run", "");
        memset(graph->done, 0, graph->tasks);
    }
    graph->checking = 0;
    run(context);
    double *seconds = (double *)allocate(graph->repeat * sizeof(double));
    for (size_t round = 0; round < graph->repeat; round++) {
        double start = now();
        run(context);
        seconds[round] = now() - start;
    }
    qsort(seconds, graph->repeat, sizeof(double), ascending);
    printf("{\"system\":\"%s\",\"seconds\":%.9e,\"graph\":\"%016llx\"}\n", system, seconds[(graph->repeat - 1) / 2],
           (unsigned long long)graph->digest);
}

#endif
