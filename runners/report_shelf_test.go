// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/report"
	"github.com/hyperfleet/hyperfleet/workload"
)

// onShelf keeps the log of a machine that is gone, and whose job nobody has told.
func onShelf(t *testing.T, namespace, pool string, number int) *v1alpha1.MachineClaim {
	t.Helper()

	claim := claimOf(namespace, fmt.Sprintf("%s-%d", pool, number))
	claim.UID = types.UID(fmt.Sprintf("%08d-%s", number, pool))
	claim.Spec.TemplateRef.Name = pool

	if err := (&report.Logs{Client: byRunner{env.Client}}).Keep(t.Context(), claim, "no luck"); err != nil {
		t.Fatal(err)
	}

	return claim
}

// Machines that never get a job leave no more than a bounded number of logs; and no log goes
// that a job has, or may have yet.
func TestShelfIsBounded(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	runner := func(claim *v1alpha1.MachineClaim) string { return workload.RunnerName(claim.Name, claim.UID) }

	here := client.NewNamespacedClient(env.Client, namespace) // the shelves of other tests stay as they are

	var claims []*v1alpha1.MachineClaim
	for i := range 40 {
		claims = append(claims, onShelf(t, namespace, "linux", i))
	}

	onShelf(t, namespace, "arm", 1)

	// A job that has found its log, one whose runner is told, and a machine that is there.
	found := ledgerJob(t, namespace, "7", "")
	found.Status.Logs = nameOfLog(claims[0])

	if err := env.Client.Status().Update(t.Context(), found); err != nil {
		t.Fatal(err)
	}

	ledgerJob(t, namespace, "8", runner(claims[1]))

	alive := reporter(t, namespace, "linux-z", v1alpha1.BootstrapInfo{})
	if err := (&report.Logs{Client: byRunner{env.Client}}).Keep(t.Context(), alive, "not gone"); err != nil {
		t.Fatal(err)
	}

	for _, tc := range []struct {
		after time.Duration
		want  int
		why   string
	}{
		{59 * time.Minute, 42, "a job's news may be late"},
		{61 * time.Minute, 3 + 32 + 1, "asked for, the newest of one pool, and that of the other"},
		{23 * time.Hour, 3 + 32 + 1, "kept as long as jobs are"},
		{25 * time.Hour, 3, "older than any job's but those that are asked for"},
	} {
		shelf := &report.Shelf{
			Client: here, Live: here, Retention: 24 * time.Hour, Log: slog.New(slog.DiscardHandler),
			Clock: clocktesting.NewFakeClock(time.Now().Add(tc.after)),
		}

		for range 2 {
			if err := shelf.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}

		if got := len(logsOf(t, namespace)); got != tc.want {
			t.Errorf("after %s: %d logs, want %d: %s", tc.after, got, tc.want, tc.why)
		}

		for _, claim := range []*v1alpha1.MachineClaim{claims[0], claims[1], alive} {
			logOf(t, namespace, nameOfLog(claim))
		}
	}
}
