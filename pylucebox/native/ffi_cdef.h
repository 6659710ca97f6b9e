/* What the extension declares beyond lucebox.h: the Python functions that the library calls back. */
extern "Python" void lucebox_on_log(int32_t level, const char * text, void * user_data);
extern "Python" bool lucebox_on_progress(float fraction, void * user_data);
