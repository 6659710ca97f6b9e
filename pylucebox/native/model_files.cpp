#include "model_files.h"

#include "internal.h"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace lucebox {

namespace {

timespec changed_at(const struct stat & info) {
#ifdef __APPLE__
    return info.st_mtimespec;
#else
    return info.st_mtim;
#endif
}

} // namespace

model_files::~model_files() {
    for (const entry & file : entries) {
        close(file.descriptor);
    }
}

void model_files::add(const std::string & path) {
    entries.reserve(entries.size() + 1); // so that nothing can throw once the file is open
    entry file = { path, open(path.c_str(), O_RDONLY | O_CLOEXEC), 0, {} };
    if (file.descriptor < 0) {
        fail(LUCEBOX_ERR_IO, "the file '%s' cannot be opened: %s", path.c_str(), std::strerror(errno));
    }
    struct stat info;
    if (fstat(file.descriptor, &info) == 0) {
        file.n_bytes    = info.st_size;
        file.changed_at = changed_at(info);
    }
    entries.push_back(std::move(file));
}

std::string model_files::changed() const {
    for (const entry & file : entries) {
        struct stat info;
        if (fstat(file.descriptor, &info) != 0) {
            continue;
        }
        const timespec at = changed_at(info);
        if (info.st_size != file.n_bytes || at.tv_sec != file.changed_at.tv_sec ||
            at.tv_nsec != file.changed_at.tv_nsec) {
            return file.path;
        }
    }
    return "";
}

void model_files::require_unchanged() const {
    const std::string path = changed();
    if (!path.empty()) {
        fail(LUCEBOX_ERR_IO, "the file '%s' was changed since the model was opened; open it again", path.c_str());
    }
}

} // namespace lucebox
