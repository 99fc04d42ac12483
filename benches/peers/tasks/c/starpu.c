/* A graph on StarPU: tasks and their dependencies are declared once and submitted again for every run. */
#include <starpu.h>

#include "graph.h"

static struct graph graph;
static struct starpu_task *tasks;

static void run_body(void *buffers[], void *id) {
    (void)buffers;
    body(&graph, (size_t)id);
}

static struct starpu_codelet codelet = {.cpu_funcs = {run_body}, .nbuffers = 0, .name = "task"};

static void declare(size_t id) {
    struct starpu_task *reads[graph.width];
    size_t from = graph.first[id], count = graph.first[id + 1] - from;
    starpu_task_init(&tasks[id]);
    tasks[id].cl = &codelet;
    tasks[id].cl_arg = (void *)id;
    for (size_t k = 0; k < count; k++) reads[k] = &tasks[graph.reads[from + k]];
    starpu_task_declare_deps_array(&tasks[id], count, reads);
}

static void run(void *context) {
    (void)context;
    for (size_t id = 0; id < graph.tasks; id++)
        if (starpu_task_submit(&tasks[id])) fail("StarPU takes no task", "");
    starpu_task_wait_for_all();
}

int main(int argc, char **argv) {
    graph = read_graph(argc, argv);
    struct starpu_conf conf;
    starpu_conf_init(&conf);
    conf.ncpus = graph.workers;
    conf.ncuda = conf.nopencl = 0;
    if (starpu_init(&conf)) fail("StarPU does not start", "");
    tasks = (struct starpu_task *)allocate(graph.tasks * sizeof *tasks);
    for (size_t id = 0; id < graph.tasks; id++) declare(id);
    measure("starpu", &graph, run, NULL);
    for (size_t id = 0; id < graph.tasks; id++) starpu_task_clean(&tasks[id]);
    starpu_shutdown();
    return 0;
}
