/* Starts Realm and shuts it down, each in one call. Python runs signal handlers between calls, so that whatever they raise finds Realm
   either up or down, and never half-way.

   Realm's functions come as pointers, so that nothing is linked. The layouts here are those of lifecycle.py. */

#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long long handle;
typedef void (*task_function)(const void *data, size_t size, const void *user_data, size_t user_size, handle processor);

enum { TOO_FEW = 1, NO_RUNTIME = -3002, LATENCY_CORE = 2, NUM_SIGNALS = 65 };

typedef int (*visit_function)(handle processor, void *data);

typedef struct {
  int (*get_runtime)(void **runtime);
  int (*create)(void **runtime);
  int (*init)(void *runtime, int *argc, char ***argv);
  int (*register_task)(void *runtime, int kind, int flags, unsigned task, task_function function, void *data, size_t size, handle *done);
  int (*wait)(void *runtime, handle event, int64_t longest_ns, int *poisoned);
  int (*query_create)(void *runtime, void **query);
  int (*query_restrict)(void *query, int kind);
  int (*query_iter)(void *query, visit_function visit, void *data, size_t most);
  int (*query_destroy)(void *query);
  int (*signal_shutdown)(void *runtime, handle after, int code);
  int (*wait_for_shutdown)(void *runtime);
  int (*destroy)(void *runtime);
  task_function function;
  void *runtime;          /* NULL while Realm is down */
  uint64_t num_starts;
  int32_t num_processors; /* 0 while Realm is down */
  int32_t num_wanted;
  uint32_t task;
  int32_t call;           /* number, above, of the function that was called last */
  handle *processors;     /* has room for as many as are asked for */
} lifecycle;

static void keep_handlers(struct sigaction *kept) {
  for (int i = 1; i < NUM_SIGNALS; i++)
    if (sigaction(i, NULL, &kept[i])) kept[i].sa_handler = SIG_ERR;
}

/* Realm puts a handler of its own on SIGUSR1; shutting down, it sets SIGINT to the default, so that Ctrl-C would kill Python from then
   on. Where there was no handler, one of Realm's may stay while it runs: those print where it crashed. */
static void put_back_handlers(const struct sigaction *kept, int is_up) {
  for (int i = 1; i < NUM_SIGNALS; i++)
    if (kept[i].sa_handler != SIG_ERR && !(is_up && kept[i].sa_handler == SIG_DFL)) sigaction(i, &kept[i], NULL);
}

static int visit(handle processor, void *data) {
  handle **next = data;
  *(*next)++ = processor;
  return 0;
}

static int find_processors(lifecycle *l, void *runtime) {
  handle *next = l->processors;
  void *query;
  int status;
  l->call = 5;
  if ((status = l->query_create(runtime, &query))) return status;
  l->call = 6;
  if (!(status = l->query_restrict(query, LATENCY_CORE))) {
    l->call = 7;
    status = l->query_iter(query, visit, &next, (size_t)l->num_wanted);
  }
  l->query_destroy(query);
  return status ? status : next - l->processors == l->num_wanted ? 0 : TOO_FEW;
}

static int start(lifecycle *l, void **runtime, int argc, char **argv) {
  handle registered;
  int status, poisoned;
  l->call = 1;
  if ((status = l->create(runtime))) return status;
  l->call = 2;
  if ((status = l->init(*runtime, &argc, &argv))) return status;
  l->call = 3; /* flag 0: registering globally aborts the process */
  if ((status = l->register_task(*runtime, LATENCY_CORE, 0, l->task, l->function, NULL, 0, &registered))) return status;
  l->call = 4;
  if ((status = l->wait(*runtime, registered, INT64_MIN, &poisoned))) return status;
  return find_processors(l, *runtime);
}

/* Returns Realm's status. The process must have no runtime of anyone's. */
int maniple_start(lifecycle *l, int argc, char **argv) {
  struct sigaction kept[NUM_SIGNALS];
  void *runtime = NULL;
  l->call = 0;
  int status = l->get_runtime(&runtime);
  if (status != NO_RUNTIME) return status;
  keep_handlers(kept);
  status = start(l, &runtime, argc, argv);
  if (status && l->call > 2) { /* it is up, and cannot be used */
    l->signal_shutdown(runtime, 0, 0);
    l->wait_for_shutdown(runtime);
  }
  if (status && l->call > 1) l->destroy(runtime);
  put_back_handlers(kept, !status);
  if (status) return status;
  l->runtime = runtime;
  l->num_processors = l->num_wanted;
  l->num_starts++;
  return 0;
}

/* No task may be left. Returns Realm's status; Realm counts as down whatever that is. */
int maniple_stop(lifecycle *l) {
  struct sigaction kept[NUM_SIGNALS];
  void *runtime = l->runtime;
  if (!runtime) return 0;
  l->runtime = NULL;
  l->num_processors = 0;
  keep_handlers(kept);
  int status;
  l->call = 9;
  if (!(status = l->signal_shutdown(runtime, 0, 0))) {
    l->call = 10;
    status = l->wait_for_shutdown(runtime);
    put_back_handlers(kept, 0); /* at once: the rest takes a while, in which Ctrl-C would kill */
    if (!status) {
      l->call = 11;
      status = l->destroy(runtime);
    }
  }
  put_back_handlers(kept, 0);
  return status;
}
