// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// The clients of DNS services are removed together with their clusters.
func TestClientsOfDeletedClustersAreFreed(t *testing.T) { //nolint:paralleltest // it measures the heap
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	services := &Services{
		Factories: map[string]Factory{"lab": func(Settings) (Service, error) { return nil, nil }}, //nolint:nilnil // it is not called
		Secret: func(context.Context, v1alpha1.SecretKeySelector, credential.Destination) (string, error) {
			return "s3cret", nil
		},
		Clock: clock.RealClock{},
	}
	sweeper := &Sweeper{
		APIReader: fake.NewClientBuilder().WithScheme(scheme).Build(), Services: services, Interval: time.Hour,
		Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
	}

	heap.CheckNoLeak(t, "connections", func(number int) {
		cluster := &v1alpha1.HypervisorCluster{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", number)}}
		cluster.Spec.DNS = &v1alpha1.HypervisorDNS{DNSProvider: &v1alpha1.DNSProvider{
			Type: "lab", Credentials: map[string]v1alpha1.SecretValueSource{"key": {}},
		}}

		if _, err := services.open(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}

		if number%1000 == 0 {
			sweeper.Sweep(t.Context())
		}
	})

	sweeper.Sweep(t.Context())

	if len(services.clients) > 0 {
		t.Errorf("%d connections are left", len(services.clients))
	}
}
