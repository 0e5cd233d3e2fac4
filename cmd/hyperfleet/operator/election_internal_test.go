// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/operator/fence"
	"github.com/hyperfleet/hyperfleet/kit/shards"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	kube.Main(m, &env, kube.WithCRDs("../../../deploy/crds", "../../../deploy/base/namespace.yaml"), kube.WithUses(kube.EveryArea))
}

// runElection runs the operator of an area without controllers until it is the leader, and stops it.
func runElection(t *testing.T, account, area string) {
	t.Helper()

	cfg := config.Default()
	cfg.Namespace = "hyperfleet-system"
	cfg.Controllers = []string{area}
	cfg.Metrics.BindAddress, cfg.Health.BindAddress = "0", "0"

	mgr, err := newManager(t.Context(), cfg, env.RecordUses(account, env.Config),
		fence.New(clock.RealClock{}, cfg.LeaderElection.LeaseDuration))
	if err != nil {
		t.Fatal(err)
	}

	if _, err := loadIdentity(t.Context(), mgr.GetAPIReader(), mgr.GetClient(), cfg); err != nil {
		t.Fatal(err)
	}

	about := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cfg.Namespace}}
	for range 2 { // a repeated event increases its count
		mgr.GetEventRecorder("hyperfleet").Eventf(about, nil, corev1.EventTypeNormal, "Told", "Tell", "it is so")
	}

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() { ended <- mgr.Start(ctx) }()

	hasEvent := func() bool {
		var events corev1.EventList
		if err := env.Client.List(t.Context(), &events, client.InNamespace(cfg.Namespace)); err != nil {
			t.Fatal(err)
		}

		for i := range events.Items {
			if events.Items[i].InvolvedObject.Name == shards.LeaseName(cfg.Controllers, "") {
				return true
			}
		}

		return false
	}

	for deadline := time.Now().Add(time.Minute); !hasEvent(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no event names the leader")
		}
	}

	stop()

	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	var lease coordinationv1.Lease
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: cfg.Namespace, Name: shards.LeaseName(cfg.Controllers, "")}, &lease); err != nil {
		t.Fatal(err)
	}

	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
		t.Errorf("%s keeps the lease when it ends", *holder)
	}
}

// TestElection checks that the permissions of the service accounts are sufficient to become the leader and to record
// events.
func TestElection(t *testing.T) {
	// The manifests contain these Secrets without data.
	key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "hyperfleet-system", Name: reportKeySecret}}
	ca := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "hyperfleet-system", Name: authoritySecret}}

	for _, empty := range []*corev1.Secret{key, ca} {
		if err := env.Client.Create(t.Context(), empty); err != nil {
			t.Fatal(err)
		}
	}

	runElection(t, kube.EveryArea, config.AreaHosts)
	runElection(t, "hyperfleet-runners", config.AreaRunners)
	checkGuard(t)
	checkShellAccess(t)

	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(key), key); err != nil {
		t.Fatal(err)
	}

	if strings.TrimSpace(string(key.Data[reportKeyField])) == "" {
		t.Error("there is no key")
	}
}
