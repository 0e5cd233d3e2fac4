// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/heap"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

func openOne(t *testing.T, w *Workloads, number int) *v1alpha1.HypervisorMachineTemplate {
	t.Helper()

	template := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: fmt.Sprintf("t%d", number)}}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{Organization: "acme"}}

	runner, err := w.Runner(template, v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions})
	if err != nil {
		t.Fatal(err)
	}

	config := workload.Config{Runner: runner, Template: template, Secrets: map[string]string{"token": fmt.Sprintf("token-%d", number)}}
	if _, err := w.store(keyOf(template, runner), config); err != nil {
		t.Fatal(err)
	}

	return template
}

// Ten thousand templates that came and went leave nothing behind.
func TestProvidersEndWithTheirTemplates(t *testing.T) { //nolint:paralleltest // it looks at the heap
	w := &Workloads{Platforms: map[string]workload.Platform{v1alpha1.WorkloadGitHubActions: github.NewPlatform()}}

	heap.Ends(t, "providers", func(number int) { w.Forget(client.ObjectKeyFromObject(openOne(t, w, number))) })

	if len(w.entries) > 0 {
		t.Errorf("%d providers are left", len(w.entries))
	}
}

// A scope that no pool and no claim of a template names any more goes by and by.
func TestProvidersThatNobodyAsksForGo(t *testing.T) {
	t.Parallel()

	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	w := &Workloads{Platforms: map[string]workload.Platform{v1alpha1.WorkloadGitHubActions: github.NewPlatform()}, Clock: clk}

	openOne(t, w, 1)
	openOne(t, w, 2)
	clk.SetTime(clk.Now().Add(unused))
	openOne(t, w, 2)
	clk.SetTime(clk.Now().Add(time.Second))
	openOne(t, w, 3)

	if len(w.entries) != 2 {
		t.Errorf("%d providers are kept, want those of the templates 2 and 3", len(w.entries))
	}
}
