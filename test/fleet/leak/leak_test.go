// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package leak_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// starts is how often the operator is started; what one start leaves behind is there as
// often.
const starts = 3

// callTimeout of calls to the CI platform. A call that was refused keeps the timer of
// net/http's client until then.
const callTimeout = 2 * time.Second

// An operator that is stopped while claims are in flight takes all of its goroutines
// with it, every time.
func TestStoppedOperatorLeavesNoGoroutine(t *testing.T) {
	ctrl.SetLogger(logr.Discard())

	env := kube.Start(t, kube.WithCRDs("../../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))
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

			made := f.VMsMade()

			f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: 6})
			f.Eventually("claims being in flight", func() (bool, string) {
				return f.VMsMade() > made, "no machine was made"
			})
			f.Stop()
		}
	})

	// The simulators have stopped with the subtest. Connections to the API server are kept
	// for whoever has the same configuration, and end with nobody.
	closeIdle(t, env)

	deadline := time.Now().Add(time.Minute)

	for {
		err := goleak.Find(before)
		if err == nil {
			return
		}

		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func closeIdle(t *testing.T, env *kube.Env) {
	t.Helper()

	client, err := rest.HTTPClientFor(env.Config)
	if err != nil {
		t.Fatal(err)
	}

	client.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
}
