// Errors and what the log said when they happened. Part of liblucebox and of liblucebox-server.
#include "internal.h"

#include <cstdarg>
#include <cstdio>

namespace lucebox {

static thread_local std::string * captured_lines = nullptr; // of the innermost log_capture

void fail(lucebox_status status, const char * format, ...) {
    char    text[2048];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    throw error(status, text);
}

log_capture::log_capture() : outer(captured_lines) {
    captured_lines = &lines;
}

log_capture::~log_capture() {
    captured_lines = outer;
}

void log_capture::add(const std::string & line) {
    if (captured_lines != nullptr) {
        *captured_lines += (captured_lines->empty() ? "" : "; ") + line;
    }
}

std::string log_capture::text_or(const std::string & fallback) const {
    return lines.empty() ? fallback : lines;
}

bool tells_of_memory(const std::string & cause) {
    for (const char * sign : { "alloc", "out of memory", "Cannot allocate memory", "insufficient memory" }) {
        if (cause.find(sign) != std::string::npos) {
            return true;
        }
    }
    return false;
}

} // namespace lucebox
