// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// starts is how often the operator is started; what one start leaves behind is there as
// often.
const starts = 2

// callTimeout of calls to the CI platform. A call that was refused keeps the timer of
// net/http's client until then.
const callTimeout = 2 * time.Second

// An operator that is stopped while claims are in flight takes all of its goroutines
// with it, every time. It is alone: others' goroutines would be taken for the operator's.
func TestStoppedOperatorLeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()

	t.Run("operator", func(t *testing.T) {
		f := fleet.New(t, env, fleet.Options{})
		template := f.NewTemplate()
		template.Spec.Bootstrap.Config.HTTPClient = &v1alpha1.HTTPClient{TimeoutSeconds: int32(callTimeout.Seconds())}

		f.CreateCluster(f.NewCluster())
		f.Create(template)
		f.Create(f.NewPool(20))

		for range starts {
			f.Start()
			f.EventuallyReady(f.NewPool(0))

			made := f.CountClones()

			f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: 3})
			f.Eventually("claims being in flight", func() (bool, string) {
				return f.CountClones() > made, "no machine was made"
			})
			f.Stop()
		}
	})

	// The simulators have stopped with the subtest. Connections to the API server are kept
	// for whoever has the same configuration, and end with nobody.
	closeIdle(t)

	deadline := time.Now().Add(time.Minute)

	for {
		err := goleak.Find(before)
		if err == nil {
			return
		}

		if time.Now().After(deadline) {
			t.Fatal(err)
		}

		time.Sleep(50 * time.Millisecond)
	}
}

func closeIdle(t *testing.T) {
	t.Helper()

	client, err := rest.HTTPClientFor(env.Config)
	if err != nil {
		t.Fatal(err)
	}

	client.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
}
