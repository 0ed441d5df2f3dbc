/* Has no system call instruction of its own, and loads a library that has one: the first argument, twice in threads that
   existed before. The second argument is the file to write, the third whether only the library's name is used. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static long (*append)(const char *, const char *, long);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void *early(void *path) {
    pthread_mutex_lock(&lock);
    while (!append) pthread_cond_wait(&changed, &lock);
    long count = append(path, "early\n", 6);
    pthread_mutex_unlock(&lock);
    return (void *)count;
}

int main(int argc, char **argv) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, early, argv[2]);
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    void *found = dlsym(library, "append");
    if (!found) { puts(dlerror()); return 1; }
    pthread_mutex_lock(&lock);
    append = found;
    printf("%ld\n", append(argv[2], "first\n", 6));
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < 2; i++) {
        void *count;
        pthread_join(threads[i], &count);
        printf("%ld\n", (long)count);
    }
    FILE *file = fopen(argv[2], "r");
    char line[16];
    while (file && fgets(line, sizeof line, file)) fputs(line, stdout);
    return 0;
}
