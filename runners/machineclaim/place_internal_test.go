// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// A claim whose template does not exist says so, and is reconciled when somebody creates the template.
func TestMissingTemplateIsReportedAndRetried(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	claim, template := newClaim("a"), &v1alpha1.HypervisorMachineTemplate{}
	claim.Spec.TemplateRef.Name = "linux"
	template.Namespace, template.Name, template.Spec.HypervisorClusterRef.Name = claim.Namespace, "linux", "lab"

	objects := kube.NewIndexedClient(t, fake.NewClientBuilder().WithScheme(scheme).WithObjects(claim).Build(), demand.AddIndexes)
	s := &scope{Reconciler: &Reconciler{Client: objects}, claim: claim}

	if got := resolve(t.Context(), s); got.IsDone() || got.Reason() != reasonTemplateNotFound || !strings.Contains(got.Message(), `"linux"`) {
		t.Errorf("without the template: %s, want %s with its name", got, reasonTemplateNotFound)
	}

	want := []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}}}
	if diff := cmp.Diff(want, s.enqueueWaitingClaims(t.Context(), template)); diff != "" {
		t.Errorf("claims that wait for the template (-want +got):\n%s", diff)
	}

	if err := objects.Create(t.Context(), template); err != nil {
		t.Fatal(err)
	}

	if got := resolve(t.Context(), s); got.Reason() != "ClusterNotFound" {
		t.Errorf("with the template: %s, want its cluster to be missing", got)
	}
}

// registrationCounter is an identity provider that accepts every machine.
type registrationCounter struct {
	identity.Registry

	registered int
}

func (*registrationCounter) Check(context.Context) error { return nil }

func (r *registrationCounter) Register(context.Context, identity.Machine) (identity.Attestation, error) {
	r.registered++

	return identity.Attestation{JoinToken: "token"}, nil
}

// The lifetime of a join token starts when it is created, so a machine that waits on standby has none.
func TestStandbyHasNoJoinToken(t *testing.T) {
	t.Parallel()

	registry := &registrationCounter{}
	h := newStandbyFixture(t, nil, func(s *scope) {
		s.Identity, s.Settings.TrustDomain = registry, "hyperfleet.io"
		s.template.Spec.Attestation = &v1alpha1.Attestation{}
	})

	if !h.scope.hasIdentity() || registry.registered != 0 {
		t.Errorf("a machine on standby has the identity %+v, and was registered %d times", h.scope.claim.Status.BootstrapInfo.Identity, registry.registered)
	}

	waiting := *h.scope
	waiting.claim = h.scope.claim.DeepCopy()
	waiting.claim.Status.Times = nil

	if got := checkIdentityProvider(t.Context(), &waiting); !got.IsDone() || registry.registered != 0 {
		t.Errorf("the check of the identity provider ends with %s, and registers %d machines", got, registry.registered)
	}
}
