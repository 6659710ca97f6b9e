#include "mtp_layouts.h"

#include "llama-model-loader.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace lucebox {

namespace {

const char * const NORM = "nextn.hc_head_norm";
const char * const DOWN = "nextn.hc_head_down";
const char * const UP   = "nextn.hc_head_up";

// Block index of a weight, or -1.
int block_of(const std::string & name) {
    int block = -1;
    return sscanf(name.c_str(), "blk.%d.", &block) == 1 ? block : -1;
}

// The loader's weights, changed by name. A name without its last part (".weight", ".scale") is called a stem.
class weight_table {
  public:
    weight_table(llama_model_loader & loader, uint32_t n_trunk) :
        loader(loader), prefix("blk." + std::to_string(n_trunk) + ".") {}

    std::string in_block(const char * stem) const { return prefix + stem; }

    bool has(const std::string & stem) const { return loader.get_weight((stem + ".weight").c_str()) != nullptr; }

    void rename(const std::string & from, const std::string & to) {
        for (const std::string & name : names_below(from + ".")) {
            auto entry  = loader.weights_map.extract(name);
            entry.key() = to + name.substr(from.size());
            ggml_set_name(entry.mapped().tensor, entry.key().c_str());
            loader.weights_map.insert(std::move(entry));
        }
    }

    void drop(const std::string & stem) {
        for (const std::string & name : names_below(stem + ".")) {
            loader.weights_map.erase(name);
        }
    }

    void rename_block(int from) { rename("blk." + std::to_string(from), prefix.substr(0, prefix.size() - 1)); }

    std::set<int> blocks() const {
        std::set<int> found;
        for (const auto & entry : loader.weights_map) {
            found.insert(block_of(entry.first));
        }
        found.erase(-1);
        return found;
    }

    bool any_nextn() const {
        for (const auto & entry : loader.weights_map) {
            if (entry.first.find(".nextn.") != std::string::npos) {
                return true;
            }
        }
        return false;
    }

    // Adds a weight whose bytes lie at the start of a file of its own.
    void add(const std::string & name, const llama_model_loader::llama_tensor_weight & like, int64_t n_per_row,
             std::unique_ptr<llama_file> file) {
        ggml_init_params params = { ggml_tensor_overhead(), nullptr, /*.no_alloc =*/true };
        ggml_context *   ctx    = loader.contexts.emplace_back(ggml_init(params)).get();
        auto             weight = like;
        weight.tensor           = ggml_new_tensor_2d(ctx, like.tensor->type, n_per_row, like.tensor->ne[1]);
        weight.idx              = (uint16_t) loader.files.size();
        weight.offs             = 0;
        ggml_set_name(weight.tensor, name.c_str());
        loader.files.push_back(std::move(file));
        loader.weights_map.emplace(name, weight);
    }

    std::vector<uint8_t> read(const llama_model_loader::llama_tensor_weight & weight) const {
        std::vector<uint8_t> bytes(ggml_nbytes(weight.tensor));
        const auto &         file = loader.files.at(weight.idx);
        file->seek(weight.offs, SEEK_SET);
        file->read_raw(bytes.data(), bytes.size());
        return bytes;
    }

  private:
    std::vector<std::string> names_below(const std::string & start) const {
        std::vector<std::string> names;
        for (const auto & entry : loader.weights_map) {
            if (entry.first.compare(0, start.size(), start) == 0) {
                names.push_back(entry.first);
            }
        }
        return names;
    }

