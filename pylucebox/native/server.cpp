// liblucebox-server: upstream's server behind C functions, for a process of its own. A library apart from liblucebox, so
// that the engine does not load an HTTP stack.
#include "server.h"

// functions that need a patch are left out where it is missing
#if __has_include("server-draft-policy.h")
#    include "server_policy.h"
#    define HAS_POLICY
#endif
#if __has_include("speculative-drafter.h")
#    include "server_drafter.h"
#    define HAS_DRAFTER
#endif
#if __has_include("server-sockets.h")
#    include "server-sockets.h"
#    define HAS_SOCKETS
#endif
#if __has_include("server-drain.h")
#    include "server-drain.h"
#    define HAS_DRAIN
#endif

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

// no header of upstream that is there without its page declares them
int  llama_server(int argc, char ** argv);
void llama_server_terminate();
struct llama_ui_asset;
const llama_ui_asset * llama_ui_find_asset(const std::string & name);

static int run(int argc, char ** argv) {
    try {
#ifdef HAS_DRAFTER
        return lucebox::run_with_drafter([&] { return llama_server(argc, argv); });
#else
        return llama_server(argc, argv);
#endif
    } catch (const std::exception & e) {
        std::fprintf(stderr, "llama-server: %s\n", e.what());
    } catch (...) {
        std::fprintf(stderr, "llama-server: an exception of unknown type\n");
    }
    return 1;
}

extern "C" {

int lucebox_server_main(int argc, char ** argv) {
    const int code = run(argc, argv);
#ifdef HAS_POLICY
    // A policy that hangs may hold the lock that every return to Python needs.
    if (!lucebox::policy_mailbox().close()) {
        std::fprintf(stderr, "llama-server: the width policy does not end; the process ends without it\n");
        std::fflush(nullptr);
        std::_Exit(code);
    }
#endif
    return code;
}

int32_t lucebox_server_has_page(void) {
    return llama_ui_find_asset("index.html") != nullptr;
}

#ifdef HAS_SOCKETS
void lucebox_server_use_sockets(const int32_t * sockets, int32_t n, void (*before_accept)(void)) {
    server_http_use_sockets(std::vector<int>(sockets, sockets + n), before_accept);
}
#endif

#ifdef HAS_DRAIN
void lucebox_server_drain(int32_t timeout_ms) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    int32_t n_running = server_http_drain();
    while (n_running > 0 && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        n_running = server_http_drain();
    }
    if (n_running > 0) {
        std::fprintf(stderr, "llama-server: the time is up, %d requests are cut off\n", (int) n_running);
        std::fflush(nullptr);
        std::_Exit(0);
    }
    llama_server_terminate();
}
#endif
}
