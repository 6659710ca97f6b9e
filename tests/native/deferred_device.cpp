// A device for tests, loaded with ggml_backend_load: the CPU behind a stream that does nothing until it is waited for.
//
// A GPU reads the memory that an asynchronous call was given at some time between the call and the next wait. This one
// always reads at the wait, and copies that do not go through its stream at once, so that whoever fills in memory again
// too early, or reads too early, gets wrong values each time and not once in a thousand. It counts waits, copies and what
// the host sends. Its attention names cells, as that of the CPU.
#include "ggml-backend-impl.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "lucebox-attn-cells.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

int64_t n_waits    = 0;
int64_t n_copies   = 0;
int64_t n_launches = 0;
int64_t sent_bytes = 0;

struct stream {
    std::deque<std::function<void()>> queue;
    ggml_backend_t                    cpu;

    void finish() {
        while (!queue.empty()) {
            const auto work = std::move(queue.front());
            queue.pop_front();
            work();
        }
    }
};

std::vector<stream *> streams;

struct recorded {
    stream * on   = nullptr;
    bool     done = true;
};

stream & stream_of(ggml_backend_t backend) {
    return *(stream *) backend->context;
}

// ---- memory

const char * buft_name(ggml_backend_buffer_type_t) {
    return "Deferred";
}

void buffer_free(ggml_backend_buffer_t buffer) {
    for (stream * each : streams) {
        each->finish(); // as a device does before it gives memory back
    }
    std::free(buffer->context);
}

void * buffer_base(ggml_backend_buffer_t buffer) {
    return buffer->context;
}

void buffer_memset(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    n_waits++;
    std::memset((char *) tensor->data + offset, value, size);
}

void buffer_set(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    n_waits++;
    n_copies++;
    sent_bytes += (int64_t) size;
    std::memcpy((char *) tensor->data + offset, data, size);
}

void buffer_get(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    n_waits++;
    n_copies++;
    std::memcpy(data, (const char *) tensor->data + offset, size);
}

void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    std::memset(buffer->context, value, buffer->size);
}

ggml_backend_buffer_t buft_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_i iface = {};
    iface.free_buffer           = buffer_free;
    iface.get_base              = buffer_base;
    iface.memset_tensor         = buffer_memset;
    iface.set_tensor            = buffer_set;
    iface.get_tensor            = buffer_get;
    iface.clear                 = buffer_clear;
    void * memory = std::aligned_alloc(128, (size + 128) / 128 * 128);
    return memory ? ggml_backend_buffer_init(buft, iface, memory, size) : nullptr;
}

size_t buft_alignment(ggml_backend_buffer_type_t) {
    return 128;
}

bool buft_is_host(ggml_backend_buffer_type_t) {
    return false;
}

// ---- the stream

const char * backend_name(ggml_backend_t) {
    return "Deferred";
}

void backend_free(ggml_backend_t backend) {
    stream * own = &stream_of(backend);
    own->finish();
    for (auto it = streams.begin(); it != streams.end(); ++it) {
        if (*it == own) {
            streams.erase(it);
            break;
        }
    }
    ggml_backend_free(own->cpu);
    delete own;
    delete backend;
}

void set_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    n_copies++;
    sent_bytes += (int64_t) size;
    void * to = (char *) tensor->data + offset;
    stream_of(backend).queue.emplace_back([=] { std::memcpy(to, data, size); });
}

void get_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    n_copies++;
    const void * from = (const char *) tensor->data + offset;
    stream_of(backend).queue.emplace_back([=] { std::memcpy(data, from, size); });
}

void synchronize(ggml_backend_t backend) {
    n_waits++;
    stream_of(backend).finish();
}

// A graph as it is now: its owner may build another one in the same memory before this one runs.
struct snapshot {
    std::deque<ggml_tensor>                                tensors;
    std::unordered_map<const ggml_tensor *, ggml_tensor *> copies;
    std::vector<uint8_t>                                   memory;
    ggml_context *                                         ctx;
    ggml_cgraph *                                          graph;

