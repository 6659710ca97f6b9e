// The files that a model is computed from, kept open to see whether they change.
#pragma once

#include <string>
#include <vector>

#include <sys/stat.h>
#include <sys/types.h>

namespace lucebox {

// Weights are mapped, not copied. Of a file that another program cuts short, the mapping loses pages, and touching one
// of them ends the process; of one that is written over, the model silently becomes another. Looking at size and time
// before each run costs well under a microsecond a file. It leaves the time of one run, as little as can be had without
// a handler for signals, which is the application's to set.
class model_files {
  public:
    model_files() = default;
    ~model_files();

    model_files(const model_files &)             = delete;
    model_files & operator=(const model_files &) = delete;

    // Throws LUCEBOX_ERR_IO when the file cannot be opened.
    void add(const std::string & path);

    // The first file that is not what it was; empty when there is none.
    std::string changed() const;

    // Throws LUCEBOX_ERR_IO when there is one.
    void require_unchanged() const;

  private:
    struct entry {
        std::string path;
        int         descriptor;
        off_t       n_bytes;
        timespec    changed_at;
    };

    std::vector<entry> entries;
};

} // namespace lucebox
