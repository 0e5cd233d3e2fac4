// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// processorTime adds up the processor time of a part of the process.
type processorTime struct{ spent atomic.Int64 }

// start starts to measure the processor time of the calling goroutine until the returned function is called.
func (p *processorTime) start() func() {
	runtime.LockOSThread()

	before := readProcessor(unix.CLOCK_THREAD_CPUTIME_ID)

	return func() {
		p.spent.Add(int64(readProcessor(unix.CLOCK_THREAD_CPUTIME_ID) - before))
		runtime.UnlockOSThread()
	}
}

func readProcessor(clock int32) time.Duration {
	var out unix.Timespec
	if err := unix.ClockGettime(clock, &out); err != nil {
		panic(err) // Linux has the clocks of the processor
	}

	return time.Duration(out.Nano())
}

// leader is the processor of the operator. The simulated clock stops while code runs, so each call to the API server waits
// for the processor time that the operator has used since the previous call.
type leader struct {
	// models is the processor time of the models of other programs.
	models *processorTime
	// core is held by the goroutine whose work the processor does.
	core    chan struct{}
	counted atomic.Int64
	// busy is the processor time of the operator.
	busy atomic.Int64
}

func newLeader(models *processorTime) *leader {
	out := &leader{models: models, core: make(chan struct{}, 1)}
	out.counted.Store(out.read())

	return out
}

// read returns the processor time of the process without that of the models.
func (l *leader) read() int64 {
	return int64(readProcessor(unix.CLOCK_PROCESS_CPUTIME_ID)) - l.models.spent.Load()
}

// wait waits until the processor has done the work since the last call.
func (l *leader) wait() {
	now := l.read()

	work := now - l.counted.Swap(now)
	if work <= 0 {
		return
	}

	l.busy.Add(work)
	l.core <- struct{}{}

	time.Sleep(time.Duration(work))
	<-l.core
}
