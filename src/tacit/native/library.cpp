// Which sources this library was built from.  Python compares it with the files that lie beside it.
extern "C" __attribute__((visibility("default"))) const char* tacit_sources() { return TACIT_SOURCES; }
