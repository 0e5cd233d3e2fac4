// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/test/heap"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// scopes are providers of a CI platform, with the credentials of any template.
type scopes struct {
	*connect.Workloads

	forge *forge
	clock *clocktesting.FakeClock
}

func newScopes() *scopes {
	s := &scopes{forge: &forge{Platform: github.NewPlatform()}, clock: clocktesting.NewFakeClock(time.Unix(1e9, 0))}
	s.Workloads = &connect.Workloads{
		Clock: s.clock, Platforms: map[string]workload.Platform{v1alpha1.WorkloadGitHubActions: s.forge},
		Secrets: &connect.Secrets{Reader: fake.NewClientBuilder().WithObjects(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "secrets"}, Data: map[string][]byte{"token": []byte("ghp_x")},
		}).Build()},
	}

	return s
}

// open asks for the provider of the numbered template, and gives how many are made for that.
func (s *scopes) open(t *testing.T, number int) int {
	t.Helper()

	template := templateOf("ci", fmt.Sprintf("t%d", number), "cluster")
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{
		GitHub: &v1alpha1.GitHubBootstrap{Organization: "acme", Credentials: secretKey("token")},
	}
	before := s.forge.opened

	if _, err := s.For(t.Context(), template, v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions}); err != nil {
		t.Fatal(err)
	}

	return s.forge.opened - before
}

// Ten thousand templates that came and went leave nothing behind.
func TestProvidersEndWithTheirTemplates(t *testing.T) { //nolint:paralleltest // it looks at the heap
	s := newScopes()

	heap.Ends(t, "providers", func(number int) {
		s.open(t, number)
		s.Forget(client.ObjectKey{Namespace: "ci", Name: fmt.Sprintf("t%d", number)})
	})

	if s.open(t, 1) != 1 {
		t.Error("a provider outlives its template")
	}
}

// A scope that no pool and no claim of a template names any more goes by and by.
func TestProvidersThatNobodyAsksForGo(t *testing.T) {
	t.Parallel()

	s := newScopes()
	s.open(t, 1)
	s.open(t, 2)
	s.clock.SetTime(s.clock.Now().Add(time.Hour))
	s.open(t, 2)
	s.clock.SetTime(s.clock.Now().Add(time.Second))
	s.open(t, 3)

	if first, second := s.open(t, 1), s.open(t, 2); first != 1 || second != 0 {
		t.Errorf("made anew: %d of template 1, which nobody asked for, and %d of template 2", first, second)
	}
}
