// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/foreign"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// The other projects are installed one after the other while the operator runs: a bridge
// says what is missing, and goes on by itself.
func TestKindsComeLater(t *testing.T) {
	t.Parallel()

	e := kube.Start(t, kube.WithCRDs("../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))
	prepare(t, e)

	w := newWorldBare(t, e)
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

		if err := project.install(t.Context(), e.Config); err != nil {
			t.Fatal(err)
		}
	}

	w.says(b, v1alpha1.ConditionPlatformReady, "True Installed", "")
	w.says(b, v1alpha1.ConditionDPUClusterValid, "False NotFound", "")
	w.dpuCluster("b", foreign.PhaseReady)
	w.says(b, v1alpha1.ConditionHostedClusterCreated, "True Created", "")
}
