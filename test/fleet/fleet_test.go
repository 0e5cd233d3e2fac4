// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"flag"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/sim/kubevirt/crds"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var (
	env *kube.Env
	// programs is the folder of the programs that KubeVirt machines run.
	programs string
)

// parallelTests is the number of tests that run in parallel. It is high because tests mostly wait for machines.
const parallelTests = "8"

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	flag.Parse()

	if err := flag.Set("test.parallel", parallelTests); err != nil {
		panic(err)
	}

	return exe.RunWith(func(dir string) int {
		programs = dir

		return kube.Run(m, &env, kube.ForArea("runners"), kube.WithScheme(virtv1.AddToScheme), kube.WithSetup(crds.Install,
			func(ctx context.Context, _ *rest.Config) error { return env.Client.Create(ctx, newNetworkCRD()) }))
	}, "cmd/bootstrap-service", "cmd/forgesim")
}

// TestQueuedJobsGetMachines checks that queued jobs get machines within the limit of their pool, and that an event
// reports each transition of a machine's life.
func TestQueuedJobsGetMachines(t *testing.T) {
	t.Parallel()

	const jobs = 3

	f := newFastFleet(t, fleet.Options{})
	f.Populate(2)
	f.Start()
	f.EventuallyReady(f.NewPool(0))
	queueJobs(f, jobs)
	f.EventuallyJobsDone(jobs)

	for _, reason := range []string{
		"Connected", "TemplateReady", "ScalingUp", "Started", "RunnerOnline", "Destroyed",
	} {
		f.EventuallyEvent(reason)
	}

	f.EventuallyClean()

	if made := f.CountClones(); made != jobs {
		t.Errorf("%d VMs were created for %d jobs", made, jobs)
	}

	var secret corev1.Secret
	if err := f.Client.Get(t.Context(), client.ObjectKey{Namespace: f.Namespace, Name: "github"}, &secret); err != nil {
		t.Fatal(err)
	}

	for _, text := range f.Events() {
		if strings.Contains(text, string(secret.Data["pat"])) {
			t.Errorf("an event contains the token: %s", text)
		}
	}
}
