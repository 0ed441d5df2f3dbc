/* An interpreter: loads a module so that nobody else sees it, with the libraries it brings along, and calls it. The first
   argument is the module, the second what it is given. */
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
