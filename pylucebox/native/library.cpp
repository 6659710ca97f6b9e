// Version, last error, log, back ends, and the other functions that need no model.
#include "build_identity.h"
#include "internal.h"
#include "text_limits.h"

#include "ggml-backend.h"
#include "json-schema-to-grammar.h"
#include "json.h"
#include "log.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace lucebox {

namespace {

thread_local std::string last_error;

struct log_target {
    lucebox_log_callback callback  = nullptr;
    void *               user_data = nullptr;
};

std::mutex log_mutex;
log_target log_sink;

// ggml continues a line with a record of its own; the level is that of the line's start
thread_local std::string    pending_line;
thread_local ggml_log_level pending_level = GGML_LOG_LEVEL_NONE;

int32_t level_number(ggml_log_level level) {
    switch (level) {
        case GGML_LOG_LEVEL_ERROR: return 4;
        case GGML_LOG_LEVEL_WARN:  return 3;
        case GGML_LOG_LEVEL_DEBUG: return 1;
        default:                   return 2;
    }
}

void emit_line(ggml_log_level level, const std::string & line) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        log_capture::add(line);
    }

    log_target target;
    {
        std::lock_guard<std::mutex> lock(log_mutex);
        target = log_sink;
    }
    const int32_t number = level_number(level);
    if (target.callback != nullptr) {
        target.callback(number, line.c_str(), target.user_data);
    } else if (number >= 3) {
        std::fprintf(stderr, "%s\n", line.c_str());
    }
}

void on_ggml_log(ggml_log_level level, const char * text, void * /*user_data*/) {
    if (level != GGML_LOG_LEVEL_CONT) {
        pending_level = level;
    }
    pending_line += text;
    size_t end;
    while ((end = pending_line.find('\n')) != std::string::npos) {
        const std::string line = pending_line.substr(0, end);
        pending_line.erase(0, end + 1);
        if (!line.empty()) {
            emit_line(pending_level, line);
        }
    }
}

// The log goes through us from the moment the library is loaded: upstream's default prints every line.
struct log_installer {
    log_installer() {
        llama_log_set(on_ggml_log, nullptr);
        common_log_set_verbosity_thold(LOG_LEVEL_WARN);
    }
} const install_log;

// Scales are halves, and the search for the best ones aborts on what is no number or overflows on the way.
void require_storable(const float * values, int64_t n, const char * type_name) {
    const float most = 65504.0f;
    for (int64_t i = 0; i < n; ++i) {
        if (!(std::fabs(values[i]) <= most)) {
            fail(LUCEBOX_ERR_ARGUMENT, "value %lld is %g; %s holds numbers up to %g", (long long) i, values[i],
                 type_name, most);
        }
    }
}

const char * device_kind(enum ggml_backend_dev_type type) {
    switch (type) {
        case GGML_BACKEND_DEVICE_TYPE_CPU:   return "cpu";
        case GGML_BACKEND_DEVICE_TYPE_GPU:   return "gpu";
        case GGML_BACKEND_DEVICE_TYPE_IGPU:  return "igpu";
        case GGML_BACKEND_DEVICE_TYPE_ACCEL: return "accelerator";
        default:                             return "other";
    }
}

common_json describe_devices() {
    common_json out = common_json::array();
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t     device = ggml_backend_dev_get(i);
        ggml_backend_dev_props props  = {};
        ggml_backend_dev_get_props(device, &props);
        common_json entry           = common_json::object();
        entry["name"]               = std::string(props.name ? props.name : "");
        entry["description"]        = std::string(props.description ? props.description : "");
        entry["kind"]               = std::string(device_kind(props.type));
        entry["backend"]            = std::string(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)));
        entry["memory_free_bytes"]  = (uint64_t) props.memory_free;
        entry["memory_total_bytes"] = (uint64_t) props.memory_total;
        out.push_back(entry);
    }
    return out;
}

common_json describe_backends() {
    common_json out = common_json::array();
    for (size_t i = 0; i < ggml_backend_reg_count(); ++i) {
        ggml_backend_reg_t reg   = ggml_backend_reg_get(i);
        common_json        entry = common_json::object();
        entry["name"]            = std::string(ggml_backend_reg_name(reg));
        common_json features     = common_json::object();
        auto * get_features      = (ggml_backend_get_features_t) ggml_backend_reg_get_proc_address(
            reg, "ggml_backend_get_features");
        if (get_features != nullptr) {
            for (ggml_backend_feature * f = get_features(reg); f->name != nullptr; ++f) {
                features[std::string(f->name)] = std::string(f->value);
            }
        }
        entry["features"] = features;
        out.push_back(entry);
    }
    return out;
}

} // namespace

void set_last_error(const char * text) noexcept {
    try {
        last_error = text;
    } catch (...) {
        last_error.clear(); // out of memory while reporting: an empty text is all that is left
    }
}

char * copy_string(const std::string & text) {
    char * out = (char *) std::malloc(text.size() + 1);
    if (out == nullptr) {
        throw std::bad_alloc();
    }
    std::memcpy(out, text.c_str(), text.size() + 1);
    return out;
}

