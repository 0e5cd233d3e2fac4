// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
)

// orderedKind is a kind of hosts that can be ordered.
type orderedKind struct{ machine.Kind }

func (orderedKind) HostKeys(machine.Object) machine.HostKeys {
	return machine.HostKeys{AcceptNew: true}
}
func (orderedKind) NewLike(machine.Object) machine.Object { return &v1alpha1.LinuxMachine{} }

// TestRefusedHostIsOrderedAgain checks that a fleet creates a host again that the API server has refused. No event tells
// when a quota or an admission policy allows the host.
func TestRefusedHostIsOrderedAgain(t *testing.T) {
	t.Parallel()

	refuse := interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.CreateOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "hosts"}, obj.GetName(), errors.New("exceeded quota: few"))
		},
	}
	s := &scope{
		Reconciler: &Reconciler{Client: fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithInterceptorFuncs(refuse).Build()},
		fleet:      &v1alpha1.HostFleet{}, kind: orderedKind{},
	}

	next, err := s.createHost(t.Context(), &v1alpha1.LinuxMachine{}, map[string]bool{}, scaling{requeueAfter: orderInterval})
	if err != nil || next.reason != "HostRefused" || next.requeueAfter != refusedRetry {
		t.Errorf("%+v, error %v, want HostRefused and another attempt after %v", next, err, refusedRetry)
	}
}

// A fleet creates one host at a time and limits the hosts without a first boot. It deletes only
// hosts that it created, in the order of compareForDeletion.
func TestDecideReplicas(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	host := func(name string, made, booted, well bool, age time.Duration) replica {
		return replica{name: name, isCreatedByFleet: made, hasBooted: booted, isReady: well, created: now.Add(-age)}
	}
	byHand := host("by-hand", false, true, true, time.Hour)
	old, young := host("old", true, true, true, 2*time.Hour), host("young", true, true, true, time.Hour)
	broken := host("broken", true, true, false, 3*time.Hour)
	booting := host("fresh", true, false, false, 4*time.Hour)
	deleting := host("leaving", true, true, true, time.Minute)
	deleting.isDeleting = true

	for name, tt := range map[string]struct {
		all    []replica
		want   int
		add    bool
		remove string
		again  time.Duration
		reason string
	}{
		"as many as wanted":                            {[]replica{byHand, old}, 2, false, "", 0, "Met"},
		"a host being deleted does not count":          {[]replica{byHand, deleting}, 1, false, "", 0, "Met"},
		"one is missing":                               {[]replica{byHand, old}, 3, true, "", orderInterval, "ScalingUp"},
		"replacement of a host being deleted":          {[]replica{byHand, deleting}, 2, true, "", orderInterval, "ScalingUp"},
		"a host was created recently":                  {[]replica{byHand, host("new", true, true, true, 3*time.Second)}, 3, false, "", 7 * time.Second, "ScalingUp"},
		"too many hosts without a first boot":          {[]replica{byHand, booting, booting, booting}, 9, false, "", 0, "HostsBooting"},
		"a host without a first boot is deleted first": {[]replica{byHand, old, young, broken, booting}, 4, false, "fresh", 0, "ScalingDown"},
		"then a broken host":                           {[]replica{byHand, old, young, broken}, 3, false, "broken", 0, "ScalingDown"},
		"then the newest host":                         {[]replica{byHand, old, young}, 2, false, "young", 0, "ScalingDown"},
		"no host that a person created":                {[]replica{byHand, byHand}, 1, false, "", 0, "HostsCreatedManually"},
		"one deletion at a time":                       {[]replica{old, young, deleting}, 1, false, "", 0, "DeletingHosts"},
		"zero hosts":                                   {[]replica{old}, 0, false, "old", 0, "ScalingDown"},
	} {
		got := decideScaling(tt.all, tt.want, 1, now)
		if got.shouldCreate != tt.add || got.deleteName != tt.remove || got.requeueAfter != tt.again || got.reason != tt.reason || got.isMet != (tt.reason == "Met") {
			t.Errorf("%s: %+v, want %+v", name, got, tt)
		}
	}
}

// A host that others have deleted gets no event.
func TestHostThatOthersDeletedGetsNoEvent(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	recorder := events.NewFakeRecorder(1)
	s := &scope{
		Reconciler: &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Recorder: recorder},
		fleet:      &v1alpha1.HostFleet{},
	}

	host := &v1alpha1.LinuxMachine{}
	host.Namespace, host.Name, host.UID = "ns", "gone", "u"

	if err := s.deleteHost(t.Context(), host); err != nil || len(recorder.Events) > 0 {
		t.Errorf("error %v, %d events", err, len(recorder.Events))
	}
}
