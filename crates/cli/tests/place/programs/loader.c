/* An interpreter: loads a module with RTLD_LOCAL, together with its dependencies, and calls it. The first argument is the
   module, the second the module's argument. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
  void *module = argc > 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  int (*make)(const char *) = module ? (int (*)(const char *))dlsym(module, "make") : NULL;
  if (!make) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int code = make(argv[2]);
  if (code == 0) puts("all is well");
  return code;
}