    explicit snapshot(const ggml_cgraph * from) : memory(ggml_graph_overhead_custom((size_t) ggml_graph_n_nodes((ggml_cgraph *) from) + 1, false) + 1024) {
        const int n = ggml_graph_n_nodes((ggml_cgraph *) from);
        ctx         = ggml_init({ memory.size(), memory.data(), /*no_alloc=*/true });
        graph       = ggml_new_graph_custom(ctx, (size_t) n + 1, false);
        for (int i = 0; i < n; ++i) {
            ggml_graph_add_node(graph, copy(ggml_graph_node((ggml_cgraph *) from, i), true));
        }
    }

    ~snapshot() { ggml_free(ctx); }

    ggml_tensor * copy(const ggml_tensor * from, bool is_node) {
        ggml_tensor *& to = copies[from];
        if (to == nullptr) {
            tensors.push_back(*from);
            to = &tensors.back();
        }
        ggml_tensor * made = to; // the map may grow below
        if (is_node) {
            for (int j = 0; j < GGML_MAX_SRC; ++j) {
                made->src[j] = from->src[j] ? copy(from->src[j], false) : nullptr;
            }
        }
        return made;
    }
};

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    n_launches++;
    stream & own  = stream_of(backend);
    auto     kept = std::make_shared<snapshot>(graph);
    own.queue.emplace_back([kept, &own] { ggml_backend_graph_compute(own.cpu, kept->graph); });
    return GGML_STATUS_SUCCESS;
}

void event_record(ggml_backend_t backend, ggml_backend_event_t event) {
    recorded * mark = (recorded *) event->context;
    mark->on        = &stream_of(backend);
    mark->done      = false;
    mark->on->queue.emplace_back([=] { mark->done = true; });
}

void event_wait(ggml_backend_t, ggml_backend_event_t event) {
    const recorded * mark = (const recorded *) event->context;
    if (!mark->done) {
        mark->on->finish();
    }
}

// ---- the device

const char * device_name(ggml_backend_dev_t) {
    return "Deferred0";
}

void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *free = *total = (size_t) 4 << 30;
}

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

void device_props(ggml_backend_dev_t device, ggml_backend_dev_props * props) {
    props->name        = device_name(device);
    props->description = device_name(device);
    props->type        = device_type(device);
    device_memory(device, &props->memory_free, &props->memory_total);
    props->caps = {};
    props->caps.async       = true;
    props->caps.host_buffer = true;
    props->caps.events      = true;
}

ggml_backend_t device_init(ggml_backend_dev_t device, const char *) {
    static uint8_t guid[16] = "deferred device";

    auto * own = new stream;
    own->cpu   = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    auto set_n_threads = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(ggml_backend_get_device(own->cpu)), "ggml_backend_set_n_threads");
    if (set_n_threads) {
        set_n_threads(own->cpu, 1); // more would spin while others wait
    }
    streams.push_back(own);

    ggml_backend_i iface  = {};
    iface.get_name         = backend_name;
    iface.free             = backend_free;
    iface.set_tensor_async = set_async;
    iface.get_tensor_async = get_async;
    iface.synchronize      = synchronize;
    iface.graph_compute    = graph_compute;
    iface.event_record     = event_record;
    iface.event_wait       = event_wait;
    return new ggml_backend{ (ggml_guid_t) &guid, iface, device, own };
}

ggml_backend_buffer_type_t device_buft(ggml_backend_dev_t device) {
    static ggml_backend_buffer_type buft = { { buft_name, buft_alloc, nullptr, buft_alignment, nullptr, nullptr, nullptr, buft_is_host }, device, nullptr };
    return &buft;
}

ggml_backend_buffer_type_t device_host_buft(ggml_backend_dev_t) {
    return ggml_backend_dev_buffer_type(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
}

bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return op->op != GGML_OP_CUSTOM && ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
}

