#pragma once

#include "cases.h"

#include <memory>
#include <vector>

namespace gpu_kernels {

struct BackendDelete {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};
struct ContextDelete {
    void operator()(ggml_context * ctx) const { ggml_free(ctx); }
};
struct BufferDelete {
    void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
};
using Backend = std::unique_ptr<ggml_backend, BackendDelete>;
using Context = std::unique_ptr<ggml_context, ContextDelete>;
using Buffer  = std::unique_ptr<ggml_backend_buffer, BufferDelete>;

// A back end and the switches of its kernels.
class Device {
  public:
    explicit Device(const std::string & name); // throws std::runtime_error if there is none of that name

    ggml_backend_t backend() const { return backend_.get(); }
    std::string    description() const;
    bool           has_switches() const { return reload_ != nullptr; }

    // Unsets every switch, sets these and lets the back end read them.
    void apply(const Environment & environment) const;

  private:
    Backend backend_;
    void (*reload_)() = nullptr;
};

// Data of a case: one set of weights, and inputs of as many rows as are ever asked for.
struct CaseData {
    std::vector<Bytes> weights;
    std::vector<Bytes> inputs;
    int64_t            n_rows;
};

CaseData make_case_data(const Case & one, int64_t n_rows);

// Weights on a device, `copies` times over.
class Weights {
  public:
    Weights(const Device & device, const Case & one, const CaseData & data, size_t copies);

    const std::vector<ggml_tensor *> & of_copy(size_t i) const { return tensors_[i]; }
    size_t copies() const { return tensors_.size(); }

  private:
    Context ctx_;
    Buffer  buffer_;
    std::vector<std::vector<ggml_tensor *>> tensors_;
};

// The graph of a case for rows [first, first + n_rows) of its data, once per set of weights.
class Graph {
  public:
    Graph(const Device & device, const Case & one, const CaseData & data, const Weights & weights, int64_t first, int64_t n_rows);

    bool  supported() const;
    void  compute() const;
    Bytes output() const; // of the first set of weights
    const ggml_tensor * result() const { return outputs_.front(); }

  private:
    const Device & device_;
    Context        ctx_;
    Buffer         buffer_;
    ggml_cgraph *  graph_ = nullptr;
    std::vector<ggml_tensor *> outputs_;
};

} // namespace gpu_kernels
