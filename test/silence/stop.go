// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package silence

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

// MaxEnd is how long a program may take to end after SIGTERM, whatever its servers do.
const MaxEnd = 20 * time.Second

// Stop sends SIGTERM to a process, prints how long the process takes to end, and fails the test if it takes
// longer than MaxEnd.
func Stop(t testing.TB, process *procrun.Process) {
	t.Helper()

	select {
	case <-process.Done():
		t.Fatalf("%s has ended before SIGTERM\n%s", process.Name(), process.LogTail())
	default:
	}

	begin := time.Now()

	if err := process.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("send SIGTERM: %v\n%s", err, process.LogTail())
	}

	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()

	_ = process.Wait(ctx) // a process that could not finish its work may exit with any code

	took := time.Since(begin)
	t.Logf("ends after %.1f s", took.Seconds())

	if took >= MaxEnd {
		t.Errorf("%s takes %.1f s to end, want less than %s\n%s", process.Name(), took.Seconds(), MaxEnd, process.LogTail())

		_ = process.Kill()
	}
}