bool supports_buft(ggml_backend_dev_t device, ggml_backend_buffer_type_t buft) {
    return buft == device_buft(device);
}

ggml_backend_event_t event_new(ggml_backend_dev_t device) {
    return new ggml_backend_event{ device, new recorded };
}

void event_free(ggml_backend_dev_t, ggml_backend_event_t event) {
    event_wait(nullptr, event);
    delete (recorded *) event->context;
    delete event;
}

void event_synchronize(ggml_backend_dev_t, ggml_backend_event_t event) {
    n_waits++;
    event_wait(nullptr, event);
}

const char * reg_name(ggml_backend_reg_t) {
    return "Deferred";
}

size_t reg_device_count(ggml_backend_reg_t) {
    return 1;
}

ggml_backend_dev_t reg_device(ggml_backend_reg_t reg, size_t) {
    static ggml_backend_device device = {
        { device_name, device_name, device_memory, device_type, device_props, device_init, device_buft, device_host_buft, nullptr,
          supports_op, supports_buft, nullptr, event_new, event_free, event_synchronize },
        reg,
        nullptr,
    };
    return &device;
}

void * reg_proc_address(ggml_backend_reg_t, const char * name) {
    const ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    return std::strcmp(name, LUCEBOX_ATTN_CELLS_ROWS) == 0 ?
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), name) : nullptr;
}

} // namespace

extern "C" {

ggml_backend_reg_t ggml_backend_init() {
    static ggml_backend_reg reg = { GGML_BACKEND_API_VERSION, { reg_name, reg_device_count, reg_device, reg_proc_address }, nullptr };
    return &reg;
}

// Waits of the host, copies, launched graphs and bytes sent to the device so far, in the whole process.
void deferred_counts(int64_t counts[4]) {
    counts[0] = n_waits;
    counts[1] = n_copies;
    counts[2] = n_launches;
    counts[3] = sent_bytes;
}

// Adds 1, 10 and 100, an input that is filled in anew each time, to a zero on the device, and waits only then.
float deferred_sum_of_runs_without_a_wait() {
    ggml_backend_dev_t      device = reg_device(ggml_backend_init(), 0);
    const ggml_backend_t    backends[2] = { device_init(device, nullptr), ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr) };
    ggml_backend_sched_t    sched = ggml_backend_sched_new((ggml_backend_t *) backends, nullptr, 2, 64, /*parallel=*/false, /*op_offload=*/false);
    ggml_context *          kept  = ggml_init({ ggml_tensor_overhead(), nullptr, /*no_alloc=*/true });
    ggml_context *          ctx   = ggml_init({ 64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, /*no_alloc=*/true });
    ggml_tensor *           sum   = ggml_new_tensor_1d(kept, GGML_TYPE_F32, 1);
    ggml_backend_buffer_t   buffer = ggml_backend_alloc_ctx_tensors_from_buft(kept, device_buft(device));
    ggml_tensor *           input = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 1);
    ggml_cgraph *           graph = ggml_new_graph(ctx);
    ggml_set_input(input);
    ggml_build_forward_expand(graph, ggml_cpy(ctx, ggml_add(ctx, sum, input), sum));
    ggml_backend_buffer_clear(buffer, 0);

    float found = -1;
    if (ggml_backend_sched_alloc_graph(sched, graph)) {
        for (const float value : { 1.0f, 10.0f, 100.0f }) {
            ggml_backend_tensor_set(input, &value, 0, sizeof(value));
            ggml_backend_sched_graph_compute_async(sched, graph);
        }
        ggml_backend_sched_synchronize(sched);
        ggml_backend_tensor_get(sum, &found, 0, sizeof(found));
    }
    ggml_backend_sched_free(sched);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    ggml_free(kept);
    for (const ggml_backend_t backend : backends) {
        ggml_backend_free(backend);
    }
    return found;
}
}
