#include "device.h"

#include "ggml-alloc.h"

#include <cstdlib>
#include <stdexcept>

namespace gpu_kernels {

namespace {

constexpr const char * SWITCHES[] = {
    "GGML_CUDA_FEW_ROWS",        "GGML_CUDA_BATCH_INVARIANT", "STRIX_F32_VEC_CHUNK_MAX", "STRIX_MOE_VEC_CHUNK",
    "STRIX_MOE_VEC_CHUNK_MAX_T", "STRIX_Q_VEC_CHUNK_MAX",     "STRIX_Q_VEC_CHUNK_ROWS",  "STRIX_CONCAT_T_MIN",
    "STRIX_ATTN_CELLS",
};

constexpr size_t MAX_TENSORS = 4096;

Context new_context() {
    Context ctx(ggml_init({ MAX_TENSORS*ggml_tensor_overhead() + ggml_graph_overhead_custom(MAX_TENSORS, false), nullptr, true }));
    if (!ctx) {
        throw std::runtime_error("no memory for a ggml context");
    }
    return ctx;
}

Buffer allocate(ggml_context * ctx, ggml_backend_t backend) {
    Buffer buffer(ggml_backend_alloc_ctx_tensors(ctx, backend));
    if (!buffer) {
        throw std::runtime_error("the device has no memory for the tensors of this case");
    }
    return buffer;
}

} // namespace

Device::Device(const std::string & name) : backend_(ggml_backend_init_by_name(name.c_str(), nullptr)) {
    if (!backend_) {
        std::string known;
        for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            known += std::string(" ") + ggml_backend_dev_name(ggml_backend_dev_get(i));
        }
        throw std::runtime_error("no device '" + name + "'; there are:" + known);
    }
    const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend_.get()));
    reload_ = (void (*)()) ggml_backend_reg_get_proc_address(reg, "lucebox_switches_reload");
}

std::string Device::description() const {
    return ggml_backend_dev_description(ggml_backend_get_device(backend_.get()));
}

void Device::apply(const Environment & environment) const {
    for (const char * name : SWITCHES) {
        unsetenv(name);
    }
    for (const auto & [name, value] : environment) {
        setenv(name.c_str(), value.c_str(), 1);
    }
    if (reload_ != nullptr) {
        reload_();
    }
}

CaseData make_case_data(const Case & one, int64_t n_rows) {
    CaseData data;
    data.n_rows   = n_rows;
    uint64_t seed = 1;
    for (const Operand & operand : one.weights) {
        data.weights.push_back(make_data(operand, 0, seed++));
    }
    for (const Operand & operand : one.inputs) {
        data.inputs.push_back(make_data(operand, n_rows, seed++));
    }
    return data;
}

Weights::Weights(const Device & device, const Case & one, const CaseData & data, size_t copies) : ctx_(new_context()) {
    for (size_t i = 0; i < copies; ++i) {
        tensors_.emplace_back();
        for (const Operand & operand : one.weights) {
            tensors_.back().push_back(new_tensor(ctx_.get(), operand, 0));
        }
    }
    if (one.weights.empty()) {
        return;
    }
    buffer_ = allocate(ctx_.get(), device.backend());
    ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (const auto & tensors : tensors_) {
        for (size_t i = 0; i < tensors.size(); ++i) {
            ggml_backend_tensor_set(tensors[i], data.weights[i].data(), 0, data.weights[i].size());
        }
    }
}

Graph::Graph(
        const Device & device, const Case & one, const CaseData & data, const Weights & weights, int64_t first, int64_t n_rows) :
    device_(device), ctx_(new_context()) {
    std::vector<ggml_tensor *> inputs;
    for (const Operand & operand : one.inputs) {
        inputs.push_back(new_tensor(ctx_.get(), operand, n_rows));
    }
    graph_ = ggml_new_graph_custom(ctx_.get(), MAX_TENSORS, false);
    for (size_t i = 0; i < weights.copies(); ++i) {
        outputs_.push_back(one.build(ctx_.get(), weights.of_copy(i), inputs, n_rows));
        ggml_build_forward_expand(graph_, outputs_.back());
    }
    buffer_ = allocate(ctx_.get(), device.backend());
    for (size_t i = 0; i < inputs.size(); ++i) {
        const size_t of_row = one.inputs[i].bytes_of_row();
        ggml_backend_tensor_set(inputs[i], data.inputs[i].data() + first*of_row, 0, n_rows*of_row);
    }
}

bool Graph::supported() const {
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        if (!ggml_backend_supports_op(device_.backend(), ggml_graph_node(graph_, i))) {
            return false;
        }
    }
    return true;
}

void Graph::compute() const {
    if (ggml_backend_graph_compute(device_.backend(), graph_) != GGML_STATUS_SUCCESS) {
        throw std::runtime_error("the device failed to compute a graph");
    }
}

Bytes Graph::output() const {
    Bytes bytes(ggml_nbytes(outputs_.front()));
    ggml_backend_tensor_get(outputs_.front(), bytes.data(), 0, bytes.size());
    return bytes;
}

} // namespace gpu_kernels
