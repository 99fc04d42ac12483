// A graph on Taskflow: built once, run again and again by one executor.
#include <taskflow/taskflow.hpp>

#include "graph.h"

struct Flow {
    tf::Executor executor;
    tf::Taskflow taskflow;
};

static void run(void *context) {
    Flow *flow = static_cast<Flow *>(context);
    flow->executor.run(flow->taskflow).wait();
}

int main(int argc, char **argv) {
    graph graph = read_graph(argc, argv);
    Flow flow{tf::Executor(graph.workers), tf::Taskflow()};
    std::vector<tf::Task> tasks;
    for (size_t id = 0; id < graph.tasks; id++) {
        tasks.push_back(flow.taskflow.emplace([&graph, id] { body(&graph, id); }));
        for (size_t k = graph.first[id]; k < graph.first[id + 1]; k++) tasks[graph.reads[k]].precede(tasks[id]);
    }
    measure("taskflow", &graph, run, &flow);
}
