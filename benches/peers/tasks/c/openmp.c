/* A graph as OpenMP tasks with `depend`: one thread creates them, all threads of the region run them. */
#include "graph.h"

/* The place that stands for the result of a task. */
static char *result;

static void run(void *context) {
    const struct graph *graph = (const struct graph *)context;
    const size_t *first = graph->first, *list = graph->reads;
    for (size_t id = 0; id < graph->tasks; id++) {
        /* Where nothing is read, nothing is said about results either: it would only cost. */
        if (first[graph->tasks] == 0) {
#pragma omp task firstprivate(graph, id)
            body(graph, id);
        } else {
#pragma omp task firstprivate(graph, id) depend(out : result[id]) \
    depend(iterator(size_t k = first[id] : first[id + 1]), in : result[list[k]])
            body(graph, id);
        }
    }
#pragma omp taskwait
}

int main(int argc, char **argv) {
    struct graph graph = read_graph(argc, argv);
    result = (char *)allocate(graph.tasks);
#pragma omp parallel num_threads(graph.workers)
#pragma omp single
    measure("openmp", &graph, run, &graph);
    return 0;
}
