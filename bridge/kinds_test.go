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
	"github.com/hyperfleet/hyperfleet/test/must"
)

// TestKindsAreInstalledLater installs the other projects one after another while the operator runs. The bridge
// reports what is missing and continues without a restart.
func TestKindsAreInstalledLater(t *testing.T) { //nolint:paralleltest // it deletes the CRDs
	deleteCRDs(t)
	runAreaAlone(t, fastClock{})

	w := newIsolatedFixture(t)
	b := w.newExposedBridge("b", "10.6.0.1")
	w.create(b)

	for _, project := range []struct {
		reason  string
		install func(context.Context, *rest.Config) error
	}{
		{"DPFNotInstalled", crds.InstallDPUCluster},
		{"HyperShiftNotInstalled", crds.InstallHyperShift},
		{"MetalLBNotInstalled", crds.InstallMetalLB},
	} {
		w.waitForCondition(b, v1alpha1.ConditionPlatformReady, "False "+project.reason, "install")
		w.waitForCondition(b, v1alpha1.ConditionReady, "False ValidationFailed", "")
		w.waitForPhase(b, v1alpha1.PhasePending)

		must.Do(t, project.install(t.Context(), env.Config))
	}

	w.waitForCondition(b, v1alpha1.ConditionPlatformReady, "True Installed", "")
	w.waitForCondition(b, v1alpha1.ConditionDPUClusterValid, "False NotFound", "")
	w.createDPUCluster("b", hypershift.PhaseReady)
	w.waitForCondition(b, v1alpha1.ConditionHostedClusterCreated, "True Created", "")
}

// fastClock is a clock whose timers wait for a hundredth of the time, so that the waiters for CRDs poll
// often.
type fastClock struct{ clock.RealClock }

func (fastClock) After(d time.Duration) <-chan time.Time { return time.After(d / 100) }

// deleteCRDs deletes the CRDs of the other projects if an earlier test has installed them.
func deleteCRDs(t *testing.T) {
	t.Helper()

	groups := []string{"hypershift.openshift.io", "metallb.io", "provisioning.dpu.nvidia.com"}
	left := func() []apiextensionsv1.CustomResourceDefinition {
		var all apiextensionsv1.CustomResourceDefinitionList
		must.Do(t, env.Client.List(t.Context(), &all))

		return slices.DeleteFunc(all.Items, func(kind apiextensionsv1.CustomResourceDefinition) bool {
			return !slices.Contains(groups, kind.Spec.Group)
		})
	}

	kindsInstalled.Store(false)

	for _, kind := range left() {
		must.Do(t, client.IgnoreNotFound(env.Client.Delete(t.Context(), &kind)))
	}

	w := &fixture{t: t, timeout: waitTimeout}
	w.eventually("the kinds are deleted", func() bool { return len(left()) == 0 })
}
