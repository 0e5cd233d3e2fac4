// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
)

// Work that we cut off ourselves says nothing of the host: it is forgotten, and done again.
func TestOurOwnCutOffIsNoOutcome(t *testing.T) {
	t.Parallel()

	host := &v1alpha1.LinuxMachine{ObjectMeta: metav1.ObjectMeta{UID: "a"}}
	before := host.Host().DeepCopy()

	pool := NewWorkerPool(&ssh.Dialer{}, clock.RealClock{}, 1, time.Minute)
	pool.jobs["a"] = &entry{done: &outcome{Outcome: drift.Outcome{
		Action: drift.Probe, Err: fmt.Errorf("connect: %w", context.Canceled), At: time.Now(),
	}}}

	result := collectResult(t.Context(), &scope{Reconciler: &Reconciler{WorkerPool: pool}, obj: host, status: host.Host()})
	if !result.IsDone() || pool.knows("a") {
		t.Errorf("got %+v; is its work known still: %t", result, pool.knows("a"))
	}

	if diff := cmp.Diff(before, host.Host()); diff != "" {
		t.Errorf("the host is said to be another (-before +after):\n%s", diff)
	}
}
