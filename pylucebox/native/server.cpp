// liblucebox-server: upstream's server behind one C function, for a process of its own. A library apart from liblucebox,
// so that the engine does not load an HTTP stack.
#include <cstdio>
#include <exception>

#if defined(_WIN32)
#    define LUCEBOX_SERVER_API __declspec(dllexport)
#else
#    define LUCEBOX_SERVER_API __attribute__((visibility("default")))
#endif

// no header of upstream declares it
int llama_server(int argc, char ** argv);

extern "C" {

// Runs llama-server with the arguments of its command line until it is told to stop, and returns its exit code. It sets
// up the process's signals and log, and what it asserts ends the process: at most once in a process made for it.
LUCEBOX_SERVER_API int lucebox_server_main(int argc, char ** argv);

int lucebox_server_main(int argc, char ** argv) {
    try {
        return llama_server(argc, argv);
    } catch (const std::exception & e) {
        std::fprintf(stderr, "llama-server: %s\n", e.what());
    } catch (...) {
        std::fprintf(stderr, "llama-server: an exception of unknown type\n");
    }
    return 1;
}
}
