/* A clock that is SHIFT seconds ahead, for `archwright repro`: loaded in front of every program of one build.
 *
 * libfaketime does the same and more, but cicc brings an allocator that asks for the time while libfaketime starts,
 * and hangs for ever. Nothing here allocates or has to start. Time stamps of files stay real. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
  long status = syscall(SYS_clock_gettime, clock, now);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)) {
    now->tv_sec += SHIFT;
  }
  return (int)status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec exact;
  int status = clock_gettime(CLOCK_REALTIME, &exact);
  if (status == 0) {
    *now = (struct timeval){exact.tv_sec, exact.tv_nsec / 1000};
  }
  return status;
}

time_t time(time_t *copy) {
  struct timespec now = {0, 0};
  clock_gettime(CLOCK_REALTIME, &now);
  if (copy) {
    *copy = now.tv_sec;
  }
  return now.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
  return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

/* Deadlines were computed from our clock, and the kernel measures them with its own. Those of the monotonic clock,
 * which starts with the machine, are smaller numbers and pass as they are. */
#define WITH_DEADLINE(function, parameters, ...)                                     \
  int function parameters {                                                          \
    int(*real) parameters = (int(*) parameters)dlsym(RTLD_NEXT, #function);           \
    struct timespec real_end = *end;                                                 \
    if (real_end.tv_sec > 1000000000) {                                              \
      real_end.tv_sec -= SHIFT;                                                      \
    }                                                                                \
    end = &real_end;                                                                 \
    return real(__VA_ARGS__);                                                        \
  }

WITH_DEADLINE(pthread_cond_timedwait,
              (pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
               const struct timespec *restrict end),
              condition, mutex, end)
WITH_DEADLINE(pthread_mutex_timedlock, (pthread_mutex_t *restrict mutex, const struct timespec *restrict end), mutex,
              end)
WITH_DEADLINE(sem_timedwait, (sem_t *restrict semaphore, const struct timespec *restrict end), semaphore, end)