    llama_model_loader & loader;
    const std::string    prefix;
};

// A file that is gone when it is closed.
std::unique_ptr<llama_file> write_temporary(const std::vector<uint8_t> & bytes) {
    const char * dir  = std::getenv("TMPDIR");
    std::string  path = std::string(dir != nullptr && dir[0] != '\0' ? dir : "/tmp") + "/lucebox-XXXXXX";
    const int    fd   = mkstemp(path.data());
    if (fd < 0) {
        throw std::runtime_error(format("cannot create the temporary file %s: %s", path.c_str(), strerror(errno)));
    }
    std::unique_ptr<llama_file> file;
    std::string                 problem;
    for (size_t done = 0; done < bytes.size() && problem.empty();) {
        const ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
        if (n > 0) {
            done += (size_t) n;
        } else if (n == 0 || errno != EINTR) {
            problem = n == 0 ? "nothing was written" : strerror(errno);
        }
    }
    close(fd);
    try {
        if (problem.empty()) {
            file = std::make_unique<llama_file>(path.c_str(), "rb");
        }
    } catch (const std::exception & e) {
        problem = e.what();
    }
    unlink(path.c_str());
    if (!problem.empty()) {
        throw std::runtime_error(format("cannot write %zu bytes to the temporary file %s: %s", bytes.size(),
                                        path.c_str(), problem.c_str()));
    }
    return file;
}

// The first complete set of three counts. What is incomplete keeps its names and is refused by the loader.
void adopt_mixer(weight_table & table, bool head_only) {
    const std::string norm = table.in_block(NORM), down = table.in_block(DOWN), up = table.in_block(UP);
    if (table.has(norm) || table.has(down) || table.has(up)) {
        return;
    }
    const std::string short_norm = table.in_block("nextn.hc_norm"), short_down = table.in_block("nextn.hc_down"),
                      short_up = table.in_block("nextn.hc_up");
    if (table.has(short_norm) && table.has(short_down) && table.has(short_up)) {
        table.rename(short_norm, norm);
        table.rename(short_down, down);
        table.rename(short_up, up);
        return;
    }
    // in a model with a trunk these names are the trunk's, and nothing tells whose the weights are
    const std::string head_norm = table.in_block("nextn.shared_head_norm");
    const std::string any_norm  = table.has(head_norm) ? head_norm : "output_hc_norm";
    if (head_only && table.has(any_norm) && table.has("output_hc_down") && table.has("output_hc_up")) {
        table.rename(any_norm, norm);
        table.rename("output_hc_down", down);
        table.rename("output_hc_up", up);
        table.drop("output_hc_norm");
    }
}

void adopt_projection(weight_table & table, const llama_model_loader & loader) {
    const std::string joined = table.in_block("nextn.eh_proj");
    const std::string halves[] = { table.in_block("nextn.fc_embd"), table.in_block("nextn.fc_hidden") };
    if (table.has(joined) || !table.has(halves[0]) || !table.has(halves[1])) {
        return;
    }
    const auto &        embd   = loader.require_weight((halves[0] + ".weight").c_str());
    const auto &        hidden = loader.require_weight((halves[1] + ".weight").c_str());
    const ggml_tensor * a      = embd.tensor;
    const ggml_tensor * b      = hidden.tensor;
    if (a->type != b->type || !ggml_are_same_shape(a, b) || ggml_n_dims(a) > 2) {
        throw std::runtime_error(format("the halves of the MTP projection do not fit together: %s is %s %s, %s is %s %s",
                                        a->name, ggml_type_name(a->type), llama_format_tensor_shape(a).c_str(), b->name,
                                        ggml_type_name(b->type), llama_format_tensor_shape(b).c_str()));
    }
    // a row is the embedding's half, then the hidden state's
    const std::vector<uint8_t> left = table.read(embd), right = table.read(hidden);
    const size_t               n_row = ggml_row_size(a->type, a->ne[0]);
    std::vector<uint8_t>       bytes;
    bytes.reserve(left.size() + right.size());
    for (size_t row = 0; row < left.size(); row += n_row) {
        bytes.insert(bytes.end(), left.begin() + (ptrdiff_t) row, left.begin() + (ptrdiff_t) (row + n_row));
        bytes.insert(bytes.end(), right.begin() + (ptrdiff_t) row, right.begin() + (ptrdiff_t) (row + n_row));
    }
    table.add(joined + ".weight", embd, 2 * a->ne[0], write_temporary(bytes));
    table.drop(halves[0]);
    table.drop(halves[1]);
}

// The block's own tables take the place of those that the file has besides.
void adopt_tables(weight_table & table) {
    const std::pair<std::string, std::string> pairs[] = {
        { table.in_block("nextn.shared_head_head"), "output"     },
        { table.in_block("nextn.embed_tokens"),     "token_embd" },
    };
    for (const auto & [own, standard] : pairs) {
        if (table.has(own)) {
            table.drop(standard);
            table.rename(own, standard);
        }
    }
}

// The graph writes logits to these places without looking: an id outside the vocabulary would end the process.
void require_sane_ids(const weight_table & table, const llama_model_loader & loader, int64_t n_vocab) {
    const auto * weight = loader.get_weight("d2t");
    if (weight == nullptr) {
        return;
    }
    const ggml_tensor * list = weight->tensor;
    if (list->type != GGML_TYPE_I64 || ggml_n_dims(list) != 1) {
        throw std::runtime_error(format("d2t, the list of draft ids, is %s %s; one dimension of i64 is needed",
                                        ggml_type_name(list->type), llama_format_tensor_shape(list).c_str()));
    }
    const std::vector<uint8_t> bytes = table.read(*weight);
    std::vector<bool>          seen((size_t) n_vocab);
    for (int64_t i = 0; i < list->ne[0]; ++i) {
        int64_t id;
        memcpy(&id, bytes.data() + (size_t) i * sizeof(id), sizeof(id));
        if (id < 0 || id >= n_vocab || seen[(size_t) id]) {
            throw std::runtime_error(format("entry %lld of d2t, the list of draft ids, is %lld; each must be in 0..%lld and "
                                            "in the list once",
                                            (long long) i, (long long) id, (long long) n_vocab - 1));
        }
        seen[(size_t) id] = true;
    }
}

} // namespace

namespace {
thread_local bool own_head_left_out = false;
}

without_own_head::without_own_head(bool active) : before(own_head_left_out) {
    own_head_left_out = active;
}

without_own_head::~without_own_head() {
    own_head_left_out = before;
}

void adopt_mtp_layout(llama_model_loader & loader, uint32_t n_trunk, int64_t n_vocab) {
    if (loader.files.empty()) {
        return; // a model made up from metadata has no weights to rename
    }
    weight_table  table(loader, n_trunk);
    std::set<int> blocks = table.blocks();
    if (blocks.size() == 1 && blocks.count((int) n_trunk) == 0 && table.any_nextn()) {
        table.rename_block(*blocks.begin());
        blocks = { (int) n_trunk };
    }
    if (blocks.count((int) n_trunk) == 0) {
        return;
    }
    if (table.has(table.in_block("attn_qkv"))) {
        throw std::runtime_error(format("%s.weight: the graph of the MTP block reads attn_q, attn_k and attn_v",
                                        table.in_block("attn_qkv").c_str()));
    }
    const bool head_only = *blocks.begin() == (int) n_trunk;
    adopt_mixer(table, head_only);
    adopt_projection(table, loader);
    if (head_only) {
        adopt_tables(table);
        require_sane_ids(table, loader, n_vocab);
        // a scale that goes with it would be missed by the rows that take its place
        if (own_head_left_out && loader.get_weight("output.scale") == nullptr) {
            table.drop("output");
        }
    }
    loader.n_tensors = (int) loader.weights_map.size();
}

} // namespace lucebox
