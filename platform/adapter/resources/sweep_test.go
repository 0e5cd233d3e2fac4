// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/platform/sweep"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// The API writes its IDs in one form. An object whose label has an ID in another form counts as unowned
// even if its HMAC is valid, because the API would respond that the resource does not exist. test/access
// tests the rest of sweep.
func TestNonCanonicalIDs(t *testing.T) {
	t.Parallel()

	const sweeping = "spelling"

	listening := httptest.NewServer(api)
	t.Cleanup(listening.Close)

	calls, err := client.New(platform.APIClient{BaseURL: listening.URL}, client.Options{})
	must.Do(t, err)

	f, id, want := newFixture(t, newSimpleTask()), uuid.Must(uuid.NewV7()).String(), map[string]string{}

	for label, reason := range map[string]string{
		id: "", strings.ToUpper(id): sweep.ReasonNoResourceID, strings.ReplaceAll(id, "-", ""): sweep.ReasonNoResourceID,
		"cluster-1": sweep.ReasonNoResourceID,
	} {
		want[label] = reason
		object := f.newConfigMap("named-" + strings.ToLower(uuid.NewString()))

		mark := stamp.Owner{ResourceID: label, ResourceName: "x", Generation: 1}
		must.Do(t, stamp.New(sweeping, newKeys(t, strings.Repeat("k", 32))).SetOwnership(object, mark))

		must.Do(t, env.Client.Create(t.Context(), object))
	}

	conf := sweep.Defaults()
	conf.MinAge, conf.MaxShare, conf.Adapters, conf.Kinds = 0, 1, []string{sweeping}, []string{"ConfigMap"}

	report, err := sweep.Run(t.Context(), sweep.Options{Config: conf, Kube: env.Config, API: calls, Keys: newKeys(t, strings.Repeat("k", 32))})
	must.Do(t, err)

	got := map[string]string{}
	for _, item := range report.Items {
		got[item.ResourceID] = item.Reason
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons by label (-want +got):\n%s", diff)
	}
}

// TestOneReplicaSweeps checks that of two sweeps with an interval only one works at a time, and that the other one takes
// over when the first ends.
func TestOneReplicaSweeps(t *testing.T) {
	t.Parallel()

	listening := httptest.NewServer(api)
	t.Cleanup(listening.Close)

	conf := sweep.Defaults()
	conf.Adapters, conf.Kinds = []string{"nobody"}, []string{"ConfigMap"}
	conf.Interval, conf.Lease = 10*time.Millisecond, "sweep."+strings.ToLower(t.Name())

	var (
		mu     sync.Mutex
		counts = map[string]int{}
		group  sync.WaitGroup
	)

	defer group.Wait()

	count := func(name string) int {
		mu.Lock()
		defer mu.Unlock()

		return counts[name]
	}

	start := func(name string) (stop context.CancelFunc) {
		calls, err := client.New(platform.APIClient{BaseURL: listening.URL}, client.Options{})
		must.Do(t, err)

		ctx, stop := context.WithCancel(t.Context())

		group.Go(func() {
			sweep.Repeat(ctx, sweep.Options{
				Config: conf, Kube: env.Config, API: calls, Keys: newKeys(t, strings.Repeat("k", 32)),
			}, func(_ sweep.Report, err error) {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}

				mu.Lock()
				defer mu.Unlock()

				counts[name]++
			})
		})

		return stop
	}

	stopFirst := start("first")

	timing.WaitUntil(t, "the first replica sweeps at each interval", func() bool { return count("first") >= 2 })

	stopSecond := start("second")
	before := count("first")

	timing.WaitUntil(t, "the first replica goes on", func() bool { return count("first") >= before+2 })

	if count("second") > 0 {
		t.Error("both replicas sweep")
	}

	stopFirst()
	timing.WaitUntil(t, "the second replica takes over", func() bool { return count("second") >= 2 })
	stopSecond()
}
