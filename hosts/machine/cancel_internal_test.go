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

// A job that the operator canceled tells nothing about the host. Its outcome is dropped, and the
// job runs again.
func TestCanceledJobHasNoOutcome(t *testing.T) {
	t.Parallel()

	host := &v1alpha1.LinuxMachine{ObjectMeta: metav1.ObjectMeta{UID: "a"}}
	before := host.Host().DeepCopy()

	pool := NewWorkerPool(&ssh.Dialer{}, clock.RealClock{}, 1, time.Minute)
	pool.jobs["a"] = &entry{outcome: &outcome{Outcome: drift.Outcome{
		Action: drift.Probe, Err: fmt.Errorf("connect: %w", context.Canceled), Time: time.Now(),
	}}}

	result := collectResult(t.Context(), &scope{Reconciler: &Reconciler{WorkerPool: pool}, obj: host, status: host.Host()})
	if !result.IsDone() || pool.hasJob("a") {
		t.Errorf("got %+v; pool still has the job: %t", result, pool.hasJob("a"))
	}

	if diff := cmp.Diff(before, host.Host()); diff != "" {
		t.Errorf("the status changed (-before +after):\n%s", diff)
	}
}
