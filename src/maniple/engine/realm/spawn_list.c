/* Issues the tasks of a step: a list prepared ahead, of Realm spawns and merges and nothing else.

   Realm's functions come as pointers, so that nothing is linked. The layouts here are those of spawn_list.py. */

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long long handle;

typedef int (*spawn_function)(void *runtime, handle processor, unsigned task, const void *arguments, size_t size, void *profiling,
                              handle after, int priority, handle *done);
typedef int (*merge_function)(void *runtime, const handle *events, size_t count, handle *merged, int ignore_faults);
typedef int (*body_function)(int64_t body); /* 1 if all went well */

/* A task on `processor`, or with processor 0 a merge. It waits for the instructions whose numbers are operands[first .. first+count):
   a merge for any number, a task for one at most. */
typedef struct {
  handle processor;
  int64_t body;
  int64_t first;
  int32_t count;
  int32_t priority;
} instruction;

typedef struct {
  void *runtime;
  spawn_function spawn;
  merge_function merge;
  body_function body;
  const instruction *instructions;
  const int64_t *operands;
  handle *events;  /* one for each instruction */
  handle *scratch; /* as many as any merge waits for */
  int64_t count;
  handle done;     /* triggers when all that was issued is done; 0 before anything is */
  uint32_t task;
  atomic_int stopped; /* once set, bodies do not run any more */
} step;

typedef struct {
  step *of;
  int64_t body;
} arguments;

/* The one task that is registered with Realm. */
void maniple_run(const void *data, size_t size, const void *user_data, size_t user_size, handle processor) {
  const arguments *given = data;
  (void)size, (void)user_data, (void)user_size, (void)processor;
  if (atomic_load_explicit(&given->of->stopped, memory_order_acquire)) return;
  if (!given->of->body(given->body)) atomic_store_explicit(&given->of->stopped, 1, memory_order_release);
}

static int merge_all(step *s, const int64_t *numbers, int64_t count, handle *merged) {
  for (int64_t i = 0; i < count; i++) s->scratch[i] = s->events[numbers[i]];
  return s->merge(s->runtime, s->scratch, (size_t)count, merged, 0);
}

/* Returns Realm's status: 0, or that of the first call that failed, whose number `*failed_at` gets. The last instruction is waited for. */
int maniple_issue(step *s, int64_t *failed_at) {
  s->done = 0;
  for (int64_t i = 0; i < s->count; i++) {
    const instruction *next = &s->instructions[i];
    const int64_t *operands = s->operands + next->first;
    int status;
    if (next->processor) {
      arguments given = {s, next->body};
      handle after = next->count ? s->events[operands[0]] : 0;
      status = s->spawn(s->runtime, next->processor, s->task, &given, sizeof given, NULL, after, next->priority, &s->events[i]);
    } else {
      status = merge_all(s, operands, next->count, &s->events[i]);
    }
    if (status) {
      atomic_store(&s->stopped, 1);
      if (i) s->merge(s->runtime, s->events, (size_t)i, &s->done, 1);
      *failed_at = i;
      return status;
    }
  }
  s->done = s->count ? s->events[s->count - 1] : 0;
  return 0;
}
