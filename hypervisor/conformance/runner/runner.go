// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Statuses of cases.
const (
	Passed  = "passed"
	Failed  = "failed"
	Skipped = "skipped"
)

// Result is the result of one case.
type Result struct {
	Name    string  `json:"name"`
	Status  string  `json:"status"`
	Seconds float64 `json:"seconds"`
	// Messages are what the case has logged, only if it failed or was skipped.
	Messages []string `json:"messages,omitempty"`
}

// Options of Run.
type Options struct {
	// Parallel is the number of cases that run at the same time. Default: 4.
	Parallel int
	// Only selects cases: for each level of names, separated by slashes, a regular expression. Empty means all.
	Only string
	// Report is called for each case when it ends. It may be nil.
	Report func(Result)
}

const defaultParallel = 4

// runner is what all cases of a run share.
type runner struct {
	slots  chan struct{}
	only   []*regexp.Regexp
	report func(Result)

	mu      sync.Mutex
	results []Result
}

// Run runs f, which calls Run of its argument for each case. It returns the results in the order in which the cases have
// ended. f itself is a case only if it fails or runs no other cases.
func Run(ctx context.Context, options Options, f func(*T)) ([]Result, error) {
	if options.Parallel < 1 {
		options.Parallel = defaultParallel
	}

	r := &runner{slots: make(chan struct{}, options.Parallel), report: options.Report}

	for pattern := range strings.SplitSeq(options.Only, "/") {
		compiled, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("compile expression for cases: %w", err)
		}

		r.only = append(r.only, compiled)
	}

	root := r.newT(ctx, nil, "")
	root.execute(f)

	return r.results, nil
}

// T is a running case. It is a conformance.Test[*T].
type T struct {
	runner *runner
	parent *T
	name   string
	depth  int
	ctx    context.Context
	cancel context.CancelFunc
	// paused is closed when the case waits for the end of its parent's function, released when this function has returned,
	// and done when the case has ended.
	paused, released, done chan struct{}
	children               sync.WaitGroup

	mu                          sync.Mutex
	started                     time.Time
	holdsSlot, hasCases         bool
	isFailed, isSkipped, isOver bool
	messages                    []string
	cleanups                    []func()
}

func (r *runner) newT(ctx context.Context, parent *T, name string) *T {
	t := &T{
		runner: r, parent: parent, name: name, started: time.Now(),
		paused: make(chan struct{}), released: make(chan struct{}), done: make(chan struct{}),
	}
	t.ctx, t.cancel = context.WithCancel(ctx)

	if parent != nil {
		t.depth = parent.depth + 1
	}

	return t
}

// Run runs a case of this case and waits until it has ended or calls Parallel. It reports whether it has not failed.
func (t *T) Run(name string, f func(*T)) bool {
	t.mu.Lock()
	t.hasCases = true
	t.mu.Unlock()

	if t.depth < len(t.runner.only) && !t.runner.only[t.depth].MatchString(name) {
		return true
	}

	full := name
	if t.name != "" {
		full = t.name + "/" + name
	}

	child := t.runner.newT(t.ctx, t, full)
	t.children.Go(func() { child.execute(f) })

	select {
	case <-child.done:
	case <-child.paused:
	}

	return !child.Failed()
}

func (t *T) execute(f func(*T)) {
	returned := make(chan struct{})

	go func() {
		defer close(returned)
		defer t.recoverPanic()
		f(t)
	}()

	<-returned
	t.releaseSlot()
	close(t.released)
	t.children.Wait()
	t.finish()
	close(t.done)
}

// finish runs the cleanups, the last one first, and reports the case.
func (t *T) finish() {
	t.cancel()

	for cleanup := t.nextCleanup(); cleanup != nil; cleanup = t.nextCleanup() {
		finished := make(chan struct{})

		go func() {
			defer close(finished)
			defer t.recoverPanic()
			cleanup()
		}()

		<-finished
	}

	t.mu.Lock()
	t.isOver = true
	result := Result{Name: t.name, Status: Passed, Seconds: time.Since(t.started).Seconds()}

	switch {
	case t.isFailed:
		result.Status, result.Messages = Failed, t.messages
	case t.isSkipped:
		result.Status, result.Messages = Skipped, t.messages
	}

	isReported := !t.hasCases || t.isFailed && len(t.messages) > 0
	t.mu.Unlock()

	if isReported {
		t.runner.add(result)
	}
}

func (r *runner) add(result Result) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.results = append(r.results, result)

	if r.report != nil {
		r.report(result)
	}
}

func (t *T) nextCleanup() func() {
	t.mu.Lock()
	defer t.mu.Unlock()

	if len(t.cleanups) == 0 {
		return nil
	}

	last := t.cleanups[len(t.cleanups)-1]
	t.cleanups = t.cleanups[:len(t.cleanups)-1]

	return last
}

func (t *T) recoverPanic() {
	if problem := recover(); problem != nil {
		t.Errorf("panic: %v\n%s", problem, debug.Stack())
	}
}

// Parallel lets the case run at the same time as other cases, once the function of its parent has returned.
func (t *T) Parallel() {
	close(t.paused)

	<-t.parent.released
	t.runner.slots <- struct{}{}

	t.mu.Lock()
	defer t.mu.Unlock()

	t.holdsSlot, t.started = true, time.Now()
}

func (t *T) releaseSlot() {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.holdsSlot {
		t.holdsSlot = false
		<-t.runner.slots
	}
}

// Failed reports whether the case has failed so far.
func (t *T) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.isFailed
}

// Context returns a context that ends before the cleanups run.
func (t *T) Context() context.Context { return t.ctx }

// Cleanup runs f when the case and its own cases have ended.
func (t *T) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.cleanups = append(t.cleanups, f)
}

// Helper does nothing: messages have no positions in the code.
func (t *T) Helper() {}

// Log adds a message, which is reported if the case fails.
func (t *T) Log(args ...any) { t.add(fmt.Sprintln(args...), false) }

// Logf is Log with a format.
func (t *T) Logf(format string, args ...any) { t.add(fmt.Sprintf(format, args...), false) }

// Error adds a message and makes the case fail.
func (t *T) Error(args ...any) { t.add(fmt.Sprintln(args...), true) }

// Errorf is Error with a format.
func (t *T) Errorf(format string, args ...any) { t.add(fmt.Sprintf(format, args...), true) }

// Fatal is Error and ends the case.
func (t *T) Fatal(args ...any) {
	t.Error(args...)
	runtime.Goexit()
}

// Fatalf is Fatal with a format.
func (t *T) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// Skip adds a message and ends the case. It has neither passed nor failed.
func (t *T) Skip(args ...any) {
	t.add(fmt.Sprintln(args...), false)

	t.mu.Lock()
	t.isSkipped = true
	t.mu.Unlock()

	runtime.Goexit()
}

func (t *T) add(message string, isError bool) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.isOver {
		return
	}

	t.messages = append(t.messages, strings.TrimSpace(message))
	t.isFailed = t.isFailed || isError
}

// Count returns the numbers of results with each status.
func Count(results []Result) map[string]int {
	out := map[string]int{Passed: 0, Failed: 0, Skipped: 0}
	for i := range results {
		out[results[i].Status]++
	}

	return out
}
