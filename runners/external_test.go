// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/example"
	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/server"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// A provider that is a program of its own may be gone, may start, and may hang. Its cluster says so, and another cluster
// is not delayed.
func TestExternalProviderComesAndGoes(t *testing.T) {
	t.Parallel()

	folder := loopback.SocketFolder(t)

	w := newClusterFixture(t)
	createSecrets(w, w.name)

	address := "unix://" + filepath.Join(folder, "s")
	own := w.name + "-external"
	clusters := w.reconciler.Clusters
	clusters.Options.OperatorUID = "operator"
	clusters.Factories[v1alpha1.ProviderExternal] = external.New

	t.Cleanup(clusters.Close)
	env.Create(t, &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: own},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: v1alpha1.ProviderExternal, External: &v1alpha1.ExternalProvider{Address: address},
		},
	})

	other := w.name
	reconcile := func() *v1alpha1.HypervisorCluster {
		w.name = own
		defer func() { w.name = other }()

		return w.reconcileUntilStable()
	}

	cluster := reconcile()
	kube.CheckCondition(w, cluster.Status.Conditions, "Connected", metav1.ConditionFalse, "ProviderUnavailable", "start the provider")
	kube.CheckCondition(w, w.reconcileUntilStable().Status.Conditions, step.Ready, metav1.ConditionTrue, "Ready", "")

	ctx, stop := context.WithCancel(t.Context())

	var ended sync.WaitGroup

	ended.Go(func() {
		err := server.Run(ctx, server.Options{Address: address}, server.Program{
			New: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
				return example.Connect(example.NewCloud(""), config, options)
			},
		})
		if err != nil {
			t.Error(err)
		}
	})

	timing.WaitUntil(t, "the provider is connected", func() bool { return step.IsReady(reconcile()) })
	kube.CheckCondition(w, reconcile().Status.Conditions, "Connected", metav1.ConditionTrue, "Connected", "example 1, 1 node online")

	stop()
	ended.Wait()

	timing.WaitUntil(t, "the end of the provider is reported", func() bool { return !step.IsReady(reconcile()) })
	// The message is about the session that has ended, or about the socket on which nothing listens.
	kube.CheckCondition(w, reconcile().Status.Conditions, "Connected", metav1.ConditionFalse, "ProviderUnavailable", "start ")

	start := time.Now()
	kube.CheckCondition(w, w.reconcileUntilStable().Status.Conditions, step.Ready, metav1.ConditionTrue, "Ready", "")

	if took := time.Since(start); took > time.Minute {
		t.Errorf("the other cluster was delayed by %s", took)
	}
}
