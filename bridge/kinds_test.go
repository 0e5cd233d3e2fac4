// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"slices"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
)

// The other projects are installed one after the other while the operator runs: a bridge
// says what is missing, and goes on by itself.
func TestKindsComeLater(t *testing.T) { //nolint:paralleltest // it takes the kinds away
	withoutKinds(t)
	alone(t, hurried{})

	w := newWorldAlone(t)
	b := w.exposed("b", "10.6.0.1")
	w.create(b)

	for _, project := range []struct {
		reason  string
		install func(context.Context, *rest.Config) error
	}{
		{"DPFNotInstalled", crds.InstallDPUCluster},
		{"HyperShiftNotInstalled", crds.InstallHyperShift},
		{"MetalLBNotInstalled", crds.InstallMetalLB},
	} {
		w.says(b, v1alpha1.ConditionPlatformReady, "False "+project.reason, "install")
		w.says(b, v1alpha1.ConditionReady, "False ValidationFailed", "")
		w.reaches(b, v1alpha1.PhasePending)

		must(t, project.install(t.Context(), env.Config))
	}

	w.says(b, v1alpha1.ConditionPlatformReady, "True Installed", "")
	w.says(b, v1alpha1.ConditionDPUClusterValid, "False NotFound", "")
	w.dpuCluster("b", hypershift.PhaseReady)
	w.says(b, v1alpha1.ConditionHostedClusterCreated, "True Created", "")
}

// hurried is a clock that waits for a hundredth of the time: for kinds to come.
type hurried struct{ clock.RealClock }

func (hurried) After(d time.Duration) <-chan time.Time { return time.After(d / 100) }

// withoutKinds takes the other projects' kinds away, where an earlier test has installed
// them.
func withoutKinds(t *testing.T) {
	t.Helper()

	groups := []string{"hypershift.openshift.io", "metallb.io", "provisioning.dpu.nvidia.com"}
	left := func() []apiextensionsv1.CustomResourceDefinition {
		var all apiextensionsv1.CustomResourceDefinitionList
		must(t, env.Client.List(t.Context(), &all))

		return slices.DeleteFunc(all.Items, func(kind apiextensionsv1.CustomResourceDefinition) bool {
			return !slices.Contains(groups, kind.Spec.Group)
		})
	}

	for _, kind := range left() {
		must(t, client.IgnoreNotFound(env.Client.Delete(t.Context(), &kind)))
	}

	w := &world{t: t, patience: patience}
	w.eventually("the kinds are gone", func() bool { return len(left()) == 0 })
}