enum ggml_type type_from_name(const char * name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const char * known = ggml_type_name((enum ggml_type) i);
        if (known != nullptr && name != nullptr && std::strcmp(known, name) == 0 &&
            ggml_blck_size((enum ggml_type) i) > 0) {
            return (enum ggml_type) i;
        }
    }
    fail(LUCEBOX_ERR_ARGUMENT, "there is no tensor type named '%s'", name ? name : "(null)");
}

} // namespace lucebox

using namespace lucebox;

const char * lucebox_version(void) {
    return LUCEBOX_PACKAGE_VERSION;
}

const char * lucebox_upstream_build(void) {
    return LUCEBOX_UPSTREAM_BUILD;
}

const char * lucebox_series_hash(void) {
    return LUCEBOX_SERIES_HASH;
}

const char * lucebox_last_error(void) {
    return last_error.c_str();
}

void lucebox_string_free(char * text) {
    std::free(text);
}

void lucebox_log_set(lucebox_log_callback callback, void * user_data) {
    std::lock_guard<std::mutex> lock(log_mutex);
    log_sink.callback  = callback;
    log_sink.user_data = user_data;
}

lucebox_status lucebox_backends_load(const char * directory) {
    return guarded([&] {
        static std::once_flag once;
        std::call_once(once, [&] {
#ifdef LUCEBOX_BACKEND_DL
            ggml_backend_load_all_from_path(directory);
#else
            (void) directory; // every back end is linked in
#endif
            llama_backend_init();
        });
        if (ggml_backend_dev_count() == 0) {
            fail(LUCEBOX_ERR_BACKEND, "no back end could be loaded from '%s'", directory ? directory : "");
        }
    });
}

lucebox_status lucebox_system_info(char ** out_json) {
    return guarded([&] {
        needed(out_json, "out_json");
        common_json info   = common_json::object();
        info["compiler"]   = std::string(LUCEBOX_COMPILER);
        info["build_type"] = std::string(LUCEBOX_BUILD_TYPE);
        info["cmake_args"] = std::string(LUCEBOX_CMAKE_ARGS);
        info["backends"]   = describe_backends();
        info["devices"]    = describe_devices();
        *out_json          = copy_string(info.dump_safe());
    });
}

lucebox_status lucebox_quantize(const char * type_name, const float * rows, int64_t n_rows, int64_t n_per_row,
                                void * out, size_t out_capacity, size_t * out_size) {
    return guarded([&] {
        const enum ggml_type type = type_from_name(type_name);
        if (n_rows <= 0 || n_per_row <= 0 || n_per_row % ggml_blck_size(type) != 0) {
            fail(LUCEBOX_ERR_ARGUMENT, "%lld rows of %lld values cannot be stored as %s, whose block is %lld values",
                 (long long) n_rows, (long long) n_per_row, type_name, (long long) ggml_blck_size(type));
        }
        // a value takes at most 8 bytes
        if (n_rows > INT64_MAX / 8 / n_per_row) {
            fail(LUCEBOX_ERR_ARGUMENT, "%lld rows of %lld values are more than any memory holds", (long long) n_rows,
                 (long long) n_per_row);
        }
        const size_t size            = ggml_row_size(type, n_per_row) * (size_t) n_rows;
        needed(out_size, "out_size") = size;
        if (out == nullptr) {
            return;
        }
        if (rows == nullptr || out_capacity < size) {
            fail(LUCEBOX_ERR_ARGUMENT, "%zu bytes are needed, %zu were given", size, out_capacity);
        }
        if (type == GGML_TYPE_F32) {
            std::memcpy(out, rows, size);
            return;
        }
        if (type != GGML_TYPE_BF16) {
            require_storable(rows, n_rows * n_per_row, type_name);
        }
        // the i-quants that cannot do without an importance matrix get a flat one
        std::vector<float> importance;
        if (ggml_quantize_requires_imatrix(type)) {
            importance.assign((size_t) n_per_row, 1.0f);
        }
        const ggml_type_traits * traits = ggml_get_type_traits(type);
        // the last two are what activations become on the way, and have no quantiser of their own
        if ((!traits->is_quantized && type != GGML_TYPE_F16 && type != GGML_TYPE_BF16) || type == GGML_TYPE_Q8_1 ||
            type == GGML_TYPE_Q8_K) {
            fail(LUCEBOX_ERR_ARGUMENT, "floats cannot be stored as %s", type_name);
        }
        ggml_quantize_chunk(type, rows, out, 0, n_rows, n_per_row, importance.empty() ? nullptr : importance.data());
    });
}

lucebox_status lucebox_grammar_from_schema(const char * json_schema, char ** out_gbnf) {
    return guarded([&] {
        needed(out_gbnf, "out_gbnf");
        require_shallow_json(&needed(json_schema, "json_schema"), "JSON schema");
        const common_json schema = common_json::parse_no_throw(json_schema);
        if (schema.is_discarded()) {
            fail(LUCEBOX_ERR_ARGUMENT, "the JSON schema is not valid JSON");
        }
        std::string grammar;
        try {
            grammar = json_schema_to_grammar(schema);
        } catch (const std::exception & e) {
            fail(LUCEBOX_ERR_ARGUMENT, "the JSON schema cannot be turned into a grammar: %s", e.what());
        }
        *out_gbnf = copy_string(grammar);
    });
}
