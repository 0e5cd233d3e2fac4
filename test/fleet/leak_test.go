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

// startCount is how often the operator starts. A goroutine that one start leaks is found as often.
const startCount = 2

// callTimeout is the timeout of calls to the CI platform. After a rejected call, the timer of net/http's client
// runs until then.
const callTimeout = 2 * time.Second

// TestStoppedOperatorLeavesNoGoroutine checks that an operator that is stopped while machines are being created
// ends all of its goroutines. It does not run in parallel, because the goroutines of other tests would count as
// leaks.
func TestStoppedOperatorLeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()

	t.Run("operator", func(t *testing.T) {
		f := fleet.New(t, env, fleet.Options{})
		template := f.NewTemplate()
		template.Spec.Bootstrap.Config.HTTPClient = &v1alpha1.HTTPClient{TimeoutSeconds: int32(callTimeout.Seconds())}

		f.CreateCluster(f.NewCluster())
		f.Create(template)
		f.Create(f.NewPool(20))

		for range startCount {
			f.Start()
			f.EventuallyReady(f.NewPool(0))

			made := f.CountClones()

			f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: 3})
			f.Eventually("machines being created", func() (bool, string) {
				return f.CountClones() > made, "no machine was created"
			})
			f.Stop()
		}
	})

	// The simulators have stopped with the subtest. Connections to the API server are shared by all clients
	// with the same configuration, and stay open.
	closeIdleConnections(t)

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

// closeIdleConnections closes the idle connections of the shared clients.
func closeIdleConnections(t *testing.T) {
	t.Helper()

	client, err := rest.HTTPClientFor(env.Config)
	if err != nil {
		t.Fatal(err)
	}

	client.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
}
