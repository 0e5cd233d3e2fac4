// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

// listed is a CI platform with these runners.
type listed struct {
	workload.Provider
	runners []workload.Runner
	removed []string
}

func (l *listed) Runners(context.Context, string) ([]workload.Runner, error) {
	return slices.Clone(l.runners), nil
}

func (l *listed) Deregister(_ context.Context, id string) error {
	l.removed = append(l.removed, id)

	return nil
}

// Only runners go that bear this operator's mark, are offline and idle, belong to no claim,
// and have belonged to none for long enough.
func TestRunnersOfOthersStay(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "kept", UID: "0123456789"}}
	clk := testclock.NewFakeClock(time.Unix(1_800_000_000, 0))
	ours := []string{vmspec.OperatorLabel("me")}
	platform := &listed{runners: []workload.Runner{
		{ID: "1", Name: "lost", Labels: ours},
		{ID: "2", Name: "busy", Labels: ours, Busy: true},
		{ID: "3", Name: "online", Labels: ours, Online: true},
		{ID: "4", Name: vmspec.RunnerName(claim), Labels: ours},
		{ID: "5", Name: "somebody's", Labels: []string{"linux"}},
		{ID: "6", Name: "another-operator's", Labels: []string{vmspec.OperatorLabel("other")}},
	}}
	s := &Sweeper{
		Live:     fake.NewClientBuilder().WithScheme(scheme).WithObjects(claim).Build(),
		Recorder: events.NewFakeRecorder(8), OperatorUID: "me", Age: time.Minute, Clock: clk, Log: slog.New(slog.DiscardHandler),
	}
	sweep := func() {
		s.begin()
		defer s.end()

		if err := s.scope(t.Context(), &v1alpha1.RunnerPool{}, platform); err != nil {
			t.Fatal(err)
		}
	}

	sweep()
	clk.Step(time.Minute - time.Second)
	sweep()

	if len(platform.removed) > 0 {
		t.Errorf("removed before its time: %v", platform.removed)
	}

	clk.Step(time.Second)
	sweep()

	if diff := cmp.Diff([]string{"1"}, platform.removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}

	// One that had a claim in between begins anew.
	s.DryRun, platform.removed = true, nil
	sweep()

	if len(platform.removed) > 0 {
		t.Errorf("a dry run removed %v", platform.removed)
	}
}
